"""A folder of blurred frames, of any length, restored in segments and tiles.

Nothing is known of these frames but the files. All of them are checked first, so that what is
missing or does not fit is said before anything is written. Then frames pass by: a segment is read
and restored, its frames are added to what neighbouring segments made of them, and a frame that no
later segment reaches is written and forgotten.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pitstop.config.workloads.deblur import DeblurData
from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import (
    ClipBatch,
    Size,
    listed_problems,
    problems_of_twins,
    spike_paths,
)
from pitstop.workloads.deblur.data.frames import FileReader
from pitstop.workloads.deblur.data.storage import FolderStorage, count_planes
from pitstop.workloads.deblur.data.voxels import fill_planes
from pitstop.workloads.deblur.metrics import to_levels
from pitstop.workloads.deblur.outputs import write_png
from pitstop.workloads.deblur.spike import Window
from pitstop.workloads.deblur.tiling import Border, cut_axis

Restore = Callable[[ClipBatch], Tensor]
"""Takes a segment on the host, (1, D, ...), and gives its frames on the device, (1, D, 3, H, W)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFolder:
    """Frames in order, and the spikes of each."""

    frames: tuple[Path, ...]
    size: Size
    spikes: tuple[Path, ...] | None
    spike_size: Size

    def segment(self, start: int, length: int) -> ClipBatch:
        """Read frames and spikes of a segment, as a batch of one."""
        reader = FileReader()
        whole = Window(0, 0, *self.size)
        paths = self.frames[start : start + length]
        blur = torch.from_numpy(np.stack([reader.frame(path, whole) for path in paths]))
        blur = blur.permute(0, 3, 1, 2).contiguous()[None]
        return ClipBatch(
            blur=blur,
            sharp=blur,
            spikes=self._planes(start, length),
            clip=torch.zeros(1, dtype=torch.int64),
            fresh=torch.ones(1, length, dtype=torch.bool),
        )

    def _planes(self, start: int, length: int) -> Tensor | None:
        if self.spikes is None:
            return None
        reader = FileReader()
        whole = Window(0, 0, *self.spike_size)
        planes = [
            torch.from_numpy(np.ascontiguousarray(reader.spikes(path, self.spike_size, whole)))
            for path in self.spikes[start : start + length]
        ]
        longest = max(len(each) for each in planes)
        return torch.stack([fill_planes(each, longest) for each in planes])[None]


def check_folder(data: DeblurData, *, with_spikes: bool) -> FrameFolder:
    """Find the frames of `data.frames` and hold them, and their spikes, against each other.

    Raises:
        DataError: Where something is missing or does not fit; names the files.
    """
    assert data.frames is not None
    storage = FolderStorage()
    folder = data.frames
    endings = {f".{ending.lower()}" for ending in data.image_types}
    frames = [path for path in storage.files(folder) if path.suffix.lower() in endings]
    if not frames:
        raise DataError(
            f"{folder} holds no images ending in {', '.join(sorted(endings))}; data.frames must be "
            "the folder of the frames themselves"
        )
    problems = [*_problems_of_names(frames)]
    sizes = {path: storage.frame_size(path) for path in frames}
    problems += [size for size in sizes.values() if isinstance(size, str)]
    known = {path: size for path, size in sizes.items() if not isinstance(size, str)}
    first = next(iter(known), frames[0])
    size = known.get(first, (0, 0))
    problems += [
        f"{path} is {rows}x{columns}, but {first} is {size[0]}x{size[1]}"
        for path, (rows, columns) in known.items()
        if (rows, columns) != size
    ]
    if len(frames) < data.clip_len:
        problems.append(
            f"{folder} has {len(frames)} frames, and data.clip_len is {data.clip_len}; lower it"
        )
    spikes, spike_size = None, (data.spike_height, data.spike_width)
    if with_spikes:
        assert data.frame_spikes is not None, "the configuration names them"
        spikes = tuple(spike_paths(data.frame_spikes, [path.name for path in frames]))
        problems += _problems_of_spikes(storage, data.frame_spikes, spikes, (size, spike_size))
    _refuse(folder, problems)
    return FrameFolder(frames=tuple(frames), size=size, spikes=spikes, spike_size=spike_size)


def restore_folder(
    found: FrameFolder,
    restore: Restore,
    folder: Path,
    *,
    clip_len: int,
    overlap: int,
    border: Border,
) -> int:
    """Restore all frames in segments and write them as PNG files; give their number.

    At most the frames of one segment and those it shares with the next are held.

    Raises:
        DataError: Where a file cannot be written.
    """
    segments = cut_axis(len(found.frames), clip_len, overlap, border=border)
    ends = [segment.start for segment in segments[1:]] + [len(found.frames)]
    held: dict[int, Tensor] = {}
    written = 0
    for segment, end in zip(segments, ends, strict=True):
        restored = restore(found.segment(segment.start, clip_len))[0]
        for place, (frame, weight) in enumerate(
            zip(restored, segment.weights.tolist(), strict=True)
        ):
            if weight:
                number = segment.start + place
                share = weight * frame.float()
                held[number] = held[number] + share if number in held else share
        for number in [number for number in held if number < end]:
            levels = to_levels(held.pop(number)).to(torch.uint8).permute(1, 2, 0).cpu().numpy()
            write_png(folder / f"{found.frames[number].stem}.png", levels)
            written += 1
    return written


def _problems_of_names(frames: Sequence[Path]) -> Iterator[str]:
    """Name gaps in numbered frames, and frames that are there twice."""
    yield from problems_of_twins(frames)
    stems = [path.stem for path in frames]
    if not all(stem.isdecimal() for stem in stems):
        return
    numbers = {int(stem) for stem in stems}
    for number in range(min(numbers), max(numbers)):
        if number not in numbers:
            name = f"{number:0{len(stems[0])}d}"
            yield f"frame {name} is missing between {stems[0]} and {stems[-1]}"


def _problems_of_spikes(
    storage: FolderStorage, folder: Path, paths: Sequence[Path], sizes: tuple[Size, Size]
) -> list[str]:
    (height, width), (rows, columns) = sizes
    problems = []
    if height % rows or width % columns or height // rows != width // columns:
        problems.append(
            f"frames are {height}x{width}, no multiple of spike frames of {rows}x{columns} that "
            "is the same for both sides"
        )
    unwanted = set(storage.files(folder)) - set(paths)
    problems += [
        f"{path} belongs to no frame" for path in sorted(unwanted) if path.suffix == ".dat"
    ]
    for path in paths:
        try:
            count_planes(storage, path, (rows, columns))
            if not any(storage.data(path)):
                problems.append(f"{path} holds no spike at all")
        except DataError as error:
            problems.append(str(error))
    return problems


def _refuse(folder: Path, problems: Sequence[str]) -> None:
    if problems:
        raise DataError(f"the frames in {folder} cannot be restored: {listed_problems(problems)}")
