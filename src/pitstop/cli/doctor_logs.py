"""``pitstop doctor LOG ...``: a verdict on a log of another tool, or several logs compared."""

from collections.abc import Sequence
from pathlib import Path

from pitstop.cli.output import show

NOT_COMPARABLE = 2
SLOWER = 1


def is_log(path: Path) -> bool:
    """Whether a path is a log of another tool rather than a run that pitstop measured.

    A folder with ``rank-*.jsonl`` and a file that begins with a run line are measured runs. What is
    not there is no log either: whoever reads runs says so. A pipe is not opened, for what is read
    of it is gone: whoever reads logs refuses it. ``-`` is a log from standard input.
    """
    from pitstop.records.store import is_run

    if str(path) == "-":
        return True
    try:
        is_pipe = path.exists() and not path.is_dir() and not path.is_file()
        return is_pipe or not is_run(path)
    except OSError:
        return False


def doctor_logs(  # noqa: PLR0913 - one parameter an option
    paths: Sequence[Path],
    *,
    log_format: str | None = None,
    batch_sizes: Sequence[int] = (),
    world_sizes: Sequence[int] = (),
    json: str | None = None,
    fields: tuple[str, str, str] = ("", "", ""),
    language: str = "en",
) -> int:
    """Judge one log, or compare several on samples per second; give the exit code.

    Args:
        paths: Files of other tools, or folders of theirs.
        log_format: Name of the format, for a file that is not recognised.
        batch_sizes: Samples of one optimizer step on one rank: one for all logs, or one a log.
        world_sizes: Ranks of each run, given the same way.
        json: Where to write the record; ``-`` for stdout.
        fields: Names of the step and of the time of a step, and its unit, where the user says so.
        language: Of the text.

    Returns:
        Of one log: 1 when it shows a bottleneck, else 0. Of several: 2 when some cannot be
        compared, 1 when one is slower than the first, else 0.

    Raises:
        RecordError: A file cannot be read or is of no known format, or the sizes do not fit.
    """
    from pitstop.doctor.judge import compare_logs, judge_record
    from pitstop.logs.general.read import FieldHints
    from pitstop.logs.read import read_logs
    from pitstop.report.logs import log_comparison_report, log_report

    hints = FieldHints(step=fields[0], time=fields[1], unit=fields[2]) if any(fields) else None
    records = read_logs(
        paths, format=log_format, batch_sizes=batch_sizes, world_sizes=world_sizes, hints=hints
    )
    if len(records) == 1:
        one = judge_record(records[0]).log
        assert one is not None, "a measured run is no log"
        show(one, lambda: log_report(one.summary, one.verdict), json, language=language)
        return 1 if one.verdict.outcome == "bottleneck" else 0
    comparison = compare_logs(records)
    show(comparison, lambda: log_comparison_report(comparison), json, language=language)
    results = {pair.result for pair in comparison.pairs}
    if "not comparable" in results:
        return NOT_COMPARABLE
    return SLOWER if "slower" in results else 0


def explain_logs(
    paths: Sequence[Path], *, step: str | None, time: str | None, unit: str | None
) -> int:
    """Show which lines of logs are quoted and which count steps, as the general reader takes them.

    Raises:
        RecordError: A file cannot be read, or no lines in it repeat that print a loss or count.
    """
    import typer

    from pitstop.logs.general.dialect import as_dialect, dialect_of
    from pitstop.logs.general.read import FieldHints, read_general
    from pitstop.logs.lines import check_regular
    from pitstop.report.printable import literal

    said = FieldHints(step=step or "", time=time or "", unit=unit or "")
    for path in paths:
        check_regular(path)
        hints = said if any((step, time, unit)) else dialect_of(path) or said
        _, understood = read_general(path, hints)
        typer.echo(f"{literal(str(path))}: {understood.lines} lines")
        for kind in understood.quoted:
            typer.echo(f"{kind.lines:8}  quoted: {literal(kind.example[:100])}")
            for one in kind.fields:
                typer.echo(f"          {literal(one.name)}: {one.role}, on {one.lines} lines")
        if (rest := understood.unquoted) is not None:
            typer.echo(f"{rest.lines:8}  not quoted, e.g. {literal(rest.example[:100])}")
        timed = understood.counter[:100] or "none: name a count with --step"
        typer.echo(f"lines whose count is of steps: {literal(timed)}")
        if said == hints and (kept := as_dialect(said)):
            typer.echo(f"to keep this, write into {literal(str(path))}.dialect:\n{kept}", nl=False)
    return 0
