"""What one measured peak says about the parts of a planned one: samples, and libraries."""

import math
from dataclasses import dataclass
from typing import Final

from pitstop.plan.memory import WORKSPACE_BYTES

_MIB: Final = 2**20
_WORKSPACE_ERROR_BYTES: Final = 64 * _MIB
"""How far the allowance for libraries is usually off: 28 runs on an H200 held 28 to 212 MiB more
than their dry runs (docs/accuracy.md)."""
_LESS_BYTES, _MORE_BYTES = 112 * _MIB, 56 * _MIB
"""How much less and more libraries were seen to take in another run of the same network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """How a plan is corrected."""

    factor: float = 1.0
    """What belongs to samples, measured over planned."""
    workspace_bytes: float = WORKSPACE_BYTES
    """What libraries take; no batch changes that."""
    doubt_bytes: float = 2.0 * _WORKSPACE_ERROR_BYTES
    """Two standard errors of that."""

    def peak_bytes(self, planned_bytes: float, *, samples_bytes: float) -> float:
        """Correct a planned peak.

        Args:
            planned_bytes: The allowance for libraries included.
            samples_bytes: What of it belongs to samples; all the rest is known exactly.
        """
        libraries = self.workspace_bytes - WORKSPACE_BYTES
        return planned_bytes + (self.factor - 1) * samples_bytes + libraries

    def interval(self, peak_bytes: float, low: float, high: float) -> tuple[float, float]:
        """Bound a corrected peak: by shares of it, or by what libraries may do if that is more."""
        less = min(self.workspace_bytes, _LESS_BYTES + self.doubt_bytes)
        more = _MORE_BYTES + self.doubt_bytes
        return min(peak_bytes * low, peak_bytes - less), max(peak_bytes * high, peak_bytes + more)


def correction_of(
    measured_bytes: float, *, planned_bytes: float, samples_bytes: float, samples_error: float
) -> Correction:
    """Divide what a peak was off by between samples and libraries.

    One peak cannot tell the two apart. Each takes as much as it is usually off by, squared: of a
    tiny network the allowance is most of the plan and takes nearly all, of a large one nearly
    nothing. Planned again, the same settings get what was measured.

    Args:
        measured_bytes: Peak of a run.
        planned_bytes: Of the same settings, the allowance for libraries included.
        samples_bytes: What of it belongs to samples.
        samples_error: Share by which that is usually off.
    """
    if samples_bytes <= 0:
        return Correction()
    more = measured_bytes - planned_bytes
    of_samples = (samples_error * samples_bytes) ** 2
    of_libraries = _WORKSPACE_ERROR_BYTES**2
    share = of_libraries / (of_samples + of_libraries)
    libraries = WORKSPACE_BYTES + more * share
    # Beyond what libraries can take, it is the samples.
    libraries = min(max(0.0, libraries), 2.0 * WORKSPACE_BYTES)
    of_run = samples_bytes + more - (libraries - WORKSPACE_BYTES)
    return Correction(
        factor=of_run / samples_bytes,
        workspace_bytes=libraries,
        # A run tells what libraries take as far as it does not leave that to the samples.
        doubt_bytes=2.0 * _WORKSPACE_ERROR_BYTES * math.sqrt(1 - share),
    )
