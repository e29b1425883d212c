"""Tensors out of files that other programs wrote, without running anything that they hold.

``torch.load(weights_only=True)`` refuses a whole file for one object of a class that it does not
know, and TorchScript archives altogether. Training programs keep such objects beside their weights
(their configuration, their log), and OpenAI's CLIP is a TorchScript archive. Here a pickle's
classes are never looked up: tensors are put together by functions of this module, everything else
becomes a `Foreign`, which does nothing and remembers what it was given.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from pitstop.errors import CheckpointError

_STORAGES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {
        "DoubleStorage": torch.float64,
        "FloatStorage": torch.float32,
        "HalfStorage": torch.float16,
        "BFloat16Storage": torch.bfloat16,
        "LongStorage": torch.int64,
        "IntStorage": torch.int32,
        "ShortStorage": torch.int16,
        "CharStorage": torch.int8,
        "ByteStorage": torch.uint8,
        "BoolStorage": torch.bool,
    }
)
_PICKLE: Final = "data.pkl"


class Foreign:
    """An object of a class that is not looked up: what it was given, and its class's name."""

    class_name: str = ""
    state: Any = None

    def __new__(cls, *_args: object, **_settings: object) -> "Foreign":
        """Make it of any arguments."""
        return object.__new__(cls)

    def __init__(self, *_args: object, **_settings: object) -> None:
        """Do nothing with them."""

    def __call__(self, *_args: object) -> "Foreign":
        """Give something that does nothing either, as the function it stands for might."""
        return Foreign()

    def __setstate__(self, state: object) -> None:
        """Keep what the object held."""
        self.state = state

    def __setitem__(self, _key: object, _value: object) -> None:
        """Take an entry, as a child of dict would."""

    def append(self, _item: object) -> None:
        """Take an item, as a child of list would."""

    def extend(self, _items: object) -> None:
        """Take items, as a child of list would."""


class ForeignTree(NamedTuple):
    """What a file holds, and what of it was left unread."""

    tree: Any
    """Dictionaries, lists, plain values, tensors and `Foreign`."""
    foreign: tuple[str, ...]
    """Names of the classes that became `Foreign`."""


def is_archive(path: Path) -> bool:
    """Whether a file is a zip archive, as ``torch.save`` and TorchScript write."""
    return zipfile.is_zipfile(path)


def read_archive(path: Path) -> ForeignTree:
    """Read an archive of ``torch.save`` or TorchScript; never runs code.

    Raises:
        CheckpointError: Where it is damaged, or no such archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path)
    except (
        zipfile.BadZipFile,
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        LookupError,
        NotImplementedError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def module_tensors(tree: Any) -> dict[str, Tensor]:
    """Name the tensors of a TorchScript module as its `state_dict` would."""
    return dict(_named_tensors(tree, "", ()))


def _named_tensors(value: Any, prefix: str, above: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    state = value.state if isinstance(value, Foreign) else None
    if not isinstance(state, dict) or id(value) in above:
        return
    for name, inner in state.items():
        if isinstance(inner, Tensor):
            yield f"{prefix}{name}", inner
        else:
            yield from _named_tensors(inner, f"{prefix}{name}.", (*above, id(value)))


class _Storage(NamedTuple):
    content: bytearray
    dtype: torch.dtype


def _read(archive: zipfile.ZipFile, path: Path) -> ForeignTree:
    pickles = [name for name in archive.namelist() if name.rpartition("/")[2] == _PICKLE]
    if len(pickles) != 1:
        raise CheckpointError(
            f"{path} is a zip archive, but not one that torch.save or TorchScript wrote"
        )
    folder = pickles[0].removesuffix(_PICKLE)
    if f"{folder}byteorder" in archive.namelist() and _entry(
        archive, f"{folder}byteorder"
    ) != bytearray(b"little"):
        raise CheckpointError(f"{path} was written with the highest byte first; save it again")
    with archive.open(pickles[0]) as file:
        reader = _Reader(file, lambda key: _entry(archive, f"{folder}data/{key}"))
        tree = reader.load()
    return ForeignTree(tree=tree, foreign=tuple(sorted(reader.foreign)))


def _entry(archive: zipfile.ZipFile, name: str) -> bytearray:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:  # a few bytes could claim any amount of memory
        raise CheckpointError(f"{name} is compressed, which torch never does")
    return bytearray(archive.read(info))


class _Reader(pickle.Unpickler):
    """Builds tensors and plain values; a name in the file reaches nothing outside this module."""

    def __init__(self, file: Any, entry: Callable[[str], bytearray]) -> None:
        super().__init__(file, encoding="utf-8")
        self._entry = entry
        self._storages: dict[str, _Storage] = {}
        self.foreign: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        """Give what stands for a name, instead of importing it."""
        if module in {"torch", "torch.storage"} and name in _STORAGES:
            return _STORAGES[name]
        known = _KNOWN.get((module, name))
        if known is not None:
            return known
        class_name = f"{module}.{name}"
        if not module.startswith("__torch__"):
            self.foreign.add(class_name)
        return type("Foreign", (Foreign,), {"class_name": class_name})

    def persistent_load(self, pid: Any) -> _Storage:
        """Give the bytes that tensors of the archive share."""
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError(f"a tensor of an unknown kind ({kind})")
        if key not in self._storages:
            self._storages[key] = _Storage(self._entry(str(key)), dtype)
        return self._storages[key]


def _tensor(
    storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_rest: object
) -> Tensor:
    """Put a tensor together; torch refuses one that reaches beyond its bytes."""
    if not storage.content:
        return torch.empty(size, dtype=storage.dtype)
    flat = torch.frombuffer(storage.content, dtype=storage.dtype)
    return flat.as_strided(size, stride, offset)


def _parameter(data: Any, *_rest: object) -> Any:
    return data


def _ordered(*entries: Any) -> OrderedDict[Any, Any]:
    return OrderedDict(*entries)


_KNOWN: Final[Mapping[tuple[str, str], Any]] = MappingProxyType(
    {
        ("torch._utils", "_rebuild_tensor"): _tensor,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch._utils", "_rebuild_parameter"): _parameter,
        ("collections", "OrderedDict"): _ordered,
    }
)
