"""How long `pitstop plan` of VRT at six frames of 256 x 256 takes, and what memory it holds.

    taskset -c 0,1 python benchmarks/plan_time.py --output FILE.json

The whole command, with its table of other choices: by the clock, in processor time of all its
processes, and the most that they held together (proportional set size, read twice a second). The
load of the machine is read before each run: with neighbours the clock says nothing.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from pitstop.measure.host.process_tree import tree_memory
from progress import say, write

CONFIG = Path(__file__).parents[1] / "configs" / "deblur" / "opt.yaml"
COMMAND = ("plan", str(CONFIG), "model.kind=vrt", "loss.perceptual=null", "--gpu-memory", "48GiB")
READ_EVERY_S = 0.5


def main() -> None:
    """Time both kinds of kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "what": "pitstop plan of VRT 006, 6 x 256 x 256, with its table",
        "hardware": f"{os.cpu_count()}-core AMD EPYC, Linux {platform.release().split('-')[0]}",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "rows": [],
    }
    for _ in range(options.runs):
        for kernels in ("auto", "reference"):
            report["rows"].append({"kernels": kernels, **timed(f"model.kernels={kernels}")})
            say(str(report["rows"][-1]))
            write(report, options.output)


def timed(override: str) -> dict[str, Any]:
    """Run the command once."""
    load = os.getloadavg()[0]
    spent_before, began = processor_s(), time.perf_counter()
    job = subprocess.Popen(
        [sys.executable, "-m", "pitstop", *COMMAND, override], stdout=subprocess.DEVNULL
    )
    most = 0
    while job.poll() is None:
        memory = tree_memory(job.pid)
        most = max(most, 0 if memory is None else memory.tree_bytes)
        try:
            job.wait(READ_EVERY_S)
        except subprocess.TimeoutExpired:
            continue
    if job.returncode > 1:  # 1 says that it does not fit
        raise SystemExit(f"it ended with {job.returncode}")
    return {
        "wall_s": round(time.perf_counter() - began, 1),
        "processor_s": round(processor_s() - spent_before, 1),
        "peak_mib": round(most / 2**20),
        "load_before": round(load, 2),
    }


def processor_s() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
