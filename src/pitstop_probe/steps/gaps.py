"""What the Python between two regions was for: by its neighbours, and by the lines found there.

A gap in which several things happen is divided. They come in the same order in every step, more or
less, so stack samples are placed by how much of the gap had passed: each stands for what is nearest
to it. That tells far more than counting them, for only where one thing ends and another begins is
open.
"""

from bisect import insort
from collections import Counter, deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from pitstop_probe.steps.parts import (
    BEFORE_LOSS,
    CLOSURE,
    HOST,
    Gap,
    GapNames,
    Name,
    Noted,
    after_aside,
    name_gap,
)

# The purpose of a stack sample that was due in a gap and came too late: the interpreter's lock was
# held to the gap's end.
DELAYED = "delayed"

# Stack samples that tell what a gap is for where all agree; and where not, to divide it. It errs by
# about one of its samples. With ten asked for, a script of 130 short steps was divided in one run
# and not in the next, which is worse.
_FEWEST_SAMPLES = 3
_FEWEST_TO_DIVIDE = 5
_MOST_SAMPLES = 500
_MOST_WAITING = 4096


class _StackSample(NamedTuple):
    """Where the training thread was found between two regions."""

    step: int
    moment_ns: int
    before: Optional[str]
    purpose: str
    """What the line was for; empty where nothing is known."""


class LearntNames(GapNames):
    """Names of gaps, better ones where stack samples have found some."""

    def __init__(self, by_neighbours: Callable[[Optional[str], Optional[str]], str]) -> None:
        super().__init__(by_neighbours)
        self._placed: Dict[Gap, List[Tuple[float, str]]] = {}
        self._loose: Dict[Optional[str], "Counter[str]"] = {}

    def __missing__(self, gap: Gap) -> Name:
        """Name a gap, after the last sample that had to do with it."""
        met = self._met(gap)
        if not _tells(met):
            return super().__missing__(gap)
        shares = _shares_by_place(met)
        name = self[gap] = shares[0][0] if len(shares) == 1 else shares
        return name

    def add(self, gap: Gap, place: float, purpose: str) -> None:
        """Take in a sample at a place of a gap, from 0 to 1."""
        placed = self._placed.setdefault(gap, [])
        if len(placed) < _MOST_SAMPLES:
            insort(placed, (place, purpose))
            self.pop(gap, None)

    def add_loose(self, before: Optional[str], purpose: str) -> None:
        """Take in a sample of which only the region before is known."""
        if purpose == DELAYED:
            return
        self._loose.setdefault(before, Counter())[purpose] += 1
        for gap in [gap for gap in self if gap[0] == before]:
            del self[gap]

    def summary(self) -> List[Dict[str, Any]]:
        """Say how the gaps that are more than one thing were divided, and by how many samples."""
        found = [(gap, self[gap]) for gap in {**self, **self._placed}]
        return [
            {
                "before": gap[0],
                "after": gap[1],
                "samples": len(self._met(gap)),
                "shares": dict(name),
            }
            for gap, name in found
            if not isinstance(name, str)
        ]

    def _met(self, gap: Gap) -> List[Tuple[float, str]]:
        """Give the samples that a gap is named by: those with a place, or all where these are few.

        Of loose ones only the number is known: in an order they take up as much as they are many.
        """
        placed = _with_delayed(self._placed.get(gap, []))
        met = [(place, self._named(gap, why)) for place, why in placed]
        if _tells(met):
            return met
        loose = self._loose.get(gap[0], Counter()).elements()
        names = sorted([name for _, name in met] + [self._named(gap, why) for why in loose])
        return [((place + 0.5) / len(names), name) for place, name in enumerate(names)]

    def _named(self, gap: Gap, purpose: str) -> str:
        by_neighbours = self.by_neighbours(*gap)
        if not purpose or (purpose == "loss" and by_neighbours != HOST):
            return by_neighbours
        return HOST if purpose == "loss" else purpose


def _tells(met: Sequence[Tuple[float, str]]) -> bool:
    """Whether samples are enough to name a gap by, or to divide it."""
    is_one = len({name for _, name in met}) == 1
    return len(met) >= (_FEWEST_SAMPLES if is_one else _FEWEST_TO_DIVIDE)


def _with_delayed(placed: Sequence[Tuple[float, str]]) -> List[Tuple[float, str]]:
    """Give each sample that came too late the purpose of the next one, for it went on till then."""
    found: List[Tuple[float, str]] = []
    following = next((why for _, why in reversed(placed) if why != DELAYED), None)
    for place, why in reversed(placed):
        following = why if why != DELAYED else following
        if following is not None:
            found.append((place, following))
    return found[::-1]


def _shares_by_place(placed: Sequence[Tuple[float, str]]) -> Tuple[Tuple[str, float], ...]:
    """Give each sample the part of the gap that is nearer to it than to others."""
    places = [place for place, _ in placed]
    middles = [(places[n] + places[n + 1]) / 2 for n in range(len(places) - 1)]
    borders = [0.0, *middles, 1.0]
    return _added_up(
        [(name, borders[n + 1] - borders[n]) for n, (_, name) in enumerate(placed)],
    )


def _added_up(pieces: Sequence[Tuple[str, float]]) -> Tuple[Tuple[str, float], ...]:
    shares: Dict[str, float] = {}
    for name, share in pieces:
        shares[name] = shares.get(name, 0.0) + share
    return tuple(sorted(shares.items()))


def name_blind_gap(before: Optional[str], after: Optional[str]) -> str:
    """Name a gap in a step in which no module was called: before gradients it is forward."""
    is_computed = after in ("backward", "zero_grad", "loss") and before not in BEFORE_LOSS
    return "forward" if is_computed else name_gap(before, after)


def part_between(before: Optional[str], purpose: Optional[str]) -> str:
    """Name the part that a sample lies in, as far as can be told before the gap has ended."""
    if purpose in ("data", HOST):
        return purpose
    return name_gap(before, "backward")


class Gaps:
    """Gathers stack samples that fell between two regions, until their steps are handed over."""

    def __init__(self) -> None:
        self.names = LearntNames(name_gap)
        self.blind_names = LearntNames(name_blind_gap)
        """Of steps in which no module was called."""
        self._waiting: Deque[_StackSample] = deque(maxlen=_MOST_WAITING)

    def summary(self) -> List[Dict[str, Any]]:
        """Say how the gaps were divided that are more than one thing."""
        return [*self.names.summary(), *self.blind_names.summary()]

    def add_sample(
        self, step: int, moment_ns: int, before: Optional[str], purpose: Optional[str]
    ) -> None:
        """Keep a sample, from whichever thread."""
        self._waiting.append(_StackSample(step, moment_ns, before, purpose or ""))

    def place(
        self, step: int, regions: Sequence[Noted], bounds: Tuple[int, int], names: LearntNames
    ) -> None:
        """Place the samples of a step that was noted; those of the steps before it are let go.

        Args:
            step: Its number.
            regions: What was noted of it, in nanoseconds.
            bounds: Where it begins and ends, in nanoseconds.
            names: What its gaps are called.
        """
        for sample in self._until(step):
            found = _gap_at(regions, bounds, sample.moment_ns) if sample.step == step else None
            if found is not None:
                names.add(*found, sample.purpose)

    def pass_by(self, step: int) -> None:
        """Count the samples of steps up to one that were not noted."""
        for sample in self._until(step):
            self.names.add_loose(sample.before, sample.purpose)

    def forget(self, step: int) -> None:
        """Let go of the samples up to a step."""
        for _ in self._until(step):
            pass

    def _until(self, step: int) -> List[_StackSample]:
        waiting, found = self._waiting, []
        while waiting and waiting[0].step <= step:
            found.append(waiting.popleft())
        return found


def _gap_at(
    regions: Sequence[Noted], bounds: Tuple[int, int], moment: int
) -> Optional[Tuple[Gap, float]]:
    """The gap that a moment lies in, and how much of it had passed; None inside a region."""
    start, end = bounds
    before: Optional[str] = None
    after: Optional[str] = None
    inside = CLOSURE
    for kind, region_start, region_end, _, _, _ in sorted(regions, key=_place):
        if region_start > moment:
            if region_start < end:
                after, end = kind, region_start
            break
        if moment < region_end:
            # What began before it is outside; of a closure, the closure alone is around the gap.
            inside, before, start, end = kind, None, region_start, min(end, region_end)
        elif kind != CLOSURE:
            before, start = after_aside(before, kind), max(start, region_end)
    if inside != CLOSURE or end <= start:
        return None
    return (before, after), (moment - start) / (end - start)


def _place(region: Noted) -> Tuple[int, int]:
    return region[1], -region[2]
