"""A model run over whole frames: at once, or in tiles of a given side or of one that fits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from pitstop.config.sections import EvalSection
from pitstop.config.workloads.deblur import TilesSection
from pitstop.errors import ConfigError
from pitstop.records.units import bytes_text
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.data.inputs import COLOURS
from pitstop.workloads.deblur.recorded import Forward, RecordedForward
from pitstop.workloads.deblur.spike import Window
from pitstop.workloads.deblur.tiling import (
    SIDE_MULTIPLE,
    TileChoice,
    Tiling,
    choose_count,
    choose_side,
    restore_tiles,
)

ToDevice = Callable[[ClipBatch, torch.device], ClipBatch]

MOST_AT_ONCE: Final = 4
"""Tiles of a pass: with more of them a large GPU is no fuller."""

_FLOAT_BYTES: Final = 4


class WholeFrames:
    """Restores batches of whole frames, which may lie on the host or on the device.

    Passes are recorded where that can be, and replayed; see `recorded`.

    Args:
        forward: Runs the model on what fits.
        to_device: Copies a batch.
        tiles: How tiles meet, and the budget they may be chosen by.
        evaluation: Side and overlap of tiles.
        upscale: How many times larger restored frames are, along each side.
    """

    def __init__(
        self,
        forward: Forward,
        to_device: ToDevice,
        *,
        tiles: TilesSection,
        evaluation: EvalSection,
        upscale: int = 1,
    ) -> None:
        self._forward = forward
        self._recorded = RecordedForward(forward)
        self._to_device = to_device
        self._tiles = tiles
        self._evaluation = evaluation
        self._upscale = upscale
        self._choices: dict[tuple[int, ...], TileChoice] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which tiles were chosen, and by what, and how they ran."""
        notes = [
            f"frames of {size[-2]}x{size[-1]} in tiles of {choice.side}x{choice.side}, "
            f"{self._reason(choice)}"
            for size, choice in self._choices.items()
        ]
        if self._recorded.replayed:
            notes.append(
                f"{self._recorded.replayed} of {self._recorded.ran} passes replayed as CUDA graphs"
            )
        return tuple(notes)

    def forget(self) -> None:
        """Give back the memory of recorded passes; the next frames record them again."""
        self._recorded.forget()

    def __call__(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        """Give the restored frames, (B, D, 3, H, W), on the model's device."""
        device = next(model.parameters()).device
        choice = self._choice(model, batch, device)
        restore = self._recorded.of(model)
        if choice is None or choice.side >= max(batch.blur.shape[-2:]):
            return restore(self._to_device(batch, device))
        wanted = self._evaluation.tile_overlap
        tiling = Tiling(
            side=choice.side,
            # A side that was chosen by memory may be smaller than the overlap.
            overlap=wanted if wanted < choice.side else choice.side // 2,
            border=self._tiles.border,
            step=spike_step(batch),
        )
        out = torch.zeros(self._out_shape(batch), dtype=torch.float32, device=device)
        return restore_tiles(
            lambda windows: restore(self._to_device(cut_tiles(batch, windows), device)),
            out,
            tiling,
            at_once=choice.at_once,
            scale=self._upscale,
        )

    def _out_shape(self, batch: ClipBatch) -> tuple[int, ...]:
        clips, frames, _, height, width = batch.blur.shape
        return clips, frames, COLOURS, height * self._upscale, width * self._upscale

    def _choice(
        self, model: nn.Module, batch: ClipBatch, device: torch.device
    ) -> TileChoice | None:
        """Which tiles to cut; None to cut none."""
        multiple = math.lcm(SIDE_MULTIPLE, spike_step(batch))
        side = self._evaluation.tile
        if side is not None:
            side = max(side // multiple, 1) * multiple
        key = tuple(batch.blur.shape)
        if side is not None and (self._tiles.memory is None or side >= max(key[-2:])):
            return TileChoice(side=side)
        if self._tiles.memory is None:
            return None
        if key not in self._choices:
            if device.type != "cuda":
                raise ConfigError(
                    "data.tiles.memory chooses tiles by what they take of a GPU's memory, and "
                    "there is no GPU; set eval.tile alone instead"
                )

            def measure(side: int, count: int = 1) -> int | None:
                part = cut_tiles(batch, [Window(0, 0, side, side)] * count)
                return self._peak_bytes(model, part, device, beside=batch)

            budget_bytes, longest = self._tiles.memory, max(key[-2:])
            self._choices[key] = (
                choose_side(measure, budget_bytes=budget_bytes, largest=longest, multiple=multiple)
                if side is None
                else choose_count(measure, side=side, budget_bytes=budget_bytes, most=MOST_AT_ONCE)
            )
        return self._choices[key]

    def _peak_bytes(
        self, model: nn.Module, part: ClipBatch, device: torch.device, *, beside: ClipBatch
    ) -> int | None:
        """What restoring a part of frames takes; None where memory runs out."""
        torch.cuda.reset_peak_memory_stats(device)
        try:
            self._forward(model, self._to_device(part, device))
        except torch.OutOfMemoryError:
            return None
        # Beside every tile stand the frames it is added to, and as many that wait to be written.
        beside_bytes = 2 * math.prod(self._out_shape(beside)) * _FLOAT_BYTES
        return torch.cuda.max_memory_allocated(device) + beside_bytes

    def _reason(self, choice: TileChoice) -> str:
        assert choice.peak_bytes is not None, "it was chosen by measuring"
        took = bytes_text(choice.peak_bytes)
        if self._evaluation.tile is None:
            return f"the largest that keeps data.tiles.memory: such a tile takes {took}"
        return f"up to {choice.at_once} at once, which data.tiles.memory allows: they take {took}"


def spike_step(batch: ClipBatch) -> int:
    """Count the pixels of a frame to one of its spikes, along a side; 1 without spikes."""
    return 1 if batch.spikes is None else batch.blur.shape[-1] // batch.spikes.shape[-1]


def cut_batch(batch: ClipBatch, window: Window) -> ClipBatch:
    """Cut the same part out of frames and spikes; a window that reaches beyond them ends there."""
    step = spike_step(batch)
    larger = batch.sharp.shape[-1] // batch.blur.shape[-1]

    def cut(frames: Tensor, step: int, *, times: int = 1) -> Tensor:
        top, left, height, width = (length * times // step for length in window)
        return frames[..., top : top + height, left : left + width]

    return replace(
        batch,
        blur=cut(batch.blur, 1),
        sharp=cut(batch.sharp, 1, times=larger),
        spikes=None if batch.spikes is None else cut(batch.spikes, step),
    )


def cut_tiles(batch: ClipBatch, windows: Sequence[Window]) -> ClipBatch:
    """Cut windows of one size out of a batch, and put them one behind the other."""
    parts = [cut_batch(batch, window) for window in windows]
    if len(parts) == 1:
        return parts[0]
    spikes = [part.spikes for part in parts if part.spikes is not None]
    return ClipBatch(
        blur=torch.cat([part.blur for part in parts]),
        sharp=torch.cat([part.sharp for part in parts]),
        spikes=torch.cat(spikes) if spikes else None,
        clip=torch.cat([part.clip for part in parts]),
        fresh=torch.cat([part.fresh for part in parts]),
    )
