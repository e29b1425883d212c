"""How much arithmetic a step holds, and how fast that makes it against a measured ceiling."""

from dataclasses import dataclass

from pitstop.records.host.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFlops:
    """Arithmetic of one part of a model."""

    name: str
    """Class of the root module and the child's name, or ``"(outside modules)"``."""
    forward: int
    """FLOPs outside the backward pass."""
    backward: int
    """FLOPs inside the backward pass, recomputation included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCalls:
    """How often an operation ran, and what it was counted as."""

    name: str
    """For instance ``"aten.addmm"``."""
    calls: int
    """How often it ran."""
    flops: int | None
    """FLOPs of all calls together; None when no formula is known, so they were not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """Arithmetic of one call, a multiply-add counted as two."""

    forward: int
    """FLOPs outside the backward pass."""
    backward: int
    """FLOPs inside the backward pass, recomputation included."""
    by_module: tuple[ModuleFlops, ...]
    """The same by top-level part; the parts add up to the totals."""
    counted: tuple[OpCalls, ...]
    """Operations with a formula, most FLOPs first."""
    not_counted: tuple[OpCalls, ...]
    """Operations that ran without a formula, most calls first: mostly element-wise work, whose
    cost is memory traffic, but also any kernel nobody gave a formula for."""

    @property
    def total(self) -> int:
        """FLOPs of the whole call."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Achieved:
    """Arithmetic rate of a step, against what the same device was measured to reach."""

    flops_per_s: float
    """FLOP/s, from counted work and measured time."""
    peak_flops_per_s: float | None
    """Measured ceiling for this device and number format; None when it was not measured."""

    @property
    def share(self) -> float | None:
        """Share of the measured ceiling; None when there is none to compare with."""
        if self.peak_flops_per_s is None:
            return None
        return self.flops_per_s / self.peak_flops_per_s


def achieved(
    flops_per_step: float, step_s: float, machine: Machine, *, dtype: str, device: str = "cuda:0"
) -> Achieved:
    """Set a step's arithmetic rate beside the ceiling measured for its number format.

    Args:
        flops_per_step: Counted work of one step on one device.
        step_s: Wall time of that step in seconds.
        machine: The host it ran on, with its measured ceilings.
        dtype: Number format of the matrix products, spelt as in `MatrixRate.dtype`.
        device: Device it ran on, spelt as in `MatrixRate.device`.

    Raises:
        ValueError: The step took no time, so there is no rate.
    """
    if step_s <= 0:
        raise ValueError(f"a step of {step_s} s has no rate")
    peak = machine.matrix_rate(device, dtype)
    return Achieved(
        flops_per_s=flops_per_step / step_s,
        peak_flops_per_s=None if peak is None else peak.rate.value,
    )
