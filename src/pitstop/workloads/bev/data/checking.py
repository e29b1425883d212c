"""A nuScenes set read through from end to end."""

import time
from collections import Counter
from pathlib import Path

import numpy as np

from pitstop.data.check import DataCheck, SplitFound
from pitstop.data.packed_files import PackedFolder, damaged_in, find_pack
from pitstop.errors import DataError
from pitstop.workloads.bev.data.augment import fitted
from pitstop.workloads.bev.data.dataset import Frames
from pitstop.workloads.bev.data.decode import decode, packed_pictures
from pitstop.workloads.bev.data.index import CAMERAS, BevIndex
from pitstop.workloads.bev.data.maps import CityMap
from pitstop.workloads.bev.data.stored import open_index, open_map
from pitstop.workloads.bev.data.tables import versions_in


def is_world(root: Path) -> bool:
    """Tell whether a folder or pack holds versions of nuScenes tables."""
    return bool(versions_in(root))


def check_world(root: Path, version: str | None = None) -> DataCheck:
    """Read tables and maps, and decode every image of key frames.

    Args:
        root: Folder of the set, or a pack of it.
        version: Of the tables; None for every one there is.

    Raises:
        DataError: Where there is no set.
    """
    begun = time.perf_counter()
    versions = versions_in(root)
    if not versions:
        raise DataError(f"{root} holds no nuScenes tables: no folder in it has a sample_data.json")
    problems: list[str] = []
    splits = {}
    for name in versions if version is None else [version]:
        try:
            index = open_index(root, name)
        except DataError as error:
            problems.append(str(error))
            continue
        cities = _maps(root, index, problems)
        splits[name] = _read_through(root, index, cities, problems)
    return DataCheck(
        root=str(root),
        workload="bev",
        packed=find_pack(root) is not None,
        splits=splits,
        problems=(*problems, *damaged_in(root)),
        notes=("lidar points were not read",),
        took_s=time.perf_counter() - begun,
    )


def _maps(root: Path, index: BevIndex, problems: list[str]) -> dict[str, CityMap]:
    cities = {}
    for place in sorted(set(index.locations.tolist())):
        try:
            cities[place] = open_map(root, place)
        except DataError as error:
            problems.append(str(error))
    return cities


def _read_through(
    root: Path, index: BevIndex, cities: dict[str, CityMap], problems: list[str]
) -> SplitFound:
    """Decode every image, as small as the format allows; sizes are those of the tables."""
    frames = Frames(root=root, index=index, cities=cities, chosen=np.arange(len(index)))
    packed = find_pack(root)
    files: Counter[str] = Counter()
    size_bytes = 0
    for sample in range(len(index)):
        for slot, camera in enumerate(CAMERAS):
            try:
                taken = _read_whole(frames, sample, slot, packed)
            except DataError as error:
                problems.append(str(error))
                continue
            # A pack by a configuration holds its two splits alone, and the tables whole.
            files[camera] += taken is not None
            size_bytes += taken or 0
    return SplitFound(sequences=len(index.scenes), files=dict(files), size_bytes=size_bytes)


def _read_whole(frames: Frames, sample: int, slot: int, packed: PackedFolder | None) -> int | None:
    """Give the bytes of an image that can be decoded; None where a pack does not have it.

    Raises:
        DataError: Where it cannot.
    """
    original, path = frames.original(sample, slot), frames.path(sample, slot)
    if packed is None:
        view = fitted(original, original, 1.0)
        frames.picture(sample, slot, view, original, colours=None)
        return path.stat().st_size
    stored = packed_pictures(packed, packed.name(path))
    for content in stored:
        if content.ndim == 1:  # whether decoded pixels have changed is for the pack's sums to say
            decode(content.tobytes(), path, original, 1)
    return sum(content.size for content in stored) if stored else None
