"""Run by every Python that starts under ``pitstop doctor``: attaches the probe, then steps aside.

The environment may have a sitecustomize of its own; it is run as if this one were not there.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_own() -> None:
    """Run the environment's own sitecustomize, if it has one."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _load_probe(folder: str) -> None:
    """Load the probe's package from its folder, without a word in the script's search path."""
    init = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        "pitstop_probe", init, submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["pitstop_probe"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


try:
    _load_probe(os.environ["PITSTOP_PROBE_PATH"])
    importlib.import_module("pitstop_probe.attach").from_environment()
except Exception as error:  # noqa: BLE001 - measuring must never keep a script from running
    sys.stderr.write("pitstop: not attached: {!r}\n".format(error))

_run_own()
