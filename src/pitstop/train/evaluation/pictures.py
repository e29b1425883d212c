"""A trained model's work on a few evaluation samples, as pictures in a run's own folder."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from pitstop.config.sections import RunConfig
from pitstop.errors import ConfigError, DataError, os_errors_as
from pitstop.records.pictures import FOLDER, PictureRow, Pictures, write_pictures
from pitstop.train.optim.precision import Precision
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.setup import choose_device
from pitstop.train.state.weights import load_weights, read_weights
from pitstop.train.task import BatchT, DrawsPictures, Task, predict


def draw_pictures(
    config: RunConfig, task: Task[BatchT], checkpoint: Path, folder: Path, *, count: int
) -> Pictures:
    """Run trained weights on a few evaluation samples and keep what came out, beside the run.

    Args:
        config: What decides numbers is taken from it: data, model, `train.precision`.
        task: Of the workload.
        checkpoint: A checkpoint, a run, or a file of weights.
        folder: The run's folder; its pictures so far are replaced, all at once.
        count: Samples to show, spread evenly over the evaluation data.

    Raises:
        PitstopError: Where checkpoint or data cannot be used, the workload has no pictures, or
            they cannot be written.
    """
    if not isinstance(task, DrawsPictures):
        raise ConfigError(f"the workload {task.name} has no pictures to draw")
    ranks = join_ranks()
    try:
        refuse_ranks(ranks)
        return keep_pictures(
            folder, lambda place: _draw(config, task, checkpoint, place, count=count)
        )
    finally:
        leave_ranks()


def keep_pictures(folder: Path, draw: Callable[[Path], list[PictureRow]]) -> Pictures:
    """Let pictures be drawn and put them into a run's folder, in place of those before.

    Raises:
        PitstopError: Where they cannot be drawn or written; those before stay.
    """
    with os_errors_as(DataError, f"cannot write pictures to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pictures.", dir=folder) as scratch:
            made = Path(scratch) / FOLDER
            made.mkdir()
            rows = draw(made)
            _require_files(rows, made)
            pictures = Pictures(rows=tuple(rows))
            write_pictures(Path(scratch), pictures)
            _put_in_place(made, folder / FOLDER)
    return pictures


def spread(total: int, count: int) -> list[int]:
    """Choose places that divide a sequence evenly; all of them where there are too few."""
    chosen = min(total, count)
    return [(2 * place + 1) * total // (2 * chosen) for place in range(chosen)]


@torch.inference_mode()
def _draw(
    config: RunConfig, task: Task[BatchT], checkpoint: Path, place: Path, *, count: int
) -> list[PictureRow]:
    assert isinstance(task, DrawsPictures)
    device = choose_device(Ranks())
    precision = Precision(config.train.precision, device, config.train.scaler)
    precision.apply_to_process()
    model = task.build_model()
    load_weights(model, read_weights(checkpoint))
    model.to(device).eval()
    samples = task.eval_samples()
    rows: list[PictureRow] = []
    for index in spread(len(samples), count):
        batch = task.collate([samples.sample(0, index)])
        with precision.autocast():
            output = predict(task, model, task.to_device(batch, device))
        rows += task.draw(output, batch, [index], place)
    return rows


def _require_files(rows: Sequence[PictureRow], place: Path) -> None:
    cells = [cell for row in rows for cell in row.cells]
    assert all((place / cell.file).is_file() for cell in cells), "every cell has its file"
    assert len({cell.file for cell in cells}) == len(cells), "no two cells share a file"


def refuse_ranks(ranks: Ranks) -> None:
    """Let one process pass.

    Raises:
        ConfigError: Where there are several.
    """
    if ranks.world_size > 1:
        raise ConfigError(
            f"pictures are drawn by one process, not {ranks.world_size}; start it without torchrun"
        )


def _put_in_place(made: Path, wanted: Path) -> None:
    """Put a folder where an older one may be, which goes with the scratch folder it moves to."""
    if wanted.exists():
        wanted.rename(made.with_name("replaced"))
    made.rename(wanted)
