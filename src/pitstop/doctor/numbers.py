"""Numbers inside evidence: short, with their spread."""

from collections.abc import Sequence

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.records.run import Array

_GIB = 1 << 30
_MIB = 1 << 20


def percent(share: float, error: float | None = None) -> str:
    """A share, with its standard error where that is worth a digit."""
    if error is None or error < 0.0005:
        return f"{share:.1%}"
    return f"{share:.1%} ± {error:.1%}"


def ms(microseconds: float) -> str:
    """A time in milliseconds, or in seconds where that reads better."""
    if microseconds >= 10e6:
        return f"{microseconds / 1e6:.1f} s"
    return f"{microseconds / 1e3:.1f} ms"


def duration(microseconds: float) -> str:
    """A long time: in seconds from one on."""
    return f"{microseconds / 1e6:.1f} s" if microseconds >= 1e6 else ms(microseconds)


def spread_ms(times_us: Array) -> str:
    """Median and middle half of many times."""
    low, middle, high = np.percentile(times_us, (25, 50, 75)) / 1e3
    return f"median {middle:.1f} ms, middle half {low:.1f} to {high:.1f} ms"


def spill(facts: Facts, name: str) -> tuple[str, ...]:
    """What something apart adds to the steps it falls in, where that is told from noise."""
    us = facts.spill(name).us
    if not us:
        return ()
    share = percent(us / facts.total_us)
    words = "lies in the steps themselves: those it falls in take longer than the others"
    return (f"of that, {share} {words}",)


def size(count: float) -> str:
    """Bytes in GiB or MiB."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def listing(words: Sequence[object], *, most: int = 5) -> str:
    """The first few of a list, and how many there are more."""
    shown = ", ".join(str(word) for word in words[:most])
    return shown if len(words) <= most else f"{shown} and {len(words) - most} more"


def times(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def place_text(place: str) -> str:
    """A file without its folders, and a line: ``train.py:41``."""
    return place.replace("\\", "/").rpartition("/")[2]
