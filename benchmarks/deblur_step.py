"""One training step of VRT and of the deblurring presets on one GPU, under a cap of memory.

    python benchmarks/deblur_step.py --output FILE.json [--limit-s 540]

The first row is the published network (18.3 M parameters) on one clip of six frames of 256x256 in
bf16 with everything recomputed. The others are configs/deblur/{opt,fast,lowmem}.yaml on clips of
their own size with random spikes, and the perceptual loss with random weights, since only its cost
matters here; `torch.cuda.set_per_process_memory_fraction` gives them 48 GB, and lowmem 24 GB as
well. Accumulation is 1, so a step is one micro-batch and one update. Each row is a process of its
own: three steps to warm up, then eight under the clock and under `set_sync_debug_mode("error")`.
Out of memory is a result. `--smoke` runs everything at the smallest size on a CPU.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from apart import in_a_process_of_its_own
from pitstop.config.load import config_from, load_config
from pitstop.config.sections import RunConfig
from pitstop.config.workloads.deblur import DeblurData, DeblurLoss
from pitstop.errors import PitstopError
from pitstop.train.model.part_spans import named_parts, part_spans
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.train.step import Trainer
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.model.features import Features
from pitstop_probe import Clock, Step, cuda_timer
from step_runs import Kept

CONFIGS = Path(__file__).parents[1] / "configs" / "deblur"
PLANES = 88
WARM_UP, TIMED = 3, 8
GB = 10**9

ROWS: list[dict[str, Any]] = [
    {"name": "reference", "cap_gb": None},
    {"name": "opt", "cap_gb": 48},
    {"name": "fast", "cap_gb": 48},
    {"name": "lowmem", "cap_gb": 48},
    {"name": "lowmem", "cap_gb": 24},
]
REFERENCE = [
    "model.kind=vrt",
    "train.steps=100",
    "train.precision=bf16",
    "train.recompute=full",
]
SMOKE = [
    "model.depths=[2,2,2,2,2,2,2,2]",
    "model.embed_dims=[8,8,8,8,8,8,8,8]",
    "model.heads=2",
    "model.window=[2,4,4]",
    "model.indep_reconsts=[]",
    "model.deformable_groups=2",
    "data.clip_len=2",
    "data.crop=64",
    "train.precision=fp32",
]
SMOKE_SPIKES = [
    "model.spike.channels=8",
    "model.spike.heads=2",
    "model.fusion.heads=2",
    "model.spike.chunk=null",
    "model.fusion.chunk=null",
    "data.voxel_bins=4",
]


def configuration(name: str, *, smoke: bool, folder: Path) -> RunConfig:
    """Make the configuration of a row."""
    small = SMOKE if smoke else []
    if name == "reference":
        return config_from({}, [*REFERENCE, *small]).config
    overrides = ["train.accumulate=1", *small, *(SMOKE_SPIKES if smoke else [])]
    loaded = load_config(CONFIGS / f"{name}.yaml", overrides).config
    assert isinstance(loaded.loss, DeblurLoss)
    section = loaded.loss.perceptual
    weights = folder / "features.pth"
    torch.save(Features(section.network, section.layers).state_dict(), weights)
    return load_config(
        CONFIGS / f"{name}.yaml", [*overrides, f"loss.perceptual.weights={weights}"]
    ).config


def batches(config: RunConfig, device: torch.device) -> Iterator[ClipBatch]:
    """One random batch on the device, again and again."""
    data = config.data
    assert isinstance(data, DeblurData)
    assert data.crop is not None
    count, frames, crop = config.train.batch_size, data.clip_len, data.crop
    generator = torch.Generator(device).manual_seed(0)

    def levels(below: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, below, shape, generator=generator, device=device, dtype=torch.uint8)

    spikes = None
    if config.model.kind == "vrt_spike":
        spikes = levels(2, count, frames, PLANES, crop // 2, crop // 2)
    batch = ClipBatch(
        blur=levels(256, count, frames, 3, crop, crop),
        sharp=levels(256, count, frames, 3, crop, crop),
        spikes=spikes,
        clip=torch.zeros(count, dtype=torch.int64, device=device),
        fresh=torch.ones(count, frames, dtype=torch.bool, device=device),
    )
    while True:
        yield batch


def timed_steps(
    trainer: Trainer[ClipBatch], source: Iterator[ClipBatch], *, timed: int
) -> list[Step]:
    """Run steps with their parts timed; give those after warm-up, which may not wait."""
    kept = Kept()
    on_gpu = trainer.device.type == "cuda"
    clock = Clock(kept, cuda_timer() if on_gpu else None, timeline_every=1)
    with part_spans(named_parts(trainer.task, trainer.model), clock):
        for number in range(WARM_UP + timed):
            if number == WARM_UP and on_gpu:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            clock.begin_step()
            trainer.train_step(source, step=number, clock=clock)
        clock.end_step()
    if on_gpu:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    clock.close()
    return kept.steps[WARM_UP:]


def parts_ms(steps: list[Step]) -> dict[str, float]:
    """Give the mean of every span over the steps, on the device where there is one."""
    sums: dict[str, float] = {}
    for step in steps:
        host = {span: total for span, (_, total) in step.host_us.items()}
        for span, taken in (step.device_us or host).items():
            name = "/".join(span.path)
            sums[name] = sums.get(name, 0.0) + taken / 1e3 / len(steps)
    return {name: round(total, 3) for name, total in sorted(sums.items())}


def measure(row: dict[str, Any], *, smoke: bool) -> dict[str, Any]:
    """Measure one row in this process; out of memory is a result."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if not on_gpu:
        torch.set_num_threads(1)
    if on_gpu and row["cap_gb"] is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(row["cap_gb"] * GB / total, 1.0))
    result = dict(row)
    with tempfile.TemporaryDirectory() as folder:
        try:
            config = configuration(row["name"], smoke=smoke, folder=Path(folder))
            setup = build_trainer(config, build_task(config), Ranks(), device)
            source = batches(config, device)
            steps = timed_steps(setup.trainer, source, timed=1 if smoke else TIMED)
        except torch.OutOfMemoryError as error:
            return {**result, "outcome": "out of memory", "said": str(error).splitlines()[0]}
        except (PitstopError, RuntimeError) as error:
            return {**result, "outcome": f"{type(error).__name__}: {error}"}
    walls_ms = [
        (step.wall_us if step.device_wall_us is None else step.device_wall_us) / 1e3
        for step in steps
    ]
    middle_ms = statistics.median(walls_ms)
    data = config.data
    assert isinstance(data, DeblurData)
    return {
        **result,
        "outcome": "ran",
        "crop": data.crop,
        "frames": data.clip_len,
        "batch_size": config.train.batch_size,
        "precision": config.train.precision,
        "parameters": sum(p.numel() for p in setup.trainer.model.parameters()),
        "step_ms": middle_ms,
        "step_ms_low": min(walls_ms),
        "step_ms_high": max(walls_ms),
        "samples_per_s": config.train.batch_size / (middle_ms / 1e3),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
        "parts_ms": parts_ms(steps),
    }


def main() -> None:
    """Measure all rows and write them down, after each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit-s", type=float, default=540.0, help="For all rows together.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    parser.add_argument("--row", help="Used by this file itself.")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Synchronization debug mode")
    if options.row is not None:
        print(json.dumps(measure(json.loads(options.row), smoke=options.smoke)))
        return
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    began = time.perf_counter()
    report: dict[str, Any] = {
        "what": "one training step; random clips on the device, median of eight steps",
        "hardware": "CPU" if options.smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": [],
    }
    for row in ROWS:
        left_s = options.limit_s - (time.perf_counter() - began)
        if left_s < 5:
            report["rows"].append({**row, "outcome": "left out: no time"})
        else:
            result = in_a_process_of_its_own(__file__, row, smoke=options.smoke, limit_s=left_s)
            report["rows"].append(result)
            shown = {key: value for key, value in result.items() if key != "parts_ms"}
            print(json.dumps(shown), file=sys.stderr, flush=True)
        if options.output:
            options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
