"""Figures that need a GPU, in calls as short as one likes: what has ended is kept.

    python -m benchmarks.gpu_figures behaviour --out DIR --seconds 150 [--table FILE.toml]
    python -m benchmarks.gpu_figures public    --out DIR --seconds 300 --public CHECKOUTS
    python -m benchmarks.gpu_figures verdicts  --out DIR --seconds 150 --authors CHECKOUT
    python -m benchmarks.gpu_figures advice    --out DIR --seconds 240
    python -m benchmarks.gpu_figures overhead  --out DIR --seconds 120

A machine with a GPU is often lent for minutes, and a call may be cut off. So every stage writes
each run into DIR as it ends, and the next call with the same DIR makes only what is missing.
`behaviour` judges no times and may have neighbours; all others need the machine to themselves.
`advice` gives each script for a CPU two cores of its own; those for a GPU have it by turns.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.advice_followed import TEN, case_of

ROOT = Path(__file__).parents[1]
TURNS = ROOT / "tests" / "zoo" / "turns"
CORES_OF_A_LANE = 2
# tests/gpu/test_zoo_gpu.py asserts what the zoo's own table shows: its scripts need not run twice.
GPU_TESTS = ("tests/gpu/test_forks_gpu.py",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a stage, and on which cores it runs."""

    name: str
    words: Sequence[str]
    """For this interpreter."""
    cores: tuple[int, ...] = ()
    """All where none are named."""
    env: Mapping[str, str] = field(default_factory=dict)


Lane = Sequence[Command]
"""Commands that run one after the other, beside other lanes."""


def behaviour(args: argparse.Namespace) -> list[Lane]:
    """Scripts bare and watched, side by side, and the tests of the same on a GPU."""
    runs = ("--runs", "twice", "detach", "default", "--device", "cuda")
    tables = [args.table, None] if args.table else [None]
    lanes: list[Lane] = [
        [zoo_run(args, f"zoo-{n}", t, "--jobs", "6", *runs)] for n, t in enumerate(tables)
    ]
    tests = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "gpu")
    return [*lanes, *([Command(name=Path(file).stem, words=(*tests, file))] for file in GPU_TESTS)]


def public(args: argparse.Namespace) -> list[Lane]:
    """Public scripts against a stopwatch; one has the GPU, the next imports torch meanwhile."""
    options = ("--public", str(args.public), "--device", "cuda", "--together", "10", "--jobs", "2")
    runs = ("--runs", "stopwatch")
    return [[zoo_run(args, "public", None, *options, *runs)]]


def zoo_run(args: argparse.Namespace, name: str, table: Path | None, *options: str) -> Command:
    """The zoo, with a journal; it ends by itself before its time is over."""
    where = ("--journal", f"{args.out}/{name}.jsonl", "--json", f"{args.out}/{name}.json")
    which = ("--table", str(table)) if table else ()
    limit = ("--within-s", str(args.seconds - 5))
    return Command(name=name, words=("-m", "tests.zoo.run", *options, *which, *where, *limit))


def verdicts(args: argparse.Namespace) -> list[Lane]:
    """The authors' VRT, one verdict on several runs."""
    where = ("--output", f"{args.out}/verdicts.json", "--record", f"{args.out}/vrt-record")
    words = ("benchmarks/verdict_repeats.py", "--authors", str(args.authors), *where)
    return [[Command(name="verdicts", words=words)]]


def advice(args: argparse.Namespace) -> list[Lane]:
    """Advice followed: scripts for a CPU on cores of their own, those for a GPU by turns."""
    cores = sorted(os.sched_getaffinity(0))
    free = [tuple(cores[n : n + CORES_OF_A_LANE]) for n in range(0, len(cores), CORES_OF_A_LANE)]
    free = [lane for lane in free if len(lane) == CORES_OF_A_LANE]
    for_gpu = tuple(core for lane in free[-2:] for core in lane)
    on_cpu = [one.case for one in TEN if case_of(one.case).device == "cpu"]
    on_gpu = [one.case for one in TEN if case_of(one.case).device == "cuda"]
    lanes = [on_cpu[n :: max(1, len(free) - 2)] for n in range(max(1, len(free) - 2))]
    path = os.environ.get("PYTHONPATH", "")
    env = {"ZOO_TURN": f"{args.out}/turn", "PYTHONPATH": f"{path}:{TURNS}"}
    beside = [
        [follow(args, case, own, {}) for case in lane]
        for lane, own in zip(lanes, free, strict=False)
    ]
    return [*beside, *([follow(args, case, for_gpu, env)] for case in on_gpu)]


def follow(
    args: argparse.Namespace,
    case: str,
    cores: tuple[int, ...],
    env: Mapping[str, str],
) -> Command:
    """One script of the ten."""
    name = f"advice-{case.replace(' ', '-')}"
    where = ("--turns", f"{args.out}/{name}.jsonl", "--json", f"{args.out}/{name}.json")
    which = ("--device", case_of(case).device, "--only", case)
    words = ("-m", "benchmarks.advice_followed", *which, *where)
    return Command(name=name, words=words, cores=cores, env=env)


def overhead(args: argparse.Namespace) -> list[Lane]:
    """What watching costs: on the GPU, and on a core."""
    cores = sorted(os.sched_getaffinity(0))
    return [
        [
            Command(
                name=f"overhead-{device}",
                words=(
                    *("benchmarks/attach_overhead.py", "--device", device),
                    *("--output", f"{args.out}/attach_overhead_{device}.json"),
                ),
                cores=(cores[place],),
            )
        ]
        for device, place in (("cuda", 0), ("cpu", len(cores) // 2))
    ]


STAGES: Mapping[str, Callable[[argparse.Namespace], list[Lane]]] = {
    each.__name__: each for each in (behaviour, public, verdicts, advice, overhead)
}


def run_lane(lane: Lane, out: Path, end_s: float) -> list[str]:
    """Run commands one after the other, none past the end; say how each ended."""
    return [f"{command.name}: {run(command, out, end_s)}" for command in lane]


def run(command: Command, out: Path, end_s: float) -> str:
    """Run a command and what it starts, at most to the end."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        return "not begun"
    pinned = ("taskset", "-c", ",".join(map(str, command.cores))) if command.cores else ()
    environment = {**os.environ, **command.env}
    with (out / f"{command.name}.txt").open("a", encoding="utf-8") as printed:
        process = subprocess.Popen(
            [*pinned, sys.executable, *command.words],
            cwd=ROOT,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return f"exit code {process.wait(left_s)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "cut off, goes on next time"


def main(words: Sequence[str] | None = None) -> None:
    """Run one stage for so many seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--public", type=Path, help="folder of checkouts, named OWNER+NAME")
    parser.add_argument("--table", type=Path, help="scripts beside our own")
    parser.add_argument("--authors", type=Path, help="folder with models/network_vrt.py")
    args = parser.parse_args(words)
    needs = {"public": args.public, "verdicts": args.authors}
    if args.stage in needs and not (needs[args.stage] and needs[args.stage].is_dir()):
        parser.error(f"{args.stage} needs a folder that exists: --public or --authors")
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + args.seconds
    lanes = STAGES[args.stage](args)
    with ThreadPoolExecutor(len(lanes)) as pool:
        for told in pool.map(lambda lane: run_lane(lane, args.out, end_s), lanes):
            print("\n".join(told), flush=True)


if __name__ == "__main__":
    main()
