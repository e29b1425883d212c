"""Clips of blurred and sharp frames, and the spikes beside them, cut into samples.

    <root>/<split>/<clip>/blur/000047.png    sharp/000047.png    spike/000047.dat

in folders, or in a pack of them that `data.root` names instead.

Everything is checked once, when the index is made: a missing file, a size that differs or a clip
that is too short is said then, with its name, not in the middle of a night. What a sample looks
like is a function of seed, epoch and index.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import yaml
from torch import Tensor

from pitstop.config.quantities import SizeByEpoch
from pitstop.config.workloads.deblur import DeblurData
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.stages import stage
from pitstop.errors import ConfigError, DataError
from pitstop.workloads.deblur.data.frames import Bytes, FileReader, FrameCache, FrameReader, Size
from pitstop.workloads.deblur.data.inputs import FROM_FILES, Inputs, noise_entropy
from pitstop.workloads.deblur.data.storage import ClipStorage, count_planes, open_storage
from pitstop.workloads.deblur.spike import Window, count_bins

_VIEW_STREAM: Final = 0x56494557
_MOST_PROBLEMS: Final = 5
_STATED_AT: Final = "config.yaml"
_SCALES: Final = (1, 4)
"""How many times larger sharp frames may be than those to restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSample:
    """A segment of a clip."""

    blur: Tensor
    """(D, 3, h, w), levels 0 to 255; smaller than the sharp ones where a network enlarges, and with
    a fourth channel where it is told the noise."""
    sharp: Tensor
    """(D, 3, H, W), levels 0 to 255."""
    spikes: Tensor | None
    """(D, bins, h, w) counts, or None where no spikes are read."""
    clip: int
    """Number of the clip."""
    fresh: Tensor
    """(D,), whether the frame is in no earlier sample of an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipBatch:
    """Samples side by side; fields as in `ClipSample` with the batch in front."""

    blur: Tensor
    sharp: Tensor
    spikes: Tensor | None
    clip: Tensor
    fresh: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeFiles:
    """Where spikes lie and how they are read."""

    folder: str
    height: int
    width: int
    bins: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipIndex:
    """The files of one split, all of them known to be there."""

    folder: Path
    """Of the split."""
    blur: str
    """Folder of a clip that holds the blurred frames."""
    clips: tuple[str, ...]
    first_frames: npt.NDArray[np.int64]
    """Place of each clip's first frame among all frames, and the end of the last clip."""
    blur_names: npt.NDArray[np.str_]
    sharp_names: npt.NDArray[np.str_]
    sizes: npt.NDArray[np.int32]
    """Height and width of the frames of each clip."""

    def length(self, clip: int) -> int:
        """Count the frames of a clip."""
        return int(self.first_frames[clip + 1] - self.first_frames[clip])


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown of a segment: which part of its frames, and how it is turned."""

    window: Window
    flip_rows: bool = False
    flip_columns: bool = False
    transpose: bool = False

    def turned(self, planes: Bytes) -> Tensor:
        """Turn (..., H, W) planes that are cut already."""
        if self.flip_rows:
            planes = planes[..., ::-1, :]
        if self.flip_columns:
            planes = planes[..., ::-1]
        if self.transpose:
            planes = planes.swapaxes(-1, -2)
        return torch.from_numpy(np.ascontiguousarray(planes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSamples:
    """Segments of `clip_len` frames; small enough to travel to workers."""

    index: ClipIndex
    clip_len: int
    starts: npt.NDArray[np.int32]
    """Clip and first frame of each sample, and how many of its frames an earlier one has."""
    crops: tuple[tuple[int, int | None], ...]
    """Side of the square that is cut, from each given epoch on; None for whole frames."""
    place: Literal["random", "centre"]
    flips: bool
    seed: int
    spikes: SpikeFiles | None
    reader: FrameReader = field(default_factory=FileReader)
    inputs: Inputs = FROM_FILES
    cache: FrameCache | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def sample(self, epoch: int, index: int) -> ClipSample:
        """Read a segment, cut and turned as this epoch has it."""
        clip, _, known = self.starts[index].tolist()
        view, frames = self.view(epoch, index), self.frames_of(index)
        folder = self.index.folder / self.index.clips[clip]
        blur_names, sharp_names = self.index.blur_names[frames], self.index.sharp_names[frames]
        blur = None
        if self.inputs.kind == "files":
            small = replace(view, window=self.inputs.small(view.window))
            scale = self.inputs.scale
            blur = self._frames(clip, folder / self.index.blur, blur_names, small, scale=scale)
            blur = self.inputs.with_map(blur)
        sharp = self._frames(clip, folder / "sharp", sharp_names, view)
        if blur is None:
            with stage("transform"):
                blur = self.inputs.of_sharp(sharp, noise_entropy(self.seed, epoch, index))
        return ClipSample(
            blur=blur,
            sharp=sharp,
            spikes=None if self.spikes is None else self._spikes(clip, blur_names, view),
            clip=clip,
            fresh=torch.arange(self.clip_len) >= known,
        )

    @property
    def sequences(self) -> npt.NDArray[np.int32]:
        """Number of the clip of each sample."""
        return self.starts[:, 0]

    @property
    def decoded_bytes(self) -> int | None:
        """Bytes of all frames as pixels; None with spikes, which no header gives a length of."""
        if self.spikes is not None:
            return None
        frames = np.diff(self.index.first_frames)
        pixels = int((frames * self.index.sizes.astype(np.int64).prod(axis=1)).sum())
        beside = pixels // self.inputs.scale**2 if self.inputs.kind == "files" else 0
        return 3 * (pixels + beside)

    def with_cache(self, cache: SharedCache) -> "ClipSamples":
        """Give the same samples, whose frames and spikes are kept in a cache once they are read."""
        return replace(self, cache=FrameCache(cache))

    def cache_keys(self, index: int) -> Iterator[str]:
        """List the files of a sample in the order in which they are read."""
        clip, frames = int(self.starts[index, 0]), self.frames_of(index)
        folder = self.index.folder / self.index.clips[clip]
        blur_names = self.index.blur_names[frames]
        if self.inputs.kind == "files":
            yield from (str(folder / self.index.blur / str(name)) for name in blur_names)
        yield from (str(folder / "sharp" / str(name)) for name in self.index.sharp_names[frames])
        if self.spikes is not None:
            yield from map(str, spike_paths(folder / self.spikes.folder, blur_names))

    def frames_of(self, index: int) -> slice:
        """Say which of the index's frames a sample has."""
        clip, first, _ = self.starts[index].tolist()
        begin = int(self.index.first_frames[clip]) + first
        return slice(begin, begin + self.clip_len)

    def name_of(self, index: int) -> str:
        """Name the clip and the first frame of a sample."""
        clip, name = self.starts[index, 0], self.index.blur_names[self.frames_of(index).start]
        return f"{self.index.folder.name}/{self.index.clips[clip]}, from {name} on"

    def crop_side(self, epoch: int) -> int | None:
        """Say how large the square is in an epoch; None for whole frames."""
        return next(side for start, side in reversed(self.crops) if start <= epoch)

    def view(self, epoch: int, index: int) -> View:
        """Decide what is shown of a sample in an epoch."""
        clip = int(self.starts[index, 0])
        height, width = self.index.sizes[clip].tolist()
        side = self.crop_side(epoch)
        scale = self.inputs.scale
        rows, columns = (
            (height - height % scale, width - width % scale) if side is None else (side, side)
        )
        # On the grid of the coarser spikes or frames, so that both show the same part of the scene.
        step = scale if self.spikes is None else height // self.spikes.height
        margin = ((height - rows) // step, (width - columns) // step)
        if self.place == "centre":
            return View(window=Window(margin[0] // 2 * step, margin[1] // 2 * step, rows, columns))
        entropy = np.random.SeedSequence([self.seed, epoch, index, _VIEW_STREAM])
        draws = np.random.PCG64(entropy).random_raw(5).tolist()
        top, left = (draw % (free + 1) * step for draw, free in zip(draws[:2], margin, strict=True))
        return View(
            window=Window(top, left, rows, columns),
            flip_rows=self.flips and draws[2] % 2 == 1,
            flip_columns=self.flips and draws[3] % 2 == 1,
            # An oblong does not fit a batch once it is turned on its side.
            transpose=self.flips and rows == columns and draws[4] % 2 == 1,
        )

    def _frames(
        self, clip: int, folder: Path, names: npt.NDArray[np.str_], view: View, *, scale: int = 1
    ) -> Tensor:
        """Read the same part of several frames as (D, 3, H, W); frames are smaller by the scale."""
        height, width = (self.index.sizes[clip] // scale).tolist()
        frames = np.empty((len(names), view.window.height, view.window.width, 3), np.uint8)
        for place, name in enumerate(names):
            path = folder / str(name)
            if self.cache is None:
                frames[place] = self.reader.frame(path, view.window)
            else:
                size = (height, width)
                frames[place] = self.cache.frame(self.reader, path, size, view.window)
        with stage("transform"):
            return view.turned(frames.transpose(0, 3, 1, 2))

    def _spikes(self, clip: int, names: npt.NDArray[np.str_], view: View) -> Tensor:
        assert self.spikes is not None
        counts = []
        for planes in self.spike_planes(clip, names, view):
            with stage("transform"):
                counts.append(count_bins(planes, self.spikes.bins))
        with stage("transform"):
            return view.turned(np.stack(counts))

    def spike_planes(self, clip: int, names: npt.NDArray[np.str_], view: View) -> Iterator[Bytes]:
        """Read the spikes of each frame, of the part that a view shows."""
        assert self.spikes is not None
        size, window = (self.spikes.height, self.spikes.width), self.spike_window(clip, view)
        for path in spike_paths(self.spike_folder(clip), names):
            if self.cache is None:
                yield self.reader.spikes(path, size, window)
            else:
                yield self.cache.spikes(self.reader, path, size, window)

    def spike_folder(self, clip: int) -> Path:
        """Say where the spikes of a clip lie."""
        assert self.spikes is not None
        return self.index.folder / self.index.clips[clip] / self.spikes.folder

    def spike_window(self, clip: int, view: View) -> Window:
        """Say which part of spike frames shows what a view shows of the frames."""
        assert self.spikes is not None
        step = int(self.index.sizes[clip, 0]) // self.spikes.height
        return Window(*(length // step for length in view.window))


def train_clips(
    data: DeblurData,
    crop_schedule: SizeByEpoch,
    *,
    seed: int,
    with_spikes: bool,
    inputs: Inputs = FROM_FILES,
) -> ClipSamples:
    """Give every segment of the training split, cut at random.

    Raises:
        ConfigError: Where no dataset is named.
        DataError: Where files are missing or do not fit; names them.
    """
    spikes = spike_files(data) if with_spikes else None
    index = index_clips(data, data.split, spikes=spikes, scale=inputs.file_scale)
    crops = ((0, data.crop), *crop_schedule)
    _refuse_small_clips(index, data.clip_len, [side for _, side in crops])
    starts = [
        (clip, first, 0)
        for clip in range(len(index.clips))
        for first in range(0, index.length(clip) - data.clip_len + 1, data.clip_stride)
    ]
    return ClipSamples(
        index=index,
        clip_len=data.clip_len,
        starts=np.array(starts, np.int32),
        crops=crops,
        place="random",
        flips=data.augment == "flips",
        seed=seed,
        spikes=spikes,
        reader=open_storage(dataset_root(data)).reader,
        inputs=inputs,
    )


def eval_clips(data: DeblurData, *, with_spikes: bool, inputs: Inputs = FROM_FILES) -> ClipSamples:
    """Give segments that together show every frame of the evaluation split.

    The last segment of a clip reaches back where frames are left over, for the model wants all
    of `data.clip_len`; what an earlier segment has is marked, so that no frame counts twice.

    Raises:
        ConfigError: Where no dataset is named.
        DataError: Where files are missing or do not fit; names them.
    """
    spikes = spike_files(data) if with_spikes else None
    index = index_clips(data, data.eval_split, spikes=spikes, scale=inputs.file_scale)
    _refuse_small_clips(index, data.clip_len, [data.eval_crop])
    starts = []
    for clip in range(len(index.clips)):
        last = index.length(clip) - data.clip_len
        for wanted in range(0, index.length(clip), data.clip_len):
            first = min(wanted, last)
            starts.append((clip, first, wanted - first))
    return ClipSamples(
        index=index,
        clip_len=data.clip_len,
        starts=np.array(starts, np.int32),
        crops=((0, data.eval_crop),),
        place="centre",
        flips=False,
        seed=0,
        spikes=spikes,
        reader=open_storage(dataset_root(data)).reader,
        inputs=inputs,
    )


def spike_files(data: DeblurData) -> SpikeFiles:
    """Say how spikes are read.

    Raises:
        DataError: Where the dataset's config.yaml states another size than settings do.
    """
    height, width = spike_size(data)
    return SpikeFiles(folder=data.spike_dir, height=height, width=width, bins=data.voxel_bins)


def spike_size(data: DeblurData) -> Size:
    """Give the size of spike frames: the dataset's own where no setting names one.

    Raises:
        DataError: Where the dataset states another size than settings do.
    """
    wanted = (data.spike_height, data.spike_width)
    root = dataset_root(data)
    stated = stated_spike_size(open_storage(root), root)
    if stated is not None and not {"spike_height", "spike_width"} & data.model_fields_set:
        return stated
    if stated is not None and stated != wanted:
        raise DataError(
            f"{root / _STATED_AT} says that spike frames are {stated[0]}x{stated[1]}, but "
            f"data.spike_height x data.spike_width is {wanted[0]}x{wanted[1]}"
        )
    return wanted


def stated_spike_size(storage: ClipStorage, root: Path) -> Size | None:
    """Give the size of spike frames that a dataset states; None where it states nothing.

    Raises:
        DataError: Where what it states cannot be understood.
    """
    path = root / _STATED_AT
    if path not in storage.files(root):
        return None
    try:
        stated = yaml.safe_load(storage.data(path).decode("utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(stated, dict) or not {"spike_h", "spike_w"} <= stated.keys():
        raise DataError(f"{path} does not say spike_h and spike_w, the size of spike frames")
    return stated["spike_h"], stated["spike_w"]


def index_clips(
    data: DeblurData, split: str, *, spikes: SpikeFiles | None, scale: int = 1
) -> ClipIndex:
    """Look at every file of a split: headers and sizes, not the pixels.

    Args:
        data: Where the files are.
        split: Which part of them.
        spikes: How spikes are read; None for none.
        scale: How many times larger sharp frames must be than those beside them.

    Raises:
        ConfigError: Where no dataset is named.
        DataError: Where files are missing or do not fit; names them.
    """
    root = dataset_root(data)
    storage = open_storage(root)
    folder = root / split
    if folder not in storage.folders(root):
        deeper = next((one for one in storage.folders(root) if (one / split).is_dir()), None)
        if deeper is not None:
            # As an archive of GoPro unpacks: GOPRO_Large/GOPRO_Large/train.
            raise DataError(
                f"there is no folder {folder}, but {deeper / split} one folder deeper; set "
                f"data.root to {deeper}"
            )
        raise DataError(
            f"there is no folder {folder}; data.root must be the folder that holds the splits, or "
            f"generate clips with `pitstop data make deblur {data.root}`"
        )
    clips = [check_clip(storage, path, data, spikes) for path in storage.folders(folder)]
    problems = [problem for clip in clips for problem in clip.problems]
    _refuse(folder, problems or [*_problems_of_enlarging(clips, data, scale)])
    if not clips:
        raise DataError(
            f"{folder} holds no clips: each is a folder with {input_folder(data)}/ and sharp/"
        )
    return ClipIndex(
        folder=folder,
        blur=input_folder(data),
        clips=tuple(clip.name for clip in clips),
        first_frames=np.cumsum([0, *(len(clip.blur) for clip in clips)]),
        blur_names=np.array([path.name for clip in clips for path in clip.blur]),
        sharp_names=np.array([path.name for clip in clips for path in clip.sharp]),
        sizes=np.array([clip.size for clip in clips], np.int32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFiles:
    """The files of a clip, and what is wrong with them."""

    name: str
    blur: Sequence[Path]
    sharp: Sequence[Path]
    size: Size
    """Of the sharp frames."""
    scale: int
    """How many times larger they are than the others."""
    problems: Sequence[str]


def check_clip(
    storage: ClipStorage, folder: Path, data: DeblurData, spikes: SpikeFiles | None
) -> ClipFiles:
    """Find the files of a clip and hold them against each other, without decoding any."""
    blur = _images(storage, folder / input_folder(data), data.image_types)
    sharp = _images(storage, folder / "sharp", data.image_types)
    problems = [*_problems_of_pairs(folder, blur, sharp, input_folder(data))]
    # What is said of a file twice, where both are the sharp ones, is said once.
    small, sizes = _sizes(storage, blur), _sizes(storage, sharp)
    problems += dict.fromkeys((*small.problems, *sizes.problems))
    scale = _scale(small, sizes)
    if scale is None:
        (one, path), (other, other_path) = list((small.found | sizes.found).items())[:2]
        problems.append(f"{path} is {one[0]}x{one[1]}, but {other_path} is {other[0]}x{other[1]}")
    size = next(iter(sizes.found or small.found), (0, 0))
    if spikes is not None and size[0]:
        paths = spike_paths(folder / spikes.folder, [path.name for path in blur])
        problems += [*_problems_of_scale(folder, size, spikes)]
        problems += [*_problems_of_spikes(storage, paths, spikes)]
    return ClipFiles(
        name=folder.name, blur=blur, sharp=sharp, size=size, scale=scale or 1, problems=problems
    )


def input_folder(data: DeblurData) -> str:
    """Name the folder of a clip that frames to restore come from."""
    return data.blur if data.input == "files" else "sharp"


class _Sizes(NamedTuple):
    """Sizes of frames, each with a file that has it, and files that have none."""

    found: dict[Size, Path]
    problems: list[str]


def _sizes(storage: ClipStorage, paths: Sequence[Path]) -> _Sizes:
    sizes = _Sizes({}, [])
    for path in paths:
        size = storage.frame_size(path)
        if isinstance(size, str):
            sizes.problems.append(size)
        else:
            sizes.found.setdefault(size, path)
    return sizes


def _scale(small: _Sizes, large: _Sizes) -> int | None:
    """How many times larger sharp frames are; None where sizes do not fit together."""
    if len(small.found) > 1 or len(large.found) > 1:
        return None
    if not small.found or not large.found:
        return 1
    (rows, columns), (height, width) = next(iter(small.found)), next(iter(large.found))
    return next((by for by in _SCALES if (rows * by, columns * by) == (height, width)), None)


def _problems_of_enlarging(
    clips: Sequence["ClipFiles"], data: DeblurData, scale: int
) -> Iterator[str]:
    for clip in clips:
        if clip.scale != scale:
            yield (
                f"{clip.name} has sharp frames {clip.scale} times as large as those in "
                f"{data.blur}, and the network enlarges {scale} times (model.upscale)"
            )


def _images(storage: ClipStorage, folder: Path, endings: Sequence[str]) -> list[Path]:
    wanted = {f".{ending.lower()}" for ending in endings}
    return [path for path in storage.files(folder) if path.suffix.lower() in wanted]


def _problems_of_pairs(
    folder: Path, blur: Sequence[Path], sharp: Sequence[Path], blur_name: str
) -> Iterator[str]:
    if not blur:
        yield f"{folder / blur_name} holds no images"
    yield from problems_of_twins(blur)
    yield from problems_of_twins(sharp)
    blurred, sharpened = ([path.stem for path in paths] for paths in (blur, sharp))
    for stem in sorted(set(blurred) - set(sharpened)):
        yield f"{folder / 'sharp'} has no frame {stem}, which {blur_name} has"
    for stem in sorted(set(sharpened) - set(blurred)):
        yield f"{folder / blur_name} has no frame {stem}, which sharp has"


def problems_of_twins(frames: Sequence[Path]) -> Iterator[str]:
    """Name frames that are there twice, under two endings."""
    for before, path in pairwise(frames):
        if path.stem == before.stem:
            yield f"{path} is one of two images of the same frame"


def _problems_of_scale(folder: Path, size: Size, spikes: SpikeFiles) -> Iterator[str]:
    (height, width), (rows, columns) = size, (spikes.height, spikes.width)
    if height % rows or width % columns or height // rows != width // columns:
        yield (
            f"{folder} has frames of {height}x{width}, no multiple of its spike frames of "
            f"{rows}x{columns} that is the same for both sides"
        )


def _problems_of_spikes(
    storage: ClipStorage, paths: Sequence[Path], spikes: SpikeFiles
) -> Iterator[str]:
    for path in paths:
        try:
            count_planes(storage, path, (spikes.height, spikes.width))
        except DataError as error:
            yield str(error)


def spike_paths(folder: Path, names: Sequence[str] | npt.NDArray[np.str_]) -> list[Path]:
    """Give the spike files that belong to frames."""
    return [folder / f"{Path(str(name)).stem}.dat" for name in names]


def _refuse_small_clips(index: ClipIndex, clip_len: int, sides: Sequence[int | None]) -> None:
    problems = []
    side = max((side for side in sides if side is not None), default=0)
    for clip, name in enumerate(index.clips):
        height, width = index.sizes[clip].tolist()
        if index.length(clip) < clip_len:
            problems.append(
                f"{name} has {index.length(clip)} frames, and data.clip_len is {clip_len}"
            )
        if min(height, width) < side:
            problems.append(f"{name} has frames of {height}x{width}, smaller than a crop of {side}")
    _refuse(index.folder, problems)


def _refuse(folder: Path, problems: Sequence[str]) -> None:
    if problems:
        raise DataError(f"the clips in {folder} cannot be used: {listed_problems(problems)}")


def listed_problems(problems: Sequence[str]) -> str:
    """List the first few of many problems."""
    shown = "; ".join(problems[:_MOST_PROBLEMS])
    more = len(problems) - _MOST_PROBLEMS
    return f"{shown}; and {more} more of this kind" if more > 0 else shown


def dataset_root(data: DeblurData) -> Path:
    """Give the folder or the pack of the dataset.

    Raises:
        ConfigError: Where none is named.
    """
    if data.root is None:
        raise ConfigError(
            "data.root is not set: name the folder of the clips, or generate some with "
            "`pitstop data make deblur FOLDER`"
        )
    return data.root
