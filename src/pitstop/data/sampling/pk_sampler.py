"""Batches of P people with K records each, aware of modalities; built from metadata alone.

    sampler = PKSampler(person_ids, modalities, identities_per_batch=8, records_per_identity=4)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
    for epoch in range(60):
        sampler.set_epoch(epoch)
        for batch in loader: ...

Needs numpy and nothing else.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from pitstop.data.sampling.pk_metadata import Describe, names_modalities, read_metadata
from pitstop.data.sampling.pk_plan import (
    BOTH,
    KINDS,
    OTHER_ONLY,
    RGB_ONLY,
    Ints,
    Queues,
    Shape,
    plan_epoch,
)
from pitstop.data.sampling.pk_report import PKReport, report_on
from pitstop.data.sampling.samplers import Dealing, begun_before, raw_bits, saved_place
from pitstop.errors import DataError

EpochUnit = Literal["identities", "records", "steps"]

_PK_STREAM: Final = 0x504B_4944
_RGB_BIT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What decides the order besides the dataset and the seed."""

    identities_per_batch: int
    records_per_identity: int
    epoch_unit: EpochUnit
    epoch_steps: int | None
    ensure_rgb: bool
    require_pair: bool
    world_size: int


class PKSampler:
    """Batches of different people, with the same number of records of each.

    What holds for every batch:

    - It has exactly P people and K records of each, side by side.
    - A person that owns an RGB record has one in it (`ensure_rgb`), and a person with a pair (an
      RGB record and one of another modality) has, for K of 2 or more, another modality in it too,
      in another record unless the person owns one only.
    - A record is in it twice only if its person owns fewer than K.

    Batches are a function of seed and epoch: the same in every run, for any number of workers.
    Ranks take one batch each of every group of `world_size`; where there are P people for every
    rank, nobody is in two batches of a group. `len` is the number of batches an epoch has.

    A place that another number of ranks saved is continued, too: the batches that are left of its
    epoch are dealt to the present ranks, each once; those that fill no whole group at its end are
    left out. Until the next epoch a person may be in two batches of a group.

    Iterating goes through the epoch from its beginning, or once from where `load_state_dict` put
    it. After an epoch that was iterated to its end, the next iteration is the next epoch.

    Args:
        person_ids: Who each record shows: whole numbers or words.
        modalities: What each record has, as bits; bit 0 is RGB.
        identities_per_batch: P.
        records_per_identity: K.
        seed: Decides everything that is random.
        epoch_unit: What an epoch passes over: as many records as there are (`records`), every
            person once (`identities`), or `epoch_steps` batches on each rank (`steps`).
        epoch_steps: Batches of an epoch on each rank; for the unit `steps` only.
        ensure_rgb: Give every person that has RGB records at least one in each of its turns.
        require_pair: Take only people with a pair.
        rank: Number of this rank.
        world_size: Number of ranks.

    Raises:
        DataError: Where there are too few people, or the arguments do not fit together.
    """

    def __init__(  # noqa: PLR0913 - one argument for each setting
        self,
        person_ids: npt.ArrayLike,
        modalities: npt.ArrayLike,
        *,
        identities_per_batch: int = 8,
        records_per_identity: int = 4,
        seed: int = 0,
        epoch_unit: EpochUnit = "records",
        epoch_steps: int | None = None,
        ensure_rgb: bool = True,
        require_pair: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        settings = _Settings(
            identities_per_batch=identities_per_batch,
            records_per_identity=records_per_identity,
            epoch_unit=epoch_unit,
            epoch_steps=epoch_steps,
            ensure_rgb=ensure_rgb,
            require_pair=require_pair,
            world_size=world_size,
        )
        _check_settings(settings, seed=seed, rank=rank)
        people, masks = _checked_records(person_ids, modalities)
        self.rank = rank
        self.seed: Final = seed
        self.epoch = 0
        self.consumed = 0
        """Batches of this epoch that were handed out."""
        self._settings = settings
        self._masks = masks
        self._queues = _queues(people, masks, only_pairs=require_pair)
        self._people_in_all = int(people.max()) + 1
        _check_enough(self._queues, self._people_in_all, settings)
        self._fingerprint = f"{zlib.crc32(np.stack((people, masks)).astype('<i8').tobytes()):08x}"
        self._planned: tuple[int, int, Ints] | None = None
        self._dealing = self._whole_epoch()
        self._begin_at = 0
        self._ran_out = False

    def __repr__(self) -> str:
        p, k = self._settings.identities_per_batch, self._settings.records_per_identity
        ranks = f", rank {self.rank} of {self._settings.world_size}"
        return f"PKSampler(P={p}, K={k}, {len(self):,} batches an epoch{ranks})"

    @classmethod
    def from_dataset(  # noqa: PLR0913 - those of the sampler it stands in for
        cls,
        dataset: Any,
        batch_size: int,
        num_instances: int = 4,
        *,
        describe: Describe | None = None,
        ensure_rgb: bool = True,
        prefer_complete: bool | None = None,
        seed: int = 42,
        epoch_unit: EpochUnit = "records",
        rank: int = 0,
        world_size: int = 1,
    ) -> "PKSampler":
        """Make a sampler of what a dataset says about its records; no sample is read.

        The dataset has `person_ids` and `modalities`, or a list of records; `pk_metadata` says
        which lists and records are understood. A `Subset` of such a dataset will do as well, and
        so will the list itself or the path of a CSV file with the records in the dataset's order.

        Args:
            dataset: What the loader reads from, or its records.
            batch_size: Records of a batch, P times K.
            num_instances: K.
            describe: Where the dataset does not say it: from a sample's index to its person and
                its modalities (a mask, a name or several).
            ensure_rgb: As in the class.
            prefer_complete: Take only people with a pair; by default wherever records name their
                modalities, which a tuple does not.
            seed: As in the class.
            epoch_unit: As in the class; `identities` is one pass over people, which draws only K
                records of each.
            rank: As in the class.
            world_size: As in the class.

        Raises:
            DataError: Where the dataset does not say it, or contradicts itself, or as in the
                class.
        """
        if num_instances < 1 or batch_size < 1 or batch_size % num_instances:
            raise DataError(
                f"a batch of {batch_size} records cannot be made of people with {num_instances} "
                "records each; batch_size must be a multiple of num_instances"
            )
        person_ids, modalities = read_metadata(dataset, describe)
        return cls(
            person_ids,
            modalities,
            identities_per_batch=batch_size // num_instances,
            records_per_identity=num_instances,
            seed=seed,
            epoch_unit=epoch_unit,
            ensure_rgb=ensure_rgb,
            require_pair=(
                names_modalities(dataset, describe) if prefer_complete is None else prefer_complete
            ),
            rank=rank,
            world_size=world_size,
        )

    def __len__(self) -> int:
        return self._rounds(self._dealing)

    def __iter__(self) -> Iterator[list[int]]:
        if self._ran_out:
            self.set_epoch(self.epoch + 1)
        self.consumed = self._begin_at
        for indices in self.rest():
            self.consumed += 1
            yield indices
        self._ran_out = True

    def rest(self) -> Iterator[list[int]]:
        """Give the indices of every batch not yet consumed, without consuming any."""
        plan = self._plan()
        left = plan.reshape(-1, plan.shape[-1])[self._dealing.skipped :]
        own = left[self.rank :: self._settings.world_size]
        return (own[index].tolist() for index in range(self.consumed, len(self)))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch; one that is under way stays where it is.

        Raises:
            DataError: Where the epoch is negative.
        """
        if epoch < 0:
            raise DataError(f"there is no epoch {epoch}; the first is 0")
        if epoch != self.epoch or self._ran_out:
            self.epoch = epoch
            self.rewind()

    def rewind(self) -> None:
        """Go back to the start of the present epoch."""
        self.consumed = self._begin_at = 0
        self._ran_out = False
        self._dealing = self._whole_epoch()

    def state_dict(self, *, consumed: int | None = None) -> dict[str, int | bool | str]:
        """Describe the order and the place in it; the same on every rank.

        Args:
            consumed: Batches of this epoch that were trained on, where a loader with workers
                takes batches ahead of time: what is only prefetched must not count.
        """
        place = self.consumed if consumed is None else consumed
        before = begun_before(self._dealing)
        world_size = self._settings.world_size
        return {**self._identity(world_size), "epoch": self.epoch, "consumed": place, **before}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a place that `state_dict` described; nothing before it is drawn again.

        Raises:
            DataError: Where the place is in another order than this one.
        """
        place = saved_place(
            state,
            identity=self._identity,
            rounds=self._rounds,
            world_size=self._settings.world_size,
        )
        self.epoch, self.consumed, self._dealing = place.epoch, place.consumed, place.dealing
        self._begin_at = self.consumed
        self._ran_out = False

    def report(self) -> PKReport:
        """Count what the present epoch does with people and records, over all ranks."""
        return report_on(
            self._plan(),
            queues=self._queues,
            shape=self._shape_for(self._dealing.begun_by),
            masks=self._masks,
            people_in_all=self._people_in_all,
            epoch_unit=self._settings.epoch_unit,
        )

    def _plan(self) -> Ints:
        wanted = (self.epoch, self._dealing.begun_by)
        if self._planned is None or self._planned[:2] != wanted:
            bits = raw_bits(self.seed, self.epoch, _PK_STREAM)
            shape = self._shape_for(self._dealing.begun_by)
            self._planned = (*wanted, plan_epoch(self._queues, shape, bits))
        return self._planned[2]

    def _whole_epoch(self) -> Dealing:
        world_size = self._settings.world_size
        return Dealing(world_size=world_size, begun_by=world_size)

    def _shape_for(self, world_size: int) -> Shape:
        return _shape(self._queues, replace(self._settings, world_size=world_size))

    def _rounds(self, dealing: Dealing) -> int:
        batches = self._shape_for(dealing.begun_by).groups * dealing.begun_by
        return max(0, batches - dealing.skipped) // dealing.world_size

    def _identity(self, world_size: int) -> dict[str, int | bool | str]:
        settings = self._settings
        return {
            "kind": "pk",
            "records": len(self._masks),
            "data": self._fingerprint,
            "seed": self.seed,
            "identities_per_batch": settings.identities_per_batch,
            "records_per_identity": settings.records_per_identity,
            "epoch_unit": settings.epoch_unit,
            "epoch_steps": settings.epoch_steps or 0,
            "ensure_rgb": settings.ensure_rgb,
            "require_pair": settings.require_pair,
            "world_size": world_size,
        }


def _check_settings(settings: _Settings, *, seed: int, rank: int) -> None:
    for name in ("identities_per_batch", "records_per_identity", "world_size", "epoch_steps"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise DataError(f"{name} must be at least 1, not {value}")
    if settings.require_pair and settings.records_per_identity < 2:
        raise DataError(
            "require_pair needs two records of each person in a batch, and records_per_identity "
            f"is {settings.records_per_identity}"
        )
    if settings.epoch_unit not in ("identities", "records", "steps"):
        raise DataError(
            f"epoch_unit must be identities, records or steps, not {settings.epoch_unit}"
        )
    if (settings.epoch_unit == "steps") != (settings.epoch_steps is not None):
        raise DataError("epoch_steps is for epoch_unit steps, and that needs it; give both or none")
    if seed < 0:
        raise DataError(f"seed must not be negative, and it is {seed}")
    if not 0 <= rank < settings.world_size:
        raise DataError(f"there is no rank {rank} among {settings.world_size} ranks")


def _checked_records(
    person_ids: npt.ArrayLike, modalities: npt.ArrayLike
) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Number the people from 0 in the order of their ids; refuse what says nothing."""
    ids, masks = np.asarray(person_ids), np.asarray(modalities)
    if ids.ndim != 1 or masks.ndim != 1 or len(ids) != len(masks):
        raise DataError(
            "person_ids and modalities must have one entry a record each; their shapes are "
            f"{ids.shape} and {masks.shape}"
        )
    if len(ids) == 0:
        raise DataError("the dataset is empty: there is nobody to make batches of")
    if ids.dtype.kind not in "iuUS" or masks.dtype.kind not in "iu":
        raise DataError(
            "person_ids must be whole numbers or words, and modalities whole numbers; they are "
            f"{ids.dtype} and {masks.dtype}"
        )
    without = np.flatnonzero(masks <= 0)
    if len(without):
        raise DataError(
            f"{len(without)} records have no modality, the first is record {without[0]}: its mask "
            f"is {masks[without[0]]}; set bit 0 for RGB and a bit of its own for each other"
        )
    return np.unique(ids, return_inverse=True)[1].astype(np.int64), masks.astype(np.int64)


def _queues(people: Ints, masks: Ints, *, only_pairs: bool) -> Queues:
    is_rgb, is_other = (masks & _RGB_BIT) != 0, (masks & ~_RGB_BIT) != 0
    kinds = np.where(is_rgb & is_other, BOTH, np.where(is_rgb, RGB_ONLY, OTHER_ONLY))
    queue_of = people * KINDS + kinds
    everybody = Queues(
        records=np.arange(len(people)),
        queue_of=queue_of,
        sizes=np.bincount(queue_of, minlength=(int(people.max()) + 1) * KINDS).reshape(-1, KINDS),
    )
    if not only_pairs:
        return everybody
    stays = everybody.has_pair
    number = np.cumsum(stays) - 1
    kept = np.flatnonzero(stays[people])
    return Queues(
        records=kept,
        queue_of=number[people[kept]] * KINDS + kinds[kept],
        sizes=everybody.sizes[stays],
    )


def _check_enough(queues: Queues, people_in_all: int, settings: _Settings) -> None:
    wanted = settings.identities_per_batch
    if queues.people >= wanted:
        return
    if settings.require_pair:
        raise DataError(
            f"a batch takes {wanted} people with an RGB record and one of another modality, and "
            f"{queues.people} of {people_in_all} people have both; lower identities_per_batch, or "
            "take everybody (require_pair=False; prefer_complete=False in from_dataset)"
        )
    raise DataError(
        f"a batch takes {wanted} different people, and the dataset has {people_in_all}; lower "
        "identities_per_batch"
    )


def _shape(queues: Queues, settings: _Settings) -> Shape:
    together = settings.identities_per_batch * settings.world_size
    lengths = {
        "identities": queues.people // together,
        "records": len(queues.records) // (together * settings.records_per_identity),
        "steps": settings.epoch_steps or 0,
    }
    return Shape(
        groups=max(1, lengths[settings.epoch_unit]),
        world_size=settings.world_size,
        people=settings.identities_per_batch,
        records=settings.records_per_identity,
        by_records=settings.epoch_unit != "identities",
        ensure_rgb=settings.ensure_rgb,
    )
