"""How long a divided model's collectives take, where the host itself runs them.

On a CPU a collective of gloo's returns when it is done: all of its time is waited for. On a GPU it
is only handed to the device here, where it runs beside computing, so nothing is timed.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)

from pitstop.records.communication import CommunicationReading


class CollectiveTimer:
    """Adds up what gathering weights and dividing gradients takes, over all steps so far."""

    def __init__(self) -> None:
        self._steps = 0
        self._gather_ns = 0
        self._reduce_ns = 0
        self._is_attached = False

    def attach(self, block: FSDPModule) -> None:
        """Time the collectives of one block."""
        block.set_custom_all_gather(_TimedGather(DefaultAllGather(), self._gathered))
        block.set_custom_reduce_scatter(_TimedReduce(DefaultReduceScatter(), self._reduced))
        self._is_attached = True

    def begin_step(self) -> None:
        """Count a step."""
        self._steps += 1

    def read(self) -> CommunicationReading | None:
        """Give the means of a step; None where nothing was timed."""
        if not (self._is_attached and self._steps):
            return None
        gather_us, reduce_us = (ns / 1e3 / self._steps for ns in (self._gather_ns, self._reduce_ns))
        return CommunicationReading(
            exchange_us=gather_us + reduce_us,
            overlapped_us=0.0,
            gather_us=gather_us,
            reduce_us=reduce_us,
        )

    def _gathered(self, took_ns: int) -> None:
        self._gather_ns += took_ns

    def _reduced(self, took_ns: int) -> None:
        self._reduce_ns += took_ns


class _Timed:
    """A collective of torch's that says how long it took."""

    def __init__(self, inner: Any, note: Callable[[int], None]) -> None:
        self._inner = inner
        self._note = note

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return self._inner.allocate(size, dtype=dtype, device=device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began_ns = time.perf_counter_ns()
        work = self._inner(*args, **kwargs)
        self._note(time.perf_counter_ns() - began_ns)
        return work


class _TimedGather(_Timed, AllGather):
    """Gathers weights."""


class _TimedReduce(_Timed, ReduceScatter):
    """Divides gradients."""
