import re

import pytest

from pitstop.config.load import config_from
from pitstop.config.problems import ConfigProblems
from pitstop.config.rules import COMMON
from pitstop.config.workloads.kinds import KINDS

DEBLUR = {"model": {"kind": "vrt_spike"}, "train": {"steps": 1000}}
PLAIN = {"model": {"kind": "vrt"}, "train": {"steps": 1000}}
EPOCHS = {"model": {"kind": "vrt"}, "train": {"epochs": 10}}
MONO = {"model": {"kind": "lss_swin_mono"}, "train": {"steps": 1000}}
SURROUND = {"model": {"kind": "lss_swin_surround"}, "train": {"steps": 1000}}
REID = {"model": {"kind": "clip_reid"}, "train": {"steps": 1000, "batch_size": 8}}

# The setting that would do nothing, what makes it so, and what would let it act.
INERT = [
    (PLAIN, "loader.persistent=true", "loader.workers=0", "loader.workers=1"),
    (PLAIN, "loader.prefetch=4", "loader.workers=0", "loader.workers=2"),
    (PLAIN, "loader.prefetch=4", "loader.workers=0", "loader.workers=0 loader.eval_workers=2"),
    (PLAIN, "loader.prefetch_bytes=1GiB", "loader.workers=0", "loader.workers=auto"),
    (PLAIN, "loader.prefetch=4", "loader.prefetch_bytes=1GiB", "loader.prefetch_bytes=null"),
    (
        PLAIN,
        "loader.prefetch=4",
        "loader.prefetch_bytes=1GiB",
        "loader.prefetch_bytes=1GiB loader.tune=auto",
    ),
    (
        PLAIN,
        "loader.start_method=spawn",
        "loader.workers=0",
        "loader.workers=0 loader.eval_workers=1",
    ),
    (PLAIN, "loader.eval_prefetch=2", "loader.eval_workers=0", "loader.eval_workers=1"),
    (PLAIN, "loader.eval_prefetch=2", "loader.workers=0", "loader.workers=1"),
    (PLAIN, "loader.tune=auto", "loader.workers=4", "loader.workers=auto"),
    (PLAIN, "model.start=random", "model.weights=w.pth", "model.weights=null"),
    (PLAIN, "model.deformable_groups=4", "model.pa_frames=0", "model.pa_frames=2"),
    (PLAIN, "model.weights_key=params", "", "model.weights=w.pth"),
    (PLAIN, "cache.policy=lru", "cache.budget=0", "cache.budget=1GiB"),
    (PLAIN, "train.scaler.start=1024", "train.precision=bf16", "train.precision=fp16"),
    (
        PLAIN,
        "train.compile.mode=reduce-overhead",
        "train.compile.scope=off",
        "train.compile.scope=whole",
    ),
    (PLAIN, "train.clip.norm=2", "train.clip.kind=none", "train.clip.kind=fixed"),
    (PLAIN, "train.clip.quantile=0.5", "train.clip.kind=fixed", "train.clip.kind=adaptive"),
    (PLAIN, "train.clip.window=5", "train.clip.kind=none", "train.clip.kind=adaptive"),
    (PLAIN, "train.clip.factor=2", "train.clip.kind=fixed", "train.clip.kind=adaptive"),
    (PLAIN, "train.clip.min_norm=1", "train.clip.kind=fixed", "train.clip.kind=adaptive"),
    (PLAIN, "train.clip.max_norm=9", "train.clip.kind=fixed", "train.clip.kind=adaptive"),
    (PLAIN, "train.ema=0", "", "train.ema=0.9"),
    (PLAIN, "train.distill.weight=2", "", "train.distill.teacher=t.pt"),
    (PLAIN, "optimizer.betas=[0.9, 0.99]", "optimizer.kind=sgd", "optimizer.kind=adamw8bit"),
    (PLAIN, "optimizer.eps=1e-6", "optimizer.kind=sgd", "optimizer.kind=adam"),
    (PLAIN, "optimizer.momentum=0.5", "optimizer.kind=adamw", "optimizer.kind=sgd"),
    (PLAIN, "optimizer.nesterov=true", "optimizer.kind=adamw", "optimizer.kind=sgd"),
    (
        PLAIN,
        "optimizer.nesterov=true",
        "optimizer.kind=sgd optimizer.momentum=0",
        "optimizer.kind=sgd optimizer.momentum=0.5",
    ),
    (PLAIN, "optimizer.fused=on", "optimizer.kind=adamw8bit", "optimizer.kind=adamw"),
    (PLAIN, "optimizer.lr_scaling=sqrt", "train.accumulate=1", "train.accumulate=2"),
    (PLAIN, "optimizer.lr_scaling=linear", "", "optimizer.reference_batch=16"),
    (
        PLAIN,
        "optimizer.reference_batch=8",
        "optimizer.lr_scaling=none",
        "optimizer.lr_scaling=sqrt",
    ),
    (PLAIN, "optimizer.lr_multipliers={a: 1}", "", "optimizer.lr_multipliers={a: 2}"),
    (PLAIN, "schedule.warmup_start=0.1", "schedule.warmup_steps=0", "schedule.warmup_steps=5"),
    (PLAIN, "schedule.end_factor=0.1", "schedule.kind=constant", "schedule.kind=poly"),
    (PLAIN, "schedule.power=2", "schedule.kind=cosine", "schedule.kind=poly"),
    (PLAIN, "schedule.milestones=[5]", "schedule.kind=cosine", "schedule.kind=step"),
    (
        PLAIN,
        "schedule.gamma=0.5",
        "schedule.kind=poly",
        "schedule.kind=step schedule.milestones=[5]",
    ),
    (PLAIN, "eval.tile_overlap=8", "", "eval.tile=64"),
    (PLAIN, "checkpoint.keep_last=2", "checkpoint.every_steps=null", "checkpoint.every_steps=10"),
    (PLAIN, "checkpoint.best_of=psnr", "eval.every_steps=null", "eval.every_steps=10"),
    (PLAIN, "loss.perceptual.layers=[relu2_2]", "", "loss.perceptual.weight=0.1"),
    (PLAIN, "loss.perceptual.every_steps=4", "", "loss.perceptual.weight=0.1"),
    (
        DEBLUR,
        "loss.charbonnier.eps=1e-3",
        "loss.charbonnier.weight=0 loss.perceptual.weight=1",
        "loss.charbonnier.weight=1",
    ),
    (
        DEBLUR,
        "loss.charbonnier.every_steps=2",
        "loss.charbonnier.weight=0 loss.perceptual.weight=1",
        "loss.charbonnier.weight=1",
    ),
    (PLAIN, "data.blur=blur_gamma", "data.input=noise", "data.input=files"),
    (PLAIN, "data.noise_levels=[5,10]", "", "data.input=noise"),
    (PLAIN, "data.eval_noise=10", "", "model.noise_map=true"),
    (PLAIN, "data.spikes=live", "", "model.kind=vrt_spike"),
    (PLAIN, "data.spike_dir=s", "", "model.kind=vrt_spike"),
    (PLAIN, "data.spike_height=250", "", "model.kind=vrt_spike"),
    (PLAIN, "data.spike_width=400", "", "model.kind=vrt_spike"),
    (PLAIN, "data.voxel_bins=8", "", "model.kind=vrt_spike"),
    (PLAIN, "data.log1p=false", "", "model.kind=vrt_spike"),
    (PLAIN, "model.spike.heads=8", "", "model.kind=vrt_spike"),
    (PLAIN, "model.fusion.chunk=64", "", "model.kind=vrt_spike"),
    (PLAIN, "data.voxels=tfp", "", "model.kind=vrt_spike"),
    (PLAIN, "data.tfp_reach=4", "", "model.kind=vrt_spike data.voxels=tfp"),
    (DEBLUR, "data.tfp_reach=4", "data.voxels=raw", "data.voxels=tfp"),
    (DEBLUR, "data.log1p=true", "data.voxels=tfi", "data.voxels=counts"),
    (PLAIN, "data.frame_spikes=s", "data.frames=f", "data.frames=f model.kind=vrt_spike"),
    (DEBLUR, "data.frame_spikes=s", "", "data.frames=f"),
    (
        DEBLUR,
        "model.spike.heads=8",
        "model.fusion.kind=early",
        "model.fusion.kind=cross_attention",
    ),
    *(
        (DEBLUR, f"model.fusion.{setting}", "model.fusion.kind=early", "")
        for setting in ("heads=8", "dropout=0.1", "mlp_ratio=3", "chunk=64")
    ),
    *(
        (DEBLUR, f"model.{part}.chunk=256", asleep, awake)
        for part in ("spike", "fusion")
        for asleep, awake in (
            ("data.eval_crop=256", ""),
            ("eval.tile=128", "data.crop=320 eval.tile=128"),
            ("train.crop_schedule={0: 64} eval.tile=64", "train.crop_schedule={0: 512}"),
            ("data.eval_crop=64", "data.eval_crop=64 train.crop_schedule={3: 512}"),
            ("data.eval_crop=64", "data.tiles.memory=9GiB"),
            ("data.tiles.memory=9GiB eval.tile=64", "data.tiles.memory=9GiB"),
        )
    ),
    (PLAIN, "data.tiles.border=discard", "", "eval.tile=64"),
    (PLAIN, "data.tiles.border=discard", "", "data.tiles.memory=9GiB"),
    (PLAIN, "data.tiles.frame_overlap=2", "", "data.frames=f"),
    (PLAIN, "data.lpips.network=vgg16", "", "data.lpips.weights=w data.lpips.backbone=b"),
    (PLAIN, "data.lpips.backbone=b", "", "data.lpips.weights=w"),
    *(
        (PLAIN, f"loss.perceptual.{setting}", "", "loss.perceptual.weight=0.1")
        for setting in ("network=vgg19", "weights=w.pth", "normalisation=caffe")
    ),
    (DEBLUR, "data.voxel_dir=v", "data.spikes=live", "data.spikes=precomputed"),
    (PLAIN, "data.crop=64", "train.crop_schedule={0: 32}", "train.crop_schedule={5: 32}"),
    (PLAIN, "eval.tile=64", "data.eval_crop=64", "data.eval_crop=128"),
    (PLAIN, "train.shard_ranks=2", "train.shard=full", "train.shard=hybrid"),
    (MONO, "loss.bce.every_steps=2", "loss.bce.weight=0", "loss.bce.weight=1"),
    (MONO, "loss.prior.every_steps=2", "loss.prior.weight=0", "loss.prior.weight=1"),
    (REID, "data.records_per_id=2", "data.sampler=shuffle", "data.sampler=pk"),
    (REID, "data.rerank_k1=9", "data.rerank=false", "data.rerank=true"),
    (MONO, "data.label_rules=pon", "data.labels=labels", "data.labels=null"),
    (MONO, "data.calibration=c.json", "", "data.pictures=p"),
    (REID, "data.rerank_k2=1", "", "data.rerank=true"),
    (REID, "data.rerank_weight=0.1", "", "data.rerank=true"),
    (REID, "data.ensure_rgb=true", "data.sampler=shuffle", "data.sampler=pk"),
    (REID, "data.require_pair=true", "data.sampler=shuffle", "data.sampler=pk"),
    (REID, "data.epoch_unit=records", "data.sampler=shuffle", "data.sampler=pk"),
    (REID, "data.epoch_steps=50", "data.epoch_unit=records", "data.epoch_unit=steps"),
    (REID, "loader.drop_last=true", "data.sampler=pk", "data.sampler=shuffle"),
    (REID, "data.modality_dropout=0.5", "data.records=single", "data.records=anchored"),
    (REID, "loss.id.every_steps=2", "loss.id.weight=0", "loss.id.weight=1"),
    (REID, "loss.id.label_smoothing=0", "loss.id.weight=0", "loss.id.weight=1"),
    (REID, "loss.sdm.every_steps=2", "loss.sdm.weight=0", "loss.sdm.weight=1"),
    (REID, "loss.sdm.weight_by_epoch={0: 0}", "loss.sdm.weight=0", "loss.sdm.weight=1"),
    (REID, "loss.sdm.temperature=0.1", "loss.sdm.weight=0", "loss.sdm.weight=1"),
    (REID, "loss.sdm.kind=irra", "loss.sdm.weight=0", "loss.sdm.weight=1"),
    (REID, "loss.sdm.temperature_by_epoch={0: 2}", "loss.sdm.weight=0", "loss.sdm.weight=1"),
    (REID, "loss.triplet.margin=0.5", "loss.triplet.weight=0", "loss.triplet.weight=1"),
    (REID, "loss.triplet.every_steps=2", "loss.triplet.weight=0", "loss.triplet.weight=1"),
]

# A setting that never acts under a workload: there is no twin within it.
NEVER = [
    (MONO, "train.crop_schedule={0: 64}"),
    (MONO, "eval.tile=64"),
    (SURROUND, "train.crop_schedule={0: 64}"),
    (SURROUND, "eval.tile=64"),
    (REID, "train.crop_schedule={0: 64}"),
    (REID, "train.channels_last=true"),
    (REID, "eval.tile=64"),
]

CONFLICTS = [
    (PLAIN, "model.upscale", "model.kind=vrt_spike model.upscale=4", "model.upscale=4"),
    (PLAIN, "model.noise_map", "model.kind=vrt_spike model.noise_map=true", "model.noise_map=true"),
    (PLAIN, "data.input", "model.kind=vrt_spike data.input=noise", "data.input=noise"),
    (PLAIN, "data.input", "data.input=bicubic", "data.input=bicubic model.upscale=4"),
    (
        PLAIN,
        "data.noise_levels",
        "data.input=noise data.noise_levels=[10,5]",
        "data.input=noise data.noise_levels=[5,10]",
    ),
    ({"model": {"kind": "vrt"}}, "train.steps", "", "train.steps=1"),
    (PLAIN, "train.epochs", "train.epochs=2", "train.epochs=2 train.steps=null"),
    (
        PLAIN,
        "train.on_nan",
        "train.on_nan=rollback checkpoint.every_steps=null",
        "train.on_nan=rollback checkpoint.every_steps=5",
    ),
    (
        PLAIN,
        "train.clip.min_norm",
        "train.clip.kind=adaptive train.clip.min_norm=4",
        "train.clip.kind=adaptive train.clip.min_norm=3",
    ),
    (
        PLAIN,
        "optimizer.kind",
        "train.shard=full optimizer.kind=adamw8bit",
        "train.shard=full optimizer.kind=adamw",
    ),
    (PLAIN, "optimizer.kind", "train.shard=full optimizer.kind=adamw_bf16", "train.shard=full"),
    (
        PLAIN,
        "train.compile.scope",
        "train.shard=full train.compile.scope=whole",
        "train.shard=full train.compile.scope=regions",
    ),
    (
        PLAIN,
        "train.compile.mode",
        "train.shard=full train.compile.scope=regions train.compile.mode=reduce-overhead",
        "train.shard=full train.compile.scope=regions train.compile.mode=default",
    ),
    (
        PLAIN,
        "train.channels_last",
        "train.shard=full train.channels_last=true",
        "train.shard=full train.channels_last=false",
    ),
    (
        PLAIN,
        "schedule.milestones",
        "schedule.kind=step",
        "schedule.kind=step schedule.milestones=[3]",
    ),
    (
        PLAIN,
        "schedule.milestones",
        "schedule.kind=step schedule.milestones=[5,3]",
        "schedule.kind=step schedule.milestones=[3,5]",
    ),
    (PLAIN, "eval.tile_overlap", "eval.tile=32", "eval.tile=40"),
    (PLAIN, "eval.tile", "eval.tile=100", "eval.tile=104"),
    (PLAIN, "loss", "loss.charbonnier.weight=0", "loss.charbonnier.weight=0.5"),
    (
        DEBLUR,
        "model.spike.channels",
        "model.spike.channels=64",
        "model.spike.channels=64 model.fusion.kind=cross_attention model.heads=8 "
        "model.embed_dims=[64,64,64,64,64,64,64,64,64,64,64]",
    ),
    (DEBLUR, "model.spike.heads", "model.spike.heads=5", "model.spike.heads=6"),
    (DEBLUR, "model.fusion.heads", "model.fusion.heads=7", "model.fusion.heads=8"),
    (
        DEBLUR,
        "model.spike.spatial_strides",
        "model.spike.spatial_strides=[2,2,1]",
        "model.spike.spatial_strides=[2,2,2]",
    ),
    (
        DEBLUR,
        "data.voxels",
        "data.spikes=precomputed data.voxels=tfi",
        "data.spikes=precomputed data.voxels=counts",
    ),
    (DEBLUR, "data.frame_spikes", "data.frames=f", "data.frames=f data.frame_spikes=s"),
    (
        PLAIN,
        "data.tiles.frame_overlap",
        "data.frames=f data.tiles.frame_overlap=4",
        "data.frames=f data.tiles.frame_overlap=3",
    ),
    (
        PLAIN,
        "data.lpips.backbone",
        "data.lpips.weights=w",
        "data.lpips.weights=w data.lpips.backbone=b",
    ),
    (
        PLAIN,
        "loss.perceptual.layers",
        "loss.perceptual.weight=0.1 loss.perceptual.network=alexnet",
        "loss.perceptual.weight=0.1 loss.perceptual.network=alexnet loss.perceptual.layers=[relu5]",
    ),
    (PLAIN, "model.depths", "model.depths=[4,4,4] model.embed_dims=[96,96,96]", ""),
    (PLAIN, "model.embed_dims", "model.embed_dims=[96]", ""),
    (PLAIN, "model.embed_dims", "model.heads=7", "model.heads=8"),
    (PLAIN, "model.deformable_groups", "model.deformable_groups=5", "model.deformable_groups=8"),
    (PLAIN, "model.indep_reconsts", "model.indep_reconsts=[11]", "model.indep_reconsts=[7]"),
    (PLAIN, "model.indep_reconsts", "model.indep_reconsts=[6]", "model.indep_reconsts=[]"),
    (PLAIN, "train.crop_schedule", "train.crop_schedule={1: 30}", "train.crop_schedule={1: 32}"),
    (SURROUND, "data.resize", "data.resize=[2,1]", "data.resize=[1,2]"),
    (SURROUND, "data.cameras", "data.cameras=7", "data.cameras=5"),
    (REID, "train.batch_size", "train.batch_size=6", "train.batch_size=12"),
    (
        REID,
        "data.records_per_id",
        "data.records_per_id=1 data.require_pair=true",
        "data.records_per_id=2 data.require_pair=true",
    ),
    (REID, "data.epoch_steps", "data.epoch_unit=steps", "data.epoch_unit=steps data.epoch_steps=9"),
    (REID, "data.gallery", "data.queries=q", "data.queries=q data.gallery=g"),
    (REID, "data.image_size", "data.image_size=[224,120]", "data.image_size=[224,112]"),
    (REID, "model.fusion_heads", "model.fusion_heads=7", "model.fusion_heads=4"),
    (
        REID,
        "model.weights",
        "model.weights=w data.tokenizer=t model.backbone=tiny",
        "model.weights=w data.tokenizer=t model.backbone=vit_b_32",
    ),
    (REID, "data.tokenizer", "model.weights=w", "model.weights=w data.tokenizer=t"),
    (
        REID,
        "model.freeze_backbone",
        "model.freeze_backbone=true",
        "model.freeze_backbone=true model.weights=w data.tokenizer=t",
    ),
    (REID, "model.text_len", "model.text_len=2", "model.text_len=3"),
    (
        REID,
        "loss.sdm.temperature_by_epoch",
        "loss.sdm.temperature_by_epoch={0: 0}",
        "loss.sdm.temperature_by_epoch={0: 2}",
    ),
]

RISKS = [
    (
        PLAIN,
        "cache.policy",
        "cache.budget=1GiB cache.policy=lru",
        "cache.budget=1GiB cache.policy=lru data.order=sequence",
    ),
    (PLAIN, "eval.every_steps", "eval.every_steps=1001", "eval.every_steps=1000"),
    (PLAIN, "checkpoint.every_steps", "checkpoint.every_steps=2000", "checkpoint.every_steps=2"),
    (PLAIN, "log.every_steps", "log.every_steps=5000", "log.every_steps=1000"),
    (PLAIN, "log.norm_every_steps", "log.norm_every_steps=5000", "log.norm_every_steps=5"),
    (PLAIN, "log.memory_every_steps", "log.memory_every_steps=5000", "log.memory_every_steps=5"),
    (
        PLAIN,
        "schedule.milestones",
        "schedule.kind=step schedule.milestones=[5,5000]",
        "schedule.kind=step schedule.milestones=[5,500]",
    ),
    (PLAIN, "schedule.warmup_steps", "schedule.warmup_steps=1000", "schedule.warmup_steps=999"),
    (EPOCHS, "train.crop_schedule", "train.crop_schedule={10: 64}", "train.crop_schedule={9: 64}"),
    (
        PLAIN,
        "train.scaler.start",
        "train.precision=fp16 train.scaler.start=131072",
        "train.precision=fp16 train.scaler.start=65536",
    ),
    (
        PLAIN,
        "train.compile.mode",
        "run.deterministic=true train.compile.scope=whole train.compile.mode=max-autotune",
        "run.deterministic=true train.compile.scope=whole train.compile.mode=reduce-overhead",
    ),
    (PLAIN, "data.clip_len", "data.clip_len=5", "data.clip_len=6"),
    (PLAIN, "model.window", "model.window=[6,7,8]", "model.window=[2,8,4]"),
    (
        PLAIN,
        "loss.charbonnier.eps",
        "train.precision=fp16 loss.charbonnier.eps=1e-9",
        "train.precision=fp16 loss.charbonnier.eps=1e-7",
    ),
    (
        REID,
        "data.records_per_id",
        "data.records=single data.records_per_id=1",
        "data.records=anchored data.records_per_id=1",
    ),
    (
        REID,
        "loss.sdm.temperature",
        "loss.sdm.temperature=0.02",
        "loss.sdm.temperature=0.02 loss.sdm.kind=irra",
    ),
]


def split(overrides: str) -> list[str]:
    return re.split(r" (?=[a-z])", overrides) if overrides else []


def messages(settings: dict[str, object], overrides: list[str]) -> dict[str, str]:
    with pytest.raises(ConfigProblems) as caught:
        config_from(settings, overrides)
    return {problem.key: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(("settings", "setting", "asleep", "awake"), INERT)
def test_a_setting_that_would_do_nothing_is_refused_and_its_twin_passes(
    settings: dict[str, object], setting: str, asleep: str, awake: str
) -> None:
    found = messages(settings, [setting, *split(asleep)])
    key = setting.partition("=")[0]
    [reported] = found
    assert key == reported or key.startswith(f"{reported}.")
    assert "effect" in found[reported]
    config_from(settings, [setting, *split(awake)])


@pytest.mark.parametrize(("settings", "setting"), NEVER)
def test_a_setting_the_workload_never_reads_is_refused(
    settings: dict[str, object], setting: str
) -> None:
    assert "has no effect" in messages(settings, [setting])[setting.partition("=")[0]]


@pytest.mark.parametrize(("settings", "_setting", "asleep", "_awake"), INERT)
def test_a_default_that_happens_to_be_inert_is_nobodys_mistake(
    settings: dict[str, object], _setting: str, asleep: str, _awake: str
) -> None:
    config_from(settings, split(asleep))


@pytest.mark.parametrize(("settings", "key", "wrong", "right"), CONFLICTS)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, object], key: str, wrong: str, right: str
) -> None:
    assert key in messages(settings, split(wrong))
    config_from(settings, split(right) if right or key == "train.steps" else [])


@pytest.mark.parametrize(("settings", "key", "risky", "calm"), RISKS)
def test_a_risk_is_said_and_not_refused(
    settings: dict[str, object], key: str, risky: str, calm: str
) -> None:
    assert [warning.key for warning in config_from(settings, split(risky)).warnings] == [key]
    assert not config_from(settings, split(calm)).warnings


@pytest.mark.parametrize(
    "overrides",
    [
        "loader.workers=0 loader.persistent=false",
        "loader.workers=4 loader.tune=off",
        "optimizer.kind=adamw optimizer.nesterov=false",
        "optimizer.kind=adamw8bit optimizer.fused=off",
    ],
)
def test_to_say_that_something_is_off_where_it_cannot_be_on_is_no_mistake(overrides: str) -> None:
    config_from(PLAIN, split(overrides))


def test_a_null_is_not_a_setting_somebody_made() -> None:
    config_from(PLAIN, ["loader.workers=0", "loader.eval_prefetch=null", "train.ema=null"])


@pytest.mark.parametrize("table", ["inert", "conflicts", "risks"])
def test_every_rule_has_a_case_here(table: str) -> None:
    sets = [COMMON, *(workload.all_rules for workload in KINDS.values())]
    ruled = {rule.key for rules in sets for rule in getattr(rules, table)}
    cases = {
        "inert": {case[1].partition("=")[0] for case in (*INERT, *NEVER)},
        "conflicts": {case[1] for case in CONFLICTS},
        "risks": {case[1] for case in RISKS},
    }[table]
    groups = {"train.scaler", "model.spike", "model.fusion"}
    single_term = {f"loss.focal.{name}" for name in ("every_steps", "gamma")}
    assert ruled - groups - single_term <= cases
