from pathlib import Path

import pytest

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from, load_config
from pitstop.config.workloads.kinds import KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("loader", [{}, {"workers": 0}, {"workers": 1.0, "eval_workers": 0}])
def test_a_shown_configuration_loads_to_the_same_one(
    tmp_path: Path, kind: str, loader: dict[str, object]
) -> None:
    settings = {
        "model": {"kind": kind},
        "loader": loader,
        "train": {"epochs": 5, "batch_size": 8, "recompute": ["stage1", "stage8"]},
        "cache": {"budget": "1536MiB"},
        "optimizer": {"lr_multipliers": {"spynet": 0.125}, "lr": 1e-7},
    }
    config = config_from(settings).config
    (tmp_path / "shown.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "shown.yaml").config == config


def test_what_is_shown_is_what_acts() -> None:
    config = config_from({"model": {"kind": "vrt"}, "train": {"steps": 1}}).config
    text = to_yaml(config)
    assert "scaler" not in text
    assert "momentum" not in text
    assert "spike" not in text
    assert "batch_size: 1" in text


def test_a_crop_schedule_survives(tmp_path: Path) -> None:
    settings = {"model": {"kind": "vrt"}, "train": {"epochs": 5, "crop_schedule": {"2": 64, 0: 32}}}
    config = config_from(settings).config
    assert config.train.crop_schedule == ((0, 32), (2, 64))
    (tmp_path / "shown.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "shown.yaml").config == config


def test_only_the_settings_asked_for_are_written() -> None:
    loaded = config_from({"model": {"kind": "vrt"}, "train": {"steps": 1}})
    assert (
        to_yaml(loaded.config, only=loaded.written) == "model:\n  kind: vrt\ntrain:\n  steps: 1\n"
    )
