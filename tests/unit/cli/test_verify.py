"""``pitstop verify`` as typed: text, record, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.main import app
from pitstop.errors import PitstopError
from tests.unit.verify.test_checks import FALLING, recorded


def test_a_checklist_says_the_result_first_and_ends_with_the_next_command(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", loss=FALLING)
    done = CliRunner().invoke(app, ["verify", str(run)])
    lines = done.stdout.splitlines()
    assert lines[0].startswith("incomplete: 3 of 6 checks pass, 0 fail, 3 not recorded")
    assert lines[-1].startswith("next: pitstop ")
    assert done.exit_code == 1, "what is not recorded is not a pass"


def test_the_record_goes_to_stdout_alone(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", loss=FALLING)
    done = CliRunner().invoke(app, ["verify", str(run), "targets.data_wait_ms=0.5", "--json", "-"])
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["data wait"]["standing"] == "fail"


@pytest.mark.parametrize(
    ("setting", "said"),
    [("targets.speed=1", "no target"), ("train.steps=1", "no target"), ("targets.gpu_busy=2", "")],
)
def test_a_target_that_is_none_is_refused(tmp_path: Path, setting: str, said: str) -> None:
    done = CliRunner().invoke(app, ["verify", str(tmp_path), setting])
    assert isinstance(done.exception, PitstopError)
    assert said in str(done.exception)


SCRIPT = """
import sys
name, place, seed = sys.argv[1:]
open(place, "a").write(f"{name} {seed}\\n")
for i in range(20):
    print(f"iter {i}: loss {4 * 0.9**i + 0.001 * int(seed):.4f}, time 3.1ms, mfu 1.00%")
"""


def verify_commands(folder: Path) -> list[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    sides = [[sys.executable, str(script), name, str(folder / "runs"), "{seed}"] for name in "ab"]
    options = ["--study", str(folder / "study"), "--seeds", "3"]
    return [sys.executable, "-m", "pitstop", "verify", *options, "--", *sides[0], "--", *sides[1]]


@pytest.mark.slow
def test_a_verification_that_was_killed_goes_on_and_repeats_no_finished_run(tmp_path: Path) -> None:
    command = verify_commands(tmp_path)
    kills = 0
    for wanted in (1, 3, 5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            if len(list((tmp_path / "study").glob("*/result.json"))) >= wanted:
                process.kill()
                kills += 1
                break
        process.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("passes: at the statistical level")
    assert kills
    ran = (tmp_path / "runs").read_text().splitlines()
    assert set(ran) == {f"{name} {seed}" for name in "ab" for seed in range(3)}
    assert len(ran) <= 6 + kills, "only what was under way is run again"


@pytest.mark.parametrize(
    "words",
    [["--", "python"], ["--", "python", "--"], ["run", "--", "a", "--", "b"], ["--", "--", "a"]],
)
def test_anything_but_two_commands_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["verify", *words])
    assert isinstance(done.exception, PitstopError)
    assert "pitstop verify [OPTIONS] -- CMD_A -- CMD_B" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--seeds", "3"], "--seeds is for a comparison"),
        (["--steps", "3", "--", "a", "--", "b"], "--steps is for two configurations"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["verify", *words])
    assert isinstance(done.exception, PitstopError)
    assert said in str(done.exception)
