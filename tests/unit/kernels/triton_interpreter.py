"""A fix of Triton's interpreter, for the processes in which kernels run under it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from triton.runtime import interpreter


@contextmanager
def loop_bounds_as_numpy_wants_them() -> Iterator[None]:
    """Let the interpreter of Triton 3.6 count to a loaded number under numpy 2.4 and later.

    It reads a loop's bound as `int(array)` of an array with one element, which numpy now refuses.
    """
    plain: Any = getattr(interpreter, "_patch_lang_tensor")  # noqa: B009 - not public

    def patched(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", patched)
        yield
