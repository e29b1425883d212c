"""How fast retrieval scores are had, against the loops that re-identification code has.

    python benchmarks/reid_ranking.py [--pairs 5] [--list-queries 3368] [--large] [--output FILE]

The size of Market-1501: 3,368 queries and 15,913 images, of which 13,115 show one of 750 people and
the others nobody; 512 numbers a feature, six cameras, images of the query's camera left out. All
ways get the same float32 similarities and must give the same mAP and R1.

- list: all rows sorted at once, then query by query masks, running sums, and precision in a list
  over the whole row, as the Python evaluation of common re-identification code has it.
- arrays: the same loop, with the list replaced by array division: what careful NumPy can do.
- ours: `pitstop.workloads.reid.ranking`.

Ways run one after the other, in turn, several times (ours five times a turn, of which the median
counts). The list takes a minute or more and can be given fewer queries, and then ours gets the same
ones. A ratio is taken within a turn, of seconds on the wall clock and of processor time, since
others may share the machine. The product of features is in none of them; a third ratio adds it to
both sides (ours makes it tile by tile).

Features come in two kinds: of a model that has learned (mAP about 0.85), and noise, where images of
a person lie anywhere. With `--large`, 7,200 queries against 45,113 images in a process of its own:
time, and the peak of the whole process, features and their making included.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pitstop.workloads.reid.ranking import Labels, rank, rank_similarities, summary
from progress import processor

QUERIES, IMAGES, SHOWN, PEOPLE, CAMERAS, WIDTH = 3368, 15913, 13115, 750, 6, 512
FEATURES = {"learned": 1.8, "noise": 1000.0}
"""Noise of a feature around its person, in spreads of people."""

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Doubles = NDArray[np.float64]
Precision = Callable[[Integers], Doubles]
Scores = tuple[float, float]
Seconds = tuple[float, float]
"""On the wall clock, and of the processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Features and labels of queries and gallery."""

    query: Floats
    gallery: Floats
    query_labels: Labels
    gallery_labels: Labels


def make(noise: float, *, queries: int, images: int, shown: int, people: int) -> Problem:
    """Draw people, images of them, and images of nobody."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((people, WIDTH), dtype=np.float32)
    share = rng.gamma(4.0, size=people)
    share /= share.sum()
    of_gallery = np.full(images, -1)
    of_gallery[:shown] = rng.choice(people, shown, p=share)
    rng.shuffle(of_gallery)
    of_query = rng.choice(people, queries, p=share)

    def features(persons: Integers) -> Floats:
        strangers = rng.standard_normal((len(persons), WIDTH), dtype=np.float32)
        rows = np.where((persons >= 0)[:, None], centres[persons], strangers)
        spread = noise * np.exp(0.35 * rng.standard_normal((len(persons), 1), dtype=np.float32))
        rows += spread * rng.standard_normal(rows.shape, dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    return Problem(
        query=features(of_query),
        gallery=features(of_gallery),
        query_labels=Labels(persons=of_query, cameras=rng.integers(0, CAMERAS, queries)),
        gallery_labels=Labels(persons=of_gallery, cameras=rng.integers(0, CAMERAS, images)),
    )


def loop(similarities: Floats, problem: Problem, precision: Precision) -> Scores:
    """Score query by query over rows sorted in full."""
    persons, cameras = problem.gallery_labels.persons, problem.gallery_labels.cameras
    asked, taken_by = problem.query_labels.persons, problem.query_labels.cameras
    assert cameras is not None
    assert taken_by is not None
    order = np.argsort(-similarities, axis=1)
    matches = (persons[order] == asked[:, np.newaxis]).astype(np.int32)
    precisions, firsts = [], []
    for query in range(len(asked)):
        row = order[query]
        left_out = (persons[row] == asked[query]) & (cameras[row] == taken_by[query])
        hits = matches[query][~left_out]
        if not np.any(hits):
            continue
        found = hits.cumsum()
        seen = found.copy()
        seen[seen > 1] = 1
        firsts.append(seen[:50])
        precisions.append((precision(found) * hits).sum() / hits.sum())
    return float(np.mean(precisions)), float(np.mean([first[0] for first in firsts]))


def precision_list(found: Integers) -> Doubles:
    """Divide in a Python list."""
    return np.asarray([count / (place + 1.0) for place, count in enumerate(found)])


def precision_arrays(found: Integers) -> Doubles:
    """Divide in one go."""
    return found / np.arange(1.0, len(found) + 1.0)


def ours(similarities: Floats, problem: Problem) -> Scores:
    """Rank the images of each query's person only."""
    found = summary(
        rank_similarities(
            torch.from_numpy(similarities), problem.query_labels, problem.gallery_labels
        )
    )
    return found.mean_average_precision, found.r1


def ours_with_product(problem: Problem) -> Scores:
    """Rank from features."""
    found = summary(
        rank(
            torch.from_numpy(problem.query),
            torch.from_numpy(problem.gallery),
            problem.query_labels,
            problem.gallery_labels,
        )
    )
    return found.mean_average_precision, found.r1


def timed(work: Callable[[], Scores], *, repeats: int = 1) -> tuple[Seconds, Scores]:
    """Give the median time of a run, and what came of it."""
    wall, processor, found = [], [], (0.0, 0.0)
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        found = work()
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
    return (statistics.median(wall), statistics.median(processor)), found


def first_of(problem: Problem, count: int) -> Problem:
    """Keep the first queries only."""
    labels = problem.query_labels
    assert labels.cameras is not None
    some = Labels(persons=labels.persons[:count], cameras=labels.cameras[:count])
    return replace(problem, query=problem.query[:count], query_labels=some)


def turn(problem: Problem, *, list_queries: int) -> dict[str, Seconds]:
    """Run every way in turn; seconds by name."""
    started, used = time.perf_counter(), time.process_time()
    similarities = (torch.from_numpy(problem.query) @ torch.from_numpy(problem.gallery).T).numpy()
    seconds = {"product": (time.perf_counter() - started, time.process_time() - used)}
    results = {}
    ways: dict[str, tuple[Callable[[], Scores], int]] = {
        "arrays": (lambda: loop(similarities, problem, precision_arrays), 1),
        "ours": (lambda: ours(similarities, problem), 5),
        "ours with product": (lambda: ours_with_product(problem), 1),
    }
    for name, (work, repeats) in ways.items():
        seconds[name], results[name] = timed(work, repeats=repeats)
    if list_queries:
        some, rows = first_of(problem, list_queries), similarities[:list_queries]
        seconds["list"], slow = timed(lambda: loop(rows, some, precision_list))
        seconds["ours on the list's"], quick = timed(lambda: ours(rows, some), repeats=5)
        assert np.allclose(slow, quick, rtol=0, atol=1e-9), (slow, quick)
    for name, found in results.items():
        # Products of tiles round otherwise than that of the whole, which may swap near equals.
        tolerance = 1e-5 if "product" in name else 1e-9
        assert np.allclose(found, results["arrays"], rtol=0, atol=tolerance), (name, found)
    print(", ".join(f"{name} {wall:.3f} s" for name, (wall, _) in seconds.items()), flush=True)
    return seconds


def ratios(turns: list[dict[str, Seconds]]) -> dict[str, dict[str, float | list[float]]]:
    """Compare within turns."""
    found = {}
    for way, mine in (("list", "ours on the list's"), ("arrays", "ours")):
        some = [one for one in turns if way in one]
        for clock, label in enumerate(("wall clock", "processor time")):
            if some:
                found[f"{way} / ours, {label}"] = spread(
                    [one[way][clock] / one[mine][clock] for one in some]
                )
    found["arrays / ours, product in both, wall clock"] = spread(
        [(one["product"][0] + one["arrays"][0]) / one["ours with product"][0] for one in turns]
    )
    return found


def spread(values: list[float]) -> dict[str, float | list[float]]:
    """Median, and all of it."""
    return {
        "median": round(statistics.median(values), 2),
        "all": [round(value, 2) for value in values],
    }


def large() -> dict[str, float]:
    """Rank a large gallery in a process of its own; seconds and bytes."""
    command = [sys.executable, __file__, "--large-child", "--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return json.loads(done.stdout)


def large_child() -> None:
    """Print what ranking a large gallery took."""
    import resource

    problem = make(1.8, queries=7200, images=45113, shown=45113, people=1000)
    features = problem.query.nbytes + problem.gallery.nbytes
    (seconds, _), (mean_ap, _) = timed(lambda: ours_with_product(problem))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "queries": 7200,
                "images": 45113,
                "seconds": round(seconds, 2),
                "peak_process_bytes": peak,
                "feature_bytes": features,
                "mAP": round(mean_ap, 4),
            }
        )
    )


def main() -> None:
    """Run all and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--list-queries", type=int, default=QUERIES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--large-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.large_child:
        large_child()
        return
    results: dict[str, object] = {
        "benchmark": "reid_ranking",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "processor": f"{processor()}, {os.cpu_count()} seen",
        "threads": options.threads,
        "queries": QUERIES,
        "images": IMAGES,
        "people": PEOPLE,
        "list_queries": options.list_queries,
        "feature_width": WIDTH,
        "load_average_before": [round(value, 1) for value in os.getloadavg()],
        "unit": "ratio of seconds within a turn",
    }
    for name, noise in FEATURES.items():
        problem = make(noise, queries=QUERIES, images=IMAGES, shown=SHOWN, people=PEOPLE)
        lists = options.list_queries if name == "learned" else 0
        turns = [turn(problem, list_queries=lists) for _ in range(options.pairs)]
        found = ratios(turns)
        for pair, values in found.items():
            print(f"{name:8} {pair:44} {values['median']} of {values['all']}", flush=True)
        results[name] = {
            "mAP": round(ours_with_product(problem)[0], 4),
            "ratios": found,
            "wall_s": [{way: round(wall, 4) for way, (wall, _) in one.items()} for one in turns],
            "processor_s": [{way: round(cpu, 4) for way, (_, cpu) in one.items()} for one in turns],
        }
    if options.large:
        results["large"] = large()
        print("large", results["large"])
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
