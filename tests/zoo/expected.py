"""What must be found first, by the stopwatch alone; the rule stood before the first run on a GPU.

With w the wall clock of a step and b the time in which the device is busy, taking t away from the
host leaves max(w - t, b). So each thing that may hold a step back has a share of the whole time
that can go with it at most, and the largest that is worth naming must come first. What lies within
a quarter of the largest may come first, too: two runs of one script differ by as much. Nothing may
be found, too, where the largest lies within a quarter above its own limit.

What lies outside the steps has names since the stopwatch tells it apart: evaluations with the
starts of their own loaders (EVAL001), checkpoints (CKPT001), passes of training (DATA002). What odd
steps took longer than ordinary ones beside counts where the findings on steps count it: Python
(HOST001), waits for the device (SYNC001), copies to it (COPY001). OUTSIDE001 is none of these: only
a script that calls `clock.outside_step` can have it.

Without a GPU nothing is busy but the host, so what goes with each thing is its own time.
"""

from collections.abc import Mapping
from typing import Any

LIMITS: Mapping[str, float] = {
    "DATA001": 0.10,
    "DATA002": 0.10,
    "EVAL001": 0.10,
    "CKPT001": 0.10,
    "COPY001": 0.10,
    "SYNC001": 0.10,
    "LAUNCH001": 0.10,
    "HOST001": 0.15,
    "OPT001": 0.25,
    "PREC001": 0.10,
    "TRAFFIC001": 0.10,
}
"""From which share on a thing is worth naming: those that the doctor documents."""

ALSO: Mapping[str, tuple[str, ...]] = {
    "LAUNCH001": ("BATCH001",),
    "HOST001": ("LOSS001", "LOG001"),
}
"""What cannot be told apart from it by a stopwatch."""

OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "EVAL001": ("evaluation", "evaluation pass"),
    "CKPT001": ("save",),
    "DATA002": ("pass",),
    "HOST001": ("python",),
    "SYNC001": ("waits",),
    "COPY001": ("copies",),
}
"""Where a finding counts what the stopwatch clocks outside ordinary steps."""

NO_DEVICE: Mapping[str, float] = dict.fromkeys(
    ("busy", "kernels", "products", "fp32", "update", "copies", "other", "waits"), 0.0
)

NEAR = 0.75
SHORT_KERNEL_US = 50.0
MANY_KERNELS = 100.0
FUSED = 0.5
"""Of element-wise traffic, about what goes where chains of operations become one."""
BF16 = 0.85
"""Of products in fp32, what goes with bf16 on a device that is about seven times as fast at it."""


def shares_of(timed: Mapping[str, Any]) -> dict[str, float]:
    """What can go at most with each thing, as a share of the whole time."""
    outside: Mapping[str, float] = timed["outside"]
    host: Mapping[str, float] = timed["shares"]
    inside = 1.0 - sum(outside.values())
    did: Mapping[str, float] = timed["device"] or NO_DEVICE
    device = {name: value / timed["step_us"] for name, value in did.items()}
    idle = max(0.0, 1.0 - device["busy"])
    rest = max(0.0, 1.0 - sum(host.values()))
    waits = max(host.get("wait", 0.0), device["waits"] - host.get("copy", 0.0))
    steps = {
        "DATA001": min(host.get("data", 0.0), idle),
        "COPY001": min(max(host.get("copy", 0.0), device["copies"]), idle),
        "SYNC001": min(max(0.0, waits), idle),
        "HOST001": min(rest, idle),
        "OPT001": max(min(_updating(host), idle), device["update"]),
        "LAUNCH001": _launching(did, timed["step_us"], host, rest=rest, waits=waits),
    }
    if device["busy"] >= 0.5:
        kernels = device["products"] + device["update"] + device["other"]
        steps["PREC001"] = device["fp32"] * BF16
        steps["TRAFFIC001"] = device["other"] * FUSED if device["other"] * 2 > kernels else 0.0
    found = {code: share * inside for code, share in steps.items()}
    for code, names in OUTSIDE.items():
        beside = sum(outside.get(name, 0.0) for name in names)
        found[code] = found.get(code, 0.0) + beside
    return found


def expected_first(timed: Mapping[str, Any]) -> tuple[str, ...]:
    """Codes of which one must stand first; empty where the stopwatch says too little."""
    if not timed.get("step_us"):
        return ()
    shares = shares_of(timed)
    worth = {code: share for code, share in shares.items() if share >= LIMITS[code]}
    if not worth:
        near = [code for code, share in shares.items() if share >= NEAR * LIMITS[code]]
        return ("healthy", *_with_kin(near))
    largest = max(worth.values())
    allowed = [code for code, share in worth.items() if share >= NEAR * largest]
    doubtful = all(share * NEAR < LIMITS[code] for code, share in worth.items())
    return (*_with_kin(allowed), *(("healthy",) if doubtful else ()))


def _launching(
    device: Mapping[str, float],
    step_us: float,
    host: Mapping[str, float],
    *,
    rest: float,
    waits: float,
) -> float:
    """Share of the step in which the host launches and the device has nothing to do."""
    kernels = device["kernels"]
    if kernels < MANY_KERNELS or device["busy"] / kernels >= SHORT_KERNEL_US:
        return 0.0
    launching = 1.0 - host.get("data", 0.0) - host.get("copy", 0.0) - max(waits, rest)
    return max(0.0, launching - device["busy"] / step_us)


def _updating(host: Mapping[str, float]) -> float:
    """What the finding on updates counts: the step of the optimizer, clipping, `zero_grad`."""
    return sum(host.get(part, 0.0) for part in ("optimizer", "clip", "zero_grad"))


def _with_kin(codes: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kin for code in codes for kin in (code, *ALSO.get(code, ()))))
