"""What the probe learns about somebody's training script, beside the times of its steps.

Top-level spans of such a step, each where it was seen: ``data`` (wait for the next batch),
``copy`` (to the device), ``forward``, ``loss``, ``backward``, ``sync`` (collectives called outside
the backward pass), ``clip``, ``zero_grad``, ``optimizer``, ``wait`` (the host waits for a GPU:
``item``, ``cpu``, ``synchronize``), and ``host`` (Python between two observed points; `HostLine`
says which lines). A part inside another is taken out of it, so that parts never overlap; only
recomputation is a child: ``("backward", "recompute")``. Events outside steps: ``start-up``,
``evaluation``, ``checkpoint``, ``epoch boundary``, ``compile``, and ``pitstop`` (steps slowed down
for a deep profile).

Every class here is a kind of reading (`KINDS`). ``None`` means "not measured" and never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# A step of eleven days is damage, not data.
_MOST_US: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSetup:
    """One DataLoader as the script built it."""

    dataset: str
    """Class of the dataset."""
    workers: int
    prefetch: int | None
    batch_size: int | None
    pinned: bool
    persistent: bool
    start_method: str | None
    length: int | None
    """Batches in one pass; None for a stream."""
    passes: int
    """How often it was iterated."""
    batches: int
    """Batches it handed out in all."""
    trains: bool
    """Whether training steps used its batches."""
    whole_passes: int = 0
    """Passes that went on until there was no further batch."""
    whole_batches: int = 0
    """Batches of these passes."""
    place: str | None = None
    """File and line that first iterated it."""
    pids: tuple[int, ...] = ()
    """Processes that loaded its batches; none where the record does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the script uses, as seen in its steps and not as its settings claim. Kind ``setup``."""

    device: str | None
    """Where the parameters are: ``"cuda:0"`` or ``"cpu"``."""
    device_name: str | None
    models: tuple[str, ...]
    """Classes of the modules that were called from outside."""
    optimizers: tuple[str, ...]
    """Classes, each with its way of updating: ``"AdamW(foreach)"``."""
    parameters: int | None
    """Numbers that are trained."""
    parameter_dtypes: Mapping[str, int]
    """Of these, how many in which format."""
    autocast: str | None
    """Format that autocast was seen to use in the forward pass; None where it was off."""
    tf32: bool | None
    """Whether float32 products may use TF32; None where there is no CUDA."""
    scaler: bool
    compiled: bool
    """Whether torch.compile was seen at work."""
    wrapper: str | None
    """``"DDP"`` or ``"FSDP"`` around the model."""
    recomputes: bool
    """Whether activation checkpointing was seen."""
    cudnn_benchmark: bool | None
    anomaly_detection: bool
    threads: int
    """Threads of torch's operations."""
    samples_per_step: float | None
    """On this rank, from the first dimension of what the model was given."""
    total_steps: int | None
    """Steps of the whole training, where the script's loader or trainer knows."""
    loaders: tuple[LoaderSetup, ...]
    frozen: tuple[str, ...] = ()
    """Of the models, those of which no weight is trained: a teacher, a network inside the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """A line of Python on which the training thread was found, outside its observed parts."""

    part: str
    """Span in which it was found: ``"host"``, ``"data"``, ``"loss"``, ..."""
    file: str
    line: int
    function: str
    text: str
    """Source of the line, as far as it can be read."""
    samples: int
    calls: str | None
    """What the line was waiting for further down, outermost first: ``"print"``, ``"json.dump"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongStep:
    """One of the steps with most stack samples, time outside steps included."""

    step: int
    samples: int
    """Stack samples that fell in it."""
    line: HostLine
    """Where most of them found the training thread, and how many did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapShares:
    """How Python between two observed points was divided among parts, by stack samples."""

    before: str | None
    """Part that ended there; None where the step began."""
    after: str | None
    samples: int
    """Stack samples that fell in between: the error of a share falls with them."""
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLines:
    """Where the training thread was found by stack samples. Kind ``host_lines``."""

    samples: int
    """Stack samples in all, inside observed parts too."""
    every_us: int
    """Aimed distance of two samples."""
    lines: tuple[HostLine, ...]
    """Most samples first."""
    long_steps: tuple[LongStep, ...] = ()
    """Most samples first."""
    outside: tuple[HostLine, ...] = ()
    """Lines found outside steps; their part is its name: ``"evaluation"``, ..."""
    gaps: tuple[GapShares, ...] = ()
    """Gaps that are more than one thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLine:
    """A line of Python that made the host wait for the device."""

    file: str
    line: int
    text: str
    operation: str
    """``"item"``, ``"cpu"``, ``"synchronize"``, ..."""
    calls: int
    total_us: int
    """Host time inside the calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncs:
    """Calls that wait for the device, over the steps after warm-up. Kind ``syncs``."""

    steps: int
    calls: int
    total_us: int
    lines: tuple[SyncLine, ...]
    """Most time first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTotal:
    """All launches of one kernel in a profiled step; the mean of several."""

    name: str
    count: int
    total_us: float
    class_name: str = ""
    """What it does: ``"matrix products"``, ``"element-wise"``, ...; older records do not say."""
    operation: str | None = None
    """What launched most of it, such as ``"aten::addmm"``; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrack:
    """Host and device in one profiled step, from moment to moment; microseconds since it began.

    A profile slows the host down, so what a device waits for is longer here than in other steps.
    """

    step: int
    wall_us: int
    host: tuple[tuple[str, float, float], ...]
    """Parts, each with start and end."""
    classes: tuple[str, ...]
    pieces: tuple[tuple[float, float, int, int], ...]
    """Kernels of one class in a row: start, end, place in `classes`, how many."""
    left_out: int = 0
    """Pieces too short to be written."""

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        spans = [span[1:] for span in self.host] + [piece[:2] for piece in self.pieces]
        if not all(0 <= start <= end < _MOST_US for start, end in spans):
            raise ValueError("a piece that ends before it begins, or never")
        if not all(0 <= piece[2] < len(self.classes) for piece in self.pieces):
            raise ValueError("a piece of no class")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Profiled steps on a GPU, means of a step. Kind ``kernels``; they count for nothing else."""

    step: int
    wall_us: float
    launches: int
    """Kernels that ran, without copies and fills."""
    busy_us: float
    """Time in which at least one kernel ran: the union of their intervals."""
    matmul_us: float
    """Kernel time of products, convolutions and attention."""
    tensor_core_us: float
    """Of that, in kernels whose name tells of tensor cores."""
    other_us: float
    """Kernel time of everything else: mostly memory traffic."""
    copy_to_device_us: float
    copy_to_host_us: float
    sync_calls: int
    """Calls in which the host waited for the device, as the driver saw them."""
    sync_us: float
    top: tuple[KernelTotal, ...]
    classes: Mapping[str, float] = field(default_factory=dict)
    """Microseconds by class of kernel, copies and fills among them; none in older records."""
    track: DeviceTrack | None = None
    """None where parts or clocks are not known, and in older records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of large products on the script's own device, measured in warm-up. Kind ``rates``."""

    device: str
    flops_per_s: Mapping[str, float]
    """By number format: fp32, tf32, bf16."""
    bytes_per_s: float | None = None
    """Read and written by a copy inside the device's memory; None where nobody measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSource:
    """The line of the script that most of an operation's bytes come from."""

    operation: str
    """As ``"aten::addmm"``; what backward runs is led back to the line of its forward pass."""
    file: str
    line: int
    module: str | None
    """Where in the model, with stars for numbers that differ; None outside of it."""
    calls: int
    share: float
    """Of the operation's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMemory:
    """What a module made and the backward pass finds still held, with everything inside it."""

    name: str
    kind: str
    num_bytes: int
    parent: int | None = None
    """Place of the one around it, in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What models made in a step that is still held where the backward pass begins.

    Weights, batches and gradients are not among it. Of several backward passes the one that begins
    with most.
    """

    num_bytes: int
    """Made in any module, those in no row included."""
    modules: tuple[ModuleMemory, ...]
    left_out: int = 0
    """Modules too small to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Arithmetic and traffic of one counted step. Kind ``work``; the step counts for nothing else.

    Bytes are those of every operation's tensors, read or written, so caches may have served some.
    """

    step: int
    flops: int
    flops_by_dtype: Mapping[str, int]
    unaligned_flops: int
    """Of these, in products with a dimension that is no multiple of eight."""
    small_flops: int
    """Of these, in products whose smallest dimension is under 64."""
    bytes_moved: int
    pointwise_bytes: int
    """Of these, by operations without a formula: element-wise work, reductions, copies."""
    pointwise_bytes_fused: int
    """The same, had every run of consecutive element-wise operations been one."""
    operations: int
    left_out: int
    """Operations of unknown cost."""
    sources: tuple[OperationSource, ...] = ()
    """Where operations come from, those with most bytes first."""
    kept: Kept | None = None
    """None where no backward pass was seen, and in older records."""

    @property
    def least_bytes(self) -> int:
        """Bytes that remain where every run of element-wise operations is one; an estimate."""
        return self.bytes_moved - self.pointwise_bytes + self.pointwise_bytes_fused


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Who holds the device's memory. Kind ``owners``. Bytes."""

    device: str
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    peak_bytes: int | None
    """Most held by tensors in the step; None where the device does not count (a CPU)."""
    reserved_bytes: int | None
    total_bytes: int | None
    alloc_retries: int | None
    """During the measured steps."""
    inactive_split_bytes: int | None
    """Held in blocks that are cut up: fragmentation."""

    @property
    def activations_bytes(self) -> int | None:
        """What the peak holds beyond the other owners: activations and scratch; an estimate."""
        if self.peak_bytes is None:
            return None
        held = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return max(0, self.peak_bytes - held)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTime:
    """A module in a sampled step, with everything inside it.

    It stands where it was called; a list or dictionary of modules, which is never called, holds
    those called through it.
    """

    name: str
    kind: str
    forward_us: int
    backward_us: int | None
    """What was recomputed included; None where no gradient was seen to pass it."""
    parent: int | None = None
    """Place of the one around it, in the table of modules."""
    calls: int = 1
    recompute_us: int = 0
    """Of the backward pass, spent on running it forward again."""

    @property
    def both_us(self) -> int:
        """Forward and backward together."""
        return self.forward_us + (self.backward_us or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleKind:
    """All modules of one class, wherever they were called; one inside another counts once."""

    kind: str
    places: int
    forward_us: int
    backward_us: int

    @property
    def both_us(self) -> int:
        """Forward and backward together."""
        return self.forward_us + self.backward_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Parts of the model in one sampled step, at any depth. Kind ``modules``."""

    step: int
    modules: tuple[ModuleTime, ...]
    clock: str = "host"
    """``"device"`` where times lie between marks on a GPU's own time line."""
    forward_us: int | None = None
    """The whole forward pass, what lies in no module included; None in older records."""
    backward_us: int | None = None
    """The whole backward pass."""
    left_out: int = 0
    """Modules too small to be written."""
    kinds: tuple[ModuleKind, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSampled:
    """Something that was to be sampled and could not be. Kind ``not_sampled``."""

    what: str
    """The kind of the reading that is missing."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What torch.compile did so far. Kind ``compiled``."""

    step: int
    graphs: int
    graph_breaks: int
    recompiles_after_warm_up: int
    compile_us: int
    """Time spent compiling, in all."""
    compile_after_warm_up_us: int
    reasons: tuple[str, ...]
    """Why graphs broke or were compiled again, most frequent first."""
    calls: int | None = None
    """How often the script called torch.compile; None where the record does not say."""
    place: str | None = None
    """File and line of the last of these calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """What one loader worker did. Kind ``worker``."""

    pid: int
    worker: int
    batches: int
    read_us: int
    """Inside the dataset: reading, decoding, transforming."""
    collate_us: int
    alive_us: int
    """From its first batch's start to its last batch's end."""
    read_bytes: int | None
    """What storage delivered for it."""
    cpu_us: int | None
    """Processor time it used."""
    files: tuple[str, ...]
    """Some of the files it had open, for naming the volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the watched command runs, seen from outside. Kind ``source``."""

    script: str | None
    """Name of the first Python file in the command; None where there is none."""
    commit: str | None
    """What git has checked out around it, changed since or not; None outside of git."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the watched command ended, seen from outside. Kind ``ended``."""

    exit_code: int | None
    signal: str | None
    """Name of the signal that ended it, if one did."""
    wall_s: float
    interrupted: bool
    stopped_by_us: bool
    """Whether it was ended at a step border because enough had been measured."""
    ran_on: bool = False
    """Whether it ran on, unmeasured, once enough had been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untrained:
    """A Python process of the watched command that imported torch and made no training step."""

    command: tuple[str, ...]
    torch: str
    backward_passes: int
    compiled: bool
    """Whether anything was compiled in it: what is compiled as a whole is not seen into."""


KINDS: Final[Mapping[str, type]] = {
    "setup": Setup,
    "host_lines": HostLines,
    "syncs": Syncs,
    "kernels": Kernels,
    "rates": Rates,
    "work": Work,
    "owners": Owners,
    "modules": Modules,
    "not_sampled": NotSampled,
    "compiled": Compiled,
    "worker": WorkerTimes,
    "source": Source,
    "ended": Ended,
}
