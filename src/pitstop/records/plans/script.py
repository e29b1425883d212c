"""What the first steps of somebody's script hold in memory, as the probe saw it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPiece:
    """One piece of memory in a step."""

    storage: int
    """Pieces of one number are the same memory, noted for several reasons."""
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    kind: str
    """saved, scores (of torch's attention, on a processor), weight copy, input (of a block),
    gradient, recomputed, elsewhere."""
    block: int | None
    """Repeated module of the model in which it was made; of a recomputed piece its region."""
    made_by: str
    """Class of the innermost module."""
    made_with: str
    """Backward operation of what made it, as autograd names it; empty where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledStep:
    """One recorded step."""

    batch_sizes: tuple[int | None, ...]
    """Samples in each call of a model."""
    pieces: tuple[SavedPiece, ...]
    events: tuple[int, ...]
    """A piece's index plus one where it comes, the negative of that where it goes."""
    gradients_held_bytes: int
    """Gradients that were there already when the first backward pass began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShape:
    """Weights of one shape."""

    shape: tuple[int, ...]
    dtype: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptMemory:
    """One training process."""

    rank: int
    world_size: int
    torch: str
    device: str
    models: tuple[str, ...]
    autocast: str | None
    """Format that autocast used; None without autocast."""
    loader_batch: int | None
    """Batch size of the loader that was last begun before the first step."""
    trained: tuple[WeightShape, ...]
    frozen: tuple[WeightShape, ...]
    product_weights: int
    """Numbers in weights that autocast would copy."""
    buffers_bytes: int
    optimizers: tuple[str, ...]
    optimizer_bytes: int
    fused_update: bool
    """Whether the optimizers were asked to update in one kernel, which makes nothing besides."""
    device_peak_bytes: int | None
    """Most that tensors held on the GPU; None where there is none."""
    steps: tuple[SampledStep, ...]
    seen_steps: int
    backward_passes: int
    problem: str | None
    """Why nothing could be recorded."""
