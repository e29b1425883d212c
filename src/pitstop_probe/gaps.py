"""What the Python between two regions was for: by its neighbours, and by the lines found there.

A gap in which several things happen is divided. They come in the same order in every step, more or
less, so looks are placed by how much of the gap had passed: each stands for what is nearest to it.
That tells far more than counting them, for only where one thing ends and another begins is open.
"""

from bisect import insort
from collections import Counter, deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

from pitstop_probe.parts import CLOSURE, HOST, Gap, GapNames, Name, Noted, after_aside, name_gap

# For what a look was too late that was due in a gap: the interpreter's lock was held to its end.
LATE = "late"

_FEWEST_LOOKS = 3
_MOST_LOOKS = 500
_MOST_WAITING = 4096


class _Look(NamedTuple):
    """Where the training thread was found between two regions."""

    step: int
    moment_ns: int
    before: Optional[str]
    purpose: str
    """What the line was for; empty where nothing told."""


class LearntNames(GapNames):
    """Names of gaps, better ones where looks at the stack have found some."""

    def __init__(self, by_neighbours: Callable[[Optional[str], Optional[str]], str]) -> None:
        super().__init__(by_neighbours)
        self._placed: Dict[Gap, List[Tuple[float, str]]] = {}
        self._loose: Dict[Optional[str], "Counter[str]"] = {}

    def __missing__(self, gap: Gap) -> Name:
        """Name a gap, after the last look that had to do with it."""
        placed = _with_late_ones(self._placed.get(gap, []))
        loose = self._loose.get(gap[0], Counter())
        if len(placed) >= _FEWEST_LOOKS:
            shares = _shares_by_place([(at, self._named(gap, why)) for at, why in placed])
        elif sum(loose.values()) >= _FEWEST_LOOKS:
            shares = _shares_by_count([(self._named(gap, why), n) for why, n in loose.items()])
        else:
            return super().__missing__(gap)
        name = self[gap] = shares[0][0] if len(shares) == 1 else shares
        return name

    def add(self, gap: Gap, place: float, purpose: str) -> None:
        """Take in a look at a place of a gap, from 0 to 1."""
        placed = self._placed.setdefault(gap, [])
        if len(placed) < _MOST_LOOKS:
            insort(placed, (place, purpose))
            self.pop(gap, None)

    def add_loose(self, before: Optional[str], purpose: str) -> None:
        """Take in a look of which only the region before is known."""
        if purpose == LATE:
            return
        self._loose.setdefault(before, Counter())[purpose] += 1
        for gap in [gap for gap in self if gap[0] == before]:
            del self[gap]

    def summary(self) -> List[Dict[str, Any]]:
        """Say how the gaps that are more than one thing were divided, and by how many looks."""
        found = [(gap, self[gap]) for gap in {**self, **self._placed}]
        return [
            {
                "before": gap[0],
                "after": gap[1],
                "samples": len(self._placed.get(gap, ())) or sum(self._loose[gap[0]].values()),
                "shares": dict(name),
            }
            for gap, name in found
            if not isinstance(name, str)
        ]

    def _named(self, gap: Gap, purpose: str) -> str:
        by_neighbours = self.by_neighbours(*gap)
        if not purpose or (purpose == "loss" and by_neighbours != HOST):
            return by_neighbours
        return HOST if purpose == "loss" else purpose


def _with_late_ones(placed: Sequence[Tuple[float, str]]) -> List[Tuple[float, str]]:
    """Give each look that came too late the purpose of the next one, for it went on till then."""
    found: List[Tuple[float, str]] = []
    following = next((why for _, why in reversed(placed) if why != LATE), None)
    for place, why in reversed(placed):
        following = why if why != LATE else following
        if following is not None:
            found.append((place, following))
    return found[::-1]


def _shares_by_place(placed: Sequence[Tuple[float, str]]) -> Tuple[Tuple[str, float], ...]:
    """Give each look the part of the gap that is nearer to it than to others."""
    places = [place for place, _ in placed]
    middles = [(places[n] + places[n + 1]) / 2 for n in range(len(places) - 1)]
    borders = [0.0, *middles, 1.0]
    return _added_up(
        [(name, borders[n + 1] - borders[n]) for n, (_, name) in enumerate(placed)],
    )


def _shares_by_count(counts: Sequence[Tuple[str, int]]) -> Tuple[Tuple[str, float], ...]:
    whole = sum(count for _, count in counts)
    return _added_up([(name, count / whole) for name, count in counts])


def _added_up(pieces: Sequence[Tuple[str, float]]) -> Tuple[Tuple[str, float], ...]:
    shares: Dict[str, float] = {}
    for name, share in pieces:
        shares[name] = shares.get(name, 0.0) + share
    return tuple(sorted(shares.items()))


def name_blind_gap(before: Optional[str], after: Optional[str]) -> str:
    """Name a gap in a step in which no module was called: before gradients it is forward."""
    return "forward" if after in ("backward", "zero_grad") else name_gap(before, after)


def part_between(before: Optional[str], purpose: Optional[str]) -> str:
    """Name the part that a look lies in, as far as can be told before the gap has ended."""
    if purpose in ("data", HOST):
        return purpose
    return name_gap(before, "backward")


class Gaps:
    """Gathers looks that fell between two regions, until their steps are handed over."""

    def __init__(self) -> None:
        self.names = LearntNames(name_gap)
        self.blind_names = LearntNames(name_blind_gap)
        """Of steps in which no module was called."""
        self._waiting: Deque[_Look] = deque(maxlen=_MOST_WAITING)

    def summary(self) -> List[Dict[str, Any]]:
        """Say how the gaps were divided that are more than one thing."""
        return [*self.names.summary(), *self.blind_names.summary()]

    def look(
        self, step: int, moment_ns: int, before: Optional[str], purpose: Optional[str]
    ) -> None:
        """Keep a look, from whichever thread."""
        self._waiting.append(_Look(step, moment_ns, before, purpose or ""))

    def place(
        self, step: int, regions: Sequence[Noted], bounds: Tuple[int, int], names: LearntNames
    ) -> None:
        """Place the looks of a step that was noted; those of the steps before it are let go.

        Args:
            step: Its number.
            regions: What was noted of it, in nanoseconds.
            bounds: Where it begins and ends, in nanoseconds.
            names: What its gaps are called.
        """
        for look in self._until(step):
            found = _gap_at(regions, bounds, look.moment_ns) if look.step == step else None
            if found is not None:
                names.add(*found, look.purpose)

    def pass_by(self, step: int) -> None:
        """Count the looks of steps up to one that were not noted."""
        for look in self._until(step):
            self.names.add_loose(look.before, look.purpose)

    def forget(self, step: int) -> None:
        """Let go of the looks up to a step."""
        for _ in self._until(step):
            pass

    def _until(self, step: int) -> List[_Look]:
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
