"""Slurm on two nodes of one machine: the recipe of docs/scale.md, submitted as it stands there.

Each node is a network namespace with a `slurmd` of its own; the first has `slurmctld`, too. Two
empty files are the GPUs of a node, which the recipe asks for and nothing here uses.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.drill.lives import POLL_S

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
START_S = 60.0
_END_S = 20.0
_NETWORK = {"node-a": "10.213.9.1", "node-b": "10.213.9.2"}

# Job accounting, control groups and a database are left out: the recipe uses none of them. A
# credential that lives for seconds lets a job that is queued again start at once.
SETTINGS = """\
ClusterName=drill
SlurmctldHost=node-a
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
PartitionName=drill Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_tools() -> list[str]:
    """Name the commands of Slurm that are not here."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


class Slurm:
    """A cluster of two nodes; everything that it started ends with it."""

    def __init__(self, folder: Path, ssh: Path) -> None:
        self._folder = folder
        self._ssh = ssh
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Slurm":
        """Write the settings, start the daemons, and wait until both nodes are idle."""
        self._folder.mkdir(mode=0o755)
        self._write_settings()
        self._begin_munge()
        self._begin("node-a", "slurmctld", "-D")
        for node in _NETWORK:
            self._begin(node, "slurmd", "-D", "-N", node)
        until_s = time.monotonic() + START_S
        while self.ask("sinfo", "-h", "-N", "-o", "%T").split() != ["idle"] * len(_NETWORK):
            assert time.monotonic() < until_s, self._said()
            time.sleep(POLL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None
    ) -> None:
        """End the daemons, the nodes' first."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(_END_S)
            except subprocess.TimeoutExpired:
                daemon.send_signal(signal.SIGKILL)
                daemon.wait()

    @property
    def version(self) -> str:
        """Which Slurm it is."""
        return self.ask("sbatch", "--version").strip()

    def ask(self, *command: str) -> str:
        """Run one of Slurm's commands on the first node; give what it says, or nothing."""
        done = subprocess.run(
            [str(self._ssh), "node-a", *command],
            env=self._environment(),
            capture_output=True,
            check=False,
            text=True,
        )
        return done.stdout

    def submit(self, script: Path, options: Sequence[str], variables: dict[str, str]) -> str:
        """Submit a file, as somebody types it; give the number of the job."""
        done = subprocess.run(
            [str(self._ssh), "node-a", "sbatch", "--parsable", *options, str(script)],
            cwd=script.parent,
            env=self._environment() | variables,
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait(self, job: str, limit_s: float) -> dict[str, str]:
        """Wait for the end of a job; give how it ended and how often it was queued again."""
        until_s = time.monotonic() + limit_s
        while True:
            told = self.ask("scontrol", "show", "job", job)
            found = dict(re.findall(r"(JobState|Restarts|ExitCode)=(\S+)", told))
            if found.get("JobState") in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"):
                return found
            assert time.monotonic() < until_s, f"no end in time: {told}{self._said()}"
            time.sleep(1.0)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._folder / "slurm.conf")}  # noqa: TID251

    def _write_settings(self) -> None:
        cores = os.cpu_count() or 1
        nodes = "".join(
            f"NodeName={name} NodeAddr={address} CPUs={cores} CoresPerSocket={cores} Gres=gpu:2\n"
            for name, address in _NETWORK.items()
        )
        text = SETTINGS.format(folder=self._folder)
        head, partition, tail = text.rpartition("PartitionName")
        (self._folder / "slurm.conf").write_text(f"{head}{nodes}{partition}{tail}")
        # Found out by itself, control groups are looked for where a namespace has none.
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self._folder / "gres.conf").write_text(f"Name=gpu File={self._folder}/gpu[0-1]\n")
        for number in range(2):
            (self._folder / f"gpu{number}").touch()
        for name in ("state", *(f"spool-{node}" for node in _NETWORK)):
            (self._folder / name).mkdir()

    def _begin_munge(self) -> None:
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key": "key", "socket": "socket", "pid": "pid", "log": "log", "seed": "seed"}
        places = [
            f"--{what}{'' if what == 'socket' else '-file'}={self._folder}/munge.{name}"
            for what, name in files.items()
        ]
        self._start(["munged", "--foreground", "--force", *places], "munged")
        until_s = time.monotonic() + START_S
        while not (self._folder / "munge.socket").exists():
            assert time.monotonic() < until_s, self._said()
            time.sleep(POLL_S)

    def _begin(self, node: str, *command: str) -> None:
        words = " ".join(("exec", *command))
        self._start([str(self._ssh), node, words], f"{command[0]}-{node}")

    def _start(self, command: Sequence[str], name: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=self._environment())
            )

    def _said(self) -> str:
        return "".join(
            f"{log.name}: {log.read_text(errors='replace')[-1500:]}"
            for log in self._folder.glob("*.log")
        )
