"""``pitstop report``: the page is written, the text are few, mistakes are one paragraph."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.main import app
from pitstop.errors import PitstopError, RecordError
from tests.browser.records import fixed, slow, write_run

LOG = Path(__file__).parents[2] / "data" / "logs" / "imagenet_example.log"


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_becomes_a_page_and_the_verdict_is_said_first(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = run(slow(tmp_path / "run"), "-o", page)
    assert text.startswith("bottleneck: the training loop waits for data")
    assert f"{page}: " in text
    assert "12 sections" in text
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_gaps_of_the_record_are_said(tmp_path: Path) -> None:
    write_run(tmp_path / "run", readings=False)
    text = run(tmp_path / "run", "--output", tmp_path / "page.html")
    assert "not in the record: memory, load of GPU, processor and disk" in text


def test_without_a_name_the_page_is_report_html(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    run("run")
    assert (tmp_path / "report.html").is_file()


def test_the_record_of_the_page_comes_as_json(tmp_path: Path) -> None:
    output = run(fixed(tmp_path / "run"), "-o", tmp_path / "page.html", "--json", "-")
    record = json.loads(output)
    assert record["kind"] == "PageWritten"
    assert record["size_bytes"] == (tmp_path / "page.html").stat().st_size


def test_what_a_log_does_not_print_may_be_given(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(LOG, "-o", page)
    assert "not known; number of ranks not known" in page.read_text(encoding="utf-8")
    run(LOG, "-o", page, "--batch-size", 32, "--world-size", 2)
    assert "32 samples x 2 ranks / 315 ms a step" in page.read_text(encoding="utf-8")
    with pytest.raises(RecordError, match="no log format 'nonsense'"):
        run(LOG, "-o", page, "--format", "nonsense")


def test_what_would_do_nothing_or_harm_is_refused(tmp_path: Path) -> None:
    folder, page = fixed(tmp_path / "run"), tmp_path / "page.html"
    for text, arguments in {
        "--format, --batch-size are for a log": ("--batch-size", 8, "--format", "KAIR"),
        "a page is a file": ("--output", "-"),
        "are both": ("--output", page, "--json", page),
        "is what the page is about": ("--json", folder / "rank-0.jsonl"),
    }.items():
        with pytest.raises(PitstopError, match=text):
            run(folder, *arguments)
    assert not page.exists()


def test_what_cannot_be_read_or_written_is_one_paragraph(tmp_path: Path) -> None:
    for arguments in (
        (tmp_path / "nowhere",),
        (fixed(tmp_path / "run"), "-o", tmp_path / "no" / "such" / "page.html"),
    ):
        with pytest.raises(RecordError):
            run(*arguments)
