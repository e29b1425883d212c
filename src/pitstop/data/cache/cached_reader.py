"""A cache in front of somebody's own reading function.

    dataset.loader = pitstop.cached(dataset.loader, cache)

What is cached is what comes before anything random: the decoded file, not the augmented sample.
A cache in front of a whole dataset would hand out the same crop in every epoch.
"""

import sys
from collections.abc import Callable
from hashlib import blake2b
from os import PathLike, fspath
from typing import Any, Final

import numpy as np

from pitstop.data.cache.items import Array, Key
from pitstop.data.cache.shared import SharedCache
from pitstop.errors import DataError

_ORIENTATION_TAG: Final = 274
_UPRIGHT: Final = 1


class CachedReader:
    """A function that reads, through a cache; pickled, it looks into the same cache.

    Args:
        read: From a path, the content of a file or other arguments that say what to read, to an
            array, a tensor on the CPU or a PIL picture: the same for the same arguments.
        cache: Where results are kept.
    """

    def __init__(self, read: Callable[..., Any], cache: SharedCache) -> None:
        self.read: Final = read
        self.cache: Final = cache
        # How results come out of the cache again. A function gives results of one kind, which
        # the first one shows.
        self._restore: Callable[[Array], Any] | None = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Give what `read` gives. Arrays and tensors may be written to.

        Raises:
            DataError: Where an argument is neither text, a path, a whole number nor the content of
                a file, or the result is none that a cache can hold.
        """
        key = _key_of(args, named)
        if self._restore is None:
            result = self.read(*args, **named)
            self._restore = _restorer(result)
        else:
            array = self.cache.get(key)
            if array is not None:
                return self._restore(array)
            result = self.read(*args, **named)
        array = _array_of(result)
        if array is not None:
            self.cache.put(key, array)
        return result

    def __reduce__(self) -> tuple[type["CachedReader"], tuple[Callable[..., Any], SharedCache]]:
        return CachedReader, (self.read, self.cache)


def cached(read: Callable[..., Any], cache: SharedCache) -> CachedReader:
    """Put a cache in front of a function that reads; see `CachedReader`."""
    return CachedReader(read, cache)


def _key_of(args: tuple[Any, ...], named: dict[str, Any]) -> Key:
    return (*map(_part_of_key, args), *((k, _part_of_key(v)) for k, v in sorted(named.items())))


def _part_of_key(argument: Any) -> str | int:
    if isinstance(argument, bool) or argument is None:
        return repr(argument)
    if isinstance(argument, str | int | np.integer):
        return argument if isinstance(argument, str) else int(argument)
    if isinstance(argument, PathLike):
        return str(fspath(argument))
    if isinstance(argument, bytes | bytearray | memoryview):
        # A decoder gets the file's content. Reading it again is cheap beside decoding it.
        return f"blake2b:{blake2b(argument, digest_size=16).hexdigest()}"
    raise DataError(
        f"a cached function is called with text, paths, whole numbers and bytes, not with "
        f"{type(argument).__name__}; put the cache in front of the function that gets the path"
    )


def _restorer(result: Any) -> Callable[[Array], Any]:
    """Choose how an array becomes what the function gave.

    Raises:
        DataError: Where a cache cannot hold such a thing.
    """
    if isinstance(result, np.ndarray):
        return np.array  # a copy: what lies in the cache is everybody's
    if _is_tensor(result):
        return lambda array: sys.modules["torch"].from_numpy(np.array(array))
    if _is_picture(result):
        return sys.modules["PIL.Image"].fromarray
    raise DataError(
        f"a cache holds arrays, tensors and PIL pictures, not {type(result).__name__}; put it in "
        "front of the function that decodes one file"
    )


def _array_of(result: Any) -> Array | None:
    """Give what to store, or None where it would not come out as it went in."""
    if _is_picture(result):
        return _array_of_picture(result)
    return result.numpy() if _is_tensor(result) else result


def _array_of_picture(picture: Any) -> Array | None:
    # An array has no palette and no note that the camera was held sideways.
    if picture.getexif().get(_ORIENTATION_TAG, _UPRIGHT) != _UPRIGHT:
        return None
    array = np.asarray(picture)
    same_mode = sys.modules["PIL.Image"].fromarray(array).mode == picture.mode
    return array if same_mode else None


def _is_tensor(result: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(result, torch.Tensor)


def _is_picture(result: Any) -> bool:
    pictures = sys.modules.get("PIL.Image")
    return pictures is not None and isinstance(result, pictures.Image)
