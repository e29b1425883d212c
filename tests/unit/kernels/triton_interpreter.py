"""Fixes of Triton's interpreter, for the processes in which kernels run under it."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from triton.language import pointer_type
from triton.runtime import interpreter


@contextmanager
def interpreter_set_right() -> Iterator[None]:
    """Let the interpreter count to a loaded number, and do nothing that leads to nothing.

    That of Triton 3.6 reads a loop's bound as `int(array)` of an array with one element, which
    numpy 2.4 and later refuse.
    """
    plain = _private("_patch_lang_tensor")

    def patched(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", patched)
        _leave_out_what_leads_to_nothing(patch)
        yield


def _private(name: str) -> Any:
    return getattr(interpreter, name)


def _leave_out_what_leads_to_nothing(patch: pytest.MonkeyPatch) -> None:
    builder: Any = interpreter.interpreter_builder
    # Sums of integers are made once more in 64 bits, for an assertion that only debugging makes.
    assert not builder.options.debug
    options = dataclasses.replace(builder.options, sanitize_overflow=False)
    patch.setattr(builder, "options", options)
    patch.setattr(interpreter, "_patch_lang", _once_a_launch(_private("_patch_lang")))
    patch.setattr(interpreter, "_get_np_dtype", _looked_up(_private("_get_np_dtype")))


def _once_a_launch(plain: Any) -> Any:
    """Replace the language's functions as a kernel begins, not at each call of a function in it."""
    replaced: set[int] = set()

    def patched(fn: Any) -> Any:
        module = id(fn.__globals__)
        if module in replaced:
            return _private("_LangPatchScope")()
        scope = plain(fn)
        replaced.add(module)
        restore = scope.restore

        def restored() -> None:
            restore()
            replaced.clear()

        scope.restore = restored
        return scope

    return patched


def _looked_up(plain: Any) -> Any:
    """Give numpy's type of a number without a new table of all types."""
    kept = cache(plain)

    def found(kind: Any) -> Any:
        scalar = kind.scalar
        return plain(scalar) if isinstance(scalar, pointer_type) else kept(scalar)

    return found
