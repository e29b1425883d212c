"""What to try next: every choice once beside the best so far, then what the trials promise.

The space is a grid: one axis a knob, one place an axis for each of its choices. Trials are dear and
their times noisy. So each choice is tried by itself first, axes in the order of what the doctor
promises of them: what cannot be run is known by name then. After that a model of the whole grid
says which point, new or measured, is expected to gain most. Whoever asks may answer from a journal:
the same answers lead to the same questions.

Computing and loading overlap, and the slower one hides the other: beside a loader that is just fast
enough a faster step gains nothing, and beside that step a faster loader gains nothing either. So
the time that a step computes counts beside the wall clock, though less.
"""

import itertools
import math
import statistics
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from pitstop.tune.surface import Point, SurfaceModel

Side = Literal["step", "run"]
"""What a knob changes: how a step computes, or what the run does beside it."""

_WORTH: Final = 0.005
"""A gain below this is not worth a setting that is not the user's own."""
_BEYOND: Final = 0.15
"""Standard errors of a gain that a setting of ours must have, beside others that gain surely."""
_BEYOND_TOGETHER: Final = 1.0
"""Standard errors of what all settings of ours gain together; below it none is chosen."""
_EXPECTED: Final = 0.0005
"""A trial that is expected to gain less than this is not made."""
_LITTLE: Final = 0.03
"""Share of the wall clock that is too little to tune."""
_MOSTLY: Final = 0.5
"""Share of the wall clock beside the step from which on that is tried first."""
_MOST_REPEATS: Final = 5
"""Trials of a point."""
_MOST_WHOLE: Final = 4096
"""Points of a space that is looked at as a whole; of a larger one, what is near the best."""
_COMPUTE_WEIGHT: Final = 0.25
"""What the time that a step computes counts beside the wall clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One knob as the search sees it."""

    name: str
    choices: int
    """Places on it."""
    own: int = 0
    """The place where the given configuration stands."""
    ordered: bool = False
    """Whether neighbours are alike, so that the ends say something of what lies between."""
    side: Side = "step"
    """What it changes."""
    promise: float | None = None
    """Most of the time that it can save, as a share; None where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What a trial took, for each sample."""

    wall_s: float
    compute_s: float
    """Of these, within steps and not waiting for data."""

    @property
    def log(self) -> float:
        """What is made smaller: the logarithm of both times, the wall clock counting more."""
        wall = math.log(self.wall_s)
        compute = math.log(self.compute_s) if self.compute_s > 0 else wall
        return (wall + _COMPUTE_WEIGHT * compute) / (1 + _COMPUTE_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A choice that was taken on the way from `before` to `after`."""

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
        self._lacked_memory: set[Point] = set()
        self._tried_again: set[tuple[int, int]] = set()
        self._answered = 0
        self._own: Point = tuple(axis.own for axis in self._axes)
        self._screened: set[int] = set()
        self._model: SurfaceModel | None = None
        self._fastest: Point | None = None
        self._walk = self._search()
        self._next: Point | None = next(self._walk, None)

    @property
    def best(self) -> Point:
        """What is chosen: the fastest by all trials, less what gains nothing that is sure.

        The fastest of many noisy points looks faster than it is: so all changes together are held
        to more than each of them.
        """
        point = self._without_the_idle(self._incumbent())
        together = self._sure_gain(self._own, point, beyond=_BEYOND_TOGETHER)
        return point if together > _WORTH else self._own

    def _without_the_idle(self, point: Point) -> Point:
        """Take back changes, the least first, whose gain is too small or not sure."""
        changed = self._changed(point)
        while changed:
            gains = {index: self._sure_gain(self._beside(point, index), point) for index in changed}
            least = min(changed, key=gains.__getitem__)
            if gains[least] > _WORTH:
                break
            point = self._beside(point, least)
            changed = self._changed(point)
        return point

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The way from the given configuration to what is chosen, the largest gain first."""
        best, at = self.best, self._own
        found: list[Gain] = []
        while at != best:
            ways = [self._beside(at, index, best[index]) for index in self._different(at, best)]
            after = ways[self._best_of(ways)]
            index = self._different(at, after)[0]
            found.append(Gain(axis=self._axes[index].name, before=at, after=after))
            at = after
        return tuple(found)

    def ask(self) -> Point | None:
        """Give the point to measure next; None where nothing is left or allowed."""
        return None if self._answered >= self._most_trials else self._next

    def tell(self, answer: StepTimes | None, *, for_want_of_memory: bool = False) -> None:
        """Answer what was asked last; None where the point cannot be run.

        What could not for want of memory may fit beside other choices, and is tried once more.
        """
        assert self._next is not None, "nothing was asked"
        if answer is None:
            self._failed.add(self._next)
            self._lacked_memory |= {self._next} if for_want_of_memory else set()
        else:
            self._answers.setdefault(self._next, []).append(answer)
            self._model = self._fastest = None
        self._answered += 1
        self._next = next(self._walk, None)

    def _search(self) -> Generator[Point, None, None]:
        yield self._own
        yield self._own  # the noise of this machine
        if not self._answers:
            return  # what cannot be run cannot be tuned
        while True:
            index = self._next_axis()
            if index is not None:
                self._screened.add(index)
                yield from self._screen(index)
                continue
            yield from self._second_chances()
            point = self._most_promising()
            if point is None:
                return
            yield point

    def _next_axis(self) -> int | None:
        """Give the axis to screen next: of the side that the time goes to, by its promise."""
        open_axes = [
            index
            for index, axis in enumerate(self._axes)
            if index not in self._screened and axis.choices > 1
            if self._headroom(axis.side) > _LITTLE
        ]
        first: Side = "run" if self._headroom("run") > _MOSTLY else "step"
        return min(open_axes, key=lambda index: _rank(self._axes[index], first), default=None)

    def _headroom(self, side: Side) -> float:
        """Most of the wall clock that a side can save at the incumbent, as a share."""
        times = self._answers[self._incumbent()]
        compute_s = statistics.median(time.compute_s for time in times)
        share = compute_s / statistics.median(time.wall_s for time in times)
        return share if side == "step" else 1 - share

    def _screen(self, index: int) -> Generator[Point, None, None]:
        """Try the choices of an axis; of an ordered one its ends, and what is half way to them."""
        axis, own = self._axes[index], self._axes[index].own
        if not axis.ordered:
            for place in range(axis.choices):
                yield from self._new(index, place)
            return
        for end in (axis.choices - 1, 0):
            if end == own:
                continue
            before = self._incumbent()
            yield from self._new(index, end)
            if self._incumbent() == before:
                yield from self._new(index, (own + end) // 2)
            if self._incumbent()[index] != own:
                return  # the other end is the other way

    def _new(self, index: int, place: int) -> Generator[Point, None, None]:
        """Ask for the point beside the incumbent, unless it is known."""
        point = self._beside(self._incumbent(), index, place)
        if point not in self._answers and point not in self._failed:
            yield point

    def _second_chances(self) -> Generator[Point, None, None]:
        """Try beside the incumbent, once, what lacked memory beside a lesser one."""
        choices = {(i, point[i]) for point in self._lacked_memory for i in self._changed(point)}
        for index, place in sorted(choices - self._tried_again):
            if self._never_ran(index, place):
                self._tried_again.add((index, place))
                yield from self._new(index, place)

    def _never_ran(self, index: int, place: int) -> bool:
        return all(point[index] != place for point in self._answers)

    def _most_promising(self) -> Point | None:
        """Give the point of whose trial most gain is expected; None below the least.

        A trial moves an estimate by less than its error, and by little where noise is large: of a
        point that was measured often another trial says nothing.
        """
        points = [each for each in self._candidates() if self._is_open(each)]
        if not points:
            return None
        model = self._fitted()
        estimate = model.estimate([self._incumbent(), *points])
        level = float(estimate.log[0])
        variance = estimate.error[1:] ** 2
        moves = variance / np.sqrt(variance + model.noise**2)
        pairs = zip(estimate.log[1:], moves, strict=True)
        expected = [_expected_gain(level - float(log), float(move)) for log, move in pairs]
        most = max(expected)
        return points[expected.index(most)] if most > _EXPECTED else None

    def _candidates(self) -> Iterable[Point]:
        """Give the whole grid of choices that could be run; near the best where it is large."""
        places = [self._runnable(index) for index in range(len(self._axes))]
        if math.prod(len(each) for each in places) <= _MOST_WHOLE:
            return itertools.product(*places)
        near = {self._incumbent()}
        for _ in range(2):
            near |= {
                self._beside(point, index, place)
                for point in near
                for index, each in enumerate(places)
                for place in each
            }
        near |= set(self._answers)
        return sorted(near)

    def _runnable(self, index: int) -> list[int]:
        """Give places of a screened axis that did not fail by themselves; else its own alone."""
        axis = self._axes[index]
        if index not in self._screened:
            return [axis.own]
        ran = {point[index] for point in self._answers}
        failed = {point[index] for point in self._failed} - ran
        return [place for place in range(axis.choices) if place not in failed]

    def _is_open(self, point: Point) -> bool:
        times = self._answers.get(point, ())
        return point not in self._failed and len(times) < _MOST_REPEATS

    def _incumbent(self) -> Point:
        """Give the measured point that is the fastest by all trials."""
        if self._fastest is None:
            points = list(self._answers)
            self._fastest = points[self._best_of(points)] if points else self._own
        return self._fastest

    def _best_of(self, points: Sequence[Point]) -> int:
        return int(self._fitted().estimate(points).log.argmin())

    def _fitted(self) -> SurfaceModel:
        if self._model is None:
            pairs = [(point, time.log) for point in self._answers for time in self._answers[point]]
            points, logs = zip(*pairs, strict=True)
            self._model = SurfaceModel(points, logs, [axis.ordered for axis in self._axes])
        return self._model

    def _sure_gain(self, before: Point, after: Point, *, beyond: float = _BEYOND) -> float:
        """Give the share that `after` saves, less its standard errors."""
        if before == after or not self._answers:
            return 0.0
        log, error = self._fitted().difference(before, after)
        return log - beyond * error

    def _changed(self, point: Point) -> list[int]:
        return self._different(point, self._own)

    def _different(self, point: Point, other: Point) -> list[int]:
        return [index for index in range(len(point)) if point[index] != other[index]]

    def _beside(self, point: Point, index: int, place: int | None = None) -> Point:
        """Name the point that differs on one axis: by another place, or by its own."""
        other = self._own[index] if place is None else place
        return (*point[:index], other, *point[index + 1 :])


def _expected_gain(gain: float, error: float) -> float:
    """Give what is gained on average where a gain is known with an error and a loss is refused."""
    if not error:
        return max(gain, 0.0)
    z = gain / error
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return gain * (1 + math.erf(z / math.sqrt(2))) / 2 + error * density


def _rank(axis: Axis, first: Side) -> tuple[bool, float]:
    return axis.side != first, 0.0 if axis.promise is None else -axis.promise
