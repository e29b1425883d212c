"""Whole frames in tiles through the task: evaluation, inference, folders of frames."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from pitstop.config.load import config_from
from pitstop.config.sections import EvalSection
from pitstop.config.workloads.deblur import TilesSection
from pitstop.errors import ConfigError, DataError
from pitstop.records.evaluation import InferenceRecord
from pitstop.records.store import from_json, to_json
from pitstop.train.evaluation.trained_model import evaluate_checkpoint, infer_checkpoint
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.prediction import WholeFrames, cut_batch
from pitstop.workloads.deblur.spike import Window
from pitstop.workloads.deblur.synthetic import make_clips
from pitstop.workloads.deblur.task import DeblurTask, build_deblur
from tests.unit.workloads.deblur.tiny_vrt import TINY_SPIKES, TINY_VRT_SPIKE

TINY: dict[str, Any] = {
    "model": TINY_VRT_SPIKE,
    "data": {"crop": 16, "clip_len": 2, **TINY_SPIKES},
    "train": {"steps": 1},
    "loader": {"workers": 0},
}


class Doubling(nn.Module):
    """Has a parameter, as a model does, and says how large what it saw was."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.seen: list[torch.Size] = []


def forward(model: nn.Module, batch: ClipBatch) -> Tensor:
    assert isinstance(model, Doubling)
    model.seen.append(batch.blur.shape[-2:])
    return model.scale.detach() * batch.blur.float()


def batch_of(height: int, width: int, *, step: int | None = 2) -> ClipBatch:
    generator = torch.Generator().manual_seed(0)
    blur = torch.randint(0, 256, (1, 2, 3, height, width), generator=generator).byte()
    spikes = None
    if step is not None:
        shape = (1, 2, 5, height // step, width // step)
        spikes = torch.randint(0, 2, shape, generator=generator).byte()
    fresh = torch.ones(1, 2, dtype=torch.bool)
    return ClipBatch(blur=blur, sharp=blur, spikes=spikes, clip=torch.zeros(1).long(), fresh=fresh)


def same(batch: ClipBatch, device: torch.device) -> ClipBatch:
    del device
    return batch


def whole_frames(**settings: Any) -> WholeFrames:
    tiles = TilesSection(memory=settings.pop("memory", None))
    return WholeFrames(forward, same, tiles=tiles, evaluation=EvalSection(**settings))


def test_frames_go_through_whole_where_no_tile_is_set_or_all_fits_into_one() -> None:
    for settings in ({}, {"tile": 48}):
        model, batch = Doubling(), batch_of(32, 48)
        out = whole_frames(**settings)(model, batch)
        assert model.seen == [(32, 48)]
        assert torch.equal(out, 2 * batch.blur.float())


def test_tiles_are_of_the_side_that_is_set_and_join_seamlessly() -> None:
    model, batch = Doubling(), batch_of(40, 48)
    out = whole_frames(tile=24, tile_overlap=8)(model, batch)
    assert set(model.seen) == {(24, 24)}
    assert len(model.seen) == 2 * 3
    torch.testing.assert_close(out, 2 * batch.blur.float())


def test_the_border_says_what_becomes_of_an_overlap() -> None:
    """Each tile is of one shade; only fading makes shades between."""

    def shades(border: str) -> set[float]:
        model, batch = Doubling(), batch_of(24, 40)

        def shade(model: nn.Module, part: ClipBatch) -> Tensor:
            forward(model, part)
            assert isinstance(model, Doubling)
            return torch.full(part.blur.shape, float(len(model.seen)))

        settings = EvalSection(tile=24, tile_overlap=8)
        tiles = TilesSection.model_validate({"border": border})
        out = WholeFrames(shade, same, tiles=tiles, evaluation=settings)(model, batch)
        return set(out.unique().tolist())

    assert shades("discard") == {1.0, 2.0}
    assert len(shades("cosine")) > 4


def test_frames_and_spikes_are_cut_at_the_same_place() -> None:
    batch = batch_of(32, 48)
    part = cut_batch(batch, Window(8, 16, 16, 24))
    assert part.spikes is not None
    assert batch.spikes is not None
    assert torch.equal(part.blur, batch.blur[..., 8:24, 16:40])
    assert torch.equal(part.spikes, batch.spikes[..., 4:12, 8:20])


def test_a_side_follows_the_grid_of_the_spikes() -> None:
    model, batch = Doubling(), batch_of(48, 96, step=3)
    out = whole_frames(tile=32, tile_overlap=8)(model, batch)
    assert set(model.seen) == {(24, 24)}
    torch.testing.assert_close(out, 2 * batch.blur.float())


def test_a_budget_needs_a_device_to_measure() -> None:
    with pytest.raises(ConfigError, match=r"there is no GPU; set eval\.tile alone"):
        whole_frames(memory=2**30)(Doubling(), batch_of(32, 48))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prediction") / "clips"
    make_clips(folder, clips={"train": 1, "test": 1}, frames=5, size=(32, 48), seed=0)
    return folder


def config_of(root: Path, *overrides: str) -> Any:
    return config_from(TINY, [f"data.root={root}", *overrides]).config


def weights(task: DeblurTask, path: Path) -> Path:
    torch.manual_seed(0)
    torch.save(task.build_model().state_dict(), path)
    return path


def test_an_evaluation_in_tiles_sees_tiles_and_counts_whole_frames(
    root: Path, tmp_path: Path
) -> None:
    # Another start than the input, which is the same in tiles.
    whole = config_of(root, "model.start=random")
    tiled = config_of(root, "model.start=random", "eval.tile=24", "eval.tile_overlap=16")
    saved = weights(build_deblur(whole), tmp_path / "weights.pt")
    records = [
        evaluate_checkpoint(config, build_deblur(config), saved) for config in (whole, tiled)
    ]
    first, second = (record.metrics for record in records if record is not None)
    assert first.keys() == second.keys() == {"psnr", "psnr_y", "ssim", "ssim_y", "psnr_input"}
    assert first["psnr_input"] == second["psnr_input"]
    assert first["psnr"] != second["psnr"]
    assert first["psnr"] == pytest.approx(second["psnr"], abs=1.5)


def test_training_never_sees_tiles(root: Path) -> None:
    task = build_deblur(config_of(root, "eval.tile=8", "eval.tile_overlap=0"))
    batch = task.collate([task.train_samples().sample(0, 0)])
    seen: list[torch.Size] = []
    model = task.build_model()
    model.conv_first.register_forward_hook(lambda _, args, out: seen.append(out.shape[-2:]))
    with torch.no_grad():
        task.forward(model, batch)
        task.predict(model, batch)
    assert seen == [(16, 16)] + [(8, 8)] * 4


def inference(root: Path, *overrides: str) -> tuple[Any, DeblurTask]:
    [clip] = (root / "test").iterdir()
    named = [f"data.frames={clip / 'blur'}", f"data.frame_spikes={clip / 'spike'}"]
    config = config_of(root / "gone", *named, *overrides)
    return config, build_deblur(config)


def test_a_folder_is_restored_without_sharp_frames_or_a_dataset(root: Path, tmp_path: Path) -> None:
    config, task = inference(root, "eval.tile=24", "eval.tile_overlap=8")
    saved = weights(task, tmp_path / "weights.pt")
    record = infer_checkpoint(config, task, saved, tmp_path / "out")
    assert record is not None
    assert (record.files, record.samples) == (5, 5)
    assert record.wall_s > 0
    assert record.peak_device_bytes is None
    assert from_json(to_json(record), InferenceRecord) == record
    [clip] = (root / "test").iterdir()
    names = [path.name for path in sorted((clip / "blur").iterdir())]
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == names
    with Image.open(tmp_path / "out" / names[0]) as image:
        assert image.size == (48, 32)


def test_a_folder_gives_what_the_same_frames_give_in_a_dataset(root: Path, tmp_path: Path) -> None:
    """An odd number of frames: the last segment reaches back, and shares are as in the other."""
    config, task = inference(root)
    saved = weights(task, tmp_path / "weights.pt")
    infer_checkpoint(config, task, saved, tmp_path / "folder")
    config = config_of(root)
    infer_checkpoint(config, build_deblur(config), saved, tmp_path / "split")
    frames = sorted((tmp_path / "folder").iterdir())
    for path in frames[:3]:
        [other] = (tmp_path / "split").glob(f"*/{path.name}")
        with Image.open(path) as mine, Image.open(other) as theirs:
            assert np.array_equal(np.asarray(mine), np.asarray(theirs))


def test_a_folder_has_spikes_even_where_the_dataset_has_counts(root: Path, tmp_path: Path) -> None:
    saved = None
    made = []
    for override in ("data.spikes=live", "data.spikes=precomputed"):
        config, task = inference(root, override)
        saved = saved or weights(task, tmp_path / "weights.pt")
        folder = tmp_path / override
        infer_checkpoint(config, task, saved, folder)
        made.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert made[0] == made[1]


def test_what_is_wrong_with_a_folder_is_said_before_anything_is_made(
    root: Path, tmp_path: Path
) -> None:
    config, task = inference(root, "data.clip_len=6")
    with pytest.raises(DataError, match=r"has 5 frames, and data\.clip_len is 6"):
        infer_checkpoint(config, task, tmp_path / "none.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
