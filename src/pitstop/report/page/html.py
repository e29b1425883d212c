"""One self-contained page about a run, a log, or several of them side by side.

The page needs no network and forbids it: styles and script stand in it and are named by their
hashes, pictures are `data:` addresses, and everything that comes from a record is escaped.

A section is a function from the run to a `Section`, or None where the record does not tell. A new
one is a function and a line in `SECTIONS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pitstop.doctor.judge import JudgedRuns
from pitstop.errors import RecordError, os_errors_as
from pitstop.records.store import write_text
from pitstop.records.units import listing
from pitstop.report.explain import require_language
from pitstop.report.language.page import HTML_LANGUAGE, page_in_language, script_in_language
from pitstop.report.language.translate import translator
from pitstop.report.page.about import log_section, machine_section, origin_of, settings_section
from pitstop.report.page.blocks import Figures, Section
from pitstop.report.page.compare import (
    RunsView,
    differences_section,
    runs_view,
    series_section,
    side_by_side_section,
    verdict_of,
    verdicts_section,
)
from pitstop.report.page.headroom import headroom_section
from pitstop.report.page.host import load_section, memory_section
from pitstop.report.page.loader import loader_section
from pitstop.report.page.over_time import over_time_section
from pitstop.report.page.parts import modules_section, pictures_section
from pitstop.report.page.ranks.section import ranks_section
from pitstop.report.page.run import RunView, view_of
from pitstop.report.page.step import step_section, timeline_section
from pitstop.report.page.svg import Svg
from pitstop.report.page.templating import environment, policy_hash, source
from pitstop.report.page.verdict import findings_section, headline_figures
from pitstop.report.page.whole_run import run_section

MOST_BYTES: Final = 1_000_000
"""A page is smaller than this, so that it can be mailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWritten:
    """What a page became."""

    path: str
    size_bytes: int
    sections: tuple[str, ...]
    """Titles, in order."""
    absent: tuple[str, ...]
    """What the record does not hold, as text."""
    message: str
    """The verdict of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A place of the page, and what it is called where the record has nothing for it."""

    about: str
    make: Callable[[RunView], Section | None]


SECTIONS: Final[tuple[Chapter, ...]] = (
    Chapter(about="the time of the run", make=run_section),
    Chapter(about="findings", make=findings_section),
    Chapter(about="the parts of a step", make=step_section),
    Chapter(about="headroom on the device", make=headroom_section),
    Chapter(about="where parts lay inside a step", make=timeline_section),
    Chapter(about="values over time", make=over_time_section),
    Chapter(about="memory", make=memory_section),
    Chapter(about="load of GPU, processor and disk", make=load_section),
    Chapter(about="loader and cache", make=loader_section),
    Chapter(about="times of the model's parts", make=modules_section),
    Chapter(about="several ranks", make=ranks_section),
    Chapter(about="settings with proof", make=settings_section),
    Chapter(about="what a log prints", make=log_section),
    Chapter(about="machine and versions", make=machine_section),
)

COMPARISONS: Final[tuple[Callable[[RunsView], Section | None], ...]] = (
    differences_section,
    side_by_side_section,
    series_section,
    verdicts_section,
)

_PAGES: Final = (".html", ".htm")
_CLAUSES: Final = 2
_PICTURES_AFTER: Final = 2
"""Sections that a reader sees first: where the time goes, and why."""

# What is no gap of a record: a healthy run has no findings, and a run is no log.
_NEVER_MISSED: Final = (
    "findings",
    "headroom on the device",
    "several ranks",
    "what a log prints",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything the template shows, but for the sections, which are rendered one by one."""

    title: str
    origin: tuple[str, ...]
    """Script, commit, host, device and date, as far as they are known."""
    source: str
    outcome: str
    message: str
    figures: Figures | None
    sections: tuple[Section, ...]
    notes: tuple[str, ...]
    absent: tuple[str, ...]
    basis: str

    @property
    def headline(self) -> str:
        """What is slow and what fixing it gives: as much of the message as large letters bear."""
        return "; ".join(self.message.split("; ")[:_CLAUSES])

    @property
    def aside(self) -> str:
        """The rest of the message: what is about as large, what is in doubt."""
        return "; ".join(self.message.split("; ")[_CLAUSES:])


def write_page(judged: JudgedRuns, output: Path, *, language: str = "en") -> PageWritten:
    """Write a page about one judged run or log, or about several compared with the first.

    Args:
        judged: The runs, with their verdicts.
        output: The page; an earlier one is replaced, whole or not at all.
        language: Of what the page says; names from the record stay as they are.

    Raises:
        RecordError: The page cannot be written.
        PitstopError: There is no such language.
    """
    require_language(language)
    renderer = _Renderer(language)
    if len(judged.runs) == 1:
        view = view_of(judged.runs[0], language)
        page = _page_of_run(view)
        text, kept = renderer.render(page, lambda free: pictures_section(view, free))
    else:
        runs = runs_view(judged)
        views = runs.views
        page = _page_of_runs(runs)
        text, kept = renderer.render(page, lambda free: _latest_pictures(views, free))
    write_text(output, text)
    return PageWritten(
        path=str(output),
        size_bytes=len(text.encode()),
        sections=kept,
        absent=page.absent,
        message=f"{page.outcome}: {page.message}",
    )


def write_single_page(page: Page, output: Path) -> None:
    """Write a page whose sections are given, without pictures.

    Raises:
        RecordError: The page cannot be written.
    """
    write_text(output, _Renderer("en").render(page, lambda _: None)[0])


def _latest_pictures(views: Sequence[RunView], free_bytes: int) -> Section | None:
    """Pictures of the last of several runs that has any."""
    for view in reversed(views):
        section = pictures_section(view, free_bytes)
        if section is not None:
            return replace(section, title=f"Pictures of {view.name}")
    return None


def require_other(sources: Sequence[Path], output: Path) -> None:
    """Refuse to write over what a page is about, or over a file of a run that is a folder.

    Raises:
        RecordError: The output is a source, or lies in one and is no earlier page.
    """
    with os_errors_as(RecordError, f"cannot write {output}"):
        taken = output.exists() and any(_holds(source, output) for source in sources)
    if taken:
        raise RecordError(f"{output} is what the page is about; give it another name")


def _holds(source: Path, output: Path) -> bool:
    with os_errors_as(RecordError, f"cannot read {source}"):
        is_inside = source.resolve() in output.resolve().parents
        is_same = source.exists() and source.samefile(output)
    return is_same or (is_inside and output.is_file() and output.suffix.lower() not in _PAGES)


def _page_of_run(view: RunView) -> Page:
    made = [(chapter, chapter.make(view)) for chapter in SECTIONS]
    verdict = view.verdict
    return Page(
        title=view.name,
        origin=tuple(origin_of(view)),
        source=view.record.source,
        outcome=verdict.outcome,
        message=verdict.message,
        figures=headline_figures(view),
        sections=tuple(section for _, section in made if section is not None),
        notes=verdict.notes,
        absent=tuple(
            chapter.about
            for chapter, section in made
            if section is None and chapter.about not in _NEVER_MISSED
        ),
        basis=_basis(view),
    )


def _basis(view: RunView) -> str:
    if view.log is not None:
        return "From a log of another tool; its numbers are as printed, or rebuilt as said."
    steps = f"{view.verdict.steps:,} steps after warm-up"
    rank = f", {view.total_name}" if view.total_name else ""
    return f"Measured; the verdict rests on {steps}{rank}."


def _page_of_runs(runs: RunsView) -> Page:
    outcome, message = verdict_of(runs)
    made = [make(runs) for make in COMPARISONS]
    notes = [f"{view.name}: {note}" for view in runs.views for note in view.verdict.notes]
    return Page(
        title=_names(runs),
        origin=(),
        source=", ".join(view.record.source for view in runs.views),
        outcome=outcome,
        message=message,
        figures=None,
        sections=tuple(section for section in made if section is not None),
        notes=tuple(notes),
        absent=(),
        basis="The first run is the baseline.",
    )


def _names(runs: RunsView) -> str:
    return listing([view.name for view in runs.views], most=3)


class _Renderer:
    """Turns a page into HTML that stays below its limit."""

    def __init__(self, language: str) -> None:
        self._templates = environment()
        self._style = source(self._templates, "page.css")
        self._script = source(self._templates, "page.js")
        self._language = HTML_LANGUAGE[language]
        self._say = translator(language)
        if self._say is not None:
            self._script = script_in_language(self._script, self._say)

    def render(
        self, page: Page, pictures: Callable[[int], Section | None]
    ) -> tuple[str, tuple[str, ...]]:
        """Give the page's text and the titles of the sections that are in it."""
        kept = [(section, self._section(section)) for section in page.sections]
        left_out: list[str] = []
        text = self._whole(page, kept, left_out)
        while len(text.encode()) > MOST_BYTES and kept:
            place = max(range(len(kept)), key=lambda number: len(kept[number][1].text))
            left_out.append(kept.pop(place)[0].title)
            text = self._whole(page, kept, left_out)
        gallery = pictures(MOST_BYTES - len(text.encode()) - 2_000)
        if gallery is not None:
            place = min(_PICTURES_AFTER, len(kept))
            with_it = [*kept[:place], (gallery, self._section(gallery)), *kept[place:]]
            longer = self._whole(page, with_it, left_out)
            # A page that is full has no room for saying so of each picture either.
            if len(longer.encode()) <= MOST_BYTES:
                text, kept = longer, with_it
        return text, tuple(section.title for section, _ in kept)

    def _section(self, section: Section) -> Svg:
        return Svg(self._templates.get_template("section.html.j2").render(section=section))

    def _whole(self, page: Page, kept: Sequence[tuple[Section, Svg]], left_out: list[str]) -> str:
        text = self._templates.get_template("page.html.j2").render(
            language=self._language,
            page=page,
            kept=kept,
            left_out=left_out,
            style=Svg(self._style),
            script=Svg(self._script),
            policy=self._policy(),
        )
        return text if self._say is None else page_in_language(text, self._say)

    def _policy(self) -> str:
        """What a browser may do with the page: run our script, use our styles, nothing else."""
        return (
            f"default-src 'none'; img-src data:; style-src '{policy_hash(self._style)}'; "
            f"script-src '{policy_hash(self._script)}'; base-uri 'none'; form-action 'none'"
        )
