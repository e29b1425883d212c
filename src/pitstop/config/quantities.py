"""The kinds of value a setting can have, and the words that say so.

Values arrive from YAML as the text that was typed. What a text means is decided here, by the
setting's own type: `1e-4` is a number where a number belongs, `off` is a word where a word belongs.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer


@dataclass(frozen=True, slots=True)
class Expect:
    """Words that fit "must be ...", for a type whose annotation alone does not say enough."""

    words: str


_BYTES_PER_UNIT: Final = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_SIZE: Final = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*([a-z]+)", re.ASCII | re.IGNORECASE)
_DIGITS: Final = re.compile(r"[+-]?\d[\d_]{0,17}", re.ASCII)
_LARGEST_EXACT: Final = 2**53
_MOST_WORKERS: Final = 4096


def parse_bytes(value: object) -> int:
    """Read a size in bytes; a bare number other than 0 is refused, since its unit is a guess."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if text == "0":
        return 0
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _BYTES_PER_UNIT:
        raise ValueError(f"not a size: {text}")
    return round(Fraction(match[1]) * _BYTES_PER_UNIT[match[2].lower()])


def format_bytes(size_bytes: int) -> str:
    """Write a size as short as can be; `parse_bytes` gives back exactly the same number."""
    exact = {
        unit: size_bytes // _BYTES_PER_UNIT[unit.lower()]
        for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB", "B")
        if size_bytes % _BYTES_PER_UNIT[unit.lower()] == 0
    }
    unit = min(exact, key=lambda unit: exact[unit])
    return f"{exact[unit]}{unit}" if size_bytes else "0"


def whole(value: object) -> int:
    """Read a whole number, also when it is written 3e5 or 300_000."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        # A ValueError, since pydantic takes a TypeError for a bug of ours.
        raise ValueError(f"not a number: {value}")  # noqa: TRY004
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    number = value if isinstance(value, int) else float(value)
    if not (abs(number) <= _LARGEST_EXACT and number == math.floor(number)):
        raise ValueError(f"not a whole number: {value}")
    return int(number)


def parse_workers(value: object) -> Literal["auto"] | int | float:
    """Read a worker count: "auto", a number with a point as a fraction, or a whole number."""
    text = str(value).strip()
    if text == "auto":
        return "auto"
    if "." not in text:
        count = whole(value)
        if not 0 <= count <= _MOST_WORKERS:
            raise ValueError(f"not a number of workers: {count}")
        return count
    fraction = float(text)
    if not 0 < fraction <= 1:
        raise ValueError(f"not a number between 0 and 1: {fraction}")
    return fraction


def _pairs(value: object) -> object:
    return tuple(value.items()) if isinstance(value, Mapping) else value


def _ascending(pairs: tuple[tuple[int, Any], ...]) -> tuple[tuple[int, Any], ...]:
    if len({epoch for epoch, _ in pairs}) < len(pairs):
        raise ValueError(f"an epoch is set twice: {pairs}")
    return tuple(sorted(pairs))


def _printable(value: object) -> object:
    if isinstance(value, str) and not (value.isprintable() and value.strip()):
        raise ValueError(f"not printable text: {value!r}")
    return value


Whole = Annotated[int, BeforeValidator(whole)]
Count = Annotated[Whole, Field(ge=1)]
Natural = Annotated[Whole, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Word = Annotated[str, BeforeValidator(_printable), Field(max_length=4096), Expect("text")]
FilePath = Annotated[Path, BeforeValidator(_printable), Expect("a path")]
Name = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120),
    BeforeValidator(_printable),
    Expect("a name made of letters, digits, '.', '_' and '-'"),
]
Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(ge=0, le=2**60),
    PlainSerializer(format_bytes),
    Expect("a size such as 20GiB"),
]
Workers = Annotated[
    Literal["auto"] | int | float,
    BeforeValidator(parse_workers),
    Expect("auto, a fraction of the cores such as 0.8, or a whole number of at least 0"),
]
Recompute = Annotated[
    Literal["none", "full", "attention", "ffn", "selective"]
    | Bytes
    | Annotated[tuple[Name, ...], Field(min_length=1)],
    Expect(
        "none, full, attention, ffn, selective, a size such as 20GiB that activations may take, "
        "or a list of stages such as [stage1, stage8]"
    ),
]
SizeByEpoch = Annotated[
    tuple[tuple[Natural, Count], ...],
    BeforeValidator(_pairs),
    AfterValidator(_ascending),
    PlainSerializer(dict),
    Expect("a mapping of epoch to pixels such as {0: 128, 40: 256}"),
]
WeightByEpoch = Annotated[
    tuple[tuple[Natural, NonNegative], ...],
    BeforeValidator(_pairs),
    AfterValidator(_ascending),
    PlainSerializer(dict),
    Expect("a mapping of epoch to weight such as {0: 0, 5: 0.1}"),
]
Multipliers = Annotated[
    tuple[tuple[Word, Positive], ...],
    BeforeValidator(_pairs),
    PlainSerializer(dict),
    Expect("a mapping of a part's name to a number above 0 such as {spynet: 0.125}"),
]
