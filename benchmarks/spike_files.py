"""How long one file of spikes takes to decode, whole and a crop of it.

    python benchmarks/spike_files.py [--repeats 400] [--output FILE.json]

A file of 88 planes of 360x640, as GoPro with simulated spikes has them, is written, then read whole
again and again, then in crops of 128x128 at random places, from the page cache. What is read is
compared with the spikes that were written, at the same places but apart, for comparing empties the
processor's caches, which a loader does not. Reported are the median and the spread of the wall
clock, and of the processor time of the reading thread, which others cannot lengthen.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pitstop.workloads.deblur.spike import Window, read_dat, write_dat
from progress import show

PLANES, HEIGHT, WIDTH, CROP = 88, 360, 640, 128


def places(repeats: int) -> list[Window]:
    """Choose where crops lie."""
    random = np.random.default_rng(1)
    tops = random.integers(HEIGHT - CROP + 1, size=repeats).tolist()
    lefts = random.integers(WIDTH - CROP + 1, size=repeats).tolist()
    return [Window(top, left, CROP, CROP) for top, left in zip(tops, lefts, strict=True)]


def timed(path: Path, window: Window | None) -> tuple[float, float]:
    """Read once; give wall and processor seconds."""
    wall, processor = time.perf_counter(), time.thread_time()
    read_dat(path, height=HEIGHT, width=WIDTH, window=window)
    return time.perf_counter() - wall, time.thread_time() - processor


def check(path: Path, window: Window | None, spikes: np.ndarray[Any, Any]) -> None:
    """Compare what is read with what was written."""
    top, left, height, width = window or Window(0, 0, HEIGHT, WIDTH)
    read = read_dat(path, height=HEIGHT, width=WIDTH, window=window)
    assert np.array_equal(read, spikes[:, top : top + height, left : left + width])


def summary(seconds: list[tuple[float, float]]) -> dict[str, Any]:
    """Give median, quartiles and best of both clocks in milliseconds."""
    found = {}
    for name, values in zip(("wall_ms", "processor_ms"), zip(*seconds, strict=True), strict=True):
        low, middle, high = (1e3 * value for value in statistics.quantiles(values, n=4))
        found[name] = {"median": middle, "quartiles": [low, high], "best": 1e3 * min(values)}
    return found


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--hardware", default=platform.processor() or platform.machine())
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    spikes = (random.random((PLANES, HEIGHT, WIDTH)) < 0.2).astype(np.uint8)
    windows: dict[str, list[Window | None]] = {
        "whole": [None] * options.repeats,
        "crop": [*places(options.repeats)],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "000000.dat"
        write_dat(path, spikes)
        taken = {name: [timed(path, at) for at in every] for name, every in windows.items()}
        for at in (None, *windows["crop"]):
            check(path, at, spikes)
    report = {
        "what": f"decoding a file of {PLANES} planes of {HEIGHT}x{WIDTH}; crop {CROP}x{CROP}",
        "hardware": f"{options.hardware}, {len(os.sched_getaffinity(0))} cores",
        "numpy": np.__version__,
        "repeats": options.repeats,
        **{name: summary(seconds) for name, seconds in taken.items()},
    }
    show(report, options.output)


if __name__ == "__main__":
    main()
