"""The run that the demo measures: a small deblurring network on generated spike-camera clips.

A plain training loop as people write it; what makes it measured are the lines with ``clock``.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from pitstop_probe import Clock, RecordWriter, cuda_timer

PLANES = 32  # spike planes of a clip, summed into bins of eight
SIDE = 64

Bytes = npt.NDArray[np.uint8]


def train(folder: Path, *, steps: int, slow_decoder: bool) -> None:
    """Train for some steps and leave a record in `folder`."""
    for _ in training(folder, steps=steps, slow_decoder=slow_decoder):
        pass


def train_in_turns(before: Path, after: Path, *, steps: int) -> None:
    """Train both ways at once, a step here and a step there, so that both meet the same noise."""
    runs = [
        training(before, steps=steps, slow_decoder=True),
        training(after, steps=steps, slow_decoder=False),
    ]
    for number in range(steps + 1):  # the last turn lets both close their records
        for run in runs if number % 2 == 0 else reversed(runs):
            next(run, None)


def training(folder: Path, *, steps: int, slow_decoder: bool) -> Iterator[int]:
    """A training loop that pauses after each step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(5, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 1, 3, padding=1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    record = folder / "rank-0.jsonl"
    record.unlink(missing_ok=True)  # each demo is a run of its own, not a further attempt
    writer = RecordWriter(str(record), {"name": f"demo {folder.name}"})
    clock = Clock(writer, cuda_timer())
    batches = _batches(slow_decoder=slow_decoder)
    for step in range(steps):
        clock.begin_step()
        with clock.span("data"):
            blurred, bins, sharp = next(batches)
        with clock.span("forward"):
            restored = blurred + model(torch.cat([blurred, bins], dim=1))
            loss = functional.l1_loss(restored, sharp)
        with clock.span("backward"):
            loss.backward()
        with clock.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        with clock.span("log"):
            writer.scalars(step, {"loss": loss.item()})
        clock.count(samples=len(blurred))
        clock.end_step()
        yield step
    clock.close()
    writer.close()


def _batches(*, slow_decoder: bool) -> Iterator[tuple[torch.Tensor, ...]]:
    rng = np.random.default_rng(0)
    clips = [make_clip(rng) for _ in range(32)]
    decode = decode_bit_by_bit if slow_decoder else decode_by_planes
    while True:
        chosen = [clips[number] for number in rng.choice(len(clips), 4, replace=False)]
        blurred, packed, sharp = zip(*chosen, strict=True)
        bins = [decode(clip).reshape(4, -1, SIDE, SIDE).sum(axis=1) for clip in packed]
        yield (
            torch.from_numpy(np.stack(blurred))[:, None],
            torch.from_numpy(np.stack(bins).astype(np.float32) / 8),
            torch.from_numpy(np.stack(sharp))[:, None],
        )


def make_clip(rng: np.random.Generator) -> tuple[npt.NDArray[np.float32], Bytes, Bytes]:
    """Move a texture across the view; give its blur, its packed spikes and its middle frame."""
    texture = rng.random((SIDE, SIDE + PLANES), dtype=np.float32)
    texture = (texture + np.roll(texture, 1, axis=1) + np.roll(texture, 1, axis=0)) / 3
    frames = np.stack([texture[:, shift : shift + SIDE] for shift in range(PLANES)])
    # Integrate and fire: each pixel fires whenever its gathered light passes one.
    charge = np.cumsum(frames, axis=0) + rng.random((SIDE, SIDE), dtype=np.float32)
    fired = np.diff(np.floor(charge), axis=0, prepend=np.float32(0)) > 0
    packed = np.packbits(fired, axis=-1, bitorder="little")
    return frames.mean(axis=0), packed, frames[PLANES // 2]


def decode_by_planes(packed: Bytes) -> Bytes:
    """Unpack eight pixels a byte, least significant bit leftmost."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def decode_bit_by_bit(packed: Bytes) -> Bytes:
    """Unpack as a common reader of spike files does: one look-up for every bit."""
    planes, rows, row_bytes = packed.shape
    flat = packed.reshape(-1)
    bits = np.empty(planes * rows * row_bytes * 8, dtype=np.uint8)
    for place in range(len(flat)):
        byte = int(flat[place])
        for bit in range(8):
            bits[place * 8 + bit] = (byte >> bit) & 1
    return bits.reshape(planes, rows, row_bytes * 8)
