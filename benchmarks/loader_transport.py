"""What it costs to hand a batch over: torch's own way against the ring of slots.

    python benchmarks/loader_transport.py [--repeats 5] [--output FILE.json]

Batches have the four tensors of a deblurring batch. Two workers copy them from memory, so that
nothing but the handing over is left; the loop rests 10 ms after each batch, so that the next one
is always finished when it is asked for. Times are medians over the batches of a run, of which the
least of several interleaved runs counts: another job on the machine only ever adds to them.
"""

import argparse
import json
import platform
import statistics
import threading
import time
from pathlib import Path

import torch
from torch import Tensor

from pitstop.config.sections import LoaderSection
from pitstop.data.loader import ring
from pitstop.data.loader.batches import build_loader
from pitstop.data.sampling.samplers import ShuffledBatches

MEGABYTES = (0.001, 0.59, 2.36, 9.4, 18.9, 37.7)
BATCHES = 40
REST_S = 0.010


class Blocks:
    """Samples of a size; making one is copying it."""

    def __init__(self, size: int) -> None:
        self._blur = torch.zeros(max(1, size // 2), dtype=torch.uint8)
        self._sharp = torch.zeros(max(1, size // 2), dtype=torch.uint8)

    def __len__(self) -> int:
        return 2 * BATCHES

    def sample(self, epoch: int, index: int) -> tuple[Tensor, ...]:
        """Give four tensors."""
        del epoch
        return self._blur, self._sharp, torch.tensor(index), torch.ones(6, dtype=torch.bool)


def stack(samples: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Join as a task does."""
    return [torch.stack(tensors) for tensors in zip(*samples, strict=True)]


def measure(size: int, *, with_ring: bool) -> dict[str, float]:
    """Hand a run of batches over; give milliseconds a batch."""
    has_rings = ring.has_rings
    ring.has_rings = has_rings if with_ring else lambda: False
    samples = Blocks(size)
    order = ShuffledBatches(len(samples), 1, seed=0, drop_last=True)
    takes, uses, cpu = [], [], []
    target = torch.empty(max(1, size // 2), dtype=torch.uint8)
    rest = threading.Event()
    with build_loader(samples, order, stack, LoaderSection(workers=2)) as loader:
        batches = iter(loader)
        for number in range(2 * BATCHES):
            rest.wait(REST_S)
            begun, begun_cpu = time.perf_counter(), time.thread_time()
            batch, _ = next(batches)
            taken = time.perf_counter()
            for tensor in batch[:2]:
                target.copy_(tensor[0])
            if number >= BATCHES:  # the first ones find out how large the slots must be
                takes.append(taken - begun)
                uses.append(time.perf_counter() - taken)
                cpu.append(time.thread_time() - begun_cpu)
            del batch
    ring.has_rings = has_rings
    named = {"take_ms": takes, "read_ms": uses, "loop_cpu_ms": cpu}
    return {name: statistics.median(values) * 1e3 for name, values in named.items()}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for megabytes in MEGABYTES:
        runs: dict[str, list[dict[str, float]]] = {"torch": [], "ring": []}
        for _ in range(args.repeats):
            for way, found in runs.items():
                found.append(measure(int(megabytes * 1e6), with_ring=way == "ring"))
        row: dict[str, object] = {"batch_mb": megabytes}
        for way, found in runs.items():
            row[way] = {name: round(min(run[name] for run in found), 3) for name in found[0]}
        rows.append(row)
        print(row, flush=True)
    report = {"processor": platform.processor(), "torch": torch.__version__, "rows": rows}
    if args.output is not None:
        args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
