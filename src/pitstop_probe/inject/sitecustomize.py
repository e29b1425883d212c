"""Run by every Python that starts under ``pitstop doctor``: attaches the probe, then steps aside.

The environment may have a sitecustomize of its own; it is run as if this one were not there. So is
the script: a module of its own that is named like one of the standard library's, ``json.py`` beside
``train.py``, is found by it, and not by the probe.
"""

import sys

_BEFORE = set(sys.modules)

import os  # noqa: E402 - what comes from here on is what a bare interpreter would not have

_HERE = os.path.dirname(os.path.abspath(__file__))
# Folders that shadowed something in a process above: one that is spawned gets its path later.
_SHADOWS = "PITSTOP_PROBE_SHADOWS"


def _before_standard_library() -> int:
    """Count the entries of the search path that come before the standard library."""
    library = os.path.dirname(os.__file__)
    own = (library, os.path.join(os.path.dirname(library), "python%d%d.zip" % sys.version_info[:2]))
    places = [place for place, path in enumerate(sys.path) if path in own]
    return places[0] if places else 0


def _script_folders() -> "list[str]":
    """Where the script's own modules will be looked for first, as the interpreter will decide."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return []
    script = (getattr(sys, "argv", None) or [""])[0]
    if script in ("", "-", "-c", "-m"):
        return [""]
    script = os.path.realpath(script)
    return [script if os.path.isdir(script) else os.path.dirname(script)]


def _give_names_back(folders: "list[str]") -> None:
    """Forget modules that came with the probe and that the script has by the same name.

    The probe keeps its own.
    """
    from importlib.machinery import PathFinder

    came = {name.partition(".")[0] for name in set(sys.modules) - _BEFORE} - {"pitstop_probe"}
    came -= {name.partition(".")[0] for name in _BEFORE}
    found = {name: PathFinder.find_spec(name, folders) for name in came}
    shadowed = {name for name, spec in found.items() if spec is not None and spec.loader}
    for name in list(sys.modules):
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]
    if shadowed:
        os.environ[_SHADOWS] = os.pathsep.join(map(os.path.abspath, folders))


def _load_probe(folder: str) -> None:
    """Load the probe's package from its folder, without a word in the script's search path."""
    from importlib.util import module_from_spec, spec_from_file_location

    init = os.path.join(folder, "__init__.py")
    spec = spec_from_file_location("pitstop_probe", init, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["pitstop_probe"] = module_from_spec(spec)
    spec.loader.exec_module(module)


def _attach() -> None:
    """Attach the probe with the standard library's modules, whatever else has their names."""
    ahead = sys.path[: _before_standard_library()]
    sys.path[: len(ahead)] = []
    try:
        _load_probe(os.environ["PITSTOP_PROBE_PATH"])
        from pitstop_probe.attach import from_environment

        from_environment()
    finally:
        sys.path[:0] = ahead
    inherited = os.environ.get(_SHADOWS)
    folders = [*_script_folders(), *(path for path in ahead if os.path.abspath(path) != _HERE)]
    _give_names_back(folders + (inherited.split(os.pathsep) if inherited else []))


def _run_own() -> None:
    """Run the environment's own sitecustomize, if it has one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _attach()
except Exception as error:  # noqa: BLE001 - measuring must never keep a script from running
    sys.stderr.write("pitstop: not attached: {!r}\n".format(error))

_run_own()
