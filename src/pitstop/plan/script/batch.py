"""Which pieces of a step grow with its batch, told by their shapes."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pitstop.records.plans.script import SampledStep, SavedPiece, ScriptMemory

FOR_BACKWARD = ("saved", "scores", "input", "recomputed", "elsewhere")
"""Kinds that may hold samples; weights, their copies and gradients never do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The batch of a step, and how it shows in shapes."""

    samples: int
    leading: frozenset[int]
    """First sides that are the batch times other sides, as in `x.view(batch * length, -1)`."""

    def grows(self, piece: SavedPiece) -> bool:
        """Whether a piece holds samples: a side is the batch, or the first a multiple of it."""
        if piece.kind not in FOR_BACKWARD or not piece.shape:
            return False
        return self._has_side(piece) or piece.shape[0] % self.samples == 0

    def is_certain(self, piece: SavedPiece) -> bool:
        """Whether its shape leaves no doubt."""
        if piece.kind not in FOR_BACKWARD or math.prod(piece.shape) < self.samples:
            return True
        # Two sides may be two batches, as of similarities, or one and a width that is as large.
        sides = piece.shape.count(self.samples)
        return sides == 1 or (not sides and piece.shape[0] in self.leading)

    def _has_side(self, piece: SavedPiece) -> bool:
        return self.samples in piece.shape


def find_batch(memory: ScriptMemory, step: SampledStep, given: int | None) -> BatchShape | None:
    """Find the batch of a step; None where nothing tells it.

    The loader knows best, as long as what the model was given fits: a script may put several views
    of a sample into one call.

    Args:
        memory: What was recorded.
        step: The step.
        given: What the user says.
    """
    seen = Counter(size for size in step.batch_sizes if size)
    called = seen.most_common(1)[0][0] if seen else None
    loaded = memory.loader_batch
    samples = given or called
    if given is None and loaded and (called is None or called % loaded == 0):
        samples = loaded
    if samples is None:
        return None
    return BatchShape(samples=samples, leading=frozenset(_leading(step.pieces, samples)))


def _leading(pieces: Iterable[SavedPiece], samples: int) -> Iterable[int]:
    for piece in pieces:
        if samples in piece.shape[:2]:
            for sides in range(1, len(piece.shape) + 1):
                yield math.prod(piece.shape[:sides])


def certain_share(step: SampledStep, batch: BatchShape) -> float:
    """Share of what may hold samples whose shape says whether it does."""
    sizes = [
        (piece.num_bytes, batch.is_certain(piece))
        for piece in step.pieces
        if piece.kind in FOR_BACKWARD
    ]
    total = sum(size for size, _ in sizes)
    return sum(size for size, is_certain in sizes if is_certain) / total if total else 1.0
