"""Pictures of a run: a few samples, spread evenly, replaced all at once."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pitstop.config.dump import to_yaml
from pitstop.errors import CheckpointError, ConfigError, DataError
from pitstop.records.pictures import FOLDER, PictureCell, PictureRow, read_pictures
from pitstop.train.evaluation.pictures import draw_pictures, spread
from pitstop.train.run import TrainingRun
from tests.unit.train.runs import LINE, Batch, LineTask, line_config

torch.set_num_threads(1)


class DrawingTask(LineTask):
    """A line whose pictures hold the model's own numbers."""

    breaks = False

    def draw(
        self, output: Tensor, batch: Batch, indices: Sequence[int], folder: Path
    ) -> list[PictureRow]:
        rows = []
        for index, value in zip(indices, output, strict=True):
            name = f"{index}.png"
            (folder / name).write_text(str(float(value)))
            rows.append(
                PictureRow(title=f"{index}", cells=(PictureCell(caption="line", file=name),))
            )
        if self.breaks and 3 in indices:
            raise DataError("cannot write 3.png: No space left on device")
        return rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = line_config(tmp_path)
    text = to_yaml(config, kinds={"line": LINE})
    TrainingRun(config=config, config_yaml=text, task=LineTask()).run()
    return tmp_path / "run"


def test_pictures_show_what_the_trained_weights_make_of_the_samples(
    run: Path, tmp_path: Path
) -> None:
    task = DrawingTask()
    pictures = draw_pictures(line_config(tmp_path), task, run, run, count=2)
    assert read_pictures(run) == pictures
    model = task.build_model().eval()
    state = torch.load(
        next(run.glob("checkpoints/*step-000000012/common.pt")), weights_only=True, mmap=True
    )
    model.load_state_dict(state["model"])
    for row in pictures.rows:
        inputs, _ = task.eval_samples().sample(0, int(row.title))
        shown = float((run / FOLDER / row.cells[0].file).read_text())
        assert shown == pytest.approx(float(model(inputs[None]).detach()))


def test_pictures_drawn_again_replace_the_older_ones_whole(run: Path, tmp_path: Path) -> None:
    draw_pictures(line_config(tmp_path), DrawingTask(), run, run, count=7)
    draw_pictures(line_config(tmp_path), DrawingTask(), run, run, count=1)
    assert sorted(path.name for path in (run / FOLDER).iterdir()) == ["3.png", "pictures.json"]
    assert not list(run.glob(".pictures*"))


def test_a_drawing_that_breaks_leaves_the_older_pictures(run: Path, tmp_path: Path) -> None:
    before = draw_pictures(line_config(tmp_path), DrawingTask(), run, run, count=2)
    task = DrawingTask()
    task.breaks = True
    with pytest.raises(DataError, match="No space left"):
        draw_pictures(line_config(tmp_path), task, run, run, count=7)
    assert read_pictures(run) == before
    assert not list(run.glob(".pictures*"))


def test_a_workload_without_pictures_says_so(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the workload line has no pictures to draw"):
        draw_pictures(line_config(tmp_path), LineTask(), run, run, count=1)


def test_a_checkpoint_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        draw_pictures(
            line_config(tmp_path), DrawingTask(), tmp_path / "none", tmp_path / "new", count=1
        )
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(
    ("total", "count", "places"),
    [(10, 1, [5]), (10, 2, [2, 7]), (3, 3, [0, 1, 2]), (2, 5, [0, 1]), (7, 3, [1, 3, 5])],
)
def test_samples_are_spread_evenly(total: int, count: int, places: list[int]) -> None:
    assert spread(total, count) == places
