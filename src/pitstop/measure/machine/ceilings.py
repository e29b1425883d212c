"""How fast this machine's parts can go: matrix products, memory, transfers to the device.

Calibration, never part of training: it fills the device with random numbers and waits for it.
Random, because a chip computes on zeros at lower power and so at clocks no real step sees.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pitstop.measure.machine.repeats import repeated_rates
from pitstop.records.host.machine import CopyRate, MatrixRate
from pitstop.records.quantity import measured

if TYPE_CHECKING:
    import torch

_DTYPES: Final = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}

Notes = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much work a calibration may do."""

    repeats: int = 9
    """Samples of each rate."""
    seconds: float = 0.6
    """About how long all samples of one rate take together."""
    matrix: int = 8192
    """Edge of the matrices on an accelerator."""
    cpu_matrix: int = 1024
    """Edge of the matrices on the processor."""
    copy_bytes: int = 1 << 28
    """Block carried from host to device; blocks within the device are four times as large."""
    host_copy_bytes: int = 1 << 27
    """Block copied within host memory: far larger than any cache."""


QUICK: Final = Effort(
    repeats=3,
    seconds=0.15,
    matrix=4096,
    cpu_matrix=512,
    copy_bytes=1 << 26,
    host_copy_bytes=1 << 26,
)


def host_copy_rate(effort: Effort, clock: Callable[[], float] = time.perf_counter) -> CopyRate:
    """Copy a block within host memory by one thread; bytes read and bytes written both count."""
    source = np.random.default_rng(0).integers(0, 255, effort.host_copy_bytes, dtype=np.uint8)
    target = np.empty_like(source)

    def copy() -> None:
        np.copyto(target, source)

    copy()
    calls = repeated_rates(copy, repeats=effort.repeats, seconds=effort.seconds / 2, clock=clock)
    rate = measured([2 * source.nbytes * per_s for per_s in calls], "B/s")
    assert rate is not None, "a copy of this size takes time on any clock"
    return CopyRate(route="host", device="cpu", size_bytes=source.nbytes, rate=rate)


def cpu_matrix_rates(
    effort: Effort, *, threads: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[MatrixRate, ...]:
    """Multiply matrices on the processor with a stated number of threads."""
    import torch

    dtypes = ["fp32", "bf16"] if _cpu_has_bf16() else ["fp32"]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = [_cpu_matrix_rate(dtype, effort, threads, clock) for dtype in dtypes]
    finally:
        torch.set_num_threads(before)
    return tuple(rate for rate in found if rate is not None)


def _cpu_matrix_rate(
    dtype: str, effort: Effort, threads: int, clock: Callable[[], float]
) -> MatrixRate | None:
    import torch

    size = effort.cpu_matrix
    left, right = _operands(size, getattr(torch, _DTYPES[dtype]), "cpu")
    out = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=out)

    with torch.inference_mode():
        multiply()
        calls = repeated_rates(
            multiply, repeats=effort.repeats, seconds=effort.seconds, clock=clock
        )
    rate = measured([matrix_flops(size) * per_s for per_s in calls], "FLOP/s")
    if rate is None:
        return None
    return MatrixRate(device="cpu", dtype=dtype, size=size, threads=threads, rate=rate)


def matrix_flops(size: int) -> int:
    """Work of one product of square matrices, a multiply-add counted as two."""
    return 2 * size**3


def cuda_matrix_rates(index: int, effort: Effort, notes: Notes) -> tuple[MatrixRate, ...]:
    """Multiply matrices on one GPU in every number format it has."""
    import torch

    device = f"cuda:{index}"
    dtypes = ["fp32", "fp16"]
    if torch.cuda.get_device_capability(index) >= (8, 0):
        dtypes = ["fp32", "tf32", "bf16", "fp16"]
    size = _fitting_edge(index, effort.matrix)
    found: list[MatrixRate] = []
    for dtype in dtypes:
        with _noted(f"{dtype} matrix rate of {device}", notes), fp32_products(tf32=dtype == "tf32"):
            left, right = _operands(size, getattr(torch, _DTYPES[dtype]), device)
            out = torch.empty_like(left)
            seconds = _cuda_seconds(
                lambda a=left, b=right, o=out: torch.mm(a, b, out=o), index, effort
            )
            rate = measured([matrix_flops(size) / each for each in seconds], "FLOP/s")
            if rate is not None:
                found.append(
                    MatrixRate(device=device, dtype=dtype, size=size, threads=None, rate=rate)
                )
    return tuple(found)


def cuda_copy_rates(index: int, effort: Effort, notes: Notes) -> tuple[CopyRate, ...]:
    """Copy within one GPU's memory, and from the host to it, pinned and pageable."""
    import torch

    device = f"cuda:{index}"
    found: list[CopyRate] = []

    def time_copy(route: str, source: "torch.Tensor", size_bytes: int, *, factor: int) -> None:
        target = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        seconds = _cuda_seconds(lambda: target.copy_(source, non_blocking=True), index, effort)
        rate = measured([factor * size_bytes / each for each in seconds], "B/s")
        if rate is not None:
            found.append(CopyRate(route=route, device=device, size_bytes=size_bytes, rate=rate))

    inside = min(4 * effort.copy_bytes, torch.cuda.mem_get_info(index)[0] // 8)
    with _noted(f"memory bandwidth of {device}", notes):
        # Counted twice: each byte is read once and written once.
        time_copy("device", _random_bytes(inside, device), inside, factor=2)
    pageable = _random_host_bytes(effort.copy_bytes)
    with _noted(f"copy rate from pageable memory to {device}", notes):
        time_copy("pageable to device", pageable, effort.copy_bytes, factor=1)
    with _noted(f"copy rate from pinned memory to {device}", notes):
        time_copy("pinned to device", pageable.pin_memory(), effort.copy_bytes, factor=1)
    return tuple(found)


def release_cuda_memory() -> None:
    """Give the calibration's blocks back to the driver, so that no later reading counts them."""
    import torch

    torch.cuda.empty_cache()


def _cuda_seconds(work: Callable[[], object], index: int, effort: Effort) -> list[float]:
    """Time calls on the device's own clock; each sample is the mean over a run of calls.

    Runs of calls, because the gap between two events alone is wide against a short kernel.
    """
    import torch

    with torch.cuda.device(index), torch.inference_mode():
        for _ in range(3):
            work()
        once_s = _cuda_run_s(work, 3)
        calls = max(1, min(1000, round(effort.seconds / effort.repeats / max(once_s, 1e-6))))
        # The clocks rise only under load: one untimed sample first.
        _cuda_run_s(work, calls)
        return [_cuda_run_s(work, calls) for _ in range(effort.repeats)]


def _cuda_run_s(work: Callable[[], object], calls: int) -> float:
    import torch

    begun = torch.cuda.Event(enable_timing=True)
    ended = torch.cuda.Event(enable_timing=True)
    begun.record()
    for _ in range(calls):
        work()
    ended.record()
    torch.cuda.synchronize()
    return begun.elapsed_time(ended) / 1000 / calls


def _fitting_edge(index: int, edge: int) -> int:
    """Largest power-of-two edge, up to the wished one, whose three matrices fit the free memory."""
    import torch

    free_bytes, _ = torch.cuda.mem_get_info(index)
    while edge > 512 and 3 * 4 * edge**2 > free_bytes // 4:
        edge //= 2
    return edge


@contextlib.contextmanager
def fp32_products(*, tf32: bool) -> Iterator[None]:
    """Choose how products of float32 matrices are computed, and put it back afterwards."""
    import torch

    matmul = torch.backends.cuda.matmul
    # Newer torch refuses to mix this name with the older switch, so only one is ever touched.
    name, wanted = ("allow_tf32", tf32)
    if hasattr(matmul, "fp32_precision"):
        name, wanted = ("fp32_precision", "tf32" if tf32 else "ieee")
    before = getattr(matmul, name)
    setattr(matmul, name, wanted)
    try:
        yield
    finally:
        setattr(matmul, name, before)


@contextlib.contextmanager
def _noted(what: str, notes: Notes) -> Iterator[None]:
    """Turn a device that refuses (out of memory, unsupported format) into a note."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        notes.append(f"{what}: not measured, {reason}")


def _operands(size: int, dtype: "torch.dtype", device: str) -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    generator = torch.Generator(device=device).manual_seed(0)
    return (
        torch.randn(size, size, generator=generator, device=device).to(dtype),
        torch.randn(size, size, generator=generator, device=device).to(dtype),
    )


def _random_bytes(size_bytes: int, device: str) -> "torch.Tensor":
    import torch

    generator = torch.Generator(device=device).manual_seed(0)
    shape = (size_bytes,)
    return torch.randint(0, 255, shape, dtype=torch.uint8, device=device, generator=generator)


def _random_host_bytes(size_bytes: int) -> "torch.Tensor":
    """Fill host memory by whole words: torch draws bytes one by one there, for seconds."""
    import torch

    words = np.random.default_rng(0).integers(0, 2**63 - 1, size_bytes // 8, dtype=np.int64)
    return torch.from_numpy(words).view(torch.uint8)


def _cpu_has_bf16() -> bool:
    """Whether products of bf16 run on the processor's own instructions rather than emulated."""
    import torch

    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(supported is not None and supported())
