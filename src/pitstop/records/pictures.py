"""Pictures that a run leaves behind for people to look at: rows of a few frames side by side.

Pictures
└── PictureRow ...             one scene: a title and its cells, in the order of their columns
    └── PictureCell ...        one picture: its caption and its file

They lie in ``RUN/pictures``: ``pictures.json`` and, beside it, PNG or JPEG files under plain names.
Any workload may write them; the page shows them as they are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pitstop.errors import RecordError, os_errors_as
from pitstop.records.files import read_regular
from pitstop.records.store import from_json, write_json

FOLDER: Final = "pictures"
INDEX: Final = "pictures.json"

_MOST_BYTES: Final = 64 << 20  # of the index, and of one picture
_KINDS: Final = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
_BEGINNINGS: Final = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureCell:
    """One picture of a row."""

    caption: str
    """What it shows, such as ``blurry``; the same in all rows where columns are to line up."""
    file: str
    """Plain name of a PNG or JPEG file beside ``pictures.json``."""

    def __post_init__(self) -> None:
        """Refuse a name that leads elsewhere, or to something that is no picture."""
        name = self.file
        if name in ("", ".", "..") or any(letter in name for letter in "/\\:\0"):
            raise ValueError(f"a picture's file is a plain name beside {INDEX}, not {name!r}")
        if Path(name).suffix.lower() not in _KINDS:
            raise ValueError(f"a picture is a .png, .jpg or .jpeg file, not {name!r}")

    @property
    def media_type(self) -> str:
        """What a browser calls it."""
        return _KINDS[Path(self.file).suffix.lower()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRow:
    """Pictures that belong together, such as one frame before and after."""

    title: str
    cells: tuple[PictureCell, ...]
    note: str | None = None
    """What a reader must know of them, such as a measure of quality with its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """All pictures of a run."""

    rows: tuple[PictureRow, ...]


def write_pictures(folder: Path, pictures: Pictures) -> None:
    """Write the index into a run's folder; the files themselves are the caller's to put beside it.

    Args:
        folder: The run's folder; ``pictures/`` is made in it.
        pictures: What lies there, or will.

    Raises:
        RecordError: The folder cannot be made or written to.
    """
    place = folder / FOLDER
    with os_errors_as(RecordError, f"cannot write to {place}"):
        place.mkdir(parents=True, exist_ok=True)
    write_json(pictures, place / INDEX)


def read_pictures(folder: Path) -> Pictures | None:
    """Read the index of a run's pictures; None where the run has none.

    Raises:
        RecordError: There is one, and it is damaged or written by a newer pitstop.
    """
    path = folder / FOLDER / INDEX
    if not path.is_file():
        return None
    try:
        text = read_regular(path, most_bytes=_MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    return from_json(text, Pictures)


def picture_bytes(folder: Path, cell: PictureCell) -> bytes:
    """Read one picture's file as it is.

    Raises:
        RecordError: The file is not there, lies elsewhere by way of a link, or is no picture.
    """
    place = (folder / FOLDER).resolve()
    path = place / cell.file
    with os_errors_as(RecordError, f"cannot read {cell.file}"):
        if path.resolve().parent != place:
            raise RecordError(f"{cell.file} is a link that leads out of {FOLDER}")
        if path.exists() and not path.is_file():
            raise RecordError(f"{cell.file} is no file")
        data = read_regular(path, most_bytes=_MOST_BYTES)
    if not data.startswith(_BEGINNINGS[cell.media_type]):
        raise RecordError(f"{cell.file} does not hold what its name says")
    return data
