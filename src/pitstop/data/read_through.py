"""Items of a cache that are read where they are missing."""

from collections.abc import Callable

from pitstop.data.cache.items import Array, Key, Window
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.stages import stage


def read_through(
    cache: SharedCache, key: Key, read: Callable[[], Array], *, window: Window | None = None
) -> Array:
    """Give an item, or a window of it.

    Looking up and putting are the stage ``cache`` of a batch; what `read` does has its own.

    Args:
        cache: Where it is kept.
        key: Its name there.
        read: Gives the whole item, also where a window is wanted: another epoch will want another
            part.
        window: Slices for the leading axes.
    """
    with stage("cache"):
        found = cache.get(key, window=window)
    if found is not None:
        return found
    whole = read()
    with stage("cache"):
        cache.put(key, whole)
    return whole if window is None else whole[window]
