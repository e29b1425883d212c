"""The API page is what the docstrings say now, and leaves out nothing that is offered."""

from pathlib import Path

import pytest

import pitstop
import pitstop_probe
from scripts import make_api_docs


def headings() -> list[str]:
    lines = make_api_docs.render().splitlines()
    return [line.removeprefix("### ") for line in lines if line.startswith("### ")]


def test_the_page_is_up_to_date() -> None:
    assert make_api_docs.TARGET.read_text(encoding="utf-8") == make_api_docs.render()


def test_every_offered_name_has_its_entry_once() -> None:
    found = headings()
    for module in (pitstop, pitstop_probe):
        for name in set(module.__all__) - {"__version__"}:
            assert found.count(f"{module.__name__}.{name}") == 1, name


def test_what_an_offered_function_gives_back_is_there_too() -> None:
    page = make_api_docs.render()
    assert "JudgedAttached" in headings()
    # Its own method, and one of the class below it.
    assert "JudgedAttached.verdict() -> ShownVerdict" in page
    assert "JudgedAttached.close() -> None" in page or "Attached.close() -> None" in page


def test_an_old_page_fails_the_check_and_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "api.md"
    old.write_text("old", encoding="utf-8")
    monkeypatch.setattr(make_api_docs, "TARGET", old)
    monkeypatch.setattr("sys.argv", ["make_api_docs.py", "--check"])
    assert make_api_docs.main() == 1
    assert "api.md is out of date" in capsys.readouterr().err
    assert old.read_text(encoding="utf-8") == "old"
    monkeypatch.setattr("sys.argv", ["make_api_docs.py"])
    assert make_api_docs.main() == 0
    monkeypatch.setattr("sys.argv", ["make_api_docs.py", "--check"])
    assert make_api_docs.main() == 0


def test_sections_of_a_docstring_are_lists_whose_entries_keep_their_lines_together() -> None:
    text = """Args:
    first: What it is, which takes
        two lines.
    second (optional): Another."""
    assert make_api_docs.paragraph(text) == (
        "*Args*\n\n- `first`: What it is, which takes two lines.\n- `second` (optional): Another."
    )
    assert make_api_docs.paragraph("Returns:\n    ``None`` or\n    more.") == (
        "*Returns*\n\n`None` or more."
    )
    assert make_api_docs.paragraph("Args are no section here: see ``x``.") == (
        "Args are no section here: see `x`."
    )
