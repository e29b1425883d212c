"""Printed numbers to floats, quickly: logs print the same few thousand texts again and again."""

from collections.abc import Sequence
from math import isinf, nan

import numpy as np
import numpy.typing as npt

_MOST = 1 << 14

COUNT = rb"(\d{1,15}+)"
"""Pattern of a count that `float(int(text))` converts without loss: faster than `convert`."""
FINITE = rb"(-?\d++\.?+\d*+(?:[eE][-+]?+\d++)?)"
"""Pattern of a number that `float` converts as `convert` does, unless that gives infinity.

Its exponent is not possessive: Python up to 3.11.4 loses matches of a group that is.
"""


def convert(text: bytes) -> float:
    """Convert a printed number that is new with nearly every record: a loss, a count.

    Raises:
        ValueError: It is no number.
    """
    value = float(text)
    if b"_" in text:  # Python reads 1_0 as ten; no log prints that
        raise ValueError(f"could not convert {text!r}")
    if isinf(value) and b"n" not in text.lower():
        return nan  # more digits than a float holds: no log means that number
    return value


def floats(texts: Sequence[bytes]) -> npt.NDArray[np.float64]:
    """Convert texts that all match `FINITE`; NaN where one is larger than a float can be."""
    values = np.array(list(map(float, texts)))
    values[np.isinf(values)] = nan
    return values


class _Numbers(dict[bytes, float]):
    """Remembers what it converted; forgets everything when that becomes too much."""

    def __missing__(self, text: bytes) -> float:
        value = convert(text)
        if len(self) >= _MOST:
            self.clear()
        self[text] = value
        return value


number = _Numbers().__getitem__
"""Convert a printed number; ValueError when it is none."""
