"""Does the spike branch help: a narrow VRT trained with and without it on generated clips.

    python benchmarks/deblur_quality.py --output FILE.json [--steps 350] [--jobs 4]

Clips with the spikes of a spike camera are generated first. Both networks have the same width
(`narrow`: 32 channels, two blocks a stage, windows of 4 x 4), see the same clips in the same order
and take the same number of steps. Three seeds each; seed and step order are the run's own. So small
a network leaves the GPU idle most of the time, waiting for the host, so several runs may share it:
`--jobs`, each a process of its own. What is written down is the PSNR of restored test frames over
that of the blurred ones, for every seed, the seconds each run took and the whole configuration.
Results are written after every run. `--smoke` does it all on a CPU in a minute or two, where the
numbers mean nothing.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.synthetic import make_clips
from progress import say, write
from quality_runs import Row, data_folder, run_beside, settings_of, trained

SEEDS = (0, 1, 2)
KINDS = ("vrt_spike", "vrt")
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
    steps: int


FULL = Size(
    train_clips=12,
    test_clips=2,
    frames=12,
    height=256,
    width=384,
    crop=64,
    batch_size=16,
    clip_len=2,
    workers=1,
    lr=6e-4,
    steps=350,
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
    steps=4,
)


def configuration(size: Size, root: Path, changes: list[str], *, kind: str, seed: int) -> RunConfig:
    """Make the configuration of one run."""
    steps = size.steps
    data: dict[str, Any] = {"root": str(root / "clips"), "crop": size.crop}
    data |= {"clip_len": size.clip_len}
    model: dict[str, Any] = {"kind": kind, **NARROW}
    if kind == "vrt_spike":
        data |= {"spike_height": size.height // 2, "spike_width": size.width // 2}
        data |= {"voxel_bins": 28}
        model |= {"spike": {"channels": 32, "heads": 2}, "fusion": {"heads": 2}}
    settings = {
        "run": {"name": f"{kind}-{seed}", "work_dir": str(root / "runs"), "seed": seed},
        "data": data,
        "model": model,
        "loader": {"workers": size.workers} | ({"prefetch": 4} if size.workers else {}),
        "cache": {"budget": "1GiB"},
        "train": {
            "batch_size": size.batch_size,
            "steps": steps,
            "precision": "tf32" if torch.cuda.is_available() else "fp32",
            "clip": {"norm": 0.1},
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
    return config_from(settings, changes).config


def make_data(root: Path, size: Size) -> None:
    """Make clips, unless an earlier run has left them."""
    if not (root / "clips").exists():
        make_clips(
            root / "clips",
            clips={"train": size.train_clips, "test": size.test_clips},
            frames=size.frames,
            size=(size.height, size.width),
            seed=0,
        )
        say("clips made")


def run(size: Size, root: Path, changes: list[str], kind: str, seed: int) -> Row:
    """Train one network to the end; give what its last weights restore."""
    config = configuration(size, root, changes, kind=kind, seed=seed)
    row = trained(config, build_task(config))
    return {"seed": seed, "kind": kind, "gain_db": row["psnr"] - row["psnr_input"], **row}


def gains(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum up each kind over its seeds."""
    found = {}
    for kind in KINDS:
        own = [row["gain_db"] for row in rows if row["kind"] == kind]
        if own:
            found[kind] = {
                "gain_db_mean": statistics.mean(own),
                "gain_db_low": min(own),
                "gain_db_high": max(own),
                "seeds": len(own),
            }
    return found


def measure(options: argparse.Namespace, root: Path) -> None:
    """Make clips where there are none yet, then train all networks."""
    wanted = {name: getattr(options, name) for name in ("lr", "batch_size", "steps")}
    given = {name: value for name, value in wanted.items() if value is not None}
    size = replace(SMOKE if options.smoke else FULL, **given)
    make_data(root, size)
    report: dict[str, Any] = {
        "what": "PSNR of restored over blurred test frames, narrow VRT, generated clips",
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "clips": asdict(size),
        "runs_at_the_same_time": options.jobs,
        "configuration": {
            kind: settings_of(configuration(size, root, options.set, kind=kind, seed=0), root)
            for kind in options.kinds
        },
        "rows": [],
    }
    calls = [
        (size, root, options.set, kind, seed) for seed in options.seeds for kind in options.kinds
    ]
    for row in run_beside(run, calls, options.jobs):
        report["rows"].append(row)
        report["summary"] = gains(report["rows"])
        write(report, options.output)
    print(json.dumps(report["summary"], indent=2))


def main() -> None:
    """Train all networks and write down what they restored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--data", type=Path, help="Folder to keep clips and runs in.")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--steps", type=int, help="Of each run.")
    parser.add_argument("--jobs", type=int, default=1, help="Runs at the same time.")
    parser.add_argument("--lr", type=float, help="Peak learning rate.")
    parser.add_argument("--batch-size", type=int, help="Clips in a batch.")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="Other settings.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    with data_folder(options.data) as root:
        measure(options, root)


if __name__ == "__main__":
    main()
