"""A nuScenes set read through from end to end."""

import time
from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.data.check import DataCheck, SplitFound
from pitstop.errors import DataError
from pitstop.workloads.bev.data.augment import fitted
from pitstop.workloads.bev.data.dataset import Frames
from pitstop.workloads.bev.data.index import CAMERAS, BevIndex
from pitstop.workloads.bev.data.maps import CityMap
from pitstop.workloads.bev.data.stored import open_index, open_map

_TABLE: Final = "sample_data.json"


def is_world(root: Path) -> bool:
    """Tell whether a folder holds versions of nuScenes tables."""
    return any(root.glob(f"*/{_TABLE}"))


def check_world(root: Path) -> DataCheck:
    """Read the tables and maps of every version, and decode every image of its key frames.

    Raises:
        DataError: Where there is no set.
    """
    begun = time.perf_counter()
    versions = sorted(path.parent.name for path in root.glob(f"*/{_TABLE}"))
    if not versions:
        raise DataError(f"{root} holds no nuScenes tables: no folder in it has a {_TABLE}")
    problems: list[str] = []
    splits = {}
    for version in versions:
        try:
            index = open_index(root, version)
        except DataError as error:
            problems.append(str(error))
            continue
        cities = _maps(root, index, problems)
        splits[version] = _read_through(root, index, cities, problems)
    return DataCheck(
        root=str(root),
        workload="bev",
        packed=False,
        splits=splits,
        problems=tuple(problems),
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
    files: Counter[str] = Counter()
    size_bytes = 0
    for sample in range(len(index)):
        for slot, camera in enumerate(CAMERAS):
            original = frames.original(sample, slot)
            view = fitted(original, original, 1.0)
            try:
                frames.picture(sample, slot, view, original, colours=None)
            except DataError as error:
                problems.append(str(error))
                continue
            files[camera] += 1
            size_bytes += (root / index.file(sample, slot)).stat().st_size
    return SplitFound(sequences=len(index.scenes), files=dict(files), size_bytes=size_bytes)
