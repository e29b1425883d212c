"""From a configuration to its tuned form: search, measured cumulative gains, what it costs."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pitstop.errors import PitstopError
from pitstop.records.tuning.study import GainRow, Trial, Tuning
from pitstop.records.verify.verification import Claim
from pitstop.tune.evidence import Change, Evidence
from pitstop.tune.knobs import OWN, Choice
from pitstop.tune.search import Point, Search, StepTimes
from pitstop.tune.space import Space
from pitstop.tune.trial import Trials

TURNS: Final = 3
"""Usual number of trials of each row of the table of cumulative gains, in turns."""
_SAME_SPEED: Final = 1.02
"""A smaller micro-batch that is slower by no more than this is taken: memory is left for others."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """When to stop."""

    most_trials: int
    most_s: float
    _begun_s: float = field(default_factory=time.monotonic, init=False)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() - self._begun_s > self.most_s


@dataclass(slots=True, kw_only=True)
class Tuner:
    """One study: what is open, who runs trials, and when to stop."""

    source: str
    space: Space
    claim_of: Callable[[Choice], Claim]
    """What a choice claims of the arithmetic."""
    trials: Trials
    budget: Budget
    beyond_noise: bool = False
    """Whether a change must be faster beyond the noise of the turns, and not only in the median."""
    turns: int = TURNS
    """Trials of each row of the table of cumulative gains."""
    is_known: Callable[[tuple[str, ...]], bool] = lambda _: False
    """Whether a trial of settings has its answer already: it then takes no time."""
    progress: Callable[[Trial], None] = lambda _: None
    """Told of every trial when it has ended."""
    _tried: list[Trial] = field(default_factory=list, init=False)
    _evidence: Evidence = field(default_factory=Evidence, init=False)

    def run(self) -> Tuning:
        """Search, then measure the way to what was found.

        Raises:
            PitstopError: The configuration itself cannot be measured.
        """
        search, stopped = self._search()
        way = self._way(search)
        rows, unsure = self._table(way)
        notes: list[str] = []
        while unsure:
            notes += [
                f"{' '.join(rows[at].overrides)} was faster in the search and not surely in the "
                "turns; it was left out"
                for at in unsure
            ]
            for at in reversed(unsure):  # all at once: a table is dear
                way = _without(way, at)
            rows, unsure = self._table(way)
        return Tuning(
            source=self.source,
            rows=tuple(rows),
            overrides=self.space.overrides(way[-1]),
            trials=tuple(self._tried),
            stopped=stopped,
            left_out=self.space.left_out,
            notes=tuple(notes),
        )

    def _search(self) -> tuple[Search, str]:
        first = self._try(self.space.own)
        if first.end != "measured":
            raise PitstopError(
                f"{self.source} cannot be measured as it is ({first.end}): {first.reason}"
            )
        axes = self.space.axes(first.promises)
        search = Search(axes, most_trials=self.budget.most_trials)
        _tell(search, first)
        while (point := search.ask()) is not None:
            if self.budget.is_over and not self.is_known(self.space.overrides(point)):
                return search, "the time is over"
            _tell(search, self._try(point))
        spent = len(self._tried) >= self.budget.most_trials
        return search, "all trials are spent" if spent else "nothing that is left promises a gain"

    def _try(self, point: Point) -> Trial:
        trial = self.trials.run(self.space.overrides(point))
        self._tried.append(trial)
        self.progress(trial)
        return trial

    def _way(self, search: Search) -> list[Point]:
        """Points from the given configuration to the best, one knob at a time, as it was found."""
        best = self._smallest_batch(search.best)
        order = [gain.axis for gain in reversed(search.gains)]
        names = [knob.name for knob in self.space.knobs]
        changed = [at for at, own in enumerate(self.space.own) if best[at] != own]
        changed.sort(key=lambda at: -order.index(names[at]) if names[at] in order else 1)
        way = [self.space.own]
        for at in changed:
            way.append((*way[-1][:at], best[at], *way[-1][at + 1 :]))
        return way

    def _smallest_batch(self, best: Point) -> Point:
        """Take the smallest micro-batch that was measured to be as fast as the best point."""
        names = [knob.name for knob in self.space.knobs]
        if "micro-batch" not in names:
            return best
        at = names.index("micro-batch")
        limit_s = _SAME_SPEED * self._median_s(best)
        smaller = ((*best[:at], place, *best[at + 1 :]) for place in range(best[at]))
        return next((point for point in smaller if self._median_s(point) <= limit_s), best)

    def _median_s(self, point: Point) -> float:
        """Seconds of a sample over all trials of a point; infinite where none was measured."""
        overrides = self.space.overrides(point)
        times = [one.wall_s for one in self._tried if one.overrides == overrides and one.wall_s]
        return statistics.median(times) if times else math.inf

    def _table(self, way: Sequence[Point]) -> tuple[list[GainRow], list[int]]:
        """Measure every point of a way in turns, and say which rows do not hold what they promised.

        Turns go forwards and backwards by turns.
        """
        turns: list[list[Trial]] = [[] for _ in way]
        for turn in range(self.turns if len(way) > 1 else 1):
            order = range(len(way)) if turn % 2 == 0 else reversed(range(len(way)))
            for at in order:
                turns[at].append(self._try(way[at]))
        rows = [self._row(way, turns, at) for at in range(len(way))]
        if not self.beyond_noise:
            return rows, [at for at, row in enumerate(rows) if at and not row.gain >= 1]
        changes = [_change(way, at) for at in range(1, len(way))]
        for at, change in enumerate(changes, start=1):
            self._evidence.add(change, _ratios(turns[at - 1], turns[at]))
        unsure = self._evidence.unsure(changes, _ratios(turns[0], turns[-1]))
        return rows, [changes.index(change) + 1 for change in unsure]

    def _row(self, way: Sequence[Point], turns: Sequence[Sequence[Trial]], at: int) -> GainRow:
        own = turns[at]
        before, first = turns[max(0, at - 1)], turns[0]
        ratios = _ratios(before, own)
        index, place = _change(way, at) if at else (0, 0)
        knob = self.space.knobs[index] if at else None
        choice = self.space.choices[index][place] if at else OWN
        peaks = [trial.peak_device_bytes for trial in own if trial.peak_device_bytes is not None]
        return GainRow(
            knob="" if knob is None else knob.name,
            overrides=choice,
            claim=self.claim_of(choice),
            wall_s=_median([trial.wall_s for trial in own]),
            gain=statistics.median(ratios),
            gain_low=min(ratios),
            gain_high=max(ratios),
            cumulative_gain=statistics.median(_ratios(first, own)),
            peak_device_bytes=max(peaks, default=None),
            start_s=_median([trial.start_s for trial in own]),
            break_even_steps=_break_even(before, own),
            step_s=_step_s(own),
            loss=next((trial.loss_note for trial in reversed(own) if trial.loss_note), ""),
        )


def _tell(search: Search, trial: Trial) -> None:
    if trial.wall_s is None or trial.compute_s is None:
        search.tell(None, for_want_of_memory=trial.end == "out of memory")
    else:
        search.tell(StepTimes(wall_s=trial.wall_s, compute_s=trial.compute_s))


def _change(way: Sequence[Point], at: int) -> Change:
    """Give the change that leads to a point of a way."""
    index = next(i for i in range(len(way[at])) if way[at][i] != way[at - 1][i])
    return index, way[at][index]


def _without(way: Sequence[Point], at: int) -> list[Point]:
    """Leave out the change that leads to a point of a way."""
    index, _ = _change(way, at)
    own = way[0][index]
    later = [(*point[:index], own, *point[index + 1 :]) for point in way[at + 1 :]]
    return [*way[:at], *later]


def _ratios(before: Sequence[Trial], after: Sequence[Trial]) -> list[float]:
    """Speed after over speed before, turn by turn; 0 where it could not be run."""
    return [
        one.wall_s / other.wall_s if one.wall_s and other.wall_s else 0.0
        for one, other in zip(before, after, strict=True)
    ]


def _step_s(trials: Sequence[Trial]) -> float | None:
    times = [one.wall_s * one.samples for one in trials if one.wall_s and one.samples]
    return statistics.median(times) if times else None


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else math.nan


def _break_even(before: Sequence[Trial], after: Sequence[Trial]) -> int | None:
    """Steps after which a longer start, such as compiling, is paid back."""
    longer_s = _median([one.start_s for one in after]) - _median([one.start_s for one in before])
    saved_s = _median([one.wall_s for one in before]) - _median([one.wall_s for one in after])
    samples = _median([one.samples for one in after])
    if not longer_s > 0 or not saved_s * samples > 0:
        return None
    return math.ceil(longer_s / (saved_s * samples))
