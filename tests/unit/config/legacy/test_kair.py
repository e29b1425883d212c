"""KAIR's option files: JSON with comments, batches over all GPUs, networks that are not built."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.config.legacy.convert import LegacyImport, import_legacy
from pitstop.config.legacy.json_comments import read_json
from pitstop.config.load import load_config
from pitstop.config.workloads.deblur import DeblurData, VrtModel
from pitstop.errors import ConfigError

OPTIONS = """{
  // a run of our own invention
  "task": "invented_deblur" // named after nobody
  , "gpu_ids": [0, 1], "dist": true, "scale": 1
  , "path": {"root": "out//runs", "pretrained_netG": null}
  , "datasets": {"train": {
      "dataroot_gt": "sets/made/train_GT.lmdb", "dataroot_lq": "sets/made/train_GT_blurred.lmdb",
      "num_frame": 4, "gt_size": 128, "use_hflip": true, "use_rot": true,
      "dataloader_num_workers": 6, "dataloader_batch_size": 4 }}
  , "netG": {"net_type": "vrt", "upscale": 1, "window_size": [4, 8, 8],
      "depths": [2, 2, 2, 2, 2, 2, 2, 2], "embed_dims": [24, 24, 24, 24, 24, 24, 24, 24],
      "num_heads": [6, 6, 6, 6, 6, 6, 6, 6], "indep_reconsts": [7], "pa_frames": 2,
      "deformable_groups": 4,
      "use_checkpoint_attn": true, "use_checkpoint_ffn": true,
      "no_checkpoint_attn_blocks": [1, 2], "no_checkpoint_ffn_blocks": [2] }
  , "train": {"G_lossfn_type": "charbonnier", "G_charbonnier_eps": 1e-7, "E_decay": 0.99,
      "G_optimizer_type": "adam", "G_optimizer_lr": 2e-4, "G_optimizer_wd": 0,
      "G_optimizer_clipgrad": null, "total_iter": 900, "fix_iter": 30, "fix_lr_mul": 0.25,
      "fix_keys": ["spynet"], "G_scheduler_type": "CosineAnnealingWarmRestarts",
      "G_scheduler_periods": 900, "G_scheduler_eta_min": 2e-6, "checkpoint_test": 300 }
  , "val": {"size_patch_testing": 64}
  , "logging": {"wandb_api_key": "0123456789abcdef"}
}
"""


def convert(tmp_path: Path, **changes: Any) -> LegacyImport:
    """Convert the options with `group__key=value` changed."""
    options = read_json(OPTIONS, "options").values
    for name, value in changes.items():
        group: Any = options
        *groups, leaf = name.split("__")
        for part in groups:
            group = group.setdefault(part, {})
        group[leaf] = value
    path = tmp_path / "options.json"
    path.write_text(json.dumps(options, indent=1) if changes else OPTIONS)
    return import_legacy(path)


def test_an_option_file_becomes_a_configuration_of_ours(tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(convert(tmp_path).yaml)
    config = load_config(tmp_path / "new.yaml").config
    assert isinstance(config.data, DeblurData)
    assert isinstance(config.model, VrtModel)
    assert (config.data.root, config.data.crop) == (Path("sets/made"), 128)
    assert (config.data.clip_len, config.data.augment) == (4, "flips")
    assert (config.model.kind, config.model.heads) == ("vrt", 6)
    assert (config.train.batch_size, config.loader.workers) == (2, 6)
    assert config.train.recompute == tuple(f"stage{number}" for number in (1, 2, 4, 5, 6, 7, 8))
    assert (config.train.clip.kind, config.train.ema) == ("none", 0.99)
    assert (config.schedule.kind, config.schedule.end_factor) == ("cosine", 0.01)
    assert config.optimizer.lr_multipliers == (("spynet", 0.25),)
    assert (config.eval.tile, config.eval.tile_overlap) == (64, 20)
    assert config.run.work_dir == Path("out/runs")


def test_spikes_as_channels_are_early_fusion(tmp_path: Path) -> None:
    result = convert(
        tmp_path, netG__in_chans=7, datasets__train__spike_reconstruction="spikecv_tfp"
    )
    (tmp_path / "new.yaml").write_text(result.yaml)
    config = load_config(tmp_path / "new.yaml").config
    assert isinstance(config.data, DeblurData)
    assert isinstance(config.model, VrtModel)
    assert (config.model.kind, config.model.fusion.kind) == ("vrt_spike", "early")
    assert (config.data.voxels, config.data.voxel_bins) == ("tfp", 4)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("netG__net_type", "rvrt", "netG.net_type is rvrt"),
        ("netG__upscale", 4, "netG.upscale is 4"),
        ("netG__nonblind_denoising", True, "nonblind_denoising"),
        ("netG__fusion", {"enable": True, "operator": "mamba"}, "netG.fusion.operator is mamba"),
        ("netG__dcn_type", "DCNv4", "DCNv4"),
        ("task", "made_videofi", "frame interpolation"),
        ("datasets__train__sigma", [0, 50], "denoising"),
    ],
)
def test_other_networks_and_tasks_are_refused_by_name(
    tmp_path: Path, key: str, value: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        convert(tmp_path, **{key: value})


@pytest.mark.parametrize(
    ("key", "value", "old_key", "status"),
    [
        ("train__G_lossfn_type", "l2", "train.G_lossfn_type", "refused"),
        ("train__G_scheduler_type", "OneCycle", "train.G_scheduler_type", "refused"),
        ("train__E_decay", 0, "train.E_decay", "no effect"),
        ("train__fix_lr_mul", 1, "train.fix_lr_mul", "no effect"),
        ("train__G_optimizer_clipgrad", 2.5, "train.G_optimizer_clipgrad", "renamed"),
        ("train__checkpoint_test", [10, 20], "train.checkpoint_test", "refused"),
        ("netG__num_heads", [6, 4], "netG.num_heads", "refused"),
        ("datasets__train__dataloader_batch_size", 1,
         "datasets.train.dataloader_batch_size", "refused"),
        ("datasets__train__spike_h", 250, "datasets.train.spike_h", "no effect"),
    ],
)  # fmt: skip
def test_other_values_are_judged_by_what_they_are(
    tmp_path: Path, key: str, value: Any, old_key: str, status: str
) -> None:
    accounts = {account.old_key: account for account in convert(tmp_path, **{key: value}).accounts}
    assert accounts[old_key].status == status


def test_a_key_to_somebodys_account_is_not_repeated(tmp_path: Path) -> None:
    assert "0123456789abcdef" not in json.dumps(convert(tmp_path).to_dict())


def test_two_slashes_in_a_text_are_no_comment() -> None:
    text = '{"a": "http://x/y", // gone\n "b": ["//", "c\\\\"] // gone, too\n}'
    found = read_json(text, "text")
    assert found.values == {"a": "http://x/y", "b": ["//", "c\\"]}
    assert found.lines == {"a": 1, "b": 2}


@given(st.dictionaries(st.text(max_size=5), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)))  # fmt: skip
def test_plain_json_is_read_as_json_reads_it(values: dict[str, Any]) -> None:
    assert read_json(json.dumps(values, indent=1), "text").values == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n\n,}", "x.json:3: .*key in quotes"),
        ('{"a": 1\n "b": 2}', "x.json:2: .*expected `,`"),
        ('{"a": nothing}', "x.json:1: .*expected a value"),
        ('{"a": 1-2}', "x.json:1: .*no value"),
        ('{"a": "b\n"}', "x.json:1: .*ends on its line"),
        ("{}\n{}", "x.json:2: .*more follows"),
        ("[1]", "must be an object"),
        (f'{{"a": {"[" * 99}{"]" * 99}}}', "nested deeper"),
    ],
)
def test_what_is_no_json_is_told_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_json(text, "x.json")


def test_spikes_without_a_reconstruction_are_counts_without_a_logarithm(tmp_path: Path) -> None:
    result = convert(tmp_path, netG__in_chans=4)
    (tmp_path / "new.yaml").write_text(result.yaml)
    data = load_config(tmp_path / "new.yaml").config.data
    assert isinstance(data, DeblurData)
    assert (data.voxels, data.voxel_bins, data.log1p) == ("counts", 1, False)
    [kind] = [account for account in result.accounts if account.old_key == "netG.net_type"]
    assert "divided by its largest count" in kind.reason


@pytest.mark.parametrize("split", ["train", "test"])
def test_code_that_knew_a_reach_averaged_spikes_around_centres(tmp_path: Path, split: str) -> None:
    changes = {"netG__in_chans": 4, f"datasets__{split}__tfp_half_win_length": 12}
    result = convert(tmp_path, **changes)
    (tmp_path / "new.yaml").write_text(result.yaml)
    data = load_config(tmp_path / "new.yaml").config.data
    assert isinstance(data, DeblurData)
    # The reach of the test set is that of the test set alone; 20 was the training's default.
    assert (data.voxels, data.tfp_reach) == ("tfp", 12 if split == "train" else 20)


def test_a_reconstruction_of_spikes_that_is_not_built_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spike_reconstruction is middle_tfp; imported here is"):
        convert(tmp_path, netG__in_chans=4, datasets__train__spike_reconstruction="middle_tfp")


def test_weights_of_the_flow_estimator_are_said_to_be_left_out(tmp_path: Path) -> None:
    result = convert(tmp_path, netG__spynet_path="zoo/flow.pth")
    [account] = [one for one in result.accounts if one.old_key == "netG.spynet_path"]
    assert account.status == "no counterpart"
    assert "starts from random weights" in account.reason


@pytest.mark.parametrize(("flipped", "words"), [(True, "always turned"), (False, "upside down")])
def test_what_became_of_upside_down_planes_is_said(
    tmp_path: Path, flipped: bool, words: str
) -> None:
    result = convert(tmp_path, netG__in_chans=4, datasets__train__spike_flipud=flipped)
    [account] = [one for one in result.accounts if one.old_key == "datasets.train.spike_flipud"]
    assert words in account.reason
