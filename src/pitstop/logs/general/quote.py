"""Quotes what the lines of a log print, and accounts for those that are not quoted.

Nothing is worked out here: a field is quoted with the number of lines that print it, its first and
its last value. What other lines print under the words of a training is counted and named, so that
no quotation passes for the whole.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from pitstop.logs.general.families import Array
from pitstop.logs.general.roles import COUNTS, TIMES, Reading, Role
from pitstop.records.logs.windows import CLOCK, FieldQuote, LineKind, Unquoted, finite_or_none

_MOST_KINDS = 5
_MOST_FIELDS = 12
_MOST_NAMES = 8
_ALIKE = 0.6
_MOSTLY = 0.9
_NAMES: dict[str, str] = {
    "elapsed": "elapsed, before <",
    "samples/s": "rate",
    "rate": "rate",
    "time of a step": "time",
}
_FEWEST_LINES = 3
_SHOWN: tuple[Role, ...] = (
    "step", "epoch", "count", "loss", "learning rate", "wait for data", "time of a step", "time",
    "elapsed", "samples/s", "rate", "memory", "value",
)  # fmt: skip
Key = tuple[str, str, int]
"""Name and kind of unit of a field, and how often it stood on the line before."""


@dataclass(slots=True, eq=False)
class Lines:
    """Lines that print the same fields, some of them with a field more or less."""

    readings: list[Reading]
    names: frozenset[str] = field(default_factory=frozenset)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(one.family.count for one in self.readings)

    def has(self, *roles: Role) -> bool:
        """Whether a field of one of these roles is on them."""
        return any(one.places(*roles) for one in self.readings)

    def rank(self) -> tuple[bool, bool, bool, bool, int]:
        """What is quoted first: lines of the training with a loss and a count, then the many."""
        is_many, has_loss = self.count >= _FEWEST_LINES, self.has("loss")
        is_trained = self.readings[0].family.phase in ("train", "")
        return is_many and has_loss and is_trained, is_many, has_loss, self.has(*COUNTS), self.count

    def is_like(self, one: Reading, names: frozenset[str]) -> bool:
        """Whether lines have nearly the same fields, and count the same."""
        head = self.readings[0]
        is_nested = names <= self.names or self.names <= names
        return (
            is_nested
            and len(names & self.names) >= _ALIKE * len(names | self.names) > 0
            and (head.family.phase, head.family.is_bar) == (one.family.phase, one.family.is_bar)
            and _counters(head) == _counters(one)
        )

    def values(self, key: "Key") -> tuple[Array, Array]:
        """Give a field's numbers in the order of the file, and their lines."""
        lines, values = [np.empty(0)], [np.empty(0)]
        for one in self.readings:
            if (place := keys_of(one).get(key)) is not None:
                absent = one.family.absent.get(place)
                printed = slice(None) if absent is None else ~absent
                lines.append(np.array(one.family.line)[printed])
                values.append(np.array(one.family.flat[place])[printed])
        every = np.concatenate(lines)
        order = np.argsort(every, kind="stable")
        return np.concatenate(values)[order], every[order]


def _counters(one: Reading) -> list[str]:
    return [one.family.slots[place].name.lower() for place in one.places(*COUNTS)]


def kinds_of(readings: list[Reading]) -> list[Lines]:
    """Put readings whose fields are nearly the same together; what is quoted first stands first."""
    kinds: list[Lines] = []
    for one in sorted(readings, key=lambda one: -one.family.count):
        if not one.is_of_training:
            continue
        names = frozenset(slot.name.lower() for slot in one.family.slots if slot.name)
        home = next((kind for kind in kinds if kind.is_like(one, names)), None)
        if home is None:
            kinds.append(Lines([one], names))
        else:
            home.readings.append(one)
    return sorted(kinds, key=Lines.rank, reverse=True)


def quoted(kinds: list[Lines]) -> tuple[LineKind, ...]:
    """Quote the lines that say most."""
    return tuple(_quote(kind) for kind in kinds if _is_quoted(kind, kinds))


def _is_quoted(kind: Lines, kinds: list[Lines]) -> bool:
    """Whether lines are among those that say most, and come more than once or twice."""
    place = kinds.index(kind)
    has_fields = any(map(keys_of, kind.readings))
    return has_fields and (place == 0 or (place < _MOST_KINDS and kind.count >= _FEWEST_LINES))


def unquoted(kinds: list[Lines], *, forgotten: int) -> Unquoted | None:
    """Account for all other lines that print something of a training; None without any.

    Args:
        kinds: All of them.
        forgotten: Lines whose form came once, of which no more was kept.
    """
    rest = [kind for kind in kinds if not _is_quoted(kind, kinds)]
    rest.sort(key=lambda kind: -kind.count)
    if not rest:
        return None
    names = dict.fromkeys(
        one.family.name_of(place)
        for kind in rest
        for one in kind.readings
        for place, slot in enumerate(one.family.slots)
        if slot.name and one.roles[place] not in ("value", "")
    )
    return Unquoted(
        lines=sum(kind.count for kind in rest),
        is_least=forgotten > 0,
        names=tuple(names)[:_MOST_NAMES],
        example=rest[0].readings[0].family.example,
    )


def _quote(kind: Lines) -> LineKind:
    head = min((one.family for one in kind.readings), key=lambda family: family.line[0])
    roles: dict[Key, Role] = {}
    for one in kind.readings:
        for key, place in keys_of(one).items():
            roles.setdefault(key, one.roles[place])
    shown = sorted(roles, key=lambda key: _SHOWN.index(roles[key]))
    fields = [_field(kind, key, roles[key]) for key in shown[:_MOST_FIELDS]]
    return LineKind(
        example=head.example,
        lines=kind.count,
        phase="evaluation" if head.phase == "eval" else "",
        fields=tuple(fields),
        others=tuple(dict.fromkeys(key[0] for key in shown[_MOST_FIELDS:] if key[0])),
        apart_s=_apart_s(kind),
    )


def keys_of(one: Reading) -> dict[Key, int]:
    """Where fields stand, by their names and by how often these stood on the line before."""
    found: dict[Key, int] = {}
    times: Counter[str] = Counter()
    for place, (slot, role) in enumerate(zip(one.family.slots, one.roles, strict=True)):
        name = slot.name.lower()
        # Of a bar's rates some are printed as their inverse.
        is_rate = one.family.is_bar and role in ("time of a step", "rate")
        if role in _SHOWN and not is_rate:
            found[name, slot.unit, times[name]] = place
            times[name] += 1
    return found


def _field(kind: Lines, key: Key, role: Role) -> FieldQuote:
    totals: set[float] = set()
    stride, name, unit, count = 1, "", "", 0
    for one in kind.readings:
        if (place := keys_of(one).get(key)) is None:
            continue
        family, slot = one.family, one.family.slots[place]
        name = name or family.name_of(place)
        unit = unit or (CLOCK if slot.unit == "duration" else slot.unit_text)
        stride, count = max(stride, family.stride), count + family.count
        if place in family.absent:
            count -= int(family.absent[place].sum())
        # A line without a slash has no total, whatever others of its kind print.
        of = np.array(family.flat[place + 1]) if slot.has_total else np.array([np.nan])
        totals |= set(np.unique(of).tolist())
    every, _ = kind.values(key)
    finite = every[np.isfinite(every)]
    is_whole = stride == 1 and bool(len(finite))
    rises = bool((np.diff(finite) > 0).mean() > _MOSTLY) if len(finite) > 1 else False
    return FieldQuote(
        name=name or _NAMES.get(role, "count"),
        role=role,
        unit=unit,
        lines=count,
        first=finite_or_none(every[0]),
        last=finite_or_none(every[-1]),
        middle=float(np.median(finite)) if role in TIMES and is_whole and not rises else None,
        falls=int((np.diff(every) < 0).sum()) if role in COUNTS and is_whole else None,
        most=float(finite.max()) if role in COUNTS and is_whole else None,
        total=totals.pop() if len(totals) == 1 and np.isfinite(next(iter(totals))) else None,
    )


def _apart_s(kind: Lines) -> tuple[float, float, float] | None:
    """Quartiles of the time from one of these lines to the next, by their timestamps."""
    if len({one.family.shape for one in kind.readings}) > 1:
        return None  # clocks of two forms
    if any(one.family.stride > 1 for one in kind.readings):
        return None
    lines = np.concatenate([np.array(one.family.line) for one in kind.readings])
    at = np.concatenate([np.array(one.family.at) for one in kind.readings])
    spent = np.diff(at[np.argsort(lines, kind="stable")])
    if len(spent) < _FEWEST_LINES or not np.isfinite(spent).all() or (spent < 0).any():
        return None
    low, middle, high = np.quantile(spent, (0.25, 0.5, 0.75)).tolist()
    return (low, middle, high) if high > 0 else None
