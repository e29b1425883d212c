"""Being told of an import: each who asked is told once, and the module is as it would be."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pitstop_probe.hooks import imports
from pitstop_probe.hooks.imports import when_imported

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "waited_for.py").write_text("value = 7\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    return "waited_for"


@pytest.mark.parametrize("watchers", [1, 2, 3])
def test_everybody_who_waits_for_a_module_is_told_once(module_name: str, watchers: int) -> None:
    before = list(sys.meta_path)
    told: list[tuple[int, ModuleType]] = []
    for number in range(watchers):
        when_imported(module_name, lambda module, number=number: told.append((number, module)))
    assert told == []
    module = __import__(module_name)
    assert module.value == 7
    assert sorted(number for number, _ in told) == list(range(watchers))
    assert all(one is module for _, one in told)
    assert sys.meta_path == before
    assert type(module.__loader__).__module__.endswith("importlib_external")


def test_asking_whether_a_module_exists_does_not_stop_the_wait_for_it(module_name: str) -> None:
    told: list[ModuleType] = []
    when_imported(module_name, told.append)
    specs = [importlib.util.find_spec(module_name) for _ in range(2)]
    assert told == []
    module = __import__(module_name)
    assert told == [module]
    # What was found before may still be asked, or loaded by hand; that is no second import.
    for spec in specs:
        assert spec is not None
        loader: Any = spec.loader
        assert not loader.is_package(module_name)
        loader.exec_module(importlib.util.module_from_spec(spec))
    assert told == [module]


def test_a_module_that_fails_at_first_is_still_waited_for(module_name: str, tmp_path: Path) -> None:
    file = tmp_path / "waited_for.py"
    text = file.read_text(encoding="utf-8")
    told: list[ModuleType] = []
    when_imported(module_name, told.append)
    file.write_text("raise ImportError('not yet')\n", encoding="utf-8")
    with pytest.raises(ImportError, match="not yet"):
        __import__(module_name)
    file.write_text(text + "# longer, so that nothing cached is taken\n", encoding="utf-8")
    assert told == []
    module = __import__(module_name)
    assert told == [module]


_ASKS_FIRST = """
import importlib.util
{first}
import torch
from pitstop_probe.attach import current
print("attached:", current() is not None)
"""


@pytest.mark.parametrize(
    "first",
    [
        "importlib.util.find_spec('torch')",
        pytest.param("import transformers", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_asks_for_torch_before_it_imports_it_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    probe = Path(imports.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(probe / "inject"))
    monkeypatch.setenv("PITSTOP_PROBE_PATH", str(probe))
    monkeypatch.setenv("PITSTOP_PROBE", json.dumps({"folder": str(tmp_path)}))
    script = [sys.executable, "-c", _ASKS_FIRST.format(first=first)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout == "attached: True\n"


def test_a_module_that_is_there_already_is_told_at_once() -> None:
    told: list[ModuleType] = []
    when_imported("sys", told.append)
    assert told == [sys]
