"""Being told of an import: each who asked is told once, and the module is as it would be."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pitstop_probe.imports import when_imported

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


def test_a_module_that_is_there_already_is_told_at_once() -> None:
    told: list[ModuleType] = []
    when_imported("sys", told.append)
    assert told == [sys]
