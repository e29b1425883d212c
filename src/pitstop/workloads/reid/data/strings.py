"""Many short strings as two arrays: cheap to hold, to save, and to send to workers."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_LITTLE_EFFORT: Final = 1  # names of files shrink fivefold at once; more effort gains a tenth


class Strings:
    """A list of strings that nobody changes; pickles compressed.

    Args:
        data: All of them, as UTF-8, one behind the other.
        first: Where each begins, and the end of the last.
    """

    __slots__ = ("data", "first")

    def __init__(self, data: bytes, first: npt.NDArray[Any]) -> None:
        self.data: Final = data
        self.first: Final[Ints] = first.astype(np.int64)

    @classmethod
    def of(cls, values: Iterable[str]) -> "Strings":
        """Take strings in."""
        encoded = [value.encode("utf-8", "surrogateescape") for value in values]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return cls(b"".join(encoded), np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))))

    def __len__(self) -> int:
        return len(self.first) - 1

    def __getitem__(self, place: int) -> str:
        if not 0 <= place < len(self):
            raise IndexError(place)
        part = self.data[self.first[place] : self.first[place + 1]]
        return part.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))

    def take(self, places: npt.NDArray[Any]) -> "Strings":
        """Give some of them, in the order asked for."""
        begins, ends = self.first[:-1][places], self.first[1:][places]
        parts = [self.data[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(ends - begins)))
        return Strings(b"".join(parts), first)

    def __getstate__(self) -> tuple[bytes, bytes]:
        lengths = np.diff(self.first).astype("<i4").tobytes()
        return zlib.compress(self.data, _LITTLE_EFFORT), zlib.compress(lengths, _LITTLE_EFFORT)

    def __setstate__(self, state: tuple[bytes, bytes]) -> None:
        lengths = np.frombuffer(zlib.decompress(state[1]), "<i4").astype(np.int64)
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        self.__init__(zlib.decompress(state[0]), first)
