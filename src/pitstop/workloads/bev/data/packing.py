"""A nuScenes set in one file: tables, maps and the images of key frames, decoded or as files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pitstop.data.cache.items import Key
from pitstop.data.images import require_sample
from pitstop.data.pack import PackSummary, PackWriter
from pitstop.data.packed_files import find_pack
from pitstop.errors import DataError
from pitstop.workloads.bev.data.decode import decode, packed_name
from pitstop.workloads.bev.data.index import CAMERAS, BevIndex
from pitstop.workloads.bev.data.maps import expansion_path
from pitstop.workloads.bev.data.raster import Ints
from pitstop.workloads.bev.data.splits import SPLITS_FILE
from pitstop.workloads.bev.data.stored import open_index
from pitstop.workloads.bev.data.tables import TABLES, table_path, versions_in

WORKLOAD: Final = "bev"


class Keyed(Protocol):
    """Samples that say which images they read, and how much smaller."""

    def __len__(self) -> int: ...

    def cache_keys(self, index: int) -> Iterator[Key]:
        """Name images as `picture_key` does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """The key frames of one version that are packed."""

    name: str
    index: BevIndex
    chosen: Ints


def pack_world(root: Path, output: Path) -> PackSummary:
    """Put everything that key frames need into one file, images and points as they are.

    Raises:
        DataError: Where something is missing or cannot be read; nothing is left behind.
    """
    _refuse_pack(root)
    found = [(name, open_index(root, name)) for name in versions_in(root)]
    versions = [
        _Version(name=name, index=index, chosen=index.samples_of(index.scenes.tolist()))
        for name, index in found
    ]
    return _write(root, output, versions, reductions=None, with_lidar=True)


def pack_splits(
    root: Path,
    output: Path,
    version: tuple[str, BevIndex, Ints],
    *,
    decoded_for: Sequence[Keyed] | None,
    with_lidar: bool,
) -> PackSummary:
    """Put the key frames of a configuration's splits into one file.

    Args:
        root: Folder of the set.
        output: The pack to write.
        version: Name of the tables, what is in them, and the samples to take.
        decoded_for: Samples whose images are decoded once for all, at every size at which they are
            read; None for the files' own bytes.
        with_lidar: Whether labels are made of lidar points.

    Raises:
        DataError: Where something is missing or cannot be read; nothing is left behind.
    """
    _refuse_pack(root)
    name, index, chosen = version
    reductions = None if decoded_for is None else _reductions(root, decoded_for)
    one = _Version(name=name, index=index, chosen=chosen)
    return _write(root, output, [one], reductions=reductions, with_lidar=with_lidar)


def _write(
    root: Path,
    output: Path,
    versions: Sequence[_Version],
    *,
    reductions: Mapping[str, Sequence[int]] | None,
    with_lidar: bool,
) -> PackSummary:
    source_bytes = 0
    packed: set[str] = set()
    with PackWriter(output, workload=WORKLOAD) as writer:
        for path, field in _tables_and_maps(root, versions):
            name = path.relative_to(root).as_posix()
            if name not in packed:
                packed.add(name)
                data = require_sample(path)
                source_bytes += len(data)
                writer.add(name, field, data)
        for version in versions:
            for name, field, size in _sensors(version, with_lidar=with_lidar):
                if name in packed:
                    continue
                packed.add(name)
                data = require_sample(root / name)
                source_bytes += len(data)
                if field != "image" or reductions is None:
                    writer.add(name, field, data)
                    continue
                for step in reductions[name]:
                    pixels = decode(data, root / name, size, step)
                    writer.add(packed_name(name, step), field, pixels)
    return writer.summary(source_bytes=source_bytes)


def _tables_and_maps(root: Path, versions: Sequence[_Version]) -> Iterator[tuple[Path, str]]:
    if (root / SPLITS_FILE).is_file():
        yield root / SPLITS_FILE, "split"
    for version in versions:
        for table in TABLES:
            yield table_path(root, version.name, table), "table"
        for place in sorted(set(version.index.locations.tolist())):
            # A set without its map expansion can still be packed: labels of others need none.
            if expansion_path(root, place).is_file():
                yield expansion_path(root, place), "map"


def _sensors(version: _Version, *, with_lidar: bool) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """List the files of key frames; those of a moment are neighbours, as samples read them."""
    index = version.index
    for sample in version.chosen.tolist():
        for slot in range(len(CAMERAS)):
            height, width = index.image_sizes[sample, slot].tolist()
            yield index.file(sample, slot), "image", (height, width)
        if with_lidar and index.has_lidar(sample):
            yield index.file(sample, -1), "lidar", (0, 0)


def _reductions(root: Path, samples: Iterable[Keyed]) -> dict[str, list[int]]:
    """Say at which sizes each image is read."""
    found: dict[str, set[int]] = {}
    for each in samples:
        for place in range(len(each)):
            for key in each.cache_keys(place):
                assert isinstance(key, tuple)
                path, step = key
                if isinstance(step, int):
                    name = Path(str(path)).relative_to(root).as_posix()
                    found.setdefault(name, set()).add(step)
    return {name: sorted(steps) for name, steps in found.items()}


def _refuse_pack(root: Path) -> None:
    if find_pack(root) is not None:
        raise DataError(f"{root} is a pack already")
