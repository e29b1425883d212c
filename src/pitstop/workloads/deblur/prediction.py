"""A model run over whole frames: at once, or in tiles of a given side or of one that fits."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from pitstop.config.sections import EvalSection
from pitstop.config.workloads.deblur import TilesSection
from pitstop.errors import ConfigError
from pitstop.records.units import bytes_text
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.data.spike import Window
from pitstop.workloads.deblur.tiling import (
    SIDE_MULTIPLE,
    TileChoice,
    Tiling,
    choose_side,
    restore_tiles,
)

Forward = Callable[[nn.Module, ClipBatch], Tensor]
"""Takes a model and a batch on its device."""

ToDevice = Callable[[ClipBatch, torch.device], ClipBatch]

_FLOAT_BYTES: Final = 4


class WholeFrames:
    """Restores batches of whole frames, which may lie on the host or on the device.

    Args:
        forward: Runs the model on what fits.
        to_device: Copies a batch.
        tiles: How tiles meet, and the budget they may be chosen by.
        evaluation: Side and overlap of tiles.
    """

    def __init__(
        self, forward: Forward, to_device: ToDevice, *, tiles: TilesSection, evaluation: EvalSection
    ) -> None:
        self._forward = forward
        self._to_device = to_device
        self._tiles = tiles
        self._evaluation = evaluation
        self._choices: dict[tuple[int, ...], TileChoice] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which tiles were chosen, and by what."""
        return tuple(
            f"frames of {size[-2]}x{size[-1]} in tiles of {choice.side}x{choice.side}, the largest "
            f"that keeps data.tiles.memory: such a tile takes {bytes_text(choice.peak_bytes)}"
            for size, choice in self._choices.items()
        )

    def __call__(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        """Give the restored frames, (B, D, 3, H, W), on the model's device."""
        device = next(model.parameters()).device
        side = self._side(model, batch, device)
        if side is None or side >= max(batch.blur.shape[-2:]):
            return self._forward(model, self._to_device(batch, device))
        wanted = self._evaluation.tile_overlap
        tiling = Tiling(
            side=side,
            # A side that was chosen by memory may be smaller than the overlap.
            overlap=wanted if wanted < side else side // 2,
            border=self._tiles.border,
            step=spike_step(batch),
        )
        out = torch.zeros(batch.blur.shape, dtype=torch.float32, device=device)
        return restore_tiles(
            lambda window: self._forward(model, self._to_device(cut_batch(batch, window), device)),
            out,
            tiling,
        )

    def _side(self, model: nn.Module, batch: ClipBatch, device: torch.device) -> int | None:
        multiple = math.lcm(SIDE_MULTIPLE, spike_step(batch))
        if self._tiles.memory is None:
            side = self._evaluation.tile
            return None if side is None else max(side // multiple, 1) * multiple
        key = tuple(batch.blur.shape)
        if key not in self._choices:
            self._choices[key] = self._choose(model, batch, device, multiple)
        return self._choices[key].side

    def _choose(
        self, model: nn.Module, batch: ClipBatch, device: torch.device, multiple: int
    ) -> TileChoice:
        assert self._tiles.memory is not None
        if device.type != "cuda":
            raise ConfigError(
                "data.tiles.memory chooses tiles by what they take of a GPU's memory, and there is "
                "no GPU; set eval.tile instead"
            )
        # Beside every tile stand the frames it is added to, and as many that wait to be written.
        beside_bytes = 2 * batch.blur.numel() * _FLOAT_BYTES

        def measure(side: int) -> int | None:
            part = cut_batch(batch, Window(0, 0, side, side))
            torch.cuda.reset_peak_memory_stats(device)
            try:
                self._forward(model, self._to_device(part, device))
            except torch.OutOfMemoryError:
                return None
            return torch.cuda.max_memory_allocated(device) + beside_bytes

        return choose_side(
            measure,
            budget_bytes=self._tiles.memory,
            largest=max(batch.blur.shape[-2:]),
            multiple=multiple,
        )


def spike_step(batch: ClipBatch) -> int:
    """Count the pixels of a frame to one of its spikes, along a side; 1 without spikes."""
    return 1 if batch.spikes is None else batch.blur.shape[-1] // batch.spikes.shape[-1]


def cut_batch(batch: ClipBatch, window: Window) -> ClipBatch:
    """Cut the same part out of frames and spikes; a window that reaches beyond them ends there."""
    step = spike_step(batch)

    def cut(frames: Tensor, step: int) -> Tensor:
        top, left, height, width = (length // step for length in window)
        return frames[..., top : top + height, left : left + width]

    return replace(
        batch,
        blur=cut(batch.blur, 1),
        sharp=cut(batch.sharp, 1),
        spikes=None if batch.spikes is None else cut(batch.spikes, step),
    )
