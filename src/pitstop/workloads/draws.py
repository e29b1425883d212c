"""Random numbers that a seed means everywhere: for generated data and for augmentation."""

import math

import numpy as np
import numpy.typing as npt


class Draws:
    """Numbers made of raw bits: numpy promises those, and only those, in every version.

    Args:
        entropy: A seed, and whatever else the numbers should depend on.
    """

    def __init__(self, *entropy: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(entropy))

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Draw from a range; of the 64 bits a float holds the 53 highest exactly."""
        return low + (high - low) * int(self._bits.random_raw() >> 11) * 2.0**-53

    def below(self, count: int) -> int:
        """Draw a number from 0 on, less than `count`."""
        return int(self._bits.random_raw() % count)

    def chance(self, share: float) -> bool:
        """Say yes this often."""
        return self.uniform() < share

    def bytes(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Draw levels from 0 to 255, alike on hosts of either byte order."""
        count = math.prod(shape)
        raw = self._bits.random_raw(-(-count // 8)).astype("<u8")
        return raw.view(np.uint8)[:count].reshape(shape)
