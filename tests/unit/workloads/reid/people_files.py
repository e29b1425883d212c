"""Small datasets written by hand, in both layouts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pitstop.workloads.reid.data.layout import FOLDERS
from pitstop.workloads.reid.data.modalities import MODALITIES, bit

SIDES = ("front", "back", "side")


def mask_of(modalities: Iterable[str]) -> int:
    """The mask that has these modalities."""
    return sum({bit(modality) for modality in modalities})


def modalities_in(mask: int) -> tuple[str, ...]:
    """Names of the modalities of a mask, in their order."""
    return tuple(name for name in MODALITIES if mask & bit(name))


def jpeg(size: tuple[int, int] = (16, 8), level: int = 128, **options: int) -> bytes:
    """A plain grey image: its level survives any resampling, and turning it into one channel."""
    pixels = np.full((*size, 3), level, np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def names(person: str, counts: Mapping[str, int]) -> dict[str, list[str]]:
    """File names of a person by modality, as ORBench has them."""
    found: dict[str, list[str]] = {}
    for modality, count in counts.items():
        ending = f"{FOLDERS[modality]}.jpg"
        found[modality] = [
            f"{person}_made_{SIDES[n % 3]}_{n:04d}_{ending}"
            if modality in ("cp", "sk")
            else f"{person}_made_0470_cam{1 + n % 6}_{n:04d}_{ending}"
            for n in range(count)
        ]
    return found


def write_people(
    root: Path,
    people: Mapping[str, Mapping[str, int]],
    *,
    layout: str = "challenge",
    notes: Sequence[Any] | None = None,
) -> Path:
    """Write images of people, and a caption for every colour image unless given."""
    folder = root / "train" if layout == "challenge" else root
    made: list[Any] = []
    for number, (person, counts) in enumerate(people.items()):
        for modality, files in names(person, counts).items():
            own = folder / FOLDERS[modality] / person
            own.mkdir(parents=True)
            for place, name in enumerate(files):
                # The level tells who it is, and which one.
                level = (20 * number + 2 * place + 10) % 250
                (own / name).write_bytes(jpeg(level=level, quality=95))
                if modality == "rgb":
                    path = f"vis/{person}/{name}"
                    caption = f"person {person} number {place}"
                    made.append({"id": number + 1, "file_path": path, "caption": caption})
    (folder / FOLDERS["rgb"]).mkdir(parents=True, exist_ok=True)
    file = folder / ("text_annos.json" if layout == "challenge" else "train_annos.json")
    file.write_text(json.dumps(made if notes is None else list(notes)), encoding="utf-8")
    return root


FULL = {"rgb": 3, "nir": 2, "cp": 3, "sk": 3}
