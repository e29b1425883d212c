"""What was to be sampled and was not, and why: a verdict that lacks it says so."""

from collections.abc import Mapping
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.records.script import Kernels, Modules, NotSampled, Rates, Work

# What of it a verdict on a device rests on, as readers call it.
_NEEDED: Final[Mapping[str, tuple[type, str]]] = {
    "kernels": (Kernels, "kernels"),
    "work": (Work, "arithmetic"),
    "rates": (Rates, "the device's rates"),
}


def not_sampled(facts: Facts) -> tuple[str, ...]:
    """Name what a verdict on somebody's script would rest on and the record does not hold."""
    if not _is_watched(facts):
        return ()
    needed = {"modules": (Modules, "modules"), **(_NEEDED if facts.on_gpu else {})}
    return tuple(
        f"{name} ({why_not(facts, kind)})"
        for kind, (record_type, name) in needed.items()
        if not facts.readings.all(record_type)
    )


def deciding_unsampled(facts: Facts) -> tuple[str, ...]:
    """Name what the choice of a bottleneck rests on and the record does not hold."""
    if not (_is_watched(facts) and facts.on_gpu):
        return ()
    needed = (_NEEDED[kind] for kind in ("kernels", "work"))
    return tuple(name for record_type, name in needed if not facts.readings.all(record_type))


def why_not(facts: Facts, kind: str) -> str:
    """Say why a reading is missing."""
    found = [each.why for each in facts.readings.all(NotSampled) if each.what == kind and each.why]
    if found:
        return found[-1]
    asked = facts.about.get("steps_asked", 0)
    if asked is None and kind in ("kernels", "rates"):
        return "only `pitstop doctor -- CMD` samples them"
    return "no reading was written"


def _is_watched(facts: Facts) -> bool:
    return facts.setup is not None or bool(facts.about.get("attached"))
