"""Restored frames as files: one PNG a frame, under the names of the blurred ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pitstop.data.images import write_image
from pitstop.workloads.deblur.data.dataset import Bytes, ClipSamples
from pitstop.workloads.deblur.metrics import to_levels


def write_frames(
    restored: Tensor, samples: ClipSamples, indices: Sequence[int], folder: Path
) -> list[Path]:
    """Write restored segments to `<folder>/<clip>/<frame>.png`, every frame once.

    Args:
        restored: (B, D, 3, H, W), colours about 0 to 1.
        samples: What the segments were cut from.
        indices: Number of each segment.
        folder: Where clips get folders of their own.

    Raises:
        DataError: Where a file cannot be written.
    """
    written = []
    for segment, index in zip(restored, indices, strict=True):
        clip, _, known = samples.starts[index].tolist()
        names = samples.index.blur_names[samples.frames_of(index)]
        # One segment at a time crosses to the host, as bytes.
        levels = to_levels(segment).to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu().numpy()
        for place in range(known, len(levels)):  # an earlier segment has the frames before
            path = folder / samples.index.clips[clip] / f"{Path(str(names[place])).stem}.png"
            write_png(path, levels[place])
            written.append(path)
    return written


def write_png(path: Path, levels: Bytes) -> None:
    """Write an (H, W, 3) image, whole or not at all.

    Raises:
        DataError: Where it cannot be written.
    """
    write_image(path, Image.fromarray(np.ascontiguousarray(levels)))
