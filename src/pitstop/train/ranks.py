"""The processes of one run, as far as a step needs to know them."""

import os
import re
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
from torch import Tensor, distributed

from pitstop.errors import ConfigError, PitstopError
from pitstop.train.stop_signals import stop_with_launcher

_NUMBER: Final = re.compile("[0-9]{1,9}")
_LAUNCH: Final = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One of the machines of a launch, or what a launcher takes for one."""

    name: str
    ranks: tuple[int, ...]
    """The first of them looks after what they share."""

    def __str__(self) -> str:
        """Name it with its ranks."""
        noun = "rank" if len(self.ranks) == 1 else "ranks"
        return f"{self.name} ({noun} {', '.join(map(str, self.ranks))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process's place among all processes of the run."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    hosts: tuple[Host, ...] = ()
    """All hosts, that of the first rank first; none for a run of one rank."""
    timeout: timedelta | None = None
    """How long ranks wait for each other; None for torch's own limit."""

    @property
    def host(self) -> Host | None:
        """The host of this rank."""
        return next((host for host in self.hosts if self.rank in host.ranks), None)

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for the run."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """Add a value over all ranks, on the device."""
        if self.world_size > 1:
            distributed.all_reduce(value)
        return value

    def most(self, count: int) -> int:
        """Give the largest count of all ranks, to all of them; too slow for every step."""
        if self.world_size == 1:
            return count
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        value = torch.tensor(count, device=device)
        distributed.all_reduce(value, distributed.ReduceOp.MAX)
        return int(value.item())

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            distributed.barrier()


def join_ranks(*, launcher: int | None = None, timeout_s: float | None = None) -> Ranks:
    """Join the other processes of a ``torchrun`` launch; a plain launch is a run of one rank.

    Args:
        launcher: The process that started this one, as it was when this one began.
        timeout_s: How long ranks wait for each other, at the start and in every exchange; None
            for torch's own limit.

    Raises:
        ConfigError: The environment speaks of several ranks and does not say enough to join them.
        PitstopError: The launcher has ended, the others did not come, or cannot be reached.
    """
    world_size = _launch_number("WORLD_SIZE", 1)
    if world_size == 1:
        return Ranks()
    missing = [name for name in _LAUNCH if name not in os.environ]  # noqa: TID251
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {world_size}, but {', '.join(missing)} are not set; start the ranks "
            "with torchrun, or unset WORLD_SIZE to train in one process"
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:  # noqa: TID251
        stop_with_launcher(launcher)
    local_rank = _launch_number("LOCAL_RANK", 0)
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(local_rank)
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    if not distributed.is_initialized():
        _init_group("nccl" if on_cuda else "gloo", world_size, timeout)
    return Ranks(
        rank=distributed.get_rank(),
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=_launch_number("LOCAL_WORLD_SIZE", 1),
        hosts=_meet_hosts(local_rank, world_size),
        timeout=timeout,
    )


def _meet_hosts(local_rank: int, world_size: int) -> tuple[Host, ...]:
    """Learn which ranks share a host: those that one launcher counts as its own."""
    places: list[tuple[str, int]] = [("", 0)] * world_size
    distributed.all_gather_object(places, (socket.gethostname(), local_rank))
    hosts: dict[int, Host] = {}
    for rank, (name, local) in enumerate(places):
        first = rank - local
        before = hosts[first].ranks if first in hosts else ()
        hosts[first] = Host(name=name, ranks=(*before, rank))
    return tuple(hosts.values())


def _init_group(backend: str, world_size: int, timeout: timedelta | None) -> None:
    rank = _launch_number("RANK", 0)
    # Set by torchrun where one store serves all its restarts.
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # noqa: TID251
    try:
        if is_kept:
            # Here, where there are several ranks: not every torch has what they need.
            from pitstop.train.launch_store import store_of_launch

            store = store_of_launch(timeout)
            distributed.init_process_group(
                backend, store=store, rank=rank, world_size=world_size, timeout=timeout
            )
        else:
            distributed.init_process_group(backend, timeout=timeout)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise PitstopError(
            f"rank {rank} of {world_size} could not join the others ({reason}); see that all of "
            "them were started, and that their hosts reach each other"
        ) from error


def _launch_number(name: str, default: int) -> int:
    """Read one number of a launch from the environment."""
    text = os.environ.get(name, str(default))  # noqa: TID251 - torchrun's own contract
    least = 1 if name.endswith("WORLD_SIZE") else 0
    if not (_NUMBER.fullmatch(text) and int(text) >= least):
        raise ConfigError(
            f"the environment has {name}={text!r}, which is no number of a launch; unset it, or "
            "start the ranks with torchrun, which sets it"
        )
    return int(text)


def leave_ranks() -> None:
    """Leave the process group, if one was joined."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
