"""A run resumed anywhere in an epoch reads exactly what the uninterrupted run would have read."""

import multiprocessing
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from pitstop.config.sections import LoaderSection
from pitstop.data.loader.batches import Loader, build_loader
from pitstop.data.sampling.samplers import ShuffledBatches

NUM_SAMPLES = 21
EPOCHS = 2


@dataclass(frozen=True)
class RandomCrops:
    """Samples that are random in the way augmentation is, and count how often each is read."""

    seed: int
    reads: Tensor = field(
        default_factory=lambda: torch.zeros(EPOCHS, NUM_SAMPLES, dtype=torch.int64).share_memory_()
    )

    def __len__(self) -> int:
        return NUM_SAMPLES

    def sample(self, epoch: int, index: int) -> Tensor:
        self.reads[epoch, index] += 1
        rng = np.random.default_rng([self.seed, epoch, index])
        return torch.from_numpy(rng.random(4))


def stack(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples)


def open_loader(
    samples: RandomCrops, *, workers: int, prefetch: int, rank: int = 0, world_size: int = 1
) -> Loader[Tensor]:
    torch.set_num_threads(1)
    batches = ShuffledBatches(
        len(samples), 3, seed=5, rank=rank, world_size=world_size, drop_last=False
    )
    section = LoaderSection(workers=workers, prefetch=prefetch, tune="off", start_method="fork")
    return build_loader(samples, batches, stack, section)


def read_on(loader: Loader[Tensor], *, until: int | None = None) -> list[list[list[float]]]:
    """Train from where the loader stands to the end, or for so many batches of its epoch."""
    taken = []
    while True:
        for batch, consumed in loader:
            taken.append(batch.tolist())
            if consumed == until:
                return taken
        if loader.epoch == EPOCHS - 1:
            return taken
        loader.set_epoch(loader.epoch + 1)


@pytest.mark.parametrize(
    ("workers", "prefetch"),
    [(0, 2), (2, 3), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 1), (4, 2)))],
)
@pytest.mark.parametrize("start_epoch", range(EPOCHS))
def test_every_resume_point_continues_the_uninterrupted_run(
    workers: int, prefetch: int, start_epoch: int
) -> None:
    with open_loader(RandomCrops(seed=5), workers=0, prefetch=1) as alone:
        whole = read_on(alone)
        per_epoch = len(alone)
    for point in range(1, per_epoch + 1):
        with open_loader(RandomCrops(seed=5), workers=workers, prefetch=prefetch) as killed:
            killed.set_epoch(start_epoch)
            before = read_on(killed, until=point)
            state = killed.state_dict()
        again = RandomCrops(seed=5)
        with open_loader(again, workers=workers, prefetch=prefetch) as resumed:
            resumed.load_state_dict(state)
            after = read_on(resumed)
        assert before + after == whole[start_epoch * per_epoch :]
        # Nothing of what was consumed is read again, and everything else once.
        assert again.reads.sum() == sum(map(len, after))
        assert again.reads.max() <= 1
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_resumed_together_still_share_every_sample_once(workers: int) -> None:
    world_size, point = 2, 2
    reads = torch.zeros(EPOCHS, NUM_SAMPLES, dtype=torch.int64)
    for rank in range(world_size):
        first, second = RandomCrops(seed=5), RandomCrops(seed=5)
        place = {"workers": workers, "prefetch": 1, "rank": rank, "world_size": world_size}
        with open_loader(first, **place) as killed:
            before = read_on(killed, until=point)
            state = killed.state_dict()
        with open_loader(second, **place) as resumed:
            resumed.load_state_dict(state)
            after = read_on(resumed)
        with open_loader(RandomCrops(seed=5), **place) as alone:
            assert before + after == read_on(alone)
        reads += second.reads
    assert reads[1].tolist() == [1] * NUM_SAMPLES
    assert reads[0].sum() == NUM_SAMPLES - point * 3 * world_size
