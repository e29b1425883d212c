"""What goes into the package: all that runs, what it reads, links that lead somewhere."""

import re
import tomllib
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_nothing_is_left_out_of_the_package_by_a_name_that_a_module_may_have() -> None:
    """A bare `demo` also left out pitstop/cli/demo, and the installed command did not start."""
    left_out = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"]
    assert [pattern for pattern in left_out if not pattern.startswith("/")] == []


def test_the_wheel_carries_what_the_commands_read() -> None:
    carried = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert set(carried.values()) == {"pitstop/presets", "pitstop/findings", "pitstop/examples"}
    for source in carried:
        assert any((ROOT / source).iterdir()), source


def test_no_extra_but_torch_asks_for_torch() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    asking = {
        name
        for name, packages in extras.items()
        if any(re.match(r"torch(vision|audio)?\b(?!ao)", package) for package in packages)
    }
    assert asking == {"torch"}


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function of hatch_build.py; hatchling is there only when a package is built."""
    stand_in = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(__import__("sys").modules, "hatchling.metadata.plugin.interface", stand_in)
    return run_path(str(ROOT / "hatch_build.py"))["long_description"]


def test_on_an_index_every_link_is_an_address(described: Any) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = described(readme, "https://example.org/us/pitstop/", "1.2.3")
    assert "](https://example.org/us/pitstop/blob/v1.2.3/docs/quickstart.md)" in text
    assert "](https://example.org/us/pitstop/raw/v1.2.3/docs/pictures/" in text
    assert not re.search(r"\]\((?!https://)", text)
    assert "<!--" not in text


def test_without_an_address_the_words_of_a_link_stay_and_pictures_go(described: Any) -> None:
    text = described("See [the page](docs/a.md).\n![a picture](docs/b.png)\n", None, "1.2.3")
    assert text == "See the page.\n\n"
