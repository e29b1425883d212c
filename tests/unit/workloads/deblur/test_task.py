"""The deblur task: what becomes of the configuration, and what it refuses.

What any task must keep is in tests/conformance.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from, load_config
from pitstop.config.workloads.deblur import DeblurData, VrtModel
from pitstop.errors import ConfigError, DataError
from pitstop.workloads.deblur.data.planes import write_counts
from pitstop.workloads.deblur.model.blocks import AttentionBlock
from pitstop.workloads.deblur.model.features import Features
from pitstop.workloads.deblur.model.spike_branch import AttentionShape
from pitstop.workloads.deblur.model.vrt import VRT
from pitstop.workloads.deblur.model.vrt_spike import VRTSpike
from pitstop.workloads.deblur.synthetic import make_clips
from pitstop.workloads.deblur.task import DeblurTask, build_deblur, voxel_settings
from tests.unit.workloads.deblur.tiny_vrt import TINY_VRT

CONFIGS = Path(__file__).parents[4] / "configs" / "deblur"

TINY: dict[str, Any] = {
    "model": {**TINY_VRT, "depths": [2, 1, 1, 1, 1, 1, 1, 1], "indep_reconsts": [7]},
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


def test_a_network_that_aligns_nothing_learns_with_all_its_weights(root: Path) -> None:
    tree = {**TINY, "model": {k: v for k, v in TINY["model"].items() if k != "deformable_groups"}}
    config = config_from(tree, [f"data.root={root}", "model.pa_frames=0"]).config
    task = build_deblur(config)
    model = task.build_model()
    assert not any("spynet" in name for name, _ in model.named_parameters())
    batch = task.collate([task.train_samples().sample(0, 0)])
    loss = task.loss(task.forward(model, batch), batch, step=0)
    loss.total.backward()
    assert [name for name, one in model.named_parameters() if one.grad is None] == []


@pytest.mark.parametrize("preset", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_preset_can_evaluate_whole_frames(preset: Path) -> None:
    assert load_config(preset, ["eval.tile=null"]).config.eval.tile is None


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
    wanted = saved.state_dict()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("kind", ["vrt", "vrt_spike"])
def test_a_network_that_starts_as_identity_gives_its_input_back(root: Path, kind: str) -> None:
    spikes = ()
    if kind == "vrt_spike":
        spikes = ("data.spike_height=8", "data.spike_width=16", "model.spike.channels=8")
        spikes += ("model.spike.heads=2", "model.fusion.heads=2")
    gone = {}
    for start in ("identity", "random"):
        task = task_of(root, f"model.kind={kind}", f"model.start={start}", *spikes)
        batch = task.collate([task.train_samples().sample(0, 0)])
        restored = task.forward(task.build_model(), batch)
        gone[start] = (restored - batch.blur / 255).abs().max().item()
    assert gone["identity"] == 0
    assert gone["random"] > 1e-3


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
        ("loss.perceptual.weight=0.1", "loss.perceptual.weights is not set"),
        ("loss.charbonnier.every_steps=2", "leaves steps without any loss"),
    ],
)
def test_what_would_do_nothing_is_refused(root: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        task_of(root, override)


@pytest.mark.parametrize("name", ["small", "demo"])
def test_the_shipped_configurations_are_sound_and_can_be_built(name: str) -> None:
    loaded = load_config(CONFIGS / f"{name}.yaml")
    assert loaded.warnings == ()
    assert isinstance(loaded.config.data, DeblurData)
    assert isinstance(build_deblur(loaded.config).build_model(), VRT)


PRESETS = ("baseline", "opt", "fast", "lowmem", "student", "progressive")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_sound_and_can_be_built(name: str) -> None:
    loaded = load_config(CONFIGS / f"{name}.yaml")
    odd = ["data.clip_len"] if name == "baseline" else []
    assert [warning.key for warning in loaded.warnings] == odd
    config = load_config(CONFIGS / f"{name}.yaml", ["loss.perceptual=null"]).config
    assert isinstance(config.model, VrtModel)
    with torch.device("meta"):
        model = build_deblur(config).build_model()
    assert isinstance(model, VRTSpike)
    assert tuple(model.architecture.depths) == config.model.depths


@pytest.mark.parametrize("name", PRESETS)
def test_windows_of_a_preset_divide_every_scale_of_its_crops(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.yaml").config
    assert isinstance(config.data, DeblurData)
    assert isinstance(config.model, VrtModel)
    crops = [crop for _, crop in config.train.crop_schedule] or [config.data.crop]
    for crop in crops:
        assert crop is not None
        for scale in (1, 2, 4, 8):
            assert all(crop // scale % side == 0 for side in config.model.window[1:])


def test_presets_keep_what_they_are_for() -> None:
    configs = {name: load_config(CONFIGS / f"{name}.yaml").config for name in PRESETS}
    models = {name: config.model for name, config in configs.items()}
    opt, fast, student = (models[name] for name in ("opt", "fast", "student"))
    assert isinstance(opt, VrtModel)
    assert isinstance(fast, VrtModel)
    assert isinstance(student, VrtModel)
    assert fast.depths[:7] == opt.depths[:7]
    assert sum(fast.depths[7:]) == sum(opt.depths[7:]) // 2
    assert student.depths == tuple(depth // 2 for depth in opt.depths)
    assert configs["student"].train.distill.teacher is not None
    assert configs["progressive"].train.crop_schedule == ((0, 128), (40, 256))
    effective = {c.train.batch_size * c.train.accumulate for c in configs.values()}
    assert effective == {6}


SPIKES = (
    "model.kind=vrt_spike",
    "model.spike.channels=8",
    "model.spike.heads=2",
    "model.fusion.heads=2",
    "data.spike_height=8",
    "data.spike_width=16",
    "data.voxel_bins=3",
)


def spike_task(root: Path, *overrides: str) -> DeblurTask:
    return task_of(root, *SPIKES, *overrides)


def test_the_branch_is_the_one_of_the_configuration(root: Path) -> None:
    task = spike_task(
        root,
        "model.spike.temporal_strides=[2, 1, 1]",
        "model.spike.heads=4",
        "model.spike.dropout=0.1",
        "model.spike.mlp_ratio=3",
        "model.spike.chunk=8",
        "model.fusion.heads=8",
        "model.fusion.dropout=0.2",
        "model.fusion.mlp_ratio=4",
        "model.fusion.chunk=4",
    )
    model = task.build_model()
    assert isinstance(model, VRTSpike)
    shape = model.spike_shape
    assert (shape.bins, shape.channels, shape.temporal_strides) == (3, 8, (2, 1, 1))
    assert shape.attention == AttentionShape(heads=4, dropout=0.1, mlp_ratio=3, chunk=8)
    assert shape.fusion == AttentionShape(heads=8, dropout=0.2, mlp_ratio=4, chunk=4)
    assert model.spike_encoder.in_proj.in_channels == 3
    blocks = [*model.spike_temporal_sa.blocks, *model.cross_attn_fuse.fuse_blocks]
    assert [block.chunk for block in blocks] == [8] * 4 + [4] * 4
    early = task_of(root, *SPIKES[:1], *SPIKES[4:], "model.fusion.kind=early").build_model()
    assert early.architecture.in_chans == 6


@pytest.mark.parametrize(
    "override",
    ["data.voxels=raw", "data.voxels=tfi", "data.voxels=tfp", "data.log1p=false"],
)
def test_what_spikes_become_reaches_the_model(root: Path, override: str) -> None:
    seen = []
    for task in (spike_task(root), spike_task(root, override)):
        batch = task.collate([task.train_samples().sample(0, 0)])
        model = task.build_model()
        model.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
        with torch.no_grad():
            task.forward(model, batch)
    assert seen[0].shape == seen[1].shape == (1, 2, 3, 16, 16)
    assert not torch.equal(seen[0], seen[1])


def test_the_reach_of_a_mean_reaches_the_spikes(root: Path) -> None:
    near, far = (
        voxel_settings(
            DeblurData.model_validate({"voxels": "tfp", "tfp_reach": reach, "voxel_bins": 3})
        )
        for reach in (1, 9)
    )
    spikes = torch.randint(
        0, 2, (1, 1, 20, 2, 2), generator=torch.Generator().manual_seed(0)
    ).byte()
    assert not torch.equal(near(spikes, (2, 2)), far(spikes, (2, 2)))


def test_counts_made_beforehand_train_the_same_model(root: Path) -> None:
    live, beforehand = spike_task(root), spike_task(root, "data.spikes=precomputed")
    config = config_from(TINY, [f"data.root={root}", *SPIKES]).config
    assert isinstance(config.data, DeblurData)
    for split in ("train", "test"):
        write_counts(config.data, split)
    torch.manual_seed(0)
    model = live.build_model().eval()
    outputs = [
        task.forward(model, task.collate([task.train_samples().sample(0, index)]))
        for task in (live, beforehand)
        for index in (0, 1)
    ]
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])


def test_spike_blocks_are_regions_and_the_branch_and_losses_are_parts(root: Path) -> None:
    task = spike_task(root)
    model = task.build_model()
    kinds = [type(region).__name__ for region in task.regions(model)]
    assert kinds.count("ResidualConv") == 8
    assert kinds.count("TemporalFusion") == kinds.count("TemporalSelfAttention") == 4
    assert {"spike_encoder", "temporal_attention", "fusion1"} <= set(task.parts(model))
    assert set(task.loss_parts()) == {"pixel_loss"}


def test_a_teacher_without_spikes_may_teach_and_one_with_others_may_not(root: Path) -> None:
    def yaml_of(*overrides: str) -> str:
        return to_yaml(config_from(TINY, [f"data.root={root}", *overrides]).config)

    task = spike_task(root)
    batch = task.collate([task.train_samples().sample(0, 0)])
    plain = task.build_teacher(yaml_of())
    assert not isinstance(plain, VRTSpike)
    assert task.forward(plain, batch).shape == batch.blur.shape
    assert isinstance(task.build_teacher(yaml_of(*SPIKES)), VRTSpike)
    with pytest.raises(ConfigError, match="trained on other channels of spikes"):
        task.build_teacher(yaml_of(*SPIKES, "data.voxels=raw"))
    with pytest.raises(ConfigError, match="the teacher sees spikes"):
        task_of(root).build_teacher(yaml_of(*SPIKES))


def test_published_weights_start_the_backbone_of_a_model_with_spikes(
    root: Path, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    saved = task_of(root).build_model().state_dict()
    torch.save({"params": saved}, tmp_path / "vrt.pth")
    model = spike_task(root, f"model.weights={tmp_path / 'vrt.pth'}").build_model()
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in saved.items())


def test_lpips_is_a_metric_where_its_files_are_given(root: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(Features("alexnet", ["relu5"]).state_dict(), tmp_path / "alexnet.pth")
    widths = (64, 192, 384, 256, 256)
    lin = {f"lin{i}.model.1.weight": torch.rand(1, n, 1, 1) for i, n in enumerate(widths)}
    torch.save(lin, tmp_path / "lin.pth")
    task = task_of(
        root,
        f"data.lpips.weights={tmp_path / 'lin.pth'}",
        f"data.lpips.backbone={tmp_path / 'alexnet.pth'}",
    )
    assert task.higher_is_better["lpips"] is False
    assert "lpips" not in task_of(root).higher_is_better
    assert set(task.metrics().result(torch.ones(2 * 7))) == set(task.higher_is_better)
