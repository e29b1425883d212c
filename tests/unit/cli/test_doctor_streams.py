"""``pitstop doctor -- CMD`` where words, records or signals meet trouble: CMD's code counts."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DOCTOR = f"{shlex.quote(sys.executable)} -m pitstop doctor"
SAYS = "not enough evidence: the command failed with exit code 3"

# Says which signals it was started with as ignored, then waits for one.
TELLING = """
import signal, sys
ignored = [name for name in ("SIGINT", "SIGHUP", "SIGQUIT")
           if signal.getsignal(getattr(signal, name)) == signal.SIG_IGN]
print("ignored:", *ignored, flush=True)
if len(sys.argv) > 1:
    number = int(sys.argv[1])
    signal.signal(number, lambda *_: sys.exit(7))
    print("ready", flush=True)
    signal.sigtimedwait([signal.SIGUSR1], 60)
"""


def shell(line: str) -> tuple[int, str, str]:
    """Run a line with bash: its exit code, stdout, stderr."""
    done = subprocess.run(
        ["bash", "-c", line], check=False, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "out", "err"),
    [
        ("2>/dev/full", "hi\n", ""),
        ("2>&-", "hi\n", ""),
        ("2>&1 | head -1; exit ${PIPESTATUS[0]}", "hi\n", ""),
    ],
    ids=["full", "closed", "left"],
)
def test_where_nobody_takes_our_words_the_code_of_the_command_counts(
    line: str, out: str, err: str
) -> None:
    assert shell(f"{DOCTOR} -- sh -c 'echo hi; exit 3' {line}") == (3, out, err)


@pytest.mark.parametrize("place", ["/dev/full", "&-"])
def test_where_the_verdict_cannot_be_written_to_stdout_it_is_still_said(place: str) -> None:
    code, _, err = shell(f"{DOCTOR} --json - -- sh -c 'echo hi; exit 3' >{place}")
    assert code == 3
    assert SAYS in err
    assert ("cannot write the verdict to stdout: No space" in err) is (place == "/dev/full")


def test_a_verdict_that_can_no_longer_be_written_is_said_all_the_same(tmp_path: Path) -> None:
    target = tmp_path / "reports"
    target.mkdir()
    code, _, err = shell(f"{DOCTOR} --json {target}/a.json -- sh -c 'rmdir {target}; exit 3'")
    assert code == 3
    assert err.index(SAYS) < err.index(f"error: cannot write {target}/a.json")


@pytest.mark.parametrize("place", ["missing/a.json", ".", "a.log/b.json"])
def test_a_place_for_the_verdict_is_looked_at_before_anything_runs(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "a.log").touch()
    code, out, err = shell(f"cd {tmp_path} && {DOCTOR} --json {place} -- touch ran")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: cannot write ")
    assert not (tmp_path / "ran").exists()


def test_the_verdict_may_go_into_the_folder_of_the_record(tmp_path: Path) -> None:
    options = "--record new --json new/a.json"
    assert shell(f"cd {tmp_path} && {DOCTOR} {options} -- sh -c 'exit 3'")[0] == 3
    assert json.loads((tmp_path / "new/a.json").read_text())["outcome"] == "not enough evidence"


@pytest.mark.parametrize("place", ["/dev/full", "&-"])
def test_help_that_cannot_be_shown_is_one_line(place: str) -> None:
    code, _, err = shell(f"{shlex.quote(sys.executable)} -m pitstop --help >{place}")
    said = "error: cannot write: No space left on device\n"
    assert (code, err) == ((2, said) if place == "/dev/full" else (0, ""))


def test_what_a_shell_opened_reaches_the_command(tmp_path: Path) -> None:
    code, out, _ = shell(f"{DOCTOR} -- cat <(echo substituted)")
    assert (code, out) == (0, "substituted\n")
    shell(f"{DOCTOR} -- sh -c 'echo three >&3' 3>{tmp_path}/three")
    assert (tmp_path / "three").read_text() == "three\n"
    listing = shlex.join([sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"])
    _, out, _ = shell(f"{DOCTOR} -- {listing}")
    _, bare, _ = shell(listing)
    assert out == bare, "nothing of ours is open in the command"


def test_a_disk_without_room_is_noticed_before_anything_runs(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writing fails in the same place."""
    code, _, err = shell(f"ulimit -f 0; {DOCTOR} --record {tmp_path}/r -- touch {tmp_path}/ran")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: cannot write a record to")
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("with_signal_handlers")
@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGTERM"])
def test_whoever_ends_us_ends_the_command_and_hears_the_verdict(name: str) -> None:
    number = getattr(signal, name)
    with subprocess.Popen(
        [*shlex.split(DOCTOR), "--", sys.executable, "-c", TELLING, str(int(number))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ignored:\n"
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "the command failed with exit code 7" in err


@pytest.mark.usefixtures("with_signal_handlers")
def test_what_was_ignored_stays_ignored_for_the_command() -> None:
    command = f"{DOCTOR} -- {shlex.quote(sys.executable)} -c {shlex.quote(TELLING)}"
    assert shell(f"trap '' INT HUP; {command}")[1] == "ignored: SIGINT SIGHUP\n"
    assert shell(command)[1] == "ignored:\n"


def test_no_folder_is_left_where_nothing_was_recorded(tmp_path: Path) -> None:
    for command, code in (("sh -c 'exit 3'", 3), ("no-such-command", 2)):
        assert shell(f"TMPDIR={tmp_path} {DOCTOR} -- {command}")[0] == code
        assert not list(tmp_path.iterdir())
    code, out, err = shell(f"cd {tmp_path} && {DOCTOR} --record '' -- touch ran")
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert "name a folder" in err


def test_a_record_that_cannot_be_read_costs_no_exit_code(tmp_path: Path) -> None:
    spoil = f"echo nothing > {tmp_path}/r/rank-0.jsonl; exit 3"
    code, _, err = shell(f"{DOCTOR} --record {tmp_path}/r -- sh -c '{spoil}'")
    assert code == 3
    assert err.startswith("not enough evidence: its record cannot be read: ")


def test_without_a_folder_for_the_record_nothing_runs(tmp_path: Path) -> None:
    line = f"cd /proc/self && TMPDIR=/nowhere {DOCTOR} -- touch {tmp_path}/ran"
    code, out, err = shell(f"ulimit -f 0; {line}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "name a folder with --record" in err
    assert not (tmp_path / "ran").exists()
