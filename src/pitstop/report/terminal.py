"""Runs and verdicts as terminal text: the result first, then the evidence."""

import errno
import os
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from pitstop.records.summary import RunSummary, SpanSummary
from pitstop.records.units import (
    count_text,
    rate_text,
    seconds_text,
    share_text,
    speedup_text,
    us_text,
)
from pitstop.records.verdict import Bound, Finding, Verdict
from pitstop.report.language.terminal import in_language
from pitstop.report.language.translate import Translator, translator
from pitstop.report.printable import literal, literal_lines
from pitstop.report.terminal_tables import headroom_lines, module_lines, plain_table

# Where no terminal sets a width a row or a paragraph stays one line: it can be searched for.
_PIPED_WIDTH = 10_000


class _Console(Console):
    """Leaves a pipe without a reader to whoever prints; no text it is given steers a terminal."""

    say: Translator | None = None
    """Says texts in another language than English."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, in the language asked for."""
        said = objects if self.say is None else [in_language(one, self.say) for one in objects]
        super().print(*said, **options)

    def on_broken_pipe(self) -> None:
        """Raise: rich would close stdout and end the process, whichever stream it was."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Show control characters of any text as escapes: names of files have them."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(literal_lines(segment.text), segment.style)


def make_console(file: IO[str] | None = None, *, language: str = "en") -> Console:
    """A console that colours only on a terminal and never breaks lines oddly in a pipe.

    Args:
        file: Where it prints; stdout where none is given.
        language: What it says is translated into; what no table has stays English.
    """
    console = _Console(file=file, highlight=False, markup=False, emoji=False)
    console.say = translator(language)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def run_report(summary: RunSummary) -> RenderableType:
    """Show where the time of a run's steps went."""
    return Group(Text(_headline(summary)), _span_table(summary), *_asides(summary))


def verdict_report(verdict: Verdict) -> RenderableType:
    """Show a verdict: message, findings with evidence and bound, notes."""
    head = Text.assemble((f"{verdict.outcome}: ", "bold"), literal(verdict.message))
    parts: list[RenderableType] = [head]
    if verdict.not_sampled:
        parts.append(Text(f"not sampled: {literal(', '.join(verdict.not_sampled))}", style="dim"))
    for finding in verdict.findings:
        parts += ["", *_finding_lines(finding)]
    bound = verdict.combined_bound
    if bound is not None and len(verdict.findings) > 1:
        parts += ["", *_gain_lines(verdict), Text(f"all fixed: {limit_text(bound)}")]
    parts += _length_lines(verdict)
    for lines in (headroom_lines(verdict.headroom), module_lines(verdict.modules)):
        shown = list(lines)
        parts += ["", *shown] if shown else []
    parts += [Text(f"note: {literal(note)}", style="dim") for note in verdict.notes]
    return Group(*parts)


def _headline(summary: RunSummary) -> str:
    pieces = [count_text(summary.steps, "step")]
    middle = summary.wall.quantile_us(0.5)
    if middle is not None:
        spread = summary.wall.quantile_us(0.9)
        pieces.append(f"median {us_text(middle)}")
        pieces.append(f"p90 {seconds_text((spread or middle) / 1e6)}")
    rate = summary.samples_per_s
    each = "" if summary.world_size == 1 else f" on each of {summary.world_size} ranks"
    known = None if rate is None else rate_text(rate, "samples/s") + each
    pieces.append(known or "samples/s not known")
    if not summary.is_finished:
        pieces.append("unfinished")
    return ", ".join(pieces)


def _span_table(summary: RunSummary) -> Table:
    headings = ["total", "of wall", "self", "median a step"]
    has_device = summary.device_wall is not None
    headings += ["on the device"] if has_device else []
    rows = (_span_cells(span, has_device=has_device) for span in summary.spans)
    table = plain_table(rows, ["part of the step"], headings)
    if summary.unaccounted.count:
        total_us = summary.unaccounted.total_us
        share = share_text(summary.unaccounted_share)
        table.add_row("unaccounted", us_text(total_us), share)
    # Without any part nothing was sampled, and the wall clock of all steps is what is left to show.
    wall_us = summary.sampled_wall_us or summary.wall.total_us
    table.add_row("wall", us_text(wall_us), share_text(1.0))
    return table


def _span_cells(span: SpanSummary, *, has_device: bool) -> list[str]:
    middle = span.host.quantile_us(0.5)
    cells = [
        "  " * (len(span.path) - 1) + literal(span.path[-1]),
        us_text(span.host.total_us),
        share_text(span.share),
        us_text(span.host_self_us),
        seconds_text(None if middle is None else middle / 1e6),
    ]
    if has_device:
        cells.append(seconds_text(span.device.total_us / 1e6 if span.device else None))
    return cells


def _asides(summary: RunSummary) -> Iterable[RenderableType]:
    if 0 < summary.sampled_steps < summary.steps:
        whole = us_text(summary.wall.total_us)
        sampled = f"{summary.sampled_steps} of {count_text(summary.steps, 'step')}"
        yield Text(f"parts: sampled in {sampled}, since these are short; all steps took {whole}")
    for name, event in summary.events.items():
        count = count_text(event.count, "time")
        yield Text(f"{literal(name)}: {count}, {us_text(event.total_us)}, outside steps")
    if summary.broken:
        yield Text(f"{count_text(summary.broken, 'span')} had no end; that time is unaccounted")


def _finding_lines(finding: Finding) -> Iterable[RenderableType]:
    colour = {"info": "cyan", "warning": "yellow", "critical": "red"}[finding.severity]
    yield Text.assemble((finding.code, colour), f" {literal(finding.summary)}")
    for line in finding.evidence:
        yield Text(f"  {literal(line)}")
    for line in finding.doubts:
        yield Text(f"  in doubt: {literal(line)}", style="yellow")
    if finding.bound is not None:
        yield Text(f"  {limit_text(finding.bound)} (from measured shares)")
    for line in finding.remedy:
        yield Text(f"  try: {literal(line)}")


def _gain_lines(verdict: Verdict) -> Iterable[RenderableType]:
    """What fixing the first, the first two, ... gives, where there is more than one to fix."""
    if len(verdict.cumulative_gains) < 2:
        return
    yield Text("cumulative gains, fixed in this order:")
    for gain in verdict.cumulative_gains:
        hours = "" if gain.hours_saved is None else f", up to {_hours(gain.hours_saved)} saved"
        yield Text(f"  {gain.code}: {limit_text(gain.bound)}{hours}")


def _length_lines(verdict: Verdict) -> Iterable[RenderableType]:
    if verdict.whole_run_hours is not None:
        line = f"the whole training takes {_hours(verdict.whole_run_hours)} at this rate"
        saved = verdict.cumulative_gains[-1].hours_saved if verdict.cumulative_gains else None
        yield Text(line if saved is None else f"{line}; up to {_hours(saved)} can be saved")
    if verdict.start_up_s is not None:
        yield Text(start_up_text(verdict))


def start_up_text(verdict: Verdict, *, aside: str = "not included above") -> str:
    """Say how long start-up took and what it went into."""
    took = f"start-up {seconds_text(verdict.start_up_s)} ({aside})"
    parts = [f"{name} {seconds_text(s)}" for name, s in verdict.start_up_parts_s.items() if s]
    return f"{took}: {', '.join(parts)}" if parts else took


def _hours(hours: float) -> str:
    return seconds_text(hours * 3600)


def limit_text(bound: Bound) -> str:
    """Say the most that a bound allows."""
    if bound.speedup is None:
        return "no bound on the gain: it is the whole step"
    return f"up to {speedup_text(bound.speedup)} faster"
