"""Two runs of the engine: which may be compared."""

from pathlib import Path

import pytest
import torch
from torch import nn

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.doctor.compare import compare
from pitstop.errors import RecordError
from pitstop.records.run import RunRecord
from pitstop.records.store import read_run
from pitstop.train.run import TrainingRun
from pitstop.train.work import work_settings
from tests.unit.train.runs import LINE, LineTask, line_config

torch.set_num_threads(1)


class WideTask(LineTask):
    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(3, 64), nn.Dropout(0.1), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1)
        )


def trained(folder: Path, task: LineTask | None = None, **settings: object) -> RunRecord:
    config = line_config(folder, train__steps=30, checkpoint__every_steps=30, **settings)
    text = to_yaml(config, kinds={"line": LINE})
    run = TrainingRun(config=config, config_yaml=text, task=task or LineTask())
    run.run()
    return read_run(run.folder)


def test_runs_of_the_engine_that_did_other_work_are_not_compared(tmp_path: Path) -> None:
    plain = trained(tmp_path / "a")
    again = compare(plain, trained(tmp_path / "b", loader__workers=1, run__seed=3))
    assert "trained parameters: 353" in again.same_work
    assert "number format: float32" in again.same_work
    assert again.not_checked == ("FLOPs of a step",)
    with pytest.raises(RecordError, match="trained parameters is 353 in the first and 4,481"):
        compare(plain, trained(tmp_path / "c", WideTask()))
    with pytest.raises(RecordError, match="number format is float32 in the first and bfloat16"):
        compare(plain, trained(tmp_path / "d", train__precision="bf16"))
    averaged = trained(tmp_path / "e", train__ema=0.9)
    with pytest.raises(RecordError, match=r"train\.ema is None in the first and 0\.9 in the"):
        compare(plain, averaged)


@pytest.mark.parametrize(
    ("setting", "counts"),
    [
        ("data.crop=64", True),
        ("train.batch_size=3", True),
        ("train.crop_schedule={1: 128, 2: 256}", True),
        ("train.distill.teacher=/teacher", True),
        ("loss.charbonnier.eps=0.1", True),
        ("model.window=[6, 4, 4]", True),
        ("data.root=/elsewhere", False),
        ("data.order=sequence", False),
        ("model.kernels=reference", False),
        ("train.compile.scope=regions", False),
        ("loader.workers=3", False),
    ],
)
def test_settings_that_only_change_speed_are_no_part_of_the_work(
    setting: str, *, counts: bool
) -> None:
    base = ["model.kind=vrt", "data.root=/data", "train.steps=10"]
    plain, other = (
        work_settings(config_from({}, overrides).config) for overrides in (base, [*base, setting])
    )
    assert plain.keys() == other.keys()
    assert (plain != other) == counts
