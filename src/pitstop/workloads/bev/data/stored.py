"""What was made of tables and maps, kept beside them as plain arrays.

Reading the full set's tables takes more than a minute, reading this a second. It holds as long as
the files it was made of hold the same bytes: a file of the size and time it had is taken to be the
same, unless it is about as young as what was kept; any other is read and its sum compared.
"""

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from pitstop.data.packed_files import find_pack, is_file, stamp_of
from pitstop.records.files import whole_file
from pitstop.workloads.bev.data.index import BevIndex, build_index
from pitstop.workloads.bev.data.maps import LAYERS, CityMap, MapLayer, expansion_path, read_map
from pitstop.workloads.bev.data.raster import Paths
from pitstop.workloads.bev.data.tables import TABLES, check_tables, table_path

_FORMAT: Final = 1
# A file written again within the clock's step of another may keep its size and its time.
_YOUNG_NS: Final = 2_000_000_000
_FACTS: Final = "facts"

_Arrays = Mapping[str, "np.ndarray[Any, Any]"]


def open_index(root: Path, version: str) -> BevIndex:
    """Give the index of a version, from what was kept where that still holds.

    Raises:
        DataError: As `build_index` does.
    """
    check_tables(root, version)
    sources = [table_path(root, version, table) for table in TABLES]
    kept = _find(root, f"index-{version}", sources)
    if kept is not None:
        return BevIndex(**{part.name: kept[part.name] for part in fields(BevIndex)})
    index = build_index(root, version)
    arrays = {part.name: getattr(index, part.name) for part in fields(BevIndex)}
    _keep(root, f"index-{version}", sources, arrays)
    return index


def open_map(root: Path, location: str) -> CityMap:
    """Give the map of a place, from what was kept where that still holds.

    Raises:
        DataError: As `read_map` does.
    """
    sources = [expansion_path(root, location)]
    if not is_file(sources[0]):
        return read_map(sources[0])
    kept = _find(root, f"map-{location}", sources)
    if kept is not None:
        return CityMap(layers={layer: _unpacked(kept, layer) for layer in LAYERS})
    city = read_map(sources[0])
    arrays = {
        f"{name}.{part}": array
        for name, layer in city.layers.items()
        for part, array in _packed(layer).items()
    }
    _keep(root, f"map-{location}", sources, arrays)
    return city


def _packed(layer: MapLayer) -> _Arrays:
    return {
        "points": layer.paths.points,
        "starts": layer.paths.starts,
        "first_path": layer.first_path,
        "bounds": layer.bounds,
    }


def _unpacked(kept: _Arrays, name: str) -> MapLayer:
    return MapLayer(
        paths=Paths(points=kept[f"{name}.points"], starts=kept[f"{name}.starts"]),
        first_path=kept[f"{name}.first_path"],
        bounds=kept[f"{name}.bounds"],
    )


def _places(root: Path, name: str) -> list[Path]:
    """Say where something may be kept: in the set itself, or else in the user's own cache."""
    place = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return [
        root / ".pitstop" / f"{name}.npz",
        Path("~/.cache/pitstop/bev").expanduser() / place / f"{name}.npz",
    ]


def _find(root: Path, name: str, sources: Sequence[Path]) -> _Arrays | None:
    for path in _places(root, name):
        try:
            kept_ns = path.stat().st_mtime_ns
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
            facts = json.loads(str(arrays.pop(_FACTS)))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
            # Not there, or broken off while it was written: it is made again.
            continue
        if facts.get("format") == _FORMAT and _holds(facts["sources"], sources, kept_ns):
            return arrays
    return None


def _holds(stated: Mapping[str, Any], sources: Sequence[Path], kept_ns: int) -> bool:
    if sorted(stated) != sorted(path.name for path in sources):
        return False
    for path in sources:
        size, changed_ns, digest = stated[path.name]
        now_bytes, now_ns = stamp_of(path)
        if now_bytes != size:
            return False
        is_young = now_ns > kept_ns - _YOUNG_NS
        if (now_ns != changed_ns or is_young) and _digest(path) != digest:
            return False
    return True


def _keep(root: Path, name: str, sources: Sequence[Path], arrays: _Arrays) -> None:
    stated = {path.name: (*stamp_of(path), _digest(path)) for path in sources}
    facts = json.dumps({"format": _FORMAT, "sources": stated})
    for place in _places(root, name):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, {_FACTS: np.array(facts), **arrays})
        except OSError:
            # A set that cannot be written to is kept elsewhere, or read anew next time.
            continue
        return


def _write(path: Path, arrays: _Arrays) -> None:
    """Write a file that appears whole or not at all."""
    with whole_file(path) as temporary, temporary.open("wb") as file:
        # An array of this name would be taken for an option; there is none.
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def _digest(path: Path) -> str:
    packed = find_pack(path)
    if packed is not None:
        return hashlib.sha256(packed.content(path).data).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
