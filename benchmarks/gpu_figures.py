"""Figures that need a GPU, in calls as short as one likes: what has ended is kept.

    python -m benchmarks.gpu_figures behaviour --out DIR --seconds 150 [--table FILE.toml]
    python -m benchmarks.gpu_figures public    --out DIR --seconds 300 --public CHECKOUTS
    python -m benchmarks.gpu_figures verdicts  --out DIR --seconds 150 --authors CHECKOUT
    python -m benchmarks.gpu_figures advice    --out DIR --seconds 240
    python -m benchmarks.gpu_figures overhead  --out DIR --seconds 120
    python -m benchmarks.gpu_figures plans     --out DIR --seconds 280 --predicted PREDICTED.json
    python -m benchmarks.gpu_figures shards    --out DIR --seconds 70
    python -m benchmarks.gpu_figures attempts  --out DIR --seconds 500
    python -m benchmarks.gpu_figures tuning    --out DIR --seconds 560
    python -m benchmarks.gpu_figures kernels   --out DIR --seconds 200
    python -m benchmarks.gpu_figures behaviour=300 plans=280 shards=70 --out DIR --predicted ...

A machine with a GPU is often lent for minutes, and a call may be cut off. So every stage writes
each run into DIR as it ends, and the next call with the same DIR makes only what is missing.
`behaviour` judges no times and may have neighbours; all others need the machine to themselves.
`advice` gives each script for a CPU two cores of its own; those for a GPU have it by turns.
Several stages run one after the other, each for its own seconds. `--rehearse` runs what can be at
the smallest size on a CPU, so that no minute of a GPU is lost to a word that is wrong.
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
START_S, END_S, LONGEST_CASE_S = 25.0, 10.0, 40.0
"""What is kept back of a stage's time for a start, for an end, for a case that is under way."""
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


def plans(args: argparse.Namespace) -> list[Lane]:
    """Steps that were planned before, trained for a moment: their memory and their time."""
    where = ("--predicted", str(args.predicted), "--output", f"{args.out}/plans.json")
    limit = ("--seconds", str(max(1.0, args.seconds - LONGEST_CASE_S)))
    words = ("benchmarks/plan_accuracy.py", "run", *where, *limit, *smallest(args))
    return [[Command(name="plans", words=words)]]


def shards(args: argparse.Namespace) -> list[Lane]:
    """What dividing a model costs a rank that is alone."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    limit = ("--seconds", str(max(1.0, args.seconds - START_S)))
    where = ("--output", f"{args.out}/shards.json")
    words = (*launcher, "benchmarks/shard_alone.py", *where, *limit, *smallest(args))
    return [[Command(name="shards", words=words)]]


def attempts(args: argparse.Namespace) -> list[Lane]:
    """Faster steps of bird's-eye view, then of re-identification, each held against fp32."""
    return [
        [
            Command(
                name=f"attempts-{workload}",
                words=(
                    *("benchmarks/step_attempts.py", workload),
                    *("--output", f"{args.out}/attempts-{workload}.json"),
                    *("--limit-s", str(share * args.seconds), "--at-once", "6", *smallest(args)),
                ),
            )
            for workload, share in (("bev", 0.6), ("reid", 0.35))
        ]
    ]


def tuning(args: argparse.Namespace) -> list[Lane]:
    """The guides' deblurring run, tuned; the same again goes on where it was."""
    where = ("--folder", f"{args.out}/tuning", "--seconds", str(max(1.0, args.seconds - END_S)))
    words = ("-m", "benchmarks.deblur_tune", *where, *smallest(args))
    return [[Command(name="tuning", words=words)]]


def kernels(args: argparse.Namespace) -> list[Lane]:
    """The tests that need a GPU, but for those of forks and scripts."""
    left_out = (f"--ignore={file}" for file in (*GPU_TESTS, "tests/gpu/test_zoo_gpu.py"))
    seen = ("-v", "-p", "no:cacheprovider", "-m", "gpu", f"--junitxml={args.out}/kernels.xml")
    return [[Command(name="kernels", words=("-m", "pytest", *seen, *left_out, "tests/gpu"))]]


def smallest(args: argparse.Namespace) -> tuple[str, ...]:
    """Ask a benchmark for its smallest size where this is a rehearsal."""
    return ("--smoke",) if args.rehearse else ()


STAGES: Mapping[str, Callable[[argparse.Namespace], list[Lane]]] = {
    each.__name__: each
    for each in (
        *(behaviour, public, verdicts, advice, overhead),
        *(plans, shards, attempts, tuning, kernels),
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage that was asked for, and for how long."""

    name: str
    seconds: float

    def run(self, args: argparse.Namespace) -> None:
        """Run its commands, and say how each ended."""
        end_s = time.monotonic() + self.seconds
        lanes = STAGES[self.name](argparse.Namespace(**{**vars(args), "seconds": self.seconds}))
        with ThreadPoolExecutor(len(lanes)) as pool:
            for told in pool.map(lambda lane: run_lane(lane, args.out, end_s), lanes):
                print("\n".join(told), flush=True)


def asked_for(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Stage]:
    """Read the stages; what one of them lacks is said before any takes time."""
    needs = {"public": args.public, "verdicts": args.authors, "plans": args.predicted}
    stages: list[Stage] = []
    for word in args.stage:
        name, _, seconds = word.partition("=")
        if name not in STAGES:
            parser.error(f"no stage {name!r}; there are {', '.join(STAGES)}")
        if name in needs and not (needs[name] and needs[name].exists()):
            option = {"public": "--public", "verdicts": "--authors"}.get(name, "--predicted")
            parser.error(f"{name} needs {option} of something that exists")
        try:
            stages.append(Stage(name=name, seconds=float(seconds or args.seconds or "")))
        except ValueError:
            parser.error(f"{name} for how long? {name}=SECONDS, or --seconds")
    return stages


def main(words: Sequence[str] | None = None) -> None:
    """Run stages, each for so many seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", nargs="+", help=f"{', '.join(STAGES)}; or NAME=SECONDS")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, help="of a stage that names none")
    parser.add_argument("--public", type=Path, help="folder of checkouts, named OWNER+NAME")
    parser.add_argument("--table", type=Path, help="scripts beside our own")
    parser.add_argument("--authors", type=Path, help="folder with models/network_vrt.py")
    parser.add_argument("--predicted", type=Path, help="what plan_accuracy.py predicted")
    parser.add_argument("--rehearse", action="store_true", help="the smallest size, on a CPU")
    args = parser.parse_args(words)
    stages = asked_for(parser, args)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        stage.run(args)


if __name__ == "__main__":
    main()
