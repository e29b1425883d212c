"""Lets scripts that were started side by side use the GPU one after the other.

Importing torch takes longer than some trainings, and needs no GPU. A process that wants to use CUDA
waits here until it has the lock that ZOO_TURN names, and has it to its end. So the next script is
imported while one trains, and still each has the GPU to itself.
"""

import fcntl
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HELD: list[int] = []


class _AfterTorchCuda(MetaPathFinder):
    """Puts the lock before CUDA's start, once the module that starts it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _wait_before_start(module)

            spec.loader.exec_module = exec_module
        return spec


def _wait_before_start(cuda: Any) -> None:
    start = cuda._lazy_init

    def lazy_init() -> None:
        # Taken out: it is this process's turn, and that of all that it starts.
        path = os.environ.pop("ZOO_TURN", "")
        if path:
            _HELD.append(os.open(path, os.O_CREAT | os.O_RDWR))
            fcntl.flock(_HELD[0], fcntl.LOCK_EX)
        start()

    cuda._lazy_init = lazy_init


if os.environ.get("ZOO_TURN"):
    sys.meta_path.insert(0, _AfterTorchCuda())
