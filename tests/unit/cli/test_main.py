"""The command line as its users meet it: words, exit codes, and never a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pitstop
from pitstop.records import store
from pitstop.records.verdict import Verdict
from pitstop_probe import Clock, RecordWriter
from tests.command_line import Run, command_line
from tests.fakes import FakeClock

ESCAPE = "\x1b"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process: exit code, stdout, stderr."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)

    return command_line(capsys, monkeypatch)


def write_record(folder: Path, *, data_us: int, rank: int = 0) -> Path:
    time = FakeClock()
    writer = RecordWriter(str(folder / f"rank-{rank}.jsonl"), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for _ in range(50):
        clock.begin_step()
        with clock.span("data"):
            time.advance(data_us)
        with clock.span("forward"):
            time.advance(10_000)
    clock.close()
    writer.close()
    return folder


@pytest.fixture
def starved(tmp_path: Path) -> Path:
    return write_record(tmp_path / "starved", data_us=30_000)


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return write_record(tmp_path / "healthy", data_us=10)


def test_a_healthy_run_leaves_with_zero(run: Run, healthy: Path) -> None:
    code, out, err = run("doctor", healthy)
    assert (code, err) == (0, "")
    assert out.startswith("healthy: ")


@pytest.mark.parametrize("name", ["COLUMNS", "LINES"])
def test_a_terminal_of_absurd_size_is_none(
    run: Run, healthy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "9" * 5000)
    assert run("doctor", healthy)[0] == 0


def test_a_bottleneck_leaves_with_one_and_says_it_first(run: Run, starved: Path) -> None:
    code, out, err = run("doctor", starved)
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("bottleneck: the training loop waits for data")
    assert "DATA001 the training loop waits for data" in lines
    assert any(line.split()[:3] == ["data", "1.50", "s"] for line in lines)


def test_a_file_of_one_rank_is_a_run_too(run: Run, starved: Path) -> None:
    assert run("doctor", starved / "rank-0.jsonl") == run("doctor", starved)


def test_the_table_shows_the_rank_that_was_judged(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, data_us in enumerate((0, 30_000)):
        monkeypatch.setenv("RANK", str(rank))
        write_record(tmp_path, data_us=data_us, rank=rank)
    _, out, _ = run("doctor", tmp_path)
    assert any(line.split()[:4] == ["data", "1.50", "s", "75.0%"] for line in out.splitlines())


def test_the_record_is_written_beside_the_words(run: Run, starved: Path, tmp_path: Path) -> None:
    target = tmp_path / "verdict.json"
    code, out, _ = run("doctor", starved, "--json", target)
    assert (code, out) == run("doctor", starved)[:2]
    verdict = store.from_json(target.read_text(), Verdict)
    assert verdict.outcome == "bottleneck"
    assert verdict.shares["data"] == 0.75


@pytest.mark.parametrize("kind", ["starved", "healthy"])
def test_a_dash_gives_json_and_nothing_else(
    run: Run, kind: str, request: pytest.FixtureRequest
) -> None:
    code, out, err = run("doctor", request.getfixturevalue(kind), "--json", "-")
    assert json.loads(out)["kind"] == "Verdict"
    assert (code, err) == (1 if kind == "starved" else 0, "")


def test_a_pipe_is_written_to_and_not_replaced_by_a_file(
    run: Run, starved: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        code, _, err = run("doctor", starved, "--json", pipe)
        assert (code, err, pipe.is_fifo()) == (1, "", True)
        assert json.loads(os.read(reader, 1 << 16))["kind"] == "Verdict"
    finally:
        os.close(reader)


@pytest.mark.parametrize("target", ["missing/x.json", ".", "/", "x" * 5_000])
def test_a_place_that_cannot_be_written_is_a_users_error(
    run: Run, starved: Path, tmp_path: Path, target: str
) -> None:
    code, out, err = run("doctor", starved, "--json", tmp_path / target)
    assert (code, out) == (2, "")
    assert err.startswith("error: cannot write ")
    assert err.count("\n") == 1


def test_a_missing_path_is_one_line(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert run("doctor", missing) == (2, "", f"error: there is no file or folder {missing}\n")


def test_paths_that_hold_no_record_are_one_line_each(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"epoch 1 loss 0.5\n\xff\xfe")
    folder = tmp_path / "empty"
    folder.mkdir()
    unreadable = tmp_path / "unreadable"
    (unreadable / "rank-0.jsonl").mkdir(parents=True)
    for path, complaint in [
        (log, "holds no training record of a known format"),
        (folder, f"{folder} holds no file that could be a training log"),
        (unreadable, "cannot read"),
        (tmp_path / ("x" * 5_000), "cannot read"),
    ]:
        code, out, err = run("doctor", path)
        assert (code, out) == (2, ""), path
        assert err.startswith("error: ")
        assert complaint in err
        assert err.count("\n") == 1


def test_what_is_read_is_never_written_over(run: Run, tmp_path: Path, starved: Path) -> None:
    record, log = starved / "rank-0.jsonl", tmp_path / "train.log"
    log.write_text("epoch 1 loss 0.5\n")
    for words in [
        ("export", starved, "--trace", record),
        ("doctor", starved, "--json", record),
        ("doctor", record, "--json", record),
        ("doctor", log, "--json", log),
    ]:
        before = record.read_bytes(), log.read_bytes()
        code, out, err = run(*words)
        assert (code, out, err.count("name another file")) == (2, "", 1), words
        assert (record.read_bytes(), log.read_bytes()) == before


def test_nothing_after_the_dashes_is_no_command(run: Run) -> None:
    code, _, err = run("doctor", "--")
    assert code == 2
    assert "no command follows --" in err


def test_a_record_that_holds_odd_names_is_shown_and_written(
    run: Run, tmp_path: Path, starved: Path
) -> None:
    path = starved / "rank-0.jsonl"
    odd = json.dumps(f"{ESCAPE}[31m模糊[bold] \ud800")[1:-1].encode()
    path.write_bytes(path.read_bytes().replace(b'"name":"forward"', b'"name":"%b"' % odd))
    code, out, _ = run("doctor", starved, "--json", tmp_path / "verdict.json")
    assert code == 1
    assert ESCAPE not in out
    assert "\\x1b[31m模糊[bold]" in out
    out.encode()
    assert store.from_json((tmp_path / "verdict.json").read_text(), Verdict).steps == 45
    assert json.loads(run("doctor", starved, "--json", "-")[1])["steps"] == 45


def test_a_wrong_command_is_answered_with_the_right_one(run: Run) -> None:
    code, out, err = run("docter", "x")
    assert (code, out) == (2, "")
    assert "doctor" in err.replace("docter", "")


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["doctor", "a", "--nope"], ["demo", "--steps", "3"], ["config", "x"]]
)
def test_misuse_leaves_with_two(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err


def test_the_version_is_the_packages(run: Run) -> None:
    assert run("--version") == (0, f"pitstop {pitstop.__version__}\n", "")


def test_ctrl_c_is_said_in_one_word(
    run: Run, starved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pitstop.doctor.ranks.together.read_run", interrupted)
    code, out, err = run("doctor", starved)
    assert (code, out, err.strip()) == (130, "", "interrupted")


@pytest.mark.parametrize(
    "line", [("data", "check"), ("config", "check"), ("doctor",), ("report",), ("watch", "--once")]
)
def test_a_path_that_the_system_refuses_is_a_users_error(
    run: Run, tmp_path: Path, line: tuple[str, ...]
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in ("x" * 5000, str(loop), "/proc/kmsg", "/dev/zero"):
        code, _, err = run(*line, path)
        assert code in (1, 2), err
        assert "Traceback" not in err


def test_names_of_files_do_not_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    odd = tmp_path / "a\x1b]0;owned\x07\x1b[2J\u202eb.yaml"
    odd.write_text("a: [")
    for line in (("config", "check"), ("train",), ("doctor",), ("data", "stats")):
        code, out, err = run(*line, str(odd))
        assert code in (1, 2)
        assert "\x1b" not in out + err
        assert "\u202e" not in out + err


def test_a_demo_into_a_place_that_is_no_folder_is_a_users_error(run: Run, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    code, _, err = run("demo", "--steps", "40", "--output", taken)
    assert code == 2
    assert err == f"error: cannot write to {taken}: File exists\n"


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in a process of its own, on pipes, with variables set."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def invoke(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        line = list(map(str, arguments))
        return subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)

    return invoke


def test_the_package_runs_as_a_module_and_pipes_carry_no_colours(
    command: Command, starved: Path
) -> None:
    shown = command(sys.executable, "-m", "pitstop", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "doctor" in shown.stdout
    verdict = command(sys.executable, "-m", "pitstop", "doctor", starved)
    assert (verdict.returncode, verdict.stderr) == (1, "")
    assert ESCAPE not in shown.stdout + verdict.stdout


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json", "-"], ["--help"]])
def test_a_reader_that_leaves_early_sees_no_traceback(starved: Path, arguments: list[str]) -> None:
    if arguments[0] == "doctor":
        arguments = [*arguments, str(starved)]
    with subprocess.Popen(
        [sys.executable, "-m", "pitstop", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert (process.returncode, errors) == (1, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_letters_gets_words_and_whole_json(
    command: Command, starved: Path, encoding: str
) -> None:
    path = starved / "rank-0.jsonl"
    odd = json.dumps("模糊 ±")[1:-1].encode()
    path.write_bytes(path.read_bytes().replace(b'"name":"forward"', b'"name":"%b"' % odd))
    doctor = (sys.executable, "-m", "pitstop", "doctor", starved)
    shown = command(*doctor, PYTHONIOENCODING=encoding)
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "?? " in shown.stdout
    written = command(*doctor, "--json", "-", PYTHONIOENCODING=encoding)
    assert (written.returncode, written.stderr) == (1, "")
    assert "模糊 ±" in json.loads(written.stdout)["shares"]


def test_shells_complete_commands(command: Command) -> None:
    script = Path(sys.executable).parent / "pitstop"
    shown = command(script, _PITSTOP_COMPLETE="source_bash")
    assert "_pitstop_completion" in shown.stdout
    offered = command(
        script, _PITSTOP_COMPLETE="complete_bash", COMP_WORDS="pitstop do", COMP_CWORD="1"
    )
    assert offered.stdout.split() == ["doctor"]


def test_an_interrupt_while_the_command_line_loads_shows_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that it needs is replaced by one that stands for Ctrl-C at that moment."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pitstop", "--version"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# What is registered first is called last: after every handler of ours.
ENDING = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > len(sys.modules)))
from pitstop.__main__ import main
sys.argv = ["pitstop", "--version"]
main()
"""


def test_a_command_that_ends_looks_for_no_garbage(command: Command) -> None:
    """With torch imported, collections at the end take most of a second."""
    done = command(sys.executable, "-c", ENDING)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == ["True"]
