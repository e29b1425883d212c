from pathlib import Path

import pytest

from pitstop.config.legacy.convert import KeyAccount, LegacyImport, import_legacy
from pitstop.config.load import LoadedConfig, load_config
from pitstop.config.workloads.reid import ReidLoss
from pitstop.errors import ConfigError

CONFIGS = Path(__file__).parents[3] / "data/configs"
DEBLUR = CONFIGS / "guide_deblur.yaml"
REID = CONFIGS / "guide_reid.yaml"

APPLIED, RENAMED, CHANGED = "applied", "renamed", "changed"
INERT, NONE = "no effect", "no counterpart"

# Old key; what became of it; our setting and its value, or a part of the reason.
DEBLUR_ACCOUNT = [
    ("SEED", APPLIED, "run.seed = 42"),
    ("DATA.ROOT", APPLIED, "data.root = data/gopro_spike"),
    ("DATA.TRAIN_SPLIT", RENAMED, "data.split = train"),
    ("DATA.VAL_SPLIT", RENAMED, "data.eval_split = test"),
    ("DATA.CROP_SIZE", RENAMED, "data.crop = 256"),
    ("DATA.VAL_CROP_SIZE", RENAMED, "data.eval_crop = 256"),
    ("DATA.TRAIN_CROP_SIZE", INERT, "never reads it; the crop is DATA.CROP_SIZE"),
    ("DATA.CLIP_LEN", APPLIED, "data.clip_len = 5"),
    ("DATA.K", RENAMED, "data.voxel_bins = 32"),
    ("DATA.NUM_VOXEL_BINS", RENAMED, "data.voxel_bins = 32"),
    ("DATA.VOXEL_CACHE_DIRNAME", RENAMED, "data.voxel_dir = spike_vox"),
    ("DATA.SPIKE_DIR", APPLIED, "data.spike_dir = spike"),
    ("DATA.USE_PRECOMPUTED_VOXELS", CHANGED, "data.spikes = precomputed"),
    ("DATA.USE_RAM_CACHE", NONE, "cache.budget is above 0"),
    ("DATA.CACHE_SIZE_GB", CHANGED, "cache.budget = 50GB"),
    ("DATA.CACHE_SIZE_GB", CHANGED, "50 GB x 12 workers = 600 GB"),
    ("DATA.IMAGE_EXTS", CHANGED, "data.image_types = [png, jpg]"),
    ("DATA.ALIGN_LOG_PATHS", NONE, "nothing here"),
    ("DATA.NORM.MEAN", INERT, "never reads"),
    ("DATA.NORM.STD", INERT, "never reads"),
    ("DATA.PREPROCESSING.AUTO_PREPARE", NONE, "data pack"),
    ("DATA.PREPROCESSING.DATASET_TYPE", NONE, "folders"),
    ("DATA.PREPROCESSING.FORCE_RECOMPUTE", NONE, "nothing is prepared"),
    ("DATA.PREPROCESSING.VOXEL.NUM_BINS", RENAMED, "data.voxel_bins = 32"),
    ("DATA.PREPROCESSING.VOXEL.APPLY_LOG1P", CHANGED, "data.log1p = true"),
    ("DATA.PREPROCESSING.VOXEL.CACHE_DIRNAME", RENAMED, "data.voxel_dir = spike_vox"),
    ("DATA.PREPROCESSING.X4K.FPS", NONE, "X4K"),
    ("DATA.PREPROCESSING.X4K.EXPOSURE_FRAMES", NONE, "X4K"),
    ("DATA.PREPROCESSING.GOPRO.SPIKE_TEMPORAL_FRAMES", NONE, "56, 88 or 104"),
    ("DATA.PREPROCESSING.GOPRO.SPIKE_HEIGHT", CHANGED, "data.spike_height = 360"),
    ("DATA.PREPROCESSING.GOPRO.SPIKE_HEIGHT", CHANGED, "88 x 28,800 bytes = 2,534,400"),
    ("DATA.PREPROCESSING.GOPRO.SPIKE_WIDTH", APPLIED, "data.spike_width = 640"),
    ("DATASET.CACHE_SIZE_GB", INERT, "DATA.CACHE_SIZE_GB"),
    ("MODEL.USE_SPIKE", CHANGED, "model.kind = vrt_spike"),
    ("MODEL.VRT_CFG", INERT, "names a file that VRT does not have"),
    ("MODEL.VRT_DEPTHS", INERT, "6 x 4 = 24"),
    ("MODEL.WINDOW_SIZE", INERT, "do not divide"),
    ("MODEL.CHANNELS_PER_SCALE", RENAMED, "model.spike.channels = 96"),
    ("MODEL.LAYERS", INERT, "never reads"),
    ("MODEL.VRT.USE_CHECKPOINT_ATTN", CHANGED, "train.recompute = full"),
    ("MODEL.VRT.USE_CHECKPOINT_FFN", CHANGED, "train.recompute = full"),
    ("MODEL.VRT.use_checkpoint_attn", INERT, "lower case"),
    ("MODEL.VRT.use_checkpoint_ffn", INERT, "lower case"),
    ("MODEL.SPIKE_ENCODER.TEMPORAL_STRIDES", APPLIED, "model.spike.temporal_strides = [1, 1, 1]"),
    ("MODEL.SPIKE_ENCODER.SPATIAL_STRIDES", APPLIED, "model.spike.spatial_strides = [2, 2, 2]"),
    ("MODEL.SPIKE_TSA.HEADS", APPLIED, "model.spike.heads = 4"),
    ("MODEL.SPIKE_TSA.DROPOUT", APPLIED, "model.spike.dropout = 0.0"),
    ("MODEL.SPIKE_TSA.MLP_RATIO", APPLIED, "model.spike.mlp_ratio = 2"),
    ("MODEL.SPIKE_TSA.ADAPTIVE_CHUNK", NONE, "square"),
    ("MODEL.SPIKE_TSA.MAX_BATCH_TOKENS", INERT, "64 x 64 = 4096 pixels of 49152"),
    ("MODEL.SPIKE_TSA.MAX_BATCH_TOKENS", INERT, "up to batch 12; the batch is 1"),
    ("MODEL.SPIKE_TSA.CHUNK_SIZE", RENAMED, "model.spike.chunk = 64"),
    ("MODEL.SPIKE_TSA.CHUNK_SHAPE", NONE, "square"),
    ("MODEL.FUSE.TYPE", INERT, "never reads"),
    ("MODEL.FUSE.HEADS", APPLIED, "model.fusion.heads = 4"),
    ("MODEL.FUSE.DROPOUT", APPLIED, "model.fusion.dropout = 0.0"),
    ("MODEL.FUSE.MLP_RATIO", APPLIED, "model.fusion.mlp_ratio = 2"),
    ("MODEL.FUSE.ADAPTIVE_CHUNK", NONE, "square"),
    ("MODEL.FUSE.MAX_BATCH_TOKENS", INERT, "binds first"),
    ("MODEL.FUSE.CHUNK_SIZE", RENAMED, "model.fusion.chunk = 64"),
    ("MODEL.FUSE.CHUNK_SIZE", RENAMED, "= 26 MB"),
    ("MODEL.FUSE.CHUNK_SHAPE", NONE, "square"),
    ("DATALOADER.TOTAL_WORKERS", CHANGED, "loader.workers = 0.8"),
    ("DATALOADER.TRAIN_WORKERS", "refused", "already 0.8 from DATALOADER.TOTAL_WORKERS"),
    ("DATALOADER.VAL_WORKERS", RENAMED, "loader.eval_workers = 2"),
    ("DATALOADER.TRAIN_PREFETCH_FACTOR", RENAMED, "loader.prefetch = 4"),
    ("DATALOADER.VAL_PREFETCH_FACTOR", RENAMED, "loader.eval_prefetch = 2"),
    ("DATALOADER.PIN_MEMORY", RENAMED, "loader.pin = true"),
    ("DATALOADER.PERSISTENT_WORKERS", RENAMED, "loader.persistent = false"),
    ("DATALOADER.DROP_LAST", INERT, "never reads"),
    ("TRAIN.RESUME_FROM_CHECKPOINT", NONE, "--resume"),
    ("TRAIN.CHECKPOINT_PATH", NONE, "--resume PATH"),
    ("TRAIN.EXP_DIR", RENAMED, "run.work_dir = outputs"),
    ("TRAIN.TOTAL_STEPS", INERT, "there is no TRAIN.EPOCHS"),
    ("TRAIN.EPOCHS", APPLIED, "train.epochs = 80"),
    ("TRAIN.BATCH_SIZE", APPLIED, "train.batch_size = 1"),
    ("TRAIN.VAL_BATCH_SIZE", RENAMED, "eval.batch_size = 1"),
    ("TRAIN.COMPILE_MODEL", CHANGED, "train.compile.scope = off"),
    ("TRAIN.GRADIENT_ACCUMULATION_STEPS", RENAMED, "train.accumulate = 6"),
    ("TRAIN.MAX_GRAD_NORM", RENAMED, "train.clip.norm = 1.0"),
    ("TRAIN.AMP_ENABLED", INERT, "mixed precision is on wherever there is a GPU"),
    ("TRAIN.AMP_OPT_LEVEL", INERT, "Apex"),
    ("TRAIN.OPTIM.TYPE", RENAMED, "optimizer.kind = adamw"),
    ("TRAIN.OPTIM.LR", APPLIED, "optimizer.lr = 1e-4"),
    ("TRAIN.OPTIM.BETAS", APPLIED, "optimizer.betas = [0.9, 0.99]"),
    ("TRAIN.OPTIM.WEIGHT_DECAY", APPLIED, "optimizer.weight_decay = 1e-4"),
    ("TRAIN.SCHED.TYPE", INERT, "never reads"),
    ("TRAIN.SCHED.WARMUP_STEPS", APPLIED, "schedule.warmup_steps = 512"),
    ("LOSS.CHARBONNIER.DELTA", CHANGED, "loss.charbonnier.eps = 1e-06"),
    ("LOSS.CHARBONNIER.DELTA", CHANGED, "0.001 x 0.001 = 1e-06"),
    ("LOSS.CHARBONNIER.WEIGHT", INERT, "always 1"),
    ("LOSS.VGG_PERCEPTUAL.LAYERS", APPLIED, "loss.perceptual.layers = [relu3_3]"),
    ("LOSS.VGG_PERCEPTUAL.WEIGHT", CHANGED, "loss.perceptual.weight = 0.1"),
    ("LOSS.VGG_PERCEPTUAL.WEIGHT", CHANGED, "57 times too small"),
    ("LOG.TENSORBOARD", APPLIED, "log.tensorboard = true"),
    ("LOG.WANDB.ENABLE", NONE, "TensorBoard"),
    ("LOG.WANDB.PROJECT", NONE, "TensorBoard"),
    ("LOG.SAVE_DIR", NONE, "run.work_dir"),
    ("LOG.VAL_EVERY_STEPS", RENAMED, "eval.every_steps = 500"),
    ("LOG.PROGRESS_EVERY_STEPS", APPLIED, "log.progress_every_steps = 10"),
    ("LOG.CHECKPOINT_SAVE_EVERY_EPOCH", NONE, "= 111"),
    ("LOG.CHECKPOINT_KEEP_LAST_N", RENAMED, "checkpoint.keep_last = 5"),
    ("LOG.ENABLE_TIMING_LOG", NONE, "timed"),
    ("LOG.TIMING_CONSOLE", NONE, "timed"),
    ("LOG.TIMING_FILE", NONE, "timed"),
    ("LOG.TIMING_CONSOLE_INTERVAL", NONE, "timed"),
    ("LOG.TIMING_FILE_INTERVAL", NONE, "timed"),
    ("TEST.BATCH_SIZE", NONE, "eval.batch_size"),
    ("TEST.NUM_WORKERS", NONE, "loader.eval_workers"),
    ("TEST.CHECKPOINT_PATH", NONE, "pitstop eval --checkpoint"),
]

REID_ACCOUNT = [
    ("SEED", APPLIED, "run.seed = 42"),
    ("SOLVER.IMS_PER_BATCH", RENAMED, "train.batch_size = 8"),
    ("SOLVER.MAX_EPOCHS", RENAMED, "train.epochs = 60"),
    ("SOLVER.ACCUMULATION_STEPS", RENAMED, "train.accumulate = 2"),
    ("SOLVER.GRAD_CLIP", RENAMED, "train.clip.norm = 1.0"),
    ("SOLVER.ADAPTIVE_CLIP", CHANGED, "train.clip.kind = adaptive"),
    ("SOLVER.ADAPTIVE_CLIP", CHANGED, "the limit stayed at 1.0"),
    ("SOLVER.FANCY_TRICK", "unknown", "no guide is known"),
    ("DATALOADER.NUM_WORKERS", RENAMED, "loader.workers = 2"),
    ("DATALOADER.NUM_INSTANCE", RENAMED, "data.records_per_id = 4"),
    ("DATALOADER.PREFETCH_FACTOR", RENAMED, "loader.prefetch = 2"),
    ("DATALOADER.PERSISTENT_WORKERS", RENAMED, "loader.persistent = true"),
    ("DATALOADER.PIN_MEMORY", RENAMED, "loader.pin = true"),
    ("DATALOADER.NON_BLOCKING", INERT, "pinned memory"),
    ("DATALOADER.DROP_LAST", INERT, "ValueError"),
    ("DATALOADER.ENSURE_RGB", APPLIED, "data.ensure_rgb = true"),
    ("DATALOADER.PREFER_COMPLETE", CHANGED, "data.require_pair = true"),
    ("LOG_EVERY", CHANGED, "log.every_steps = 50"),
    ("LOG_EVERY", CHANGED, "12 times a step"),
    ("NORM_EVERY", CHANGED, "log.norm_every_steps = 200"),
    ("NORM_EVERY", CHANGED, "adaptive clipping off"),
]


def by_key(result: LegacyImport) -> dict[str, KeyAccount]:
    return {account.old_key: account for account in result.accounts}


def loaded(result: LegacyImport, tmp_path: Path) -> LoadedConfig:
    (tmp_path / "new.yaml").write_text(result.yaml)
    return load_config(tmp_path / "new.yaml")


def convert(text: str, tmp_path: Path) -> tuple[dict[str, KeyAccount], LoadedConfig]:
    result = import_legacy(text)
    (tmp_path / "whole.yaml").write_text(
        f"model: {{kind: {'clip_reid' if result.guide == 'reid' else 'vrt_spike'}}}\n"
        "train: {epochs: 80, batch_size: 4}\n"
    )
    (tmp_path / "part.yaml").write_text(result.yaml)
    (tmp_path / "new.yaml").write_text("base: [whole.yaml, part.yaml]\n")
    return by_key(result), load_config(tmp_path / "new.yaml")


@pytest.mark.parametrize(
    ("path", "old_key", "status", "words"),
    [(DEBLUR, *case) for case in DEBLUR_ACCOUNT] + [(REID, *case) for case in REID_ACCOUNT],
)
def test_every_key_of_the_guides_is_accounted_for(
    path: Path, old_key: str, status: str, words: str
) -> None:
    account = by_key(import_legacy(path))[old_key]
    assert account.status == status
    assert words in f"{account.key} = {account.value}" or words in account.reason


@pytest.mark.parametrize(("path", "cases"), [(DEBLUR, DEBLUR_ACCOUNT), (REID, REID_ACCOUNT)])
def test_no_key_is_dropped_and_none_is_invented(
    path: Path, cases: list[tuple[str, str, str]]
) -> None:
    assert by_key(import_legacy(path)).keys() == {case[0] for case in cases}


@pytest.mark.parametrize("path", [DEBLUR, REID])
def test_our_loader_accepts_what_comes_out(path: Path, tmp_path: Path) -> None:
    result = import_legacy(path)
    written = loaded(result, tmp_path).written
    taken = {account.key for account in result.accounts if account.key}
    assert taken | {added.key for added in result.additions} <= written


def test_the_converted_deblurring_run_is_the_guides_run(tmp_path: Path) -> None:
    config = loaded(import_legacy(DEBLUR), tmp_path).config
    assert (config.model.kind, config.train.precision, config.train.accumulate) == (
        "vrt_spike",
        "fp16",
        6,
    )
    assert config.model.model_dump()["depths"] == (8,) * 7 + (4,) * 6
    assert config.model.model_dump()["window"] == (5, 8, 8)
    assert config.cache.budget == 50 * 1000**3
    assert (config.schedule.kind, config.schedule.warmup_start) == ("cosine", 0.001)


def test_an_account_is_plain_data() -> None:
    plain = import_legacy(REID).to_dict()
    assert plain["guide"] == "reid"
    assert plain["accounts"][0] == {
        "old_key": "SEED",
        "old_value": "42",
        "status": "applied",
        "key": "run.seed",
        "value": "42",
        "reason": "",
        "ran": "run.seed = 42",
        "wanted": "run.seed = 42",
    }


@pytest.mark.parametrize(
    ("text", "old_key", "status", "words"),
    [
        (
            "DATALOADER: {TOTAL_WORKERS: auto}",
            "DATALOADER.TOTAL_WORKERS",
            CHANGED,
            "loader.workers = 0.8",
        ),
        (
            "DATALOADER: {TOTAL_WORKERS: 12}",
            "DATALOADER.TOTAL_WORKERS",
            RENAMED,
            "loader.workers = 12",
        ),
        (
            "DATALOADER: {TOTAL_WORKERS: cpu*x}",
            "DATALOADER.TOTAL_WORKERS",
            "refused",
            "must be auto",
        ),
        (
            "DATALOADER: {TRAIN_WORKERS: 3}",
            "DATALOADER.TRAIN_WORKERS",
            RENAMED,
            "loader.workers = 3",
        ),
        (
            "{DATALOADER: {TOTAL_WORKERS: 10}, DATA: {CACHE_SIZE_GB: 4}}",
            "DATA.CACHE_SIZE_GB",
            CHANGED,
            "4 GB x 10 workers = 40 GB",
        ),
        (
            "DATA: {USE_RAM_CACHE: false, CACHE_SIZE_GB: 4}",
            "DATA.CACHE_SIZE_GB",
            INERT,
            "USE_RAM_CACHE is off",
        ),
        ("DATA: {USE_RAM_CACHE: false}", "DATA.USE_RAM_CACHE", CHANGED, "cache.budget = 0"),
        (
            "DATA: {CACHE_SIZE_GB: -4}",
            "DATA.CACHE_SIZE_GB",
            "refused",
            "must be a size such as 20GiB",
        ),
        (
            "DATA: {K: 16, NUM_VOXEL_BINS: 32}",
            "DATA.NUM_VOXEL_BINS",
            "refused",
            "already 16 from DATA.K",
        ),
        (
            "DATA: {PREPROCESSING: {GOPRO: {SPIKE_HEIGHT: 360}}}",
            "DATA.PREPROCESSING.GOPRO.SPIKE_HEIGHT",
            APPLIED,
            "360",
        ),
        ("MODEL: {USE_SPIKE: false}", "MODEL.USE_SPIKE", CHANGED, "model.kind = vrt"),
        (
            "{MODEL: {USE_SPIKE: false}, DATA: {K: 16}}",
            "DATA.K",
            INERT,
            "model.kind is vrt, which sees no spikes",
        ),
        (
            "MODEL: {CHANNELS_PER_SCALE: [96, 64]}",
            "MODEL.CHANNELS_PER_SCALE",
            "refused",
            "one number",
        ),
        (
            "MODEL: {VRT: {USE_CHECKPOINT_ATTN: true, USE_CHECKPOINT_FFN: false}}",
            "MODEL.VRT.USE_CHECKPOINT_ATTN",
            CHANGED,
            "= attention",
        ),
        (
            "MODEL: {VRT: {USE_CHECKPOINT_ATTN: false, USE_CHECKPOINT_FFN: true}}",
            "MODEL.VRT.USE_CHECKPOINT_FFN",
            CHANGED,
            "= ffn",
        ),
        (
            "MODEL: {VRT: {USE_CHECKPOINT_ATTN: false, USE_CHECKPOINT_FFN: false}}",
            "MODEL.VRT.USE_CHECKPOINT_FFN",
            CHANGED,
            "= none",
        ),
        (
            "{MODEL: {FUSE: {MAX_BATCH_TOKENS: 49152}}, TRAIN: {BATCH_SIZE: 13}}",
            "MODEL.FUSE.MAX_BATCH_TOKENS",
            CHANGED,
            "model.fusion.chunk = 61",
        ),
        (
            "{MODEL: {SPIKE_TSA: {CHUNK_SIZE: 64}}, TRAIN: {BATCH_SIZE: 13}}",
            "MODEL.SPIKE_TSA.CHUNK_SIZE",
            INERT,
            "MAX_BATCH_TOKENS bound",
        ),
        ("TRAIN: {MAX_GRAD_NORM: 0}", "TRAIN.MAX_GRAD_NORM", CHANGED, "train.clip.kind = none"),
        ("TRAIN: {OPTIM: {TYPE: AdamW8bit}}", "TRAIN.OPTIM.TYPE", RENAMED, "189 MB"),
        ("TRAIN: {OPTIM: {TYPE: Lion}}", "TRAIN.OPTIM.TYPE", "refused", "must be one of adamw"),
        (
            "TRAIN: {COMPILE_MODEL: true}",
            "TRAIN.COMPILE_MODEL",
            CHANGED,
            "train.compile.scope = regions",
        ),
        ("TRAIN: {BATCH_SIZE: none}", "TRAIN.BATCH_SIZE", "refused", "must be a whole number"),
        ("TRAIN: {BATCH_SIZE: }", "TRAIN.BATCH_SIZE", INERT, "has no value"),
        ("TRAIN: {EPOCHS: 80, MYSTERY: 1}", "TRAIN.MYSTERY", "unknown", "no guide is known"),
        (
            "LOSS: {CHARBONNIER: {DELTA: soft}}",
            "LOSS.CHARBONNIER.DELTA",
            "refused",
            "must be a number",
        ),
        (
            "DATALOADER: {TRAIN_WORKERS: 0, PERSISTENT_WORKERS: true}",
            "DATALOADER.PERSISTENT_WORKERS",
            INERT,
            "loader.workers is 0",
        ),
        (
            "{NUM_INSTANCE: 4, ADAPTIVE_CLIP: false}",
            "ADAPTIVE_CLIP",
            CHANGED,
            "train.clip.kind = fixed",
        ),
        ("{num_instance: 2, ims_per_batch: 6}", "num_instance", RENAMED, "data.records_per_id = 2"),
    ],
)
def test_what_becomes_of_a_key_depends_on_its_value_and_its_neighbours(
    tmp_path: Path, text: str, old_key: str, status: str, words: str
) -> None:
    accounts, _ = convert(text, tmp_path)
    account = accounts[old_key]
    assert account.status == status
    assert words in f"{account.key} = {account.value}" or words in account.reason


def test_workers_are_those_that_a_file_sets_and_none_where_it_sets_none(tmp_path: Path) -> None:
    # The original reads getattr(config, "num_workers", 4): four is its fallback, in no file.
    loader = "    num_workers: int = 1\n    prefetch_factor: int = 2\n"
    assert "loader:\n  workers: 1\n  prefetch: 2\n" in _of_class(tmp_path, 0.1, loader).yaml
    assert "loader" not in _of_class(tmp_path, 0.1).yaml


def test_nothing_is_added_to_a_part() -> None:
    result = import_legacy("TRAIN: {BATCH_SIZE: 2}")
    assert result.missing == ("the length of the run", "DATA", "MODEL")
    assert result.additions == ()
    assert result.yaml.endswith("train:\n  batch_size: 2\n")


@pytest.mark.parametrize(
    ("text", "old_key", "wanted"),
    [
        ("TRAIN: {AMP_ENABLED: true}", "TRAIN.AMP_ENABLED", "train.precision = fp16"),
        ("TRAIN: {NUM_WORKERS: 3}", "TRAIN.NUM_WORKERS", "loader.workers = 3"),
        ("{TRAIN: {PREFETCH_FACTOR: 4}, DATALOADER: {PIN_MEMORY: true}}",
         "TRAIN.PREFETCH_FACTOR", "loader.prefetch = 4"),
        ("DATA: {TRAIN_CROP_SIZE: 192}", "DATA.TRAIN_CROP_SIZE", "data.crop = 192"),
        ("MODEL: {VRT_DEPTHS: [8, 8, 8, 8, 4, 4, 4, 4]}", "MODEL.VRT_DEPTHS",
         "model.depths = [8, 8, 8, 8, 8, 8, 8, 2, 2, 2, 2, 2, 2]"),
        ("MODEL: {VRT_DEPTHS: [8, 4]}", "MODEL.VRT_DEPTHS", None),
        ("MODEL: {WINDOW_SIZE: 6}", "MODEL.WINDOW_SIZE", "model.window = [5, 6, 6]"),
        ("MODEL: {VRT: {use_checkpoint_attn: false}}", "MODEL.VRT.use_checkpoint_attn", None),
        ("{num_instances: 4, sampler_seed: 7}", "sampler_seed", None),
        ("{num_ids_per_batch: 3, instances_per_id: 2}", "num_ids_per_batch",
         "train.batch_size = 6"),
        ("{num_ids_per_batch: 3, seed: 2}", "num_ids_per_batch", None),
        ("{num_instances: 4, sampler_seed: 7}", "num_instances", "data.records_per_id = 4"),
    ],
)  # fmt: skip
def test_what_was_wanted_is_known(text: str, old_key: str, wanted: str | None) -> None:
    assert by_key(import_legacy(text))[old_key].wanted == wanted


def test_a_whole_configuration_ends_with_the_nearest_preset() -> None:
    nearest = import_legacy(DEBLUR).nearest
    assert nearest is not None
    assert nearest.preset == "configs/deblur/baseline.yaml"
    assert "cache.budget" in {difference.key for difference in nearest.differences}


def test_python_is_never_executed(tmp_path: Path) -> None:
    path = tmp_path / "lss_swin.py"
    path.write_text(f"optimizer = dict(lr=1e-3)\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    assert [account.status for account in import_legacy(path).accounts] == ["applied", "unknown"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {steps: 5}", "no key of the guides"),
        ("", "no key of the guides"),
        ("- a", "must be settings"),
        ("DATA: [", "not readable as YAML"),
        ("DATA: {ROOT: !!python/name:os.system }", "tags are not read"),
        (
            "{NUM_INSTANCE: 3, IMS_PER_BATCH: 8, EPOCHS: 2}",
            "must be a multiple of data.records_per_id",
        ),
    ],
)
def test_what_cannot_be_converted_is_a_config_error(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        import_legacy(text)


def test_a_configuration_of_ours_is_not_converted_again() -> None:
    with pytest.raises(ConfigError, match="pitstop configuration already"):
        import_legacy("model:\n  kind: vrt\ntrain:\n  steps: 3\n")


CLASS = """from dataclasses import dataclass


@dataclass
class TrainingConfig:
    num_epochs: int = 30
    batch_size: int = 8
    num_instances: int = 4
    contrastive_weight: float = {weight}
    sdm_temperature: float = 0.1
    scheduler: str = "cosine"
    conservative_factor: float = 0.7
{more}"""


def _of_class(tmp_path: Path, weight: float, more: str = "") -> LegacyImport:
    path = tmp_path / "config.py"
    path.write_text(CLASS.format(weight=weight, more=more))
    return import_legacy(path)


def test_the_first_weight_of_the_matching_term_is_taken_with_its_rise(tmp_path: Path) -> None:
    result = _of_class(tmp_path, 0.1)
    (tmp_path / "new.yaml").write_text(result.yaml)
    loss = load_config(tmp_path / "new.yaml").config.loss
    assert isinstance(loss, ReidLoss)
    assert (loss.sdm.weight, loss.sdm.temperature) == (0.1, 0.1)
    factors = dict(loss.sdm.weight_by_epoch)
    assert (factors[0], factors[5], factors[24]) == (0, 0.05, 1)
    [factor] = [one for one in result.accounts if one.old_key == "conservative_factor"]
    assert factor.status == "no effect"


def test_a_scheduler_of_the_matching_term_takes_over_from_its_first_weight(tmp_path: Path) -> None:
    more = "    sdm_weight_final: float = 0.5\n    sdm_init_temperature: float = 0.2\n"
    result = _of_class(tmp_path, 0.0, more)
    (tmp_path / "new.yaml").write_text(result.yaml)
    loss = load_config(tmp_path / "new.yaml").config.loss
    assert isinstance(loss, ReidLoss)
    assert (loss.sdm.weight, loss.sdm.temperature) == (0.5, 0.2)
    status = {account.old_key: account.status for account in result.accounts}
    assert status["contrastive_weight"] == status["sdm_temperature"] == "no effect"
