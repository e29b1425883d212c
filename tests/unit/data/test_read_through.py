"""What is kept is read once, whole, whatever part of it is wanted."""

import numpy as np

from pitstop.data.cache.shared import SharedCache
from pitstop.data.read_through import read_through

MIB = 1 << 20


def test_an_item_is_read_once_and_its_parts_come_from_the_whole() -> None:
    whole = np.arange(12).reshape(3, 4)
    reads: list[int] = []

    def read() -> np.ndarray:
        reads.append(1)
        return whole

    part = (slice(1, 3), slice(0, 2))
    with SharedCache(MIB) as cache:
        first, again = (read_through(cache, "a", read, window=part) for _ in range(2))
        np.testing.assert_array_equal(first, whole[part])
        np.testing.assert_array_equal(again, whole[part])
        np.testing.assert_array_equal(read_through(cache, "a", read), whole)
    assert len(reads) == 1


def test_what_does_not_fit_is_read_each_time() -> None:
    reads: list[int] = []

    def read() -> np.ndarray:
        reads.append(1)
        return np.zeros(2 * MIB, np.uint8)

    with SharedCache(MIB) as cache:
        for _ in range(2):
            assert read_through(cache, "a", read, window=slice(0, 3)).shape == (3,)
    assert len(reads) == 2
