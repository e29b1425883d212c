"""Training of configs/reid/baseline.yaml against fast.yaml on one GPU, data in the loop.

    python benchmarks/reid_step.py --output FILE.json [--limit-s 540] [--batch-size 32]
        [--also graphs:train.compile.mode=reduce-overhead] [--timed 40]

`--also NAME:KEY=VALUE,...` lets `fast` with other settings take turns with both.

Both presets are built in one process on the same generated people (256x128 JPEG files, 224x224 for
the model, four kinds of images and a caption a record), with random weights and the engine's own
trainer, loader and workers. They take turns: a block of steps of the one, then of the other. The
first steps of a block use up what workers had prepared while the other one ran, and are not
counted; then so many are timed on the wall clock, from an idle device to an idle device. As in the
engine's loop the host is never more than two steps ahead. What is written down: samples per second
of every block, their ratio by pair, the share of the wall the host waited for data and the share
the device stood idle meanwhile, where a step's time goes, the arithmetic of a step, and which
share of the measured bf16 peak that is. At the end steps of `fast` run under
`set_sync_debug_mode("error")`. `--smoke` does it all at the smallest size on a CPU.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from flops import count_flops
from pitstop.config.load import load_config
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.reid.synthetic.make import make_reid
from pitstop_probe import Clock, cuda_timer
from progress import say, write
from step_runs import (
    TOTAL_STEPS,
    Contestant,
    Kept,
    bf16_peak,
    is_data,
    parts_ms,
    prepare,
    rates,
    ratios,
    warm_up,
)

CONFIGS = Path(__file__).parents[1] / "configs" / "reid"
TIMED = {"baseline": 8, "fast": 80}
"""Steps of a block."""
COMMON = ["model.weights=null", "data.tokenizer=null", "data.holdout=0", "train.epochs=null"]
SMOKE = [
    "model.backbone=tiny",
    "model.embed_dim=32",
    "model.text_len=12",
    "data.image_size=[32,16]",
    "train.batch_size=8",
    "loader.workers=1",
]
SMOKE_FAST = ["train.compile.scope=off", "loader.prefetch=2"]


def build(
    name: str,
    root: Path,
    stack: ExitStack,
    *,
    overrides: list[str],
    device: torch.device,
    preset: str | None = None,
) -> Contestant:
    """Build a preset and start its workers."""
    config = load_config(
        CONFIGS / f"{preset or name}.yaml",
        [*COMMON, f"data.root={root}", f"train.steps={TOTAL_STEPS}", *overrides],
    ).config
    task = build_task(config)
    return prepare(name, config, task.train_samples(), task, device=device, stack=stack)


def block(one: Contestant, steps: int) -> dict[str, Any]:
    """Use up what was prepared, then time some steps."""
    one.use_up()
    wall_s, kept = one.run(steps)
    on_device = [step for step in kept if step.device_us]
    idle_us = sum(
        taken for step in on_device for span, taken in step.device_us.items() if is_data(span)
    )
    device_wall_us = sum(step.device_wall_us or 0 for step in on_device)
    idle = idle_us / device_wall_us if device_wall_us else None
    return {**rates(one, kept, wall_s), "device_idle_for_data": idle}


def step_flops(one: Contestant) -> int:
    """Count the arithmetic of forward and backward of one batch, uncompiled."""
    task, device = one.trainer.task, one.trainer.device
    model = task.build_model().to(device)
    batch = task.to_device(next(one.batches()), device)

    def call() -> None:
        with one.trainer.precision.autocast():
            output = task.forward(model, batch)
        task.loss(output, batch, 0).total.backward()

    count = count_flops(call)
    return count.forward + count.backward


def without_waiting(one: Contestant) -> str:
    """Run steps under which every wait for the device is an error; say how it went."""
    if not one.on_gpu:
        return "not measured: no GPU"
    torch.cuda.set_sync_debug_mode("error")
    try:
        kept = Clock(Kept(), cuda_timer())
        for _ in range(4):
            kept.begin_step()
            one.trainer.train_step(one.batches(), step=one.done, clock=kept)
            one.done += 1
        kept.end_step()
    except RuntimeError as error:
        return f"the host waited: {str(error).splitlines()[0]}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "four steps without any wait of the host"


def describe(one: Contestant) -> dict[str, Any]:
    """Write down a preset and what was measured of it."""
    measured = [row["samples_per_s"] for row in one.blocks]
    return {
        "batch_size": one.config.train.batch_size,
        "precision": one.config.train.precision,
        "kernels": one.config.model.kernels,
        "compile": one.config.train.compile.scope,
        "workers": one.loader.applied.workers,
        "parameters": sum(p.numel() for p in one.trainer.model.parameters()),
        "first_steps_s": one.first_steps_s,
        "compiled": one.compiled,
        "samples_per_s_median": statistics.median(measured) if measured else None,
        "blocks": one.blocks,
    }


def sum_up(report: dict[str, Any], presets: list[Contestant]) -> None:
    """Write ratios and shares into the report."""
    baseline, fast, *others = presets
    report["presets"] = {one.name: describe(one) for one in presets}
    report["ratio"] = ratios(baseline, fast)
    if others:
        report["ratios"] = {one.name: ratios(baseline, one) for one in others}
    if report["bf16_peak_flop_per_s"] is not None:
        step_s = statistics.median(row["step_ms"] for row in fast.blocks) / 1e3
        achieved = report["flops_per_step"] / step_s
        report["fast_flop_per_s"] = achieved
        report["fast_share_of_peak"] = achieved / report["bf16_peak_flop_per_s"]


def measure(options: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Build both presets and let them take turns until there are enough pairs or time is up."""
    began, smoke = time.perf_counter(), bool(options.smoke)
    report: dict[str, Any] = {
        "what": "training with data in the loop, 224x224, four kinds of images and captions",
        "hardware": "CPU" if smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    people, images, size = (15, 10, (48, 32)) if smoke else (100, 40, (256, 128))
    made = make_reid(folder / "people", people=people, images=images, size=size, seed=0)
    report["data"] = {"images": dict(made.images), "size_bytes": made.size_bytes}
    say(f"people made after {time.perf_counter() - began:.0f} s")
    presets = contestants(options, folder / "people", stack)
    for one in presets:
        warm_up(one, 2 if smoke else 6)
        say(f"{one.name}: first steps in {one.first_steps_s:.1f} s, compiled {one.compiled}")
    report["bf16_peak_flop_per_s"] = None if smoke else bf16_peak()
    report["flops_per_step"] = step_flops(presets[1])
    if not smoke:
        torch.cuda.reset_peak_memory_stats()
    longest_s = 0.0
    for number in range(2 if smoke else options.pairs):
        turn = time.perf_counter()
        # Which one goes first alternates, so that a drift of the machine favours neither.
        for one in presets if number % 2 == 0 else reversed(presets):
            timed = TIMED["baseline"] if one is presets[0] else options.timed
            one.blocks.append(block(one, 2 if smoke else timed))
            say(f"{one.name}: {json.dumps(one.blocks[-1])}")
        longest_s = max(longest_s, time.perf_counter() - turn)
        sum_up(report, presets)
        write(report, options.output)
        if time.perf_counter() - began + 1.5 * longest_s > options.limit_s:
            break
    report["peak_device_bytes"] = None if smoke else torch.cuda.max_memory_allocated()
    for one in presets:
        _, steps = one.run(2 if smoke else 12, timed_parts=True)
        report["presets"][one.name]["parts_ms"] = parts_ms(steps)
    report["host_waits"] = without_waiting(presets[1])
    report["took_s"] = time.perf_counter() - began
    return report


def contestants(options: argparse.Namespace, root: Path, stack: ExitStack) -> list[Contestant]:
    """Build all presets on the same people."""
    sizes = SMOKE if options.smoke else []
    if options.batch_size:
        sizes = [*sizes, f"train.batch_size={options.batch_size}"]
    extra = SMOKE_FAST if options.smoke else []
    device = torch.device("cpu") if options.smoke else torch.device("cuda", 0)
    baseline = build("baseline", root, stack, overrides=sizes, device=device)
    found = [baseline]
    for name, settings in {"fast": [], **dict(map(_parse_also, options.also))}.items():
        overrides = [*sizes, *extra, *settings]
        found.append(build(name, root, stack, overrides=overrides, device=device, preset="fast"))
    return found


def _parse_also(text: str) -> tuple[str, list[str]]:
    name, _, settings = text.partition(":")
    return name, settings.split(",")


def main() -> None:
    """Measure, and write down what was found, also after each pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit-s", type=float, default=540.0, help="For everything together.")
    parser.add_argument("--batch-size", type=int, help="Records in a batch, of both presets.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--timed", type=int, default=TIMED["fast"], help="Steps of a fast block.")
    parser.add_argument("--also", action="append", default=[], metavar="NAME:KEY=VALUE,...")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Synchronization debug mode")
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    if options.smoke:
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        report = measure(options, Path(folder), stack)
    write(report, options.output)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
