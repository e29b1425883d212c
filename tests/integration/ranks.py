"""Ranks as processes of their own, with the environment torchrun gives them, and what they run."""

import multiprocessing
import os
import signal
import socket
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pitstop.config.dump import to_yaml
from pitstop.train.run import TrainingRun
from pitstop.train.task import Loss
from tests.unit.train.runs import LINE, Batch, LineSamples, LineTask, line_config

PRELOADED = (
    "pitstop.train.run",
    "pitstop.train.state.shard_storage",
    __name__,
    "tests.frozen",
)
END_S = 180.0
"""By when the ranks left over must have ended; far more than it takes on cores that are shared."""


@dataclass(frozen=True, kw_only=True)
class Doom:
    """How one rank ends before its time."""

    rank: int
    how: Literal["killed in a step", "killed in a save", "raises in a step"]
    count: int
    """In which call of the loss, or of fsync, of this process."""


class LargerLine(LineTask):
    """The line with a model large enough that steps and saves take milliseconds."""

    def __init__(self, doom: Doom | None = None) -> None:
        super().__init__()
        self._doom = doom
        self._calls = 0

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(3, 512), nn.Dropout(0.1), nn.Tanh(), nn.Linear(512, 512), nn.Linear(512, 1)
        )

    def train_samples(self) -> LineSamples:
        return LineSamples(45)

    def loss(self, output: Tensor, batch: Batch, step: int) -> Loss:
        self._calls += 1
        if self._doom is not None and self._calls == self._doom.count:
            _meet(self._doom)
        return super().loss(output, batch, step)


def launch(
    target: Callable[..., None], *args: Any, world_size: int, logs: Path
) -> list[BaseProcess]:
    """Start `target(*args)` once a rank; what a rank says goes to ``stderr-RANK`` in `logs`."""
    logs.mkdir(parents=True, exist_ok=True)
    # Forked from a process that has imported torch once and started nothing.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    held = held_port()
    port: int = held.getsockname()[1]
    ranks = [
        context.Process(target=_as_rank, args=(rank, world_size, port, logs, target, args))
        for rank in range(world_size)
    ]
    weakref.finalize(ranks[0], held.close)
    for process in ranks:
        process.start()
    return list(ranks)


def exit_codes(ranks: Sequence[BaseProcess]) -> list[int | None]:
    """Wait for the end of all ranks; None for one that does not end, which is killed."""
    for process in ranks:
        process.join(END_S)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    return codes


def die_in_a_save(doom: Doom) -> None:
    """End with some flush, if it is this rank's doom."""
    if doom.rank == int(_environment("RANK")):
        _count_flushes(doom)


def train_larger_line(folder: Path, settings: Mapping[str, object], doom: Doom | None) -> None:
    """Train in this process, as ``pitstop train --resume auto`` does."""
    mine = doom if doom is not None and doom.rank == int(_environment("RANK")) else None
    if mine is not None and mine.how == "killed in a save":
        _count_flushes(mine)
        mine = None
    config = line_config(folder, **settings)
    TrainingRun(
        config=config,
        config_yaml=to_yaml(config, kinds={"line": LINE}),
        task=LargerLine(mine),
        resume="auto",
    ).run()


def held_port() -> socket.socket:
    """Give a port that nobody else is given while this socket is open, and rank 0 may listen on."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _as_rank(
    rank: int,
    world_size: int,
    port: int,
    logs: Path,
    target: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
    shared = {"LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in (own | shared).items():
        os.environ[name] = str(value)  # noqa: TID251 - torchrun's own contract
    with (logs / f"stderr-{rank}").open("ab") as file:
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    try:
        target(*args)
    except Exception:  # noqa: BLE001 - said and counted as multiprocessing does
        traceback.print_exc()
        sys.stderr.flush()
        # Not by way of the interpreter's end: what a failed run leaves behind includes a process
        # group, whose threads torch may join while it holds the lock that they wait for.
        os._exit(1)


def _meet(doom: Doom) -> None:
    if doom.how == "raises in a step":
        raise ArithmeticError(f"rank {doom.rank} has had enough")
    os.kill(os.getpid(), signal.SIGKILL)


def _count_flushes(doom: Doom) -> None:
    """Every file and folder of a checkpoint is flushed; end with one of these calls."""
    flush, calls = os.fsync, 0

    def counted(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == doom.count:
            _meet(doom)
        flush(descriptor)

    os.fsync = counted


def _environment(name: str) -> str:
    return os.environ[name]  # noqa: TID251 - as above
