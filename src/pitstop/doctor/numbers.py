"""Numbers inside evidence: short, with their spread."""

from collections.abc import Sequence

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.records.run import Array
from pitstop.records.units import bytes_text, count_text, share_text, us_text


def percent(share: float, error: float | None = None) -> str:
    """A share, with its standard error where that is worth a digit."""
    return share_text(share, error)


def ms(microseconds: float) -> str:
    """A time that is kept in microseconds."""
    return us_text(microseconds)


def duration(microseconds: float) -> str:
    """A time that is kept in microseconds."""
    return us_text(microseconds)


def spread_ms(times_us: Array) -> str:
    """Median and middle half of many times."""
    low, middle, high = (us_text(us) for us in np.percentile(times_us, (25, 50, 75)))
    return f"median {middle}, middle half {low} to {high}"


def spill(facts: Facts, name: str) -> tuple[str, ...]:
    """What something apart adds to the steps it falls in, where that is told from noise."""
    us = facts.spill(name).us
    if not us:
        return ()
    share = percent(us / facts.total_us)
    words = "lies in the steps themselves: those it falls in take longer than the others"
    return (f"of that, {share} {words}",)


def size(count: float) -> str:
    """Bytes in binary units."""
    return bytes_text(count)


def listing(words: Sequence[object], *, most: int = 5) -> str:
    """The first few of a list, and how many there are more."""
    shown = ", ".join(str(word) for word in words[:most])
    return shown if len(words) <= most else f"{shown} and {len(words) - most} more"


def times(count: int, noun: str) -> str:
    """A count with its noun."""
    return count_text(count, noun)


def place_text(place: str) -> str:
    """A file without its folders, and a line: ``train.py:41``."""
    return place.replace("\\", "/").rpartition("/")[2]
