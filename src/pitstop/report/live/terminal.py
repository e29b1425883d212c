"""A live view on a terminal: bars and colours there, the same text anywhere else."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pitstop.records.units import NOT_MEASURED
from pitstop.report.live.text import (
    checkpoint_text,
    evaluation_text,
    left_text,
    loss_text,
    memory_text,
    part_text,
    plain_line,
    rank_cells,
    speed_text,
    state_text,
    step_text,
    verdict_text,
    wait_text,
)
from pitstop.report.live.throughput import PartShare
from pitstop.report.live.view import LiveView, LossView
from pitstop.report.page.palette import UNACCOUNTED
from pitstop.report.terminal import literal

MOST_RANKS: Final = 16

_BAR_CELLS: Final = 40
_LEAST_NAMED: Final = 0.005
_COLOURS: Final = ("yellow", "cyan", "blue", "magenta", "green", "red", "bright_blue", "white")
_STATES: Final = {
    "running": "green", "finished": "green", "waiting": "cyan", "silent": "yellow",
    "interrupted": "yellow", "failed": "red", "killed": "red",
}  # fmt: skip
_OUTCOMES: Final = {"bottleneck": "yellow", "healthy": "green"}

_FILLED: Final = {True: ("━", "─"), False: ("=", "-")}
_SPARKS: Final = {True: "▁▂▃▄▅▆▇█", False: "_.-~=+*#"}
_PIECES: Final = {True: "█▓▒░", False: "#=+-"}


def live_report(view: LiveView) -> RenderableType:
    """Show a view: what runs, then one line a fact, then one a rank."""
    return _Report(view)


class _Report:
    """A view that draws where there is a terminal, and is text alone where there is none."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw what this console can show."""
        view = self._view
        yield _head(view)
        if view.state == "waiting":
            return
        encoding = options.encoding.lower().replace("-", "")
        rows = _facts(view, _Pen(draws=console.is_terminal, has_blocks=encoding.startswith("utf")))
        if console.is_terminal:
            facts = Table.grid(padding=(0, 2, 0, 0))
            facts.add_column(style="dim", no_wrap=True)
            facts.add_column(overflow="fold")
            for name, text in rows:
                facts.add_row(name, text)
            yield facts
        else:
            width = max(len(name) for name, _ in rows)
            yield from (Text(f"{name:<{width}}  {text.plain}") for name, text in rows)
        yield from _ranks(view)
        yield from (Text(f"note: {literal(note)}", "dim") for note in view.notes)


def _head(view: LiveView) -> Text:
    name, source = literal(view.name), literal(view.source)
    place = "" if name == source else f"  {source}"
    return Text.assemble((name, "bold"), "  ", (state_text(view), _STATES[view.state]), place)


def _facts(view: LiveView, pen: "_Pen") -> tuple[tuple[str, Text], ...]:
    outcome = view.verdict.outcome if view.verdict else ""
    return (
        ("step", pen.step(view)),
        ("speed", Text(speed_text(view))),
        ("waiting for data", Text(wait_text(view))),
        ("parts of the step", pen.parts(view.first.parts if view.first else ())),
        ("memory", Text(memory_text(view.memory))),
        ("loss", pen.loss(view.loss)),
        ("evaluation", Text(evaluation_text(view.evaluation))),
        ("checkpoint", Text(checkpoint_text(view.checkpoint))),
        ("doctor", Text(verdict_text(view), _OUTCOMES.get(outcome, ""))),
    )


@contextmanager
def shown_on(console: Console) -> Iterator[Callable[[LiveView], None]]:
    """Show views in one place of a terminal; in a pipe, a line for each that says something new."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda view: live.update(live_report(view), refresh=True)
        return
    printed = ""

    def tell(view: LiveView) -> None:
        nonlocal printed
        line = plain_line(view)
        if view.is_over:
            console.print(live_report(view))
        elif line != printed:
            console.print(line, soft_wrap=True)
        printed = line

    yield tell


def _ranks(view: LiveView) -> Sequence[RenderableType]:
    if view.world_size == 1 and len(view.ranks) <= 1:
        return ()
    rows = [rank_cells(rank) for rank in view.ranks[:MOST_RANKS]]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        Text("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
        for row in rows
    ]
    more = len(view.ranks) - MOST_RANKS
    return (*lines, Text(f"and {more} more ranks")) if more > 0 else lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pen:
    """What may be drawn: bars at all, and with letters that not every terminal has."""

    draws: bool
    has_blocks: bool

    def step(self, view: LiveView) -> Text:
        """How far the run is: a bar where the total is known, and text."""
        text = "  ".join(filter(None, (step_text(view), left_text(view))))
        if not self.draws or view.step is None or not view.total_steps:
            return Text(text)
        done, rest = _FILLED[self.has_blocks]
        cells = round(_BAR_CELLS * min(1.0, view.step / view.total_steps))
        return Text.assemble(
            (done * cells, "green"), (rest * (_BAR_CELLS - cells), "dim"), f"  {text}"
        )

    def parts(self, parts: Sequence[PartShare]) -> Text:
        """The step's parts as one bar, and their names in its colours."""
        if not parts:
            return Text(NOT_MEASURED)
        letters = _PIECES[self.has_blocks]
        bar, names = Text(), Text()
        begun = 0.0
        for place, part in enumerate(parts):
            is_rest = part.name == UNACCOUNTED
            cells = round((begun + part.share) * _BAR_CELLS) - round(begun * _BAR_CELLS)
            begun += part.share
            colour = "dim" if is_rest else _COLOURS[place % len(_COLOURS)]
            bar.append(letters[-1 if is_rest else place % (len(letters) - 1)] * cells, colour)
            if part.share >= _LEAST_NAMED:
                names.append("  " if names else "").append(part_text(part.name, part.share), colour)
        return Text.assemble(bar, "\n", names) if self.draws else names

    def loss(self, loss: LossView | None) -> Text:
        """The loss over the run in one line, then the latest value as text."""
        text = (loss_text(loss), "red" if loss is not None and loss.not_finite else "")
        if loss is None or not loss.means or not self.draws:
            return Text.assemble(text)
        return Text.assemble((spark(loss.means, _SPARKS[self.has_blocks]), "cyan"), "  ", text)


def spark(values: Sequence[float], letters: str, *, cells: int = _BAR_CELLS) -> str:
    """Draw values as letters of rising height; each letter is the mean of its window."""
    if not values:
        return ""
    count = min(cells, len(values))
    borders = [round(place * len(values) / count) for place in range(count + 1)]
    means = [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(borders)]
    low, height = min(means), max(means) - min(means)
    if not 0 < height < math.inf:
        return letters[0] * count
    top = len(letters) - 1
    return "".join(letters[round((mean - low) / height * top)] for mean in means)
