"""What a forked process may do with its parent's things: nothing, not even let go of them.

A CUDA event, pinned memory or a profile that is destroyed in a forked process ends that process,
since CUDA does not survive a fork; and a file whose buffer is written twice is torn. So everything
of that kind which the probe makes is named here when it is made. In a child all that still live are
kept for ever, whoever holds them: in a list, in a frame that the child returns through, in garbage
that is not collected yet. Things that go on working in a child are notified, and begin anew.

A library that profiles a GPU has threads of its own, and handlers that wait for them when a process
exits. A child has the handlers without the threads, so it leaves without running any.
"""

import os
import sys
import weakref
from typing import Any, Dict, List, Protocol

from pitstop_probe.stderr import say

# Strong references, though most of these things have an owner: on an H200 host, upgrading weak ones
# to events and pinned tensors right after a fork crashed workers (Python 3.12, torch 2.11).
# By identity: tensors compare element by element.
_own: Dict[int, Any] = {}
_notified: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
# Of all the processes that this one descends from.
_kept: List[Any] = []
# C's library, where children must not run exit handlers.
_libc: Any = None


class Forks(Protocol):
    """Something that begins anew in a forked process."""

    def forked(self) -> None:
        """Begin anew; what was made before the fork is the parent's."""
        ...


def stays_here(thing: Any) -> Any:
    """Name something that no forked process may destroy; gives it back.

    It lives for as long as this process, unless it is given to `let_go`: for few things that are
    used again and again.
    """
    _own[id(thing)] = thing
    return thing


def let_go(thing: Any) -> None:
    """Give up something that was named, in the process that made it."""
    _own.pop(id(thing), None)


def notify_of_forks(thing: Forks) -> None:
    """Have `forked` called in every child, for as long as the thing lives."""
    _notified[id(thing)] = thing


def keep_for_parent(thing: Any) -> None:
    """Keep something alive until this process is gone, the interpreter's own end included."""
    if not _kept:
        _make_immortal(_kept)
    _kept.append(thing)


def skip_exit_handlers_in_children() -> None:
    """Have forked children end as they would, but without the exit handlers of libraries."""
    global _libc  # noqa: PLW0603 - one process, one library
    ctypes = sys.modules.get("ctypes")
    libc = ctypes.CDLL(None) if ctypes is not None else None
    if hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit"):
        _libc = libc


def _skip_exit_handlers() -> None:
    """Put what ends the process before all handlers that there are; the last one is run first."""
    _libc.on_exit(_libc._exit, None)
    # What C code has printed is written by the handlers that are skipped.
    getattr(_libc, "__cxa_atexit")(_libc.fflush, None, None)


def _make_immortal(thing: Any) -> None:
    """Take a reference that nobody gives back: an interpreter that ends empties its modules."""
    # Whoever has imported torch has this. It is not imported here: a child should find no file.
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None and hasattr(ctypes, "pythonapi"):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forked() -> None:
    if _libc is not None:
        _skip_exit_handlers()
    if _own:
        keep_for_parent(list(_own.values()))
        _own.clear()
    for reference in _notified.valuerefs():
        thing = reference()
        if thing is None:
            continue
        try:
            thing.forked()
        except Exception as error:  # noqa: BLE001 - measuring must never stop a training
            say("not measured in a forked process: {!r}".format(error))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
