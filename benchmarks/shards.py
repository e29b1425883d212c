"""A model divided between ranks against one that each has whole: how far apart they end.

    OMP_NUM_THREADS=1 python -m benchmarks.shards --ranks 2 --steps 50

Demo presets on generated data, gloo on a CPU. Two figures each: the difference of all weights as
one vector, as a share of its length, and the largest difference in a tensor, as a share of its
largest number. Weights that the loss does not depend on are left out of the second and shown apart.

In float64 both may be 1e-10. How far rounding alone leads is measured on DDP: with each weight
started one rounding away, which is as near as a second run can begin, and in float32 with small
buckets instead of its own, which adds ranks up in another order (from four ranks on; of two ranks
there is one order). Twice the larger is allowed where it is above 1e-10. What a rank holds is
measured, too, and held against what the division says.
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
WORKLOADS = ("deblur", "bev", "reid")
EXTRA = {"bev": ("train.batch_size=1",), "deblur": (), "reid": ()}
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


def measure(workload: str, ranks: int, steps: int, folder: Path) -> dict[str, Any]:
    """Train a preset every way, in one launch, and compare the ends."""
    data = folder / "data"
    if not data.exists():
        make_data(workload, data)
    config = ROOT / "configs" / workload / "demo.yaml"
    common = (f"data.root={data}", "loader.workers=0", *EXTRA[workload])

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
    began_s = time.monotonic()
    left = {name: each for name, each in cases.items() if not (folder / f"{name}.json").exists()}
    processes = launch(run_cases, left, folder, world_size=ranks, logs=folder / "logs")
    for process in processes:
        process.join(LIMIT_S)
    codes = exit_codes(processes)
    if codes != [0] * ranks:
        raise SystemExit((folder / "logs" / "stderr-0").read_text()[-3000:])
    ends = {name: torch.load(folder / f"{name}.pt") for name in cases}
    return {
        "steps": steps,
        "ranks": ranks,
        **distances(ends),
        **json.loads((folder / "float32 divided.json").read_text()),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def distances(ends: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """Hold the ends of all runs side by side."""
    idle = idle_weights(ends["float64 whole"])
    pairs = {name: name.partition(" ")[0] + " whole" for name in ends if "whole" not in name}
    return {
        **{
            name: asdict(compare(ends[whole], ends[name], idle=idle))
            for name, whole in pairs.items()
        },
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
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--keep", type=Path, help="folder for the ends; those there stay")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for workload in options.workload or WORKLOADS:
        with ExitStack() as stack:
            folder = options.keep and options.keep / f"{workload}-{options.ranks}-{options.steps}"
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shards-")))
            folder.mkdir(parents=True, exist_ok=True)
            found = measure(workload, options.ranks, options.steps, folder)
        results = json.loads(options.out.read_text()) if options.out.exists() else {}
        results["hardware"] = f"{os.cpu_count()}-core AMD EPYC, gloo"
        results["torch"] = torch.__version__.partition("+")[0]
        results["python"] = platform.python_version()
        results.setdefault("runs", {})[f"{workload}, {options.ranks} ranks"] = found
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(workload, options.ranks, found, flush=True)


if __name__ == "__main__":
    main()
