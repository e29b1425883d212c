"""What runs on a node of a cluster: a trial, and a look at what the node has.

Texts go in and out (JSON), so that whatever carries them needs to know nothing of ours. The node
has pitstop installed, and sees the configuration and the dataset under the same names as the
machine that tunes.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil
import torch

from pitstop.measure.host.limits import read_host_limits
from pitstop.records.store import from_json, to_json
from pitstop.records.tuning.study import Trial
from pitstop.tune.trial import ENOUGH_S, EngineTrials

_TRIALS: Final = "pitstop-trials"
"""Folder of trials on a node's own disk; one inside for each process that runs any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTrial:
    """All that a node must know to run a trial."""

    config: str
    given: tuple[str, ...]
    """Overrides that the user gave."""
    overrides: tuple[str, ...]
    """Those of the trial."""
    steps: int
    limit_s: float
    folder: str
    """Where the user stands: what relative paths begin at."""
    enough_s: float = ENOUGH_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a machine has for a trial."""

    host: str
    cores: int
    free_bytes: int
    gpu_name: str = ""
    gpu_bytes: int = 0
    """0 without a GPU."""

    @property
    def has_gpu(self) -> bool:
        """Whether there is one."""
        return self.gpu_bytes > 0


def describe_place() -> Place:
    """Say what this machine has."""
    limits = read_host_limits()
    has_gpu = torch.cuda.is_available()
    return Place(
        host=socket.gethostname(),
        cores=limits.cores,
        free_bytes=min(psutil.virtual_memory().available, limits.memory_bytes),
        gpu_name=torch.cuda.get_device_name() if has_gpu else "",
        gpu_bytes=torch.cuda.get_device_properties(0).total_memory if has_gpu else 0,
    )


def place_text(_: str = "") -> str:
    """Say what this machine has, as text."""
    return to_json(describe_place())


def run_node_trial(text: str) -> str:
    """Run a trial here and say what came of it, as text."""
    asked = from_json(text, NodeTrial)
    here = socket.gethostname()
    config, folder = Path(asked.config), Path(asked.folder)
    if not config.is_file() or not folder.is_dir():
        missing = folder if config.is_file() else config
        reason = f"{missing} is not on host {here}; all nodes must see it under that name"
        return to_json(Trial(overrides=asked.overrides, end="refused", reason=reason, host=here))
    os.chdir(folder)
    with _own_folder() as place:
        trials = EngineTrials(
            config=config,
            given=asked.given,
            folder=place,
            steps=asked.steps,
            enough_s=asked.enough_s,
            limit_s=asked.limit_s,
        )
        trial = trials.run(asked.overrides)
    return to_json(replace(trial, host=here))


@contextmanager
def _own_folder() -> Iterator[Path]:
    """Give a folder on this node's disk; also remove those of processes that were killed."""
    above = Path(tempfile.gettempdir()) / f"{_TRIALS}-{os.getuid()}"
    above.mkdir(exist_ok=True)
    for left in above.iterdir():
        with suppress(ValueError):
            if not psutil.pid_exists(int(left.name)):
                shutil.rmtree(left, ignore_errors=True)
    place = above / str(os.getpid())
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
