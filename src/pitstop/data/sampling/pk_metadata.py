"""Who is on each record and in which modalities, as other people's datasets say it.

Only what lies ready is read. Asking a dataset for its samples would decode every image once,
which takes minutes and says nothing more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pitstop.errors import DataError

Metadata = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

_LISTS: Final = ("data_list", "records", "samples", "metadata", "annotations")
_PERSON_KEYS: Final = ("person_id", "pid")
_MODALITY_KEYS: Final = ("modality", "modalities")
_BITS: Final = {
    **dict.fromkeys(("rgb", "vis", "visible", "color", "colour"), 0),
    **dict.fromkeys(("nir", "ir", "infrared", "thermal"), 1),
    **dict.fromkeys(("sk", "sketch"), 2),
    **dict.fromkeys(("cp", "pencil"), 3),
    **dict.fromkeys(("text", "caption"), 4),
}
_FIRST_FREE_BIT: Final = 5


def read_metadata(dataset: Any) -> Metadata:
    """Give the person and the modalities, as bits, of every sample of a dataset.

    Raises:
        DataError: Where the dataset does not say, or says two things.
    """
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        ids, masks = read_metadata(dataset.dataset)
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        return ids[chosen], masks[chosen]
    if hasattr(dataset, "person_ids") and hasattr(dataset, "modalities"):
        return np.asarray(dataset.person_ids), np.asarray(dataset.modalities)
    found = {name: _read_list(dataset, name) for name in _LISTS if _is_list(dataset, name)}
    if not found:
        raise DataError(
            f"{type(dataset).__name__} does not say who is on its records: it has neither "
            f"person_ids and modalities nor a list of dictionaries ({', '.join(_LISTS)}) as long "
            "as itself; give both arrays to PKSampler"
        )
    (name, metadata), *others = found.items()
    for other, claim in others:
        if not all(map(np.array_equal, metadata, claim)):
            raise DataError(
                f"{type(dataset).__name__} says two things about its records: {name} and {other} "
                "differ; one of them was not renewed with the other"
            )
    return metadata


def _is_list(dataset: Any, name: str) -> bool:
    """Tell whether an attribute describes every sample; a list of another length cannot."""
    records = getattr(dataset, name, None)
    return (
        isinstance(records, Sequence)
        and len(records) == len(dataset)
        and all(isinstance(record, Mapping) for record in records[:1])
    )


def _read_list(dataset: Any, name: str) -> Metadata:
    records = getattr(dataset, name)
    where = f"{type(dataset).__name__}.{name}"
    people = [_value(record, _PERSON_KEYS, f"{where}[{at}]") for at, record in enumerate(records)]
    stated = [_value(record, _MODALITY_KEYS, f"{where}[{at}]") for at, record in enumerate(records)]
    bits = dict(_BITS)
    return np.array(people), np.array([_mask(value, bits) for value in stated], np.int64)


def _value(record: Any, keys: Iterable[str], where: str) -> Any:
    for key in keys:
        if key in record:
            return record[key]
    raise DataError(
        f"{where} has no {' or '.join(keys)}; add it, or give person_ids and modalities to "
        "PKSampler itself"
    )


def _mask(value: Any, bits: dict[str, int]) -> int:
    """Turn a mask, a name or several names into a mask; a new name gets a bit of its own."""
    if isinstance(value, int | np.integer):
        return int(value)
    names = [value] if isinstance(value, str) else list(value)
    mask = 0
    for name in names:
        mask |= 1 << bits.setdefault(
            str(name).lower(), max(_FIRST_FREE_BIT, max(bits.values()) + 1)
        )
    return mask
