"""A run with spikes from end to end: every named part in its record, forward and backward."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.train.run import TrainingRun
from pitstop.workloads.deblur.model.features import Features
from pitstop.workloads.deblur.synthetic import make_clips
from pitstop.workloads.deblur.task import build_deblur
from tests.unit.workloads.deblur.tiny_vrt import TINY_SPIKES, TINY_VRT_SPIKE


def settings(folder: Path) -> dict[str, Any]:
    return {
        "run": {"name": "run", "work_dir": str(folder)},
        "model": TINY_VRT_SPIKE,
        "data": {"root": str(folder / "clips"), "crop": 32, "clip_len": 2, **TINY_SPIKES},
        "loss": {
            "perceptual": {
                "weight": 0.1,
                "network": "alexnet",
                "weights": str(folder / "alexnet.pth"),
                "layers": ["relu1"],
            }
        },
        "loader": {"workers": 0},
        "train": {"steps": 2, "recompute": "full"},
        "eval": {"tile": 24, "tile_overlap": 8},
        "checkpoint": {"every_steps": None},
    }


def span_paths(record: Path) -> set[str]:
    names: dict[int, tuple[str, int | None]] = {}
    for line in record.read_text().splitlines():
        entry = json.loads(line)
        if isinstance(entry, dict) and entry.get("kind") == "span":
            names[entry["id"]] = (entry["name"], entry["parent"])

    def path(number: int) -> str:
        name, parent = names[number]
        return f"{path(parent)}/{name}" if parent in names else name

    return {path(number) for number in names}


@pytest.mark.slow
def test_a_run_with_spikes_names_all_of_its_parts_both_ways(tmp_path: Path) -> None:
    make_clips(tmp_path / "clips", clips={"train": 1, "test": 1}, frames=2, size=(32, 48), seed=0)
    torch.save(Features("alexnet", ["relu1"]).state_dict(), tmp_path / "alexnet.pth")
    config = config_from(settings(tmp_path)).config
    task = build_deblur(config)
    TrainingRun(config=config, config_yaml=to_yaml(config), task=task).run()
    found = span_paths(tmp_path / "run" / "rank-0.jsonl")
    parts = ["spynet", "spike_encoder", "temporal_attention"]
    parts += [f"stage{number}" for number in range(1, 9)]
    parts += [f"fusion{number}" for number in range(1, 5)]
    parts += [f"stage{number}/stage{number}.alignment" for number in range(1, 8)]
    for way in ("forward", "backward"):
        assert {f"{way}/{part}" for part in parts} <= found
    for way in ("loss", "backward"):
        assert {f"{way}/pixel_loss", f"{way}/perceptual_loss"} <= found
