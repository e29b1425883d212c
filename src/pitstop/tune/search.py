"""What to try next: one setting at a time, beside the best so far, as often as noise demands.

The space is a grid: one axis a knob, one place an axis for each of its choices. Trials are dear and
their times noisy, so the search climbs instead of covering: axes in the order of what they promise,
a choice at a time, always against the incumbent. Whoever asks may answer from a journal: the same
answers lead to the same questions.

Computing and loading overlap, and the slower one hides the other: beside a loader that is just fast
enough a faster step gains nothing, and beside that step a faster loader gains nothing either. So
what changes the step is judged by the time it computes, what changes the rest by the wall clock.
"""

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Point = tuple[int, ...]
"""The place on each axis."""

Side = Literal["step", "run"]
"""What a knob changes: how a step computes, or what the run does beside it."""

_FIRST_NOISE: Final = 0.015
"""Spread of a time before two were taken at one point: that of a machine with little else to do."""
_LEAST_NOISE: Final = 0.003
"""Two times that agree by chance do not make a machine exact."""
_BEYOND: Final = 2.0
"""Standard errors of a difference that is believed."""
_WORTH: Final = 0.005
"""A gain below this is not worth a setting that is not the user's own."""
_PLAIN: Final = 0.1
"""A gain above this is believed at the first trial; a smaller one is measured twice."""
_MOSTLY: Final = 0.5
"""Share of the wall clock beside the step from which on that is tried first."""
_MOST_REPEATS: Final = 3
"""Trials of a point after which a difference that is still within the noise counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One knob as the search sees it."""

    name: str
    choices: int
    """Places on it."""
    own: int = 0
    """The place where the given configuration stands."""
    ordered: bool = False
    """Whether neighbours are alike, so that a climb may stop where it becomes worse."""
    side: Side = "step"
    """What it changes, and so the time that it is judged by."""
    promise: float | None = None
    """Most of the time that it can save, as a share; None where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What a trial took, for each sample."""

    wall_s: float
    compute_s: float
    """Of these, within steps and not waiting for data."""

    def on(self, side: Side) -> float:
        """The time that a change of one side is judged by."""
        return self.compute_s if side == "step" else self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A choice that was taken: the search stood at `before` and went on from `after`."""

    axis: str
    before: Point
    after: Point


class Search:
    """Ask for a point, answer with its time, until it asks no more."""

    def __init__(self, axes: Sequence[Axis], *, most_trials: int) -> None:
        """Begin at the configuration as it is.

        Args:
            axes: Of the space, in any order.
            most_trials: Answers after which nothing more is asked.
        """
        self._axes = tuple(axes)
        self._most_trials = most_trials
        self._answers: dict[Point, list[StepTimes]] = {}
        self._failed: set[Point] = set()
        self._last_asked: dict[Point, int] = {}
        self._answered = 0
        self._gains: list[Gain] = []
        self._incumbent: Point = tuple(axis.own for axis in self._axes)
        self._walk = self._climb()
        self._next: Point | None = next(self._walk, None)

    @property
    def best(self) -> Point:
        """Where the search stands."""
        return self._incumbent

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The way from the given configuration to where it stands."""
        return tuple(self._gains)

    def ask(self) -> Point | None:
        """Give the point to measure next; None where nothing is left or allowed."""
        return None if self._answered >= self._most_trials else self._next

    def tell(self, answer: StepTimes | None) -> None:
        """Answer what was asked last; None where the point cannot be run."""
        assert self._next is not None, "nothing was asked"
        if answer is None:
            self._failed.add(self._next)
        else:
            self._answers.setdefault(self._next, []).append(answer)
        self._last_asked[self._next] = self._answered
        self._answered += 1
        self._next = next(self._walk, None)

    def noise(self, side: Side) -> float:
        """Spread of a single time, as a share, from points that were measured more than once."""
        squares, freedom = _FIRST_NOISE**2, 1
        for answers in self._answers.values():
            logs = [math.log(answer.on(side)) for answer in answers if answer.on(side) > 0]
            if len(logs) > 1:
                mean = statistics.fmean(logs)
                squares += sum((log - mean) ** 2 for log in logs)
                freedom += len(logs) - 1
        return max(_LEAST_NOISE, math.sqrt(squares / freedom))

    def _climb(self) -> Generator[Point, None, None]:
        yield self._incumbent
        yield self._incumbent  # the noise of this machine
        if self._incumbent in self._failed:
            return  # what cannot be run cannot be tuned
        settled: set[Point] = set()
        while self._incumbent not in settled:
            # Large gains first: what is within the noise is measured again only once they are in.
            yield from self._rounds(patient=False)
            settled.add(self._incumbent)
            yield from self._rounds(patient=True)

    def _rounds(self, *, patient: bool) -> Generator[Point, None, None]:
        """Go through all axes until none gains: one that gained may make others worth it."""
        before = None
        while self._incumbent != before:
            before = self._incumbent
            for index in self._order():
                yield from self._explore(index, patient=patient)

    def _order(self) -> list[int]:
        """Axes that can gain: those of the step first, for it decides how fast a loader must be.

        Where most of the time goes by beside the step, those of the run come first: what is left of
        the step decides little. Among these, the one that promises most first.
        """
        open_axes = [
            index
            for index, axis in enumerate(self._axes)
            if axis.choices > 1 and self._headroom(axis.side) > _WORTH
        ]
        first: Side = "run" if self._headroom("run") > _MOSTLY else "step"
        return sorted(open_axes, key=lambda index: _rank(self._axes[index], first))

    def _headroom(self, side: Side) -> float:
        """Most of the wall clock that a side can save at the incumbent, as a share."""
        if side == "step":
            return 1.0
        return 1 - self._median(self._incumbent, "step") / self._median(self._incumbent, "run")

    def _explore(self, index: int, *, patient: bool) -> Generator[Point, None, None]:
        axis, start = self._axes[index], self._incumbent[index]
        if not axis.ordered:
            for place in range(axis.choices):
                yield from self._try(index, place, patient=patient)
            return
        for way in (range(start + 1, axis.choices), range(start - 1, -1, -1)):
            for place in way:
                yield from self._try(index, place, patient=patient)
                if self._is_worse(self._beside(index, place), axis.side):
                    break  # level ground is walked on, a slope downwards is not
            if self._incumbent[index] != start:
                return  # the other way is where it came from

    def _beside(self, index: int, place: int) -> Point:
        """Name the point that differs from the incumbent on one axis."""
        return (*self._incumbent[:index], place, *self._incumbent[index + 1 :])

    def _try(self, index: int, place: int, *, patient: bool) -> Generator[Point, None, None]:
        """Measure a point beside the incumbent, and stand on it where it is faster."""
        before, point, side = self._incumbent, self._beside(index, place), self._axes[index].side
        if point == before or point in self._failed:
            return
        if point not in self._answers:
            yield point
        yield from self._settle(point, side, patient=patient)
        if point not in self._failed and self._is_better(point, side):
            self._gains.append(Gain(axis=self._axes[index].name, before=before, after=point))
            self._incumbent = point

    def _settle(self, point: Point, side: Side, *, patient: bool) -> Generator[Point, None, None]:
        """Measure point and incumbent again where noise may have made a gain, or may hide one."""
        while point not in self._failed and len(self._answers[point]) < _MOST_REPEATS:
            hidden = patient and self._may_hide_a_gain(point, side)
            if not hidden and not (self._is_better(point, side) and self._is_hasty(point, side)):
                return
            # In turns, the one that waited longer first: a drifting machine favours neither.
            for each in sorted((point, self._incumbent), key=self._last_asked.__getitem__):
                if len(self._answers[each]) < _MOST_REPEATS:
                    yield each

    def _is_hasty(self, point: Point, side: Side) -> bool:
        return len(self._answers[point]) == 1 and self._gain(point, side) < _PLAIN

    def _may_hide_a_gain(self, point: Point, side: Side) -> bool:
        gain, error = self._gain(point, side), self._error(point, side)
        return _WORTH - _BEYOND * error < gain < max(_WORTH, _BEYOND * error)

    def _is_better(self, point: Point, side: Side) -> bool:
        """Tell whether a point gains on its own side, and loses nothing on the wall clock."""
        needed = max(_WORTH, _BEYOND * self._error(point, side))
        return self._gain(point, side) > needed and not self._is_worse(point, "run")

    def _is_worse(self, point: Point, side: Side) -> bool:
        if point in self._failed:
            return True
        return self._gain(point, side) < -_BEYOND * self._error(point, side)

    def _gain(self, point: Point, side: Side) -> float:
        """Share of the incumbent's time that the point saves."""
        return 1 - self._median(point, side) / self._median(self._incumbent, side)

    def _error(self, point: Point, side: Side) -> float:
        """Standard error of that share."""
        counts = (len(self._answers[each]) for each in (point, self._incumbent))
        return self.noise(side) * math.sqrt(sum(1 / count for count in counts))

    def _median(self, point: Point, side: Side) -> float:
        return statistics.median(answer.on(side) for answer in self._answers[point])


def _rank(axis: Axis, first: Side) -> tuple[bool, float]:
    return axis.side != first, 0.0 if axis.promise is None else -axis.promise
