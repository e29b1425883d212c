"""Host memory that `pitstop plan` predicts for small jobs, against what their processes then hold.

    python benchmarks/plan_host.py --reid DATA --deblur DATA --output FILE.json [--only NAME]

Every setting is predicted first. Then the job is trained on the processor, and the proportional set
size of its process tree is read again and again until it stays the same, with what the training
process lies below its own peak added: the largest sum counts. Steps have no GPU here, so their
tensors lie in host memory, and the dry run's peak is part of the prediction. Libraries that other
processes of the host have open are divided among all of them: run this from an environment that
nobody else uses. Rows of other settings that are in the file stay.

    pitstop data make reid DATA --people 32 --images 24 --size 256x128
    pitstop data make deblur DATA --train-clips 4 --test-clips 1 --frames 24 --size 256x256
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pitstop.config.load import load_config
from pitstop.measure.host.limits import read_host_limits
from pitstop.measure.host.process_tree import tree_memory
from pitstop.plan.dry_run.request import Request, trace_in_child
from pitstop.plan.host.total import Host, plan_host, start_method
from pitstop.plan.host.trial import TrialRequest, try_processes
from pitstop.records.plans.host import HostPlan
from progress import say, write

CONFIGS = Path(__file__).parents[1] / "configs"
MIB = 2**20
SETTLED_S, LONGEST_S = 25.0, 900.0
FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A job, and how its data are loaded."""

    name: str
    workload: str
    overrides: tuple[str, ...]


LONG = (
    "train.steps=100000",
    "eval.every_steps=null",
    "checkpoint.every_steps=null",
    "checkpoint.best_of=null",
)
REID = ("data.image_size=[256,128]", "train.batch_size=8", *LONG)
DEBLUR = LONG

SETTINGS = (
    Setting(
        name="two workers, two batches ahead each",
        workload="reid",
        overrides=("loader.workers=2", "loader.prefetch=2"),
    ),
    Setting(
        name="two workers, 24 batches ahead each",
        workload="reid",
        overrides=("loader.workers=2", "loader.prefetch=24"),
    ),
    Setting(
        name="two workers that are spawned",
        workload="reid",
        overrides=("loader.workers=2", "loader.prefetch=2", "loader.start_method=spawn"),
    ),
    Setting(
        name="one worker and a cache",
        workload="deblur",
        overrides=("loader.workers=1", "loader.prefetch=4", "cache.budget=256MiB"),
    ),
    Setting(name="no workers", workload="reid", overrides=("loader.workers=0",)),
)


def main() -> None:
    """Predict each setting, run it, write both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reid", type=Path, required=True)
    parser.add_argument("--deblur", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", help="Name of one setting.")
    options = parser.parse_args()
    roots = {"reid": options.reid, "deblur": options.deblur}
    base = {"reid": REID, "deblur": DEBLUR}
    report: dict[str, Any] = {
        "what": "host memory (PSS) of jobs on the processor, predicted beforehand and measured",
        "hardware": f"{os.cpu_count()}-core AMD EPYC, Linux {platform.release().split('-')[0]}",
        "torch": torch.__version__,
        "rows": rows_of_others(options.output, options.only),
    }
    steps: dict[str, int] = {}
    for setting in SETTINGS:
        if options.only not in {None, setting.name}:
            continue
        overrides = (f"data.root={roots[setting.workload]}", *base[setting.workload])
        config = str(CONFIGS / setting.workload / "demo.yaml")
        if setting.workload not in steps:
            steps[setting.workload] = step_bytes(config, overrides)
        overrides += setting.overrides
        planned = predict(config, overrides, steps[setting.workload])
        say(f"{setting.name}: planned {planned.total_bytes / MIB:.0f} MiB")
        measured, readings = measure(config, overrides)
        say(f"{setting.name}: measured {measured / MIB:.0f} MiB")
        report["rows"].append(
            {
                "name": setting.name,
                "config": f"{setting.workload}/demo.yaml",
                "overrides": [*base[setting.workload], *setting.overrides],
                "planned_bytes": planned.total_bytes,
                "owners_bytes": {row.owner: row.num_bytes for row in planned.rows},
                "plan": {k: v for k, v in asdict(planned).items() if k in {"workers", "prefetch"}},
                "measured_bytes": measured,
                "readings": readings,
                "error": planned.total_bytes / measured - 1,
            }
        )
        write(report, options.output)


def rows_of_others(output: Path, only: str | None) -> list[dict[str, Any]]:
    """Give the rows of an earlier call that this one does not make again."""
    if only is None or not output.exists():
        return []
    return [row for row in json.loads(output.read_text())["rows"] if row["name"] != only]


def step_bytes(config: str, overrides: tuple[str, ...]) -> int:
    """Peak of a step's tensors, with the kernels that a processor has."""
    request = Request(config=config, overrides=(*overrides, "model.kernels=reference"))
    return trace_in_child(request).require().peak_bytes


def predict(config: str, overrides: tuple[str, ...], tensors: int) -> HostPlan:
    """Plan a job without a GPU on this machine."""
    loaded = load_config(Path(config), overrides).config
    limits = read_host_limits()
    host = Host(
        limit_bytes=limits.memory_bytes,
        limit_of="this machine",
        cores=limits.cores,
        has_gpu=False,
    )
    request = TrialRequest(
        config=config,
        overrides=overrides,
        start_method=start_method(loaded, has_gpu=False),
        computes_here=True,
    )
    answer = try_processes(request)
    assert answer.sizes is not None, answer.error
    return plan_host(loaded, answer.sizes, host, step_bytes=tensors)


def measure(config: str, overrides: tuple[str, ...]) -> tuple[int, int]:
    """Train until the size of all processes settles; give the most, and how many readings."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pitstop", "train", config, *overrides]
        command += [f"run.work_dir={folder}", "run.name=job"]
        log = Path(folder) / "output.txt"
        with log.open("w") as output:
            job = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            return watch(job, Path(folder) / "job" / "rank-0.jsonl", log)
        finally:
            job.send_signal(signal.SIGTERM)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                job.kill()


def watch(job: "subprocess.Popen[bytes]", record: Path, log: Path) -> tuple[int, int]:
    """Read sizes until they have settled."""
    most, readings, steps = 0, 0, 0
    began = grown = time.monotonic()
    while time.monotonic() - began < LONGEST_S:
        if job.poll() is not None:
            raise SystemExit(f"the job ended: {log.read_text()[-500:]}")
        memory = tree_memory(job.pid)
        readings += 1
        peak = 0 if memory is None else memory.tree_bytes + below_peak(job.pid)
        if peak > 1.01 * most:
            most, grown = peak, time.monotonic()
        steps = record.read_text().count("\n[") if record.exists() else 0
        if time.monotonic() - grown > SETTLED_S and steps >= FEWEST_STEPS:
            break
        time.sleep(0.5)
    else:
        raise SystemExit(
            f"not settled after {LONGEST_S:.0f} s and {steps} steps: nothing to compare"
        )
    return most, readings


def below_peak(pid: int) -> int:
    """How far a process is below the most that it ever held: the kernel remembers that.

    A step is at its peak for milliseconds, which no reading from outside would meet.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {name: text for name, _, text in (line.partition(":") for line in lines)}
    most, now = (int(sizes[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS"))
    return most - now


if __name__ == "__main__":
    main()
