"""Trained weights over the evaluation data: the numbers of training, and every output once."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pitstop.config.dump import to_yaml
from pitstop.config.sections import RunConfig
from pitstop.errors import CheckpointError, ConfigError, DataError
from pitstop.records.evaluation import EvaluationRecord, InferenceRecord
from pitstop.records.store import from_json, to_json
from pitstop.train.evaluation.trained_model import evaluate_checkpoint, infer_checkpoint
from pitstop.train.run import TrainingRun
from pitstop.train.state.checkpoint import find_newest_whole
from tests.unit.train.runs import LINE, Batch, LineTask, line_config

ROOT = Path(__file__).parents[4]
torch.set_num_threads(1)


class WritingTask(LineTask):
    """A line whose outputs are files named after their samples."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        self.heard.append("forward")
        return super().forward(model, batch)

    def write_output(
        self, output: Tensor, batch: Batch, indices: Sequence[int], folder: Path
    ) -> list[Path]:
        self.heard.append(f"write {list(indices)}")
        assert len(output) == len(batch[0]) == len(indices)
        paths = [folder / f"{index}.txt" for index in indices]
        for path, inputs, value in zip(paths, batch[0], output, strict=True):
            path.write_text(json.dumps([*inputs.tolist(), float(value)]))
        return paths


def train(config: RunConfig) -> dict[str, float | None]:
    """Train, and give the metrics of the last evaluation."""
    yaml = to_yaml(config, kinds={"line": LINE})
    TrainingRun(config=config, config_yaml=yaml, task=LineTask()).run()
    checkpoint, _ = find_newest_whole(config.run.work_dir / "run" / "checkpoints")
    assert checkpoint is not None
    return dict(checkpoint.manifest.metrics)


@pytest.mark.parametrize(
    "settings",
    [{}, {"train__ema": 0.5}, {"train__precision": "bf16"}, {"eval__batch_size": 3}],
    ids=["plain", "averaged", "bf16", "batches"],
)
def test_a_checkpoint_evaluates_to_the_numbers_its_run_ended_with(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    config = line_config(tmp_path, **settings)
    metrics = train(config)
    record = evaluate_checkpoint(config, LineTask(), tmp_path / "run")
    assert record is not None
    assert record.metrics == metrics
    assert (record.step, record.samples, record.ranks) == (12, 7, 1)
    assert record.averaged == ("train__ema" in settings)
    assert record.precision == config.train.precision
    assert record.samples_per_s == record.samples / record.wall_s
    assert from_json(to_json(record), EvaluationRecord) == record


def test_averaged_weights_are_what_is_evaluated(tmp_path: Path) -> None:
    """Without the average the numbers are others, so the test above can notify."""
    plain = train(line_config(tmp_path / "a"))
    averaged = train(line_config(tmp_path / "b", train__ema=0.5))
    assert plain != averaged


def test_every_sample_is_written_once_under_its_own_number(tmp_path: Path) -> None:
    config = line_config(tmp_path, eval__batch_size=3)
    train(config)
    task, folder = WritingTask(), tmp_path / "out"
    record = infer_checkpoint(config, task, tmp_path / "run", folder)
    assert record is not None
    assert (record.files, record.samples, record.step) == (7, 7, 12)
    assert record.output == str(folder)
    assert from_json(to_json(record), InferenceRecord) == record
    assert sorted(path.name for path in folder.iterdir()) == [f"{n}.txt" for n in range(7)]
    for index in range(7):
        written = json.loads((folder / f"{index}.txt").read_text())
        assert written[:3] == task.eval_samples().sample(0, index)[0].tolist()


def test_an_output_is_written_before_the_next_batch_is_computed(tmp_path: Path) -> None:
    config = line_config(tmp_path, eval__batch_size=3)
    train(config)
    task = WritingTask()
    infer_checkpoint(config, task, tmp_path / "run", tmp_path / "out")
    writes = ["write [0, 1, 2]", "write [3, 4, 5]", "write [6]"]
    assert task.heard == [event for write in writes for event in ("forward", write)]


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    config = line_config(tmp_path)
    train(config)
    (tmp_path / "out").mkdir()
    kept = tmp_path / "out" / "mine.txt"
    kept.write_text("mine")
    for folder in (tmp_path / "out", kept):
        with pytest.raises(DataError, match="is there already; name another folder"):
            infer_checkpoint(config, WritingTask(), tmp_path / "run", folder)
    assert kept.read_text() == "mine"
    kept.unlink()
    assert infer_checkpoint(config, WritingTask(), tmp_path / "run", tmp_path / "out") is not None


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    config = line_config(tmp_path)
    train(config)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot make .*name another folder"):
        infer_checkpoint(config, WritingTask(), tmp_path / "run", tmp_path / "file" / "out")


def test_mistakes_are_said_before_anything_is_written(tmp_path: Path) -> None:
    config = line_config(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        infer_checkpoint(config, WritingTask(), tmp_path / "nowhere", out)
    with pytest.raises(ConfigError, match="the workload line has no outputs to write"):
        infer_checkpoint(config, LineTask(), tmp_path / "nowhere", out)
    wrong = line_config(tmp_path, checkpoint__best_of="psnr", eval__every_steps=4)
    with pytest.raises(ConfigError, match="best_of is psnr, but line measures error"):
        evaluate_checkpoint(wrong, LineTask(), tmp_path / "nowhere")
    assert not out.exists()


SCRIPT = """
import sys
from pathlib import Path
import torch
from pitstop.records.store import to_json
from pitstop.train.evaluation.trained_model import evaluate_checkpoint, infer_checkpoint
from tests.unit.train.runs import line_config
from tests.unit.train.evaluation.test_trained_model import WritingTask
torch.set_num_threads(1)
folder = Path(sys.argv[1])
config = line_config(folder, eval__batch_size=2)
if sys.argv[2] == "eval":
    record = evaluate_checkpoint(config, WritingTask(), folder / "run")
else:
    record = infer_checkpoint(config, WritingTask(), folder / "run", folder / "shared")
if record is not None:
    with (folder / f"{sys.argv[2]}.json").open("x") as file:
        file.write(to_json(record))
"""


@pytest.mark.slow
def test_two_ranks_give_the_numbers_and_outputs_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = line_config(tmp_path, eval__batch_size=2)
    metrics = train(config)
    infer_checkpoint(config, WritingTask(), tmp_path / "run", tmp_path / "alone")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for command in ("eval", "infer"):
        line = [sys.executable, *torchrun, str(script), str(tmp_path), command]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    measured = from_json((tmp_path / "eval.json").read_text(), EvaluationRecord)
    assert (measured.ranks, measured.samples) == (2, 7)
    assert measured.metrics == pytest.approx(metrics, rel=1e-6)
    made = from_json((tmp_path / "infer.json").read_text(), InferenceRecord)
    assert (made.files, made.samples) == (7, 7)
    assert contents(tmp_path / "shared") == pytest.approx(contents(tmp_path / "alone"), rel=1e-6)


def contents(folder: Path) -> dict[str, Any]:
    return {
        f"{path.name} {place}": number
        for path in folder.iterdir()
        for place, number in enumerate(json.loads(path.read_text()))
    }
