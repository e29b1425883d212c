"""What is put in another's place comes off without a trace and can be put on again."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from pitstop_probe.hooks.patches import Patch, once_imported, replace


class Base:
    def inherited(self) -> str:
        return "inherited"


class Owner(Base):
    def own(self) -> str:
        return "own"

    @staticmethod
    def static() -> str:
        return "static"


def louder(original: Any) -> Any:
    return lambda *args: original(*args).upper()


def test_methods_come_back_as_they_were_however_often() -> None:
    before = dict(vars(Owner))
    patches = [replace(Owner, name, louder) for name in ("own", "inherited")]
    for _ in range(2):
        assert (Owner().own(), Owner().inherited()) == ("OWN", "INHERITED")
        for patch in patches:
            patch.off()
            patch.off()
        assert dict(vars(Owner)) == before
        for patch in patches:
            patch.on()
    for patch in patches:
        patch.off()
    assert dict(vars(Owner)) == before


def test_a_static_method_is_one_again() -> None:
    patch = replace(Owner, "static", lambda original: staticmethod(louder(original)))
    assert Owner().static() == "STATIC"
    patch.off()
    assert Owner().static() == "static"


def test_what_is_not_there_is_not_made() -> None:
    patch = replace(Owner, "absent", louder)
    patch.off()
    patch.on()
    assert not hasattr(Owner, "absent")


def test_a_wrapper_of_somebody_elses_stays_on_top_and_is_not_covered() -> None:
    class Shared(Owner):
        pass

    ours = replace(Shared, "own", louder)
    replace(Shared, "own", lambda original: lambda *args: original(*args) + "!")
    ours.off()
    assert Shared().own() == "OWN!"
    ours.on()
    assert Shared().own() == "OWN!"


def test_ours_comes_off_in_the_end_where_it_was_under_somebody_elses() -> None:
    class Shared(Owner):
        pass

    ours = replace(Shared, "own", louder)
    theirs = replace(Shared, "own", louder)
    ours.off()
    theirs.off()
    ours.on()
    ours.on()
    assert Shared().own() == "OWN"
    ours.off()
    assert "own" not in vars(Shared)


def test_a_hook_is_put_on_again_by_whoever_put_it_on() -> None:
    hooks: list[str] = []

    def put() -> Any:
        hooks.append("hook")
        return hooks.clear

    patch = Patch(put)
    patch.off()
    assert hooks == []
    patch.on()
    assert hooks == ["hook"]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_module_is_patched_when_it_comes_unless_the_patch_is_off(
    is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comes_late.py").write_text("def word(): return 'word'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "comes_late", raising=False)
    patch = once_imported("comes_late", lambda module: [replace(module, "word", louder)])
    if not is_on:
        patch.off()
    module = importlib.import_module("comes_late")
    assert module.word() == ("WORD" if is_on else "word")
    patch.on()
    assert module.word() == "WORD"
    patch.off()
    assert module.word() == "word"
