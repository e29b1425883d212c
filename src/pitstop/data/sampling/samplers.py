"""Which samples make up which batch: pure functions of seed and epoch.

A sampler knows the order of a whole epoch before the first sample is read. Where a run stands is
then two numbers, the epoch and the batches consumed in it, and going on from there reads nothing
of what came before.

Here are the order that shuffles everything, and what all orders share. grouped.py keeps the
samples of a sequence close together; pk_sampler.py makes batches of people.
"""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pitstop.errors import DataError

# Keeps this stream apart from others that are drawn from the same seed and epoch.
_SHUFFLE_STREAM: Final = 0x5348_5546


class Batches(Protocol):
    """An order of batches that can be continued anywhere, as the loader needs it."""

    epoch: int
    consumed: int
    """Batches of this epoch the trainer has taken; what was only prefetched does not count."""

    def __len__(self) -> int:
        """Count the batches of a whole epoch on this rank."""
        ...

    def rest(self) -> Iterator[list[int]]:
        """Give the indices of every batch not yet consumed, without consuming any."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; the present one stays where it is."""
        ...

    def rewind(self) -> None:
        """Go back to the start of the present epoch."""
        ...

    def state_dict(self) -> dict[str, int | bool | str]:
        """Describe the order and the place in it."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a place that `state_dict` described."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """How the samples of an epoch are dealt to one rank."""

    batch_size: int
    seed: int
    rank: int
    world_size: int
    drop_last: bool


@runtime_checkable
class OrdersBatches(Protocol):
    """A task with an order of its own for training; others are shuffled."""

    def train_batches(self, samples: Any, deal: Deal) -> Batches:
        """Give the order of training batches over `samples`, its own training data.

        Raises:
            DataError: Where no rank would ever get a batch.
        """
        ...


def train_order(task: object, samples: Sized, deal: Deal) -> Batches:
    """Give a task's own order of training batches, or a shuffled one.

    Raises:
        DataError: Where no rank would ever get a batch.
    """
    if isinstance(task, OrdersBatches):
        return task.train_batches(samples, deal)
    return ShuffledBatches(len(samples), **asdict(deal))


def raw_bits(*entropy: int) -> np.random.PCG64:
    """Give a stream of random bits that is the same in every version of numpy.

    Numpy promises that of raw bits only, not of its own permutations and whole numbers, and a run
    may be resumed under a newer one.
    """
    return np.random.PCG64(np.random.SeedSequence(entropy))


def shuffled(count: int, bits: np.random.PCG64) -> npt.NDArray[np.int64]:
    """Give the numbers below `count` in a random order."""
    return np.argsort(bits.random_raw(count), kind="stable")


def saved_place(
    state: Mapping[str, object], identity: Mapping[str, object], num_batches: int
) -> tuple[int, int]:
    """Read the epoch and the batches consumed in it out of a saved state.

    Args:
        state: What `Batches.state_dict` gave.
        identity: What decides the present order; the state must say the same.
        num_batches: Batches of an epoch.

    Raises:
        DataError: Where the place is in another order, or there is no such place.
    """
    differences = [
        f"{name} was {state.get(name, 'not recorded')} and is {own}"
        for name, own in identity.items()
        if state.get(name) != own
    ]
    if differences:
        raise DataError(
            f"cannot continue in the middle of these data: {', '.join(differences)}; resume "
            "with the settings of the saved run, or start a new run from its weights"
        )
    epoch, consumed = state.get("epoch"), state.get("consumed")
    if not (isinstance(epoch, int) and isinstance(consumed, int)):
        raise DataError("cannot continue in these data: the saved place has no epoch or count")
    if epoch < 0 or not 0 <= consumed <= num_batches:
        raise DataError(
            f"cannot continue in these data: there is no batch {consumed} in epoch {epoch}, "
            f"which has {num_batches} batches"
        )
    return epoch, consumed


@dataclass(slots=True)
class ShuffledBatches:
    """Every sample once an epoch, in an order of its own for each epoch, dealt to all ranks.

    The epoch is cut into rounds: in each, every rank takes one batch, and the ranks' batches side
    by side are one window of the epoch's order. So what is learned from in a round does not
    depend on how many ranks share it, and no sample is taken twice.

    The samples left over after the last full round are dropped on all ranks (`drop_last`), or
    dealt as evenly as they go: batches of that round differ by at most one sample. Where fewer are
    left than there are ranks, `idle_ranks` get no batch in it, and their length is one less than
    `rounds`. `rounds`, `samples_in_round` and `idle_ranks` say the same on every rank.

    Iterating consumes: it goes on from `consumed` to the end of the epoch and counts what it hands
    out. A reader that runs ahead of the trainer takes `rest` instead and sets `consumed` itself.

    Raises:
        DataError: Where no rank would ever get a batch.
    """

    num_samples: int
    batch_size: int
    _: KW_ONLY
    seed: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool
    shuffle: bool = True
    epoch: int = field(default=0, init=False)
    consumed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        assert self.batch_size > 0
        assert 0 <= self.rank < self.world_size
        if self.num_samples < 1:
            raise DataError("the dataset is empty: there is nothing to make batches of")
        if self.rounds == 0:
            raise DataError(
                f"{self.num_samples} samples do not fill one batch of {self.batch_size} on each of "
                f"{self.world_size} ranks; lower the batch size, or set loader.drop_last=false"
            )

    def __len__(self) -> int:
        return self.rounds - (self.rank in self.idle_ranks)

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self.rest():
            self.consumed += 1
            yield indices

    @property
    def rounds(self) -> int:
        """Number of rounds in an epoch, the same on every rank."""
        whole, left = divmod(self.num_samples, self.batch_size * self.world_size)
        return whole + (left > 0 and not self.drop_last)

    @property
    def idle_ranks(self) -> range:
        """Ranks that get no batch in the last round."""
        left = self.num_samples % (self.batch_size * self.world_size)
        first_idle = left if left and not self.drop_last else self.world_size
        return range(min(first_idle, self.world_size), self.world_size)

    def samples_in_round(self, round_index: int) -> int:
        """Count the samples of one round over all ranks."""
        assert 0 <= round_index < self.rounds
        whole = self.batch_size * self.world_size
        return min(whole, self.num_samples - round_index * whole)

    def rest(self) -> Iterator[list[int]]:
        """Give the indices of every batch not yet consumed, without consuming any."""
        order = self._order()
        return (self._batch(order, index) for index in range(self.consumed, len(self)))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; the present one stays where it is.

        So a loop that names the epoch it is in does not lose its place after a resume.
        """
        assert epoch >= 0
        if epoch != self.epoch:
            self.epoch, self.consumed = epoch, 0

    def rewind(self) -> None:
        """Go back to the start of the present epoch."""
        self.consumed = 0

    def state_dict(self) -> dict[str, int | bool | str]:
        """Describe the order and the place in it."""
        return {**self._identity(), "epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a place that `state_dict` described.

        Raises:
            DataError: Where the place is in another order than this one.
        """
        self.epoch, self.consumed = saved_place(state, self._identity(), len(self))

    def _identity(self) -> dict[str, int | bool | str]:
        return {
            "kind": "shuffled",
            "num_samples": self.num_samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "rank": self.rank,
            "world_size": self.world_size,
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
        }

    def _order(self) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(self.num_samples)
        return shuffled(self.num_samples, raw_bits(self.seed, self.epoch, _SHUFFLE_STREAM))

    def _batch(self, order: npt.NDArray[np.int64], round_index: int) -> list[int]:
        share, extra = divmod(self.samples_in_round(round_index), self.world_size)
        first = round_index * self.batch_size * self.world_size
        start = first + self.rank * share + min(self.rank, extra)
        return order[start : start + share + (self.rank < extra)].tolist()
