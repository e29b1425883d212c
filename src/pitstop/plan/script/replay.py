"""A recorded step played again with another batch, precision or recomputation.

Pieces come and go in the order in which they did in the script. What backward works on is not seen
by the record: when a piece goes, the gradient that came in and the one that goes out are taken to
be there, each as large as the piece.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from pitstop.plan.script.batch import BatchShape
from pitstop.records.plans.script import SampledStep, SavedPiece, ScriptMemory

GRADIENTS_IN_FLIGHT: Final = 2
"""Times a piece, while backward works on it."""
NARROW: Final = {"bf16": "bfloat16", "fp16": "float16"}
_KEPT_WIDE: Final = ("LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm", "Softmax", "Loss")
"""Modules whose operations autocast runs in float32, by parts of their names."""
_NARROWED: Final = {"LogSoftmaxBackward": 1.0, "SoftmaxBackward": 1.5}
"""What autocast leaves of a float32 piece, by what made it: an outcome that stays as wide, and one
that is kept as wide and again narrow, for the product that follows."""


_MASK_BYTES: Final = 0.25
"""A GPU keeps the mask of dropout as one byte a number, a processor as four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How the step is played."""

    batch_size: int | None
    """None where the batch is not known, and stays."""
    precision: str
    recompute: str
    """none, full, or as in the script."""
    updates_at_once: bool = False
    """Whether the optimizer makes as much again as there is to update, for all weights at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a step holds at its peak, beside weights and the optimizer's state."""

    saved_bytes: int
    gradient_bytes: int
    temporary_bytes: int
    place: str
    most_saved_bytes: int
    """Most that is kept for backward at one time."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.saved_bytes + self.gradient_bytes + self.temporary_bytes


def script_precision(memory: ScriptMemory) -> str:
    """Name the precision that the script runs in."""
    names = {dtype: name for name, dtype in NARROW.items()}
    if memory.autocast is not None:
        return names.get(memory.autocast, memory.autocast)
    dtypes = Counter[str]()
    for weight in memory.trained:
        dtypes[weight.dtype] += weight.count
    most = dtypes.most_common(1)[0][0] if dtypes else "float32"
    return "fp32" if most == "float32" else f"{names.get(most, most)} weights"


def script_recomputes(step: SampledStep) -> bool:
    """Whether the script recomputes by itself."""
    return any(piece.kind == "recomputed" for piece in step.pieces)


def has_blocks(step: SampledStep) -> bool:
    """Whether the model repeats modules that could be recomputed."""
    return any(piece.kind == "saved" and piece.block is not None for piece in step.pieces)


class Replay:
    """A recorded step, ready to be played.

    Args:
        memory: The process it is of.
        step: The step.
        batch: Its batch; None where that is not known.
        on_gpu: Whether it is played as on a GPU, or as where it was recorded.
    """

    def __init__(
        self,
        memory: ScriptMemory,
        step: SampledStep,
        batch: BatchShape | None,
        *,
        on_gpu: bool = True,
    ) -> None:
        self._memory = memory
        self._step = step
        self._batch = batch
        self._own = script_precision(memory)
        self._moves = on_gpu and not memory.device.startswith("cuda")

    def peak(self, choice: Choice) -> Peak:
        """Play it; give what it holds where it holds most."""
        sizes = self._sizes(choice)
        trained = trained_bytes(self._memory)
        played = _Played(
            self._step, sizes, most_gradients=trained, recompute=choice.recompute == "full"
        )
        regions = self._regions(sizes)
        extra = self._extra_copies(choice)
        if choice.recompute == "none":
            extra += sum(regions)
        elif regions:
            played.add_temporary(max(regions))
        backward = played.peak(extra)
        update = Peak(
            saved_bytes=0,
            gradient_bytes=trained,
            temporary_bytes=trained if choice.updates_at_once else 0,
            place="optimizer",
            most_saved_bytes=backward.most_saved_bytes,
        )
        return max(backward, update, key=lambda peak: peak.total_bytes)

    def _sizes(self, choice: Choice) -> list[int]:
        batch = self._batch
        times = 1.0
        if batch is not None and choice.batch_size is not None:
            times = choice.batch_size / batch.samples
        return [
            round(
                piece.num_bytes
                * (times if batch is not None and batch.grows(piece) else 1.0)
                * self._share(piece, choice.precision)
            )
            for piece in self._step.pieces
        ]

    def _share(self, piece: SavedPiece, precision: str) -> float:
        """Say what is kept of a piece on a GPU, in a precision."""
        if self._moves and piece.kind == "scores":
            return 0.0  # made again in backward
        if self._moves and piece.made_by.startswith("Dropout") and piece.dtype == "float32":
            return _MASK_BYTES
        return self._width(piece, precision)

    def _width(self, piece: SavedPiece, precision: str) -> float:
        """Say how much wider or narrower a piece becomes."""
        if precision == self._own or piece.kind == "gradient":
            return 1.0
        if precision in NARROW and self._own == "fp32":
            return _narrowed(piece)
        if precision == "fp32" and self._own in NARROW:
            if piece.kind == "weight copy":
                return 0.0
            return 2.0 if piece.dtype == NARROW[self._own] else 1.0
        return 1.0

    def _extra_copies(self, choice: Choice) -> int:
        """Bytes of the weights' copies that autocast would make and the script has not."""
        if choice.precision in NARROW and self._own == "fp32":
            return 2 * self._memory.product_weights
        return 0

    def _regions(self, sizes: list[int]) -> list[int]:
        """Bytes that each region makes again, where the script recomputes."""
        saved = {piece.storage for piece in self._step.pieces if piece.kind == "saved"}
        found: dict[int | None, dict[int, int]] = defaultdict(dict)
        for piece, size in zip(self._step.pieces, sizes, strict=True):
            if piece.kind == "recomputed" and piece.storage not in saved:
                found[piece.block][piece.storage] = size
        return [sum(region.values()) for region in found.values()]


def _narrowed(piece: SavedPiece) -> float:
    """Say what autocast would leave of a piece of a float32 step."""
    if piece.dtype != "float32" or any(name in piece.made_by for name in _KEPT_WIDE):
        return 1.0
    return _NARROWED.get(piece.made_with.rstrip("0123456789"), 0.5)


class _Played:
    """One pass over the events of a step."""

    def __init__(
        self, step: SampledStep, sizes: list[int], *, most_gradients: int, recompute: bool
    ) -> None:
        self._pieces = step.pieces
        self._events = step.events
        self._sizes = sizes
        self._held = step.gradients_held_bytes
        self._most_gradients = most_gradients
        self._recompute = recompute
        self._temporary = 0
        self._given: set[int] = set()
        self._inside = self._inside_blocks() if recompute else {}
        self._inputs = self._inputs_of_blocks() if recompute else {}

    def add_temporary(self, num_bytes: int) -> None:
        """Count something that is there during backward."""
        self._temporary = num_bytes

    def peak(self, extra_bytes: int) -> Peak:
        """Go through the events.

        Args:
            extra_bytes: Kept for backward beside the recorded pieces.
        """
        users: Counter[int] = Counter()
        made_again: set[int] = set()
        arrived: set[int] = set()
        saved, most_saved, gradients = extra_bytes, extra_bytes, self._held
        best = self._at(saved, gradients, 0)
        for event in self._events:
            index = abs(event) - 1
            piece, size = self._pieces[index], self._sizes[index]
            if piece.kind == "gradient":
                # It comes with every backward pass: added to, or anew after it was let go.
                gradients += 0 if index in arrived else size
                gradients = min(gradients, max(self._held, self._most_gradients))
                arrived.add(index)
                continue
            block = piece.block if self._recompute else None
            if event > 0:
                users[piece.storage] += 1
                if users[piece.storage] == 1:
                    saved += self._entered(block, size, made_again)
                most_saved = max(most_saved, saved)
                continue
            if block is not None and block not in made_again:
                made_again.add(block)
                saved += self._made_again(block)
            best = max(best, self._at(saved, gradients, size), key=lambda one: one.total_bytes)
            users[piece.storage] -= 1
            if users[piece.storage] == 0:
                saved -= size
        return Peak(
            saved_bytes=best.saved_bytes,
            gradient_bytes=best.gradient_bytes,
            temporary_bytes=best.temporary_bytes,
            place="backward",
            most_saved_bytes=most_saved,
        )

    def _at(self, saved: int, gradients: int, size: int) -> Peak:
        return Peak(
            saved_bytes=saved,
            gradient_bytes=gradients,
            temporary_bytes=GRADIENTS_IN_FLIGHT * size + self._temporary,
            place="backward",
            most_saved_bytes=saved,
        )

    def _entered(self, block: int | None, size: int, made_again: set[int]) -> int:
        """Say what is kept as a piece comes: of a block that is made again its input, once."""
        if block is None or block in made_again:
            return size
        given, self._inputs[block] = self._inputs.get(block, {}), {}
        return sum(given.values())

    def _made_again(self, block: int) -> int:
        """Bytes that a block has inside, without those that were kept for it."""
        inside = self._inside.get(block, {})
        return sum(size for storage, size in inside.items() if storage not in self._given)

    def _inside_blocks(self) -> dict[int, dict[int, int]]:
        found: dict[int, dict[int, int]] = defaultdict(dict)
        for piece, size in zip(self._pieces, self._sizes, strict=True):
            if piece.kind == "saved" and piece.block is not None:
                found[piece.block][piece.storage] = size
        return found

    def _inputs_of_blocks(self) -> dict[int, dict[int, int]]:
        """Give what each block is given, each piece of memory with the first that has it."""
        kept = {p.storage for p in self._pieces if p.kind == "saved" and p.block is None}
        found: dict[int, dict[int, int]] = defaultdict(dict)
        for piece, size in zip(self._pieces, self._sizes, strict=True):
            if piece.kind == "input" and piece.block is not None and piece.storage not in kept:
                kept.add(piece.storage)
                found[piece.block][piece.storage] = size
        self._given = kept
        return found


def trained_bytes(memory: ScriptMemory) -> int:
    """Bytes of the weights that are trained, and so of their gradients."""
    return weights_bytes(memory, frozen=False)


def weights_bytes(memory: ScriptMemory, *, frozen: bool) -> int:
    """Bytes of weights."""
    shapes = memory.frozen if frozen else memory.trained
    return sum(math.prod(one.shape) * _width_of(one.dtype) * one.count for one in shapes)


def _width_of(dtype: str) -> int:
    return {"float64": 8, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1}.get(dtype, 4)
