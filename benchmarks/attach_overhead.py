"""What watching a script costs: the same training in one process, watched and not, by turns.

    python benchmarks/attach_overhead.py [--pairs 400] [--lives 4] [--device cpu]
                                         [--only steps_of_20_ms] [--output FILE.json]

A process trains, with the probe attached. It is taken off and put on again, and after each time
some steps are timed: two such turns next to each other, one watched and one not, are a pair; which
comes first is drawn. Reported: the median ratio with its one-sided 95 % upper limit (order
statistics), the microseconds added to a step, and the ratio of all watched steps together to all
others, which also has what the probe does rarely. A process that is never watched must end with the
same weights.

Two processes of the same training, even both unwatched, differ by up to 5 %, by where their memory
happens to lie; and so do two kinds of turn that allocate in another order. So both kinds are one
process, and before every pair some memory of drawn sizes is taken and given back, which moves the
rest. What the doctor reads from outside (memory, load) is not in it: it runs beside the script.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from overhead import median_with_limit
from pitstop_probe.attach import attach
from pitstop_probe.measurement import Measurement
from progress import write

KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
"""glibc hands freed memory back and has it zeroed anew, in some steps more than in others: single
steps next to each other then differ by 3.5 %, else by 0.7 % (IQR, quiet cores)."""

SETTLE = 120
"""Steps before the first turn: by then it is known how short steps are."""

Pair = dict[str, float]
"""Microseconds a step, bare and watched."""


class Batches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same batch over and over, through a DataLoader as in any script."""

    def __init__(self, batch: int, width: int) -> None:
        self._batch = torch.randn(batch, width), torch.randn(batch, width)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield self._batch


class Training:
    """A small training that makes steps on request."""

    def __init__(self, device: str, width: int, layers: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._device = device
        blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
        self.model = nn.Sequential(*blocks).to(device)
        is_fused = device == "cuda"
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=is_fused)
        self._criterion = nn.MSELoss()
        self._batches = iter(DataLoader(Batches(1024 if is_fused else 64, width), batch_size=None))
        self._pads: list[torch.Tensor] = []

    def move_memory(self, chance: random.Random) -> None:
        """Have later allocations lie elsewhere than they did."""
        self._pads = [torch.empty(chance.randrange(1 << 20), dtype=torch.uint8) for _ in range(8)]
        del self._pads[::2]

    def run(self, steps: int) -> float:
        """Make some steps; give microseconds a step."""
        start = time.perf_counter_ns()
        for _ in range(steps):
            source, target = next(self._batches)
            source, target = source.to(self._device), target.to(self._device)
            self._optimizer.zero_grad()
            loss = self._criterion(self.model(source), target)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
        if self._device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) / 1000 / steps

    def digest(self) -> str:
        """Sum the weights up."""
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A training of steps of some length, and how many of them make a turn."""

    width: int
    layers: int
    steps: int
    first_steps: int
    """Of a turn, not timed: what was put on or taken off is new to the processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What each process does."""

    device: str
    size: Size
    pairs: int


def live(plan: Plan, number: int) -> dict[str, Any]:
    """Train in one process, watched and not by turns; or not watched at all (number 0)."""
    chance, size = random.Random(number), plan.size
    with tempfile.TemporaryDirectory() as folder:
        probe = attach(f"{folder}/run") if number > 0 else None
        # A loader is observed from its start, so it is made now.
        training = Training(plan.device, size.width, size.layers)
        training.run(SETTLE)
        pairs = [pair_of_turns(training, probe, size, chance) for _ in range(plan.pairs)]
        if probe is not None:
            probe.close()
    return {"pairs": pairs, "weights": training.digest()}


def pair_of_turns(
    training: Training, probe: Measurement | None, size: Size, chance: random.Random
) -> Pair:
    """Time one turn of each kind; without a probe both are bare."""
    training.move_memory(chance)
    pair: Pair = {}
    for kind in chance.sample(["bare", "watched"], 2):
        if probe is not None:
            switch = probe.resume if kind == "watched" else probe.pause
            switch()
        training.run(size.first_steps)
        pair[kind] = training.run(size.steps)
    return pair


def sizes(device: str) -> dict[str, Size]:
    """Give the trainings that are compared."""
    if device == "cpu":
        long = Size(width=512, layers=9, steps=3, first_steps=1)
    else:
        long = Size(width=4096, layers=7, steps=2, first_steps=1)
    short = Size(width=16, layers=1, steps=50, first_steps=10)
    return {"steps_of_20_ms": long, "short_steps": short}


def in_a_process(title: str, plan: Plan, number: int) -> dict[str, Any]:
    """Do one life in a process of its own."""
    command = [sys.executable, __file__, "--device", plan.device, "--only", title]
    command += ["--live", str(number), str(plan.pairs)]
    environment = {**os.environ, **KEEPS_MEMORY, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def ratio_of(pairs: list[Pair]) -> dict[str, float]:
    """Median of watched to bare, with its upper limit."""
    return median_with_limit([pair["watched"] / pair["bare"] for pair in pairs])


def compare(title: str, plan: Plan, lives: int) -> Iterator[dict[str, Any]]:
    """Compare over several processes, and the weights with those of one that is not watched.

    Gives what is known after each process, for a run may be cut off.
    """
    done: list[dict[str, Any]] = []
    for number in range(1, lives + 1):
        done.append(in_a_process(title, plan, number))
        yield known_after(done, plan)
    unwatched = in_a_process(title, plan, 0)
    yield {
        **known_after(done, plan),
        "ratio_when_never_watched": ratio_of(unwatched["pairs"]),
        "same_weights": all(one["weights"] == unwatched["weights"] for one in done),
    }


def known_after(done: list[dict[str, Any]], plan: Plan) -> dict[str, Any]:
    """Sum up the processes that have ended."""
    pairs: list[Pair] = [pair for one in done for pair in one["pairs"]]
    bare = sorted(pair["bare"] for pair in pairs)
    return {
        "ratio": ratio_of(pairs),
        "ratio_by_process": [ratio_of(one["pairs"])["median"] for one in done],
        "ratio_of_sums": sum(pair["watched"] for pair in pairs) / sum(bare),
        "added_us_per_step": median_with_limit([p["watched"] - p["bare"] for p in pairs]),
        "bare_step_us": bare[len(bare) // 2],
        "steps_in_a_turn": plan.size.steps,
        "processes": len(done),
        "modules": 3 * plan.size.layers + 1,
    }


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--lives", type=int, default=4)
    parser.add_argument("--only", choices=list(sizes("cpu")))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--live", nargs=2, type=int, help="Used by this file itself.")
    options = parser.parse_args()
    if options.live:
        title, (number, pairs) = options.only, options.live
        plan = Plan(device=options.device, size=sizes(options.device)[title], pairs=pairs)
        print(json.dumps(live(plan, number)))
        return
    name = "CPU, one thread" if options.device == "cpu" else torch.cuda.get_device_name()
    report: dict[str, Any] = {
        "what": "cost of watching a script: one process, watched and not, by turns",
        "hardware": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for title, size in sizes(options.device).items():
        if options.only in (None, title):
            plan = Plan(device=options.device, size=size, pairs=-(-options.pairs // options.lives))
            for known in compare(title, plan, options.lives):
                report[title] = known
                write(report, options.output)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
