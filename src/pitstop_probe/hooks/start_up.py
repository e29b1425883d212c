"""What a script does before its first step: imports, first batches, compiling; the rest is its own.

Imports are timed without a frame of ours on the stack, which a traceback would show: a finder that
finds nothing is asked at each, and sees on the stack which import of the script's it is part of.
"""

import functools
import importlib.abc
import sys
import time
from threading import get_ident
from typing import Any, Callable, Dict, List, Optional, Tuple

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.hooks.torch_hooks import part_of

_MACHINERY = "<frozen importlib"
_COMPILER = ("_dynamo/convert_frame.py", "_dynamo\\convert_frame.py")


class ImportClock(importlib.abc.MetaPathFinder):
    """Adds up the time that the main thread spends importing, modules inside modules once."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.total_ns = 0
        self._now = now_ns
        self._thread = get_ident()
        self._import: Optional[Tuple[int, int]] = None
        self._last = 0
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:  # noqa: ARG002
        """Take note that something is being imported; find nothing."""
        if get_ident() != self._thread:
            return
        outermost = _outermost_import(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if outermost is None:
            return
        now = self._now()
        if outermost == self._import:
            self.total_ns += now - self._last
        self._import, self._last = outermost, now

    def went_on(self) -> None:
        """Take note that the import seen last has gone on till now."""
        if self._import is not None:
            now = self._now()
            self.total_ns += now - self._last
            self._last = now

    def stop(self) -> None:
        """Let imports be."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _outermost_import(frame: Any) -> Optional[Tuple[int, int]]:
    """Say which place of the script imports; None where none does, or a compiler at work."""
    found: Optional[Tuple[int, int]] = None
    is_importing = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(_COMPILER):
            return None
        if file.startswith(_MACHINERY):
            is_importing = is_importing or frame.f_code.co_name == "_find_and_load"
        elif is_importing and not file.endswith("importlib/__init__.py"):
            found, is_importing = (id(frame.f_code), frame.f_lasti), False
        frame = frame.f_back
    return found


class StartUp:
    """Times what a DataLoader does before the first step, and tells where start-up went."""

    def __init__(self, torch: Any, imports: Optional[ImportClock]) -> None:
        self._imports = imports
        self._thread = get_ident()
        self._data_ns = 0
        self._is_open = False
        data = part_of(torch, "utils.data.dataloader")
        self._patches: List[Patch] = [
            replace(data.DataLoader, "__iter__", self._timed),
            replace(data._BaseDataLoaderIter, "__next__", self._timed),
        ]
        if imports is not None:
            imports.went_on()  # torch's own has just ended

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(owner: Any) -> Any:
            if self._is_open or get_ident() != self._thread:
                return original(owner)
            self._is_open = True
            start = time.perf_counter_ns()
            try:
                return original(owner)
            finally:
                self._is_open = False
                self._data_ns += time.perf_counter_ns() - start

        return call

    def end(self, compile_us: int) -> Dict[str, int]:
        """Stop, at the first step; give what is known."""
        self.stop()
        known = {"data_us": self._data_ns // 1000, "compile_us": compile_us}
        if self._imports is not None:
            known["imports_us"] = self._imports.total_ns // 1000
        return known

    def stop(self) -> None:
        """Take everything off."""
        for patch in self._patches:
            patch.off()
        if self._imports is not None:
            self._imports.stop()
