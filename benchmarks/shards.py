"""A model divided between ranks against one that each has whole: how far apart they end.

    OMP_NUM_THREADS=1 python -m benchmarks.shards --ranks 2 --steps 50 [--training NAME ...]

Demo presets on generated data, gloo on a CPU. Two figures each: the difference of all weights as
one vector, as a share of its length, and the largest difference in a tensor, as a share of its
largest number. Weights that the loss does not depend on are left out of the second and shown apart.

In float64 both may be 1e-10. How far rounding alone leads is measured on DDP: with each weight
started one rounding away, which is as near as a second run can begin, and in float32 with small
buckets instead of its own, which adds ranks up in another order (from four ranks on; of two ranks
there is one order). Twice the larger is allowed where it is above 1e-10. What a rank holds is
measured, too, and held against what the division says.

The demo of bird's-eye view trains at 2e-3, where the full presets of that network have 2e-4 and
less. At its rate a batch of 1 makes 5e-10 of a rounding in 50 steps, whoever computes it, so it is
there a second time at 2e-4. `--bucket-mb` adds sizes of buckets to those that DDP is held against
itself with; `--only float32` leaves the other format out, and adds to what the file has.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.integration.ranks import exit_codes, launch
from tests.integration.shard_runs import Case, compare, idle_weights, run_cases

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "shards_epyc_cpu.json"
TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "deblur": ("deblur", ()),
    "bev": ("bev", ("train.batch_size=1",)),
    "bev at 2e-4": ("bev", ("train.batch_size=1", "optimizer.lr=2e-4")),
    "reid": ("reid", ()),
}
"""Workload and changes of its demo."""
SMALL_BUCKET_MB = 0.05
LIMIT_S = 3600.0


def make_data(workload: str, folder: Path) -> None:
    """Generate a small data set."""
    if workload == "deblur":
        from pitstop.workloads.deblur.synthetic import make_clips

        clips = {"train": 4, "test": 1}
        make_clips(folder, clips=clips, frames=6, size=(48, 64), seed=0, spikes=False)
    elif workload == "reid":
        from pitstop.workloads.reid.synthetic.make import make_reid

        make_reid(folder, people=32, images=12, size=(96, 48), seed=0)
    else:
        from pitstop.workloads.bev.synthetic.make import make_bev

        make_bev(folder, scenes=3, samples=4, size=(225, 400), seed=0)


def measure(training: str, ranks: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train a preset every way, in one launch, and compare the ends."""
    workload, extra = TRAININGS[training]
    steps = options.steps
    data = folder / "data"
    if not data.exists():
        make_data(workload, data)
    config = ROOT / "configs" / workload / "demo.yaml"
    common = (f"data.root={data}", "loader.workers=0", *extra)

    def case(shard: str, **options: Any) -> Case:
        overrides = (*common, f"train.shard={shard}")
        return Case(config=config, overrides=overrides, steps=steps, **options)

    cases = {
        "float64 whole": case("none", is_float64=True),
        "float64 divided": case("full", is_float64=True),
        "float64 nudged": case("none", is_float64=True, is_nudged=True),
        "float32 whole": case("none"),
        "float32 nudged": case("none", is_nudged=True),
        "float32 divided": case("full"),
    }
    if ranks > 2:
        cases["float32 small buckets"] = case("none", bucket_mb=SMALL_BUCKET_MB)
        for size in options.bucket_mb:
            cases[f"float32 buckets of {size:g} MB"] = case("none", bucket_mb=size)
    cases = {name: each for name, each in cases.items() if name.startswith(options.only)}
    began_s = time.monotonic()
    left = {name: each for name, each in cases.items() if not (folder / f"{name}.json").exists()}
    processes = launch(run_cases, left, folder, world_size=ranks, logs=folder / "logs")
    for process in processes:
        process.join(LIMIT_S)
    codes = exit_codes(processes)
    if codes != [0] * ranks:
        raise SystemExit((folder / "logs" / "stderr-0").read_text()[-3000:])
    divided = [name for name in cases if name.endswith("divided")]
    ends = {name: torch.load(folder / f"{name}.pt") for name in cases}
    return {
        "steps": steps,
        "ranks": ranks,
        **distances(ends),
        **json.loads((folder / f"{divided[-1]}.json").read_text()),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def distances(ends: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """Hold the ends of all runs side by side."""
    pairs = {name: name.partition(" ")[0] + " whole" for name in ends if "whole" not in name}
    # In float32 rounding hides which weights do nothing, so there all are compared.
    idle = idle_weights(ends["float64 whole"]) if "float64 whole" in ends else set[str]()
    found = {
        name: asdict(compare(ends[whole], ends[name], idle=idle)) for name, whole in pairs.items()
    }
    if "float64 divided" not in ends:
        return found
    return {
        **found,
        "idle": {
            name: {
                "largest": float(ends["float64 whole"][name].abs().max()),
                "float64 difference": float(
                    (ends["float64 whole"][name] - ends["float64 divided"][name]).abs().max()
                ),
            }
            for name in sorted(idle)
        },
        "float64 divided, idle weights too": asdict(
            compare(ends["float64 whole"], ends["float64 divided"])
        ),
    }


def main() -> None:
    """Measure what was asked for and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--training", choices=TRAININGS, action="append")
    parser.add_argument("--bucket-mb", type=float, action="append", default=[])
    parser.add_argument("--only", choices=["float32", "float64", "float"], default="float")
    parser.add_argument("--keep", type=Path, help="folder for the ends; those there stay")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for training in options.training or TRAININGS:
        with ExitStack() as stack:
            name = f"{training}-{options.ranks}-{options.steps}".replace(" ", "-")
            folder = options.keep and options.keep / name
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shards-")))
            folder.mkdir(parents=True, exist_ok=True)
            found = measure(training, options.ranks, folder, options)
        results = json.loads(options.out.read_text()) if options.out.exists() else {}
        results["hardware"] = f"{os.cpu_count()}-core AMD EPYC, gloo"
        results["torch"] = torch.__version__.partition("+")[0]
        results["python"] = platform.python_version()
        runs = results.setdefault("runs", {})
        name = f"{training}, {options.ranks} ranks"
        runs[name] = found if options.only == "float" else {**runs.get(name, {}), **found}
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(training, options.ranks, found, flush=True)


if __name__ == "__main__":
    main()
