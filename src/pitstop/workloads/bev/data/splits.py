"""Which scenes are trained on and which are evaluated.

The names of the small set are built in. Those of the full set come from a `splits.json` beside the
tables' folder, `{"train": ["scene-0001", ...], "val": [...]}`, or from nuscenes-devkit where it is
installed. A `splits.json` goes before everything else.
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pitstop.data.packed_files import is_file, read_file
from pitstop.errors import DataError

MINI_TRAIN: Final = tuple(
    f"scene-{number}" for number in ("0061", "0553", "0655", "0757", "0796", "1077", "1094", "1100")
)
MINI_VAL: Final = ("scene-0103", "scene-0916")

SPLITS_FILE: Final = "splits.json"

_MINI: Final[Mapping[str, tuple[str, ...]]] = {"mini_train": MINI_TRAIN, "mini_val": MINI_VAL}
# What a configuration made for the full set asks for, and means here.
_SHORT: Final = {"train": "mini_train", "val": "mini_val"}


def split_scenes(root: Path, version: str, split: str) -> frozenset[str]:
    """Give the names of a split's scenes.

    `train` and `val` of the version v1.0-mini are mini_train and mini_val.

    Raises:
        DataError: Where there is no such split, or nothing that says what is in it.
    """
    stated = root / SPLITS_FILE
    splits = _stated(stated) if is_file(stated) else _official(version, split)
    if version == "v1.0-mini" and split not in splits:
        split = _SHORT.get(split, split)
    if split not in splits:
        source = stated if is_file(stated) else "nuScenes"
        raise DataError(f"{source} has no split {split}; it has {', '.join(sorted(splits))}")
    return frozenset(splits[split])


def _stated(path: Path) -> Mapping[str, list[str]]:
    try:
        splits = json.loads(read_file(path).decode("utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    whole = isinstance(splits, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in splits.values()
    )
    if not whole:
        raise DataError(f"{path} must be an object with a list of scene names for each split")
    return splits


def _official(version: str, split: str) -> Mapping[str, tuple[str, ...] | list[str]]:
    if version == "v1.0-mini" or split in _MINI:
        return _MINI
    try:
        devkit = importlib.import_module("nuscenes.utils.splits")
    except ImportError as error:
        raise DataError(
            f"nothing says which scenes are in the split {split} of {version}: install "
            f"nuscenes-devkit (`pip install nuscenes-devkit`), or put a {SPLITS_FILE} such as "
            '{"train": ["scene-0001"], "val": ["scene-0003"]} into data.root'
        ) from error
    return devkit.create_splits_scenes()
