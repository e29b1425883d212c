"""What measuring costs: bare and measured steps, paired and interleaved in one process.

    python benchmarks/overhead.py [--pairs 1200] [--devices cpu cuda] [--output FILE.json]

Three questions, on the CPU (one thread) and, where there is one, on a CUDA device:

- ratio: a step of about 20 ms, measured over bare. Each pair runs both, in random order; reported
  are the median ratio and the upper 95 % limit of that median (from order statistics, so no
  assumption about the noise).
- host-bound ratio (CUDA only): the same with thousands of launches, where nothing hides host work.
- cost: microseconds that measuring adds to a very short step with eight spans.

On CUDA every measured step runs under ``set_sync_debug_mode("error")``: a measurement that waits
for the device ends the benchmark. Losses of bare and measured steps must be equal to the bit.
"""

import argparse
import math
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import GELU

from pitstop_probe import Clock, RecordWriter, cuda_timer
from progress import show

Part = tuple[str, Callable[[], object]]
SPANS = ("data", "copy", "forward", "loss", "backward", "clip", "optimizer", "log")


class TrainingStep:
    """One training step of a small network, cut into eight named parts."""

    def __init__(self, device: torch.device, *, width: int, layers: int, batch: int) -> None:
        torch.manual_seed(0)
        linears = [torch.nn.Linear(width, width) for _ in range(layers)]
        self.model = torch.nn.Sequential(*[m for linear in linears for m in (linear, GELU())])
        self.model.to(device)
        self.device = device
        fused = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=fused)
        source = torch.randn(batch, width)
        self.source = source.pin_memory() if device.type == "cuda" else source
        self.batch = self.out = self.loss = source

    def parts(self) -> list[Part]:
        """Name the parts in the order in which they run."""
        runs = (
            self.source.size,
            self.copy,
            self.forward,
            self.compute_loss,
            self.backward,
            lambda: torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0),
            self.step,
            self.loss.detach,
        )
        return list(zip(SPANS, runs, strict=True))

    def copy(self) -> None:
        """Bring the batch to the device."""
        self.batch = self.source.to(self.device, non_blocking=True)

    def forward(self) -> None:
        """Run the network."""
        self.out = self.model(self.batch)

    def compute_loss(self) -> None:
        """Compare the output with the input."""
        self.loss = (self.out - self.batch).square().mean()

    def backward(self) -> None:
        """Compute the gradients."""
        self.loss.backward()

    def step(self) -> None:
        """Update the parameters."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def short_parts(device: torch.device) -> list[Part]:
    """Eight parts of one tiny operation each."""
    value = torch.ones(16, device=device)
    return [(name, lambda: value.add_(1.0)) for name in SPANS]


def bare(parts: list[Part]) -> None:
    """Run the parts with no measurement."""
    for _, run in parts:
        run()


def measured(parts: list[Part], clock: Clock) -> None:
    """Run the parts under the clock; the border comes last, as in a loop that never waits."""
    for name, run in parts:
        with clock.span(name):
            run()
    clock.count(samples=1)
    clock.begin_step()


def settle(device: torch.device) -> None:
    """Wait until the device is idle, so that pairs do not bleed into each other."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def forbid_syncs(device: torch.device, mode: str) -> None:
    """Make implicit synchronisation an error, or allow it again."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


def timed_s(run: Callable[[], None], device: torch.device) -> float:
    """Wall time of `run`, from an idle device to an idle device."""
    settle(device)
    start = time.perf_counter()
    run()
    settle(device)
    return time.perf_counter() - start


def pair_ratios(parts: list[Part], clock: Clock, device: torch.device, pairs: int) -> list[float]:
    """Measured over bare time, pair by pair, in random order within each pair."""
    order = random.Random(0)
    ratios = []
    for _ in range(pairs):
        times: dict[str, float] = {}
        for kind in order.sample(("bare", "measured"), 2):
            if kind == "bare":
                times[kind] = timed_s(lambda: bare(parts), device)
            else:
                forbid_syncs(device, "error")
                times[kind] = timed_s(lambda: measured(parts, clock), device)
                forbid_syncs(device, "default")
        ratios.append(times["measured"] / times["bare"])
    return ratios


def median_with_limit(values: list[float]) -> dict[str, float]:
    """Median, its one-sided 95 % upper limit, and the middle half of the values."""
    ordered = sorted(values)
    count = len(ordered)
    upper = min(count - 1, math.ceil(count / 2 + 1.645 * math.sqrt(count) / 2))
    return {
        "pairs": count,
        "median": statistics.median(ordered),
        "upper_95": ordered[upper],
        "quartile_1": ordered[count // 4],
        "quartile_3": ordered[(3 * count) // 4],
    }


def repeat(run: Callable[[], None]) -> None:
    """Run a step a hundred times."""
    for _ in range(100):
        run()


def cost_us(parts: list[Part], clock: Clock, device: torch.device, rounds: int) -> list[float]:
    """Microseconds that measuring adds to a short step; blocks of 100 steps, interleaved."""
    costs = []
    for _ in range(rounds):
        plain = timed_s(lambda: repeat(lambda: bare(parts)), device)
        with_clock = timed_s(lambda: repeat(lambda: measured(parts, clock)), device)
        costs.append((with_clock - plain) * 1e6 / 100)
    return costs


def calibrated(device: torch.device, *, width: int, batch: int, target_s: float) -> list[Part]:
    """Choose the number of layers so that a bare step takes about `target_s`."""
    layers = 4
    for _ in range(6):
        parts = TrainingStep(device, width=width, layers=layers, batch=batch).parts()
        bare(parts)
        took = statistics.median(timed_s(lambda p=parts: bare(p), device) for _ in range(5))
        if 0.9 < took / target_s < 1.12:
            break
        layers = max(1, min(2000, round(layers * target_s / took)))
    return TrainingStep(device, width=width, layers=layers, batch=batch).parts()


def examine(device: torch.device, pairs: int) -> dict[str, Any]:
    """Answer all questions for one device."""
    timer = cuda_timer() if device.type == "cuda" else None
    results: dict[str, Any] = {}
    wide = {"width": 4096, "batch": 8192} if device.type == "cuda" else {"width": 256, "batch": 256}
    shapes = {"ratio_20ms": wide}
    if device.type == "cuda":
        shapes["ratio_20ms_host_bound"] = {"width": 64, "batch": 64}
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in shapes.items():
            parts = calibrated(device, target_s=0.020, **shape)
            writer = RecordWriter(str(Path(folder) / name / "rank-0.jsonl"))
            clock = Clock(writer, timer)
            clock.begin_step()
            pair_ratios(parts, clock, device, 20)
            bare_ms = statistics.median(timed_s(lambda p=parts: bare(p), device) for _ in range(20))
            results[name] = median_with_limit(pair_ratios(parts, clock, device, pairs))
            results[name]["bare_step_ms"] = bare_ms * 1e3
            clock.close()
            writer.close()
        writer = RecordWriter(str(Path(folder) / "cost" / "rank-0.jsonl"))
        clock = Clock(writer, timer)
        clock.begin_step()
        parts = short_parts(device)
        cost_us(parts, clock, device, 5)
        costs = sorted(cost_us(parts, clock, device, 60))
        results["cost_us_per_step"] = median_with_limit(costs)
        clock.close()
        writer.close()
        results["bytes_per_step"] = Path(writer.path).stat().st_size / clock.step_index
    return results


def same_results(device: torch.device) -> bool:
    """Whether ten measured steps leave the same loss as ten bare ones, to the bit."""
    losses = []
    for with_clock in (False, True):
        training = TrainingStep(device, width=64, layers=4, batch=32)
        parts = training.parts()
        with tempfile.TemporaryDirectory() as folder:
            writer = RecordWriter(str(Path(folder) / "rank-0.jsonl"))
            clock = Clock(writer, cuda_timer() if device.type == "cuda" else None)
            clock.begin_step()
            for _ in range(10):
                _ = measured(parts, clock) if with_clock else bare(parts)
            clock.close()
            writer.close()
        losses.append(training.loss.detach().clone())
    return bool(torch.equal(losses[0], losses[1]))


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1200)
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"], choices=["cpu", "cuda"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    devices = [torch.device(name) for name in options.devices]
    if not torch.cuda.is_available():
        devices = [device for device in devices if device.type == "cpu"]
    report: dict[str, Any] = {
        "what": "cost of measuring: bare against measured steps, paired and interleaved",
        "spans_per_step": len(SPANS),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for device in devices:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU, one thread"
        report[device.type] = {
            "hardware": name,
            "bit_identical": same_results(device),
            **examine(device, options.pairs),
        }
    show(report, options.output)


if __name__ == "__main__":
    main()
