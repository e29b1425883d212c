"""From what was observed in a step to its parts: disjoint, and adding up to the wall clock.

The hooks note regions as they end: a kind, where it began and ended, and a detail. Regions nest
(an optimizer's closure holds the forward pass), so a part is what a region holds and no region
inside it does. What lies between two regions is the script's own Python, bounded by two observed
points; it gets a name from its neighbours.

Some stretches are no part of a step: an evaluation, a checkpoint, the start of an epoch. They are
found here, after the step, because only then is it known what a batch was fetched for.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple


class Region(NamedTuple):
    """One observed stretch of the training thread. Times are of whatever clock the caller uses."""

    kind: str
    start: int
    end: int
    detail: Any = None
    start_mark: Any = None
    end_mark: Any = None


class Fetch(NamedTuple):
    """Detail of a ``data`` or ``loader start`` region."""

    loader: int
    """Identity of the loader."""
    workers: int
    first: bool = False
    """First batch of a pass."""
    last: bool = False
    """The fetch that found no further batch."""


class Apart(NamedTuple):
    """A stretch that is no part of the step: a name, and its first and last region."""

    name: str
    first: int
    last: int


TRAIN, EVAL = "train", "eval"

# Regions that are no part of a step wherever they are.
ALWAYS_APART = {"checkpoint": "checkpoint", "compile": "compile", "pitstop": "pitstop"}

# Regions that only a training step has.
_TRAINING = {"backward", "optimizer", "clip", "zero_grad"}

HOST = "host"
RECOMPUTE = "recompute"


def name_gap(before: Optional[str], after: Optional[str]) -> str:
    """Name the Python between two regions.

    What follows the model and precedes its gradients is the loss; the rest is the host's own work.
    """
    if after in ("backward", "zero_grad") and before in ("forward", "loss", "wait"):
        return "loss"
    return HOST


def aparts_of(regions: Sequence[Region], evaluates: Set[int], trains: Set[int]) -> List[Apart]:
    """Find the stretches of a step that do not belong to it, in order and without overlap.

    Args:
        regions: Sorted by start, parents before their children.
        evaluates: Loaders known to feed evaluations; those that this step shows are added.
        trains: Loaders known to feed training steps; likewise.
    """
    if all(_is_plain(region, trains) for region in regions):
        return []
    purposes = _purposes(regions, evaluates, trains)
    found = _evaluations(regions, purposes)
    found += _epoch_starts(regions, purposes)
    found += [
        Apart(ALWAYS_APART[region.kind], place, place)
        for place, region in enumerate(regions)
        if region.kind in ALWAYS_APART
    ]
    found.sort(key=lambda apart: (regions[apart.first].start, -regions[apart.last].end))
    kept: List[Apart] = []
    for apart in found:
        if not kept or regions[apart.first].start >= regions[kept[-1].last].end:
            kept.append(apart)
    return kept


def _is_plain(region: Region, trains: Set[int]) -> bool:
    """Whether a region is as those of most steps are: nothing about it needs thought."""
    kind, detail = region.kind, region.detail
    if detail is None:
        return kind not in ALWAYS_APART
    if isinstance(detail, Fetch):
        return kind == "data" and not detail.last and detail.loader in trains
    return detail == TRAIN


def _purposes(
    regions: Sequence[Region], evaluates: Set[int], trains: Set[int]
) -> List[Optional[str]]:
    """Say of each region whether it trains, evaluates, or neither by itself.

    A batch is for whatever forward pass comes next. A loader keeps the purpose it was first seen
    with, so that starting it and finding its end are known too.
    """
    following: Optional[str] = None
    for region in reversed(regions):
        if region.kind == "forward":
            following = region.detail
        elif region.kind in _TRAINING:
            following = TRAIN
        elif isinstance(region.detail, Fetch) and _feeds(region) and following is not None:
            loader = region.detail.loader
            if loader not in evaluates and loader not in trains:
                (evaluates if following == EVAL else trains).add(loader)
    return [_purpose(region, evaluates, trains) for region in regions]


def _feeds(region: Region) -> bool:
    """Whether a fetch brought a batch."""
    return region.kind == "data" and not region.detail.last


def _purpose(region: Region, evaluates: Set[int], trains: Set[int]) -> Optional[str]:
    if region.kind == "forward":
        return region.detail
    if region.kind in _TRAINING:
        return TRAIN
    if isinstance(region.detail, Fetch):
        if region.detail.loader in evaluates:
            return EVAL
        return TRAIN if region.detail.loader in trains else None
    return None


def _evaluations(regions: Sequence[Region], purposes: Sequence[Optional[str]]) -> List[Apart]:
    found: List[Apart] = []
    first: Optional[int] = None
    last = 0
    for place, purpose in enumerate(purposes):
        if purpose == EVAL:
            first = place if first is None else first
            if regions[place].end >= regions[last].end:
                last = place
        elif purpose == TRAIN and first is not None:
            found.append(Apart("evaluation", first, last))
            first = None
    if first is not None:
        found.append(Apart("evaluation", first, last))
    return found


def _epoch_starts(regions: Sequence[Region], purposes: Sequence[Optional[str]]) -> List[Apart]:
    """Starting a pass, up to its first batch where workers prepare it, and ending one.

    Without workers the first batch costs what every batch costs, so it is waiting for data.
    """
    found: List[Apart] = []
    for place, region in enumerate(regions):
        fetch = region.detail
        if not isinstance(fetch, Fetch) or purposes[place] == EVAL:
            continue
        if region.kind == "loader start":
            found.append(Apart("epoch boundary", place, _first_batch(regions, place, fetch)))
        elif fetch.last and fetch.workers:
            found.append(Apart("epoch boundary", place, place))
    return found


def _first_batch(regions: Sequence[Region], start: int, fetch: Fetch) -> int:
    if fetch.workers:
        for place in range(start + 1, len(regions)):
            other = regions[place].detail
            if isinstance(other, Fetch) and other.loader == fetch.loader and other.first:
                return place
    return start


Times = Dict[str, List[int]]


def split(
    regions: Sequence[Region],
    aparts: Sequence[Apart],
    bounds: Tuple[int, int],
    gap: Callable[[Optional[str], Optional[str]], str] = name_gap,
) -> Tuple[Times, List[Tuple[str, int, int]]]:
    """Divide the time between two borders among parts; what lies apart is taken out.

    Args:
        regions: Sorted by start, parents before their children, inside the bounds.
        aparts: What `aparts_of` found among them.
        bounds: Where the step begins and ends.
        gap: Names what lies between two regions.

    Returns:
        Calls and time by part, and the apart stretches as name, start, end. All times together
        are the distance of the bounds, to the digit.
    """
    flat = None if aparts else _split_flat(regions, bounds, gap)
    return _split_nested(regions, aparts, bounds, gap) if flat is None else (flat, [])


def _split_nested(
    regions: Sequence[Region],
    aparts: Sequence[Apart],
    bounds: Tuple[int, int],
    gap: Callable[[Optional[str], Optional[str]], str],
) -> Tuple[Times, List[Tuple[str, int, int]]]:
    pieces = _with_aparts(regions, aparts)
    times: Times = {}
    cursor, before = bounds[0], None
    stack: List[Tuple[str, int]] = []  # open regions: kind, end

    def spend(name: str, until: int, calls: int = 0) -> None:
        entry = times.setdefault(name, [0, 0])
        entry[0] += calls
        entry[1] += until - cursor

    for kind, start, end, is_apart in [*pieces, ("", bounds[1], bounds[1], False)]:
        while stack and stack[-1][1] <= start:
            before, closing = stack.pop()
            spend(before, closing)
            cursor = closing
        if start > cursor:
            inside = stack[-1][0] if stack else gap(before, kind or None)
            spend(inside, start)
            cursor = start
        if is_apart:
            cursor = end
        elif kind:
            times.setdefault(kind, [0, 0])[0] += 1
            stack.append((kind, end))
    return times, [(kind, start, end) for kind, start, end, is_apart in pieces if is_apart]


def _split_flat(
    regions: Sequence[Region],
    bounds: Tuple[int, int],
    gap: Callable[[Optional[str], Optional[str]], str],
) -> Optional[Times]:
    """Divide a step whose regions follow each other, as most do; None where some nest."""
    times: Times = {}
    cursor, before = bounds[0], None
    for kind, start, end, _, _, _ in regions:
        if start < cursor:
            return None
        if start > cursor:
            _spend(times, gap(before, kind), start - cursor, 0)
        _spend(times, kind, end - start, 1)
        cursor, before = end, kind
    if bounds[1] > cursor:
        _spend(times, gap(before, None), bounds[1] - cursor, 0)
    return times


def _spend(times: Times, name: str, took: int, calls: int) -> None:
    entry = times.get(name)
    if entry is None:
        times[name] = [calls, took]
    else:
        entry[0] += calls
        entry[1] += took


def _with_aparts(
    regions: Sequence[Region], aparts: Sequence[Apart]
) -> List[Tuple[str, int, int, bool]]:
    """Put each apart stretch in the place of the regions it covers.

    A region that reaches into an apart stretch ends where that begins, or begins where it ends.
    """
    stretches = [(a.name, regions[a.first].start, regions[a.last].end) for a in aparts]
    pieces = [(name, start, end, True) for name, start, end in stretches]
    for region in regions:
        start, end = region.start, region.end
        for _, low, high in stretches:
            if low <= start and end <= high:
                start = end = 0
                break
            if low <= start < high:
                start = high
            elif start < low < end < high:
                end = low
        if end > start or (end == start and start and region.end == region.start):
            pieces.append((region.kind, start, end, False))
    # An apart stretch inside a region comes after it; one that begins where it does, too.
    pieces.sort(key=lambda piece: (piece[1], -piece[2], piece[3]))
    return pieces
