"""``pitstop doctor -- CMD`` as its users meet it: signals, exit codes, JSON, and misuse."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pitstop.records.store import from_json
from pitstop.records.verdict import Verdict
from tests.command_line import Run, command_line

# Counts interrupts: waits for the first, then as long as a second one would take to arrive.
COUNTING = """
import signal
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
for _ in range(200):
    if seen:
        break
    signal.sigtimedwait([signal.SIGUSR1], 0.05)
for _ in range(10):
    signal.sigtimedwait([signal.SIGUSR1], 0.05)
print("interrupts:", len(seen), flush=True)
raise SystemExit(7)
"""
DOCTOR = [sys.executable, "-m", "pitstop", "doctor"]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process: exit code, stdout, stderr."""
    return command_line(capfd, monkeypatch)


@pytest.mark.usefixtures("with_signal_handlers")
def test_an_interrupt_sent_to_us_alone_reaches_the_command_once() -> None:
    with subprocess.Popen(
        [*DOCTOR, "--", sys.executable, "-c", COUNTING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, "interrupts: 1\n")
    assert "it was interrupted" in err


@pytest.mark.usefixtures("with_signal_handlers")
def test_ctrl_c_on_a_terminal_reaches_the_command_once() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*DOCTOR, "--", sys.executable, "-c", COUNTING])
    shown = b""
    try:
        while True:
            shown += os.read(terminal, 4096)
            if b"ready" in shown:
                os.write(terminal, b"\x03")
                break
        while portion := os.read(terminal, 4096):
            shown += portion
    except OSError:
        pass  # how a terminal says that nobody is left on its other side
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert b"interrupts: 1\r\n" in shown


def test_a_command_that_never_trains_gives_a_verdict_all_the_same(run: Run, tmp_path: Path) -> None:
    code, out, err = run("doctor", "--json", "-", "--", "sh", "-c", "exit 3")
    assert code == 3
    verdict = from_json(out, Verdict)
    assert verdict.outcome == "not enough evidence"
    assert verdict.message.startswith("the command failed with exit code 3 after ")
    assert verdict.message.endswith("before its first training step")
    assert err.startswith(f"not enough evidence: {verdict.message}\n")
    target = tmp_path / "verdict.json"
    assert run("doctor", "--json", target, "--", "true")[0] == 0
    verdict = from_json(target.read_text(), Verdict)
    assert verdict.message.startswith("the command ended with code 0 after ")
    assert all(option in verdict.notes[0] for option in ("-I", "-E", "-S"))


def test_an_empty_rank_in_the_environment_is_no_rank(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "")
    assert run("doctor", "--", "sh", "-c", "exit 3")[0] == 3


def test_death_by_a_real_time_signal_is_told_as_a_shell_tells_it(run: Run) -> None:
    code, _, err = run("doctor", "--", "sh", "-c", "kill -40 $$")
    assert code == 168
    assert "was ended by signal 40" in err
    assert run("doctor", "--", "sh", "-c", "kill -KILL $$")[0] == 137


@pytest.mark.parametrize("what", ["file", "old record", "nowhere", "no interpreter"])
def test_what_cannot_be_run_or_recorded_is_one_line(run: Run, tmp_path: Path, what: str) -> None:
    script = tmp_path / "train"
    script.write_text("import torch\n")
    script.chmod(0o755)
    (tmp_path / "rank-0.jsonl").touch()
    arguments: dict[str, list[object]] = {
        "file": ["--record", script, "--", "true"],
        "old record": ["--record", tmp_path, "--", "true"],
        "nowhere": ["--record", "/proc/x", "--", "true"],
        "no interpreter": ["--", script],
    }
    code, out, err = run("doctor", *arguments[what])
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("form", "options", "named"),
    [
        ("run", ["--steps", "3", "--fail-on", "info"], "--steps, --fail-on are for a command"),
        ("run", ["--steps", "200"], "--steps is for a command"),
        ("run", ["--batch-size", "4"], "--batch-size is for a log"),
        ("run", ["--format", "timm"], "--format is for a log"),
        ("log", ["--detach", "--record", "x"], "--detach, --record are for a command"),
        ("log", ["--ablate", "data"], "--ablate is for a command"),
        ("script", ["--world-size", "2"], "--world-size is for a log"),
    ],
)
def test_an_option_that_would_do_nothing_is_an_error(
    run: Run, tmp_path: Path, form: str, options: list[str], named: str
) -> None:
    (tmp_path / "rank-0.jsonl").write_text('{"kind":"run"}\n')
    log = tmp_path / "a.log"
    log.write_text("".join(f"step={step} step_time_s=0.5\n" for step in range(1, 40)))
    targets: dict[str, list[object]] = {"run": [tmp_path], "log": [log], "script": ["--", "true"]}
    code, out, err = run("doctor", *options, *targets[form])
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {named}")
    assert err.count("\n") == 1
