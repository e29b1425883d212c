"""``pitstop watch``: text in a pipe, exit codes for scripts, options that do something."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli import watch as command
from pitstop.cli.main import app
from pitstop.errors import RecordError
from pitstop.report.live.server import PortTaken
from tests.browser.records import write_run
from tests.unit.report.live_records import GrowingRun


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["watch", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens in the pauses between two looks, one after the other; none of them is waited."""
    planned: list[Callable[[], None]] = []

    def pause(seconds: float) -> None:
        assert seconds > 0
        planned.pop(0)()

    monkeypatch.setattr(command.time, "sleep", pause)
    return planned


def interrupt() -> None:
    raise KeyboardInterrupt


def test_one_view_and_out(tmp_path: Path) -> None:
    write_run(tmp_path)
    text = run(tmp_path, "--once")
    assert text.startswith("street-clips  finished  ")
    assert "doctor             bottleneck: the training loop waits for data" in text
    assert "\x1b" not in text


def test_the_view_comes_as_json(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    record = json.loads(run(tmp_path / "run", "--once", "--json", "-"))
    assert (record["kind"], record["state"], record["step"]) == ("LiveView", "finished", 300)
    output = run(tmp_path / "run", "--json", "-")
    assert json.loads(output)["step"] == 300, "following to the end, stdout carries nothing else"
    run(tmp_path / "run", "--json", tmp_path / "view.json")
    assert json.loads((tmp_path / "view.json").read_text())["step"] == 300


def test_a_run_is_followed_to_its_end_and_the_next_command_is_said(
    tmp_path: Path, pauses: list[Callable[[], None]]
) -> None:
    growing = GrowingRun(tmp_path, about={"total_steps": 40})

    def more() -> None:
        growing.step(20)
        growing.end_step()

    pauses += [more, more, growing.end]
    lines = run(tmp_path).splitlines()
    assert lines[0].startswith("night: running  step 0/40  not measured")
    assert lines[1].startswith("night: running  step 20/40  400 samples/s")
    assert "estimated 200 ms left" in lines[1]
    assert lines[3].startswith("night  finished  ")
    assert lines[-1] == f"next: pitstop report {tmp_path}"


def test_whoever_watches_may_leave_at_any_time(
    tmp_path: Path, pauses: list[Callable[[], None]]
) -> None:
    growing = GrowingRun(tmp_path)
    pauses += [interrupt]
    text = run(tmp_path)
    assert text.splitlines()[-1] == "watching ended; the run was left alone"
    pauses += [interrupt]
    text = run(tmp_path / "later", "--wait")
    assert text.startswith("later: waiting, there is no record yet")
    assert growing.path.exists()


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1), ("interrupted", 1)])
def test_the_exit_code_tells_how_the_run_ended(tmp_path: Path, status: str, code: int) -> None:
    growing = GrowingRun(tmp_path)
    growing.step(5)
    growing.end(status, "said so")
    assert status in run(tmp_path, code=code)
    assert status in run(tmp_path, "--once", code=code)


def test_a_killed_run_ends_the_watching(tmp_path: Path) -> None:
    growing = GrowingRun(tmp_path)
    growing.step(5)
    growing.end_step()
    growing.set_head(unix_s=1.0)
    text = run(tmp_path, code=1)
    assert re.search(r"killed: process \d+ is gone and wrote no ending", text)


def test_a_run_that_is_not_there_is_one_paragraph(tmp_path: Path) -> None:
    for arguments in ((), ("--once",), ("--web", "--port", "0")):
        with pytest.raises(RecordError, match="wait for it with --wait"):
            run(tmp_path / "later", *arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--port", "8000"), "no page without --web"),
        (("--once", "--web"), "a page needs a run that is followed"),
        (("--once", "--interval", "2"), "one poll only"),
        (("--interval", "0"), "0.1"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    plain = re.sub(r"[^ -~]|\x1b\[[0-9;]*m", "", run(tmp_path, *arguments, code=2))
    assert text in re.sub(r" +", " ", plain)


def test_the_page_is_announced_and_a_taken_port_is_said(
    tmp_path: Path, pauses: list[Callable[[], None]]
) -> None:
    growing = GrowingRun(tmp_path)
    pauses += [growing.end]
    text = run(tmp_path, "--web", "--port", "0")
    assert re.match(r"page: http://127\.0\.0\.1:\d+/\n", text)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            run(tmp_path, "--web", "--port", port)
