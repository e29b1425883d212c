"""What `pitstop plan` predicts, against what a GPU then shows.

    python benchmarks/plan_accuracy.py predict [--trial 3] --output PREDICTED.json
    python benchmarks/plan_accuracy.py run --predicted PREDICTED.json --output MEASURED.json

`predict` needs no GPU: it writes peak memory, verdict and step time of each case, and is committed
before the run. `run`, later and elsewhere, trains a few steps of each on blank batches in one
process. A case is run first with the whole GPU, for its peak and its step time; where torch then
reserved more than the case's cap, it is run again under it
(`torch.cuda.set_per_process_memory_fraction`), for the verdict. Every case is written as it ends,
those in the output file are not run again, and none is begun after `--seconds`. Branches are not
dropped at random, so that every step does the same. As in the engine's loop the garbage collector
is kept from what lives long; the first trial did not do so, and from the third on what kernels left
when they were compiled is kept from it, too. Beside each step its row has what could
make steps longer: collections, processor time, memory that torch reserves, the GPU's clock.

A case that others name as their neighbour goes on after its timed blocks: the driver is asked how
busy the GPU is, as the record of a run has it, and the kernels of one more step are added up.
`run --smoke` tries the runner on a CPU with the demo of each workload. `plan_errors.py` holds both
files against each other.
"""

import argparse
import gc
import hashlib
import json
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from pitstop.config.load import load_config
from pitstop.config.sections import RunConfig
from pitstop.measure.host.garbage import freeze_long_lived, long_lived_frozen
from pitstop.measure.host.nvml import Nvml
from pitstop.plan.calibration import steady_share
from pitstop.plan.dry_run.configured import without_files
from pitstop.plan.dry_run.request import Request, trace_in_child
from pitstop.plan.gpus import find_gpu
from pitstop.plan.memory import CONTEXT_BYTES, Gpu, plan_memory
from pitstop.plan.speed import plan_speed
from pitstop.records.plans.plan import StepTrace
from pitstop.records.store import from_json, write_json
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.workloads.catalogue import build_task
from pitstop_probe import Clock
from progress import say, write
from step_runs import Kept

CONFIGS = Path(__file__).parents[1] / "configs"
GIB = 2**30
WARM_UP, BLOCKS, STEPS_OF_A_BLOCK = 2, 2, 3
GPU = "H200"
WATCHED_S, DRIVER_LOOKS_BACK_S, BETWEEN_READINGS_S = 2.5, 1.0, 0.25
STEPS_AHEAD = 2

ALONE = ("train.accumulate=1", "model.drop_path=0")
VRT = (*ALONE, "model.kind=vrt", "loss.perceptual=null")
BEV = ("data.root=null",)
REID = ("data.root=null", "data.tokenizer=null", "model.weights=null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration under one cap."""

    name: str
    config: str
    overrides: tuple[str, ...]
    cap_gib: float
    neighbour: str | None = None
    """The case that calibrates this one: same model and samples, other settings of training."""
    measured_before: bool = False
    """Whether constants were fitted to it: then it is run as a neighbour, and is no prediction."""
    collects_all: bool = False
    """Whether the garbage collector goes through what lives long as well, as in the first trial."""


CASES = (
    Case(name="mono 4 fp32", config="bev/mono_baseline.yaml", overrides=BEV, cap_gib=24),
    Case(
        name="mono 16 fp32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=16"),
        cap_gib=24,
        neighbour="mono 4 fp32",
    ),
    Case(name="reid 32 fp32", config="reid/baseline.yaml", overrides=REID, cap_gib=40),
    Case(
        name="reid 64 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=64"),
        cap_gib=40,
    ),
    Case(
        name="reid 128 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=128"),
        cap_gib=24,
        neighbour="reid 64 bf16 fused",
    ),
    Case(
        name="reid 128 bf16 fused recomputed",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=128", "train.recompute=full"),
        cap_gib=24,
        neighbour="reid 64 bf16 fused",
    ),
    Case(
        name="vrt 256 bf16 reference",
        config="deblur/opt.yaml",
        overrides=(*VRT, "train.recompute=none", "model.kernels=reference"),
        cap_gib=139,
    ),
    Case(name="mono 8 bf16 fused", config="bev/mono_balanced.yaml", overrides=BEV, cap_gib=24),
    Case(
        name="mono 32 bf16 fused",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=32"),
        cap_gib=40,
        neighbour="mono 8 bf16 fused",
    ),
    Case(
        name="vrt 256 bf16 fused",
        config="deblur/opt.yaml",
        overrides=(*VRT, "train.recompute=none"),
        cap_gib=24,
        neighbour="vrt 256 bf16 fused recomputed",
    ),
    Case(
        name="vrt 256 bf16 fused recomputed",
        config="deblur/opt.yaml",
        overrides=VRT,
        cap_gib=24,
    ),
    Case(name="deblur opt", config="deblur/opt.yaml", overrides=ALONE, cap_gib=24),
)
"""In the order of the run: what is short and of another kind first."""

FUSED_VRT = "vrt 256 bf16 fused recomputed"
SECOND_CASES = (
    Case(
        name="reid 48 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=48"),
        cap_gib=24,
    ),
    Case(
        name="reid 96 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=96"),
        cap_gib=24,
        neighbour="reid 48 bf16 fused",
    ),
    Case(
        name="reid 96 bf16 fused attention recomputed",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=96", "train.recompute=attention"),
        cap_gib=40,
        neighbour="reid 48 bf16 fused",
    ),
    Case(
        name="mono 6 tf32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=6", "train.precision=tf32"),
        cap_gib=16,
    ),
    Case(
        name="mono 20 tf32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=20", "train.precision=tf32"),
        cap_gib=24,
        neighbour="mono 6 tf32",
    ),
    Case(
        name=FUSED_VRT,
        config="deblur/opt.yaml",
        overrides=VRT,
        cap_gib=24,
        measured_before=True,
    ),
    Case(
        name="vrt 256 2 bf16 fused recomputed",
        config="deblur/opt.yaml",
        overrides=(*VRT, "train.batch_size=2"),
        cap_gib=16,
        neighbour=FUSED_VRT,
    ),
    Case(
        name="vrt 256 bf16 fused attention recomputed",
        config="deblur/opt.yaml",
        overrides=(*VRT, "train.recompute=attention"),
        cap_gib=32,
        neighbour=FUSED_VRT,
    ),
    Case(
        name="vrt 256 bf16 fused",
        config="deblur/opt.yaml",
        overrides=(*VRT, "train.recompute=none"),
        cap_gib=40,
        neighbour=FUSED_VRT,
        measured_before=True,
    ),
    Case(
        name="vrt 256 bf16 fused recomputed, all collected",
        config="deblur/opt.yaml",
        overrides=VRT,
        cap_gib=24,
        measured_before=True,
        collects_all=True,
    ),
    Case(
        name="mono 12 bf16 fused",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=12"),
        cap_gib=24,
    ),
    Case(
        name="mono 24 bf16 fused recomputed",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=24", "train.recompute=full"),
        cap_gib=40,
        neighbour="mono 12 bf16 fused",
    ),
    Case(
        name="reid 24 tf32",
        config="reid/baseline.yaml",
        overrides=(*REID, "train.batch_size=24", "train.precision=tf32"),
        cap_gib=24,
    ),
    Case(
        name="reid 24 tf32 recomputed",
        config="reid/baseline.yaml",
        overrides=(
            *REID,
            "train.batch_size=24",
            "train.precision=tf32",
            "train.recompute=full",
        ),
        cap_gib=24,
        neighbour="reid 24 tf32",
    ),
    Case(
        name="vrt 192 fp16 reference recomputed",
        config="deblur/opt.yaml",
        overrides=(*VRT, "data.crop=192", "model.kernels=reference", "train.precision=fp16"),
        cap_gib=24,
    ),
    Case(
        name="vrt 192 2 fp16 reference recomputed",
        config="deblur/opt.yaml",
        overrides=(
            *VRT,
            "data.crop=192",
            "model.kernels=reference",
            "train.precision=fp16",
            "train.batch_size=2",
        ),
        cap_gib=16,
        neighbour="vrt 192 fp16 reference recomputed",
    ),
)
"""What had not been measured before, each after its neighbour; what says most first."""

TF32_VRT = (
    *VRT,
    "data.crop=128",
    "model.kernels=reference",
    "train.precision=tf32",
)
SMALLER_VRT = (*VRT, "data.crop=192")
WHOLE_GPU = 139
THIRD_CASES = (
    Case(
        name="reid 40 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=40"),
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="reid 80 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=80"),
        cap_gib=WHOLE_GPU,
        neighbour="reid 40 bf16 fused",
    ),
    Case(
        name="reid 80 bf16 fused recomputed",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=80", "train.recompute=full"),
        cap_gib=WHOLE_GPU,
        neighbour="reid 40 bf16 fused",
    ),
    Case(
        name="mono 10 fp32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=10"),
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="mono 24 fp32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=24"),
        cap_gib=WHOLE_GPU,
        neighbour="mono 10 fp32",
    ),
    Case(
        name="vrt 128 tf32 recomputed",
        config="deblur/opt.yaml",
        overrides=TF32_VRT,
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="vrt 128 2 tf32 recomputed",
        config="deblur/opt.yaml",
        overrides=(*TF32_VRT, "train.batch_size=2"),
        cap_gib=WHOLE_GPU,
        neighbour="vrt 128 tf32 recomputed",
    ),
    Case(
        name="vrt 128 tf32",
        config="deblur/opt.yaml",
        overrides=(*TF32_VRT, "train.recompute=none"),
        cap_gib=WHOLE_GPU,
        neighbour="vrt 128 tf32 recomputed",
    ),
    Case(
        name="mono 16 bf16 fused",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=16"),
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="mono 28 bf16 fused",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=28"),
        cap_gib=WHOLE_GPU,
        neighbour="mono 16 bf16 fused",
    ),
    Case(
        name="mono 28 bf16 fused recomputed",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=28", "train.recompute=full"),
        cap_gib=WHOLE_GPU,
        neighbour="mono 16 bf16 fused",
    ),
    Case(
        name="mono 10 fp32 recomputed",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=10", "train.recompute=full"),
        cap_gib=WHOLE_GPU,
        neighbour="mono 10 fp32",
    ),
    Case(
        name="vrt 192 bf16 fused",
        config="deblur/opt.yaml",
        overrides=(*SMALLER_VRT, "train.recompute=none"),
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="vrt 192 2 bf16 fused",
        config="deblur/opt.yaml",
        overrides=(*SMALLER_VRT, "train.recompute=none", "train.batch_size=2"),
        cap_gib=WHOLE_GPU,
        neighbour="vrt 192 bf16 fused",
    ),
    Case(
        name="vrt 192 bf16 fused recomputed",
        config="deblur/opt.yaml",
        overrides=SMALLER_VRT,
        cap_gib=WHOLE_GPU,
        neighbour="vrt 192 bf16 fused",
    ),
)
"""Steps by a neighbour, once more: five that are measured and ten planned from them. Last what
compiles its kernels for a minute. No caps: this trial is of times."""
FOURTH_CASES = (
    Case(
        name="reid 56 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=56"),
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="reid 112 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=112"),
        cap_gib=WHOLE_GPU,
        neighbour="reid 56 bf16 fused",
    ),
    Case(
        name="reid 72 bf16 fused attention recomputed",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=72", "train.recompute=attention"),
        cap_gib=WHOLE_GPU,
        neighbour="reid 56 bf16 fused",
    ),
    Case(
        name="mono 14 tf32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=14", "train.precision=tf32"),
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="mono 26 tf32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=26", "train.precision=tf32"),
        cap_gib=WHOLE_GPU,
        neighbour="mono 14 tf32",
    ),
    Case(
        name="vrt 128 bf16 fused",
        config="deblur/opt.yaml",
        overrides=(*VRT, "data.crop=128", "train.recompute=none"),
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="vrt 128 3 bf16 fused",
        config="deblur/opt.yaml",
        overrides=(*VRT, "data.crop=128", "train.recompute=none", "train.batch_size=3"),
        cap_gib=WHOLE_GPU,
        neighbour="vrt 128 bf16 fused",
    ),
    Case(
        name="vrt 128 4 bf16 fused attention recomputed",
        config="deblur/opt.yaml",
        overrides=(*VRT, "data.crop=128", "train.recompute=attention", "train.batch_size=4"),
        cap_gib=WHOLE_GPU,
        neighbour="vrt 128 bf16 fused",
    ),
    Case(
        name="vrt 192 tf32 recomputed",
        config="deblur/opt.yaml",
        overrides=(*TF32_VRT, "data.crop=192"),
        cap_gib=WHOLE_GPU,
    ),
    Case(
        name="vrt 192 2 tf32 recomputed",
        config="deblur/opt.yaml",
        overrides=(*TF32_VRT, "data.crop=192", "train.batch_size=2"),
        cap_gib=WHOLE_GPU,
        neighbour="vrt 192 tf32 recomputed",
    ),
)
"""Neighbours for the last time, half of them of VRT: four that are measured and six planned."""
LARGER_VRT = (*VRT, "data.crop=320")
FIFTH_CASES = (
    Case(
        name="reid 36 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=36"),
        cap_gib=24,
    ),
    Case(
        name="reid 104 bf16 fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=104"),
        cap_gib=24,
        neighbour="reid 36 bf16 fused",
    ),
    Case(
        name="reid 104 bf16 fused recomputed",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=104", "train.recompute=full"),
        cap_gib=24,
        neighbour="reid 36 bf16 fused",
    ),
    Case(
        name="mono 7 tf32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=7", "train.precision=tf32"),
        cap_gib=24,
    ),
    Case(
        name="mono 18 tf32",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=18", "train.precision=tf32"),
        cap_gib=24,
        neighbour="mono 7 tf32",
    ),
    Case(
        name="mono 18 bf16 fused",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=18"),
        cap_gib=24,
    ),
    Case(
        name="mono 36 bf16 fused",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=36"),
        cap_gib=32,
        neighbour="mono 18 bf16 fused",
    ),
    Case(
        name="deblur fast",
        config="deblur/fast.yaml",
        overrides=ALONE,
        cap_gib=24,
    ),
    Case(
        name="vrt 320 bf16 fused recomputed",
        config="deblur/opt.yaml",
        overrides=LARGER_VRT,
        cap_gib=24,
    ),
    Case(
        name="vrt 320 bf16 fused",
        config="deblur/opt.yaml",
        overrides=(*LARGER_VRT, "train.recompute=none"),
        cap_gib=40,
        neighbour="vrt 320 bf16 fused recomputed",
    ),
    Case(
        name="vrt 320 2 bf16 fused recomputed",
        config="deblur/opt.yaml",
        overrides=(*LARGER_VRT, "train.batch_size=2"),
        cap_gib=40,
        neighbour="vrt 320 bf16 fused recomputed",
    ),
    Case(
        name="vrt 192 fp32 recomputed",
        config="deblur/opt.yaml",
        overrides=(*SMALLER_VRT, "model.kernels=reference", "train.precision=fp32"),
        cap_gib=24,
    ),
)
"""All at once: memory under caps, of which several are too small, and steps by a neighbour."""
TRIALS = {1: CASES, 2: SECOND_CASES, 3: THIRD_CASES, 4: FOURTH_CASES, 5: FIFTH_CASES}
FOURTH_PROCEDURE = (
    "As in the third trial, but for two things. busy_share is steady_share() of "
    "pitstop.plan.calibration: the median of the driver's readings, null where they disagree or "
    "are fewer than three. And what is asked for is a mean absolute error of the neighbours of at "
    "most 15 %, as of peaks; how many are beyond 15 % each is stated beside it.",
)
FIFTH_PROCEDURE = (
    "As in the fourth trial. Beside it peaks count: a mean absolute error of at most 10 % blind "
    "and 5 % by a neighbour, none below by more than 3 %; verdicts, of caps that are not within "
    "5 % of the planned peak; and the order of all steps, Kendall's tau of at least 0.8.",
)
PROCEDURE = (
    "A case with a neighbour is planned from it by plan_errors.py: pace_factors() of "
    "pitstop.plan.calibration with the neighbour's step_ms as measured (mean of two blocks), its "
    "launch_ms and device_ms as planned here, and busy_share as the driver said it (median, null "
    "below three readings); the case's step is max(host * launch_ms, device * device_ms) + idle. "
    "Its error is that over the case's measured step_ms, - 1. At most 15 % is wanted of each.",
    "A run made by pitstop train (reid/fast.yaml, bf16, batch 40, nothing compiled, generated "
    "people) calibrates `pitstop plan` of the same settings at batch 80; speed.step_s of that plan "
    "is held against the median step of a second run at batch 80 as MeasuredRun reads it, "
    "peak_bytes against its peak_bytes.",
)
"""Of the third trial, fixed with its predictions."""


def main() -> None:
    """Predict or run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["predict", "run"])
    parser.add_argument("--trial", type=int, choices=TRIALS, default=1)
    parser.add_argument("--predicted", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--traces", type=Path, help="Folder of dry runs, used again if there.")
    parser.add_argument("--seconds", type=float, default=240, help="Begin no case after that.")
    parser.add_argument("--only", default="", help="Cases whose names match this pattern alone.")
    parser.add_argument("--smoke", action="store_true", help="Small models on a CPU.")
    options = parser.parse_args()
    if options.what == "predict":
        cases = TRIALS[options.trial]
        procedures = {3: PROCEDURE, 4: FOURTH_PROCEDURE, 5: FIFTH_PROCEDURE}
        how = {"procedure": procedures[options.trial]} if options.trial in procedures else {}
        write({"gpu": GPU, **how, "rows": predict(cases, options.traces)}, options.output)
    else:
        found = json.loads(options.predicted.read_text())["rows"]
        run_all([row for row in found if re.search(options.only, row["name"])], options)


def traces_of(cases: Sequence[Case], folder: Path | None) -> list[StepTrace]:
    """Dry runs of all cases, equal ones once; kept in a folder where one is named."""
    keys = [(str(CONFIGS / case.config), case.overrides) for case in cases]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    files = {
        key: folder / f"{hashlib.sha1(repr(key).encode()).hexdigest()[:12]}.json"
        for key in keys
        if folder is not None
    }
    missing = [key for key in dict.fromkeys(keys) if not files or not files[key].exists()]

    def trace(key: tuple[str, tuple[str, ...]]) -> StepTrace:
        made = trace_in_child(Request(config=key[0], overrides=key[1])).require()
        if files:
            write_json(made, files[key])
        say(f"dry run of {key[0]} {' '.join(key[1])}: {made.peak_bytes / GIB:.3f} GiB")
        return made

    with ThreadPoolExecutor(2) as pool:
        made = dict(zip(missing, pool.map(trace, missing), strict=True))
    return [made[key] if key in made else read(files[key]) for key in keys]


def read(path: Path) -> StepTrace:
    """Read a dry run back."""
    return from_json(path.read_text(), StepTrace)


def predict(cases: Sequence[Case], folder: Path | None) -> list[dict[str, Any]]:
    """Plan every case for the GPU and under its cap."""
    rows = []
    for case, trace in zip(cases, traces_of(cases, folder), strict=True):
        # A cap is on what torch holds; a GPU of that size would lose the context as well.
        gpu = Gpu(name=GPU, num_bytes=round(case.cap_gib * GIB) + CONTEXT_BYTES)
        plan = plan_memory(case.name, trace, gpu)
        speed = plan_speed(trace, find_gpu(GPU))
        rows.append(
            {
                **asdict(case),
                "peak_gib": plan.peak_bytes / GIB,
                "fixed_gib": trace.fixed_bytes / GIB,
                "reserved_gib": trace.reserved_bytes / GIB,
                "fit": plan.fit,
                "step_ms": speed.step_s * 1e3,
                "device_ms": speed.device_s * 1e3,
                "launch_ms": speed.launch_s * 1e3,
                "operations": speed.kernels,
                "owners_gib": {k: round(v / GIB, 4) for k, v in trace.owners.items()},
                "place": list(trace.peak_place),
                "operation": trace.peak_operation,
                "fused": list(trace.fused_operations),
            }
        )
        say(
            f"{case.name}: {rows[-1]['peak_gib']:.2f} GiB, {rows[-1]['step_ms']:.0f} ms, {plan.fit}"
        )
    return rows


def run_all(predicted: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Run what has not been run, and write each case as it ends."""
    began = time.perf_counter()
    report = started(options.output, device_facts())
    # What failed for another reason than memory is run again.
    kept = [row for row in report["rows"] if not row["outcome"].startswith("failed")]
    report["rows"] = kept
    bases = {row["neighbour"] for row in predicted}
    for row in predicted:
        if any(row["name"] == one["name"] for one in kept):
            continue
        if time.perf_counter() - began > options.seconds:
            say(f"{row['name']}: not begun, the time is over")
            continue
        case_began = time.perf_counter()
        is_base = row["name"] in bases
        seen = {"name": row["name"], **run_case(row, is_base=is_base, smoke=options.smoke)}
        seen["took_s"] = time.perf_counter() - case_began
        report["rows"].append(seen)
        write(report, options.output)
        say(json.dumps(seen))


def started(output: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Give what an earlier call wrote, or a report without rows."""
    if not output.exists():
        return {"what": "peak memory and step time, blank batches", **facts, "rows": []}
    report = json.loads(output.read_text())
    others = [key for key in ("hardware", "torch") if report[key] != facts[key]]
    if others:
        raise SystemExit(f"{output} is of another machine ({', '.join(others)}): name a new file")
    return report


def device_facts() -> dict[str, Any]:
    """Say what the cases run on."""
    facts: dict[str, Any] = {"hardware": "CPU", "torch": torch.__version__}
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        facts["hardware"] = torch.cuda.get_device_name()
        facts |= {"gpu_gib": total / GIB, "context_gib": context_gib()}
    return facts


def context_gib() -> float:
    """What a process takes before torch has any memory."""
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    return (total - free - torch.cuda.memory_reserved()) / GIB


def run_case(row: dict[str, Any], *, is_base: bool, smoke: bool) -> dict[str, Any]:
    """See what a case takes of the whole GPU, then whether it gets by with its cap."""
    seen = attempt(row, cap_gib=None, is_base=is_base, smoke=smoke)
    if seen["outcome"] != "ran" or seen["reserved_gib"] <= row["cap_gib"]:
        return seen
    capped = attempt(row, cap_gib=row["cap_gib"], is_base=False, smoke=smoke)
    return {**seen, "outcome": capped["outcome"], "under_cap": capped}


def built(row: dict[str, Any], *, smoke: bool) -> tuple[RunConfig, Any]:
    """Build a case's task; the demo of its workload in its place for a smoke test."""
    path, overrides = CONFIGS / row["config"], row["overrides"]
    if smoke:
        path, overrides = path.parent / "demo.yaml", ["data.root=null"]
    with ExitStack() as stack:
        config, _ = without_files(load_config(path, overrides).config, stack)
        return config, build_task(config)


def attempt(
    row: dict[str, Any], *, cap_gib: float | None, is_base: bool, smoke: bool
) -> dict[str, Any]:
    """Train a few steps; out of memory is a result."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    memory = GpuMemory() if device.type == "cuda" else NoGpu()
    memory.fresh(cap_gib)
    try:
        config, task = built(row, smoke=smoke)
        collects_all = row.get("collects_all", False)
        seen = measure(config, task, device, collects_all=collects_all, is_base=is_base)
        return {"outcome": "ran", **seen, **memory.peaks()}
    except torch.OutOfMemoryError as error:
        return {"outcome": "out of memory", "message": str(error).splitlines()[0][:160]}
    except Exception as error:  # noqa: BLE001 - whatever it was, the next case is to run
        return {"outcome": f"failed: {type(error).__name__}: {error}"[:300]}


class NoGpu:
    """Stands for the memory of a GPU in a smoke test: nothing of it is used."""

    def fresh(self, cap_gib: float | None) -> None:
        """Nothing is held."""

    def peaks(self) -> dict[str, Any]:
        """Nothing was held."""
        return {"peak_gib": 0.0, "reserved_gib": 0.0}


class GpuMemory:
    """torch's memory of a GPU, from one case to the next."""

    def __init__(self) -> None:
        self.held = 0

    def fresh(self, cap_gib: float | None) -> None:
        """Give everything back, forget peaks, and set a cap."""
        gc.collect()
        # Each case takes its own workspaces.
        torch._C._cuda_clearCublasWorkspaces()  # pyright: ignore[reportPrivateUsage]
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        share = 1.0 if cap_gib is None else min(1.0, cap_gib * GIB / total)
        torch.cuda.set_per_process_memory_fraction(share)
        torch.cuda.reset_peak_memory_stats()
        self.held = torch.cuda.memory_allocated()

    def peaks(self) -> dict[str, Any]:
        """What was held at most, above what was there before."""
        return {
            "peak_gib": (torch.cuda.max_memory_allocated() - self.held) / GIB,
            "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
            "held_before_gib": self.held / GIB,
            "alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries"),
        }


class EachStep:
    """What is seen of single steps, none of which is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.rows: list[dict[str, Any]] = []
        self._on_gpu = device.type == "cuda"
        self._collecting_s = self._collection_began_s = 0.0
        self._marks: list[torch.cuda.Event] = []

    @contextmanager
    def counting_collections(self) -> Iterator[None]:
        """Time the garbage collector inside this context."""
        gc.callbacks.append(self._collected)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._collection_began_s = now_s
        else:
            self._collecting_s += now_s - self._collection_began_s

    def begin_block(self) -> None:
        """Mark where a block begins, on an idle device."""
        self._marks = []
        self._mark()

    @contextmanager
    def step(self) -> Iterator[None]:
        """See one step."""
        began = time.perf_counter(), time.process_time(), self._collecting_s
        full_before = gc.get_stats()[2]["collections"]
        yield
        self._mark()
        row: dict[str, Any] = {
            "launched_ms": round((time.perf_counter() - began[0]) * 1e3, 2),
            "processor_ms": round((time.process_time() - began[1]) * 1e3, 2),
            "collecting_ms": round((self._collecting_s - began[2]) * 1e3, 2),
            "full_collections": gc.get_stats()[2]["collections"] - full_before,
        }
        if self._on_gpu:
            row["reserved_gib"] = round(torch.cuda.memory_reserved() / GIB, 3)
            row["allocated_gib"] = round(torch.cuda.memory_allocated() / GIB, 3)
        self.rows.append(row)

    def end_block(self) -> None:
        """Give the steps of a block their times on the device, which is idle now."""
        between = zip(self._marks, self._marks[1:], strict=False)
        lengths = [start.elapsed_time(end) for start, end in between]
        for row, length in zip(self.rows[len(self.rows) - len(lengths) :], lengths, strict=True):
            row["step_ms"] = round(length, 2)
        if self._on_gpu and lengths:
            self.rows[-1]["clock_mhz"] = clock_mhz()

    def _mark(self) -> None:
        if self._on_gpu:
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()


def clock_mhz() -> int | None:
    """Read the GPU's clock; None where NVIDIA's library is not there."""
    try:
        return torch.cuda.clock_rate()
    except (ImportError, RuntimeError):
        return None


class DriverReadings:
    """Asks the driver beside running steps how busy the GPU is."""

    def __init__(self) -> None:
        self._nvml, self.note = Nvml.open()
        self.shares: list[float] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask again and again inside this context; not at first, for the driver looks back."""
        ended = Event()
        thread = Thread(target=self._read, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _read(self, ended: Event) -> None:
        waiting_s = DRIVER_LOOKS_BACK_S
        while self._nvml is not None and not ended.wait(waiting_s):
            load = self._nvml.loads(())[torch.cuda.current_device()]
            if load.busy_share is not None:
                self.shares.append(load.busy_share)
            waiting_s = BETWEEN_READINGS_S


def watched(step: Callable[[], None], device: torch.device) -> dict[str, Any]:
    """Go on for some seconds, never more than two steps ahead, and say how busy the GPU was."""
    driver = DriverReadings()
    under_way: deque[torch.cuda.Event] = deque()
    settle(device)
    began, steps = time.perf_counter(), 0
    with driver.watching():
        while time.perf_counter() - began < WATCHED_S:
            step()
            steps += 1
            if device.type == "cuda":
                under_way.append(torch.cuda.Event())
                under_way[-1].record()
                if len(under_way) > STEPS_AHEAD:
                    under_way.popleft().synchronize()
    settle(device)
    taken_ms = (time.perf_counter() - began) * 1e3 / steps
    shares = driver.shares
    return {
        "watched_step_ms": taken_ms,
        "busy_shares": shares,
        "busy_share": steady_share(shares),
        "busy_note": driver.note,
        "kernels_ms": kernels_ms(step, device),
    }


def kernels_ms(step: Callable[[], None], device: torch.device) -> float | None:
    """Add up the kernels of one step; None without a GPU."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    settle(device)
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        step()
        settle(device)
    on_device = (
        event
        for event in trace.events() or []
        if "cuda" in str(event.device_type).lower()
        and not getattr(event, "is_user_annotation", False)
    )
    return sum(event.device_time for event in on_device) / 1e3


def measure(
    config: RunConfig,
    task: Any,
    device: torch.device,
    *,
    collects_all: bool,
    is_base: bool,
) -> dict[str, Any]:
    """Warm up, then time blocks of steps, from an idle device to an idle device."""
    trainer = build_trainer(config, task, Ranks(), device).trainer
    batches = repeat(task.blank_batch(config.train.batch_size))
    clock = Clock(Kept())
    each = EachStep(device)

    def one_step() -> None:
        clock.begin_step()
        trainer.train_step(batches, step=len(each.rows), clock=clock)

    def block_ms(steps: int) -> float:
        settle(device)
        each.begin_block()
        began = time.perf_counter()
        for _ in range(steps):
            with each.step():
                one_step()
        settle(device)
        taken_ms = (time.perf_counter() - began) * 1e3 / steps
        each.end_block()
        return taken_ms

    # Where the engine does it: when everything is built, and before the first kernel is compiled.
    long_lived = nullcontext() if collects_all else long_lived_frozen()
    with long_lived, each.counting_collections():
        first_ms = [block_ms(1) for _ in range(WARM_UP)]
        if not collects_all:
            freeze_long_lived()  # what kernels left when they were compiled
        blocks = [block_ms(STEPS_OF_A_BLOCK) for _ in range(BLOCKS)]
        seen = watched(one_step, device) if is_base else {}
    clock.end_step()
    return {
        **seen,
        "step_ms": statistics.mean(blocks),
        "blocks_ms": blocks,
        "first_ms": first_ms,
        "steps": each.rows,
    }


def settle(device: torch.device) -> None:
    """Wait until the device has nothing to do."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
