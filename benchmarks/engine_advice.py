"""The guides' advice, measured: what each switch of the engine does to VRT on one GPU.

    python benchmarks/engine_advice.py [--crop 128] [--output FILE.json]

The model is VRT 006 (18.3 M parameters) on random clips of six frames that lie on the device, so
nothing but the step is timed. Each row builds a fresh trainer, runs three steps to warm up and five
under the clock, and reports the median step on the device, samples a second, peak memory and the
bytes of the optimizer's state. Timed steps run under ``set_sync_debug_mode("error")``: a step that
waits for the device ends the benchmark (the 8-bit optimizers need one sync an update and say so).
"""

import argparse
import gc
import json
import statistics
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.errors import PitstopError
from pitstop.train.optim.build import optimizer_facts
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.train.step import Trainer, takes_flag
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop_probe import Clock, Step, cuda_timer
from progress import show
from step_runs import Kept

FRAMES = 6
WARM_UP, TIMED = 3, 5

BASE = {"model.kind": "vrt", "train.steps": 100, "train.precision": "bf16"}
ROWS: list[dict[str, Any]] = [
    {"train.recompute": "full"},
    {"train.recompute": "none"},
    {"train.recompute": "attention"},
    {"train.recompute": "ffn"},
    {"train.recompute": "selective"},
    {"train.recompute": "full", "train.batch_size": 2},
    {"train.recompute": "full", "train.batch_size": 3},
    {"train.recompute": "full", "train.batch_size": 4},
    {"train.recompute": "none", "train.batch_size": 2},
    {"train.recompute": "none", "train.batch_size": 4},
    {"train.recompute": "full", "optimizer.kind": "adamw_bf16"},
    {"train.recompute": "full", "optimizer.kind": "adamw8bit"},
    {"train.recompute": "full", "optimizer.fused": "off"},
    {"train.recompute": "full", "train.precision": "fp32"},
    {"train.recompute": "full", "train.precision": "tf32"},
    {"train.recompute": "full", "train.precision": "fp16"},
    {"train.recompute": "full", "train.channels_last": True},
]


def configuration(row: dict[str, Any]) -> RunConfig:
    """Make the configuration of a row."""
    settings = [f"{key}={json.dumps(value)}" for key, value in {**BASE, **row}.items()]
    return config_from({}, settings).config


def clips(batch_size: int, crop: int, device: torch.device) -> Iterator[ClipBatch]:
    """One random batch, again and again."""
    shape = (batch_size, FRAMES, 3, crop, crop)
    generator = torch.Generator(device).manual_seed(0)
    blur, sharp = (
        torch.randint(0, 256, shape, generator=generator, device=device, dtype=torch.uint8)
        for _ in range(2)
    )
    batch = ClipBatch(
        blur=blur,
        sharp=sharp,
        spikes=None,
        clip=torch.zeros(batch_size, dtype=torch.int64, device=device),
        fresh=torch.ones(batch_size, FRAMES, dtype=torch.bool, device=device),
    )
    while True:
        yield batch


def timed_steps(trainer: Trainer[ClipBatch], batches: Iterator[ClipBatch]) -> list[Step]:
    """Run steps and give those after warm-up; they may not wait for the device."""
    kept = Kept()
    clock = Clock(kept, cuda_timer())
    for number in range(WARM_UP + TIMED):
        if number == WARM_UP:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if takes_flag(trainer.optimizer) else "default")
        clock.begin_step()
        trainer.train_step(batches, step=number, clock=clock)
    clock.end_step()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    clock.close()
    return kept.steps[WARM_UP:]


def measure(row: dict[str, Any], crop: int) -> dict[str, Any]:
    """Measure one row; out of memory is a result."""
    device = torch.device("cuda", 0)
    torch.cuda.reset_peak_memory_stats()
    result: dict[str, Any] = {**row, "crop": crop}
    try:
        config = configuration(row)
        setup = build_trainer(config, build_task(config), Ranks(), device)
        batch_size = config.train.batch_size
        steps = timed_steps(setup.trainer, clips(batch_size, crop, device))
        facts = optimizer_facts(setup.trainer.optimizer)
    except torch.OutOfMemoryError:
        return {**result, "outcome": "out of memory"}
    except PitstopError as error:
        return {**result, "outcome": str(error)}
    walls_ms = [(step.device_wall_us or 0) / 1e3 for step in steps]
    middle_ms = statistics.median(walls_ms)
    return {
        **result,
        "outcome": "ran",
        "step_ms": middle_ms,
        "step_ms_low": min(walls_ms),
        "step_ms_high": max(walls_ms),
        "samples_per_s": batch_size / (middle_ms / 1e3),
        "peak_allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
        "optimizer_state_mib": (facts.state_bytes or 0) / 2**20,
        "optimizer": f"{facts.source}{', fused' if facts.fused else ''}",
        "waits_for_device": not facts.takes_found_inf,
    }


def main() -> None:
    """Measure all rows and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crop", type=int, default=128)
    parser.add_argument("--reference", action="store_true", help="Also one row at 256x256.")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Synchronization debug mode")
    rows = []
    cases = [(row, options.crop) for row in ROWS]
    if options.reference:
        cases.append(({"train.recompute": "full"}, 256))
    for row, crop in cases:
        rows.append(measure(row, crop))
        gc.collect()
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    report = {
        "what": "VRT 006, six frames, random clips on the device, median of five steps",
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": rows,
    }
    show(report, options.output)


if __name__ == "__main__":
    main()
