"""What `pitstop doctor -- CMD` costs a script: a watched and a bare process, step against step.

    python benchmarks/attach_overhead.py [--pairs 600] [--device cpu] [--output FILE.json]

The same small training runs in two processes, one with the probe in its start-up and one without.
They take turns, a few steps each, in random order within a pair, so that the machine's moods meet
both. Reported: the median ratio with its one-sided 95 % upper limit (order statistics) on steps of
about 20 ms, and the microseconds added to very short ones. Both must end with the same weights.

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
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import pitstop_probe
from overhead import median_with_limit

_PROBE = Path(pitstop_probe.__file__).parent
_WARM_UP = 40
_LIVES = 8

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


def turns(arguments: list[str], *, pairs: int, steps: int, seed: int) -> tuple[list[Pair], bool]:
    """Run one bare and one watched process against each other; tell whether they end alike."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        trainees = {"bare": Trainee(arguments, None), "watched": Trainee(arguments, folder)}
        for trainee in trainees.values():
            trainee.steps_us(_WARM_UP)
        times = [
            {kind: trainees[kind].steps_us(steps) for kind in chance.sample(list(trainees), 2)}
            for _ in range(pairs)
        ]
        digests = {trainee.end() for trainee in trainees.values()}
    return times, len(digests) == 1


def compare(device: str, width: int, layers: int, *, pairs: int, steps: int) -> dict[str, Any]:
    """Compare both over several lives: where memory lies makes one process faster than another."""
    times: list[Pair] = []
    alike = True
    for life in range(_LIVES):
        found, same = turns(
            [device, str(width), str(layers)], pairs=pairs // _LIVES, steps=steps, seed=life
        )
        times += found
        alike = alike and same
    bare = sorted(pair["bare"] for pair in times)
    return {
        "ratio": median_with_limit([pair["watched"] / pair["bare"] for pair in times]),
        "added_us_per_step": median_with_limit([p["watched"] - p["bare"] for p in times]),
        "bare_step_us": bare[len(bare) // 2],
        "steps_in_a_turn": steps,
        "process_pairs": _LIVES,
        "modules": 2 * layers + layers + 1,
        "same_weights": alike,
    }


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--train", nargs=3, metavar=("DEVICE", "WIDTH", "LAYERS"))
    options = parser.parse_args()
    if options.train:
        device, width, layers = options.train
        train(device, int(width), int(layers))
        return
    on_cpu = options.device == "cpu"
    name = "CPU, one thread" if on_cpu else torch.cuda.get_device_name()
    report = {
        "what": "cost of watching a script: a bare and a watched process, turn by turn",
        "hardware": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "steps_of_20_ms": compare(
            options.device,
            512 if on_cpu else 4096,
            9 if on_cpu else 10,
            pairs=options.pairs,
            steps=2,
        ),
        "short_steps": compare(options.device, 16, 1, pairs=options.pairs, steps=50),
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
