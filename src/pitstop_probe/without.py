"""Leaves a part out of somebody's training, to measure what the run would be without it.

That changes what is trained, so it is done in a run of its own whose results nobody keeps.
Leaving out the loading of data is in loader_hooks, where batches are.
"""

import builtins
import functools
import logging
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from pitstop_probe.patches import Patch, replace

Ready = Callable[[], bool]


def leave_out(what: Optional[str], torch: Any, ready: Ready) -> List[Patch]:
    """Leave out waiting for the device (``sync``) or logging (``log``), once `ready` says so."""
    if what == "sync":
        return [
            *[replace(torch.Tensor, name, _remembered(ready)) for name in ("item", "__float__")],
            replace(torch.cuda, "synchronize", _silent(ready)),
        ]
    if what == "log":
        owners: List[Tuple[Any, str]] = [(builtins, "print"), (logging.Logger, "handle")]
        tensorboard = sys.modules.get("torch.utils.tensorboard")
        if tensorboard is not None:
            names = ("add_scalar", "add_scalars", "add_histogram", "add_image", "flush")
            owners += [(tensorboard.SummaryWriter, name) for name in names]
        return [replace(owner, name, _silent(ready)) for owner, name in owners]
    return []


def _silent(ready: Ready) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return None if ready() else original(*args, **kwargs)

        return call

    return make


def _remembered(ready: Ready) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Answer with the value last read on the same line, without asking the device."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        known: Dict[Tuple[str, int], Any] = {}

        @functools.wraps(original)
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not tensor.is_cuda:
                return original(tensor, *args, **kwargs)
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            place = (caller.f_code.co_filename, caller.f_lineno)
            if not ready() or place not in known:
                known[place] = original(tensor, *args, **kwargs)
            return known[place]

        return call

    return make
