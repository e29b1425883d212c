"""The processes of one run, as far as a step needs to know them."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from pitstop.train.stop_signals import stop_with_launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process's place among all processes of the run."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1

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
        """Give the largest count of all ranks, to all of them; once, while a run is set up."""
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


def is_first_rank() -> bool:
    """Tell, before the ranks have met, whether this process speaks for the run."""
    return int(os.environ.get("RANK", "0")) == 0  # noqa: TID251 - torchrun's own contract


def join_ranks() -> Ranks:
    """Join the other processes of a ``torchrun`` launch; a plain launch is a run of one rank."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))  # noqa: TID251 - torchrun's own contract
    if world_size == 1:
        return Ranks()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # noqa: TID251
        stop_with_launcher()
    local_rank = int(os.environ["LOCAL_RANK"])  # noqa: TID251
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(local_rank)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if on_cuda else "gloo")
    return Ranks(
        rank=distributed.get_rank(),
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # noqa: TID251
    )


def leave_ranks() -> None:
    """Leave the process group, if one was joined."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
