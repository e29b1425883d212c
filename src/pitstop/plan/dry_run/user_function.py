"""Finds and calls somebody's `build()`; a failure of theirs is named by their own line."""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from torch import nn

from pitstop.errors import PitstopError
from pitstop.plan.dry_run.fake_gpu import CannotFakeError
from pitstop.plan.dry_run.request import Request

_HOW: Final = "name it as MODULE:FUNCTION or FILE.py:FUNCTION, from the folder in which it lies"


def built(request: Request) -> tuple[nn.Module, Any]:
    """Call the function of a request; give its model and batch.

    Raises:
        PitstopError: Where there is no such function, or it fails, or it gives something else.
    """
    build = _find(request)
    with _their_failures(str(request.build)):
        made = build()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        name = getattr(build, "__name__", "build")
        kind = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise PitstopError(f"{name}() gave {kind}; it is to give (model, batch)")
    if not any(parameter.requires_grad for parameter in made[0].parameters()):
        raise PitstopError(
            f"{request.build} gave a model of which no parameter wants a gradient, so there is "
            "no training step to plan"
        )
    return made


def _find(request: Request) -> Callable[..., Any]:
    assert request.build is not None
    place, _, name = request.build.partition(":")
    folder, module = Path(request.folder or "."), place
    if place.endswith(".py"):
        file = folder / place
        folder, module = file.parent, file.stem
    sys.path.insert(0, str(folder))
    sys.argv = [place]  # a module may read its command line; ours is none of its business
    try:
        with _their_failures(module):
            found = getattr(importlib.import_module(module), name, None)
    except PitstopError as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and _is_in(missing, module):
            raise PitstopError(f"there is no module {module} in {folder}; {_HOW}") from error
        raise
    if found is None:
        raise PitstopError(f"there is no function {name} in {module}; {_HOW}")
    if not callable(found):
        kind = type(found).__name__
        raise PitstopError(f"{request.build} is of type {kind}, not a function; {_HOW}")
    return found


def _is_in(missing: str | None, module: str) -> bool:
    return missing is not None and f"{module}.".startswith(f"{missing}.")


@contextmanager
def _their_failures(what: str) -> Iterator[None]:
    try:
        yield
    except (CannotFakeError, PitstopError):
        raise
    except (Exception, SystemExit) as error:
        raise failure_of(what, error) from error


def failure_of(what: str, error: BaseException) -> PitstopError:
    """Say what failed, at which line of the user's, and how."""
    lines = str(error).strip().splitlines()
    how = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return PitstopError(f"{what} failed{_their_line(error)}: {how}")


def _their_line(error: BaseException) -> str:
    """Name the innermost line that is neither a library's nor ours."""
    ours = str(Path(__file__).parents[2])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        is_library = "site-packages" in frame.filename or frame.filename.startswith(
            (ours, sys.base_prefix, sys.prefix, "<")
        )
        if not is_library:
            return f" at {Path(frame.filename).name}:{frame.lineno}"
    return ""
