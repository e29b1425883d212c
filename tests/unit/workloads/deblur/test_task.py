"""The deblur task: what becomes of the configuration, and what it refuses.

What any task must keep is in tests/conformance.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from pitstop.config.deblur import DeblurData
from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from, load_config
from pitstop.errors import ConfigError, DataError
from pitstop.workloads.deblur.blocks import AttentionBlock
from pitstop.workloads.deblur.model import VRT
from pitstop.workloads.deblur.synthetic import make_clips
from pitstop.workloads.deblur.task import DeblurTask, build_deblur

CONFIGS = Path(__file__).parents[4] / "configs" / "deblur"

TINY: dict[str, Any] = {
    "model": {
        "kind": "vrt",
        "depths": [2, 1, 1, 1, 1, 1, 1, 1],
        "embed_dims": [8] * 8,
        "heads": 2,
        "window": [2, 4, 4],
        "indep_reconsts": [7],
        "deformable_groups": 2,
    },
    "data": {"crop": 16, "eval_crop": 16, "clip_len": 2},
    "train": {"steps": 1, "batch_size": 2},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task") / "clips"
    make_clips(folder, clips={"train": 1, "test": 2}, frames=3, size=(16, 32), seed=0)
    return folder


def task_of(root: Path, *overrides: str) -> DeblurTask:
    return build_deblur(config_from(TINY, [f"data.root={root}", *overrides]).config)


def test_the_network_is_the_one_of_the_configuration(root: Path) -> None:
    model = task_of(root).build_model()
    shape = model.architecture
    assert tuple(shape.depths) == (2, 1, 1, 1, 1, 1, 1, 1)
    assert tuple(shape.embed_dims) == (8,) * 8
    assert tuple(shape.num_heads) == (2,) * 8
    assert tuple(shape.window_size) == (2, 4, 4)
    assert tuple(shape.indep_reconsts) == (7,)
    assert (shape.deformable_groups, shape.pa_frames) == (2, 2)
    assert (shape.mlp_ratio, shape.drop_path_rate) == (2.0, 0.2)
    wider = task_of(root, "model.mlp_ratio=3", "model.pa_frames=4", "model.drop_path=0.4")
    shape = wider.build_model().architecture
    assert (shape.mlp_ratio, shape.pa_frames, shape.drop_path_rate) == (3.0, 4, 0.4)


def test_the_default_configuration_is_the_published_network() -> None:
    settings = {"model": {"kind": "vrt"}, "train": {"steps": 1}}
    model = build_deblur(config_from(settings).config).build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 18_320_007


def test_the_loss_is_the_distance_of_colours_from_zero_to_one(root: Path) -> None:
    task = task_of(root)
    batch = task.collate([task.train_samples().sample(0, 0)])
    black = torch.zeros(batch.sharp.shape)
    loss = task.loss(black, batch, step=0)
    wanted = (batch.sharp.double() / 255).square().add(1e-6).sqrt().mean()
    assert (loss.total / loss.count).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_the_model_sees_colours_from_zero_to_one(root: Path) -> None:
    task = task_of(root)
    batch = task.collate([task.train_samples().sample(0, 0)])
    seen = task.forward(torch.nn.Identity(), batch)
    torch.testing.assert_close(seen, batch.blur.float() / 255)


def test_metrics_count_every_clip_of_the_evaluation_split(root: Path) -> None:
    task = task_of(root)
    samples, metrics = task.eval_samples(), task.metrics()
    for index in range(len(samples)):
        batch = task.collate([samples.sample(0, index)])
        metrics.update(batch.sharp.float() / 255 + 0.02, batch)
    sums = metrics.state().view(2, -1)
    assert sums[:, -1].tolist() == [3, 3]
    found = metrics.result(metrics.state())
    # 0.02 is five levels, less where white cannot become whiter.
    assert found["psnr"] == pytest.approx(20 * torch.tensor(255 / 5).log10().item(), abs=0.3)


def test_progressive_crops_reach_the_samples(root: Path) -> None:
    task = task_of(root, "train.crop_schedule={1: 8}")
    samples = task.train_samples()
    assert [samples.sample(epoch, 0).blur.shape[-1] for epoch in (0, 1)] == [16, 8]


def test_the_seed_reaches_the_samples(root: Path) -> None:
    views = [
        [task_of(root, f"run.seed={seed}").train_samples().view(epoch, 0) for epoch in range(4)]
        for seed in (0, 1)
    ]
    assert views[0] != views[1]


def test_weights_from_a_file_are_loaded(root: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    saved = task_of(root).build_model()
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    torch.manual_seed(2)
    loaded = task_of(root, f"model.weights={tmp_path / 'weights.pt'}").build_model()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, saved.state_dict()[name]), name


def test_a_teacher_of_another_shape_is_built_and_a_stranger_refused(root: Path) -> None:
    task = task_of(root)
    wide = config_from(TINY, ["model.mlp_ratio=4", f"data.root={root}"]).config
    teacher = task.build_teacher(to_yaml(wide))
    assert teacher.architecture.mlp_ratio == 4.0
    stranger = {"model": {"kind": "clip_reid"}, "train": {"steps": 1, "batch_size": 4}}
    with pytest.raises(ConfigError, match="clip_reid does not deblur"):
        task.build_teacher(to_yaml(config_from(stranger).config))


def test_regions_are_the_attention_blocks_and_parts_the_stages(root: Path) -> None:
    task = task_of(root)
    model = task.build_model()
    assert isinstance(model, VRT)
    regions = task.regions(model)
    assert len(regions) == 2 + 7
    assert all(isinstance(region, AttentionBlock) for region in regions)
    assert {"spynet", "stage1", "stage8", "stage4.alignment"} <= set(task.parts(model))


def test_frames_of_different_sizes_do_not_go_into_one_batch(root: Path) -> None:
    task = task_of(root)
    samples = [task_of(root, f"data.crop={side}").train_samples().sample(0, 0) for side in (8, 16)]
    with pytest.raises(DataError, match="8x8 and 16x16 do not go into one batch"):
        task.collate(samples)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.kind=vrt_spike", "vrt_spike is not built yet"),
        ("data.order=sequence", "sequence is not built yet"),
        ("eval.tile=64", "eval.tile is not built yet"),
        ("loss.perceptual.weight=0.1", "loss.perceptual is not built yet"),
        ("loss.charbonnier.every_steps=2", "leaves steps without any loss"),
    ],
)
def test_what_would_do_nothing_is_refused(root: Path, override: str, words: str) -> None:
    overrides = [override] + (["data.eval_crop=null"] if "tile" in override else [])
    with pytest.raises(ConfigError, match=words):
        task_of(root, *overrides)


@pytest.mark.parametrize("name", ["small", "demo"])
def test_the_shipped_configurations_are_sound_and_can_be_built(name: str) -> None:
    loaded = load_config(CONFIGS / f"{name}.yaml")
    assert loaded.warnings == ()
    assert isinstance(loaded.config.data, DeblurData)
    assert isinstance(build_deblur(loaded.config).build_model(), VRT)
