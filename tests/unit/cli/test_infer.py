"""`pitstop infer`: outputs as files, where nothing was before."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pitstop.config.dump import to_yaml
from pitstop.train.run import TrainingRun
from pitstop.workloads import catalogue
from tests.command_line import Run, command_line
from tests.unit.train.runs import LINE, Batch, LineTask, line_config

torch.set_num_threads(1)


class WritingTask(LineTask):
    """A line whose outputs are files named after their samples."""

    def write_output(
        self, output: Tensor, batch: Batch, indices: Sequence[int], folder: Path
    ) -> list[Path]:
        paths = [folder / f"{index}.txt" for index in indices]
        for path, value in zip(paths, output, strict=True):
            path.write_text(str(float(value)))
        return paths


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A trained run in a folder that is the present one, and the command line in this process."""
    config = line_config(tmp_path)
    yaml = to_yaml(config, kinds={"line": LINE})
    (tmp_path / "line.yaml").write_text(yaml)
    TrainingRun(config=config, config_yaml=yaml, task=LineTask()).run()
    monkeypatch.setattr(catalogue, "outside_kinds", lambda: {"line": LINE})
    monkeypatch.setattr(catalogue, "build_task", lambda config: WritingTask())
    monkeypatch.chdir(tmp_path)

    return command_line(capsys, monkeypatch, "infer", "line.yaml")


def test_outputs_are_written_and_counted(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--checkpoint", "run", "--output", "new/out")
    assert (code, err) == (0, "")
    made, source, pace, closing = out.splitlines()
    assert made == "7 files in new/out"
    assert source.endswith("(step 12)")
    assert pace.startswith("7 samples in ")
    assert closing == "next: pitstop eval line.yaml --checkpoint run"
    assert len(list((tmp_path / "new" / "out").glob("*.txt"))) == 7


def test_the_record_goes_to_stdout_alone(run: Run) -> None:
    code, out, _ = run("--checkpoint", "run", "--output", "out", "--json", "-")
    assert code == 0
    record = json.loads(out)
    assert (record["kind"], record["files"], record["output"]) == ("InferenceRecord", 7, "out")


def test_a_second_time_is_refused_and_the_first_stays(run: Run, tmp_path: Path) -> None:
    run("--checkpoint", "run", "--output", "out")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    code, out, err = run("--checkpoint", "run", "--output", "out")
    assert (code, out) == (2, "")
    assert err == "error: out is there already; name another folder, or remove it first\n"
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--checkpoint", "nowhere", "--output", "out"], "there is no checkpoint at nowhere"),
        (["--checkpoint", "run"], "Missing option '--output'"),
    ],
)
def test_a_mistake_leaves_with_two(
    run: Run, tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert not (tmp_path / "out").exists()


def test_a_workload_without_outputs_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "build_task", lambda config: LineTask())
    code, _, err = run("--checkpoint", "run", "--output", "out")
    assert code == 2
    assert err == "error: the workload line has no outputs to write\n"
