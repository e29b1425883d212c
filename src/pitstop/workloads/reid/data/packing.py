"""A dataset of people in one file: every image and every list, decoded once for all or as it is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from pitstop.data.images import require_sample
from pitstop.data.pack import Bytes, Frames, PackSummary, PackWriter
from pitstop.data.packed_files import find_pack
from pitstop.errors import DataError
from pitstop.workloads.reid.data.decode import PACK_FACTS, Size, decode, is_grey, whole_size
from pitstop.workloads.reid.data.layout import FOLDERS, find_layout, is_image
from pitstop.workloads.reid.data.modalities import NIR, RGB
from pitstop.workloads.reid.data.public_sets import SYSU_INFRARED, PublicLayout, find_public_set

WORKLOAD: Final = "reid"

_LISTS: Final = (".json", ".txt")
_MODALITY_OF: Final = {folder: modality for modality, folder in FOLDERS.items()}
_INFRARED: Final = frozenset(f"cam{camera}" for camera in SYSU_INFRARED)


def pack_people(
    root: Path, output: Path, *, frames: Frames, image_size: Size, split: str = "train"
) -> PackSummary:
    """Put all images and lists of a dataset into one file.

    Args:
        root: Folder of the dataset, in one of the layouts.
        output: The pack to write.
        frames: `decoded` for pixels as training reads them for images of `image_size`, or `encoded`
            for the files' own bytes.
        image_size: Height and width that a network sees.
        split: Part to train on, by which a layout is recognised.

    Raises:
        DataError: Where there is no dataset, or an image cannot be read; nothing is left behind.
    """
    if find_pack(root) is not None:
        raise DataError(f"{root} is a pack already")
    public = find_public_set(root)
    if public is None:
        find_layout(root, split)
    source_bytes = reduced = 0
    with PackWriter(output, workload=WORKLOAD) as writer:
        for path in _files(root, leave_out=output):
            data = require_sample(path)
            source_bytes += len(data)
            name = path.relative_to(root).as_posix()
            if not is_image(path.name):
                writer.add(name, "list", data)
                continue
            modality = _modality(path.relative_to(root), public)
            content: Bytes | bytes = data
            if frames == "decoded":
                content, smaller = _decoded(data, path, image_size, modality)
                reduced += smaller
            writer.add(name, modality, content)
        if frames == "decoded":
            facts = {"image_size": list(image_size), "reduced": reduced}
            writer.add(PACK_FACTS, "facts", json.dumps(facts).encode())
    return writer.summary(source_bytes=source_bytes)


def _files(root: Path, *, leave_out: Path) -> Iterator[Path]:
    """List images and lists folder by folder, so that those of a person are neighbours."""
    own = leave_out.resolve()
    for path in sorted(root.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path, leave_out=leave_out)
        elif is_image(path.name) or (path.suffix.lower() in _LISTS and path.resolve() != own):
            yield path


def _modality(name: Path, public: PublicLayout | None) -> str:
    """Tell from the folders of an image what it is; a public set has cameras instead."""
    above = name.parts[:-1]
    if public is not None:
        is_infrared = public.kind == "sysu_mm01" and not _INFRARED.isdisjoint(above)
        return NIR if is_infrared else RGB
    return next((_MODALITY_OF[part] for part in above if part in _MODALITY_OF), RGB)


def _decoded(data: bytes, path: Path, needed: Size, modality: str) -> tuple[Bytes, bool]:
    """Give the pixels that training would see, and whether fewer than the file has."""
    try:
        pixels = np.asarray(decode(data, path, needed=needed, grey=is_grey(modality)))
    except DataError as error:
        raise DataError(f"{error}; see all with `pitstop data check`") from error
    return pixels, pixels.shape[:2] != whole_size(data, path)
