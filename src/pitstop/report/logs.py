"""Foreign logs as text: the verdict first, then what the log says and what it does not."""

import shlex
from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.records.logs.comparison import LogComparison, LogPair
from pitstop.records.logs.summary import Eta, EventTotal, LogExamination, LogSummary, Steady
from pitstop.records.logs.windows import (
    CLOCK,
    ColumnNote,
    FieldQuote,
    LineKind,
    Unquoted,
)
from pitstop.records.units import count_text, digits, rate_text, seconds_text, share_text
from pitstop.records.verdict import Verdict
from pitstop.report.terminal import literal, verdict_report
from pitstop.report.terminal_tables import plain_table

NOT_KNOWN = "not known"

_SHOWN_MEANINGS = {
    "printed_step_s": "printed step time",
    "samples_per_s": "printed samples/s",
    "memory_bytes": "memory",
}
_TREND_WORTH_SAYING = 0.02


def log_report(log: LogSummary, verdict: Verdict) -> RenderableType:
    """Show the verdict on one log, then the log's own numbers with their formulas."""
    return Group(
        verdict_report(verdict), "", Text(log_headline(log), "bold"), _numbers(log), _next(log)
    )


def log_comparison_report(comparison: LogComparison) -> RenderableType:
    """Show which log is faster and by how much, or why nobody can say."""
    parts: list[RenderableType] = []
    for pair in comparison.pairs:
        parts += [*_pair_lines(pair), ""]
    headings = ("batch", "ranks", "step", "IQR", "windows", "samples/s", "wait for data")
    parts.append(plain_table(map(_cells, comparison.logs), ["log"], headings))
    for one in comparison.logs:
        name = literal(one.summary.source)
        parts.append(Text(f"{name}: {one.verdict.outcome}: {literal(one.verdict.message)}"))
    parts.append(Text(f"next: pitstop doctor {_quoted(comparison.logs[-1].summary.source)}", "dim"))
    return Group(*parts)


def log_headline(log: LogSummary) -> str:
    """Say in one line what a log is and what of the run it covers."""
    version = f" {literal(log.version)}" if log.version else ""
    sure = "as given" if log.confidence >= 1 else f"{min(log.confidence, 0.99):.0%} sure"
    if log.quoted:
        sure = "no tool defines it"
    pieces = [f"{literal(log.source)}: {literal(log.format)}{version} ({sure})"]
    if log.records is not None:
        pieces.append(count_text(log.records, "record"))
    if log.last_step is not None:
        of = "" if log.total_steps is None else f" of {log.total_steps:,}"
        since = "" if log.first_step is None else f"{log.first_step:,} "
        pieces.append(f"steps {since}to {log.last_step:,}{of}")
    if log.attempts is not None and log.attempts > 1:
        pieces.append(count_text(log.attempts, "attempt"))
    return ", ".join(pieces)


def _numbers(log: LogSummary) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in log_rows(log):
        table.add_row(Text(name), Text(text))
    return table


def log_rows(log: LogSummary) -> Iterator[tuple[str, str]]:
    """Give each of a log's numbers its name, and the text for it with their formula."""
    yield from _speed_rows(log)
    if log.data_wait is not None:
        share = NOT_KNOWN if log.data_share is None else f"{share_text(log.data_share)} of the step"
        yield "wait for data", f"{share}; {_spread(log.data_wait)}"
    if log.run_s is not None:
        yield "run", f"{seconds_text(log.run_s)} ({log.run_formula})"
    for name, total in log.events.items():
        yield literal(name), _event_text(total)
    if log.eta is not None:
        yield "left", _eta_text(log.eta)
    for column, note in log.meanings.items():
        if column in _SHOWN_MEANINGS and note.meaning != NOT_KNOWN:
            yield f"{_SHOWN_MEANINGS[column]} is", _meaning_text(note)
    if log.gaps:
        yield "not in the log", ", ".join(log.gaps)
    yield from _quotations(log)


def _speed_rows(log: LogSummary) -> Iterator[tuple[str, str]]:
    """Give the speed its rows; of quoted lines that time no step there is none."""
    missing = "not in the log" if "time of a step" in log.gaps else log.rate_gap or "see the notes"
    missing = "nothing in the log gives it without a guess" if log.quoted else missing
    if log.quoted and log.step is None and log.rate is None:
        yield "step", f"{NOT_KNOWN}: {missing}"
        return
    yield "step", _spread(log.step) if log.step else f"{NOT_KNOWN}: {missing}"
    yield "samples/s", _spread(log.rate) if log.rate else f"{NOT_KNOWN}: {log.rate_gap}"
    yield "batch", _batch_text(log)


def _quotations(log: LogSummary) -> Iterator[tuple[str, str]]:
    """Give what the lines print, and what of the training is not among it."""
    for kind in log.quoted:
        yield from _quoted_lines(kind)
    if log.unquoted is not None:
        yield "not quoted", _unquoted_text(log.unquoted)


def _quoted_lines(kind: LineKind) -> Iterator[tuple[str, str]]:
    """Quote what lines of one kind print, a row a field."""
    like = f" like: {literal(kind.example)}" if kind.example else ""
    phase = f" with a word of an {kind.phase}" if kind.phase else ""
    what = "line" if kind.example else "value"
    yield "quoted", f"{count_text(kind.lines, what)}{phase}{like}"
    for field in kind.fields:
        more = "" if field.lines == kind.lines else f"; on {count_text(field.lines, what)}"
        yield f"  {literal(field.name)}", f"{_field_text(field)}{more}"
    if kind.others:
        yield "  others", literal(", ".join(kind.others))
    if kind.apart_s is not None:
        low, middle, high = (seconds_text(value) for value in kind.apart_s)
        yield "  timestamps", f"{middle} from one to the next, IQR {low} to {high}"


def _field_text(field: FieldQuote) -> str:
    first, last = (_as_printed(value, field.unit) for value in (field.first, field.last))
    text = f"{first} at the first, {last} at the last"
    if field.most is not None and field.most != field.last:
        text += f", {_as_printed(field.most, '')} at most"
    if field.total is not None:
        text += f", of {_as_printed(field.total, '')}"
    if field.middle is not None:
        text += f", median {_as_printed(float(f'{field.middle:.6g}'), field.unit)}"
    if field.falls:
        text += f"; lower than on the line before {count_text(field.falls, 'time')}"
    return text


def _as_printed(value: float | None, unit: str) -> str:
    """Write a number as its line has it: a duration with colons."""
    if value is None:
        return "no finite number"
    if unit != CLOCK:
        number = f"{int(value):,}" if value.is_integer() else f"{value:,}"
        return f"{number}%" if unit == "%" else f"{number} {literal(unit)}".rstrip()
    minutes, seconds = divmod(value, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{seconds:02g}" if hours else f"{minutes}:{seconds:02g}"


def _unquoted_text(rest: Unquoted) -> str:
    least = "at least " if rest.is_least else ""
    lines = count_text(rest.lines, "further line")
    names = f" ({literal(', '.join(rest.names))})" if rest.names else ""
    return f"{least}{lines} under words of a training{names}, e.g. {literal(rest.example)}"


def _spread(steady: Steady) -> str:
    formula = literal(steady.formula)
    if steady.windows == 1:
        return f"{_with_unit(steady.middle, steady.unit)} ({formula})"
    low, high = _with_unit(steady.low, steady.unit), _with_unit(steady.high, steady.unit)
    return f"{_with_unit(steady.middle, steady.unit)}, IQR {low} to {high} ({formula})"


def _with_unit(value: float, unit: str) -> str:
    return seconds_text(value) if unit == "s" else digits(value)


def _batch_text(log: LogSummary) -> str:
    batch, ranks = NOT_KNOWN, f"number of ranks {NOT_KNOWN}"
    if log.batch_size is not None:
        batch = f"{log.batch_size} ({literal(log.batch_size_from or 'in the log')})"
    if log.world_size is not None:
        found = literal(log.world_size_from or "in the log")
        ranks = f"{count_text(log.world_size, 'rank')} ({found})"
    return f"{batch}; {ranks}"


def _event_text(total: EventTotal) -> str:
    count = count_text(total.count, "time")
    if not total.timed:
        return f"{count}; how long is {NOT_KNOWN}"
    timed = "" if total.timed == total.count else f", {total.timed} of them timed"
    share = "" if total.share is None else f", {share_text(total.share)}"
    return f"{count}{timed}, {seconds_text(total.total_s)}{share} ({literal(total.formula)})"


def _eta_text(eta: Eta) -> str:
    left = f"{seconds_text(eta.seconds.value)} ± {seconds_text(eta.seconds.error)}, estimated"
    more = "; what lies between steps and is not timed comes on top" if eta.is_least else ""
    least = "at least " if eta.is_least else ""
    return f"{least}{left}: {eta.formula}{more}{_trend_text(eta.trend)}"


def _trend_text(trend: float | None) -> str:
    if trend is None:
        return ""
    if abs(trend - 1) < _TREND_WORTH_SAYING:
        return "; the step time is steady"
    direction = "slower" if trend > 1 else "faster"
    return f"; the last third runs {share_text(abs(trend - 1))} {direction} than the first"


def _meaning_text(note: ColumnNote) -> str:
    text = f"{note.meaning}, {note.source}"
    return f"{text} ({literal(note.formula)})" if note.formula else text


def _next(log: LogSummary) -> RenderableType:
    if log.step is not None and log.batch_size is None:
        return Text(f"next: pitstop doctor {_quoted(log.source)} --batch-size N", "dim")
    return Text("next: pitstop doctor -- COMMAND measures what a log does not tell", "dim")


def _pair_lines(pair: LogPair) -> Iterable[RenderableType]:
    yield Text.assemble(
        (f"{pair.result}: ", "bold"), f"{literal(pair.source)}: {literal(pair.message)}"
    )
    if pair.low is not None and pair.high is not None:
        yield Text(f"  ratio {pair.ratio:.3f}, {pair.low:.3f} to {pair.high:.3f} by the IQRs")
        yield Text(f"  {literal(pair.basis)}; steady state, start-up and evaluation left out")
    for note in pair.notes:
        yield Text(f"  {literal(note)}")


def _cells(one: LogExamination) -> list[str]:
    log = one.summary
    step = log.step
    half = NOT_KNOWN if step is None else f"{seconds_text(step.low)} to {seconds_text(step.high)}"
    return [
        literal(log.source),
        NOT_KNOWN if log.batch_size is None else str(log.batch_size),
        NOT_KNOWN if log.world_size is None else str(log.world_size),
        NOT_KNOWN if step is None else seconds_text(step.middle),
        half,
        "0" if step is None else str(step.windows),
        NOT_KNOWN if log.rate is None else rate_text(log.rate.middle, "").rstrip(),
        NOT_KNOWN if log.data_share is None else share_text(log.data_share),
    ]


def _quoted(source: str) -> str:
    """Write a log's files as arguments: of a run that left several, each is one."""
    return literal(" ".join(shlex.quote(file) for file in source.split(", ")))
