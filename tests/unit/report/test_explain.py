"""Findings explained: every one of them, in two languages, beginning with what to change."""

import io
import re
from pathlib import Path

import pytest

from pitstop.errors import PitstopError
from pitstop.report.explain import (
    LANGUAGES,
    explain,
    explain_all,
    explanation_report,
    overview_report,
)
from pitstop.report.terminal import make_console

ROOT = Path(__file__).parents[3]
FIRST = {"en": "## What to change", "zh": "## 怎么改"}


def codes_in_the_rules() -> set[str]:
    sources = (ROOT / "src" / "pitstop" / "doctor").rglob("*.py")
    return {code for path in sources for code in re.findall(r'"([A-Z]+00\d)"', path.read_text())}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_finding_of_every_rule_begins_with_what_to_change(language: str) -> None:
    found = explain_all(language)
    assert {one.code for one in found} >= codes_in_the_rules()
    assert len(found) > 30
    for one in found:
        assert one.text.startswith(FIRST[language]), one.code
        assert not re.search(r"\]\((?!https?:)", one.text), one.code


def test_the_overview_ends_with_a_command_that_stands_at_the_left() -> None:
    stream = io.StringIO()
    make_console(stream).print(overview_report(explain_all()))
    first, *_, before, last = stream.getvalue().splitlines()
    assert (first.split()[0], before, last) == ("BAR001", "", "next: pitstop explain BAR001")


def test_a_paragraph_stays_one_line_in_a_pipe() -> None:
    stream = io.StringIO()
    found = max(explain_all(), key=lambda one: max(map(len, one.text.splitlines())))
    make_console(stream).print(explanation_report(found))
    assert max(found.text.splitlines(), key=len) in stream.getvalue().splitlines()


def test_both_languages_explain_the_same_findings() -> None:
    english, chinese = ([one.code for one in explain_all(language)] for language in LANGUAGES)
    assert english == chinese


def test_a_code_is_found_in_any_case_and_a_wrong_one_is_answered_with_near_ones() -> None:
    assert explain("data001") == explain("DATA001")
    with pytest.raises(PitstopError, match=r"did you mean .*DATA00"):
        explain("DATA009")
    with pytest.raises(PitstopError, match="en, zh"):
        explain("DATA001", "fr")


def test_what_is_printed_is_the_page_without_its_marks(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print(explanation_report(explain("DATA001")))
    said = capsys.readouterr().out
    assert said.startswith("DATA001 the training loop waits for data\n\nWhat to change\n")
    assert "```" not in said
    assert "    with clock.span(" in said


def test_the_overview_has_a_line_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    found = explain_all("zh")
    make_console().print(overview_report(found))
    said = capsys.readouterr().out
    assert all(f"{one.code}  {one.summary}" in re.sub(" {2,}", "  ", said) for one in found)
