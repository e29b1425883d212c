"""Super-resolution and denoising from a configuration: what samples hold, and what is restored."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from pitstop.config.load import config_from
from pitstop.config.problems import ConfigProblems
from pitstop.errors import DataError
from pitstop.workloads.deblur.data.inputs import Inputs, enlarged, shrink
from pitstop.workloads.deblur.data.packing import check_clips, pack_clips
from pitstop.workloads.deblur.synthetic import make_clips
from pitstop.workloads.deblur.task import DeblurTask, build_deblur
from pitstop.workloads.deblur.tiling import Tiling, restore_tiles
from tests.unit.workloads.deblur.tiny_vrt import TINY_VRT

TINY: dict[str, Any] = {
    "model": {**TINY_VRT, "depths": [2, 1, 1, 1, 1, 1, 1, 1], "indep_reconsts": [7]},
    "data": {"crop": 32, "eval_crop": 32, "clip_len": 2},
    "train": {"steps": 1, "batch_size": 2},
}
ENLARGING = ("model.upscale=4", "data.input=bicubic")
NOISY = ("model.noise_map=true", "data.input=noise")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs") / "clips"
    make_clips(folder, clips={"train": 1, "test": 1}, frames=3, size=(48, 64), seed=0)
    return folder


def task_of(root: Path, *overrides: str) -> DeblurTask:
    return build_deblur(config_from(TINY, [f"data.root={root}", *overrides]).config)


def as_files(root: Path, folder: Path, scale: int) -> Path:
    """Write the same clips with smaller frames beside the sharp ones, made by Pillow."""
    for sharp in root.glob("*/*/sharp/*.png"):
        target = folder / sharp.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(sharp.read_bytes())
        with Image.open(sharp) as image:
            size = (image.width // scale, image.height // scale)
            small = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        beside = target.parent.parent / "blur" / sharp.name
        beside.parent.mkdir(exist_ok=True)
        small.save(beside)
    return folder


def test_frames_shrink_as_pillow_shrinks_them() -> None:
    torch.manual_seed(0)
    frames = torch.randint(0, 256, (2, 3, 32, 48), dtype=torch.uint8)
    found = shrink(frames, 4)
    for frame, small in zip(frames, found, strict=True):
        image = Image.fromarray(frame.permute(1, 2, 0).numpy())
        expected = np.asarray(image.resize((12, 8), Image.Resampling.BICUBIC))
        # Pillow rounds after each axis.
        assert np.abs(small.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


def test_a_sample_for_enlarging_is_small_beside_a_sharp_one_of_the_crop(root: Path) -> None:
    task = task_of(root, *ENLARGING)
    for samples in (task.train_samples(), task.eval_samples()):
        sample = samples.sample(0, 0)
        assert sample.blur.shape == (2, 3, 8, 8)
        assert sample.sharp.shape == (2, 3, 32, 32)
        assert torch.equal(sample.blur, shrink(sample.sharp, 4))


def test_small_frames_from_files_show_the_same_part_of_the_scene(
    root: Path, tmp_path: Path
) -> None:
    folder = as_files(root, tmp_path / "pairs", 4)
    read = task_of(folder, "model.upscale=4", "data.augment=flips").train_samples()
    for epoch in range(6):
        sample = read.sample(epoch, 0)
        made = shrink(sample.sharp, 4)
        assert sample.blur.shape == made.shape
        # Shrunk before it was cut: only its border saw more.
        inner = (sample.blur.int() - made.int())[..., 2:-2, 2:-2]
        assert inner.abs().max() <= 2


def test_pairs_of_files_pass_the_check_pack_and_read_the_same(root: Path, tmp_path: Path) -> None:
    folder = as_files(root, tmp_path / "pairs", 4)
    assert check_clips(folder).problems == ()
    pack = tmp_path / "pairs.pack"
    pack_clips(folder, pack, frames="decoded")
    plain, packed = (
        task_of(where, "model.upscale=4").train_samples().sample(3, 1) for where in (folder, pack)
    )
    assert torch.equal(plain.blur, packed.blur)
    assert torch.equal(plain.sharp, packed.sharp)


@pytest.mark.parametrize(("scale", "upscale"), [(4, 1), (1, 4)])
def test_pairs_that_do_not_fit_the_network_are_refused(
    root: Path, tmp_path: Path, scale: int, upscale: int
) -> None:
    folder = as_files(root, tmp_path / "pairs", scale)
    with pytest.raises(DataError, match=rf"{scale} times as large.*enlarges {upscale} times"):
        task_of(folder, f"model.upscale={upscale}").train_samples()


def test_frames_half_as_large_are_refused_as_before(root: Path, tmp_path: Path) -> None:
    folder = as_files(root, tmp_path / "pairs", 2)
    with pytest.raises(DataError, match=r"24x32, but .* is 48x64"):
        task_of(folder, "model.upscale=4").train_samples()


def test_noise_follows_from_seed_epoch_and_index_and_the_map_tells_how_much(root: Path) -> None:
    task = task_of(root, *NOISY, "data.noise_levels=[5,45]")
    samples = task.train_samples()
    levels = set()
    for epoch in range(8):
        sample = samples.sample(epoch, 0)
        again = samples.sample(epoch, 0)
        assert torch.equal(sample.blur, again.blur)
        assert sample.blur.shape == (2, 4, 32, 32)
        (level,) = sample.blur[:, 3].unique().tolist()
        noise = sample.blur[:, :3] - sample.sharp
        # 6,144 draws: their deviation is known to one part in ninety.
        assert float(noise.std()) == pytest.approx(level, rel=0.05)
        assert abs(float(noise.mean())) < 5 * level / noise.numel() ** 0.5
        assert 5 <= level <= 45
        levels.add(round(level, 3))
    assert len(levels) == 8


def test_an_evaluation_has_one_level_of_noise_and_always_the_same(root: Path) -> None:
    first, second = (
        task_of(root, *NOISY, "data.eval_noise=20").eval_samples().sample(0, 0) for _ in range(2)
    )
    assert torch.equal(first.blur, second.blur)
    assert first.blur[:, 3].unique().tolist() == [20]
    blind = task_of(root, "data.input=noise", "data.eval_noise=20").eval_samples().sample(0, 0)
    assert torch.equal(blind.blur, first.blur[:, :3])


def test_a_network_hears_the_noise_as_a_share_of_all_levels(root: Path) -> None:
    task = task_of(root, *NOISY, "data.eval_noise=51", "model.start=random")
    model = task.build_model().eval()
    seen: list[torch.Tensor] = []
    model.conv_first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = task.collate([task.eval_samples().sample(0, 0)])
    with torch.no_grad():
        task.forward(model, batch)
    assert model.conv_first.in_channels == 28
    # Behind frames and neighbours, which are 27.
    assert torch.allclose(seen[0][:, :, 27], torch.tensor(0.2))
    assert torch.equal(seen[0][:, :, :3], batch.blur[:, :, :3] / 255)


def test_frames_of_one_each_hear_the_noise_too(root: Path) -> None:
    task = task_of(root, *NOISY, "data.clip_len=1", "model.window=[1,4,4]")
    batch = task.collate([task.eval_samples().sample(0, 0)])
    with torch.no_grad():
        assert task.forward(task.build_model().eval(), batch).shape == batch.sharp.shape


@pytest.mark.parametrize("settings", [ENLARGING, NOISY], ids=["enlarging", "noise"])
def test_an_untrained_network_gives_its_input_back_and_learns_with_all_its_weights(
    root: Path, settings: tuple[str, ...]
) -> None:
    task = task_of(root, *settings)
    model = task.build_model()
    batch = task.collate([task.train_samples().sample(0, place) for place in range(2)])
    output = task.forward(model, batch)
    colours = batch.blur[:, :, :3].flatten(0, 1).float() / 255
    if "model.upscale=4" in settings:
        colours = functional.interpolate(colours, scale_factor=4.0, mode="bilinear")
    assert torch.allclose(output.flatten(0, 1), colours, atol=1e-6)
    task.loss(output, batch, step=0).total.backward()
    assert [name for name, one in model.named_parameters() if one.grad is None] == []
    metrics = task.metrics()
    metrics.update(output.detach(), batch)
    result = metrics.result(metrics.state())
    # What was restored is the input, but for rounding to levels.
    assert result["psnr"] == pytest.approx(result["psnr_input"], abs=0.3)


def test_tiles_are_of_frames_that_come_in_and_meet_where_they_are_enlarged(root: Path) -> None:
    task = task_of(root, *ENLARGING, "data.eval_crop=null", "eval.tile=8", "eval.tile_overlap=4")
    model = task.build_model().eval()
    batch = task.collate([task.eval_samples().sample(0, 0)])
    with torch.no_grad():
        restored = task.predict(model, batch)
    assert restored.shape == batch.sharp.shape == (1, 2, 3, 48, 64)
    assert float((restored * 255 - batch.sharp).abs().mean()) < 40


def test_enlarged_tiles_add_up_to_the_whole() -> None:
    torch.manual_seed(0)
    small = torch.rand(1, 3, 20, 28)

    def enlarge(windows: Any) -> torch.Tensor:
        parts = [small[..., t : t + h, left : left + w] for t, left, h, w in windows]
        return torch.cat(parts).repeat_interleave(4, -1).repeat_interleave(4, -2)

    out = torch.zeros(1, 3, 80, 112)
    tiling = Tiling(side=8, overlap=4, border="cosine")
    restore_tiles(enlarge, out, tiling, at_once=3, scale=4)
    expected = small.repeat_interleave(4, -1).repeat_interleave(4, -2)
    assert torch.allclose(out, expected, atol=1e-6)


def test_a_blank_batch_is_of_the_shape_that_samples_have(root: Path) -> None:
    for settings in (ENLARGING, NOISY, ("data.input=noise",), ()):
        task = task_of(root, *settings)
        sample = task.collate([task.train_samples().sample(0, 0)])
        blank = task.blank_batch(1)
        assert blank.blur.shape == sample.blur.shape
        assert blank.blur.dtype == sample.blur.dtype
        assert blank.sharp.shape == sample.sharp.shape


def test_pictures_show_small_and_noisy_frames_at_the_size_of_the_sharp_ones(
    root: Path, tmp_path: Path
) -> None:
    for name, settings in (("large", ENLARGING), ("noise", NOISY)):
        task = task_of(root, *settings)
        batch = task.collate([task.eval_samples().sample(0, 0)])
        (row,) = task.draw(batch.sharp / 255, batch, [0], tmp_path / name)
        for cell in row.cells:
            with Image.open(tmp_path / name / cell.file) as image:
                assert image.size == (32, 32)


def test_frames_of_five_axes_are_enlarged_like_those_of_four() -> None:
    torch.manual_seed(0)
    frames = torch.rand(2, 3, 4, 5, 6)
    whole = enlarged(frames, (20, 24))
    assert whole.shape == (2, 3, 3, 20, 24)
    assert torch.equal(whole[1], enlarged(frames[1], (20, 24)))
    assert Inputs().with_map(frames) is frames


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.kind=vrt_spike", "model.upscale=4"], r"model.upscale +must be 1"),
        (["model.kind=vrt_spike", "model.noise_map=true"], r"model.noise_map +must be false"),
        (["model.kind=vrt_spike", "data.input=noise"], r"data.input +must be files"),
        (["data.input=bicubic"], "does not go with model.upscale 1"),
        (["data.input=noise", "model.upscale=4"], "does not go with model.upscale 4"),
        (["data.input=noise", "data.noise_levels=[9,3]"], "must have the smaller level first"),
        (["data.noise_levels=[3,9]"], "no noise is made"),
        (["data.eval_noise=9"], "told of none"),
        (["data.blur=blur_gamma", "data.input=noise"], "made of the sharp ones"),
        (["model.upscale=2"], "model.upscale"),
    ],
)
def test_settings_that_do_not_go_together_are_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigProblems, match=message):
        config_from(TINY, overrides)
