"""``pitstop export-model``: from a configuration and weights to files that were checked."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from pitstop.cli.main import app
from pitstop.config.load import load_config
from pitstop.errors import PitstopError
from pitstop.workloads.reid.task import build_reid

torch.set_num_threads(1)

SETTINGS = {
    "model": {
        "kind": "clip_reid",
        "backbone": "tiny",
        "embed_dim": 8,
        "fusion_heads": 2,
        "text_len": 6,
    },
    "data": {"image_size": [16, 8]},
    "train": {"steps": 1, "batch_size": 4},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "reid.yaml"
    path.write_text(yaml.safe_dump(SETTINGS), encoding="utf-8")
    return path


def test_something_to_write_must_be_named(config: Path, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["export-model", str(config), "--checkpoint", str(tmp_path)])
    assert isinstance(found.exception, PitstopError)
    assert "--torch-export FILE, --onnx FILE" in str(found.exception)


@pytest.mark.slow
def test_weights_become_an_archive_that_gives_the_same(config: Path, tmp_path: Path) -> None:
    weights, archive = tmp_path / "weights.pt", tmp_path / "model.pt2"
    torch.manual_seed(0)
    model = build_reid(load_config(config).config).build_model()
    torch.save(model.state_dict(), weights)
    arguments = ["--checkpoint", str(weights), "--torch-export", str(archive), "--json", "-"]
    found = CliRunner().invoke(app, ["export-model", str(config), *arguments])
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    assert record["inputs"]["images"] == "uint8 [1, 4, 3, 16, 8]"
    assert record["output"] == "features [1, 8]"
    assert record["files"][0]["difference"] <= 1e-4
    features = torch.export.load(archive).module()(
        torch.zeros(1, 4, 3, 16, 8, dtype=torch.uint8),
        torch.ones(1, 5, dtype=torch.bool),
        torch.full((1, 6), 5),
    )
    assert features.norm().item() == pytest.approx(1.0, abs=1e-5)
