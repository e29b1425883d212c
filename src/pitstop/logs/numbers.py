"""Printed numbers to floats, quickly: logs print the same few thousand texts again and again."""

from math import isinf, nan

_MOST = 1 << 14


class _Numbers(dict[bytes, float]):
    """Remembers what it converted; forgets everything when that becomes too much."""

    def __missing__(self, text: bytes) -> float:
        if b"_" in text:  # Python reads 1_0 as ten; no log prints that
            raise ValueError(f"could not convert {text!r}")
        value = float(text)
        if isinf(value) and b"n" not in text.lower():
            value = nan  # more digits than a float holds: no log means that number
        if len(self) >= _MOST:
            self.clear()
        self[text] = value
        return value


number = _Numbers().__getitem__
"""Convert a printed number; ValueError when it is none."""
