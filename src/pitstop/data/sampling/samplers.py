"""Which samples make up which batch: pure functions of seed and epoch.

A sampler knows the order of a whole epoch before the first sample is read. Where a run stands is
then two numbers, the epoch and the batches consumed in it, and going on from there reads nothing
of what came before.

Here are the order that shuffles everything, and what all orders share. grouped.py keeps the
samples of a sequence close together; pk_sampler.py makes batches of people.
"""

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pitstop.errors import DataError

if TYPE_CHECKING:
    from pitstop.config.sections import RunConfig

# Keeps this stream apart from others that are drawn from the same seed and epoch.
_SHUFFLE_STREAM: Final = 0x5348_5546

_MOST_RANKS: Final = 1 << 16
_MOST_BATCHES: Final = 1 << 53


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

    @classmethod
    def of(cls, config: "RunConfig", *, rank: int = 0, world_size: int = 1) -> "Deal":
        """Deal what a run trains on; to one rank alone unless said."""
        return cls(
            batch_size=config.train.batch_size,
            seed=config.run.seed,
            rank=rank,
            world_size=world_size,
            drop_last=config.loader.drop_last,
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """To whom the present epoch is dealt, and from which place of its order on."""

    world_size: int
    begun_by: int
    """Ranks that the epoch began with: its order is theirs to the end."""
    skipped: int = 0
    """Batches of that order that were taken before the number of ranks changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlace:
    """A place in the data that a run was saved at, for the ranks that there are now."""

    epoch: int
    consumed: int
    dealing: Dealing


def saved_place(
    state: Mapping[str, object],
    *,
    identity: Callable[[int], Mapping[str, object]],
    rounds: Callable[[Dealing], int],
    world_size: int,
) -> SavedPlace:
    """Read a place out of a saved state.

    Where another number of ranks saved it, they had taken as many batches of the epoch's order as
    rounds and ranks come to; the rest of that order is dealt to the present ranks.

    Args:
        state: What `Batches.state_dict` gave.
        identity: What decides the order, by the number of ranks; the state must say the same.
        rounds: Batches that a rank gets of an epoch dealt in some way.
        world_size: Ranks that there are now.

    Raises:
        DataError: Where the place is in another order, or there is no such place.
    """
    saved_by = _number(state, "world_size", world_size, least=1)
    differences = [
        f"{name} was {state.get(name, 'not recorded')} and is {own}"
        for name, own in identity(saved_by).items()
        if state.get(name) != own and (name != "rank" or saved_by == world_size)
    ]
    if differences:
        raise DataError(
            f"cannot continue in the middle of these data: {', '.join(differences)}; resume "
            "with the settings of the saved run, or start a new run from its weights"
        )
    epoch, consumed = _number(state, "epoch", None), _number(state, "consumed", None)
    dealing = Dealing(
        world_size=saved_by,
        begun_by=_number(state, "begun_by", saved_by, least=1),
        skipped=_number(state, "skipped", 0),
    )
    if consumed > rounds(dealing):
        raise DataError(
            f"cannot continue in these data: there is no batch {consumed} in epoch {epoch}, "
            f"which has {rounds(dealing)} batches"
        )
    if saved_by == world_size:
        return SavedPlace(epoch=epoch, consumed=consumed, dealing=dealing)
    skipped = dealing.skipped + consumed * saved_by
    begun_by = dealing.begun_by if skipped else world_size
    dealt = Dealing(world_size=world_size, begun_by=begun_by, skipped=skipped)
    return SavedPlace(epoch=epoch, consumed=0, dealing=dealt)


def begun_before(dealing: Dealing) -> dict[str, int]:
    """Say of a place what is only there where other ranks began its epoch."""
    if not dealing.skipped:
        return {}
    return {"begun_by": dealing.begun_by, "skipped": dealing.skipped}


def _number(state: Mapping[str, object], name: str, default: int | None, *, least: int = 0) -> int:
    value = state.get(name, default)
    # A file may claim anything: as many ranks as there is no memory for, too.
    most = _MOST_RANKS if least else _MOST_BATCHES
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DataError(f"cannot continue in these data: the saved place has no {name} that can be")
    return value


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

    A place that another number of ranks saved is continued, too: what is left of the epoch's order
    is cut into rounds of the present ranks. No sample of the epoch comes twice; with `drop_last`
    those that fill no whole round at its end come not at all, as ever.

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
    _dealing: Dealing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert self.batch_size > 0
        assert 0 <= self.rank < self.world_size
        self._dealing = self._whole_epoch()
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
        """Number of rounds in the present epoch, the same on every rank."""
        return self._rounds(self._dealing)

    @property
    def idle_ranks(self) -> range:
        """Ranks that get no batch in the last round."""
        left = self._dealt(self._dealing) % (self.batch_size * self.world_size)
        first_idle = left if left and not self.drop_last else self.world_size
        return range(min(first_idle, self.world_size), self.world_size)

    def samples_in_round(self, round_index: int) -> int:
        """Count the samples of one round over all ranks."""
        assert 0 <= round_index < self.rounds
        whole = self.batch_size * self.world_size
        return min(whole, self._dealt(self._dealing) - round_index * whole)

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
            self.epoch = epoch
            self.rewind()

    def rewind(self) -> None:
        """Go back to the start of the present epoch."""
        self.consumed = 0
        self._dealing = self._whole_epoch()

    def state_dict(self) -> dict[str, int | bool | str]:
        """Describe the order and the place in it."""
        place = {"epoch": self.epoch, "consumed": self.consumed, **begun_before(self._dealing)}
        return {**self._identity(self.world_size), **place}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a place that `state_dict` described.

        Raises:
            DataError: Where the place is in another order than this one.
        """
        place = saved_place(
            state, identity=self._identity, rounds=self._rounds, world_size=self.world_size
        )
        self.epoch, self.consumed, self._dealing = place.epoch, place.consumed, place.dealing

    def _whole_epoch(self) -> Dealing:
        return Dealing(world_size=self.world_size, begun_by=self.world_size)

    def _dealt(self, dealing: Dealing) -> int:
        """Count the samples of an epoch that are dealt in this way."""
        return max(0, self.num_samples - dealing.skipped * self.batch_size)

    def _rounds(self, dealing: Dealing) -> int:
        whole, left = divmod(self._dealt(dealing), self.batch_size * dealing.world_size)
        return whole + (left > 0 and not self.drop_last)

    def _identity(self, world_size: int) -> dict[str, int | bool | str]:
        return {
            "kind": "shuffled",
            "num_samples": self.num_samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "rank": self.rank,
            "world_size": world_size,
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
        }

    def _order(self) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(self.num_samples)
        return shuffled(self.num_samples, raw_bits(self.seed, self.epoch, _SHUFFLE_STREAM))

    def _batch(self, order: npt.NDArray[np.int64], round_index: int) -> list[int]:
        share, extra = divmod(self.samples_in_round(round_index), self.world_size)
        first = (self._dealing.skipped + round_index * self.world_size) * self.batch_size
        start = first + self.rank * share + min(self.rank, extra)
        return order[start : start + share + (self.rank < extra)].tolist()
