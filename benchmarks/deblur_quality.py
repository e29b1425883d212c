"""Does the spike branch help: a narrow VRT trained with and without it on generated clips.

    python benchmarks/deblur_quality.py --output FILE.json [--run-s 120] [--limit-s 560]

Clips with the spikes of a spike camera are generated first. Both networks have the same width
(`narrow`: 32 channels, two blocks a stage, windows of 4 x 4), see the same clips in the same order
and take the same number of steps: as many as the slower one, with spikes, takes in its share of the
time, which a short run tells. Three seeds each; seed and step order are the run's own. What is
written down is the PSNR of restored test frames over that of the blurred ones, for every seed, and
the whole configuration. Results are written after every run. `--smoke` does it all on a CPU in a
minute or two, where the numbers mean nothing.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.records.store import read_run
from pitstop.train.checkpoint import find_newest_whole
from pitstop.train.run import TrainingRun
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.synthetic import make_clips

SEEDS = (0, 1, 2)
KINDS = ("vrt_spike", "vrt")
SHARE = 0.9
"""Of the time that is left: the rest is for clips, evaluations and starting up."""

NARROW: dict[str, Any] = {
    "depths": [2] * 8,
    "embed_dims": [32] * 8,
    "heads": 2,
    "window": [2, 4, 4],
    "indep_reconsts": [],
    "deformable_groups": 8,
    "drop_path": 0.0,
    "start": "identity",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large everything is."""

    train_clips: int
    test_clips: int
    frames: int
    height: int
    width: int
    crop: int
    batch_size: int
    clip_len: int
    workers: int
    lr: float
    calibration: int
    """Steps of the short run that tells how long a step takes."""


FULL = Size(
    train_clips=16,
    test_clips=3,
    frames=12,
    height=128,
    width=192,
    crop=64,
    batch_size=8,
    clip_len=2,
    workers=6,
    lr=1e-3,
    calibration=40,
)
SMOKE = Size(
    train_clips=1,
    test_clips=1,
    frames=3,
    height=32,
    width=48,
    crop=32,
    batch_size=1,
    clip_len=2,
    workers=0,
    lr=2e-3,
    calibration=4,
)


def configuration(
    size: Size, root: Path, *, kind: str, seed: int, steps: int, name: str
) -> RunConfig:
    """Make the configuration of one run."""
    data: dict[str, Any] = {"root": str(root / "clips"), "crop": size.crop}
    data |= {"clip_len": size.clip_len}
    model: dict[str, Any] = {"kind": kind, **NARROW}
    if kind == "vrt_spike":
        data |= {"spike_height": size.height // 2, "spike_width": size.width // 2}
        data |= {"voxel_bins": 28}
        model |= {"spike": {"channels": 32, "heads": 2}, "fusion": {"heads": 2}}
    settings = {
        "run": {"name": name, "work_dir": str(root / "runs"), "seed": seed},
        "data": data,
        "model": model,
        "loader": {"workers": size.workers} | ({"prefetch": 4} if size.workers else {}),
        "cache": {"budget": "1GiB"},
        "train": {
            "batch_size": size.batch_size,
            "steps": steps,
            "precision": "tf32" if torch.cuda.is_available() else "fp32",
        },
        "optimizer": {
            "lr": size.lr,
            "betas": [0.9, 0.99],
            "weight_decay": 1e-4,
            "lr_multipliers": {"spynet": 0.125},
        },
        "schedule": {"warmup_steps": min(50, steps // 10)},
        "checkpoint": {"every_steps": None},
        "log": {"every_steps": max(1, min(50, steps))},
    }
    return config_from(settings).config


def train(config: RunConfig) -> tuple[dict[str, float | None], float]:
    """Train to the end; give the metrics of the last weights, and the seconds it took."""
    began = time.perf_counter()
    TrainingRun(config=config, config_yaml=to_yaml(config), task=build_task(config)).run()
    saves = config.run.work_dir / config.run.name / "checkpoints"
    checkpoint, _ = find_newest_whole(saves)
    assert checkpoint is not None
    return dict(checkpoint.manifest.metrics), time.perf_counter() - began


def count_steps(size: Size, root: Path, run_s: float) -> int:
    """Find how many steps of the slower network fit, from a short run of it.

    Everything of that run but its steps, loading of kernels included, is taken as what every run
    takes beside them.
    """
    steps = size.calibration
    config = configuration(size, root, kind="vrt_spike", seed=99, steps=steps, name="calibration")
    _, took_s = train(config)
    table = read_run(config.run.work_dir / config.run.name).first.steps
    assert table is not None
    step_s = float(np.median(table.wall_us[len(table.wall_us) // 2 :])) / 1e6
    say(f"calibration: {steps} steps in {took_s:.1f} s, one takes {step_s * 1e3:.1f} ms")
    beside_s = max(took_s - steps * step_s, 0.0)
    return max(int((run_s - beside_s) / step_s), steps)


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def gains(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum up each kind over its seeds."""
    found = {}
    for kind in KINDS:
        own = [row["gain_db"] for row in rows if row["kind"] == kind and row["gain_db"] is not None]
        if own:
            found[kind] = {
                "gain_db_mean": statistics.mean(own),
                "gain_db_low": min(own),
                "gain_db_high": max(own),
                "seeds": len(own),
            }
    return found


def main() -> None:
    """Train all networks and write down what they restored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--run-s", type=float, default=120.0, help="Most seconds of one run.")
    parser.add_argument("--limit-s", type=float, default=560.0, help="For everything together.")
    parser.add_argument("--lr", type=float, help="Peak learning rate.")
    parser.add_argument("--batch-size", type=int, help="Clips in a batch.")
    parser.add_argument("--crop", type=int, help="Side of a training crop.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    if options.smoke:
        torch.set_num_threads(1)
    began = time.perf_counter()
    wanted = {"lr": options.lr, "batch_size": options.batch_size, "crop": options.crop}
    given = {name: value for name, value in wanted.items() if value is not None}
    size = replace(SMOKE if options.smoke else FULL, **given)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_clips(
            root / "clips",
            clips={"train": size.train_clips, "test": size.test_clips},
            frames=size.frames,
            size=(size.height, size.width),
            seed=0,
        )
        say(f"clips made after {time.perf_counter() - began:.1f} s")
        runs = [(seed, kind) for seed in SEEDS for kind in KINDS]
        # What the short run takes is not known yet; a tenth of the time is set aside for them.
        most_s = SHARE * (options.limit_s - (time.perf_counter() - began)) / (len(runs) + 0.5)
        steps = count_steps(size, root, min(options.run_s, most_s))
        steps = size.calibration if options.smoke else steps
        report: dict[str, Any] = {
            "what": "PSNR of restored over blurred test frames, narrow VRT, generated clips",
            "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "torch": torch.__version__,
            "steps": steps,
            "configuration": {},
            "rows": [],
        }
        longest_s = 0.0
        for seed, kind in runs:
            left_s = options.limit_s - (time.perf_counter() - began)
            if left_s < longest_s:
                report["rows"].append({"seed": seed, "kind": kind, "outcome": "left out: no time"})
                continue
            config = configuration(
                size, root, kind=kind, seed=seed, steps=steps, name=f"{kind}-{seed}"
            )
            report["configuration"][kind] = yaml.safe_load(to_yaml(config))
            metrics, took_s = train(config)
            longest_s = max(longest_s, took_s)
            row = {"seed": seed, "kind": kind, "outcome": "ran", "took_s": took_s, **metrics}
            after, before = metrics["psnr"], metrics["psnr_input"]
            row["gain_db"] = None if after is None or before is None else after - before
            report["rows"].append(row)
            report["summary"] = gains([row for row in report["rows"] if row["outcome"] == "ran"])
            say(json.dumps(row))
            if options.output:
                options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
