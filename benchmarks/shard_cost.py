"""What `train.shard: full` costs one rank that has nobody to divide with, against a plain run.

    python benchmarks/shard_cost.py --output FILE.json [--limit-s 55] [--preset "reid fast"]
    python benchmarks/shard_cost.py --device cpu          # at the smallest size

Both are built in one process with the engine's own trainer and take turns on one batch that lies
on the device, so that no wait for data hides anything: plain, divided, divided, plain, and so on.
A block of steps is timed on the wall clock, from an idle device to an idle device. As in the
engine's loop the host is never more than two steps ahead. Each pair of blocks gives one ratio; the
median counts, and the lowest and highest are written down with it. Nothing is compiled; bf16.
"""

import argparse
import itertools
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from pitstop.config.load import load_config
from pitstop.train.optim.schedule import Schedule
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.setup import build_trainer
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.reid.synthetic.make import make_reid
from progress import say, write
from reid_step import COMMON as REID
from reid_step import SMOKE as REID_SMOKE
from step_runs import TOTAL_STEPS, Stepper

CONFIGS: Final = Path(__file__).parents[1] / "configs"
ALLOWED: Final = 1.05
"""Most that a divided step may take, in plain steps."""
WARM_UP_STEPS: Final = 3
LEAST_PAIRS: Final = 3
WAYS: Final = {"plain": "none", "divided": "full"}

# A network of full width without spikes, which need files of their own.
_WIDE: Final = ("model.kind=vrt", "loss.perceptual=null", "train.accumulate=1")
PRESETS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "reid fast": ("reid/fast.yaml", (*REID, "train.compile.scope=off")),
    "deblur fast": ("deblur/fast.yaml", _WIDE),
    "deblur small": ("deblur/small.yaml", ()),
}
SMOKE: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "reid fast": ("reid/fast.yaml", (*REID, *REID_SMOKE, "train.compile.scope=off")),
    "deblur small": ("deblur/demo.yaml", ()),
}


def build(name: str, way: str, options: argparse.Namespace) -> Stepper:
    """Build a preset one way, with one batch to train on again and again."""
    device = torch.device(options.device)
    path, settings = (SMOKE if options.device == "cpu" else PRESETS)[name]
    common = ("train.precision=bf16", "train.epochs=null", f"train.steps={TOTAL_STEPS}")
    overrides = [*settings, *common, f"train.shard={WAYS[way]}"]
    if path.startswith("reid"):
        overrides.append(f"data.root={options.people}")
    config = load_config(CONFIGS / path, overrides).config
    task: Any = build_task(config)
    trainer = build_trainer(config, task, Ranks(), device).trainer
    assert (trainer.shards is not None) == (way == "divided"), f"{name} is not {way}"
    batch = task.blank_batch(config.train.batch_size)
    return Stepper(
        name=way,
        config=config,
        trainer=trainer,
        schedule=Schedule(trainer.optimizer, config.schedule, total_steps=TOTAL_STEPS),
        source=itertools.repeat(task.to_device(noise(batch), device)),
    )


def noise(batch: Any) -> Any:
    """Fill the pixels of a blank batch: a device is faster with zeros."""
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor) and value.dtype == torch.uint8:
            value.random_(0, 2 if field.name == "spikes" else 256)
    return batch


def pair(ways: Sequence[Stepper], steps: int, number: int) -> float:
    """Time a block of each, every other time in the other order; give divided over plain."""
    took_s: dict[str, float] = {}
    for one in ways if number % 2 == 0 else reversed(ways):
        one.run(1)
        took_s[one.name], _ = one.run(steps)
        one.blocks.append({"step_ms": took_s[one.name] / steps * 1e3, "steps": steps})
    return took_s["divided"] / took_s["plain"]


def measure(name: str, options: argparse.Namespace, until_s: float) -> dict[str, Any]:
    """Let both ways of a preset take turns, three times at least and until the time is over."""
    ways = [build(name, way, options) for way in WAYS]
    for one in ways:
        one.first_steps_s, _ = one.run(WARM_UP_STEPS)
    step_s = max(one.run(1)[0] for one in ways)
    left_s = until_s - time.monotonic()
    # So long that the clock is no matter, and so short that there are several pairs.
    steps = max(2, min(40, int(left_s / (2 * (LEAST_PAIRS + 2) * step_s))))
    ratios: list[float] = []
    while len(ratios) < LEAST_PAIRS or time.monotonic() < until_s:
        ratios.append(pair(ways, steps, len(ratios)))
    shards = ways[1].trainer.shards
    assert shards is not None
    return {
        **{one.name: describe(one) for one in ways},
        "blocks": shards.facts.blocks,
        "parameters": sum(each.numel() for each in ways[0].trainer.model.parameters()),
        "batch_size": ways[0].config.train.batch_size,
        "precision": ways[0].config.train.precision,
        "recompute": ways[0].config.train.recompute,
        "ratios": ratios,
        "ratio_median": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "is_within_allowed": statistics.median(ratios) <= ALLOWED,
    }


def describe(one: Stepper) -> dict[str, Any]:
    """Write down what was measured of one way."""
    return {
        "step_ms_median": statistics.median(block["step_ms"] for block in one.blocks),
        "step_ms": [block["step_ms"] for block in one.blocks],
        "steps_a_block": one.blocks[0]["steps"],
        "first_steps_s": one.first_steps_s,
    }


def main() -> None:
    """Measure each preset, and write down what was found after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--preset", action="append", choices=list(PRESETS))
    parser.add_argument("--limit-s", type=float, default=55.0, help="for all presets together")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --device cpu")
    begun_s = time.monotonic()
    on_cpu = options.device == "cpu"
    names = [n for n in options.preset or PRESETS if not on_cpu or n in SMOKE]
    report: dict[str, Any] = {
        "hardware": f"{platform.machine()} CPU" if on_cpu else torch.cuda.get_device_name(),
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
        "allowed_ratio": ALLOWED,
        "presets": {},
    }
    with tempfile.TemporaryDirectory(prefix="shard-cost-") as folder:
        options.people = Path(folder)
        make_reid(options.people, people=16, images=4, size=(64, 32), seed=0)
        join_ranks(needs_group=True)
        for number, name in enumerate(names, 1):
            until_s = begun_s + options.limit_s * number / len(names)
            found = report["presets"][name] = measure(name, options, until_s)
            report["seconds"] = round(time.monotonic() - begun_s, 1)
            write(report, options.output)
            plain_ms, divided_ms = (found[way]["step_ms_median"] for way in WAYS)
            say(
                f"{name}: plain {plain_ms:.1f} ms, divided {divided_ms:.1f} ms a step; ratio "
                f"{found['ratio_median']:.3f} ({found['ratio_low']:.3f} to "
                f"{found['ratio_high']:.3f}, {len(found['ratios'])} pairs)"
            )
        leave_ranks()


if __name__ == "__main__":
    main()
