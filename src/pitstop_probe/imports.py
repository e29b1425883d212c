"""Calls back when a module has been imported, by whomever."""

import importlib.abc
import importlib.machinery
import sys
from typing import Any, Callable, Optional, Sequence


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module as the other finders would, and calls back once it is loaded."""

    def __init__(self, name: str, callback: Callable[[Any], Any]) -> None:
        self._name = name
        self._callback = callback
        self._loader: Any = None
        self._is_looking = False

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Stand in for the finder that knows the module."""
        if fullname != self._name or self._loader is not None or self._is_looking:
            return None
        # Two that wait for one module ask each other: the one that is asked looks further.
        self._is_looking = True
        try:
            return self._find(fullname, path, target)
        finally:
            self._is_looking = False

    def _find(
        self, fullname: str, path: Optional[Sequence[str]], target: Any
    ) -> Optional[importlib.machinery.ModuleSpec]:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._loader = spec.loader
                spec.loader = self
                return spec
        return None

    def create_module(self, spec: Any) -> Any:
        """Leave it to the module's own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Load the module, put its own loader back, then call."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            self._callback(module)
        except Exception as error:  # noqa: BLE001 - measuring must never keep a script from running
            sys.stderr.write("pitstop: not attached: {!r}\n".format(error))


def when_imported(name: str, callback: Callable[[Any], Any]) -> None:
    """Call back with a module when it has been imported; at once if it is."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, _AfterImport(name, callback))
