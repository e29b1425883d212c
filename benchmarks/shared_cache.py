"""The shared cache against its promises: memory, hit rates, cost of a hit, cost of a crop.

    python benchmarks/shared_cache.py [--budget-mib 512] [--output FILE.json]

- memory: two ranks with four workers each read 4 GiB of generated items in shuffled order. Reported
  is the proportional set size of the whole process tree at its highest, for no cache, for one
  shared cache, and for the usual way, an LRU of that budget in every process.
- hit rates: each policy on the orders of reading it is meant for.
- cost: a hit in items of 33 MB, and a crop of 256 x 256 out of one of them, against cloning the
  whole item and cropping the clone, in blocks that alternate. The clone is torch's, freed at once,
  so that the next one finds its memory mapped: the best case of the usual way. Beside it stands
  the same with the crops of a batch kept until they are stacked, as a loader's worker keeps them,
  and a crop in a process that has not touched this part of the cache before.

Items are functions of their key, every hit is compared with what it must be in 64 places, and the
benchmark ends at the first wrong byte.
"""

import argparse
import json
import multiprocessing
import os
import pickle
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pitstop.data.cache.shared import SharedCache
from pitstop.measure.host.process_tree import tree_memory
from progress import processor, show

MIB = 1 << 20
ITEM_BYTES = 4 * MIB
RANKS, WORKERS = 2, 4
KINDS = ("none", "shared", "per process")


class PerProcessLru:
    """The usual cache of a dataset: an ordered dictionary in every process, cloned on every hit."""

    def __init__(self, budget_bytes: int) -> None:
        self._left_bytes = budget_bytes
        self._items: OrderedDict[int, np.ndarray] = OrderedDict()

    def get(self, key: int) -> np.ndarray | None:
        """Give a clone of an item."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item.copy()

    def put(self, key: int, array: np.ndarray) -> bool:
        """Keep a copy and drop the least recently used."""
        self._items[key] = array.copy()
        self._left_bytes -= array.nbytes
        while self._left_bytes < 0:
            self._left_bytes += self._items.popitem(last=False)[1].nbytes
        return True


class NoCache:
    """Never has anything."""

    def get(self, key: int) -> None:
        """Have nothing."""
        del key

    def put(self, key: int, array: np.ndarray) -> bool:
        """Keep nothing."""
        del key, array
        return False


AnyCache = SharedCache | PerProcessLru | NoCache


def fill(item: np.ndarray, key: int) -> None:
    """Make the item of a key: 64 numbers that follow from it, spread over constant bytes."""
    item[:] = key % 251
    item[:: len(item) // 64] = (np.arange(len(item[:: len(item) // 64])) * 37 + key) % 256


def check(item: np.ndarray, key: int) -> None:
    """End the benchmark at a wrong byte."""
    places = item[:: len(item) // 64]
    assert np.array_equal(places, (np.arange(len(places)) * 37 + key) % 256), key
    assert item[len(item) // 64 - 1] == key % 251, key


def read_share(cache: AnyCache, keys: list[int], ready: Any, leave: Any) -> None:
    """One worker: read its share of an order, say so, and stay until told to leave."""
    buffer = np.zeros(ITEM_BYTES, np.uint8)
    hits = 0
    for key in keys:
        item = cache.get(key)
        if item is None:
            fill(buffer, key)
            cache.put(key, buffer)
        else:
            check(item, key)
            hits += 1
        del item
    ready.put(hits)
    leave.wait()


def run_rank(kind: str, budget_bytes: int, rank: int, handle: str, items: int) -> None:
    """One rank: four workers, each with every eighth batch of three shuffled epochs."""
    cache: AnyCache = NoCache()
    if kind == "shared":
        cache = pickle.loads(bytes.fromhex(handle))
    elif kind == "per process":
        cache = PerProcessLru(budget_bytes)
    order = [key for epoch in range(3) for key in random.Random(epoch).sample(range(items), items)]
    context = multiprocessing.get_context("fork")
    ready, leave = context.Queue(), context.Event()
    shares = [order[rank * WORKERS + worker :: RANKS * WORKERS] for worker in range(WORKERS)]
    workers = [
        context.Process(target=read_share, args=(cache, share, ready, leave)) for share in shares
    ]
    for worker in workers:
        worker.start()
    hits = sum(ready.get() for _ in workers)
    print(json.dumps({"hits": hits, "lookups": len(order) // RANKS}), flush=True)
    sys.stdin.read()
    leave.set()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0


def tree_pss_bytes() -> int:
    """Memory of this process and everything below it."""
    memory = tree_memory()
    assert memory is not None
    assert memory.basis == "pss"
    return memory.tree_bytes


def measure_memory(kind: str, budget_bytes: int, items: int) -> dict[str, Any]:
    """Run both ranks and watch the memory of the tree."""
    cache = SharedCache(budget_bytes) if kind == "shared" else None
    handle = "" if cache is None else pickle.dumps(cache).hex()
    count = str(items)
    started_s = time.perf_counter()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", kind, str(budget_bytes), str(rank), handle, count],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    peak_bytes = 0
    reports = []
    for rank in ranks:
        assert rank.stdout is not None
        os.set_blocking(rank.stdout.fileno(), False)
        while not (line := rank.stdout.readline()):
            peak_bytes = max(peak_bytes, tree_pss_bytes())
            assert rank.poll() is None, "a rank has failed"
            time.sleep(0.3)
        reports.append(json.loads(line))
    wall_s = time.perf_counter() - started_s
    # All have read everything and hold what they hold.
    peak_bytes = max(peak_bytes, tree_pss_bytes())
    for rank in ranks:
        rank.communicate()
    result = {
        "peak_tree_pss_mib": peak_bytes / MIB,
        "hit_rate_over_three_epochs": sum(r["hits"] for r in reports)
        / sum(r["lookups"] for r in reports),
        "wall_s": wall_s,
    }
    if cache is not None:
        print(cache.stats())
        cache.close()
    return result


def examine_memory(budget_bytes: int) -> dict[str, Any]:
    """Compare no cache, the shared cache and a cache in every process."""
    items = 8 * budget_bytes // ITEM_BYTES
    runs = {kind: measure_memory(kind, budget_bytes, items) for kind in KINDS}
    base = runs["none"]["peak_tree_pss_mib"]
    above = {kind: runs[kind]["peak_tree_pss_mib"] - base for kind in KINDS[1:]}
    budget = budget_bytes / MIB
    return {
        "budget_mib": budget,
        "dataset_mib": items * ITEM_BYTES / MIB,
        "processes": f"{RANKS} ranks of {WORKERS} workers",
        "runs": runs,
        "shared_above_no_cache_mib": above["shared"],
        "allowed_mib": 1.05 * budget + 64,
        "shared_over_budget": above["shared"] / budget,
        "per_process_over_budget": above["per process"] / budget,
    }


def read(cache: SharedCache, keys: list[int], item: np.ndarray) -> float:
    """Use a cache as a dataset does; the share of lookups that hit."""
    hits = 0
    for key in keys:
        if cache.get(key) is None:
            cache.put(key, item)
        else:
            hits += 1
    return hits / len(keys)


def windows(seed: int, *, grouped: bool) -> list[int]:
    """Frames of an epoch of six-frame windows over 22 clips of 101 frames."""
    rng = random.Random(seed)
    starts = [(clip, first) for clip in range(22) for first in range(96)]
    if grouped:
        rank_of = rng.sample(range(22), 22)
        starts.sort(key=lambda start: rank_of[start[0]])
    else:
        rng.shuffle(starts)
    return [clip * 101 + first + step for clip, first in starts for step in range(6)]


def examine_hit_rates(item_bytes: int) -> dict[str, Any]:
    """Hit rate of each policy on the order it is meant for; 2,222 equal items."""
    item, count = np.zeros(item_bytes, np.uint8), 2222
    shuffled: dict[str, float] = {}
    for percent in (10, 17, 50, 90):
        with SharedCache(count * item_bytes * percent // 100) as cache:
            read(cache, list(range(count)), item)
            order = [
                key for seed in (0, 1) for key in random.Random(seed).sample(range(count), count)
            ]
            shuffled[f"{percent} %"] = read(cache, order, item)
    budget_bytes = count * item_bytes * 172 // 1000
    rates: dict[str, Any] = {"keep, shuffled, by cache/dataset": shuffled}
    for grouped in (True, False):
        name = "by clip, in order" if grouped else "shuffled"
        with SharedCache(budget_bytes, "lru") as cache:
            read(cache, windows(0, grouped=grouped), item)
            rates[f"lru at 17.2 %, windows {name}"] = read(cache, windows(1, grouped=grouped), item)
    with SharedCache(budget_bytes) as cache:
        read(cache, windows(0, grouped=False), item)
        rates["keep at 17.2 %, windows shuffled"] = read(cache, windows(1, grouped=False), item)
    with SharedCache(budget_bytes, "epoch") as cache:
        for epoch in range(3):
            order = windows(epoch, grouped=False)
            cache.set_order(order + windows(epoch + 1, grouped=False)[: len(order) // 8])
            rates["epoch at 17.2 %, windows shuffled"] = read(cache, order, item)
    return rates


Timed = tuple[Callable[[], object], int]
FRAME, FRAMES, BATCH = (2160, 5120, 3), 8, 8


class Costs:
    """Times calls in blocks that alternate in random order; microseconds a sample.

    Other work on the machine only ever adds, so the quickest block says most about the code.
    """

    def __init__(self, runs: dict[str, Timed], *, samples: int = 1) -> None:
        self._runs = runs
        self._samples = samples
        self._taken_us: dict[str, list[float]] = {name: [] for name in runs}
        self._faults: dict[str, list[float]] = {name: [] for name in runs}

    def measure(self, rounds: int) -> dict[str, dict[str, float]]:
        """Run all of them so many times."""
        order = random.Random(0)
        for _ in range(rounds):
            for name in order.sample(list(self._runs), len(self._runs)):
                self._block(name)
        return {name: self._summary(name) for name in self._runs}

    def _block(self, name: str) -> None:
        run, repeat = self._runs[name]
        faults, start = page_faults(), time.perf_counter_ns()
        for _ in range(repeat):
            run()
        taken_us = (time.perf_counter_ns() - start) / 1e3
        self._taken_us[name].append(taken_us / repeat / self._samples)
        self._faults[name].append((page_faults() - faults) / repeat / self._samples)

    def _summary(self, name: str) -> dict[str, float]:
        taken_us = self._taken_us[name]
        return {
            "min": min(taken_us),
            "median": statistics.median(taken_us),
            "page_faults": statistics.median(self._faults[name]),
        }


def page_faults() -> int:
    """Faults of this process so far that needed no disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def make_frame(number: int) -> np.ndarray:
    """Make a frame of 33 MB."""
    return np.random.default_rng(number).integers(0, 256, FRAME, np.uint8)


class CloneOnGet:
    """The usual cache of tensors: every hit is a clone of the whole."""

    def __init__(self) -> None:
        self.items: OrderedDict[int, torch.Tensor] = OrderedDict()
        for number in range(FRAMES):
            self.items[number] = torch.from_numpy(make_frame(number)).clone()

    def get(self, key: int) -> torch.Tensor:
        """Give a clone of an item."""
        self.items.move_to_end(key)
        return self.items[key].clone()


class Crops:
    """Takes crops of 256 x 256 from frames of 33 MB.

    A crop at random from a random frame, as in training, finds nothing in the processor's caches;
    the same crop again finds all of it there.
    """

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def place(self) -> tuple[int, tuple[slice, slice]]:
        """Choose a frame and a window."""
        top, left = self._rng.randrange(FRAME[0] - 256), self._rng.randrange(FRAME[1] - 256)
        window = (slice(top, top + 256), slice(left, left + 256))
        return self._rng.randrange(FRAMES), window

    def shared(self, cache: SharedCache) -> np.ndarray:
        """Take a crop out of the shared cache."""
        frame, window = self.place()
        crop = cache.get(frame, window=window)
        assert crop is not None
        return crop

    def cloned(self, guide: CloneOnGet) -> torch.Tensor:
        """Take a crop as a cache that clones on every hit does."""
        frame, window = self.place()
        return guide.get(frame)[window]

    def copied(self, frames: list[np.ndarray]) -> np.ndarray:
        """Take a crop of a copy that numpy made, which asks the system for huge pages."""
        frame, window = self.place()
        return frames[frame].copy()[window]

    def shared_batch(self, cache: SharedCache) -> torch.Tensor:
        """Stack crops out of the shared cache."""
        return torch.stack([torch.from_numpy(self.shared(cache)) for _ in range(BATCH)])

    def cloned_batch(self, guide: CloneOnGet) -> torch.Tensor:
        """Stack crops of clones. Each keeps its clone until then."""
        return torch.stack([self.cloned(guide) for _ in range(BATCH)])


def time_one_by_one(cache: SharedCache, hit: int | str) -> dict[str, Any]:
    """Hits and crops against clones that are freed at once."""
    crops, guide = Crops(), CloneOnGet()
    frame, window = crops.place()
    crop = cache.get(frame, window=window)
    assert crop is not None
    assert np.array_equal(crop, guide.items[frame][window].numpy())
    return Costs(
        {
            "hit_us": (lambda: cache.get(hit), 200),
            "same_crop_us": (lambda: cache.get(frame, window=window), 50),
            "random_crop_us": (lambda: crops.shared(cache), 50),
            "clone_then_crop_us": (lambda: crops.cloned(guide), 5),
        }
    ).measure(60)


def time_batches(cache: SharedCache, hit: int | str) -> dict[str, Any]:
    """Crops against clones that live until their batch is stacked."""
    del hit
    crops, guide = Crops(), CloneOnGet()
    return Costs(
        {
            "batch_of_crops_us": (lambda: crops.shared_batch(cache), 5),
            "batch_of_clones_us": (lambda: crops.cloned_batch(guide), 1),
        },
        samples=BATCH,
    ).measure(20)


def time_first_visits(cache: SharedCache, hit: int | str) -> dict[str, Any]:
    """Crops from parts of the cache that this process has not touched yet."""
    del hit
    crops, taken_us = Crops(), []
    for frame in range(FRAMES):
        for top in range(0, FRAME[0] - 256, 272):
            _, (_, columns) = crops.place()
            start = time.perf_counter_ns()
            crop = cache.get(frame, window=(slice(top, top + 256), columns))
            taken_us.append((time.perf_counter_ns() - start) / 1e3)
            assert crop is not None
    return {
        "first_visit_crop_us": {"min": min(taken_us), "median": statistics.median(taken_us)},
    }


def time_numpy() -> dict[str, Any]:
    """Crops of copies that numpy makes, freed at once."""
    crops, frames = Crops(), [make_frame(number) for number in range(FRAMES)]
    return Costs({"copy_then_crop_us": (lambda: crops.copied(frames), 5)}).measure(60)


def time_larger() -> dict[str, Any]:
    """Clone an item just above 32 MiB, where glibc no longer keeps what is freed."""
    larger = torch.from_numpy(np.resize(make_frame(0), (FRAME[0], 5184, 3)))
    window = (slice(900, 1156), slice(1500, 1756))
    costs = Costs({"clone_then_crop_us": (lambda: larger.clone()[window], 5)}).measure(20)
    return {"item_mb": larger.nbytes / 1e6, **costs}


def report_to(answer: Any, part: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
    """Be the worker: what it measures goes to its parent."""
    torch.set_num_threads(1)
    answer.put(part(*args))


def in_a_worker(part: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Measure in a new process: what malloc did before decides what a clone costs."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    worker = context.Process(target=report_to, args=(answer, part, args))
    worker.start()
    result = answer.get()
    worker.join()
    assert worker.exitcode == 0
    return result


def examine_cost() -> dict[str, Any]:
    """Cost of a hit and of a crop, for items of 33 MB."""
    results: dict[str, Any] = {"item_mb": np.prod(FRAME) / 1e6}
    for policy in ("keep", "lru", "epoch"):
        with SharedCache(280 * MIB, policy) as cache:
            if policy == "epoch":
                cache.set_order([*range(FRAMES), "small"] * 10_000)
            for number in range(FRAMES):
                assert cache.put(number, make_frame(number))
            assert cache.put("small", np.zeros(16, np.uint8))
            # A whole item is a copy under the policies that evict: time the hit, not the bytes.
            hit = 0 if policy == "keep" else "small"
            costs: dict[str, Any] = {}
            for part in (time_one_by_one, time_batches, time_first_visits):
                costs |= in_a_worker(part, cache, hit)
            results[policy] = {**costs, **speedups(costs)}
    results["numpy"] = in_a_worker(time_numpy)
    results["larger"] = in_a_worker(time_larger)
    return results


def speedups(costs: dict[str, Any]) -> dict[str, Any]:
    """Relate crops to clones of the same kind."""
    pairs = {
        "same_crop_speedup": ("clone_then_crop_us", "same_crop_us"),
        "random_crop_speedup": ("clone_then_crop_us", "random_crop_us"),
        "batch_speedup": ("batch_of_clones_us", "batch_of_crops_us"),
    }
    return {
        name: {how: costs[clone][how] / costs[crop][how] for how in ("min", "median")}
        for name, (clone, crop) in pairs.items()
    }


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-mib", type=int, default=512)
    parser.add_argument("--rate-item-kib", type=int, default=256)
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.rank:
        kind, budget, rank, handle, items = options.rank
        run_rank(kind, int(budget), int(rank), handle, int(items))
        return
    report = {
        "what": "the shared cache: memory of the process tree, hit rates, cost of a hit and a crop",
        "hardware": f"{processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "kernel": platform.release(),
        "load_average_at_start": os.getloadavg()[0],
        "cost": examine_cost(),
        "hit_rates": examine_hit_rates(options.rate_item_kib << 10),
        "memory": examine_memory(options.budget_mib * MIB),
    }
    show(report, options.output)


if __name__ == "__main__":
    main()
