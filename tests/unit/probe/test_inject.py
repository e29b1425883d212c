"""A script finds the modules that it finds bare, its own by a standard name among them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pitstop_probe
from pitstop_probe.attach import VARIABLE

PROBE = Path(pitstop_probe.__file__).parent
# Of those that the probe imports, that a bare interpreter has from its start, and of neither.
NAMES = ("json", "platform", "opcode", "random", "codecs", "os", "colorsys")

SHOW = f"""
import importlib, multiprocessing, sys

def show():
    for name in {NAMES!r}:
        module = importlib.import_module(name)
        print(name, getattr(module, "OWN", "standard"))

if __name__ == "__main__":
    show()
    child = multiprocessing.get_context("spawn").Process(target=show)
    child.start()
    child.join()
    print(child.exitcode)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "script"
    place.mkdir()
    (place / "show.py").write_text(SHOW)
    return place


def own(folder: Path) -> None:
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"OWN = {name!r}\n")


def said(folder: Path, path: str, *arguments: str, watched: bool) -> str:
    environment = {**os.environ, "PYTHONPATH": path}  # noqa: TID251 - handed on
    if watched:
        environment["PYTHONPATH"] = str(PROBE / "inject") + (path and os.pathsep + path)
        environment["PITSTOP_PROBE_PATH"] = str(PROBE)
        environment[VARIABLE] = json.dumps({"folder": str(folder.parent / "record")})
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    [("show.py",), ("-m", "show"), ("-c", "import show; show.show()"), ("-I", "../script/show.py")],
    ids=["script", "module", "code", "isolated"],
)
def test_a_scripts_own_modules_are_found_as_bare(folder: Path, arguments: tuple[str, ...]) -> None:
    own(folder)
    bare = said(folder, "", *arguments, watched=False)
    if "-I" not in arguments:
        assert "json json\n" in bare
    assert said(folder, "", *arguments, watched=True) == bare


def test_a_script_somewhere_else_and_behind_a_link_is_found(folder: Path, tmp_path: Path) -> None:
    own(folder)
    (tmp_path / "link.py").symlink_to(folder / "show.py")
    (tmp_path / "elsewhere").mkdir()
    for script in (folder / "show.py", tmp_path / "link.py"):
        bare = said(tmp_path / "elsewhere", "", str(script), watched=False)
        assert "json json\n" in bare
        assert said(tmp_path / "elsewhere", "", str(script), watched=True) == bare


def test_modules_on_the_search_path_are_found_as_bare(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "path"
    path.mkdir()
    own(path)
    bare = said(folder, str(path), "show.py", watched=False)
    assert "json json\n" in bare
    assert said(folder, str(path), "show.py", watched=True) == bare


def test_without_such_modules_nothing_is_loaded_twice(folder: Path) -> None:
    (folder / "same.py").write_text(
        "import json, sys, threading\n"
        "from pitstop_probe import writer\n"
        "print(json is writer.json, threading._main_thread is threading.current_thread())\n"
        "import os; print('PITSTOP_PROBE_SHADOWS' in os.environ)\n"
    )
    assert said(folder, "", "same.py", watched=True) == "True True\nFalse\n"
