"""Time outside the counted steps: evaluations, checkpoints, epoch boundaries."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.records.run import Event, RankRecord

START_UP = "start-up"
OWN = "pitstop"
"""What measuring itself spent outside steps: the run without us does not."""
NOT_NAMED = "outside steps, unnamed"

_OF_START_UP: Final = {"imports": "imports_us", "data": "data_us", "compiling": "compile_us"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideStep:
    """Everything of one name that lay between counted steps."""

    times_us: tuple[float, ...]
    """How long each time took; what falls in one step is one time."""
    places: tuple[int, ...] = ()
    """Which of the counted steps it fell in, counted from the first of them."""

    @property
    def count(self) -> int:
        """How often it happened."""
        return len(self.times_us)

    @property
    def total_us(self) -> float:
        """All of it together."""
        return sum(self.times_us)

    @property
    def once_us(self) -> float:
        """By how much the longest exceeds the mean of the others, as one does that compiles first.

        What came once alone has no others to exceed.
        """
        longest, others = max(self.times_us), self.count - 1
        return longest - (self.total_us - longest) / others if others else 0.0


def outside_steps_of(
    rank: RankRecord, rows: npt.NDArray[np.intp]
) -> tuple[dict[str, OutsideStep], int | None]:
    """Share out, step by step, the time that was taken out of the counted steps.

    A step's own count of time outside it decides. An event inside another one, or in another
    thread, is in that time already or ran beside the step, and gets nothing.

    Returns:
        Time outside steps by name, and start-up in microseconds where it was recorded.
    """
    table = rank.steps
    assert table is not None
    places = np.flatnonzero(table.outside_us[rows] > 0)
    rows = rows[places]
    keys = list(zip(table.attempt[rows].tolist(), table.index[rows].tolist(), strict=True))
    spent = dict(zip(keys, table.outside_us[rows].tolist(), strict=True))
    place_of = dict(zip(keys, places.tolist(), strict=True))
    inside: dict[tuple[float, float], list[Event]] = {}
    for event in rank.events:
        key = (float(event.attempt), float(event.step))
        if key in spent:
            inside.setdefault(key, []).append(event)
    found: dict[str, list[tuple[float, int]]] = {}
    for key, outside_us in spent.items():
        for name, us in _shared_out(inside.get(key, ()), outside_us):
            found.setdefault(name, []).append((us, place_of[key]))
    for name in (START_UP, OWN):
        found.pop(name, None)
    return {name: _outside(shares) for name, shares in found.items()}, _start_up_us(rank)


def _outside(shares: Iterable[tuple[float, int]]) -> OutsideStep:
    by_place: dict[int, float] = {}
    for us, place in shares:
        by_place[place] = by_place.get(place, 0.0) + us
    return OutsideStep(times_us=tuple(by_place.values()), places=tuple(by_place))


def _shared_out(events: Iterable[Event], outside_us: float) -> list[tuple[str, float]]:
    left = outside_us
    shared: list[tuple[str, float]] = []
    end_us = -1
    # The outer one of two that begin together is the longer one.
    for event in sorted(events, key=lambda event: (event.start_us, -event.wall_us)):
        if event.start_us < end_us or event.wall_us <= 0:
            continue
        end_us = event.start_us + event.wall_us
        us = min(left, event.wall_us)
        left -= us
        if us:
            shared.append((event.name, us))
    return [*shared, (NOT_NAMED, left)] if left > 0 else shared


def _start_up_us(rank: RankRecord) -> int | None:
    found = [event.wall_us for event in rank.events if event.name == START_UP]
    return sum(found) if found else None


def start_up_parts_s(rank: RankRecord) -> dict[str, float]:
    """Split start-up into what is known of it and the rest; nothing where nothing is known."""
    found = [event for event in rank.events if event.name == START_UP and event.detail]
    whole_us = sum(event.wall_us for event in found)
    parts_us = {
        name: sum(_known_us(event, key) for event in found) for name, key in _OF_START_UP.items()
    }
    known_us = sum(parts_us.values())
    if not found or known_us > whole_us:
        return {}
    parts_us["the rest"] = whole_us - known_us
    return {name: us / 1e6 for name, us in parts_us.items()}


def steps_in_start_up(rank: RankRecord) -> int:
    """Count the steps that passed before the first one that was found."""
    found = [event.detail.get("steps") for event in rank.events if event.name == START_UP]
    return sum(steps for steps in found if isinstance(steps, int) and steps > 0)


def _known_us(event: Event, key: str) -> float:
    us = event.detail.get(key)
    return us if isinstance(us, int | float) and us >= 0 else 0


def total_us(outside: Mapping[str, OutsideStep], names: Iterable[str]) -> float:
    """Time of some names together."""
    return sum(outside[name].total_us for name in names if name in outside)
