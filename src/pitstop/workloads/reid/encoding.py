"""Features of image files, each of one modality, for a search that is no evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pitstop.workloads.reid.data.augment import PLAIN, show
from pitstop.workloads.reid.data.decode import ImageReader, Size
from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES, MODALITIES
from pitstop.workloads.reid.model.clip import ReidModel


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEncoder:
    """Reads files and describes whom they show."""

    model: ReidModel
    size: Size
    device: torch.device
    mirror: bool = False
    """Whether an image is described by the mean of itself and its mirror image."""

    def __call__(self, paths: Sequence[Path], modality: str) -> Tensor:
        """Give the features (n, d) of files of one modality.

        Raises:
            DataError: Where a file cannot be read; names it.
        """
        reader = ImageReader(self.size)
        pixels = np.zeros((len(paths), 3, *self.size), np.uint8)
        for place, path in enumerate(paths):
            show(reader.image(path, modality), PLAIN, pixels[place])
        slot = MODALITIES.index(modality)
        present = torch.zeros(len(paths), len(MODALITIES), dtype=torch.bool)
        present[:, slot] = True
        images = torch.zeros(
            len(paths), len(IMAGE_MODALITIES), *pixels.shape[1:], dtype=torch.uint8
        )
        images[:, slot] = torch.from_numpy(pixels)
        captions = torch.zeros(len(paths), 1, dtype=torch.int64, device=self.device)
        encode = self.model.encode_with_mirror if self.mirror else self.model.encode
        tokens = encode(images.to(self.device), present, captions)
        return self.model.describe(tokens, present.to(self.device))
