"""Training of the bird's-eye-view presets on one GPU, data in the loop, groups side by side.

    python benchmarks/bev_step.py --output FILE.json [--only equal best table] [--limit-s 560]

Groups:
    equal      configs/bev/mono_baseline.yaml against mono_speed.yaml, both at batch 4
    best       each at its own best batch: the baseline at 32 and 8, mono_speed at 32
    table      the guide's table: the baseline at batch 4, 6 and 8, in fp32 and in fp16
    surround   configs/bev/surround.yaml against itself in fp32, uncompiled, with reference kernels
    variants   mono_speed at batch 4, compiled in other ways
    variants32 the same at batch 32
    highmem    mono_speed at 32 against mono_highmem.yaml, 64

All members of a group are built in one process on the same generated world (450x800 JPEG files,
labels as PNG files for one camera), with random weights and the engine's own trainer, loader and
workers, and take turns: a block of steps of the one, then of the next. The first steps of a block
use up what workers had prepared while others ran, and are not counted; then so many are timed on
the wall clock, from an idle device to an idle device. The host is never more than two steps ahead.
Out of memory or a failed compile is a result.

Written down, after every block: samples per second, ratios to the group's first member by turn, the
share of the wall the host waited for data, the memory a step takes above what lies there at rest,
graphs, compile seconds, kernels of a step and which take longest, and samples per second times the
arithmetic of a sample as a share of the bf16 rate measured beside it. torch otherwise compiles for
shapes of any size once it has seen two batch sizes, which no run would do; so that is off here.
`--smoke` does it all at the smallest size on a CPU.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from flops import count_flops
from pitstop.config.load import load_config
from pitstop.config.sections import RunConfig
from pitstop.data.loader.fetch import Samples
from pitstop.workloads.bev.data.dataset import MonoSamples
from pitstop.workloads.bev.data.index import CAMERAS
from pitstop.workloads.bev.data.pon import make_labels, read_points, write_labels
from pitstop.workloads.bev.synthetic.make import make_bev
from pitstop.workloads.catalogue import build_task
from progress import say, write
from step_runs import (
    TOTAL_STEPS,
    Contestant,
    bf16_peak,
    parts_ms,
    prepare,
    rates,
    ratios,
    warm_up,
)

CONFIGS = Path(__file__).parents[1] / "configs" / "bev"
BLOCK_S = 2.5
LONGEST = 24
"""Kernels that are named, by the time they take together."""
REPEATS = 64
"""How often an epoch goes over the generated images: theirs would be over in a few steps."""

EAGER = (
    "train.precision=fp32",
    "train.compile.scope=off",
    "train.compile.mode=default",
    "optimizer.fused=off",
)
COMPILED = {
    "whole": ("train.compile.scope=whole", "train.compile.mode=default"),
    "whole, CUDA graphs": ("train.compile.scope=whole", "train.compile.mode=reduce-overhead"),
    "regions": ("train.compile.scope=regions", "train.compile.mode=default"),
    "not compiled": ("train.compile.scope=off", "train.compile.mode=default"),
}
SMOKE = {
    "mono": (
        "model.backbone=swin_nano",
        "model.forward_bound=[1,25,1]",
        "model.x_bound=[-12,12,1]",
        "model.depth=[1,25,1]",
        "model.channels=16",
        "model.head_width=32",
        "data.image_size=[64,96]",
        "data.labels=null",
    ),
    "surround": (
        "model.backbone=swin_nano",
        "model.forward_bound=[-16,16,1]",
        "model.x_bound=[-16,16,1]",
        "model.depth=[1,25,1]",
        "model.channels=16",
        "model.head_width=32",
        "model.encoder_channels=32",
        "data.image_size=[64,96]",
        "data.resize=[0.3,0.4]",
        "data.target_forward=[-16,16,1]",
        "data.target_across=[-16,16,1]",
    ),
}
SMOKE_ALL = ("train.compile.scope=off", "train.compile.mode=default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One member of a group."""

    name: str
    preset: str
    batch_size: int
    overrides: tuple[str, ...] = ()


def groups() -> dict[str, list[Entry]]:
    """List what is measured, most important first."""
    table = [
        Entry(
            name=f"batch {size}, {precision}",
            preset="mono_baseline",
            batch_size=size,
            overrides=(f"train.precision={precision}",),
        )
        for precision in ("fp32", "fp16")
        for size in (4, 6, 8)
    ]

    def variants(batch_size: int) -> list[Entry]:
        return [
            Entry(name=name, preset="mono_speed", batch_size=batch_size, overrides=overrides)
            for name, overrides in COMPILED.items()
        ]

    return {
        "equal": [
            Entry(name="mono_baseline", preset="mono_baseline", batch_size=4),
            Entry(name="mono_speed", preset="mono_speed", batch_size=4),
        ],
        "best": [
            *(
                Entry(name=f"mono_baseline at {size}", preset="mono_baseline", batch_size=size)
                for size in (32, 8)
            ),
            Entry(name="mono_speed at 32", preset="mono_speed", batch_size=32),
        ],
        "table": table,
        "surround": [
            Entry(
                name="surround, fp32, reference",
                preset="surround",
                batch_size=4,
                overrides=(*EAGER, "model.kernels=reference"),
            ),
            Entry(name="surround", preset="surround", batch_size=4),
        ],
        "variants": variants(4),
        "variants32": variants(32),
        "highmem": [
            Entry(name="mono_speed at 32", preset="mono_speed", batch_size=32),
            Entry(name="mono_highmem at 64", preset="mono_highmem", batch_size=64),
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A set gone over several times in one epoch, other colours each time."""

    samples: Samples

    def __len__(self) -> int:
        return REPEATS * len(self.samples)

    def sample(self, epoch: int, index: int) -> Any:
        """Read a sample as one of the epochs has it that this one stands for."""
        turn, place = divmod(index, len(self.samples))
        return self.samples.sample(epoch * REPEATS + turn, place)


@dataclass(slots=True, kw_only=True)
class Member:
    """A member of a group, ready to train."""

    entry: Entry
    one: Contestant
    flops_per_sample: int
    step_s: float

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self.one.config


def make_world(root: Path, *, smoke: bool) -> dict[str, Any]:
    """Generate a set, and label files of all its images."""
    scenes, samples, size = (2, 2, (225, 400)) if smoke else (5, 5, (450, 800))
    made = make_bev(root, scenes=scenes, samples=samples, size=size, seed=0)
    if not smoke:
        write_all_labels(root)
    return {"samples": made.samples, "image_size": list(size), "took_s": made.took_s}


def write_all_labels(root: Path) -> None:
    """Write the label files of the training and the evaluation split."""
    task = build_task(load_config(CONFIGS / "mono_baseline.yaml", where(root)).config)
    folder = root / "labels"
    folder.mkdir()
    for samples in (task.train_samples(), task.eval_samples()):
        assert isinstance(samples, MonoSamples)
        frames = samples.frames
        for place in range(len(samples)):
            sample, slot = int(frames.chosen[place // len(CAMERAS)]), place % len(CAMERAS)
            points = read_points(frames.root / frames.index.file(sample, -1))
            labels = make_labels(frames.index, frames.city(sample), sample, slot, points=points)
            write_labels(folder / f"{frames.index.file_token(sample, slot)}.png", labels)


def where(root: Path) -> list[str]:
    """Say where the generated set is."""
    return [
        f"data.root={root}",
        "data.version=v1.0-mini",
        "data.split=mini_train",
        "data.eval_split=mini_val",
    ]


def configure(entry: Entry, root: Path, *, smoke: bool, workers: str) -> RunConfig:
    """Read the preset of a member, with what the group changes."""
    kind = "surround" if entry.preset == "surround" else "mono"
    batch_size = 2 if smoke else entry.batch_size
    overrides = [
        *where(root),
        *([f"data.labels={root / 'labels'}"] if kind == "mono" else []),
        # As much of the view from images of half the size.
        *(["data.resize=[0.76,1.1]"] if kind == "surround" else []),
        f"train.steps={TOTAL_STEPS}",
        f"loader.workers={workers}",
        "loader.prefetch=2",
        f"train.batch_size={batch_size}",
        *(["train.epochs=null", "train.accumulate=1"] if kind == "surround" else []),
        *entry.overrides,
    ]
    if smoke:
        overrides += [*SMOKE[kind], *SMOKE_ALL]
    return load_config(CONFIGS / f"{entry.preset}.yaml", overrides).config


def sample_flops(config: RunConfig, device: torch.device) -> int:
    """Count the arithmetic of forward and backward of one sample, uncompiled.

    Counted on the reference: torch does not see inside the fused kernels.
    """
    plain = config.model.model_copy(update={"kernels": "reference"})
    task = build_task(config.model_copy(update={"model": plain}))
    model = task.build_model().to(device)
    samples = task.train_samples()
    batch = task.to_device(task.collate([samples.sample(0, 0), samples.sample(0, 1)]), device)

    def call() -> None:
        task.loss(task.forward(model, batch), batch, 0).total.backward()

    count = count_flops(call)
    return (count.forward + count.backward) // 2


def block(member: Member, *, smoke: bool) -> dict[str, Any]:
    """Use up what was prepared, then time some steps."""
    one = member.one
    steps = 2 if smoke else max(4, min(120, round(BLOCK_S / member.step_s)))
    one.use_up()
    if one.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    at_rest = torch.cuda.memory_allocated() if one.on_gpu else 0
    wall_s, kept = one.run(steps)
    above = torch.cuda.max_memory_allocated() - at_rest if one.on_gpu else None
    member.step_s = wall_s / steps
    return {**rates(one, kept, wall_s), "peak_above_rest_bytes": above}


def kernels_of(one: Contestant) -> dict[str, Any]:
    """Count the kernels that one step starts, and name those that take longest; {} on a CPU."""
    if not one.on_gpu:
        return {}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        one.run(1)
    ms: dict[str, list[float]] = {}
    for event in trace.events() or []:
        is_kernel = not event.name.startswith(("Memcpy", "Memset"))
        if is_kernel and "cuda" in str(event.device_type).lower():
            ms.setdefault(event.name, []).append(event.device_time / 1e3)
    longest = sorted(ms, key=lambda name: -sum(ms[name]))[:LONGEST]
    return {
        "kernels_per_step": sum(map(len, ms.values())),
        "kernels_ms": round(sum(map(sum, ms.values())), 3),
        "longest_kernels": [
            {"name": name[:120], "calls": len(ms[name]), "ms": round(sum(ms[name]), 3)}
            for name in longest
        ],
    }


def state_bytes(one: Contestant) -> int:
    """Weigh weights, buffers and what the optimizer keeps."""
    model, optimizer = one.trainer.model, one.trainer.optimizer
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def describe(member: Member, peak: float | None) -> dict[str, Any]:
    """Write down a member and what was measured of it so far."""
    one, config = member.one, member.config
    measured = [row["samples_per_s"] for row in one.blocks]
    rate = statistics.median(measured) if measured else None
    reached = None if rate is None else rate * member.flops_per_sample
    above = [row["peak_above_rest_bytes"] for row in one.blocks]
    return {
        "outcome": "ran",
        "preset": member.entry.preset,
        "batch_size": config.train.batch_size,
        "precision": config.train.precision,
        "kernels": config.model.kernels,
        "compile": [config.train.compile.scope, config.train.compile.mode],
        "workers": one.loader.applied.workers,
        "flops_per_sample": member.flops_per_sample,
        "first_steps_s": one.first_steps_s,
        "compiled": one.compiled,
        "samples_per_s_median": rate,
        "samples_per_s_range": [min(measured), max(measured)] if measured else None,
        "share_of_bf16_peak": reached / peak if reached is not None and peak else None,
        "host_waits_for_data": statistics.median(r["host_waits_for_data"] for r in one.blocks)
        if measured
        else None,
        "peak_bytes": max(above) + state_bytes(one) if measured and None not in above else None,
        "blocks": one.blocks,
    }


class Bench:
    """Measures groups until the time is over, and writes what is known."""

    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        self.began = time.perf_counter()
        self.options = options
        self.smoke = bool(options.smoke)
        self.root = root
        self.device = torch.device("cpu") if self.smoke else torch.device("cuda", 0)
        self.flops: dict[str, int] = {}
        self.report: dict[str, Any] = {
            "what": "training of bird's-eye-view presets with data in the loop",
            "hardware": "CPU" if self.smoke else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "bf16_peak_flop_per_s": None if self.smoke else bf16_peak(),
            "groups": {},
        }

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.options.limit_s - (time.perf_counter() - self.began)

    def run(self, chosen: list[str]) -> None:
        """Measure groups, one after the other."""
        self.report["data"] = make_world(self.root, smoke=self.smoke)
        say(f"world made, {self.left_s:.0f} s left")
        every = groups()
        for name in chosen:
            if self.left_s < self.options.least_s:
                self.report["groups"][name] = {"outcome": "left out: no time"}
                continue
            with ExitStack() as stack:
                self._group(name, every[name], stack)
            self.write()
            if not self.smoke:
                torch.cuda.empty_cache()

    def write(self) -> None:
        """Write what is known so far."""
        self.report["took_s"] = time.perf_counter() - self.began
        write(self.report, self.options.output)

    def _group(self, name: str, entries: list[Entry], stack: ExitStack) -> None:
        told: dict[str, Any] = {"members": {}}
        self.report["groups"][name] = told
        ready: list[Member] = []
        for entry in entries:
            if ready and self.left_s < self.options.least_s:
                told["members"][entry.name] = {"outcome": "left out: no time"}
                continue
            try:
                member = self._ready(entry, stack)
            except Exception as error:  # noqa: BLE001 - a failure is a result
                text = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
                told["members"][entry.name] = {"outcome": text}
                say(f"{entry.name}: {text}")
            else:
                ready.append(member)
                one = member.one
                say(f"{entry.name}: first steps {one.first_steps_s:.1f} s, {one.compiled}")
            self.write()
        self._take_turns(told, ready)

    def _ready(self, entry: Entry, stack: ExitStack) -> Member:
        config = configure(entry, self.root, smoke=self.smoke, workers=str(self.options.workers))
        kind = config.model.kind
        if kind not in self.flops:
            self.flops[kind] = sample_flops(config, self.device)
        task = build_task(config)
        samples = Repeated(samples=task.train_samples())
        one = prepare(entry.name, config, samples, task, device=self.device, stack=stack)
        warm_up(one, 1 if self.smoke else 4)
        steps = 1 if self.smoke else 6
        return Member(
            entry=entry,
            one=one,
            flops_per_sample=self.flops[kind],
            step_s=one.run(steps)[0] / steps,
        )

    def _take_turns(self, told: dict[str, Any], ready: list[Member]) -> None:
        longest_s = 0.0
        for turn in range(1 if self.smoke else self.options.turns):
            began = time.perf_counter()
            # Who goes first alternates, so that a drift of the machine favours nobody.
            for member in ready if turn % 2 == 0 else reversed(ready):
                member.one.blocks.append(block(member, smoke=self.smoke))
                say(f"{member.entry.name}: {json.dumps(member.one.blocks[-1])}")
            self._sum_up(told, ready)
            longest_s = max(longest_s, time.perf_counter() - began)
            if self.left_s < 1.5 * longest_s:
                break
        for member in ready:
            row = told["members"][member.entry.name]
            row |= kernels_of(member.one)
            # Hooks inside a compiled network would cut it up.
            is_plain = member.config.train.compile.scope == "off"
            _, steps = member.one.run(1 if self.smoke else 6, timed_parts=is_plain)
            row["parts_ms"] = parts_ms(steps)
        self.write()

    def _sum_up(self, told: dict[str, Any], ready: list[Member]) -> None:
        peak = self.report["bf16_peak_flop_per_s"]
        for member in ready:
            told["members"][member.entry.name] = describe(member, peak)
        told["ratio_to_first"] = {
            member.entry.name: ratios(ready[0].one, member.one) for member in ready[1:]
        }
        self.write()


def main() -> None:
    """Measure the chosen groups."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(groups()), default=list(groups()))
    parser.add_argument("--limit-s", type=float, default=560.0, help="For everything together.")
    parser.add_argument("--least-s", type=float, default=90.0, help="A group needs this long.")
    parser.add_argument("--turns", type=int, default=4, help="Blocks of each member.")
    parser.add_argument("--workers", default="12", help="Worker processes of each member.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    if options.smoke:
        torch.set_num_threads(1)
        options.workers = 1
    torch._dynamo.config.automatic_dynamic_shapes = False
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder) / "world")
        bench.run(options.only)
    bench.write()
    print(json.dumps(bench.report, indent=2))


if __name__ == "__main__":
    main()
