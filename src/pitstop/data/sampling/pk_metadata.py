"""Who is on each record and in which modalities, as other people's datasets say it.

Only what lies ready is read. Asking a dataset for its samples would decode every image once,
which takes minutes and says nothing more.

A record is a mapping or a tuple. A mapping names the person, and its modalities in one of three
ways, asked for in this order: a mask (`modality_mask`), names (`modality`), or a key of its own for
each modality (`{"pid": 3, "vis": "a.jpg", "nir": ["b.jpg", "c.jpg"], "sk": None}`), where an empty
one is missing. A tuple is one RGB picture: `(path, person, ...)` or `(person, ...)`. Where
there are no records, `targets` or `labels` name the person of every sample, an RGB picture each.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from pitstop.errors import DataError

Metadata = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
Describe = Callable[[int], tuple[Any, Any]]
"""Index of a sample -> who is on it, and its modalities: a mask, a name or several names."""

_LISTS: Final = (
    "data_list",
    "records",
    "samples",
    "metadata",
    "annotations",
    "img_items",
    "dataset",
    "data",
    "imgs",
)
_PLAIN: Final = ("targets", "labels")
_PERSON_KEYS: Final = ("person_id", "pid", "identity", "id")
_NAME_KEYS: Final = ("modality", "modalities")
_MASK_KEY: Final = "modality_mask"
# Where records keep one entry for each modality, other than in themselves.
_NESTED_KEYS: Final = ("images", "paths", "files")
_BITS: Final = {
    **dict.fromkeys(("rgb", "vis", "visible", "color", "colour"), 0),
    **dict.fromkeys(("nir", "ir", "infrared", "thermal"), 1),
    **dict.fromkeys(("sk", "sketch"), 2),
    **dict.fromkeys(("cp", "pencil"), 3),
    **dict.fromkeys(("text", "caption", "captions"), 4),
}
_FIRST_FREE_BIT: Final = 5
_RGB_MASK: Final = 1
# How tables write that something is missing.
_MISSING_WORDS: Final = ("", "0", "0.0", "false", "none", "null", "nan")


def read_metadata(dataset: Any, describe: Describe | None = None) -> Metadata:
    """Give the person and the modalities, as bits, of every sample of a dataset.

    Args:
        dataset: A dataset, a list of records, or the path of a CSV file of them.
        describe: What to ask instead of looking.

    Raises:
        DataError: Where the dataset does not say, or says two things.
    """
    if describe is not None:
        return _described(describe, len(dataset))
    if isinstance(dataset, str | Path):
        return _read_table(Path(dataset))
    if _is_records(dataset):
        return _read_records(dataset, "the list")
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        ids, masks = read_metadata(dataset.dataset)
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        return ids[chosen], masks[chosen]
    return _read_attributes(dataset)


def names_modalities(dataset: Any, describe: Describe | None = None) -> bool:
    """Tell whether a dataset says in which modalities its records are; tuples do not."""
    if describe is not None or isinstance(dataset, str | Path):
        return True
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        return names_modalities(dataset.dataset)
    lists = (dataset, *(getattr(dataset, name, None) for name in _LISTS))
    records = next((records for records in lists if _is_records(records)), None)
    if records is None:
        return _plain_people(dataset) is None
    return isinstance(records[0], Mapping)


def _described(describe: Describe, samples: int) -> Metadata:
    said = [describe(index) for index in range(samples)]
    bits = dict(_BITS)
    masks = [_mask_of_names(modalities, bits) for _, modalities in said]
    return np.array([person for person, _ in said]), np.array(masks, np.int64)


def _read_table(path: Path) -> Metadata:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [
                {key.strip().lower(): (value or "").strip() for key, value in row.items() if key}
                for row in csv.DictReader(file)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the records in {path} cannot be read: {error}") from error
    if not rows:
        raise DataError(f"{path} has no records: a line of names, then a line for each record")
    return _read_records(rows, str(path))


def _read_attributes(dataset: Any) -> Metadata:
    """Take a dataset's arrays, or every list of it that describes its samples; lists must agree."""
    if hasattr(dataset, "person_ids") and hasattr(dataset, "modalities"):
        return np.asarray(dataset.person_ids), np.asarray(dataset.modalities)
    found = {
        name: _read_records(records, f"{type(dataset).__name__}.{name}")
        for name in _LISTS
        if _is_records(records := getattr(dataset, name, None)) and len(records) == len(dataset)
    }
    if not found:
        people = _plain_people(dataset)
        if people is not None:
            return people, np.full(len(people), _RGB_MASK, np.int64)
        raise DataError(
            f"{type(dataset).__name__} does not say who is on its records: it has neither "
            f"person_ids and modalities nor a list of records ({', '.join(_LISTS)}) nor "
            f"{' or '.join(_PLAIN)} as long as itself; give both arrays to PKSampler, or "
            "describe=, a function from a sample's index to (person, modalities)"
        )
    (name, metadata), *others = found.items()
    for other, claim in others:
        if not all(map(np.array_equal, metadata, claim)):
            raise DataError(
                f"{type(dataset).__name__} says two things about its records: {name} and {other} "
                "differ; one of them was not renewed with the other"
            )
    return metadata


def _plain_people(dataset: Any) -> np.ndarray[Any, Any] | None:
    """Give `targets` or `labels`, where they are one whole number or word a sample."""
    for name in _PLAIN:
        people = np.asarray(getattr(dataset, name, ()))
        is_whole = people.ndim == 1 and people.dtype.kind in "iuU"
        if is_whole and 0 < len(people) == len(dataset):
            return people
    return None


def _is_records(thing: Any) -> TypeGuard[Sequence[Any]]:
    return (
        isinstance(thing, Sequence)
        and not isinstance(thing, str | bytes)
        and len(thing) > 0
        and (isinstance(thing[0], Mapping) or _is_tuple_record(thing[0]))
    )


def _is_tuple_record(record: Any) -> bool:
    return isinstance(record, tuple | list) and len(record) > 1


def _read_records(records: Sequence[Any], where: str) -> Metadata:
    bits = dict(_BITS)
    people, masks = [], []
    for at, record in enumerate(records):
        if isinstance(record, Mapping):
            people.append(_value(record, _PERSON_KEYS, f"{where}[{at}]"))
            masks.append(_mask_of_mapping(record, bits, f"{where}[{at}]"))
        else:
            first = record[0]
            people.append(first if isinstance(first, int | np.integer) else record[1])
            masks.append(_RGB_MASK)
    return np.array(people), np.array(masks, np.int64)


def _value(record: Mapping[str, Any], keys: Iterable[str], where: str) -> Any:
    for key in keys:
        if key in record:
            return record[key]
    raise DataError(
        f"{where} has no {' or '.join(keys)}; add it, or give person_ids and modalities to "
        "PKSampler itself"
    )


def _mask_of_mapping(record: Mapping[str, Any], bits: dict[str, int], where: str) -> int:
    if _MASK_KEY in record:
        return _mask_of_names(_names_in(record[_MASK_KEY], where), bits)
    for key in _NAME_KEYS:
        if key in record:
            return _mask_of_names(record[key], bits)
    nested = next((record[key] for key in _NESTED_KEYS if _is_mapping(record, key)), record)
    names = [name for name in nested if str(name).lower() in bits and _is_there(nested[name])]
    if not names:
        raise DataError(
            f"{where} has no modality: neither {_MASK_KEY}, {' nor '.join(_NAME_KEYS)}, nor a key "
            "such as vis, nir, sk, cp or text that holds something"
        )
    return _mask_of_names(names, bits)


def _is_mapping(record: Mapping[str, Any], key: str) -> bool:
    return isinstance(record.get(key), Mapping)


def _names_in(mask: Any, where: str) -> Any:
    """Turn a mask by name, `{"vis": 1, "nir": 0}`, into names; leave bits as they are."""
    if isinstance(mask, Mapping):
        return [name for name, value in mask.items() if _is_there(value)]
    if isinstance(mask, int | np.integer):
        return mask
    raise DataError(
        f"{where} has a {_MASK_KEY} whose places have no names ({type(mask).__name__}); give a "
        "mapping from modality to 0 or 1, or bits, of which bit 0 is RGB"
    )


def _is_there(value: Any) -> bool:
    """Tell whether a record holds something for a modality."""
    if value is None:
        return False
    if isinstance(value, str):
        return value.strip().lower() not in _MISSING_WORDS
    if isinstance(value, Sized):
        return len(value) > 0
    return bool(value)


def _mask_of_names(value: Any, bits: dict[str, int]) -> int:
    """Turn a mask, a name or several (`vis+nir`) into a mask; a new name gets a bit of its own."""
    if isinstance(value, int | np.integer):
        return int(value)
    names = re.split(r"[+|;,]", value) if isinstance(value, str) else list(value)
    mask = 0
    for name in names:
        mask |= 1 << bits.setdefault(
            str(name).strip().lower(), max(_FIRST_FREE_BIT, max(bits.values()) + 1)
        )
    return mask
