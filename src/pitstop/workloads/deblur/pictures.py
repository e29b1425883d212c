"""A frame as it came, as it was restored, as it should be, and as the spike camera saw it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pitstop.records.pictures import PictureCell, PictureRow
from pitstop.workloads.deblur.data.dataset import ClipBatch, ClipSamples
from pitstop.workloads.deblur.data.inputs import enlarged
from pitstop.workloads.deblur.data.voxels import NO_PLANE, resize
from pitstop.workloads.deblur.metrics import LEVELS, psnr, to_levels
from pitstop.workloads.deblur.outputs import write_png

MOST_SIDE: Final = 128
"""Pixels of a picture's side at most: details show, and a page of a dozen stays small."""


def draw_segments(
    restored: Tensor,
    batch: ClipBatch,
    samples: ClipSamples,
    *,
    indices: Sequence[int],
    folder: Path,
) -> list[PictureRow]:
    """Write pictures of the middle frame of each segment.

    Args:
        restored: (B, D, 3, H, W), colours about 0 to 1.
        batch: What was restored, on the host.
        samples: What the segments were cut from.
        indices: Number of each segment.
        folder: Where the files go.

    Raises:
        DataError: Where a file cannot be written.
    """
    middle = restored.shape[1] // 2
    levels = to_levels(restored[:, middle].cpu())
    blurry = enlarged(batch.blur[:, middle], levels.shape).round().clamp(0, LEVELS)
    views = {"blurry": blurry, "restored": levels, "sharp": batch.sharp[:, middle]}
    if batch.spikes is not None:
        views["spikes"] = spike_view(batch.spikes[:, middle], levels.shape[-2:])
    rows = []
    for place, index in enumerate(indices):
        pictures = {caption: view[place].double() for caption, view in views.items()}
        cells = []
        for caption, picture in pictures.items():
            name = f"{index:06d}-{caption}.png"
            shown = centre(picture).to(torch.uint8).permute(1, 2, 0)
            write_png(folder / name, shown.contiguous().numpy())
            cells.append(PictureCell(caption=caption, file=name))
        title = frame_name(samples, index, middle)
        rows.append(PictureRow(title=title, cells=tuple(cells), note=quality_note(pictures)))
    return rows


def spike_view(spikes: Tensor, size: tuple[int, ...]) -> Tensor:
    """Turn the spikes of one frame, (B, T, h, w), into grey pictures (B, 3, H, W).

    Light is the number of spikes over the exposure; the brightest place is white.
    """
    counts = torch.where(spikes == NO_PLANE, 0, spikes).sum(dim=1, dtype=torch.float32)
    brightest = counts.amax(dim=(1, 2), keepdim=True).clamp_min(1)
    grey = resize((counts / brightest)[:, None, None], (size[0], size[1]))[:, 0]
    return (grey * LEVELS).round().expand(-1, 3, -1, -1)


def centre(picture: Tensor) -> Tensor:
    """Cut the middle of a (3, H, W) picture where it is larger than what is shown."""
    height, width = picture.shape[-2:]
    rows, columns = min(height, MOST_SIDE), min(width, MOST_SIDE)
    top, left = (height - rows) // 2, (width - columns) // 2
    return picture[:, top : top + rows, left : left + columns]


def frame_name(samples: ClipSamples, index: int, place: int) -> str:
    """Name the clip and the frame at a place of a segment."""
    clip, name = samples.starts[index, 0], samples.index.blur_names[samples.frames_of(index)][place]
    return f"{samples.index.clips[clip]}, frame {Path(str(name)).stem}"


def quality_note(pictures: dict[str, Tensor]) -> str:
    """Say how far the whole frame is from the sharp one, before and after."""
    before, after = (
        float(psnr(pictures[caption], pictures["sharp"])) for caption in ("blurry", "restored")
    )
    return f"PSNR against the sharp frame: {before:.2f} dB blurry, {after:.2f} dB restored"
