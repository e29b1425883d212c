"""Samples of one sequence close together, sequences in a random order.

Neighbouring samples of a video share most of their frames. Read soon after each other, the second
finds them in memory; shuffled over the epoch it does not. Yet a batch of neighbours teaches little
more than one of them. So the epoch walks through many sequences side by side: a batch has one
sample of each, and the next batch has the neighbour of each.

    sequences in a random order    A A A A B B | B C C C C D | D D D E E E
    three lanes                    batch 0: A B D    batch 1: A C D    batch 2: A C D    ...
"""

import zlib
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.data.sampling.samplers import ShuffledBatches, raw_bits, shuffled
from pitstop.errors import DataError

_SEQUENCE_STREAM: Final = 0x5345_5155


@dataclass(slots=True)
class SequenceBatches(ShuffledBatches):
    """Every sample once an epoch; those of a sequence in their own order, batch after batch.

    Ranks, rounds, what is left over, and going on from any place are as in `ShuffledBatches`. The
    epoch is all sequences one after the other in a random order, cut into as many equal segments
    as there are `lanes`. A round takes the next sample of every lane, so a rank stays with its own
    lanes, and a sequence is torn only where a segment ends.

    Frames that are read again are read again within the next few batches: what must be at hand
    for that is one sample a lane.

    Args:
        sequences: Number of the sequence of each sample.
        lanes: Sequences walked through side by side; None for one a sample of a round. With 1, a
            batch is a run of neighbours.

    Raises:
        DataError: Where no rank would ever get a batch.
    """

    _: KW_ONLY
    sequences: InitVar[npt.ArrayLike]
    lanes: int | None = None
    _sequences: npt.NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self, sequences: npt.ArrayLike) -> None:
        """Take the sequences in; everything else is as in the parent."""
        # By name: a class with slots is made anew, and `super` would look for the first one.
        ShuffledBatches.__post_init__(self)
        given = np.asarray(sequences)
        if given.shape != (self.num_samples,):
            raise DataError(
                f"there are {self.num_samples} samples, but sequences are given for {given.shape}"
            )
        if self.lanes is not None and self.lanes < 1:
            raise DataError(f"samples cannot be read from {self.lanes} sequences at a time")
        self._sequences = np.unique(given, return_inverse=True)[1].astype(np.int64)

    def _identity(self, world_size: int) -> dict[str, int | bool | str]:
        return {
            **ShuffledBatches._identity(self, world_size),
            "kind": "sequence",
            "lanes": self._lanes(world_size),
            "sequences": f"{zlib.crc32(self._sequences.astype('<i8').tobytes()):08x}",
        }

    def _lanes(self, world_size: int) -> int:
        wanted = self.batch_size * world_size if self.lanes is None else self.lanes
        return min(wanted, self.num_samples)

    def _order(self) -> npt.NDArray[np.int64]:
        one_by_one = self._one_by_one()
        lanes = self._lanes(self._dealing.begun_by)
        whole = self.num_samples // lanes * lanes
        side_by_side = one_by_one[:whole].reshape(lanes, -1).T.ravel()
        return np.concatenate((side_by_side, one_by_one[whole:]))

    def _one_by_one(self) -> npt.NDArray[np.int64]:
        """Put whole sequences one after the other."""
        if not self.shuffle:
            return np.argsort(self._sequences, kind="stable")
        count = int(self._sequences.max()) + 1
        place = np.empty(count, np.int64)
        place[shuffled(count, raw_bits(self.seed, self.epoch, _SEQUENCE_STREAM))] = range(count)
        return np.argsort(place[self._sequences], kind="stable")
