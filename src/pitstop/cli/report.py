"""``pitstop report``: one self-contained page about a run, a log, or several compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pitstop.cli.doctor_logs import is_log
from pitstop.cli.output import (
    JsonPath,
    Language,
    LogBatchSizes,
    LogFormat,
    LogWorldSizes,
    refuse_options,
    show,
)
from pitstop.errors import PitstopError

if TYPE_CHECKING:
    from pitstop.report.page.html import PageWritten


def report(  # noqa: PLR0913 - one parameter an option
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN | LOG ...",
            help="Folder or file that a measured run wrote, or a training log; several to compare.",
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="The page to write.")
    ] = Path("report.html"),
    log_format: LogFormat = None,
    batch_size: LogBatchSizes = None,
    world_size: LogWorldSizes = None,
    lang: Language = "en",
    json: JsonPath = None,
) -> None:
    """Write one HTML page that tells a run's story: opens from disk, needs no network."""
    from pitstop.report.page.html import require_other
    from pitstop.report.written import written_report

    if str(output) == "-":
        raise PitstopError("a page is a file: give --output a name, not -")
    if json not in (None, "-"):
        require_other(sources, Path(json))
        if Path(json).absolute() == output.absolute():
            raise PitstopError(f"--output and --json are both {output}; give one another name")
    sizes = {"--format": log_format, "--batch-size": batch_size, "--world-size": world_size}
    _refuse_for_runs(sources, [name for name, given in sizes.items() if given is not None])
    written = page_of(
        sources,
        output,
        log_format=log_format,
        batch_sizes=batch_size or (),
        world_sizes=world_size or (),
        language=lang,
    )
    show(written, lambda: written_report(written), json, language=lang)


def page_of(
    sources: Sequence[Path],
    output: Path,
    *,
    log_format: str | None = None,
    batch_sizes: Sequence[int] = (),
    world_sizes: Sequence[int] = (),
    language: str = "en",
) -> "PageWritten":
    """Judge runs or logs and write the page about them.

    Raises:
        RecordError: A source cannot be read, or the page cannot be written.
    """
    from pitstop.doctor.judge import judge
    from pitstop.report.page.html import require_other, write_page

    require_other(sources, output)
    judged = judge(sources, log_format=log_format, batch_sizes=batch_sizes, world_sizes=world_sizes)
    return write_page(judged, output, language=language)


def _refuse_for_runs(sources: Sequence[Path], options: Sequence[str]) -> None:
    """Refuse options that would do nothing, since a measured run holds what they say."""
    if not any(map(is_log, sources)):
        refuse_options(options, "a log of another tool, not for a run that pitstop measured")
