"""`pitstop eval --pictures`: drawn into the run's own folder, or refused in one paragraph."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pitstop.cli.main import main
from pitstop.config.dump import to_yaml
from pitstop.records.pictures import read_pictures
from pitstop.train.run import TrainingRun
from pitstop.workloads import catalogue
from tests.unit.train.evaluation.test_pictures import DrawingTask
from tests.unit.train.runs import LINE, LineTask, line_config

Run = Callable[[LineTask], tuple[int, str, str]]
torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    config = line_config(tmp_path)
    yaml = to_yaml(config, kinds={"line": LINE})
    (tmp_path / "line.yaml").write_text(yaml)
    TrainingRun(config=config, config_yaml=yaml, task=LineTask()).run()
    monkeypatch.setattr(catalogue, "outside_kinds", lambda: {"line": LINE})

    def invoke(task: LineTask) -> tuple[int, str, str]:
        monkeypatch.setattr(catalogue, "build_task", lambda config: task)
        line = ["pitstop", "eval", str(tmp_path / "line.yaml"), "--checkpoint"]
        monkeypatch.setattr(sys, "argv", [*line, str(tmp_path / "run"), "--pictures", "2"])
        with pytest.raises(SystemExit) as leaving:
            main()
        captured = capsys.readouterr()
        return int(leaving.value.code or 0), captured.out, captured.err

    return invoke


def test_pictures_lie_in_the_runs_folder(run: Run, tmp_path: Path) -> None:
    code, out, err = run(DrawingTask())
    assert (code, err) == (0, "")
    assert out.startswith("error ")  # the metric, as without pictures
    pictures = read_pictures(tmp_path / "run")
    assert pictures is not None
    assert [row.title for row in pictures.rows] == ["1", "5"]


def test_a_workload_without_pictures_refuses_them(run: Run, tmp_path: Path) -> None:
    code, out, err = run(LineTask())
    assert (code, out) == (2, "")
    assert err == "error: the workload line has no pictures to draw\n"
    assert read_pictures(tmp_path / "run") is None
