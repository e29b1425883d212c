"""What lives as long as the process is kept from the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived_frozen() -> Iterator[None]:
    """Keep the garbage collector away from what is there now; a loop that runs for days is inside.

    Forked workers share all of it until somebody writes to it, and collecting garbage writes to
    everything it visits: one full collection in a training process copied 78 MB.

    Outside, a full collection also comes late: only when a quarter of what the last one left alive
    has been added. Each class that ``torch.save`` makes, and every spare tuple that Python keeps,
    waits for it: 4 to 7 MB an hour. The second collection here counts what is not frozen, which
    is next to nothing, so full ones come often from then on, and take a millisecond.
    """
    if gc.get_freeze_count():
        yield  # the caller does so already, and ends it
        return
    gc.collect()
    freeze_long_lived()
    try:
        yield
    finally:
        gc.unfreeze()


def freeze_long_lived() -> None:
    """Keep the garbage collector away from what is there now, to the end of this process."""
    gc.freeze()
    gc.collect()
