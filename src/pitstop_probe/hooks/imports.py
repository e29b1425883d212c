"""Calls back when a module has been imported, by whomever."""

import importlib.abc
import importlib.machinery
import sys
from typing import Any, Callable, Optional, Sequence

from pitstop_probe.stderr import say


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders would, and calls back once it is loaded.

    Whoever asks whether the module exists is given a loader, too, which loads nothing.
    """

    def __init__(self, name: str, callback: Callable[[Any], Any]) -> None:
        self._name = name
        self._callback = callback
        self._is_searching = False
        self._is_done = False

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Stand in for the finder that knows the module."""
        if fullname != self._name or self._is_searching:
            return None
        # Two that wait for one module ask each other: the one that is asked looks further.
        self._is_searching = True
        try:
            return self._find(fullname, path, target)
        finally:
            self._is_searching = False

    def _find(
        self, fullname: str, path: Optional[Sequence[str]], target: Any
    ) -> Optional[importlib.machinery.ModuleSpec]:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self.loaded)  # type: ignore[assignment]
                return spec
        return None

    def loaded(self, module: Any) -> None:
        """Call back, the first time that the module is loaded."""
        if self._is_done:
            return
        self._is_done = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            self._callback(module)
        except Exception as error:  # noqa: BLE001 - measuring must never keep a script from running
            say("not attached: {!r}".format(error))


class _Loader:
    """Loads a module as its own loader does, puts that one back, then tells."""

    def __init__(self, loader: Any, loaded: Callable[[Any], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        """Load the module; one that fails to load may be tried again."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._loaded(module)


def when_imported(name: str, callback: Callable[[Any], Any]) -> None:
    """Call back with a module when it has been imported; at once if it is."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, _AfterImport(name, callback))
