"""What a host is and how fast its parts were measured to be.

``None`` means "not measured" and never zero; ``Machine.notes`` says why. The host's name is not
part of the record, so that a report can be handed on.
"""

from dataclasses import dataclass

from pitstop.records.quantity import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor, and how much of it this process may use."""

    model: str | None
    """Name the processor gives itself."""
    physical_cores: int | None
    """Cores of the host, hardware threads not counted."""
    logical_cores: int | None
    """Hardware threads of the host."""
    affinity_cores: int | None
    """Hardware threads this process may be scheduled on."""
    quota_cores: float | None
    """Processor time the control group grants, in cores; None where there is no quota."""
    usable_cores: float | None
    """The smaller of affinity and quota, in cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ram:
    """Host memory, and how much of it this process may use. Bytes throughout."""

    total_bytes: int | None
    """Memory of the host."""
    available_bytes: int | None
    """What the host could still hand out without swapping, when it was asked."""
    cgroup_limit_bytes: int | None
    """Tightest limit of the control groups this process sits in; None where there is none."""
    cgroup_working_bytes: int | None
    """What that control group holds and cannot simply drop (its use less inactive file pages)."""
    shm_bytes: int | None
    """Size of /dev/shm, through which loader workers hand over batches."""
    shm_free_bytes: int | None
    """Free space in /dev/shm, when it was asked."""

    @property
    def limit_bytes(self) -> int | None:
        """What this process may have at most: the host's memory or the control group's limit."""
        bounds = [b for b in (self.total_bytes, self.cgroup_limit_bytes) if b is not None]
        return min(bounds, default=None)

    @property
    def free_bytes(self) -> int | None:
        """What this process may still take: the tighter of the host's and the control group's."""
        bounds: list[int] = []
        if self.available_bytes is not None:
            bounds.append(self.available_bytes)
        if self.cgroup_limit_bytes is not None and self.cgroup_working_bytes is not None:
            bounds.append(max(0, self.cgroup_limit_bytes - self.cgroup_working_bytes))
        return min(bounds, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator as the driver describes it."""

    index: int
    """Number torch gives it (``cuda:<index>``), after CUDA_VISIBLE_DEVICES."""
    name: str
    """Model name."""
    memory_bytes: int | None
    """Memory of the device."""
    compute_capability: str | None
    """For instance ``"9.0"``."""
    multiprocessors: int | None
    """Streaming multiprocessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions that decide how fast the same code runs."""

    python: str
    """Python version."""
    torch: str | None
    """torch version, with its build tag."""
    cuda: str | None
    """CUDA version torch was built for."""
    cudnn: str | None
    """cuDNN version torch loaded."""
    triton: str | None
    """Triton version."""
    pillow: str | None
    """Pillow version, which decodes images here."""
    nvidia_driver: str | None
    """Version of the NVIDIA driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRate:
    """Rate of a square matrix product of random numbers, a multiply-add counted as two."""

    device: str
    """``"cpu"`` or ``"cuda:<index>"``."""
    dtype: str
    """``"fp32"``, ``"tf32"``, ``"bf16"`` or ``"fp16"``."""
    size: int
    """Edge of the matrices."""
    threads: int | None
    """Processor threads used; None on an accelerator."""
    rate: Measured
    """In FLOP/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRate:
    """How fast bytes move from one place to another."""

    route: str
    """``"host"``, ``"device"``, ``"pinned to device"`` or ``"pageable to device"``."""
    device: str
    """``"cpu"`` or ``"cuda:<index>"``."""
    size_bytes: int
    """Size of the block copied."""
    rate: Measured
    """In B/s. Within one memory, bytes read plus bytes written; between two, bytes carried over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRate:
    """How fast one core turns a compressed picture of natural statistics into pixels."""

    codec: str
    """``"jpeg"`` or ``"png"``."""
    width: int
    """Pixels across."""
    height: int
    """Pixels down."""
    encoded_bytes: int
    """Size of the compressed picture."""
    images: Measured
    """In image/s, one core."""

    @property
    def pixels_per_s(self) -> float:
        """Pixels a second on one core."""
        return self.images.value * self.width * self.height


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRead:
    """How fast one reader gets bytes from the volume a dataset lies on."""

    order: str
    """``"sequential"`` (files in order, large blocks) or ``"random files"`` (whole, shuffled)."""
    files: int
    """Files opened."""
    read_bytes: int
    """Bytes read in all repeats together."""
    rate: Measured
    """In B/s, opening the files included."""
    files_per_s: Measured | None
    """In file/s; None for sequential reading."""
    cache: str
    """``"dropped"`` (checked: the pages were out of memory), or ``"may include page cache"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A dataset's folder or file, and the reads timed on it."""

    path: str
    """As it was given."""
    filesystem: str | None
    """Kind of file system, for instance ``"ext4"`` or ``"nfs4"``."""
    files_seen: int
    """Regular files found before the search ended."""
    bytes_seen: int
    """Their size together."""
    complete: bool
    """Whether the search saw the whole folder, so that the two numbers above are its size."""
    reads: tuple[VolumeRead, ...]
    """Timed reads; empty when no file could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A setting for this machine and the sum that leads to it."""

    setting: str
    """Config key it is about, for instance ``"loader.workers"``."""
    value: str
    """What to write there."""
    arithmetic: str
    """The sum as text, with every assumption marked as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A host as it is, and the ceilings measured on it."""

    system: str
    """Operating system, for instance ``"Linux"``."""
    kernel: str
    """Kernel release."""
    architecture: str
    """For instance ``"x86_64"``."""
    cpu: Cpu
    """The processor."""
    ram: Ram
    """Host memory."""
    gpus: tuple[Gpu, ...]
    """Accelerators visible to this process."""
    software: Software
    """Versions."""
    matrix_rates: tuple[MatrixRate, ...]
    """Arithmetic ceilings by device and number format."""
    copy_rates: tuple[CopyRate, ...]
    """Memory and transfer ceilings."""
    decode_rates: tuple[DecodeRate, ...]
    """Picture decoding by one core."""
    volume: Volume | None
    """The dataset's volume; None when none was named."""
    advice: tuple[Advice, ...]
    """What follows for loader and cache."""
    quick: bool
    """Whether fewer repeats and smaller blocks were used."""
    took_s: float
    """How long the whole measurement took, in seconds."""
    notes: tuple[str, ...]
    """Why a number is missing, or what may have disturbed one."""

    def matrix_rate(self, device: str, dtype: str) -> MatrixRate | None:
        """Look up a measured arithmetic ceiling; None when it was not measured."""
        for entry in self.matrix_rates:
            if (entry.device, entry.dtype) == (device, dtype):
                return entry
        return None
