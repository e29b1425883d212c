"""Which colour a part has: the same one in every drawing of a page."""

from collections.abc import Iterable, Mapping
from typing import Final

UNACCOUNTED: Final = "unaccounted"
HATCHED: Final = "c-none"

_FIXED: Final[Mapping[str, str]] = {
    "data": "c0",
    "copy": "c1",
    "forward": "c2",
    "loss": "c3",
    "backward": "c4",
    "sync": "c5",
    "clip": "c6",
    "optimizer": "c7",
    "zero_grad": "c8",
    "wait": "c9",
    "host": "c10",
    "log": "c11",
    "evaluation": "c3",
    "checkpoint": "c6",
    "steps": "c2",
    "epoch boundary": "c10",
    "start-up": "c8",
    UNACCOUNTED: HATCHED,
}
_SPARE: Final = ("c9", "c5", "c11", "c1", "c8", "c6", "c3", "c10")
RUNS: Final = ("c2", "c0", "c7", "c4", "c9", "c1", "c3", "c5")


def colours(parts: Iterable[str]) -> dict[str, str]:
    """Give each part its colour; parts of other names share the rest in the order given."""
    names = list(dict.fromkeys(parts))
    others = [name for name in names if name not in _FIXED]
    taken = {_FIXED[name] for name in names if name in _FIXED}
    free = [colour for colour in _SPARE if colour not in taken] or list(_SPARE)
    spare = {name: free[place % len(free)] for place, name in enumerate(others)}
    return {name: _FIXED.get(name) or spare[name] for name in names}


def run_colour(place: int) -> str:
    """The colour of one of several runs."""
    return RUNS[place % len(RUNS)]
