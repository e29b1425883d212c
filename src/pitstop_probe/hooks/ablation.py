"""Leaves a part out of somebody's training, to measure what the run would be without it.

That changes what is trained, so it is done in a run of its own whose results nobody keeps.
Leaving out the loading of data is in loader_hooks, where batches are.
"""

import builtins
import functools
import io
import logging
import os
import sys
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from pitstop_probe.hooks.patches import Patch, once_imported, replace
from pitstop_probe.stacks.stack import library_folders

Ready = Callable[[], bool]


def leave_out(what: Optional[str], torch: Any, ready: Ready) -> List[Patch]:
    """Leave out waiting for the device (``sync``) or logging (``log``), once `ready` says so."""
    if what == "sync":
        return [
            *[replace(torch.Tensor, name, _remembered(ready)) for name in ("item", "__float__")],
            replace(torch.cuda, "synchronize", _silent(ready)),
        ]
    if what == "log":
        return [
            replace(builtins, "print", _silent(ready)),
            replace(logging.Logger, "handle", _silent(ready)),
            replace(os, "fsync", _silent(ready)),
            *[replace(owner, "open", _quiet_files(ready)) for owner in (builtins, io)],
            *[_silent_later(*logger, ready=ready) for logger in _LOGGERS],
        ]
    return []


_TO_TENSORBOARD = ("add_scalar", "add_scalars", "add_histogram", "add_image", "flush")
_ON_A_BAR = ("display", "refresh", "set_description", "set_postfix", "set_postfix_str")
# Module, class and methods; a script imports these after torch if at all.
_LOGGERS = (
    ("torch.utils.tensorboard", "SummaryWriter", _TO_TENSORBOARD),
    ("tensorboardX", "SummaryWriter", _TO_TENSORBOARD),
    ("tqdm.std", "tqdm", _ON_A_BAR),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
)


def _silent_later(module: str, kind: str, names: Tuple[str, ...], *, ready: Ready) -> Patch:
    """Leave out what a class writes, once its module is imported."""

    def silence(imported: Any) -> List[Patch]:
        owner = getattr(imported, kind)
        return [replace(owner, name, _silent(ready)) for name in names]

    return once_imported(module, silence)


def _quiet_files(ready: Ready) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Open text files of the script's own that take nothing once `ready` says so.

    Those that libraries open hold more than words about the training: code that was compiled.
    """
    libraries = library_folders()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            file = original(*args, **kwargs)
            if not isinstance(file, io.TextIOWrapper) or not file.writable():
                return file
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if "pathlib" in caller.f_code.co_filename and caller.f_back is not None:
                caller = caller.f_back
            if caller.f_code.co_filename.startswith(libraries):
                return file
            encoding, errors, by_line = file.encoding, file.errors, file.line_buffering
            quiet = _QuietText(
                file.detach(),
                encoding,
                errors,
                line_buffering=by_line,
                newline=kwargs.get("newline", args[5] if len(args) > 5 else None),
            )
            quiet.ready = ready
            return quiet

        return call

    return make


class _QuietText(io.TextIOWrapper):
    """A text file that takes nothing once `ready` says so; what it has taken, it writes."""

    ready: Ready

    def write(self, text: str) -> int:
        return len(text) if self.ready() else super().write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        if not self.ready():
            super().writelines(lines)


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
