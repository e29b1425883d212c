"""From what was observed in a step to its parts: disjoint, and adding up to the wall clock.

The hooks note regions as they end: a kind, where it began and ended, and a detail. Regions nest
(an optimizer's closure holds the forward pass), so a part is what a region holds and no region
inside it does. What lies between two regions is the script's own Python, bounded by two observed
points; it gets a name from its neighbours.

Some intervals are no part of a step: an evaluation, a checkpoint, the start of an epoch. They are
found here, after the step, because only then is it known what a batch was fetched for.
"""

from typing import (
    Any,
    Callable,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)


class Region(NamedTuple):
    """One observed interval of the training thread. Times are of whatever clock the caller uses."""

    kind: str
    start: int
    end: int
    detail: Any = None
    start_mark: Any = None
    end_mark: Any = None


# A region as hooks note it, on the hot path: the fields of `Region`, times in nanoseconds.
Noted = List[Any]


class Fetch(NamedTuple):
    """Detail of a ``data`` or ``loader start`` region."""

    loader: int
    """Identity of the loader."""
    workers: int
    first: bool = False
    """First batch of a pass."""
    last: bool = False
    """The fetch that found no further batch."""
    samples: Optional[int] = None
    """What the loader says that the batch holds."""


class Unset(NamedTuple):
    """Detail of a ``forward`` region of a model that is set to evaluate, with gradients on.

    Most often it evaluates; but who never sets it back to train trains it so, and so does who
    wants its statistics left alone.
    """

    model: int


class OutsideInterval(NamedTuple):
    """An interval that is no part of the step."""

    name: str
    start: int
    end: int


TRAIN, EVAL = "train", "eval"

# Regions that are no part of a step wherever they are.
ALWAYS_OUTSIDE = {"checkpoint": "checkpoint", "compile": "compile", "pitstop": "pitstop"}

# Regions that only a training step has.
_TRAINING = {"backward", "optimizer", "clip"}

# A loop for both phases sets gradients to zero before a pass that evaluates, too: then this says
# nothing.
_SAYS_LITTLE = "zero_grad"

# A moment, not a part: a model that trains was set to evaluate (`EVAL`) or back (`TRAIN`).
MODE = "mode"

HOST = "host"
RECOMPUTE = "recompute"
# What an optimizer's step was given to call. It has no time of its own: inside it parts and the
# Python between them are named as outside.
CLOSURE = "closure"

BEFORE_LOSS = frozenset(("forward", "loss"))


def name_gap(before: Optional[str], after: Optional[str]) -> str:
    """Name the Python between two regions.

    What follows the model and precedes its gradients is the loss; the rest is the host's own work.
    """
    if after in ("backward", "zero_grad") and before in BEFORE_LOSS:
        return "loss"
    return HOST


# What lies between two regions, by the kinds of both.
Gap = Tuple[Optional[str], Optional[str]]

# What a gap is called: one name, or several with their shares.
Name = Union[str, Tuple[Tuple[str, float], ...]]

# Regions that a loss may be computed on both sides of: what lay before them still counts.
_ASIDE = frozenset(("data", "copy", "wait", HOST))


def after_aside(before: Optional[str], kind: str) -> Optional[str]:
    """Say what lies before whatever follows a region of a kind."""
    if kind == MODE:
        return before  # a moment separates nothing
    return before if before in BEFORE_LOSS and kind in _ASIDE else kind


class GapNames(Dict[Gap, Name]):
    """Names of gaps, found when they are first asked for."""

    def __init__(self, by_neighbours: Callable[[Optional[str], Optional[str]], str]) -> None:
        super().__init__()
        self.by_neighbours = by_neighbours

    def __missing__(self, gap: Gap) -> Name:
        """Name a gap for the first time."""
        name = self[gap] = self.by_neighbours(*gap)
        return name


def outside_intervals(
    regions: Sequence[Region], evaluates: Set[int], trains: Set[int]
) -> List[OutsideInterval]:
    """Find the intervals of a step that do not belong to it, in order and without overlap.

    Args:
        regions: Sorted by start, parents before their children.
        evaluates: Loaders known to feed evaluations; those that this step shows are added.
        trains: Loaders known to feed training steps, likewise; and models that train though set to
            evaluate.
    """
    if all(is_plain(region.kind, region.detail, trains) for region in regions):
        return []
    purposes = _purposes(regions, evaluates, trains)
    found = _evaluations(regions, purposes)
    found += _unseen_evaluations(regions, purposes)
    found += _epoch_starts(regions, purposes)
    found += [
        OutsideInterval(ALWAYS_OUTSIDE[region.kind], region.start, region.end)
        for region in regions
        if region.kind in ALWAYS_OUTSIDE
    ]
    found.sort(key=lambda each: (each.start, -each.end))
    kept: List[OutsideInterval] = []
    for interval in found:
        if not kept or interval.start >= kept[-1].end:
            kept.append(interval)
    return kept


def evaluates(regions: Sequence[Noted], loaders: Set[int]) -> bool:
    """Whether a step holds an evaluation, as far as its calls and known loaders tell."""
    for _, _, _, detail, _, _ in regions:
        if detail is None or detail is TRAIN:
            continue
        if detail == EVAL or (isinstance(detail, Fetch) and detail.loader in loaders):
            return True
    return False


def is_plain(kind: str, detail: Any, trains: Set[int]) -> bool:
    """Whether a region is as those of most steps are: nothing about it needs thought."""
    if detail is None:
        return kind not in ALWAYS_OUTSIDE
    if detail is TRAIN:
        return True
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
    evaluates |= _never_trained_with(regions) - trains
    following: Optional[str] = None
    zeroing: Set[int] = set()
    for place in range(len(regions) - 1, -1, -1):
        region = regions[place]
        if region.kind == "forward" or region.kind in _TRAINING:
            following = _purpose(region, evaluates, trains) or following
        elif region.kind == _SAYS_LITTLE and following != EVAL:
            zeroing.add(place)
            following = TRAIN
        elif isinstance(region.detail, Fetch) and _feeds(region) and following is not None:
            loader = region.detail.loader
            if loader not in evaluates and loader not in trains:
                (evaluates if following == EVAL else trains).add(loader)
    return [
        TRAIN if place in zeroing else _purpose(region, evaluates, trains)
        for place, region in enumerate(regions)
    ]


def _never_trained_with(regions: Sequence[Region]) -> Set[int]:
    """Loaders whose next batch was asked for after a pass without gradients, and nothing else.

    Within a step, what passes without gradients is for the step: a teacher, samples for a critic.
    """
    found: Set[int] = set()
    fetched: Optional[int] = None
    passed: Optional[int] = None
    for region in regions:
        if isinstance(region.detail, Fetch):
            if region.detail.loader == passed:
                found.add(region.detail.loader)
            fetched = region.detail.loader if _feeds(region) else None
            passed = None
        elif region.kind == "forward" and region.detail is None:
            passed = fetched
        elif region.kind == "forward" or region.kind in _TRAINING:
            fetched = passed = None
    return found


def _feeds(region: Region) -> bool:
    """Whether a fetch brought a batch."""
    return region.kind == "data" and not region.detail.last


def _purpose(region: Region, evaluates: Set[int], trains: Set[int]) -> Optional[str]:
    if region.kind in _TRAINING:
        return TRAIN
    if isinstance(region.detail, Unset):
        return TRAIN if region.detail.model in trains else EVAL
    if isinstance(region.detail, Fetch):
        if region.detail.loader in evaluates:
            return EVAL
        return TRAIN if region.detail.loader in trains else None
    return region.detail if region.kind == "forward" else None


def _evaluations(
    regions: Sequence[Region], purposes: Sequence[Optional[str]]
) -> List[OutsideInterval]:
    found: List[OutsideInterval] = []
    start: Optional[int] = None
    end = 0
    for region, purpose in zip(regions, purposes):
        if purpose == EVAL:
            start = region.start if start is None else start
            end = max(end, region.end)
        elif purpose == TRAIN and start is not None:
            found.append(OutsideInterval("evaluation", start, end))
            start = None
    if start is not None:
        found.append(OutsideInterval("evaluation", start, end))
    return found


def _unseen_evaluations(
    regions: Sequence[Region], purposes: Sequence[Optional[str]]
) -> List[OutsideInterval]:
    """Find evaluations in which no call of the model was seen: it samples by a method of its own.

    From the moment in which the model was set to evaluate to whatever shows that training goes on,
    or to a checkpoint. What the model's parts do meanwhile is theirs: only whole models are seen.
    A model that nobody sets back to train may train as it is: nothing is known of it.
    """
    found: List[OutsideInterval] = []
    start: Optional[int] = None
    end: Optional[int] = None
    for region, purpose in zip(regions, purposes):
        if region.kind == MODE and region.detail == EVAL:
            start, end = region.start, None
        elif purpose == EVAL:
            start = None
        elif start is not None and _ends_evaluation(region, purpose):
            end = region.start if end is None else end
            if region.kind == MODE:
                found.append(OutsideInterval("evaluation", start, end))
                start = None
    return [interval for interval in found if interval.end > interval.start]


def _ends_evaluation(region: Region, purpose: Optional[str]) -> bool:
    return region.kind == MODE or purpose == TRAIN or region.kind in ALWAYS_OUTSIDE


def _epoch_starts(
    regions: Sequence[Region], purposes: Sequence[Optional[str]]
) -> List[OutsideInterval]:
    """Starting a pass, up to its first batch where workers prepare it, and ending one.

    Without workers the first batch costs what every batch costs, so it is waiting for data.
    """
    found: List[OutsideInterval] = []
    for place, region in enumerate(regions):
        fetch = region.detail
        if not isinstance(fetch, Fetch) or purposes[place] == EVAL:
            continue
        if region.kind == "loader start":
            last = _first_batch(regions, place, fetch)
            found.append(OutsideInterval("epoch boundary", region.start, last.end))
        elif fetch.last and fetch.workers:
            found.append(OutsideInterval("epoch boundary", region.start, region.end))
    return found


def _first_batch(regions: Sequence[Region], start: int, fetch: Fetch) -> Region:
    if fetch.workers:
        for region in regions[start + 1 :]:
            other = region.detail
            if isinstance(other, Fetch) and other.loader == fetch.loader and other.first:
                return region
    return regions[start]


class Rounds(NamedTuple):
    """How often a step went forward and back, and what that says about its samples."""

    made: int
    is_known: bool = True
    """Whether each was made with a batch of its own."""
    may_repeat: bool = True
    """Whether calls beyond one a round have the same samples: two views, real ones and fakes."""
    is_closure: bool = False
    """Whether an optimizer called for them, with the same batch however often."""
    batches: int = 0
    """Fetched from training loaders, the most from one of them."""
    fetched: Optional[int] = None
    """Samples in all that were fetched; None where more than one loader feeds, or none tells."""

    def samples(self, by_calls: Optional[int]) -> Optional[int]:
        """Give the samples of the step: the loader's, as far as all of them went in."""
        if self.fetched is None or by_calls == self.fetched:
            return by_calls
        if self.batches == self.made:
            return self.fetched
        # Fetched ahead: the batches that went in are as large as those that came.
        went_in = self.fetched * self.made // self.batches
        return by_calls if by_calls == went_in else None


def rounds_of(regions: Sequence[Noted], trains: Set[int]) -> Rounds:
    """Count rounds by what was fetched, and between two updates by what went forward and back.

    An update of a critic and one of a generator are made with one batch unless two were fetched.
    More rounds than batches is either one batch in pieces or the same batch again.

    Args:
        regions: As noted.
        trains: Loaders known to feed training steps.
    """
    rounds, went_forward = [0], False
    fetches: Dict[int, List[Optional[int]]] = {}
    for kind, _, _, detail, _, _ in regions:
        if kind == "forward":
            went_forward = True
        elif kind == "backward":
            rounds[-1] += went_forward
            went_forward = False
        elif kind in ("optimizer", CLOSURE):
            rounds.append(0)
        elif _brings_batch(kind, detail, trains):
            fetches.setdefault(detail.loader, []).append(detail.samples)
    batches = max(map(len, fetches.values()), default=0)
    made = max(*rounds, min(batches, sum(rounds)))
    return Rounds(
        made=made,
        is_known=not 0 < batches < made,
        may_repeat=len(fetches) <= 1,
        is_closure=any(region[0] == CLOSURE for region in regions),
        batches=batches,
        fetched=_fetched(list(fetches.values())),
    )


def _brings_batch(kind: str, detail: Any, trains: Set[int]) -> bool:
    is_fetch = kind == "data" and isinstance(detail, Fetch)
    return is_fetch and not detail.last and detail.loader in trains


def _fetched(by_loader: List[List[Optional[int]]]) -> Optional[int]:
    """Samples that the only loader brought; None where it does not tell."""
    if len(by_loader) != 1:
        return None
    known = [samples for samples in by_loader[0] if samples is not None]
    return sum(known) if len(known) == len(by_loader[0]) else None


# Two views and what they are held against; more calls than that are steps of something else.
_MOST_REPEATS = 3


def batches_by_calls(sizes: Sequence[Sequence[Optional[int]]], rounds: Rounds) -> Optional[int]:
    """Add up the samples of a step by the calls of its models; None where they do not tell.

    Args:
        sizes: Of each model, in the order of their first calls, the samples of each call.
        rounds: What the calls were made in.
    """
    if rounds.is_known:
        for calls in sizes:
            known = [size for size in calls if size is not None]
            if len(calls) == len(known) == rounds.made:
                return sum(known)
        for calls in sizes if rounds.may_repeat and rounds.made else ():
            repeats, rest = divmod(len(calls), rounds.made)
            is_repeated = not rest and (repeats <= _MOST_REPEATS or rounds.is_closure)
            if calls[0] is not None and len(set(calls)) == 1 and is_repeated:
                return calls[0] * rounds.made
    return None


Times = Dict[str, List[int]]


def split(
    regions: Sequence[Region],
    outside: Sequence[OutsideInterval],
    bounds: Tuple[int, int],
    names: Optional[GapNames] = None,
) -> Tuple[Times, List[Tuple[str, int, int]]]:
    """Divide the time between two borders among parts; what lies outside the step is taken out.

    Args:
        regions: Sorted by start, parents before their children, inside the bounds.
        outside: What `outside_intervals` found among them.
        bounds: Where the step begins and ends.
        names: What lies between two regions is called; as `name_gap` says unless given.

    Returns:
        Calls and time by part, and the intervals outside the step as name, start, end. All times
        together are the distance of the bounds, to the digit.
    """
    pieces = _with_outside(regions, outside)
    division = _Division(bounds[0], GapNames(name_gap) if names is None else names)
    for kind, start, end, is_outside in pieces:
        division.advance(start, kind)
        if is_outside:
            division.skip(end)
        else:
            division.open(kind, end)
    division.advance(bounds[1], None)
    return division.times, [piece[:3] for piece in pieces if piece[3]]


class _Division:
    """Goes through a step and gives each moment to what is innermost there."""

    def __init__(self, start: int, names: GapNames) -> None:
        self.times: Times = {}
        self._names = names
        self._cursor = start
        self._before: Optional[str] = None
        self._open: List[Tuple[str, int]] = []  # kind, end

    def advance(self, until: int, following: Optional[str]) -> None:
        """Go on to where the following region begins."""
        while self._open and self._open[-1][1] <= until:
            kind, end = self._open[-1]
            self._spend(end, None)
            self._open.pop()
            if kind != CLOSURE:
                self._before = after_aside(self._before, kind)
        if until > self._cursor:
            self._spend(until, following)

    def skip(self, until: int) -> None:
        """Leave out what lies outside the step."""
        self._cursor = until

    def open(self, kind: str, end: int) -> None:
        """Begin a region."""
        if kind == CLOSURE:
            self._before = None
        else:
            _spend(self.times, kind, 0, 1)
        self._open.append((kind, end))

    def _spend(self, until: int, following: Optional[str]) -> None:
        inside = self._open[-1][0] if self._open else CLOSURE
        name = self._names[self._before, following] if inside == CLOSURE else inside
        _share_out(self.times, name, until - self._cursor)
        self._cursor = until


def split_plain(
    regions: Sequence[Noted], trains: Set[int], bounds: Tuple[int, int], names: GapNames
) -> Optional[Times]:
    """Do `outside_intervals` and `split` for a step as most are: nothing nests or lies outside.

    Args:
        regions: As noted, in nanoseconds.
        trains: Loaders known to feed training steps.
        bounds: Where the step begins and ends, in nanoseconds.
        names: What lies between two regions is called.

    Returns:
        Calls and microseconds by part; None where the step is not so plain.
    """
    times: Times = {}
    cursor, before = bounds[0] // 1000, None
    for kind, start, end, detail, _, _ in regions:
        start_us = start // 1000
        if start_us < cursor or not is_plain(kind, detail, trains):
            return None
        if start_us > cursor:
            _share_out(times, names[before, kind], start_us - cursor)
        cursor, before = end // 1000, after_aside(before, kind)
        if kind in times:
            _spend(times, kind, cursor - start_us, 1)
        else:
            times[kind] = [1, cursor - start_us]
    rest = bounds[1] // 1000 - cursor
    if rest:
        _share_out(times, names[before, None], rest)
    return times


def _share_out(times: Times, name: Name, took: int) -> None:
    """Give the time of a gap to what it was spent on."""
    if isinstance(name, str):
        _spend(times, name, took, 0)
        return
    left = took
    for part, share in name[1:]:
        of_part = int(took * share)
        _spend(times, part, of_part, 0)
        left -= of_part
    _spend(times, name[0][0], left, 0)


def _spend(times: Times, name: str, took: int, calls: int) -> None:
    entry = times.get(name)
    if entry is None:
        times[name] = [calls, took]
    else:
        entry[0] += calls
        entry[1] += took


def _with_outside(
    regions: Sequence[Region], outside: Sequence[OutsideInterval]
) -> List[Tuple[str, int, int, bool]]:
    """Put each interval outside the step in the place of the regions it covers.

    A region that reaches into such an interval ends where that begins, or begins where it ends.
    """
    pieces = [(name, start, end, True) for name, start, end in outside]
    for region in regions:
        start, end = region.start, region.end
        for _, low, high in outside:
            if low <= start and end <= high:
                start = end = 0
                break
            if low <= start < high:
                start = high
            elif start < low < end < high:
                end = low
        if end > start or (end == start and start and region.end == region.start):
            pieces.append((region.kind, start, end, False))
    # An interval inside a region comes after it; one that begins where it does, too.
    pieces.sort(key=lambda piece: (piece[1], -piece[2], piece[3]))
    return pieces
