"""The folder a record goes into: made, tried and found free before anything is measured."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pitstop.errors import PitstopError
from pitstop.records.store import OUTSIDE

ENDED_BY_US = "ended-by-pitstop"
"""File with which the probe leaves word that it ended the script."""

MEASURED = "measured-by-pitstop"
"""File with which the probe leaves word that it has measured as many steps as were asked for."""

OF_A_SCRIPT = (
    "rank-*.jsonl",
    "other-*.jsonl",
    "worker-*.jsonl",
    "seen-*.json",
    "failed-*.json",
    "without-*",
    OUTSIDE,
    ENDED_BY_US,
    MEASURED,
)
"""Patterns of what a script that runs under measurement leaves in the folder."""

# Space for the first lines of a record.
_TRIED_BYTES = 4096


def fresh_folder(folder: str | Path, *, of_a_run: Sequence[str] = OF_A_SCRIPT) -> Path:
    """Make the folder, or see that nothing of another run is in it.

    Absolute, for whoever trains may change his directory before he writes.

    Args:
        folder: Where the record is to go.
        of_a_run: Patterns of the files that another run would have left.

    Raises:
        PitstopError: It is a file, cannot be written to, or holds the record of another run.
    """
    if folder == "":
        raise PitstopError("cannot write a record to '': name a folder")
    place = Path(folder).absolute()
    try:
        if place.exists() and not place.is_dir():
            raise PitstopError(f"cannot write a record to {place}: it is a file, not a folder")
        place.mkdir(parents=True, exist_ok=True)
        old = record_in(place, of_a_run)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError as error:
        raise cannot_write(place, error) from error
    if old is not None:
        raise PitstopError(f"{place} holds {old.name} of another run; name a new or empty folder")
    return place


def record_in(folder: Path, of_a_run: Sequence[str]) -> Path | None:
    """Give the first file of another run in a folder; None where there is none."""
    return next((path for name in of_a_run for path in sorted(folder.glob(name))), None)


def cannot_write(folder: Path, error: OSError) -> PitstopError:
    """Tell a user why a folder takes no record."""
    return PitstopError(f"cannot write a record to {folder}: {error.strerror or error}")
