"""A run's verdict with what to change, in both languages."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.main import app
from pitstop.doctor.judge import judge_record
from pitstop.errors import PitstopError
from pitstop.records.verdict import Verdict
from pitstop.report.explain import LANGUAGES, explain
from pitstop.report.explained_run import explained_verdict
from pitstop.report.language.translate import translator
from pitstop.report.terminal import make_console
from tests.browser.records import write_run
from tests.unit.doctor.records import rank, run_of

WAITS = {"data": 6_000, "forward": 2_000, "backward": 2_000}
CHINESE = re.compile("[\u4e00-\u9fff]")


def said(verdict: Verdict, language: str) -> str:
    console = make_console()
    with console.capture() as captured:
        console.print(explained_verdict(verdict, language))
    return captured.get()


def verdict_of(parts: dict[str, int]) -> Verdict:
    return judge_record(run_of(rank(parts))).verdict


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_bottleneck_comes_first_with_its_bound_and_what_to_change(language: str) -> None:
    verdict = verdict_of(WAITS)
    text = said(verdict, language)
    first = verdict.findings[0]
    assert first.bound is not None
    assert first.bound.speedup is not None
    assert explain("DATA001", language).summary in text.splitlines()[0]
    assert f"{first.bound.speedup:.2f}x" in text.splitlines()[0]
    say = translator(language)
    for line in first.evidence:
        assert (line if say is None else say(line)) in text
    # All of the page's first section, and nothing of the second.
    sections = re.split(r"^## ", explain("DATA001", language).text, flags=re.MULTILINE)
    change, cause = sections[1], sections[2]
    assert change.splitlines()[2] in text
    assert cause.splitlines()[2] not in text


def test_chinese_has_no_english_around_what_was_measured() -> None:
    verdict = verdict_of(WAITS)
    quoted = {line for finding in verdict.findings for line in finding.evidence + finding.doubts}
    for line in said(verdict, "zh").splitlines():
        assert not line.strip() or line.strip() in quoted or CHINESE.search(line), line
    assert not CHINESE.search(said(verdict, "en"))


@pytest.mark.parametrize(
    ("language", "expected"),
    [("en", "healthy: no certain bottleneck in"), ("zh", "\u6b63\u5e38\uff1a")],
)
def test_a_healthy_run_is_said_to_be_so(language: str, expected: str) -> None:
    verdict = verdict_of({"data": 50, "forward": 5_000, "backward": 5_000})
    assert verdict.outcome == "healthy"
    assert said(verdict, language).startswith(expected)


def test_where_too_little_is_known_the_reason_stands_as_it_is() -> None:
    verdict = judge_record(run_of(rank({}, steps=0))).verdict
    assert verdict.outcome == "not enough evidence"
    assert verdict.message in said(verdict, "zh")


def test_a_language_that_is_not_there_is_refused() -> None:
    with pytest.raises(PitstopError, match="--lang fr is not one of en, zh"):
        explained_verdict(verdict_of({"forward": 5_000}), "fr")


def test_the_command_takes_a_run_in_place_of_a_code(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "run"), "--lang", "zh"])
    assert done.exit_code == 0, done.output
    assert explain("DATA001", "zh").summary in done.stdout
    unknown = CliRunner().invoke(app, ["explain", "DATA999"])
    assert unknown.exit_code != 0
