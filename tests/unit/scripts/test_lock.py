"""Every installation that somebody could ask for is among those that are resolved."""

import tomllib
from pathlib import Path

import pytest

from scripts import lock

EXTRAS = tuple(
    tomllib.loads((lock.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
)


def test_every_extra_is_resolved_alone_and_with_all_others() -> None:
    cases = lock.all_cases()
    for python in ("3.11", "3.12", "3.13"):
        for pinned in (True, False):
            here = {case.extras for case in cases if (case.python, case.pinned) == (python, pinned)}
            assert here == {(), EXTRAS, *((name,) for name in EXTRAS)}


def test_only_the_index_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wheels and settings that lie on this machine must not hide what others meet."""
    seen = tmp_path / "environment"
    fake = tmp_path / "uv"
    fake.write_text(f'#!/bin/sh\nenv > {seen}\necho "$@" >> {seen}\n')
    fake.chmod(0o755)
    monkeypatch.setattr(lock, "UV", fake)
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX_URL"):
        monkeypatch.setenv(name, "file:///local")
    assert lock.resolve(lock.Case("3.12", ("train", "dev"), pinned=True)) is None
    asked = seen.read_text()
    assert "file:///local" not in asked
    assert "--no-config" in asked
    assert "--extra train --extra dev --constraints constraints.txt" in asked


def test_why_it_does_not_resolve_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "uv"
    fake.write_text("#!/bin/sh\necho 'triton 3.7.1 is demanded' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(lock, "UV", fake)
    assert lock.resolve(lock.Case("3.12", (), pinned=True)) == "triton 3.7.1 is demanded"
    assert lock.check() == 1


def test_pins_hold_for_the_version_that_is_tested() -> None:
    pins = (lock.ROOT / lock.PINS).read_text()
    assert "\ntorch==2.13.0\n" in pins
    assert "nuscenes" not in pins
