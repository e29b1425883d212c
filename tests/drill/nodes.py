"""Two nodes on one machine: what several hosts of a run must come to, and what one fault costs.

python -m tests.drill.nodes            # all of it, about eight minutes; writes its results
python -m tests.drill.nodes --short    # one run over two nodes, cut for a moment

Each node is a network namespace with a host name of its own, and a cable lies between them. `ssh`
is a command of ours here that goes to a namespace instead of a machine; what is typed is the recipe
of docs/scale.md. The oracle is a run of four ranks on one host.
"""

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pitstop.data.sampling.samplers import ShuffledBatches
from pitstop.doctor.judge import judge_run, verdict_of
from pitstop.records.run import RankRecord
from pitstop.records.store import read_run
from pitstop.train.state.checkpoint import find_newest_whole
from tests.drill.lives import POLL_S, Life, begin_program, begin_shell, shell_environment
from tests.drill.ranks import Network, run_ip
from tests.drill.slurm import Slurm, missing_tools
from tests.drill.states import of_checkpoint
from tests.drill.workload import NOTED, NOTED_SAMPLES, PACED, install

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "nodes_epyc_cpu.json"
PAGE = ROOT / "docs" / "scale.md"

HOSTS = ("node-a", "node-b")
RANKS_A_NODE = 2
BATCH = 4
LIMIT_S = 240.0
"""By when a run of two nodes must be over, on cores that are shared."""

CONFIG = """\
run: {name: run, deterministic: true, rank_timeout_s: %(timeout_s)g}
model: {kind: %(kind)s}
train: {steps: %(steps)d, batch_size: 4, ema: 0.99, clip: {kind: adaptive}}
optimizer: {lr: 0.01, lr_scaling: linear, reference_batch: 16}
loader: {workers: 0, eval_workers: 0}
schedule: {kind: cosine, warmup_steps: 10}
checkpoint: {every_steps: 5, keep_last: 2}
log: {every_steps: 5}
"""


# What is counted once a host: 32 MiB and two workers for both of its ranks together.
PER_HOST = ("cache.budget=32MiB", "loader.workers=2")


class Nodes(Network):
    """Two network namespaces, each a host of its own name that knows the other by name."""

    addresses = ("10.213.9.1", "10.213.9.2")

    def __init__(self, tools: Path) -> None:
        super().__init__()
        self._tools = tools

    def __enter__(self) -> "Nodes":
        """Lay the cable, name the hosts, and put the way to them into a command."""
        super().__enter__()
        known = zip(("127.0.0.1", *self.addresses), ("localhost", *HOSTS), strict=True)
        lines = "".join(f"{address} {name}\n" for address, name in known)
        for name in self.names:
            folder = Path("/etc/netns", name)
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(lines)
        self._tools.mkdir(exist_ok=True)
        way = self._tools / "ssh"
        cases = " ".join(
            f"{host}) net={net};;" for host, net in zip(HOSTS, self.names, strict=True)
        )
        way.write_text(
            f'#!/bin/sh\nhost=$1; shift\ncase $host in {cases} esac\n'
            'exec ip netns exec "$net" unshare --uts sh -c "hostname $host; $*"\n'
        )  # fmt: skip
        way.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        """Take everything away, whoever is left in there first."""
        for node in range(2):
            self.kill(node)
        for name in self.names:
            shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)
        super().__exit__()

    def processes(self, node: int) -> list[int]:
        """List what runs on a node."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.names[node]], check=True, capture_output=True, text=True
        )
        return [int(pid) for pid in found.stdout.split()]

    def ranks(self) -> list[int]:
        """List the training processes of both nodes, launchers left out."""
        return [pid for node in range(2) for pid in self.processes(node) if _is_rank(pid)]

    def kill(self, node: int) -> None:
        """Have a node lose its power."""
        for pid in self.processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def unplug(self) -> None:
        """Pull the cable."""
        run_ip("-n", self.names[1], "link", "set", "drill1", "down")

    def plug(self) -> None:
        """Put it in again."""
        run_ip("-n", self.names[1], "link", "set", "drill1", "up")


@dataclass(kw_only=True)
class Drill:
    """Runs over two nodes in a folder of their own."""

    folder: Path
    nodes: Nodes
    steps: int
    timeout_s: float
    found: dict[str, Any] = field(default_factory=dict)
    _oracle: list[str] = field(init=False, default_factory=list)

    def oracle(self) -> list[str]:
        """Give what every rank ends with where all four are on one host and nothing happens."""
        if not self._oracle:
            self._oracle = self.on_one_host("one-host")
        return self._oracle

    def config(self, name: str, *, kind: str, steps: int | None = None) -> Path:
        """Write the settings of a run."""
        path = self.folder / f"{name}.yaml"
        values = {"kind": kind, "steps": steps or self.steps, "timeout_s": self.timeout_s}
        path.write_text(CONFIG % values)
        return path

    def on_one_host(self, name: str) -> list[str]:
        """Train with four ranks of one host; give the sums of what each ends with."""
        config = self.config(name, kind=PACED)
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"]
        train = ["-m", "pitstop", "train", str(config), "--work-dir", str(self.folder / name)]
        life = begin_program([*launcher, *train], self.folder / f"{name}.log")
        assert life.wait(LIMIT_S), f"four ranks took too long: {life.text[-2000:]}"
        assert life.code == 0, life.text
        return self.sums(name, 4)

    def start(self, name: str, node: int, *train: str, more: Sequence[str] = ()) -> Life:
        """Start the launcher of one node."""
        launcher = ["torchrun", f"--nproc-per-node={RANKS_A_NODE}", "--rdzv-backend=c10d"]
        launcher += [f"--rdzv-endpoint={HOSTS[0]}:29400", f"--rdzv-id={name}"]
        launcher += ["--monitor-interval=0.1", *more, "-m", "pitstop", "train", *train]
        # Torch 2.13 keeps one store over all rounds and names it in the first alone: a node that
        # joins later waits for that name in vain.
        own_store = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 " if any(":" in m for m in more) else ""
        text = f"exec ssh {HOSTS[node]} {own_store}{' '.join(launcher)}"
        return begin_shell(text, self.log(name, node), tools=self.folder / "tools")

    def log(self, name: str, node: int) -> Path:
        """Give where the output of a node goes."""
        return self.folder / f"{name}-{HOSTS[node]}.log"

    def arguments(self, name: str, *, kind: str = PACED, steps: int | None = None) -> list[str]:
        """Give what ranks are started with that share one folder."""
        config = self.config(name, kind=kind, steps=steps)
        return [str(config), "--work-dir", str(self.folder / name), "--resume", "auto"]

    def saved(self, name: str) -> int:
        """Give the step of the newest save that has its name."""
        names = (self.folder / name / "run" / "checkpoints").glob("save-*")
        return max((int(path.name.rpartition("-")[2]) for path in names), default=0)

    def await_step(self, name: str, least: int, lives: Sequence[Life] = ()) -> None:
        """Wait until a run has saved a step at least as late."""
        self.await_that(lambda: self.saved(name) >= least, f"step {least}", lives)

    def await_that(self, is_so: Callable[[], bool], what: str, lives: Sequence[Life]) -> None:
        """Wait until something is so, or everybody has ended."""
        until_s = time.monotonic() + LIMIT_S
        while not is_so():
            texts = "\n".join(life.text[-3000:] for life in lives)
            has_ended = bool(lives) and all(life.poll() for life in lives)
            assert not has_ended, f"ended before {what}: {texts}"
            assert time.monotonic() < until_s, f"no {what} in time: {texts}"
            time.sleep(POLL_S)

    def sums(self, name: str, world_size: int) -> list[str]:
        """Sum up the state that every rank ended with."""
        checkpoint, _ = find_newest_whole(self.folder / name / "run" / "checkpoints")
        assert checkpoint is not None
        assert checkpoint.manifest.step == self.steps, checkpoint.path
        assert checkpoint.manifest.world_size == world_size
        return [of_checkpoint(checkpoint, rank) for rank in range(world_size)]


def end_well(lives: Sequence[Life]) -> None:
    """Wait for all launchers; each must end with 0."""
    for life in lives:
        assert life.wait(LIMIT_S), f"no end in time: {life.text[-3000:]}"
        assert life.code == 0, life.text[-3000:]


def recipe(drill: Drill) -> None:
    """Type the recipe of the page; the run must be that of one host, in every bit."""
    config = drill.config("recipe", kind=PACED)
    runs = drill.folder / "recipe"
    text = f"NODES='{' '.join(HOSTS)}' GPUS={RANKS_A_NODE} CONFIG={config} RUNS={runs}\n"
    life = begin_shell(
        text + written("ssh"), drill.folder / "recipe.log", tools=drill.folder / "tools"
    )
    begun_s = time.monotonic()
    end_well([life])
    is_equal = drill.sums("recipe", 4) == drill.oracle()
    drill.found["two nodes, left alone"] = {
        "steps": drill.steps,
        "bit-equal to one host": is_equal,
        "hosts in the record": hosts_of(runs / "run"),
        "seconds": round(time.monotonic() - begun_s, 1),
    }


def written(name: str) -> str:
    """Give the lines of a recipe as they stand on the page."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"<!-- recipe: {name} -->\n+```bash\n(.*?)```", text, re.DOTALL)
    assert found is not None, name
    return found[1]


def hosts_of(run: Path) -> dict[str, str]:
    """Give the host that each rank's record names."""
    heads = {path.stem: json.loads(path.open().readline()) for path in run.glob("rank-*.jsonl")}
    return {name: head["host"] for name, head in sorted(heads.items())}


def slurm(drill: Drill) -> None:
    """Submit the recipe of the page, and give notice in mid-training as Slurm does it."""
    missing = missing_tools()
    if missing:
        raise SystemExit(f"there is no Slurm here: {', '.join(missing)}")
    config = drill.config("slurm", kind=PACED)
    runs = drill.folder / "slurm"
    runs.mkdir()
    script, log = runs / "job.sh", runs / "job.log"
    script.write_text(written("slurm"))
    options = (f"--gpus-per-node={RANKS_A_NODE}", f"--cpus-per-task={os.cpu_count()}")
    variables = {"GPUS": str(RANKS_A_NODE), "CONFIG": str(config), "RUNS": str(runs)}
    begun_s = time.monotonic()
    with Slurm(drill.folder / "cluster", drill.folder / "tools" / "ssh") as cluster:
        known = shell_environment(drill.folder / "tools") | variables
        job = cluster.submit(script, (*options, f"--output={log}"), known)
        drill.await_step("slurm", drill.steps // 4)
        had = drill.saved("slurm")
        cluster.ask("scancel", "--batch", "--signal=USR1", job)
        ended = cluster.wait(job, LIMIT_S)
        version = cluster.version
    text = log.read_text()
    assert ended["JobState"] == "COMPLETED", (ended, text[-3000:])
    drill.found["slurm"] = {
        "version": version,
        "steps": drill.steps,
        "saved before the notice": had,
        "queued again": int(ended["Restarts"]),
        "began at steps": [int(step) for step in re.findall(r"run: steps (\d+)", text)],
        "hosts in the record": hosts_of(runs / "run"),
        "seconds": round(time.monotonic() - begun_s, 1),
        "bit-equal to one host": drill.sums("slurm", 4) == drill.oracle(),
    }


def cut(drill: Drill, *, seconds: float, name: str = "cut") -> None:
    """Pull the cable for a while: ranks end in time, start again, and nothing shows it."""
    train = drill.arguments(name)
    more = ("--nnodes=2", "--max-restarts=3")
    lives = [drill.start(name, node, *train, more=more) for node in range(2)]
    drill.await_step(name, drill.steps // 4, lives)
    had = drill.saved(name)
    ranks = drill.nodes.ranks()
    drill.nodes.unplug()
    cut_s = time.monotonic()
    gone_s: float | None = None
    while time.monotonic() < cut_s + seconds:
        if gone_s is None and not any(map(_lives, ranks)):
            gone_s = time.monotonic() - cut_s
        time.sleep(POLL_S)
    drill.nodes.plug()
    back_s = time.monotonic()
    end_well(lives)
    texts = [life.text.replace(f"{drill.folder}/", "") for life in lives]
    begun = [int(step) for text in texts for step in re.findall(r"run: steps (\d+)", text)]
    drill.found[f"cable pulled for {seconds:g} s"] = {
        "rank_timeout_s": drill.timeout_s,
        "ranks": len(ranks),
        "all ranks gone after s": None if gone_s is None else round(gone_s, 1),
        "sentences": [_sentences(text) for text in texts],
        "saved before the cut": had,
        "went on from": begun[-1],
        "seconds from the cable's return to the end": round(time.monotonic() - back_s, 1),
        "bit-equal to one host": drill.sums(name, 4) == drill.oracle(),
    }


def _sentences(text: str) -> list[str]:
    found = re.findall(r"error: (rank \d+ on \S+ cannot go on.*?)(?=;)", " ".join(text.split()))
    return sorted(set(found))


def leaves_and_joins(drill: Drill) -> None:
    """A node is lost for good in mid-epoch; later another takes its place."""
    name = "elastic"
    # Long enough for a launcher to start on a busy machine while two ranks go on.
    train = drill.arguments(name, kind=NOTED, steps=1000)
    more = ("--nnodes=1:2", "--max-restarts=5", "--rdzv-conf=last_call_timeout=2")
    first = drill.start(name, 0, *train, more=more)
    drill.await_that(lambda: bool(drill.nodes.ranks()), "rank", [first])
    second = drill.start(name, 1, *train, more=more)
    drill.await_step(name, 20, [first])
    drill.nodes.kill(1)
    second.wait(LIMIT_S)
    lost_at = drill.saved(name)
    drill.await_step(name, lost_at + 40, [first])
    third = drill.start(name, 1, *train, more=more)
    end_well([first])
    third.wait(LIMIT_S)
    notes = list(_notes(drill.folder / name))
    worlds = [world for world, _ in itertools.groupby(_worlds(notes))]
    assert worlds == [4, 2, 4], worlds
    told = [line for line in first.text.splitlines() if "going on with" in line]
    drill.found["a node leaves and another joins"] = {**seen_samples(notes), "told": told}


def _notes(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("notes-*.jsonl"):
        yield from (json.loads(line) for line in path.read_text().splitlines())


def seen_samples(notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Say which samples the steps that count were made of, and compare with the epoch's order.

    Of a step that was made more than once, the last time counts: what was made before a fault and
    after the last save is made again.
    """
    by_step = _by_step(notes)
    worlds = _worlds(notes)
    epochs: dict[int, list[int]] = {}
    for made, world_size in zip(by_step, worlds, strict=True):
        latest: dict[int, dict[str, Any]] = {}
        for note in sorted(made, key=lambda note: note["at"]):
            if note["world_size"] == world_size:
                latest[note["rank"]] = note
        assert sorted(latest) == list(range(world_size)), "a step without one of its ranks"
        for rank in range(world_size):
            for epoch, index in latest[rank]["places"]:
                epochs.setdefault(epoch, []).append(index)
    return {
        "steps": len(by_step),
        "ranks step by step": _runs(worlds),
        "epochs": {epoch: _against_order(epoch, seen) for epoch, seen in epochs.items()},
    }


def _by_step(notes: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    ordered = sorted(notes, key=lambda note: note["step"])
    return [list(made) for _, made in itertools.groupby(ordered, key=lambda note: note["step"])]


def _worlds(notes: Sequence[dict[str, Any]]) -> list[int]:
    """Give how many ranks made each step, the last time it was made."""
    return [max(made, key=lambda note: note["at"])["world_size"] for made in _by_step(notes)]


def _against_order(epoch: int, seen: Sequence[int]) -> dict[str, Any]:
    order = ShuffledBatches(NOTED_SAMPLES, BATCH, seed=0, drop_last=True)
    order.set_epoch(epoch)
    whole = [index for batch in order.rest() for index in batch]
    return {
        "samples": len(seen),
        "twice": len(seen) - len(set(seen)),
        "exactly the first so many of the epoch's order": list(seen) == whole[: len(seen)],
    }


def _runs(values: Sequence[int]) -> list[str]:
    runs = [(value, len(list(same))) for value, same in itertools.groupby(values)]
    return [f"{count} steps of {value} ranks" for value, count in runs]


def folders_apart(drill: Drill) -> None:
    """Nodes without a common folder are refused; with records apart and saves together they run."""
    config = drill.config("apart", kind=PACED)
    shared = drill.folder / "apart-saves"
    for name, together in (("refused", False), ("apart", True)):
        lives = [
            drill.start(
                name,
                node,
                str(config),
                f"--work-dir={drill.folder / name / HOSTS[node]}",
                *((f"checkpoint.dir={shared}", *PER_HOST) if together else ()),
                more=("--nnodes=2",),
            )
            for node in range(2)
        ]
        if together:
            end_well(lives)
            drill.found["records apart, checkpoints together"] = _gathered(drill.folder, name)
        else:
            drill.found["nodes without a common folder"] = _refusal(lives)


def _gathered(folder: Path, name: str) -> dict[str, Any]:
    """Bring the records of both nodes to one place, and read them as one run."""
    for host in HOSTS:
        shutil.copytree(folder / name / host / "run", folder / "gathered" / host)
    record = read_run(folder / "gathered")
    judged = judge_run(folder / "gathered" / HOSTS[0], folder / "gathered" / HOSTS[1])
    clocks = [rank.attempts[-1].clock for rank in record.ranks]
    return {
        "ranks read as one run": [rank.rank for rank in record.ranks],
        "hosts": [rank.attempts[-1].host for rank in record.ranks],
        "workers of each rank": [_workers(rank) for rank in record.ranks],
        "ranks that speak for a cache": [
            rank.rank for rank in record.ranks if any(r.kind == "cache" for r in rank.readings)
        ],
        "judged from two folders": judged.verdict == verdict_of(record),
        "clock offsets s": [
            None if clock is None else round(clock.offset_s, 6) for clock in clocks
        ],
        "clock errors s": [None if clock is None else round(clock.error_s, 6) for clock in clocks],
    }


def _workers(rank: RankRecord) -> int | None:
    found = [reading.values for reading in rank.readings if reading.kind == "applied"]
    proofs = [values["proof"] for values in found if values["setting"] == "loader.workers"]
    return proofs[-1]["workers"] if proofs else None


def _refusal(lives: Sequence[Life]) -> str:
    for life in lives:
        assert life.wait(LIMIT_S), life.text
        assert life.code != 0, life.text
    text = " ".join(lives[0].text.split())
    found = re.search(r"error: (node-b .*? have mounted)", text)
    assert found is not None, text
    return found[1].replace(str(Path(found[1].split(" writes into ")[1].split(",")[0])), "FOLDER")


def can_have_nodes() -> str:
    """Say why there can be no nodes here; nothing where there can."""
    for tool in ("ip", "unshare", "bash"):
        if shutil.which(tool) is None:
            return f"there is no command {tool}"
    try:
        with tempfile.TemporaryDirectory() as name, Nodes(Path(name) / "tools"):
            done = subprocess.run(
                [str(Path(name) / "tools" / "ssh"), HOSTS[0], "true"],
                capture_output=True,
                check=False,
                text=True,
            )
            return done.stderr if done.returncode else ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {error}"


PARTS: Mapping[str, Callable[[Drill], None]] = {
    "recipe": recipe,
    "slurm": slurm,
    "cut": partial(cut, seconds=20.0),
    "elastic": leaves_and_joins,
    "folders": folders_apart,
}


def usual_parts() -> list[str]:
    """Name the parts that can be had here: Slurm's, where there is one."""
    return [part for part in PARTS if part != "slurm" or not missing_tools()]


def run_drill(*, only: Sequence[str] = (), short: bool = False) -> dict[str, Any]:
    """Run parts of the drill; give what was found."""
    with tempfile.TemporaryDirectory(prefix="nodes-") as name:
        folder = Path(name)
        install(folder / "site")
        with Nodes(folder / "tools") as nodes:
            steps, timeout_s = (40, 5.0) if short else (200, 10.0)
            drill = Drill(folder=folder, nodes=nodes, steps=steps, timeout_s=timeout_s)
            if short:
                cut(drill, seconds=8.0)
            else:
                for part in only or usual_parts():
                    PARTS[part](drill)
        return drill.found


def main() -> None:
    """Run the drill, and write what was found into what was found before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PARTS), default=[])
    parser.add_argument("--short", action="store_true", help="one run, cut for a moment")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    why_not = can_have_nodes()
    if why_not:
        raise SystemExit(why_not)
    before = json.loads(options.results.read_text()) if options.results.exists() else {}
    found = {
        **before,
        "hardware": f"{os.cpu_count()}-core {_processor()}, two network namespaces",
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
        **run_drill(only=options.only, short=options.short),
    }
    options.results.write_text(json.dumps(found, indent=1) + "\n")


def _processor() -> str:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return " ".join(names[0].split()[:2]) if names else platform.processor()


def _lives(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has asked after yet has ended."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _is_rank(pid: int) -> bool:
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"pitstop" in words and not any(b"torchrun" in word for word in words)


if __name__ == "__main__":
    main()
