"""``pitstop verify`` as typed: text, record, exit codes."""

import json
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
