"""A study on a real Ray cluster of two workers: crashes, a killed worker, a lost node, a cancel.

Runs where ray is installed, which it is not in CI: ``pip install ray`` and run this file.
"""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from pitstop.records.tuning.study import Trial, Tuning
from pitstop.tune.cluster import ClusterTrials, RepeatedTrials
from pitstop.tune.journal import JournaledTrials, StudyHead, TrialJournal
from pitstop.tune.knobs import OWN, Knob, Situation
from pitstop.tune.node import NodeTrial
from pitstop.tune.ray_cluster import RayCluster
from pitstop.tune.space import open_space
from pitstop.tune.tuning import Budget, Tuner
from tests.unit.train.runs import line_config
from tests.unit.tune.planted import CONFIG, ENDS, install, path_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are told apart by /proc"),
]

STEPS = 20
WORKER = "ray::_on_node"


@contextmanager
def two_workers(folder: Path) -> Iterator[tuple[Any, list[Any]]]:
    """A head that computes nothing and two nodes of one core each, on this machine."""
    ray = pytest.importorskip("ray", reason="ray is not installed: no cluster to tune on")
    cluster_class = import_module("ray.cluster_utils").Cluster
    install(folder / "site")
    path = os.pathsep.join([path_of(folder / "site"), str(Path(ray.__file__).parents[1])])
    store = {"object_store_memory": 80 << 20}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("OMP_NUM_THREADS", "1")
        head = {"num_cpus": 0, "include_dashboard": False, **store}
        cluster = cluster_class(initialize_head=True, head_node_args=head)
        workers = [cluster.add_node(num_cpus=1, **store) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield cluster, workers
        finally:
            ray.shutdown()
            cluster.shutdown()


def running(text: str) -> list[psutil.Process]:
    """Processes whose command line holds a text."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if text in " ".join(process.cmdline()):
                found.append(process)
    return found


def trial_of(folder: Path) -> str:
    """What the command line of a trial's command holds."""
    return f"pitstop train {folder / 'line.yaml'}"


def wait_for(text: str, limit_s: float = 60.0) -> list[psutil.Process]:
    """Wait until such a process is there."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        found = running(text)
        if found:
            return found
        time.sleep(0.1)
    raise TimeoutError(text)


def tuner_of(folder: Path, said: list[Trial]) -> Tuner:
    config = folder / "line.yaml"
    config.write_text(CONFIG)
    choices = [OWN, *((f"train.batch_size={size}",) for size in (2, 5, 9))]
    knob: Knob[Situation] = Knob(name="size", choices=lambda _: tuple(choices))
    asked = NodeTrial(
        config=str(config), given=(), overrides=(), steps=STEPS, limit_s=60.0, folder=str(folder)
    )
    journaled = JournaledTrials(
        journal=TrialJournal(folder / "journal.jsonl", StudyHead(config=CONFIG, steps=STEPS)),
        trials=ClusterTrials(cluster=RayCluster(), asked=asked),
    )
    situation = Situation(config=line_config(folder), cores=1, has_gpu=False)
    return Tuner(
        source="line.yaml",
        space=open_space([knob], situation, lambda _: None),
        claim_of=lambda _: "training",
        trials=RepeatedTrials(trials=journaled, progress=said.append),
        budget=Budget(most_trials=7, most_s=600.0),
        progress=said.append,
    )


class Saboteur:
    """Kills the process under one trial, and later the node under another."""

    def __init__(
        self, nodes: tuple[Any, list[Any]], said: list[Trial], folder: Path, at: tuple[int, int]
    ) -> None:
        self._cluster, self._nodes = nodes
        self._said, self._folder = said, folder
        self._due = [(at[0], self._kill_worker), (at[1], self._kill_node)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.done: list[str] = []

    def __enter__(self) -> "Saboteur":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._due.clear()
        self._thread.join(30)

    def _run(self) -> None:
        while self._due:
            at, kill = self._due[0]
            # While the trial's own command runs, so that there is something to leave behind.
            if at <= len(self._said) and running(trial_of(self._folder)):
                kill()
                self._due = self._due[1:]
            time.sleep(0.1)

    def _busy(self) -> list[tuple[Any, psutil.Process]]:
        """Nodes that run a trial, with the worker that does."""
        pids = {node.all_processes["raylet"][0].process.pid: node for node in self._nodes}
        return [(pids[one.ppid()], one) for one in running(WORKER) if one.ppid() in pids]

    def _kill_worker(self) -> None:
        for _, worker in self._busy():
            worker.send_signal(signal.SIGKILL)
            self.done.append("worker")

    def _kill_node(self) -> None:
        for node, _ in self._busy()[:1]:
            self._cluster.remove_node(node, allow_graceful=False)
            self._nodes.remove(node)
            self.done.append("node")


def journal_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()][1:]


def sabotaged_study(folder: Path) -> tuple[Tuning, list[str], list[dict[str, Any]], int]:
    """Run a study with planted crashes while a worker and then a node are killed under it."""
    said: list[Trial] = []
    with two_workers(folder) as nodes:
        tuner = tuner_of(folder, said)
        with Saboteur(nodes, said, folder, (2, 4)) as saboteur:
            tuning = tuner.run()
        left = len(running(trial_of(folder)))
    return tuning, saboteur.done, journal_of(folder), left


def test_a_study_outlives_crashes_a_killed_worker_and_a_lost_node(tmp_path: Path) -> None:
    tuning, killed, journal, left = sabotaged_study(tmp_path)
    assert killed == ["worker", "node"]
    ends = Counter(line["end"] for line in journal)
    assert ends["lost"] == 2
    assert len(journal) == len(tuning.trials) + 2, (
        "every trial is in the journal, and what was lost"
    )
    for size in (5, 9):
        [line] = [one for one in journal if f"train.batch_size={size}" in one["overrides"]]
        assert line["end"] == ENDS[size]
    assert len(tuning.rows) >= 1
    assert left == 0


@pytest.mark.usefixtures("with_signal_handlers")
def test_a_cancelled_study_leaves_nothing_running(tmp_path: Path) -> None:
    with two_workers(tmp_path):
        tuner = tuner_of(tmp_path, [])

        def interrupt() -> None:
            wait_for(trial_of(tmp_path))
            os.kill(os.getpid(), signal.SIGINT)

        asked = threading.Thread(target=interrupt, daemon=True)
        asked.start()
        with pytest.raises(KeyboardInterrupt):
            tuner.run()
        asked.join()
        until = time.monotonic() + 30
        while running(trial_of(tmp_path)) and time.monotonic() < until:
            time.sleep(0.2)
        assert running(trial_of(tmp_path)) == []
        assert journal_of(tmp_path) == []
