"""What this host is and how fast its parts are, in one record.

Everything that needs an optional package is left out with a note when the package is missing.
"""

import importlib.metadata
import math
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import psutil

from pitstop.errors import install_hint
from pitstop.measure.host.cgroup import read_cgroup
from pitstop.measure.host.load import NvmlGpus, affinity_cores
from pitstop.measure.host.memory import shm_space
from pitstop.measure.host.nvml import Nvml
from pitstop.measure.machine import ceilings, storage
from pitstop.measure.machine.advice import advise
from pitstop.measure.machine.decode import measure_decoding
from pitstop.records.host.machine import (
    CopyRate,
    Cpu,
    DecodeRate,
    Gpu,
    Machine,
    MatrixRate,
    Ram,
    Software,
    Volume,
)
from pitstop.records.units import share_text

if TYPE_CHECKING:
    from pitstop.measure.host.load import GpuReader

_NO_TORCH: Final = f"matrix and device rates: not measured, need torch; {install_hint('torch')}"
_NO_PILLOW: Final = f"decode rates: not measured, need pillow; {install_hint('pillow')}"


def measure_machine(
    data: Path | None = None, *, quick: bool = False, clock: Callable[[], float] = time.perf_counter
) -> Machine:
    """Describe this host and measure its ceilings, in about ten seconds and less when quick.

    Args:
        data: Folder or file of a dataset whose volume is to be read; nothing is written to it.
        quick: Fewer repeats and smaller blocks.
        clock: Monotonic seconds.

    Raises:
        MeasureError: `data` does not exist or cannot be read.
    """
    begun_s = clock()
    notes: list[str] = []
    effort = ceilings.QUICK if quick else ceilings.Effort()
    # First, so that a mistyped path is reported before seconds of calibration.
    volume = _volume(data, notes, quick=quick)
    notes += crowded_host(psutil.cpu_count())
    cpu, ram = read_cpu(), read_ram()
    torch = _import_torch(notes)
    gpus = () if torch is None else read_gpus(torch, notes)
    matrix, copies = _rates(torch, gpus, cpu, effort=effort, notes=notes)
    decoding = _decoding(effort, notes)
    return Machine(
        system=platform.system(),
        kernel=platform.release(),
        architecture=platform.machine(),
        cpu=cpu,
        ram=ram,
        gpus=gpus,
        software=read_software(torch),
        matrix_rates=matrix,
        copy_rates=(ceilings.host_copy_rate(effort), *copies),
        decode_rates=decoding,
        volume=volume,
        advice=advise(cpu, ram, gpus=len(gpus), decoding=decoding, volume=volume),
        quick=quick,
        took_s=clock() - begun_s,
        notes=tuple(notes),
    )


def read_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """Describe the processor and this process's share of it."""
    affinity = affinity_cores()
    quota = read_cgroup().quota_cores
    bounds = [bound for bound in (affinity, quota) if bound is not None]
    return Cpu(
        model=_cpu_model(cpuinfo),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(logical=True),
        affinity_cores=affinity,
        quota_cores=quota,
        usable_cores=float(min(bounds)) if bounds else None,
    )


def read_ram() -> Ram:
    """Describe host memory and this process's share of it."""
    host = psutil.virtual_memory()
    cgroup = read_cgroup()
    shm = shm_space()
    return Ram(
        total_bytes=host.total,
        available_bytes=host.available,
        cgroup_limit_bytes=cgroup.memory_limit_bytes,
        cgroup_working_bytes=cgroup.memory_working_bytes,
        shm_bytes=None if shm is None else shm.total_bytes,
        shm_free_bytes=None if shm is None else shm.free_bytes,
    )


def read_gpus(torch: ModuleType, notes: list[str]) -> tuple[Gpu, ...]:
    """Describe the GPUs torch can use."""
    if not torch.cuda.is_available():
        notes.append("GPU ceilings: not measured, torch finds no CUDA device")
        return ()
    found: list[Gpu] = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        found.append(
            Gpu(
                index=index,
                name=about.name,
                memory_bytes=int(about.total_memory),
                compute_capability=f"{about.major}.{about.minor}",
                multiprocessors=int(about.multi_processor_count),
            )
        )
    return tuple(found)


def read_software(torch: ModuleType | None) -> Software:
    """Collect the versions that decide how fast the same code runs."""
    nvml, _ = Nvml.open()
    cudnn = None
    if torch is not None and torch.cuda.is_available():
        cudnn = torch.backends.cudnn.version()
    return Software(
        python=platform.python_version(),
        torch=None if torch is None else str(torch.__version__),
        cuda=None if torch is None else torch.version.cuda,
        cudnn=None if cudnn is None else str(cudnn),
        triton=_version("triton"),
        pillow=_version("pillow"),
        nvidia_driver=None if nvml is None else nvml.driver(),
    )


def crowded_host(
    cores: int | None, load: Callable[[], tuple[float, float, float]] = psutil.getloadavg
) -> tuple[str, ...]:
    """Say when others kept the processor busy in the last minute: its rates are too low."""
    waiting = load()[0]
    if not cores or waiting < 0.25 * cores:
        return ()
    return (
        f"the host had a load of {waiting:.1f} on {cores} cores before it was measured: "
        "processor, memory and decode rates may be too low",
    )


def strangers_on_gpus(gpus: "GpuReader") -> tuple[str, ...]:
    """Say which GPUs were busy before the calibration began: their rates are too low."""
    loads, _ = gpus()
    return tuple(
        f"GPU {load.index} was {share_text(load.busy_share)} busy before it was measured: "
        "its rates may be too low"
        for load in loads
        if load.busy_share is not None and load.busy_share > 0.05
    )


def _volume(data: Path | None, notes: list[str], *, quick: bool) -> Volume | None:
    if data is None:
        notes.append("dataset volume: not measured, name one with --data")
        return None
    limits = storage.ReadLimits(read_bytes=1 << 27, seconds=0.5) if quick else None
    volume = storage.measure_volume(data, limits=limits)
    if not volume.reads:
        notes.append("dataset volume: not measured, it holds too little to be timed")
    if storage.in_memory(volume):
        notes.append(f"dataset volume: {volume.filesystem} lies in memory, there is no disk below")
    return volume


def _import_torch(notes: list[str]) -> ModuleType | None:
    try:
        import torch
    except ImportError:
        notes.append(_NO_TORCH)
        return None
    return torch


def _rates(
    torch: ModuleType | None,
    gpus: tuple[Gpu, ...],
    cpu: Cpu,
    *,
    effort: ceilings.Effort,
    notes: list[str],
) -> tuple[tuple[MatrixRate, ...], tuple[CopyRate, ...]]:
    """Measure the processor and the first GPU; the others are taken to be like it, and said so."""
    if torch is None:
        return (), ()
    threads = int(torch.get_num_threads())
    if cpu.usable_cores is not None:
        threads = max(1, min(threads, math.floor(cpu.usable_cores)))
    matrix = ceilings.cpu_matrix_rates(effort, threads=threads)
    if not gpus:
        return matrix, ()
    if len(gpus) > 1:
        notes.append("GPU ceilings: measured on cuda:0 only")
    notes += strangers_on_gpus(NvmlGpus())
    on_device = ceilings.cuda_matrix_rates(0, effort, notes)
    copies = ceilings.cuda_copy_rates(0, effort, notes)
    ceilings.release_cuda_memory()
    return matrix + on_device, copies


def _decoding(effort: ceilings.Effort, notes: list[str]) -> tuple[DecodeRate, ...]:
    try:
        from PIL import Image
    except ImportError:
        notes.append(_NO_PILLOW)
        return ()
    return measure_decoding(Image, repeats=effort.repeats, seconds=effort.seconds)


def _cpu_model(cpuinfo: Path) -> str | None:
    try:
        text = cpuinfo.read_text()
    except OSError:
        return platform.processor() or None
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
