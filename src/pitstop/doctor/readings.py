"""A rank's readings, typed once and when first asked for; damage is counted, never raised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from pitstop.errors import RecordError
from pitstop.records.engine import EngineSetup
from pitstop.records.host.held import HeldMemory
from pitstop.records.host.machine import Machine
from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.loader import LoaderReading
from pitstop.records.run import Reading
from pitstop.records.script import KINDS
from pitstop.records.store import decode

ReadingT = TypeVar("ReadingT")

# Samples that ask for an item; below, order and policy have little to gain within a pass.
_SHARED: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """What a rule needs to know of a cache. Kind ``cache``; counts since the cache was made.

    A superset of what our own cache writes: what a reading leaves out is not known.
    """

    budget_bytes: int
    """What the settings allow one copy of it."""
    policy: str
    """``"keep"``, ``"lru"``, ``"epoch"``, ..."""
    items: int
    """Items it holds now."""
    hits: int
    misses: int
    copies: int = 1
    """Caches of this kind on the host: 1 where all workers share one."""
    order: str = "not known"
    """How samples are read: ``"shuffled"``, ``"by sequence"``, ``"by identity"``, ``"in order"``
    or ``"not known"``."""
    dataset_items: int | None = None
    """Items that all samples together ask for."""
    item_uses: float = 1.0
    """Samples that ask for the same item, on average."""

    @property
    def lookups(self) -> int:
        """Hits and misses."""
        return self.hits + self.misses

    @property
    def most_hits(self) -> float | None:
        """Most of a pass's lookups that can hit: what is not held misses once, whatever is done."""
        if not self.dataset_items:
            return None
        held = min(1.0, self.items / self.dataset_items)
        return 1 - (1 - held) / self.item_uses

    @property
    def is_shared_by_samples(self) -> bool:
        """Whether several samples of a pass ask for the same item, as neighbours in a video do."""
        return self.item_uses >= _SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What exchanging gradients costs, mean times of one exchange. Kind ``communication``."""

    exchange_us: float
    """From the first bucket sent to the last received."""
    overlapped_us: float
    """The part of it that overlapped with computing."""
    exchanges_per_step: float | None = None
    """How often gradients were exchanged for one update; None where nobody counted."""
    gather_us: float | None = None
    """Where ranks divide the model: the part that gathers weights."""
    reduce_us: float | None = None
    """Where ranks divide the model: the part that divides gradients."""

    @property
    def exposed_us(self) -> float:
        """What a step waited for, all its exchanges together."""
        waited_us = max(0.0, self.exchange_us - self.overlapped_us)
        return waited_us * self._count

    @property
    def whole_us(self) -> float:
        """All exchanges of a step, whatever ran beside them."""
        return self.exchange_us * self._count

    @property
    def _count(self) -> float:
        return 1.0 if self.exchanges_per_step is None else self.exchanges_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a setting of the engine really did. Kind ``applied``."""

    setting: str
    proof: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWarning:
    """Something the engine warned about at a step. Kind ``warning``."""

    step: int
    about: str
    text: str


_KIND_OF: Final[Mapping[type, str]] = {
    **{record_type: kind for kind, record_type in KINDS.items()},
    MemoryReading: "memory",
    HeldMemory: "held",
    HostLoad: "load",
    Machine: "machine",
    Exchange: "communication",
    LoaderReading: "loader",
    CacheUse: "cache",
    EngineSetup: "engine",
    Applied: "applied",
    EngineWarning: "warning",
}


class Readings:
    """Readings of one rank by their type."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._raw: dict[str, list[Reading]] = {}
        for reading in readings:
            self._raw.setdefault(reading.kind, []).append(reading)
        self._typed: dict[type, tuple[object, ...]] = {}
        self._damaged: set[int] = set()

    @property
    def damaged(self) -> int:
        """Readings that did not fit their type, among those asked for so far."""
        return len(self._damaged)

    def all(self, record_type: type[ReadingT]) -> tuple[ReadingT, ...]:
        """Every reading of a type, in the order in which it was written."""
        if record_type not in self._typed:
            raw = self._raw.get(_KIND_OF[record_type], ())
            self._typed[record_type] = tuple(self._decoded(raw, record_type))
        return cast("tuple[ReadingT, ...]", self._typed[record_type])

    def between(
        self, first_us: float, last_us: float, record_type: type[ReadingT]
    ) -> tuple[ReadingT, ...]:
        """Every reading of a type that was written between two moments, or nobody knows when."""
        raw = self._raw.get(_KIND_OF[record_type], ())
        within = [r for r in raw if r.at_us is None or first_us <= r.at_us <= last_us]
        return tuple(self._decoded(within, record_type))

    def last(self, record_type: type[ReadingT]) -> ReadingT | None:
        """The latest reading of a type."""
        found = self.all(record_type)
        return found[-1] if found else None

    def has(self, kind: str) -> bool:
        """Whether there is any reading of a kind, sound or not."""
        return kind in self._raw

    def proof(self, setting: str) -> Mapping[str, Any] | None:
        """What the engine recorded for one of its settings, the latest."""
        found = [applied.proof for applied in self.all(Applied) if applied.setting == setting]
        return found[-1] if found else None

    def _decoded(self, raw: Sequence[Reading], record_type: type[ReadingT]) -> list[ReadingT]:
        sound = []
        for reading in raw:
            try:
                sound.append(decode(reading, record_type))
            except RecordError:
                self._damaged.add(id(reading))
        return sound
