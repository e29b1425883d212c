"""Key frames of nuScenes as samples: six cameras around the car, or one camera and what is ahead.

Everything is checked once, when the samples are listed: a missing table, map or image is said
then. What a sample looks like is a function of seed, epoch and index.

The frame of surround targets is that of the car at the moment of the lidar. That cameras look a few
hundredths of a second earlier or later is not undone, as in the published models: their geometry
is that of the rig, and can be worked out once.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from pitstop.config.workloads.bev import BevData, MonoData, SurroundData
from pitstop.data.cache.items import Key
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.stages import stage
from pitstop.data.packed_files import find_pack
from pitstop.errors import ConfigError, DataError, os_errors_as
from pitstop.workloads.bev.data.augment import (
    Bytes,
    Chance,
    Colours,
    ImageAugment,
    fitted,
    random_colours,
    random_ground,
    random_view,
    reduction_of,
    reductions_between,
    show,
    stretched,
)
from pitstop.workloads.bev.data.batch import BevSample
from pitstop.workloads.bev.data.decode import PictureReader, drawn_key, is_packed, picture_key
from pitstop.workloads.bev.data.index import CAMERAS, BevIndex
from pitstop.workloads.bev.data.maps import CityMap
from pitstop.workloads.bev.data.pon import PON_GRID, Labels, make_labels, read_labels, read_points
from pitstop.workloads.bev.data.pon_benchmark import benchmark_labels
from pitstop.workloads.bev.data.poses import Floats
from pitstop.workloads.bev.data.raster import Grid, Ints
from pitstop.workloads.bev.data.splits import split_scenes
from pitstop.workloads.bev.data.stored import open_index, open_map
from pitstop.workloads.bev.data.targets import SURROUND_CLASSES, SURROUND_GRID, surround_targets

RANDOM: Final = -1
"""Calibration of a sample whose geometry was drawn at random."""

_VIEW_STREAM: Final = 0x424556


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The key frames of a split, and the maps they lie on."""

    root: Path
    index: BevIndex
    cities: Mapping[str, CityMap]
    chosen: Ints
    """Numbers of the samples in the index."""
    reader: PictureReader = field(default_factory=PictureReader)

    def city(self, sample: int) -> CityMap:
        """Give the map of a sample."""
        return self.cities[self.index.location(sample)]

    def picture(
        self,
        sample: int,
        slot: int,
        view: Floats,
        size: tuple[int, int],
        *,
        colours: Colours | None,
    ) -> Bytes:
        """Read an image and bring it where a matrix says, as (3, H, W)."""
        original = self.original(sample, slot)
        pixels = self.reader.pixels(self.path(sample, slot), original, reduction_of(view))
        with stage("transform"):
            return show(pixels, original, view, size, colours=colours)

    def path(self, sample: int, slot: int) -> Path:
        """Name the file of an image."""
        return self.root / self.index.file(sample, slot)

    def with_cache(self, cache: SharedCache) -> "Frames":
        """Give the same frames, whose images are kept as pixels once they are read."""
        return replace(self, reader=replace(self.reader, cache=cache))

    def original(self, sample: int, slot: int) -> tuple[int, int]:
        """Give height and width of an image, as the tables have them."""
        height, width = self.index.image_sizes[sample, slot].tolist()
        return height, width

    def intrinsics(self, sample: int, slots: Sequence[int]) -> Floats:
        """Give the matrices of some cameras as (N, 3, 3)."""
        return self.index.intrinsics[self.index.calibration[sample, list(slots)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurroundSamples:
    """Six cameras are one sample; small enough to travel to workers."""

    frames: Frames
    size: tuple[int, int]
    scale: float
    """Of images that are not changed at random."""
    seed: int
    grid: Grid = SURROUND_GRID
    classes: tuple[str, ...] = SURROUND_CLASSES
    min_visibility: int = 1
    cameras: int = len(CAMERAS)
    augment: ImageAugment | None = None
    """None where images keep their place."""
    bev_augment: bool = False
    photometric: bool = False

    def __len__(self) -> int:
        return len(self.frames.chosen)

    def sample(self, epoch: int, index: int) -> BevSample:
        """Read the cameras of a moment, as this epoch has them."""
        frames, sample = self.frames, int(self.frames.chosen[index])
        chance = Chance(self.seed, epoch, index, _VIEW_STREAM)
        slots = chance.some(self.cameras, len(CAMERAS))
        views = np.stack([self._view(sample, slot, chance) for slot in slots])
        bev_transform = random_ground(chance) if self.bev_augment else np.eye(4)
        colours = [random_colours(chance) if self.photometric else None for _ in slots]
        pictures = [
            frames.picture(sample, slot, view, self.size, colours=colour)
            for slot, view, colour in zip(slots, views, colours, strict=True)
        ]
        with stage("targets"):
            labels = self._labels(sample, bev_transform)
        is_random = self.augment is not None or self.bev_augment or self.cameras < len(CAMERAS)
        rig = frames.index.cameras_to_ego(sample, slots)
        return joined(
            pictures,
            (frames.intrinsics(sample, slots), rig, views, bev_transform),
            labels,
            # A car that drives on gives each moment a geometry that never comes again.
            is_random=is_random or frames.index.drives_on(sample),
        )

    @property
    def sequences(self) -> Ints:
        """Number of the scene of each sample."""
        return self.frames.index.sample_scene[self.frames.chosen]

    def name_of(self, index: int) -> str:
        """Name the scene and the front image of a sample."""
        return _name(self.frames, int(self.frames.chosen[index]), CAMERAS.index("CAM_FRONT"))

    def with_cache(self, cache: SharedCache) -> "SurroundSamples":
        """Give the same samples, whose images and fixed targets are kept once they are known."""
        return replace(self, frames=self.frames.with_cache(cache))

    def cache_keys(self, index: int) -> Iterator[Key]:
        """List the images of a moment; which of them an epoch leaves out is not known before.

        Where the range of scales allows an image to be decoded at more than one size, each of
        them is listed.
        """
        sample = int(self.frames.chosen[index])
        for slot in range(len(CAMERAS)):
            scales = self._scales(sample, slot)
            for reduction in reductions_between(*scales):
                yield picture_key(self.frames.path(sample, slot), reduction)
        if not self.bev_augment:
            yield drawn_key(self.frames.path(sample, 0))

    def _labels(self, sample: int, bev_transform: Floats) -> Labels:
        if self.bev_augment:
            return self._drawn(sample, bev_transform)
        path = self.frames.path(sample, 0)
        return self.frames.reader.drawn(path, lambda: self._drawn(sample, bev_transform))

    def _drawn(self, sample: int, bev_transform: Floats) -> Labels:
        targets = surround_targets(
            self.frames.index,
            self.frames.city(sample),
            sample,
            grid=self.grid,
            classes=self.classes,
            bev_transform=bev_transform,
            min_visibility=self.min_visibility,
        )
        return targets, np.ones(self.grid.shape, np.bool_)

    def _view(self, sample: int, slot: int, chance: Chance) -> Floats:
        original = self.frames.original(sample, slot)
        if self.augment is None:
            return fitted(original, self.size, self._scales(sample, slot)[0])
        return random_view(original, self.size, self.augment, chance)

    def _scales(self, sample: int, slot: int) -> tuple[float, float]:
        """Say between which scales images are shown."""
        if self.augment is not None:
            return self.augment.resize
        scale = max(self.scale, self.size[1] / self.frames.original(sample, slot)[1])
        return scale, scale


@dataclass(frozen=True, slots=True, kw_only=True)
class MonoSamples:
    """One camera is one sample; the six of a moment follow each other."""

    frames: Frames
    size: tuple[int, int]
    seed: int
    grid: Grid = PON_GRID
    labels: Path | None = None
    """Folder of label files; None where labels are made of boxes, the map and lidar points."""
    label_rules: Literal["geometry", "pon"] = "geometry"
    photometric: bool = False

    def __len__(self) -> int:
        return len(self.frames.chosen) * len(CAMERAS)

    def sample(self, epoch: int, index: int) -> BevSample:
        """Read one image, as this epoch has it, and what lies ahead of its camera."""
        sample, slot = self._place(index)
        chance = Chance(self.seed, epoch, index, _VIEW_STREAM)
        view = stretched(self.frames.original(sample, slot), self.size)
        colours = random_colours(chance) if self.photometric else None
        picture = self.frames.picture(sample, slot, view, self.size, colours=colours)
        with stage("targets"):
            path = self.frames.path(sample, slot)
            labels = self.frames.reader.drawn(path, lambda: self._labels(sample, slot))
        intrinsics = self.frames.intrinsics(sample, [slot])
        geometry = (intrinsics, np.eye(4)[None], view[None], np.eye(4))
        return joined([picture], geometry, labels, is_random=False)

    @property
    def sequences(self) -> Ints:
        """Number of the scene of each sample."""
        return np.repeat(self.frames.index.sample_scene[self.frames.chosen], len(CAMERAS))

    def name_of(self, index: int) -> str:
        """Name the scene and the image of a sample."""
        return _name(self.frames, *self._place(index))

    def with_cache(self, cache: SharedCache) -> "MonoSamples":
        """Give the same samples, whose images and fixed targets are kept once they are known."""
        return replace(self, frames=self.frames.with_cache(cache))

    def cache_keys(self, index: int) -> Iterator[Key]:
        """Name the image of a sample, and its labels."""
        sample, slot = self._place(index)
        path = self.frames.path(sample, slot)
        view = stretched(self.frames.original(sample, slot), self.size)
        yield picture_key(path, reduction_of(view))
        yield drawn_key(path)

    def _place(self, index: int) -> tuple[int, int]:
        place, slot = divmod(index, len(CAMERAS))
        return int(self.frames.chosen[place]), slot

    def _labels(self, sample: int, slot: int) -> Labels:
        frames = self.frames
        if self.labels is not None:
            name = f"{frames.index.file_token(sample, slot)}.png"
            return read_labels(self.labels / name, self.grid)
        points = None
        if frames.index.has_lidar(sample):
            points = read_points(frames.root / frames.index.file(sample, -1))
        make = benchmark_labels if self.label_rules == "pon" else make_labels
        return make(frames.index, frames.city(sample), sample, slot, points=points, grid=self.grid)


def open_frames(data: BevData, split: str, *, needs_maps: bool = True) -> Frames:
    """List the key frames of a split, all files of which are known to be there.

    Raises:
        ConfigError: Where no set is named.
        DataError: Where something is missing or does not fit; names it.
    """
    if data.root is None:
        raise ConfigError("data.root is not set; name the folder of a nuScenes set")
    index = open_index(data.root, data.version)
    wanted = split_scenes(data.root, data.version, split)
    chosen = index.samples_of(wanted)
    if not len(chosen):
        there = ", ".join(index.scenes[:3].tolist())
        raise DataError(
            f"{data.root / data.version} has no scene of the split {split}; it has {there}"
            f"{' and others' if len(index.scenes) > 3 else ''}"
        )
    _refuse_missing(data.root, index, chosen)
    places = sorted({index.location(sample) for sample in chosen.tolist()}) if needs_maps else ()
    return Frames(
        root=data.root,
        index=index,
        cities={place: open_map(data.root, place) for place in places},
        chosen=chosen,
        reader=PictureReader(packed=find_pack(data.root)),
    )


def surround_train(
    data: SurroundData,
    *,
    seed: int,
    grid: Grid = SURROUND_GRID,
    classes: tuple[str, ...] = SURROUND_CLASSES,
) -> SurroundSamples:
    """Give the training split with everything at random that the configuration asks for.

    Raises:
        ConfigError: Where no set is named.
        DataError: Where something is missing or does not fit; names it.
    """
    return replace(
        _surround(data, data.split, grid, classes),
        seed=seed,
        cameras=data.cameras,
        augment=ImageAugment(resize=data.resize, rotate_deg=data.rotate_deg, flip=data.flip),
        bev_augment=data.bev_augment,
        photometric=data.photometric,
    )


def surround_eval(
    data: SurroundData,
    *,
    grid: Grid = SURROUND_GRID,
    classes: tuple[str, ...] = SURROUND_CLASSES,
) -> SurroundSamples:
    """Give the evaluation split: all six cameras, nothing at random.

    Images have the middle of the range of training scales, or what fills their width if that is
    more, and keep their bottom.

    Raises:
        ConfigError: Where no set is named.
        DataError: Where something is missing or does not fit; names it.
    """
    return _surround(data, data.eval_split, grid, classes)


def _surround(
    data: SurroundData, split: str, grid: Grid, classes: tuple[str, ...]
) -> SurroundSamples:
    """Give a split with nothing at random."""
    return SurroundSamples(
        frames=open_frames(data, split),
        size=data.image_size,
        scale=sum(data.resize) / 2,
        seed=0,
        grid=grid,
        classes=classes,
        min_visibility=data.min_visibility,
    )


def mono_train(data: MonoData, *, seed: int, grid: Grid = PON_GRID) -> MonoSamples:
    """Give every image of the training split; only colours are changed at random.

    Raises:
        ConfigError: Where no set is named.
        DataError: Where something is missing or does not fit; names it.
    """
    samples = _mono(data, data.split, grid)
    return replace(samples, seed=seed, photometric=data.photometric)


def mono_eval(data: MonoData, *, grid: Grid = PON_GRID) -> MonoSamples:
    """Give every image of the evaluation split as it is.

    Raises:
        ConfigError: Where no set is named.
        DataError: Where something is missing or does not fit; names it.
    """
    return _mono(data, data.eval_split, grid)


def _mono(data: MonoData, split: str, grid: Grid) -> MonoSamples:
    """Give a split with nothing at random; label files are known to be there."""
    frames = open_frames(data, split, needs_maps=data.labels is None)
    if data.labels is not None:
        tokens = frames.index.file_tokens[frames.chosen, : len(CAMERAS)].ravel()
        _refuse_absent(
            data.labels, {f"{token.decode()}.png" for token in tokens.tolist()}, "label files"
        )
    return MonoSamples(
        frames=frames,
        size=data.image_size,
        seed=0,
        grid=grid,
        labels=data.labels,
        label_rules=data.label_rules,
    )


def _refuse_missing(root: Path, index: BevIndex, chosen: Ints) -> None:
    """Look every image up in its folder: one listing is cheaper than asking for each file."""
    names = [name.decode() for name in index.files[chosen, : len(CAMERAS)].ravel().tolist()]
    packed = find_pack(root)
    if packed is not None:
        absent = [name for name in names if not is_packed(packed, name)]
        if absent:
            raise DataError(
                f"{root} lacks {len(absent):,} images that sample_data.json names, such as "
                f"{absent[0]}"
            )
        return
    folders: dict[Path, set[str]] = {}
    for name in names:
        path = root / name
        folders.setdefault(path.parent, set()).add(path.name)
    for folder, names in folders.items():
        _refuse_absent(folder, names, "images that sample_data.json names")


def _refuse_absent(folder: Path, names: set[str], what: str) -> None:
    with os_errors_as(DataError, f"cannot look into {folder}"), os.scandir(folder) as entries:
        missing = names - {entry.name for entry in entries}
    if missing:
        first = min(missing)
        raise DataError(f"{folder} lacks {len(missing):,} {what}, such as {first}")


def joined(
    pictures: Sequence[Bytes],
    geometry: tuple[Floats, Floats, Floats, Floats],
    labels: Labels,
    *,
    is_random: bool,
) -> BevSample:
    """Make a sample of its parts.

    Args:
        pictures: (3, H, W) each.
        geometry: Intrinsics, where cameras stand, image transforms, and the ground's.
        labels: Targets, and what is seen.
        is_random: Whether this geometry never comes again.
    """
    with stage("transform"):
        images = torch.from_numpy(np.stack(pictures))
        matrices = [torch.from_numpy(part.astype(np.float32)) for part in geometry]
        intrinsics, cam_to_ego, image_transform, bev_transform = matrices
        number = RANDOM if is_random else _fingerprint(matrices)
        targets, mask = (torch.from_numpy(part.astype(np.uint8)) for part in labels)
    return BevSample(
        images=images,
        intrinsics=intrinsics,
        cam_to_ego=cam_to_ego,
        image_transform=image_transform,
        bev_transform=bev_transform,
        calibration=torch.tensor(number),
        targets=targets,
        mask=mask,
    )


def _fingerprint(matrices: Sequence[Tensor]) -> int:
    """Make a number of matrices that others will not have by chance."""
    data = b"".join(matrix.numpy().tobytes() for matrix in matrices)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1


def _name(frames: Frames, sample: int, slot: int) -> str:
    scene = frames.index.scenes[frames.index.sample_scene[sample]]
    return f"{scene}, {frames.index.file(sample, slot)}"
