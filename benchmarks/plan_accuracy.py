"""What `pitstop plan` predicts, against what a GPU then shows.

    python benchmarks/plan_accuracy.py predict --output PREDICTED.json
    python benchmarks/plan_accuracy.py run --predicted PREDICTED.json --output FILE.json

`predict` needs no GPU: it writes peak memory, verdict and step time of each case. `run`, later and
elsewhere, trains a few steps of each on blank batches under the case's memory cap
(`torch.cuda.set_per_process_memory_fraction`), in one process, and writes both side by side. The
file of predictions is committed before the run. Branches are not dropped at random, so that every
step does the same.
"""

import argparse
import gc
import hashlib
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from pitstop.config.load import load_config
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
WARM_UP, TIMED = 2, 4
GPU = "H200"

DEBLUR = (
    "model.kind=vrt",
    "model.drop_path=0",
    "loss.perceptual=null",
    "train.accumulate=1",
)
BEV = ("data.root=null",)
REID = ("data.root=null", "data.tokenizer=null", "model.weights=null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration under one cap."""

    name: str
    config: str
    overrides: tuple[str, ...]
    cap_gib: float = 130.0


def deblur(name: str, *overrides: str, cap_gib: float = 130.0) -> Case:
    """VRT 006 on six frames."""
    return Case(
        name=name, config="deblur/opt.yaml", overrides=(*DEBLUR, *overrides), cap_gib=cap_gib
    )


CASES = (
    deblur("vrt 256, bf16, recomputed"),
    deblur("vrt 256, bf16, recomputed, reference kernels", "model.kernels=reference"),
    deblur("vrt 256, bf16", "train.recompute=none"),
    deblur("vrt 256, bf16, 40 GiB", "train.recompute=none", cap_gib=40),
    deblur("vrt 128, bf16", "train.recompute=none", "data.crop=128"),
    deblur(
        "vrt 128, fp32, recomputed, reference kernels",
        "data.crop=128",
        "train.precision=fp32",
        "model.kernels=reference",
    ),
    Case(name="mono batch 4, fp32", config="bev/mono_baseline.yaml", overrides=BEV),
    Case(
        name="mono batch 16, fp32, 24 GiB",
        config="bev/mono_baseline.yaml",
        overrides=(*BEV, "train.batch_size=16"),
        cap_gib=24,
    ),
    Case(name="mono batch 8, bf16, fused", config="bev/mono_balanced.yaml", overrides=BEV),
    Case(
        name="mono batch 32, bf16, fused",
        config="bev/mono_balanced.yaml",
        overrides=(*BEV, "train.batch_size=32"),
    ),
    Case(name="reid batch 32, fp32", config="reid/baseline.yaml", overrides=REID),
    Case(
        name="reid batch 64, bf16, fused",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=64"),
    ),
    Case(
        name="reid batch 128, bf16, fused, 24 GiB",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=128"),
        cap_gib=24,
    ),
    Case(
        name="reid batch 128, bf16, fused, recomputed",
        config="reid/fast.yaml",
        overrides=(*REID, "train.batch_size=128", "train.recompute=full"),
    ),
)


def main() -> None:
    """Predict, or run and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["predict", "run"])
    parser.add_argument("--predicted", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--traces", type=Path, help="Folder of dry runs, used again if there.")
    parser.add_argument("--limit-s", type=float, default=140)
    options = parser.parse_args()
    if options.what == "predict":
        write({"gpu": GPU, "rows": predict(options.traces)}, options.output)
    else:
        run_all(json.loads(options.predicted.read_text()), options)


def traces_of(folder: Path | None) -> list[StepTrace]:
    """Dry runs of all cases, equal ones once; kept in a folder where one is named."""
    keys = [(str(CONFIGS / case.config), case.overrides) for case in CASES]
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


def predict(folder: Path | None) -> list[dict[str, Any]]:
    """Plan every case for the GPU and under its cap."""
    rows = []
    for case, trace in zip(CASES, traces_of(folder), strict=True):
        # A cap is on what torch holds; a GPU of that size would lose the context as well.
        gpu = Gpu(name=GPU, num_bytes=round(case.cap_gib * GIB) + CONTEXT_BYTES)
        plan = plan_memory(case.name, trace, gpu)
        speed = plan_speed(trace, find_gpu(GPU))
        rows.append(
            {
                **asdict(case),
                "peak_gib": plan.peak_bytes / GIB,
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


def run_all(predicted: dict[str, Any], options: argparse.Namespace) -> None:
    """Run every case, and write what was seen beside what was said."""
    began = time.perf_counter()
    total = torch.cuda.get_device_properties(0).total_memory
    report: dict[str, Any] = {
        "what": "peak memory and step time, predicted beforehand and measured; blank batches",
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "gpu_gib": total / GIB,
        "context_gib": context_gib(),
        "rows": [],
    }
    for row in predicted["rows"]:
        if time.perf_counter() - began > options.limit_s:
            row["outcome"] = "not run: out of time"
        else:
            torch.cuda.set_per_process_memory_fraction(min(1.0, row["cap_gib"] * GIB / total))
            row.update(run_case(row))
        report["rows"].append(row)
        say(json.dumps({k: v for k, v in row.items() if k not in {"overrides", "owners_gib"}}))
        report["took_s"] = time.perf_counter() - began
        write(report, options.output)


def context_gib() -> float:
    """What a process takes before torch has any memory."""
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    return (total - free - torch.cuda.memory_reserved()) / GIB


def run_case(row: dict[str, Any]) -> dict[str, Any]:
    """Train a few steps; out of memory is a result."""
    fresh()
    loaded = load_config(CONFIGS / row["config"], row["overrides"]).config
    with ExitStack() as stack:
        config, _ = without_files(loaded, stack)
        task = build_task(config)
    try:
        return measure(config, task)
    except torch.OutOfMemoryError as error:
        return {"outcome": "out of memory", "message": str(error).splitlines()[0][:160]}
    except Exception as error:  # noqa: BLE001 - whatever it was, the next case is to run
        return {"outcome": f"failed: {type(error).__name__}: {error}"[:300]}
    finally:
        fresh()


def fresh() -> None:
    """Give everything back, and forget peaks."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure(config: Any, task: Any) -> dict[str, Any]:
    """Warm up, then time steps from an idle device to an idle device."""
    device = torch.device("cuda", 0)
    held = torch.cuda.memory_allocated()
    trainer = build_trainer(config, task, Ranks(), device).trainer
    batches = repeat(task.blank_batch(config.train.batch_size))
    clock = Clock(Kept())

    def step(number: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        clock.begin_step()
        trainer.train_step(batches, step=number, clock=clock)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3

    first_ms = [step(number) for number in range(WARM_UP)]
    times = [step(number) for number in range(WARM_UP, WARM_UP + TIMED)]
    clock.end_step()
    stats = torch.cuda.memory_stats()
    return {
        "outcome": "ran",
        "measured_step_ms": statistics.median(times),
        "measured_step_ms_range": [min(times), max(times)],
        "first_step_ms": first_ms,
        "measured_peak_gib": (torch.cuda.max_memory_allocated() - held) / GIB,
        "measured_reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        "alloc_retries": stats.get("num_alloc_retries"),
    }


if __name__ == "__main__":
    main()
