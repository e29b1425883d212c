"""What `pitstop doctor -- CMD` costs a script: a watched and a bare process, step against step.

    python benchmarks/attach_overhead.py [--pairs 600] [--lives 8] [--device cpu]
                                         [--only steps_of_20_ms] [--output FILE.json]

The same small training runs in two processes, one with the probe in its start-up and one without.
They take turns, a few steps each, in random order within a pair, so that the machine's moods meet
both. Reported: the median ratio with its one-sided 95 % upper limit (order statistics) on steps of
about 20 ms, and the microseconds added to very short ones. Both must end with the same weights.
Processes of several lives are started at once, for where the memory of one lies makes it faster or
slower than another; `--lives 4 --pairs 400` takes about a minute each on an accelerator.

What the doctor reads from outside (memory, load) is not in it: it runs beside the script.
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

import pitstop_probe
from overhead import median_with_limit

_PROBE = Path(pitstop_probe.__file__).parent
_WARM_UP = 40

# Microseconds a step by kind, bare and watched.
Pair = dict[str, float]


class Batches(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same batch over and over, through a DataLoader as in any script."""

    def __init__(self, batch: int, width: int) -> None:
        self._batch = torch.randn(batch, width), torch.randn(batch, width)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield self._batch


def train(device: str, width: int, layers: int) -> None:
    """Train in turns: read how many steps to make, make them, answer how long they took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    model = nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    criterion = nn.MSELoss()
    batches = iter(DataLoader(Batches(64 if device == "cpu" else 1024, width), batch_size=None))
    for line in sys.stdin:
        start = time.perf_counter_ns()
        for _ in range(int(line)):
            source, target = next(batches)
            source, target = source.to(device), target.to(device)
            optimizer.zero_grad()
            loss = criterion(model(source), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        print(time.perf_counter_ns() - start, flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print(digest.hexdigest(), flush=True)


class Trainee:
    """One of the two processes."""

    def __init__(self, arguments: list[str], folder: str | None) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        if folder is not None:
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(_PROBE / "startup"), environment.get("PYTHONPATH", "")]
            )
            environment["PITSTOP_PROBE_PATH"] = str(_PROBE)
            environment["PITSTOP_PROBE"] = json.dumps({"folder": folder})
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--train", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def steps_us(self, count: int) -> float:
        """Make some steps; give microseconds a step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) / 1000 / count

    def end(self) -> str:
        """End it and give the digest of its weights."""
        out, _ = self.process.communicate()
        return out.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A training of steps of some length, and how many of them make a turn."""

    width: int
    layers: int
    steps: int


def sizes(device: str) -> dict[str, Size]:
    """Give the trainings that are compared."""
    if device == "cpu":
        long = Size(width=512, layers=9, steps=2)
    else:
        long = Size(width=4096, layers=10, steps=2)
    return {"steps_of_20_ms": long, "short_steps": Size(width=16, layers=1, steps=40)}


class Life:
    """A bare and a watched process, against each other."""

    def __init__(self, arguments: list[str], folder: str) -> None:
        self._trainees = {"bare": Trainee(arguments, None), "watched": Trainee(arguments, folder)}

    def warm_up(self) -> None:
        """Wait for both to have started, and let the probe find its way."""
        for trainee in self._trainees.values():
            trainee.steps_us(_WARM_UP)

    def turn(self, steps: int, chance: random.Random) -> Pair:
        """Let each make some steps, in random order."""
        kinds = chance.sample(list(self._trainees), 2)
        return {kind: self._trainees[kind].steps_us(steps) for kind in kinds}

    def ends_alike(self) -> bool:
        """End both and compare their weights."""
        return len({trainee.end() for trainee in self._trainees.values()}) == 1


def compare(device: str, size: Size, *, pairs: int, lives: int) -> dict[str, Any]:
    """Compare both over several lives, turn by turn."""
    chance = random.Random(0)
    arguments = [device, str(size.width), str(size.layers)]
    with tempfile.TemporaryDirectory() as folder:
        started = [Life(arguments, f"{folder}/{number}") for number in range(lives)]
        for life in started:
            life.warm_up()
        # One life after the other: what the probe does twice a second would otherwise fall on the
        # few steps that a process makes in all that time.
        times = [started[pair * lives // pairs].turn(size.steps, chance) for pair in range(pairs)]
        alike = [life.ends_alike() for life in started]
    bare = sorted(pair["bare"] for pair in times)
    return {
        "ratio": median_with_limit([pair["watched"] / pair["bare"] for pair in times]),
        "added_us_per_step": median_with_limit([p["watched"] - p["bare"] for p in times]),
        "bare_step_us": bare[len(bare) // 2],
        "steps_in_a_turn": size.steps,
        "process_pairs": lives,
        "modules": 3 * size.layers + 1,
        "same_weights": all(alike),
    }


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--lives", type=int, default=8)
    parser.add_argument("--only", choices=list(sizes("cpu")))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--train", nargs=3, metavar=("DEVICE", "WIDTH", "LAYERS"))
    options = parser.parse_args()
    if options.train:
        device, width, layers = options.train
        train(device, int(width), int(layers))
        return
    name = "CPU, one thread" if options.device == "cpu" else torch.cuda.get_device_name()
    report: dict[str, Any] = {
        "what": "cost of watching a script: a bare and a watched process, turn by turn",
        "hardware": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for title, size in sizes(options.device).items():
        if options.only in (None, title):
            report[title] = compare(options.device, size, pairs=options.pairs, lives=options.lives)
    text = json.dumps(report, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
