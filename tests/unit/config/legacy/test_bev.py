"""What becomes of mmcv configurations: read as text, every key accounted for."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.config.legacy.convert import KeyAccount, import_legacy
from pitstop.config.legacy.python import Code, read_module
from pitstop.config.load import load_config
from pitstop.config.workloads.bev import LssModel, MonoData
from pitstop.errors import ConfigError

GUIDE = Path(__file__).parents[3] / "data/configs/guide_bev.py"

# Old key; what became of it; our setting and its value, or a part of the reason.
ACCOUNT = [
    ("log_level", "no counterpart", "nothing here"),
    ("data.test.type", "no counterpart", "tables"),
    ("dataset_type", "no counterpart", "model.kind decides"),
    ("data_root", "renamed", "data.root = data/nuscenes"),
    ("img_norm_cfg.mean", "no counterpart", "ImageNet"),
    ("size", "unknown", ""),
    ("train_pipeline", "changed", "data.image_size = [600, 800]"),
    ("test_pipeline", "no counterpart", "data.image_size"),
    ("data.samples_per_gpu", "renamed", "train.batch_size = 6"),
    ("data.workers_per_gpu", "renamed", "loader.workers = 12"),
    ("data.prefetch_factor", "no effect", "default is 2"),
    ("data.pin_memory", "no effect", "drops the rest"),
    ("data.persistent_workers", "no effect", "drops the rest"),
    ("data.train.ann_dir", "no counterpart", "data.labels"),
    ("data.train.pipeline", "changed", "data.image_size = [600, 800]"),
    ("model.backbone.depths", "changed", "model.backbone = swin_t"),
    ("model.backbone.embed_dims", "no counterpart", "model.backbone"),
    ("model.backbone.out_indices", "renamed", "model.out_stages = [3]"),
    ("model.backbone.drop_path_rate", "renamed", "model.drop_path = 0.1"),
    ("model.pretrained", "no effect", "it has no value"),
    ("model.transformer.type", "changed", "model.kind = lss_swin_mono"),
    ("model.transformer.grid_conf.dbound", "renamed", "model.depth = [1, 50, 1]"),
    ("model.transformer.grid_conf.zbound", "renamed", "model.forward_bound = [1, 50, 0.5]"),
    ("model.transformer.grid_conf.ybound", "renamed", "model.height_bound = [-10, 10, 20]"),
    ("model.decode_head.num_classes", "no counterpart", "14 classes"),
    ("optimizer.type", "changed", "optimizer.kind = adamw"),
    ("optimizer.lr", "applied", "optimizer.lr = 0.0003"),
    ("optimizer_config.grad_clip.max_norm", "renamed", "train.clip.norm = 35"),
    ("lr_config.policy", "changed", "schedule.kind = constant"),
    ("lr_config.policy", "changed", "had no effect"),
    ("lr_config.min_lr", "no effect", "stayed at its peak"),
    ("lr_config.warmup_iters", "no effect", "stayed at its peak"),
    ("lr_config.warmup", "no counterpart", "linear"),
    ("runner.max_iters", "renamed", "train.steps = 200000"),
    ("runner.accumulative_counts", "no effect", "updates after every batch"),
    ("fp16.loss_scale", "changed", "train.precision = fp16"),
    ("fp16.loss_scale", "changed", "a fixed scale"),
    ("evaluation.interval", "renamed", "eval.every_steps = 20000"),
    ("evaluation.save_best", "changed", "checkpoint.best_of = miou_at_050"),
    ("evaluation.efficient_test", "no effect", "constant memory"),
    ("evaluation.pre_eval", "no effect", "counted as batches come"),
    ("checkpoint_config.max_keep_ckpts", "renamed", "checkpoint.keep_last = 3"),
    ("log_config.interval", "renamed", "log.every_steps = 50"),
    ("find_unused_parameters", "unknown", "never executed"),
]


WANTED = [
    ("data.prefetch_factor", "loader.prefetch = 4"),
    ("data.pin_memory", "loader.pin = True"),
    ("runner.accumulative_counts", "train.accumulate = 2"),
    ("lr_config.policy", "schedule.kind = poly"),
    ("lr_config.min_lr", "schedule.end_factor = 0.01"),
    ("lr_config.warmup_iters", "schedule.warmup_steps = 1500"),
    ("optimizer.lr", "optimizer.lr = 0.0003"),
]


def by_key(path: Path) -> dict[str, KeyAccount]:
    return {account.old_key: account for account in import_legacy(path).accounts}


@pytest.mark.parametrize(("old_key", "words"), WANTED)
def test_what_was_wanted_stands_beside_what_ran(old_key: str, words: str) -> None:
    assert by_key(GUIDE)[old_key].wanted == words


def test_what_was_wanted_can_be_written_instead(tmp_path: Path) -> None:
    new = tmp_path / "new.yaml"
    new.write_text(import_legacy(GUIDE, column="wanted").yaml)
    config = load_config(new).config
    assert (config.loader.prefetch, config.train.accumulate) == (4, 2)
    assert (config.schedule.kind, config.schedule.warmup_steps) == ("poly", 1500)


@pytest.mark.parametrize(("old_key", "status", "words"), ACCOUNT)
def test_a_key_is_accounted_for(old_key: str, status: str, words: str) -> None:
    account = by_key(GUIDE)[old_key]
    assert account.status == status
    assert words in f"{account.key} = {account.value}" or words in account.reason


def test_what_comes_out_is_a_configuration_of_ours(tmp_path: Path) -> None:
    result = import_legacy(GUIDE)
    assert result.guide == "bev"
    new = tmp_path / "new.yaml"
    new.write_text(result.yaml)
    config = load_config(new).config
    assert isinstance(config.data, MonoData)
    assert isinstance(config.model, LssModel)
    assert config.data.image_size == (600, 800)
    assert (config.train.batch_size, config.train.accumulate) == (6, 1)
    assert config.schedule.kind == "constant"
    assert config.schedule.warmup_steps == 0
    assert (config.train.clip.kind, config.train.clip.norm) == ("fixed", 35)
    assert config.train.precision == "fp16"
    assert config.model.depth == (1, 50, 1)


def test_a_part_stays_a_part(tmp_path: Path) -> None:
    path = tmp_path / "schedule.py"
    path.write_text("optimizer = dict(type='AdamW', lr=3e-4)\nrunner = dict(max_iters=900)\n")
    result = import_legacy(path)
    assert result.missing == ("the model", "the batch")
    assert result.additions == ()
    settings = "".join(result.yaml.splitlines(keepends=True)[2:])
    assert settings == "train:\n  steps: 900\noptimizer:\n  kind: adamw\n  lr: 0.0003\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = dict(backbone=dict(depths=[1, 1]))", "no Swin of width 96"),
        ("model = dict(decode_head=dict(num_classes=3))", "num_classes is 3"),
        ("model = dict(transformer=dict(type='PYVA'))", "model.transformer.type is PYVA"),
        ("model = dict(decode_head=dict(type='DiffusionHead'))", "DiffusionHead"),
        ("model = dict(backbone=dict(type='ResNetV1c'))", "ResNetV1c"),
        ("model = dict(auxiliary_head=dict(type='FCNHead'))", "no such part"),
        ("dataset_type = 'CityscapesDataset'", "CityscapesDataset"),
    ],
)
def test_what_is_not_built_is_refused_by_name_and_line(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "old.py"
    path.write_text(f"seed = 3\n{text}\n")
    with pytest.raises(ConfigError, match=words) as refused:
        import_legacy(path)
    assert str(refused.value).startswith(f"{path}:2: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "key", "status", "words"),
    [
        ("lr_config = dict(policy='OneCycle')", "lr_config.policy", "refused", "OneCycle"),
        ("fp16 = dict(loss_scale='dynamic')", "fp16.loss_scale", "changed", "is dynamic"),
        ("bf16 = dict()", "bf16", "changed", "no loss scale"),
        ("optimizer_config = dict()", "optimizer_config", "changed", "clips nothing"),
        ("train_pipeline = [dict(type='Collect')]", "train_pipeline", "no counterpart", "size"),
        ("optimizer = build(lr=3)", "optimizer", "unknown", "no guide"),
        ("optimizer = dict(lr=base() * 2)", "optimizer.lr", "unknown", "never executed"),
        ("optimizer = dict(lr=1e-3)\nos.abort()", "line 2", "unknown", ""),
        ("optimizer_config = dict(cumulative_iters=2)", "optimizer_config.cumulative_iters",
         "no effect", "after every batch"),
    ],
)  # fmt: skip
def test_other_values_are_judged_by_what_they_are(
    tmp_path: Path, text: str, key: str, status: str, words: str
) -> None:
    path = tmp_path / "old.py"
    path.write_text(f"seed = 3\n{text}\n")
    account = by_key(path)[key.replace("line 2", "line 3")]
    assert account.status == status
    assert words in account.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = dict(", "not readable as Python"),
        ("x = 1\n", "no key of the guides"),
        ("\0", "not readable"),
        (f"data = {'[' * 5000}{']' * 5000}", "nested|not readable"),
    ],
)
def test_what_cannot_be_read_is_a_config_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "old.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        import_legacy(path)


LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(LITERALS)
def test_literals_are_read_as_python_reads_them(value: object) -> None:
    assert read_module(f"x = {value!r}\n", "text").values == {"x": value}


def test_names_dicts_and_sums_are_put_together() -> None:
    text = "a = 2\nb = dict(c=a * 3, **dict(d=[a, -a]))\ne = {'f': b, **b}\n"
    read = read_module(text, "text").values
    assert read["b"] == {"c": 6, "d": [2, -2]}
    assert read["e"] == {"f": read["b"], "c": 6, "d": [2, -2]}


@pytest.mark.parametrize(
    "text", ["f()", "a.b", "a[0]", "lambda: 1", "x if y else z", "1 / 0", "'a' * 9", "2 ** 9", "u"]
)
def test_what_is_no_literal_stays_text(text: str) -> None:
    read = read_module(f"x = [{text}]\n", "text").values
    assert read["x"] == [text]
    assert isinstance(read["x"][0], Code)


WRAPPED = """_base_ = ["{guide}"]
data = dict(train=dict(_delete_=True, type="RepeatDataset", times=40, dataset=dict(
    type="{inner}", data_root="sets/made", pipeline=[
        dict(type="Resize", img_scale=(400, 300)), dict(type="PhotoMetricDistortion")])))
"""


def _wrapped(tmp_path: Path, inner: str) -> Path:
    path = tmp_path / "wrapped.py"
    path.write_text(WRAPPED.format(guide=GUIDE, inner=inner))
    return path


def test_a_dataset_that_only_repeats_another_is_read_through(tmp_path: Path) -> None:
    # Without the base's own pipeline, whose image size would be a rival of the inner one.
    text = GUIDE.read_text().replace("train_pipeline", "training_steps")
    (tmp_path / "below.py").write_text(text.replace("../_base_", str(GUIDE.parents[1] / "_base_")))
    path = _wrapped(tmp_path, "NuscenesDataset")
    path.write_text(path.read_text().replace(str(GUIDE), str(tmp_path / "below.py")))
    accounts = {account.old_key: account for account in import_legacy(path).accounts}
    assert accounts["data.train.dataset.pipeline"].value == "[300, 400]"
    assert accounts["data.train.times"].status == "no counterpart"
    assert accounts["data.train.dataset.type"].status == "no counterpart"


def test_what_a_repeating_dataset_holds_must_be_built(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.train.dataset.type is SingleSampleDataset; built"):
        import_legacy(_wrapped(tmp_path, "SingleSampleDataset"))


def test_joined_datasets_are_refused_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "joined.py"
    path.write_text(
        f'_base_ = ["{GUIDE}"]\n'
        'data = dict(train=dict(_delete_=True, type="ConcatDataset", datasets=[1, 2]))\n'
    )
    with pytest.raises(ConfigError, match=r"ConcatDataset; .* one of the 2 joined datasets"):
        import_legacy(path)


def test_a_dataset_that_repeats_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text(
        f'_base_ = ["{GUIDE}"]\n'
        'data = dict(train=dict(_delete_=True, type="RepeatDataset", times=2))\n'
    )
    with pytest.raises(ConfigError, match="what it repeats is not there"):
        import_legacy(path)
