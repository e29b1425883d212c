"""The rows of a log while they are worked out."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pitstop.logs.builder import TRAIN
from pitstop.records.logs.windows import Array

Flags = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Rows:
    """The rows while they are worked out, column by column."""

    raw: dict[str, Array]
    code: Flags
    flags: Flags
    first: Array
    step_s: Array
    data_s: Array
    keep: Mask
    doubtful: Mask

    @property
    def is_plain(self) -> Mask:
        """Training rows whose time holds nothing else, as far as the log tells."""
        return (self.code == TRAIN) & (self.flags == 0) & ~self.doubtful & self.keep

    def steady_s(self) -> float:
        """Median time of a step over the plain rows; NaN when there are none."""
        times = self.step_s[self.is_plain]
        times = times[np.isfinite(times)]
        return float(np.median(times)) if len(times) else math.nan
