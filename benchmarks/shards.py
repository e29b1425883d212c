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

A launch with one seed is one throw of the dice, and the same throw each time on one machine: ranks
that repeat it have equal bits. Two more questions are asked of several throws.

    ... --ask seeds --ranks 4 --seed 1 --seed 2      float32: sizes of buckets and the divided
                                                     model, each held against each
    ... --ask growth --training bev                  float64: how far a rounding has spread after
                                                     1, 5, 10, 20 and 50 steps

They are kept in files of their own, each beside the machine and its vector instructions
(ATEN_CPU_CAPABILITY=avx2 asks for older ones): other ones round otherwise, which is another throw.
"""

import argparse
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from pitstop.measure.machine.describe import read_cpu
from tests.integration.ranks import exit_codes, launch
from tests.integration.shard_runs import Case, compare, idle_weights, run_cases

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FILES = {
    "ends": RESULTS / "shards_epyc_cpu.json",
    "seeds": RESULTS / "shards_seeds_cpu.json",
    "growth": RESULTS / "shards_growth_cpu.json",
}
"""By what is asked."""
TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "deblur": ("deblur", ()),
    "bev": ("bev", ("train.batch_size=1",)),
    "bev at 2e-4": ("bev", ("train.batch_size=1", "optimizer.lr=2e-4")),
    "reid": ("reid", ()),
}
"""Workload and changes of its demo."""
SMALL_BUCKET_MB = 0.05
BUCKETS_MB = (0.05, 0.2, 1.0)
"""Of DDP beside its own, which is 25 and after a first one of 1."""
AFTER = (1, 5, 10, 20, 50)
NUDGES = 4
"""Numbers of the model that are moved by a rounding, one in each run."""
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
    case = case_maker(training, folder, options.steps)
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
    run(cases, ranks, folder)
    divided = [name for name in cases if name.endswith("divided")]
    ends = {name: torch.load(folder / f"{name}.pt") for name in cases}
    return {
        "steps": options.steps,
        "ranks": ranks,
        **distances(ends),
        **json.loads((folder / f"{divided[-1]}.json").read_text()),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def case_maker(training: str, folder: Path, steps: int) -> Callable[..., Case]:
    """Give what makes a case of this training on generated data."""
    workload, extra = TRAININGS[training]
    data = folder / "data"
    if not data.exists():
        make_data(workload, data)
    config = ROOT / "configs" / workload / "demo.yaml"
    common = (f"data.root={data}", "loader.workers=0", *extra)

    def case(shard: str, *changes: str, **options: Any) -> Case:
        overrides = (*common, *changes, f"train.shard={shard}")
        return Case(config=config, overrides=overrides, steps=steps, **options)

    return case


def run(cases: Mapping[str, Case], ranks: int, folder: Path) -> None:
    """Train every case that has no end in the folder yet, in one launch."""
    left = {name: each for name, each in cases.items() if not (folder / f"{name}.json").exists()}
    processes = launch(run_cases, left, folder, world_size=ranks, logs=folder / "logs")
    for process in processes:
        process.join(LIMIT_S)
    codes = exit_codes(processes)
    if codes != [0] * ranks:
        raise SystemExit((folder / "logs" / "stderr-0").read_text()[-3000:])


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


def measure_seed(
    training: str, seed: int, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Hold DDP with several sizes of buckets and the divided model side by side, in float32."""
    case = case_maker(training, folder, options.steps)
    seeded = f"run.seed={seed}"
    cases = {"divided": case("full", seeded), "own buckets": case("none", seeded)}
    cases |= {f"buckets of {mb:g} MB": case("none", seeded, bucket_mb=mb) for mb in BUCKETS_MB}
    run(cases, options.ranks, folder)
    ends = {name: torch.load(folder / f"{name}.pt") for name in cases}
    return {
        f"{one} | {other}": asdict(compare(ends[other], ends[one]))
        for one, other in combinations(cases, 2)
    }


def ratios_of_seeds(seeds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up what was found of each throw: DDP from itself, the divided model from DDP."""
    return {figure: _ratios(list(seeds.values()), figure) for figure in ("whole", "tensor")}


def _ratios(seeds: Sequence[Mapping[str, Any]], figure: str) -> dict[str, Any]:
    itself = [[v[figure] for k, v in pairs.items() if "divided" not in k] for pairs in seeds]
    divided = [[v[figure] for k, v in pairs.items() if "divided" in k] for pairs in seeds]
    rule = [
        pairs["divided | own buckets"][figure]
        / pairs[f"own buckets | buckets of {SMALL_BUCKET_MB:g} MB"][figure]
        for pairs in seeds
    ]
    all_itself, all_divided = list(chain(*itself)), list(chain(*divided))
    return {
        "DDP from itself": spread(all_itself),
        "divided from DDP": spread(all_divided),
        "ratio of all medians": median(all_divided) / median(all_itself),
        "ratio of a seed's medians": spread(list(map(_ratio, divided, itself))),
        "ratio of two single distances": spread(rule),
    }


def _ratio(divided: Sequence[float], itself: Sequence[float]) -> float:
    return median(divided) / median(itself)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Give the median, the least, the largest and how many there are."""
    return {"median": median(values), "low": min(values), "high": max(values), "n": len(values)}


def measure_growth(training: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """See how far a rounding at the start, or the division, has led after some steps."""
    make = case_maker(training, folder, options.steps)
    after = tuple(count for count in AFTER if count <= options.steps)
    case = partial(make, is_float64=True, read_after=after)
    cases = {"whole": case("none"), "divided": case("full"), "all": case("none", is_nudged=True)}
    cases |= {f"one {seed}": case("none", nudged_weight=seed) for seed in range(NUDGES)}
    run(cases, options.ranks, folder)
    idle = idle_weights(torch.load(folder / "whole.pt"))
    found: dict[str, Any] = {}
    for count in after:
        states = {name: torch.load(folder / f"{name} after {count}.pt") for name in cases}
        whole = states.pop("whole")
        found[str(count)] = {
            name: asdict(compare(whole, state, idle=idle)) for name, state in states.items()
        }
    return found


def hardware() -> str:
    """Name the processor, how many cores of it there are, and the instructions torch uses."""
    model = re.sub(r"\((R|TM)\)| [Pp]rocessor", "", read_cpu().model or "unknown")
    return f"{os.cpu_count()}-core {model}, {torch.backends.cpu.get_cpu_capability()}, gloo"


def main() -> None:
    """Measure what was asked for and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--training", choices=TRAININGS, action="append")
    parser.add_argument("--bucket-mb", type=float, action="append", default=[])
    parser.add_argument("--only", choices=["float32", "float64", "float"], default="float")
    parser.add_argument("--keep", type=Path, help="folder for the ends; those there stay")
    parser.add_argument("--ask", choices=FILES, default="ends")
    parser.add_argument("--seed", type=int, action="append", default=[], help="of --ask seeds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.out = options.out or FILES[options.ask]
    for training in options.training or TRAININGS:
        with ExitStack() as stack:
            name = f"{training}-{options.ranks}-{options.steps}".replace(" ", "-")
            folder = options.keep and options.keep / name
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shards-")))
            folder.mkdir(parents=True, exist_ok=True)
            found = ask(training, folder, options)
        print(training, options.ranks, found, flush=True)


def ask(training: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is asked of a training, and add it to the file."""
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["hardware"] = hardware()
    results["torch"] = torch.__version__.partition("+")[0]
    results["python"] = platform.python_version()
    runs = results.setdefault("runs", {})
    name = f"{training}, {options.ranks} ranks"
    before = runs.get(name, {})
    if options.ask == "seeds":
        seeds = before.get("seeds", {})
        for seed in options.seed:
            own = folder / str(seed)
            own.mkdir(exist_ok=True)
            throw = f"{seed}, {hardware()}"
            seeds[throw] = measure_seed(training, seed, own, options)
        runs[name] = {"steps": options.steps, "seeds": seeds, "ratios": ratios_of_seeds(seeds)}
    elif options.ask == "growth":
        runs[name] = {"steps": options.steps, "after": measure_growth(training, folder, options)}
    else:
        found = measure(training, options.ranks, folder, options)
        runs[name] = found if options.only == "float" else {**before, **found}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return runs[name]


if __name__ == "__main__":
    main()
