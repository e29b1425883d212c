"""What the benchmarks of training steps share: presets that take turns, and what is read off them.

Each preset is built with the engine's own trainer, loader and workers. The first steps of a block
use up what workers had prepared while others ran; then steps are timed on the wall clock, from an
idle device to an idle device. As in the engine's loop the host is never more than two steps ahead.
"""

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from pitstop.config.sections import RunConfig
from pitstop.data.loader.batches import Loader, build_loader
from pitstop.data.loader.fetch import Samples
from pitstop.data.sampling.samplers import Deal, train_order
from pitstop.train.model.compiling import CompileMonitor
from pitstop.train.model.part_spans import named_parts, part_spans
from pitstop.train.optim.schedule import Schedule
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.train.step import Trainer
from pitstop_probe import Clock, Step, cuda_timer

TOTAL_STEPS: Final = 100_000
"""Of the schedule; no run gets there."""
_AHEAD: Final = 2
_PEAK_SIDE: Final = 8192


class Kept:
    """Keeps finished steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, step: Step) -> None:
        """Keep one."""
        self.steps.append(step)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        """Nothing happens apart here."""


@dataclass(slots=True, kw_only=True)
class Stepper:
    """A way to train, with batches to train on."""

    name: str
    config: RunConfig
    trainer: Trainer[Any]
    schedule: Schedule
    source: Iterator[Any] | None = None
    """Batches without an end."""
    first_steps_s: float = 0.0
    """Seconds of the steps before the first block: workers start, kernels are compiled."""
    done: int = 0
    blocks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU does the work."""
        return self.trainer.device.type == "cuda"

    def batches(self) -> Iterator[Any]:
        """Give batches without an end."""
        assert self.source is not None, "no batches"
        return self.source

    def run(self, steps: int, *, timed_parts: bool = False) -> tuple[float, list[Step]]:
        """Train some steps; give the wall seconds, and the steps."""
        trainer, kept = self.trainer, Kept()
        trainer.precision.apply_to_process()
        clock = Clock(kept, cuda_timer() if self.on_gpu else None, timeline_every=1)
        parts = named_parts(trainer.task, trainer.model) if timed_parts else {}
        under_way: deque[Any] = deque()
        self._settle()
        began = time.perf_counter()
        with part_spans(parts, clock):
            for _ in range(steps):
                clock.begin_step()
                self.schedule.apply(self.done)
                trainer.train_step(self.batches(), step=self.done, clock=clock)
                self.done += 1
                if self.on_gpu:
                    with clock.span("check"):
                        under_way.append(mark := torch.cuda.Event())
                        mark.record()
                        if len(under_way) > _AHEAD:
                            under_way.popleft().synchronize()
            clock.end_step()
        self._settle()
        wall_s = time.perf_counter() - began
        clock.close()
        return wall_s, kept.steps

    def _settle(self) -> None:
        """Wait until the device has nothing to do."""
        if self.on_gpu:
            torch.cuda.synchronize()


@dataclass(slots=True, kw_only=True)
class Contestant(Stepper):
    """A preset, ready to train on its own data."""

    loader: Loader[Any]
    compiled: dict[str, Any] | None = None

    def batches(self) -> Iterator[Any]:
        """Give the loader's batches, epoch after epoch."""
        if self.source is None:
            self.source = self._endless()
        return self.source

    def _endless(self) -> Iterator[Any]:
        while True:
            for batch, _ in self.loader:
                yield batch
            self.loader.set_epoch(self.loader.epoch + 1)

    def use_up(self) -> None:
        """Train on what workers may have prepared while others ran."""
        applied = self.loader.applied
        self.run(applied.workers * (applied.prefetch or 1) + 2)


def prepare(
    name: str,
    config: RunConfig,
    samples: Samples,
    task: Any,
    *,
    device: torch.device,
    stack: ExitStack,
) -> Contestant:
    """Build a preset and start its workers."""
    deal = Deal(batch_size=config.train.batch_size, seed=0, rank=0, world_size=1, drop_last=True)
    order = train_order(task, samples, deal)
    loader = stack.enter_context(
        build_loader(samples, order, task.collate, config.loader, world_size_on_host=1)
    )
    trainer = build_trainer(config, task, Ranks(), device).trainer
    return Contestant(
        name=name,
        config=config,
        trainer=trainer,
        schedule=Schedule(trainer.optimizer, config.schedule, total_steps=TOTAL_STEPS),
        loader=loader,
    )


def warm_up(one: Contestant, steps: int) -> None:
    """Run the first steps, and note what was compiled in them."""
    with CompileMonitor() as monitor:
        one.first_steps_s, _ = one.run(steps)
        proof = monitor.proof()
    if one.config.train.compile.scope != "off":
        one.compiled = {
            "graphs": proof.graphs,
            "breaks": dict(proof.breaks),
            "recompiles": proof.recompiles,
            "compile_s": proof.compile_s,
        }


def rates(one: Contestant, steps: list[Step], wall_s: float) -> dict[str, Any]:
    """Sum up timed steps: samples a second, and the share of the wall the host waited for data."""
    waited_us = sum(
        total for step in steps for span, (_, total) in step.host_us.items() if is_data(span)
    )
    return {
        "samples_per_s": len(steps) * one.config.train.batch_size / wall_s,
        "step_ms": wall_s / len(steps) * 1e3,
        "steps": len(steps),
        "host_waits_for_data": waited_us / 1e6 / wall_s,
    }


def is_data(span: Any) -> bool:
    """Whether a span is the wait for a batch."""
    return tuple(span.path) == ("data",)


def ratios(first: Contestant, other: Contestant) -> dict[str, Any] | None:
    """Compare two presets, turn by turn; None before both had one."""
    found = [
        after["samples_per_s"] / before["samples_per_s"]
        for before, after in zip(first.blocks, other.blocks, strict=False)
    ]
    if not found:
        return None
    return {
        "median": statistics.median(found),
        "low": min(found),
        "high": max(found),
        "turns": len(found),
    }


def parts_ms(steps: list[Step]) -> dict[str, float]:
    """Give the mean of every span over the steps, on the device where there is one."""
    told = [step for step in steps if step.device_us] or steps
    sums: dict[str, float] = {}
    for step in told:
        host = {span: total for span, (_, total) in step.host_us.items()}
        for span, taken in (step.device_us or host).items():
            name = "/".join(span.path)
            sums[name] = sums.get(name, 0.0) + taken / 1e3 / len(told)
    return {name: round(total, 3) for name, total in sorted(sums.items())}


def bf16_peak() -> float:
    """Measure the rate of one large product, in FLOP/s: best of several."""
    one, other = (
        torch.randn(_PEAK_SIDE, _PEAK_SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    best_ms = float("inf")
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.mm(one, other)
        end.record()
        end.synchronize()
        best_ms = min(best_ms, begin.elapsed_time(end))
    return 2 * _PEAK_SIDE**3 / (best_ms / 1e3)
