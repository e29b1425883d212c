"""Records of people side by side, as they travel to the device.

Pixels travel as bytes and are normalised by the model: a quarter of what floats would take. What a
record has is stated, never guessed from its pixels: a black image is an image.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pitstop.data.loader.prefetch import on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class ReidSample:
    """One record."""

    images: Tensor
    """uint8 (4, 3, H, W), in the order of `IMAGE_MODALITIES`; zeros where one is absent."""
    present: Tensor
    """bool (5,), in the order of `MODALITIES`."""
    tokens: Tensor
    """int64 (T,), the caption from its start token to its end token, then padding."""
    person: int
    """Label, from 0 on without gaps; -1 where nobody knows."""
    camera: int
    """Number of the camera; -1 where it is not known."""
    row: int
    """Place in the dataset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReidBatch:
    """Records side by side."""

    images: Tensor
    """uint8 (B, 4, 3, H, W), in the order of `IMAGE_MODALITIES`; zeros where one is absent."""
    present: Tensor
    """bool (B, 5), in the order of `MODALITIES`."""
    tokens: Tensor
    """int64 (B, T), captions from start to end token, then padding; T is that of the
    longest caption of the dataset and does not vary."""
    persons: Tensor
    """int64 (B,), labels from 0 on; -1 where nobody knows."""
    cameras: Tensor
    """int64 (B,), -1 where not known."""
    rows: Tensor
    """int64 (B,), places in the dataset."""
    present_on_host: Tensor
    """`present` where it can be read without waiting for a device; it never leaves the host."""

    def to(self, device: torch.device) -> "ReidBatch":
        """Bring the batch to a device without waiting for the copies."""
        return replace(on_device(self, device), present_on_host=self.present_on_host)


def collate(samples: list[ReidSample]) -> ReidBatch:
    """Put records side by side."""
    present = torch.stack([sample.present for sample in samples])
    return ReidBatch(
        images=torch.stack([sample.images for sample in samples]),
        present=present,
        tokens=torch.stack([sample.tokens for sample in samples]),
        persons=torch.tensor([sample.person for sample in samples], dtype=torch.int64),
        cameras=torch.tensor([sample.camera for sample in samples], dtype=torch.int64),
        rows=torch.tensor([sample.row for sample in samples], dtype=torch.int64),
        present_on_host=present,
    )
