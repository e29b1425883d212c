"""What the user once said of a log's fields, kept in a small file beside the log."""

import json
import tomllib
from pathlib import Path

from pitstop.errors import RecordError
from pitstop.logs.general.read import UNITS, FieldHints

_SUFFIX = ".dialect"
_NAMES = ("step", "time", "unit")
_MOST_BYTES = 1 << 12


def dialect_of(path: Path) -> FieldHints | None:
    """Read ``LOG.dialect`` beside a log; None without one.

    Raises:
        RecordError: It is no dialect.
    """
    file = path.with_name(path.name + _SUFFIX)
    if not file.is_file():
        return None
    try:
        found = tomllib.loads(file.read_bytes()[:_MOST_BYTES].decode("utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {file}: {error}") from error
    unit = found.get("unit", "")
    is_good = set(found) <= set(_NAMES) and all(isinstance(value, str) for value in found.values())
    if not is_good or (unit and unit not in UNITS):
        raise RecordError(f"{file} may hold step, time and unit ({', '.join(UNITS)}), all as text")
    return FieldHints(**found)


def as_dialect(hints: FieldHints) -> str:
    """Give the file's content for what the user says now."""
    said = {name: getattr(hints, name) for name in _NAMES if getattr(hints, name)}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items())
