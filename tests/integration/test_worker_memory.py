"""Forked workers share what the dataset holds: arrays stay shared, Python objects do not."""

import gc
import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pitstop.config.sections import LoaderSection
from pitstop.data.loader.batches import build_loader
from pitstop.data.loader.fetch import Samples
from pitstop.data.sampling.samplers import ShuffledBatches
from pitstop.measure.host.process_tree import tree_memory
from pitstop.workloads.deblur.data.dataset import ClipIndex, ClipSamples

torch.set_num_threads(1)

CLIPS, FRAMES, LENGTH = 400, 105, 6
WORKERS = 2
MIB = 1 << 20

pytestmark = [
    pytest.mark.slow,
    # Pages are counted in proportion to who else maps them: torch's, too.
    pytest.mark.quiet,
    pytest.mark.skipif(
        not Path("/proc/self/smaps_rollup").exists(), reason="needs proportional set sizes"
    ),
]


def clip_samples() -> ClipSamples:
    """The deblurring dataset itself, over 42,000 frames that need not exist to be named."""
    names = np.array([f"{frame:06d}.png" for _ in range(CLIPS) for frame in range(FRAMES)])
    starts = [(clip, first, 0) for clip in range(CLIPS) for first in range(FRAMES - LENGTH + 1)]
    index = ClipIndex(
        folder=Path("clips/train"),
        blur="blur",
        clips=tuple(f"GOPR{clip:04d}_11_00" for clip in range(CLIPS)),
        first_frames=np.arange(CLIPS + 1) * FRAMES,
        blur_names=names,
        sharp_names=names.copy(),
        sizes=np.full((CLIPS, 2), (720, 1280), np.int32),
    )
    return ClipSamples(
        index=index,
        clip_len=LENGTH,
        starts=np.array(starts, np.int32),
        crops=((0, 256),),
        place="random",
        flips=True,
        seed=0,
        spikes=None,
    )


@dataclass(frozen=True)
class InArrays:
    """Does all that a sample does but for opening files."""

    clips: ClipSamples

    def __len__(self) -> int:
        return len(self.clips)

    def sample(self, epoch: int, index: int) -> Tensor:
        side = self.clips.view(epoch, index).window.height
        return torch.tensor(side + len(list(self.clips.cache_keys(index))))


class InObjects:
    """The same metadata, a Python object for each thing."""

    def __init__(self, clips: ClipSamples) -> None:
        self._rows = [list(clips.cache_keys(index)) for index in range(len(clips))]

    def __len__(self) -> int:
        return len(self._rows)

    def sample(self, epoch: int, index: int) -> Tensor:
        return torch.tensor(256 + len(list(self._rows[index])))


def stack(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples)


def workers_bytes() -> int:
    sizes = [tree_memory(child.pid) for child in multiprocessing.active_children()]
    assert all(size is not None and size.basis == "pss" for size in sizes)
    return sum(size.tree_bytes for size in sizes if size is not None)


def growths(samples: Samples, epochs: int) -> list[int]:
    """How much all workers together grew in each epoch."""
    # What this process writes to is no longer shared either, and would count as growth of theirs.
    gc.collect()
    gc.freeze()
    order = ShuffledBatches(len(samples), 300, seed=0, drop_last=True)
    section = LoaderSection(workers=WORKERS, start_method="fork", persistent=True)
    found = []
    with build_loader(samples, order, stack, section) as loader:
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            sizes = [workers_bytes() for _, consumed in loader if consumed % 20 == 0]
            found.append(sizes[-1] - sizes[0])
    return found


def test_workers_do_not_grow_with_the_deblurring_dataset_and_do_with_lists_of_objects() -> None:
    clips = clip_samples()
    in_arrays = growths(InArrays(clips), epochs=2)
    [in_objects] = growths(InObjects(clips), epochs=1)
    figures = f"{[size / MIB for size in in_arrays]} against {in_objects / MIB} MiB"
    assert in_objects > 20 * MIB, f"the twin shows what is to be avoided: {figures}"
    # A process that does nothing but build paths grows by some megabytes once, and then no more;
    # and what the parent writes to, large after other tests, is no longer shared with them.
    assert min(in_arrays) < in_objects / 4, figures
    assert sum(in_arrays) < in_objects, figures
