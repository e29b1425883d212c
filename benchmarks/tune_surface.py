"""Records the speed of every point of a small space many times, and lets the tuner's search at it.

    python -m benchmarks.tune_surface --record --seconds 80 --hardware "..."
    python -m benchmarks.tune_surface             # the search on what was recorded

Recording times every point in turns until the time is over, then lets the search at it live.

A trial is a few steps of a small convolutional network in this process: 72 ways to train it. Each
step is followed by one of a reference, and the time of a trial is the median ratio of the two, for
a machine drifts; in processor time of one thread, so that other work on it costs little. Rounds go
through all points in another order each. The true time of a point is the median over all rounds; a
replayed trial answers with one round, drawn at random, so that its noise is what was recorded.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
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


def record(rounds: int, steps: int, seconds: float) -> dict[Point, list[float]]:
    """Time every point in every round, whole rounds only, until the time is over."""
    end_s = time.monotonic() + seconds
    trainings = {point: training(point) for point in POINTS}
    reference = training(REFERENCE)
    found: dict[Point, list[float]] = {point: [] for point in POINTS}
    dice = random.Random(0)
    for done in range(rounds):
        if done >= FEWEST_ROUNDS and time.monotonic() > end_s:
            break
        for point in dice.sample(POINTS, len(POINTS)):
            found[point].append(relative_time(trainings[point], reference, steps))
    return found


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


def main() -> None:
    """Record where asked, then search and say how near it came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--hardware", default="2-core AMD EPYC, torch 2.13")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known: dict[str, Any] = {}
    if options.record:
        surface = record(options.rounds, options.steps, options.seconds)
        rows = [{"point": list(p), "times": [round(s, 4) for s in t]} for p, t in surface.items()]
        reference = training(REFERENCE)
        live, _ = searched(lambda point: relative_time(training(point), reference, options.steps))
        true = truth(surface)
        known = {
            "hardware": options.hardware,
            "axes": [axis.name for axis in AXES],
            "live_over_best": true[live] / min(true.values()),
            "points": rows,
        }
        options.out.write_text(json.dumps(known) + "\n", encoding="utf-8")
    surface = read_surface(options.out)
    found = list(replays(surface, options.repeats))
    ratios = [ratio for ratio, _ in found]
    own = truth(surface)[tuple(axis.own for axis in AXES)]
    print(f"{len(surface)} points; own over best {own / min(truth(surface).values()):.2f}")
    print(f"noise of a trial {spread(surface):.1%}; most trials {max(n for _, n in found)}")
    print(f"within {NEAR - 1:.0%}: {near_share(ratios):.0%} of {len(ratios)}")
    print(f"median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}")
    if known:
        print(f"live over best: {known['live_over_best']:.3f}")


if __name__ == "__main__":
    main()
