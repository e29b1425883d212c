"""Samples whose spikes are left as they were recorded, or were counted beforehand.

Binning on the device needs the planes themselves; `ClipSamples` counts them on the host. Bins that
were written beforehand lie beside the spikes, one array a frame:

    <root>/<split>/<clip>/spike_vox/000047.npy    (bins, h, w) counts, bytes
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pitstop.config.quantities import SizeByEpoch
from pitstop.config.workloads.deblur import DeblurData
from pitstop.data.loader.stages import stage
from pitstop.errors import DataError, os_errors_as
from pitstop.records.files import whole_file
from pitstop.workloads.deblur.data.dataset import (
    ClipSamples,
    View,
    dataset_root,
    eval_clips,
    index_clips,
    listed_problems,
    spike_files,
    spike_paths,
    spike_size,
    train_clips,
)
from pitstop.workloads.deblur.data.frames import Bytes
from pitstop.workloads.deblur.data.voxels import fill_planes
from pitstop.workloads.deblur.spike import Window, count_bins

_SUFFIX: Final = ".npy"

SamplesT = TypeVar("SamplesT", bound=ClipSamples)


class PlaneSamples(ClipSamples):
    """Segments with their spikes as planes, (D, T, h, w), filled up to the longest frame's."""

    __slots__ = ()

    def _spikes(self, clip: int, names: npt.NDArray[np.str_], view: View) -> Tensor:
        frames = []
        for planes in self.spike_planes(clip, names, view):
            with stage("transform"):
                frames.append(view.turned(planes))
        longest = max(len(planes) for planes in frames)
        return torch.stack([fill_planes(planes, longest) for planes in frames])


class CountedSamples(ClipSamples):
    """Segments with spikes that were counted beforehand, (D, bins, h, w)."""

    __slots__ = ()

    def cache_keys(self, index: int) -> Iterator[str]:
        """List the frames alone: counts are mapped into memory, which is as good as kept."""
        return replace(self.as_plain(), spikes=None).cache_keys(index)

    def as_plain(self) -> ClipSamples:
        """Give the same segments as the class they come from."""
        return _as(ClipSamples, self)

    def _spikes(self, clip: int, names: npt.NDArray[np.str_], view: View) -> Tensor:
        top, left, height, width = self.spike_window(clip, view)
        with stage("read"):
            counts = [
                _counts(path)[:, top : top + height, left : left + width]
                for path in voxel_paths(self.spike_folder(clip), names)
            ]
            return view.turned(np.stack(counts))


def spike_train_samples(
    data: DeblurData, crop_schedule: SizeByEpoch, *, seed: int
) -> PlaneSamples | CountedSamples:
    """Give every segment of the training split with its spikes.

    Raises:
        ConfigError: Where no dataset is named.
        DataError: Where files are missing or do not fit; names them.
    """
    if data.spikes == "live":
        return _as(PlaneSamples, train_clips(data, crop_schedule, seed=seed, with_spikes=True))
    return _counted(train_clips(data, crop_schedule, seed=seed, with_spikes=False), data)


def spike_eval_samples(data: DeblurData) -> PlaneSamples | CountedSamples:
    """Give segments that show every frame of the evaluation split, with its spikes.

    Raises:
        ConfigError: Where no dataset is named.
        DataError: Where files are missing or do not fit; names them.
    """
    if data.spikes == "live":
        return _as(PlaneSamples, eval_clips(data, with_spikes=True))
    return _counted(eval_clips(data, with_spikes=False), data)


def write_counts(data: DeblurData, split: str) -> int:
    """Count the spikes of a split into bins and write them beside, each file whole or not at all.

    Returns:
        The number of files written.

    Raises:
        DataError: Where the dataset is a pack, a file is missing, or one cannot be written.
    """
    _refuse_pack(data)
    files = spike_files(data)
    index = index_clips(data, split, spikes=files)
    samples = eval_clips(data.model_copy(update={"eval_split": split}), with_spikes=True)
    whole = Window(0, 0, files.height, files.width)
    written = 0
    for clip, name in enumerate(index.clips):
        first, end = index.first_frames[clip : clip + 2].tolist()
        names = index.blur_names[first:end]
        folder = index.folder / name
        paths = spike_paths(folder / files.folder, names)
        for source, target in zip(paths, voxel_paths(folder / data.voxel_dir, names), strict=True):
            planes = samples.reader.spikes(source, (files.height, files.width), whole)
            _write(target, count_bins(planes, files.bins))
            written += 1
    return written


def voxel_paths(folder: Path, names: Sequence[str] | npt.NDArray[np.str_]) -> list[Path]:
    """Give the files of counts that belong to frames."""
    return [folder / f"{Path(str(name)).stem}{_SUFFIX}" for name in names]


def _as(kind: type[SamplesT], samples: ClipSamples) -> SamplesT:
    return kind(**{each.name: getattr(samples, each.name) for each in fields(ClipSamples)})


def _counted(samples: ClipSamples, data: DeblurData) -> CountedSamples:
    _refuse_pack(data)
    files = replace(spike_files(data), folder=data.voxel_dir)
    _refuse_unfit(samples, data)
    return _as(CountedSamples, replace(samples, spikes=files))


def _refuse_pack(data: DeblurData) -> None:
    root = dataset_root(data)
    if root.is_file():
        raise DataError(
            f"{root} is a pack, which holds spikes and no counts of them; set data.spikes to live"
        )


def _refuse_unfit(samples: ClipSamples, data: DeblurData) -> None:
    """Look at the header of every file of counts, so that no training stops at one later."""
    wanted = (data.voxel_bins, *spike_size(data))
    problems = []
    for clip, name in enumerate(samples.index.clips):
        height, width = samples.index.sizes[clip].tolist()
        if height * wanted[2] != width * wanted[1] or height % wanted[1]:
            problems.append(
                f"{name} has frames of {height}x{width}, no multiple of {wanted[1]}x{wanted[2]}"
            )
        first, end = samples.index.first_frames[clip : clip + 2].tolist()
        folder = samples.index.folder / name / data.voxel_dir
        for path in voxel_paths(folder, samples.index.blur_names[first:end]):
            problems += _problem_of(path, wanted)
    if problems:
        raise DataError(
            f"precomputed spikes cannot be used: {listed_problems(problems)}"
            "; set data.spikes to live, or write them anew"
        )


def _problem_of(path: Path, wanted: tuple[int, int, int]) -> list[str]:
    try:
        counts = _counts(path)
    except DataError as error:
        return [str(error)]
    if counts.shape != wanted or counts.dtype != np.uint8:
        return [
            f"{path} holds {counts.dtype} of shape {'x'.join(map(str, counts.shape))}, not uint8 "
            f"of {'x'.join(map(str, wanted))}"
        ]
    return []


def _counts(path: Path) -> Bytes:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"there is no {path}") from error
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not an array of counts: {error}") from error


def _write(path: Path, counts: Bytes) -> None:
    with os_errors_as(DataError, f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.save(file, counts, allow_pickle=False)
