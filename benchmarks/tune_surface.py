"""Records the speed of every point of a small space many times, and lets the tuner's search at it.

    python -m benchmarks.tune_surface --record --cores 8-11 --seconds 150 --hardware "..."
    python -m benchmarks.tune_surface             # the search on what was recorded

Recording times every point in turns until the time is over, on each of the cores by itself, then
lets the search at it live, a few times on every core.

A trial is a few steps of a small convolutional network in this process: 72 ways to train it. Each
step is followed by one of a reference, and the time of a trial is the median ratio of the two, for
a machine drifts; in processor time of one thread, so that other work on it costs little. Rounds go
through all points in another order each. The true time of a point is the median over all rounds; a
replayed trial answers with one round, drawn at random, so that its noise is what was recorded.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from pitstop.tune.search import Axis, Point, Search, StepTimes

RESULT: Final = Path(__file__).parent / "results" / "tune_surface_cpu.json"
CUTS: Final = (1, 2, 4)
UPDATES: Final = ("loop", "foreach", "fused")
AXES: Final = (
    Axis(name="micro-batches", choices=len(CUTS), own=2, ordered=True),
    Axis(name="bf16", choices=2),
    Axis(name="channels last", choices=2),
    Axis(name="update", choices=len(UPDATES)),
    Axis(name="gradients to None", choices=2),
)
POINTS: Final = tuple(itertools.product(*(range(axis.choices) for axis in AXES)))
MOST_TRIALS: Final = len(POINTS) // 4
NEAR: Final = 1.03
BATCH: Final = 16
REFERENCE: Final = (0, 0, 0, 0, 0)
FEWEST_ROUNDS: Final = 4
LIVE_SEARCHES: Final = 3
"""On every core."""


Step = Callable[[], None]


def relative_time(step: Step, reference: Step, steps: int) -> float:
    """Time steps in turns with those of a reference; give the median of their ratios."""
    ratios: list[float] = []
    for _ in range(steps):
        start = time.process_time()
        step()
        between = time.process_time()
        reference()
        ratios.append((between - start) / (time.process_time() - between))
    return statistics.median(ratios)


def training(point: Point) -> Step:
    """Build the network and its step as a point says, warmed up."""
    cut, is_bf16, is_last, update, to_none = point
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(16 * 16, 2048), nn.ReLU(), nn.Linear(2048, 10))
    x, y = torch.randn(BATCH, 3, 16, 16), torch.randint(0, 10, (BATCH,))
    if is_last:
        for weight in model.parameters():
            if weight.dim() == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    way: dict[str, Any] = {} if update == 0 else {UPDATES[update]: True}
    optimizer = torch.optim.AdamW(model.parameters(), **{"foreach": False, **way})
    parts = list(zip(x.chunk(CUTS[cut]), y.chunk(CUTS[cut]), strict=True))

    def step() -> None:
        optimizer.zero_grad(set_to_none=bool(to_none))
        for inputs, targets in parts:
            with torch.autocast("cpu", dtype=torch.bfloat16) if is_bf16 else nullcontext():
                loss = nn.functional.cross_entropy(model(inputs).float(), targets)
            (loss / len(parts)).backward()
        optimizer.step()

    for _ in range(3):
        step()
    return step


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What one core is asked for."""

    core: int | None
    """None for whichever there is."""
    rounds: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What one core gave."""

    surface: dict[Point, list[float]]
    live: list[Point]
    """What searches of the running program chose."""


def record_on_cores(cores: Sequence[int], asked: Recording) -> Recorded:
    """Record on every core by itself; put the rounds of all together."""
    recordings = [
        Recording(core=core, rounds=asked.rounds, steps=asked.steps, seconds=asked.seconds)
        for core in cores
    ] or [asked]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(recordings), mp_context=context) as pool:
        parts = list(pool.map(record, recordings))
    surface = {point: [t for part in parts for t in part.surface[point]] for point in POINTS}
    return Recorded(surface=surface, live=[chosen for part in parts for chosen in part.live])


def record(asked: Recording) -> Recorded:
    """Time every point in every round, whole rounds only, until the time is over; then search."""
    if asked.core is not None:
        os.sched_setaffinity(0, {asked.core})
    torch.set_num_threads(1)
    end_s = time.monotonic() + asked.seconds
    trainings = {point: training(point) for point in POINTS}
    reference = training(REFERENCE)
    found: dict[Point, list[float]] = {point: [] for point in POINTS}
    dice = random.Random(asked.core)
    for done in range(asked.rounds):
        if done >= FEWEST_ROUNDS and time.monotonic() > end_s:
            break
        for point in dice.sample(POINTS, len(POINTS)):
            found[point].append(relative_time(trainings[point], reference, asked.steps))
    live = [
        searched(lambda point: relative_time(training(point), reference, asked.steps))[0]
        for _ in range(LIVE_SEARCHES)
    ]
    return Recorded(surface=found, live=live)


def truth(surface: dict[Point, list[float]]) -> dict[Point, float]:
    """Give the true time of every point, as far as the rounds tell."""
    return {point: statistics.median(times) for point, times in surface.items()}


def searched(answer: Callable[[Point], float]) -> tuple[Point, int]:
    """Let the search ask until it asks no more; give where it stands, and its trials."""
    search, trials = Search(AXES, most_trials=MOST_TRIALS), 0
    while (point := search.ask()) is not None:
        taken = answer(point)
        search.tell(StepTimes(wall_s=taken, compute_s=taken))
        trials += 1
    return search.best, trials


def replays(surface: dict[Point, list[float]], repeats: int) -> Iterator[tuple[float, int]]:
    """Search what was recorded; give the chosen time over the best, and the trials, each time."""
    true = truth(surface)
    best = min(true.values())
    for seed in range(repeats):
        dice = random.Random(seed)
        chosen, trials = searched(lambda point, dice=dice: dice.choice(surface[point]))
        yield true[chosen] / best, trials


def read_surface(path: Path) -> dict[Point, list[float]]:
    """Read what was recorded."""
    rows = json.loads(path.read_text(encoding="utf-8"))["points"]
    return {tuple(row["point"]): row["times"] for row in rows}


def spread(surface: dict[Point, list[float]]) -> float:
    """Give the usual noise of a trial: the median over points of their relative deviation."""
    return statistics.median(
        statistics.stdev(times) / statistics.fmean(times) for times in surface.values()
    )


def near_share(ratios: Sequence[float]) -> float:
    """Give the share of searches that ended near the best."""
    return sum(ratio <= NEAR for ratio in ratios) / len(ratios)


def cores_named(text: str) -> list[int]:
    """Read cores as ``taskset -c`` names them: 8-11,14."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def write_recorded(options: argparse.Namespace) -> None:
    """Record, and write it down with what the live searches chose."""
    asked = Recording(
        core=None, rounds=options.rounds, steps=options.steps, seconds=options.seconds
    )
    found = record_on_cores(cores_named(options.cores), asked)
    true = truth(found.surface)
    best = min(true.values())
    known = {
        "hardware": options.hardware,
        "torch": torch.__version__,
        "cores": options.cores,
        "axes": [axis.name for axis in AXES],
        "live_over_best": [round(true[point] / best, 4) for point in found.live],
        "points": [
            {"point": list(point), "times": [round(taken, 4) for taken in times]}
            for point, times in found.surface.items()
        ],
    }
    options.out.write_text(json.dumps(known) + "\n", encoding="utf-8")
    print(f"live over best: {known['live_over_best']}")


def main() -> None:
    """Record where asked, then search and say how near it came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--cores", default="", help="as taskset names them; each records by itself")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--hardware", default="2-core AMD EPYC, torch 2.13")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.record:
        write_recorded(options)
    if not options.repeats:
        return
    surface = read_surface(options.out)
    found = list(replays(surface, options.repeats))
    ratios = [ratio for ratio, _ in found]
    own = truth(surface)[tuple(axis.own for axis in AXES)]
    rounds = len(next(iter(surface.values())))
    print(f"{len(surface)} points, {rounds} rounds")
    print(f"own over best {own / min(truth(surface).values()):.2f}")
    print(f"noise of a trial {spread(surface):.1%}; most trials {max(n for _, n in found)}")
    print(f"within {NEAR - 1:.0%}: {near_share(ratios):.0%} of {len(ratios)}")
    print(f"median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}")


if __name__ == "__main__":
    main()
