"""Figures of the docs follow the results: stale, lost and unknown ones are found."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "scripts" / "make_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "TABLES", {"rates": lambda: "| a |\n|---|\n| 7 |\n"})
    monkeypatch.setattr(module, "FIGURES", {"gain": lambda: "6.4"})
    return module


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "docs" / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


WHOLE = (
    "It is 5.9<!-- figure: gain --> times as fast.\n\n"
    "<!-- figures: rates -->\n| a |\n|---|\n| 6 |\n<!-- /figures -->\n"
)


def test_stale_figures_are_named_and_left_alone_by_check(
    figures: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = page(tmp_path, WHOLE)
    monkeypatch.setattr("sys.argv", ["make_figures.py", "--check"])
    assert figures.main() == 1
    assert "docs/page.md" in capsys.readouterr().out
    assert path.read_text(encoding="utf-8") == WHOLE


def test_figures_are_written_once_and_stay(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = page(tmp_path, WHOLE)
    monkeypatch.setattr("sys.argv", ["make_figures.py"])
    assert figures.main() == 0
    text = path.read_text(encoding="utf-8")
    assert "It is 6.4<!-- figure: gain --> times" in text
    assert "| 7 |\n<!-- /figures -->" in text
    monkeypatch.setattr("sys.argv", ["make_figures.py", "--check"])
    assert figures.main() == 0


def test_a_figure_that_no_page_shows_is_an_error(
    figures: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page(tmp_path, "nothing here\n")
    monkeypatch.setattr("sys.argv", ["make_figures.py"])
    assert figures.main() == 1
    assert "gain, rates" in capsys.readouterr().out


def test_a_name_that_nobody_knows_is_an_error(figures: ModuleType) -> None:
    with pytest.raises(KeyError, match="loss"):
        figures.written("3<!-- figure: loss -->", set())
