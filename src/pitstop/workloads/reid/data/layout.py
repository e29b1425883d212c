"""Where the files of ORBench lie, in the layout of the challenge and in that of the release.

    challenge   <root>/train/{vis,nir,cp,sk}/<person>/*.jpg    <root>/train/text_annos.json
                <root>/val/{gallery,nir,cp,sk}/*.jpg           <root>/val/val_queries.json
    release     <root>/{vis,nir,cp,sk}/<person>/*.jpg          <root>/train_annos.json
                                                               <root>/test_gallery_and_queries.json

The folder names the person, in every modality. The `id` of an annotation is a number for the same
person, and is only held against the folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, NamedTuple

from pitstop.data.packed_files import is_file, is_folder, read_file
from pitstop.errors import DataError
from pitstop.workloads.reid.data.modalities import CP, NIR, RGB, SK

FOLDERS: Final[Mapping[str, str]] = {RGB: "vis", NIR: "nir", CP: "cp", SK: "sk"}
"""Folder of each modality that has images."""

TEST_LISTS: Final = "test_gallery_and_queries.json"
VAL_LISTS: Final = "val_queries.json"
GALLERY: Final = "RGB_GALLERY"

_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".bmp")


class Annotation(NamedTuple):
    """One colour image and what is said of it."""

    person: str
    """Folder of the person."""
    name: str
    """File in that folder."""
    caption: str
    number: int | None
    """The annotation's own number for the person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleLayout:
    """Where the training part lies."""

    kind: Literal["challenge", "release"]
    folder: Path
    """Holds a folder for each modality."""
    annotations: Path
    test_lists: Path | None
    """Gallery and queries of the test, where there are any."""

    @property
    def only_annotated(self) -> bool:
        """Whether the folders also hold people who are not to be trained on."""
        return self.kind == "release"


def find_layout(root: Path, split: str = "train") -> PeopleLayout:
    """Recognise the layout by what is there.

    Args:
        root: Folder of the dataset.
        split: Part to train on; a folder in the challenge's layout.

    Raises:
        DataError: Where there is neither.
    """
    challenge, release = root / split, root
    for kind, folder, notes in (
        ("challenge", challenge, "text_annos.json"),
        ("release", release, f"{split}_annos.json"),
    ):
        if not is_folder(folder / FOLDERS[RGB]):
            continue
        if not is_file(folder / notes):
            raise DataError(
                f"there is no {folder / notes}, though {folder / FOLDERS[RGB]} has images; "
                "put the captions there"
            )
        lists = root / TEST_LISTS
        return PeopleLayout(
            kind="challenge" if kind == "challenge" else "release",
            folder=folder,
            annotations=folder / notes,
            test_lists=lists if is_file(lists) else None,
        )
    raise DataError(
        f"{root} holds no people: there is neither {challenge / 'vis'} nor {release / 'vis'}; "
        f"data.root must be the folder of the dataset, or generate one with `pitstop data make "
        f"reid {root}`"
    )


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Raises:
        DataError: Where it is not there, not UTF-8, or not whole.
    """
    try:
        return json.loads(read_file(path).decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not JSON, or is cut off: {error.msg} in line {error.lineno}, "
            f"column {error.colno}; fetch it anew"
        ) from error
    except (RecursionError, ValueError) as error:
        # Lists within lists without end, or a number of thousands of digits.
        raise DataError(f"{path} is no usable JSON: {error}; fetch it anew") from error


def read_annotations(path: Path) -> list[Annotation]:
    """Read who is on which colour image, and the captions.

    Raises:
        DataError: Where the file cannot be used, names an image twice, or mixes people up.
    """
    rows = read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"{path} must hold a list of annotations, not a {_kind(rows)}")
    found = [_annotation(row, f"{path}, entry {place}") for place, row in enumerate(rows)]
    seen: set[tuple[str, str]] = set()
    for note in found:
        if (note.person, note.name) in seen:
            raise DataError(
                f"{path} names {FOLDERS[RGB]}/{note.person}/{note.name} twice; remove one of the "
                "annotations"
            )
        seen.add((note.person, note.name))
    _check_numbers(path, found)
    return found


def is_image(name: str) -> bool:
    """Tell by its name whether a file is an image; hidden files are none."""
    return name.lower().endswith(_SUFFIXES) and not name.startswith(".")


def split_path(text: str, where: str) -> tuple[str, str, str]:
    """Take `vis/0941/name.jpg` apart into folder of the modality, person and name.

    Raises:
        DataError: Where it is not of that form.
    """
    parts = PurePosixPath(text.replace("\\", "/")).parts
    is_image_path = len(parts) == 3 and ".." not in parts and parts[0] in FOLDERS.values()
    if not is_image_path or "\0" in text or not _is_text(text):
        raise DataError(
            f"{where}: {text!r} is not the path of an image, such as vis/0941/0941_cam1_vis.jpg"
        )
    return parts[0], parts[1], parts[2]


def require_text(text: str, where: str) -> str:
    """Let a caption pass that is whole.

    Raises:
        DataError: Where it holds half a character, as an escape of JSON can write one.
    """
    if not _is_text(text):
        raise DataError(
            f"{where}: the caption holds half a character (an escape from \\ud800 to \\udfff "
            "without its other half); write it anew"
        )
    return text


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _annotation(row: Any, where: str) -> Annotation:
    if not isinstance(row, dict) or not isinstance(row.get("file_path"), str):
        raise DataError(f"{where} has no file_path, the path of its image")
    caption, number = row.get("caption"), row.get("id")
    if not isinstance(caption, str):
        raise DataError(f"{where} has no caption, a string")
    require_text(caption, where)
    folder, person, name = split_path(row["file_path"], where)
    if folder != FOLDERS[RGB]:
        raise DataError(f"{where} is about {row['file_path']}, which is no colour image")
    return Annotation(person, name, caption, number if isinstance(number, int) else None)


def _check_numbers(path: Path, notes: list[Annotation]) -> None:
    """Hold numbers against folders: each of one stands for one of the other."""
    folder_of: dict[int, str] = {}
    number_of: dict[str, int] = {}
    for note in notes:
        if note.number is None:
            continue
        folder = folder_of.setdefault(note.number, note.person)
        number = number_of.setdefault(note.person, note.number)
        if folder != note.person:
            raise DataError(
                f"{path}: id {note.number} stands for the folders {folder} and {note.person}; "
                "an id is one person, so fix one of them"
            )
        if number != note.number:
            raise DataError(
                f"{path}: the folder {note.person} has the ids {number} and {note.number}; "
                "a folder is one person, so fix one of them"
            )


def _kind(value: Any) -> str:
    return {"dict": "mapping", "str": "text", "NoneType": "null"}.get(
        type(value).__name__, type(value).__name__
    )
