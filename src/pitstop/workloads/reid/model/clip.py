"""CLIP for people in five modalities: four kinds of images through one trunk, and captions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES, MODALITIES
from pitstop.workloads.reid.model.fusion import Fusion, Neck
from pitstop.workloads.reid.model.towers import (
    BackboneShape,
    CaptionShape,
    ImageTrunk,
    Kernels,
    PatchTokens,
    TextTower,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReidShape:
    """Everything that decides the size of a model."""

    backbone: BackboneShape
    grid: tuple[int, int]
    """Rows and columns of patches."""
    captions: CaptionShape
    people: int
    """Whom the classifier tells apart."""
    embed_dim: int
    rank: int
    fusion_heads: int
    dropout: float


class ReidOutput(NamedTuple):
    """What a training step judges."""

    logits: Tensor
    """(B, people), in full precision."""
    together: Tensor
    """(B, d): features of records with all that they have."""
    alone: Tensor
    """(M, B, d): features of each modality by itself, in the order of `MODALITIES`; what stands
    at a missing one does not matter."""


class ReidModel(nn.Module):
    """Features of people from any of their modalities.

    Shapes depend on the batch size alone: what is missing is masked, never left out, so nothing is
    read from the device and nothing is compiled anew.
    """

    def __init__(self, shape: ReidShape, *, kernels: Kernels = "auto") -> None:
        super().__init__()
        backbone, width = shape.backbone, shape.embed_dim
        self.patches = PatchTokens(backbone.image.width, patch=backbone.patch, grid=shape.grid)
        self.trunk = ImageTrunk(backbone.image, rank=shape.rank, embed_dim=width, kernels=kernels)
        self.text = TextTower(
            backbone.text, captions=shape.captions, embed_dim=width, kernels=kernels
        )
        self.fusion = Fusion(width, heads=shape.fusion_heads, modalities=len(MODALITIES))
        self.neck = Neck(width, people=shape.people, dropout=shape.dropout)

    def forward(self, images: Tensor, present: Tensor, captions: Tensor) -> ReidOutput:
        """Describe records for training.

        Args:
            images: uint8 (B, 4, 3, H, W).
            present: bool (B, 5).
            captions: int64 (B, T).
        """
        seen = self.trunk(self.patches(images))
        read = self.text(captions).unsqueeze(0)
        tokens = torch.cat([seen, read.to(seen.dtype)])
        together, alone = self.fusion(tokens, present)
        return ReidOutput(logits=self.neck(together), together=together, alone=alone)

    def encode(self, images: Tensor, present: Tensor, captions: Tensor) -> Tensor:
        """Make the tokens of what is there, and of nothing else: (B, 5, d), zeros elsewhere.

        For evaluation. The mask is read, so it lies on the host: from there nothing is waited for.
        """
        rows = present.nonzero(as_tuple=False).tolist()
        tokens = self.fusion.null_tokens.new_zeros(*present.shape, self.fusion.null_tokens.shape[1])
        for place in range(len(MODALITIES)):
            own = [row for row, modality in rows if modality == place]
            if own:
                tokens[own, place] = self._encode_one(images, captions, own, place).to(tokens.dtype)
        return tokens

    def encode_with_mirror(self, images: Tensor, present: Tensor, captions: Tensor) -> Tensor:
        """Make the mean of the tokens of images and of their mirror images; captions have none."""
        once = self.encode(images, present, captions)
        seen = present.clone()
        seen[:, len(IMAGE_MODALITIES) :] = False
        mirrored = self.encode(images.flip(-1), seen, captions)
        return torch.where(seen[..., None].to(once.device), (once + mirrored) / 2, once)

    def _encode_one(
        self, images: Tensor, captions: Tensor, rows: list[int], modality: int
    ) -> Tensor:
        if modality == len(IMAGE_MODALITIES):
            return self.text(captions[rows])
        return self.trunk(self.patches.forward(images[rows, modality], modality), modality)[0]

    def describe(self, tokens: Tensor, present: Tensor) -> Tensor:
        """Give the features that are compared, of length 1, from tokens: (N, 5, d) -> (N, d)."""
        return functional.normalize(self.neck.norm(self.fusion.join(tokens, present).float()))

    def named_parts(self) -> Mapping[str, nn.Module]:
        """Name the parts whose time is worth knowing.

        None of them is compiled as such: hooks that time it would be compiled, too.
        """
        return {"trunk": self.trunk, "text": self.text, "neck": self.neck}

    def named_regions(self) -> list[nn.Module]:
        """List what is compiled piece by piece: the blocks, and what comes before and after."""
        return [self.patches, *self.trunk.blocks, *self.text.blocks, self.fusion]

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """Give the weights that CLIP brings along: those of the blocks, without adapters."""
        for tower in (self.trunk, self.text):
            for name, parameter in tower.named_parameters():
                if "adapter" not in name and "projection" not in name:
                    yield parameter
