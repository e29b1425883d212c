"""Memory and cache as a training prints them between its records.

    [Step 100] Memory - Process: 15678.9MB (6.1%), System: 125.4/256.0GB (49.0%), GPU: 8192.0MB
    allocated, 9216.0MB reserved
    Hit Rate: 82.45% (8245 hits / 1755 misses)

The first is one line. They stand beside lines of any format, so they are read beside any reader.
"""

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from pitstop.records.run import ScalarSeries

HOST: Final = "host memory used"
HOST_TOTAL: Final = "host memory in all"
_MIB, _GIB = float(1 << 20), float(1 << 30)
_LINE = re.compile(
    rb"\[(?:Step (\d{1,12})|[^\]]{0,80})\] Memory - Process: ([\d.]{1,16})MB \([\d.]{1,8}%\), "
    rb"System: ([\d.]{1,12})/([\d.]{1,12})GB"
    rb"(?: \([\d.]{1,8}%\), GPU: ([\d.]{1,16})MB allocated, ([\d.]{1,16})MB reserved)?"
)
_HITS = re.compile(rb"Hit Rate: ([\d.]{1,8})% \((\d{1,15}) hits / (\d{1,15}) misses\)")
_NAMES: Final = (
    ("process memory", _MIB),
    (HOST, _GIB),
    (HOST_TOTAL, _GIB),
    ("device memory allocated", _MIB),
    ("device memory reserved", _MIB),
)
MARK: Final = re.compile(rb"\] Memory - Process: |Hit Rate: [\d.]+% \(")


class MemoryLines:
    """Gathers the lines of one file."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, list[float]]] = []
        self._hits: re.Match[bytes] | None = None

    def feed(self, lines: Iterable[bytes]) -> None:
        """Take lines in order; those without a step are of the start."""
        for line in lines:
            if b"Memory - Process" in line and (found := _LINE.search(line)) is not None:
                values = [float(text) if text else np.nan for text in found.groups()[1:]]
                self._rows.append((float(found[1] or 0), values))
            elif b"Hit Rate" in line:
                self._hits = _HITS.search(line) or self._hits

    def series(self) -> dict[str, ScalarSeries]:
        """Give bytes over steps, by what they are of."""
        if not self._rows:
            return {}
        steps = np.array([step for step, _ in self._rows])
        table = np.array([values for _, values in self._rows])
        found = {}
        for (name, unit), column in zip(_NAMES, table.T, strict=True):
            known = np.isfinite(column)
            if known.any():
                found[name] = ScalarSeries(step=steps[known], value=column[known] * unit)
        return found

    def notes(self) -> list[str]:
        """Quote the last state, and the cache's hits where they are the printed rate."""
        found = []
        if self._rows:
            step, (process, host, total, allocated, reserved) = self._rows[-1]
            device = f", device {allocated:g} MiB allocated, {reserved:g} MiB reserved"
            found.append(
                f"memory as printed at step {step:.0f}: process {process:g} MiB, host {host:g} of "
                f"{total:g} GiB ({host / total:.1%}){device if np.isfinite(allocated) else ''}"
            )
        if self._hits is not None:
            rate, hits, misses = (float(text) for text in self._hits.groups())
            if hits + misses > 0 and abs(100 * hits / (hits + misses) - rate) < 1:
                found.append(f"cache as printed: {rate:g}% hits ({hits:.0f}, {misses:.0f} misses)")
        return found
