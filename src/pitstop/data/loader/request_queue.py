"""How requests go to workers: written by who makes them, without a thread in between.

The standard queue has a thread that writes. It wakes up whenever a request is made, which is just
when the training loop takes a batch, and so stands in its way twice: for the interpreter's lock and
for a core.
"""

import copy
import functools
import os
import select
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from multiprocessing.synchronize import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    _StandardQueue = Queue[Any]
else:
    _StandardQueue = Queue

# Before each message its length is written, in so many bytes.
_LENGTH_BYTES: Final = 4


class RequestQueue(_StandardQueue):
    """A queue between processes into which its maker writes small messages at once.

    Where a message is large or the pipe full, and in every other process, the standard queue's
    thread writes, so that nobody ever waits for a reader; from then on it writes all of them, and
    messages stay in order.
    """

    # Of the standard queue, which declares them nowhere.
    _closed: bool
    _ignore_epipe: bool
    _opid: int
    _reader: Connection
    _sem: BoundedSemaphore
    _thread: object
    _wlock: Lock
    _writer: Connection

    def __init__(self, maxsize: int = 0, *, ctx: BaseContext) -> None:
        super().__init__(maxsize, ctx=ctx)
        # Whose reader was killed ends as well, and does not say so with a traceback before.
        self._ignore_epipe = True

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002 - the standard queue's signature
        """Send a message."""
        if not self._was_sent(obj):
            super().put(obj, block, timeout)

    def _was_sent(self, obj: Any) -> bool:
        # Workers send batches, which may be pickled once only: each time opens files for tensors.
        if self._thread is not None or self._closed or os.getpid() != self._opid:
            return False
        message = ForkingPickler.dumps(obj)
        # Whoever died while writing holds this lock for ever.
        if not _is_small(message) or not self._wlock.acquire(block=False):
            return False
        try:
            if not _has_space(self._writer) or not self._sem.acquire(block=False):
                return False
            self._writer.send_bytes(message)
        finally:
            self._wlock.release()
        return True


def with_request_queues(context: BaseContext) -> BaseContext:
    """Give a context whose queues are such ones, where pipes are known to behave."""
    if sys.platform != "linux":
        return context
    own = copy.copy(context)
    vars(own)["Queue"] = functools.partial(RequestQueue, ctx=own)
    return own


def _is_small(message: Any) -> bool:
    """Whether a pipe takes the message whole or not at all."""
    return len(message) + _LENGTH_BYTES <= select.PIPE_BUF


def _has_space(pipe: Connection) -> bool:
    """Whether a small message can be written without waiting."""
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLOUT)
    return bool(poll.poll(0))
