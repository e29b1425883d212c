"""Ways into ``pitstop doctor`` that a new user tries, and the answer to each."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pitstop.cli.main import main
from pitstop.records.store import from_json
from pitstop.records.verdict import Verdict

Run = Callable[..., tuple[int, str, str]]

TRAINS = """
import sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command line in a folder of its own with a script: exit code, stdout, stderr."""
    (tmp_path / "train.py").write_text(TRAINS, encoding="utf-8")
    (tmp_path / "my train.py").write_text(TRAINS, encoding="utf-8")
    (tmp_path / "sweep.sh").write_text("true\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pitstop", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        captured = capfd.readouterr()
        return int(leaving.value.code or 0), captured.out, captured.err

    return invoke


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train.py", "-- python train.py"),
        ("./train.py --lr 0.1", "-- python ./train.py --lr 0.1"),
        ("python train.py --lr 0.1", "-- python train.py --lr 0.1"),
        ("python3.12 -m mine.train", "-- python3.12 -m mine.train"),
        ("torchrun --nproc-per-node 2 train.py", "-- torchrun --nproc-per-node 2 train.py"),
        ("accelerate launch train.py", "-- accelerate launch train.py"),
        ("-- train.py --lr 0.1", "-- python train.py --lr 0.1"),
        ("-- ./train.py", "-- python ./train.py"),
        ("-- 'my train.py' 'a b'", "-- python 'my train.py' 'a b'"),
        ("train.py -- --lr 0.1", "-- python train.py --lr 0.1"),
        ("sweep.sh", "-- bash sweep.sh"),
        ("--steps 30 --json=out.json train.py", "--steps 30 --json=out.json -- python train.py"),
        ("--detach python train.py", "--detach -- python train.py"),
        ("--steps 30 -- train.py", "--steps 30 -- python train.py"),
        ("SEED=1 python train.py", "-- env SEED=1 python train.py"),
        ("-- SEED=1 python train.py", "-- env SEED=1 python train.py"),
    ],
)
def test_a_command_in_the_wrong_place_is_answered_with_the_right_line(
    run: Run, typed: str, meant: str
) -> None:
    code, out, err = run("doctor", *shlex.split(typed))
    assert (code, out) == (2, "")
    assert err.endswith(f"did you mean: pitstop doctor {meant}\n")
    assert err.count("\n") == 1


def test_the_former_profiler_of_torch_is_not_measured_but_the_script_behind_it(run: Run) -> None:
    former = ("python", "-m", "torch.utils.bottleneck")
    code, out, err = run("doctor", "--steps", "30", "--", *former, "train.py", "--lr", "1")
    assert (code, out) == (2, "")
    assert "torch.utils.bottleneck is a profiler itself" in err
    assert err.endswith("did you mean: pitstop doctor --steps 30 -- python train.py --lr 1\n")


def test_an_option_that_both_have_goes_to_the_command_and_that_is_said(run: Run) -> None:
    _, _, err = run("doctor", "train.py", "--steps", "5", "--lr", "1")
    assert "did you mean: pitstop doctor -- python train.py --steps 5 --lr 1;" in err
    assert "--steps then goes to the command" in err


def test_the_right_line_shows_no_secret(run: Run) -> None:
    _, _, err = run("doctor", "train.py", "--api-key", "opensesame")
    assert "opensesame" not in err
    assert "-- python train.py --api-key '***' (*** stands for what you typed)" in err


def test_a_script_that_is_not_there_is_named(run: Run) -> None:
    for typed in (["nowhere.py"], ["--", "nowhere.py"]):
        _, _, err = run("doctor", *typed)
        assert "there is no file 'nowhere.py' here" in err


def test_a_command_that_is_not_found_is_one_sentence(run: Run) -> None:
    code, out, err = run("doctor", "--", "no-such-command", "x")
    assert (code, out) == (2, "")
    assert err == "error: there is no command 'no-such-command' to run; write it as in a shell\n"


def test_runs_and_logs_are_no_commands(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "python"  # named like a command, but it is there
    log.write_text("".join(f"step={step} step_time_s=0.5\n" for step in range(1, 40)))
    log.chmod(0o755)
    assert "did you mean" not in run("doctor", "python")[2]
    assert "did you mean" not in run("doctor", "runs/mine")[2]
    assert "did you mean" not in run("doctor", "no-such-run")[2]


def test_a_script_that_runs_by_itself_is_run(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"#!{sys.executable}\nprint('ran')\n", encoding="utf-8")
    script.chmod(0o755)
    assert run("doctor", "--", "./train.py")[1] == "ran\n"


@pytest.mark.parametrize(
    ("arguments", "code", "note"),
    [
        (["-c", "import no_such_package"], 1, "ModuleNotFoundError: No module named 'no_such_pac"),
        (["-c", "import torch; 1 / 0"], 1, "it failed with ZeroDivisionError: division by zero"),
        (["nowhere.py"], 2, "wrong arguments, or a file that is not there"),
        (["-c", "import argparse as a; a.ArgumentParser().parse_args(['x'])"], 2, "wrong arg"),
        (["-c", "raise ValueError('at https://me:opensesame@host')"], 1, "https://***@host"),
    ],
)
def test_a_command_that_fails_before_training_is_told_as_that(
    run: Run, arguments: list[str], code: int, note: str
) -> None:
    found, out, _ = run("doctor", "--json", "-", "--", sys.executable, *arguments)
    verdict = from_json(out, Verdict)
    assert found == code
    assert verdict.message.startswith(f"the command failed with exit code {code} after ")
    assert verdict.message.endswith("before its first training step")
    assert note in verdict.notes[0]
    assert not any("probe" in text for text in verdict.notes)


def test_the_first_failure_is_told_and_not_that_of_whoever_waited(run: Run) -> None:
    inner = "raise ValueError('the cause')"
    outer = f"import subprocess, sys; subprocess.check_call([sys.executable, '-c', {inner!r}])"
    _, out, _ = run("doctor", "--json", "-", "--", sys.executable, "-c", outer)
    assert from_json(out, Verdict).notes[0] == "it failed with ValueError: the cause"


@pytest.mark.slow
def test_an_ended_script_is_told_first_and_the_next_command_last(run: Run, tmp_path: Path) -> None:
    record = tmp_path / "my record"
    measured = ["--steps", "20", "--record", record, "--", sys.executable, "train.py"]
    _, _, err = run("doctor", *measured, 100_000)
    lines = err.strip().splitlines()
    assert lines[0].startswith("the script was ended by pitstop after 20 measured steps (--steps)")
    assert "--detach" in lines[0]
    assert lines[-1] == f"next: pitstop report '{record}' -o report.html"
    assert run(*shlex.split(lines[-1])[2:])[0] == 0
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_a_script_that_ended_by_itself_is_not_called_ended(run: Run) -> None:
    _, _, err = run("doctor", "--", sys.executable, "train.py", 60)
    assert "was ended" not in err
    assert err.strip().splitlines()[-1].startswith("next: pitstop report ")
