"""Numbers inside evidence: short, with their spread."""

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.records.run import Array
from pitstop.records.units import share_text, us_text


def spread_ms(times_us: Array) -> str:
    """Median and interquartile range of many times."""
    low, middle, high = (us_text(us) for us in np.percentile(times_us, (25, 50, 75)))
    return f"median {middle}, IQR {low} to {high}"


def spill(facts: Facts, name: str) -> tuple[str, ...]:
    """What something outside steps adds to the steps it falls in, where that exceeds noise."""
    us = facts.spill(name).us
    if not us:
        return ()
    share = share_text(us / facts.total_us)
    why = "is inside steps: those with it take longer than the others"
    return (f"of that, {share} {why}",)


def place_text(place: str) -> str:
    """A file without its folders, and a line: ``train.py:41``."""
    return place.replace("\\", "/").rpartition("/")[2]
