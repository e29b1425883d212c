"""The drill in short: a few faults of each part, none of which may cost anything."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pitstop.records.store import read_run
from pitstop.train.state.checkpoint import find_newest_whole
from tests.drill.workload import CONFIG, install
from tests.integration.ranks import held_port

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="faults are made by way of /proc"),
]


def drill(tmp_path: Path, part: str, minutes: float) -> dict[str, Any]:
    results = tmp_path / "results.json"
    options = ["--only", part, "--minutes", str(minutes), "--seed", "5", "--results", str(results)]
    command = [sys.executable, "-m", "tests.drill.run", "--short", *options]
    subprocess.run(command, cwd=ROOT, check=True)
    found = json.loads(results.read_text())["parts"][part]
    assert sum(found["tried"].values()) > 0
    return found


@pytest.mark.parametrize(
    ("part", "minutes"),
    [("kills", 0.3), ("hostile inputs", 0.3), ("faults", 0), ("ranks", 0), ("shards", 0)],
)
def test_nothing_is_lost(part: str, minutes: float, tmp_path: Path) -> None:
    assert drill(tmp_path, part, minutes)["troubles"] == {}


def test_a_soak_runs_to_its_end(tmp_path: Path) -> None:
    found = drill(tmp_path, "soak", 0.3)
    # In so short a time every process still opens what it will hold; that it lives is what shows.
    assert [name for name in found["troubles"] if "ended early" in name] == []


LAUNCHER = """
import os, sys, subprocess
ranks = []
for rank in range(2):
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1], "TORCHELASTIC_RUN_ID": "drill"}
    ranks.append(subprocess.Popen([sys.executable, *sys.argv[2:]], env={**os.environ, **own}))
for rank in ranks:
    rank.wait()
"""


def test_ranks_whose_launcher_is_killed_save_and_leave(tmp_path: Path) -> None:
    install(tmp_path / "site")
    (tmp_path / "line.yaml").write_text(CONFIG % {"steps": 1_000_000})
    train = ["-m", "pitstop", "train", str(tmp_path / "line.yaml"), "--work-dir", str(tmp_path)]
    train += ["checkpoint.every_steps=1000000", "eval.every_steps=1000000", "loader.workers=2"]
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT / "src"), str(ROOT)])
    with (
        held_port() as held,
        subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(held.getsockname()[1]), *train],
            env={**os.environ, "PYTHONPATH": path},  # noqa: TID251 - handed on
            stdout=subprocess.DEVNULL,
        ) as launcher,
    ):
        record = tmp_path / "run" / "rank-0.jsonl"
        while not (record.exists() and b"\n[" in record.read_bytes()):
            assert launcher.poll() is None
            time.sleep(0.05)
        ranks = psutil.Process(launcher.pid).children()
        launcher.send_signal(signal.SIGKILL)
    gone, left = psutil.wait_procs(ranks, timeout=120)
    for process in left:
        process.kill()
    assert (len(gone), left) == (2, [])
    ending = read_run(tmp_path / "run").first.ending
    assert ending is not None
    assert ending.status == "interrupted"
    assert "the launcher of this run has ended" in ending.reason
    checkpoint, _ = find_newest_whole(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.manifest.step == ending.steps
