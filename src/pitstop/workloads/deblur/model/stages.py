"""The eight stages of VRT: seven that align frames over a U of scales, and one that rebuilds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torch import Tensor, nn

from pitstop.kernels import Kernels
from pitstop.workloads.deblur.model.alignment import Alignment, Flows
from pitstop.workloads.deblur.model.blocks import (
    BlockGroup,
    BlockShape,
    GatedMLP,
    Recompute,
    norm_project,
    plain_call,
    project_add,
)

Resampling: TypeAlias = Literal["none", "down", "up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentShape:
    """How the stages align neighbours: steps on each side, groups, and pixels off the flow."""

    num_steps: int
    deformable_groups: int
    max_residue: float


class Fold(nn.Module):
    """Gather each 2x2 square of pixels into channels, ordered (column, row, channel)."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, 2h, 2w, C) -> (B, D, h, w, 4C)."""
        squares = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        return squares.permute(0, 1, 2, 4, 5, 3, 6).flatten(-3)


class Unfold(nn.Module):
    """Scatter channels, ordered (column, row, channel), to 2x2 squares of pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, h, w, 4C) -> (B, D, 2h, 2w, C)."""
        squares = x.unflatten(-1, (2, 2, -1))
        return squares.permute(0, 1, 2, 5, 3, 4, 6).flatten(4, 5).flatten(2, 3)


class ReshapeNormProject(nn.Sequential):
    """Another shape, a norm and a linear layer, the last two as one operation."""

    def __init__(
        self, reshape: nn.Module, norm: nn.LayerNorm, linear: nn.Linear, *, kernels: Kernels
    ) -> None:
        super().__init__(reshape, norm, linear)
        self.kernels: Kernels = kernels

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - named by the class it extends
        """(B, D, H, W, C) -> whatever shape, with the channels of the linear layer."""
        reshape, norm, linear = self
        return norm_project(self.kernels, reshape(input), norm, linear)  # pyright: ignore[reportArgumentType]


def resampling(kind: Resampling, dim: int, kernels: Kernels) -> nn.Sequential:
    """What a stage does first: bring its input to its own scale, and norm it."""
    if kind == "none":
        return nn.Sequential(nn.Identity(), nn.LayerNorm(dim))
    if kind == "down":
        return nn.Sequential(Fold(), nn.LayerNorm(4 * dim), nn.Linear(4 * dim, dim))
    norm, linear = nn.LayerNorm(dim // 4), nn.Linear(dim // 4, dim)
    return ReshapeNormProject(Unfold(), norm, linear, kernels=kernels)


class Stage(nn.Module):
    """Resample, attend in pairs of frames, attend over the clip, align neighbours.

    Args:
        kind: How the input is resampled.
        shape: The blocks of the second group; the first one's differ in depth and in mutual
            attention.
        num_mutual: Blocks of the first group.
        drop_rates: Of all blocks; both groups read them from the start.
        alignment: None leaves alignment out.
    """

    def __init__(
        self,
        kind: Resampling,
        shape: BlockShape,
        *,
        num_mutual: int,
        drop_rates: Sequence[float],
        alignment: AlignmentShape | None,
    ) -> None:
        super().__init__()
        dim = shape.dim
        pairs = replace(shape, window=(2, *shape.window[1:]), mutual=True)
        num_self = len(drop_rates) - num_mutual
        self.shape = shape
        self.reshape = resampling(kind, dim, shape.kernels)
        self.residual_group1 = BlockGroup(pairs, drop_rates=drop_rates[:num_mutual])
        self.linear1 = nn.Linear(dim, dim)
        self.residual_group2 = BlockGroup(shape, drop_rates=drop_rates[:num_self])
        self.linear2 = nn.Linear(dim, dim)
        self.aligns = alignment is not None
        if alignment is not None:
            self.pa_deform = Alignment(
                dim,
                num_steps=alignment.num_steps,
                deformable_groups=alignment.deformable_groups,
                max_residue=alignment.max_residue,
                kernels=shape.kernels,
            )
            self.pa_fuse = GatedMLP(3 * dim, 3 * dim, dim, kernels=shape.kernels)
        self.recompute_alignment: Recompute = plain_call
        self.recompute_stage: Recompute = plain_call

    def forward(self, x: Tensor, flows: Flows) -> Tensor:
        """(B, D, H, W, C) -> (B, D, h, w, C) at this stage's scale, whose flows are given."""
        x = self.reshape(x)
        x = project_add(self.shape.kernels, x, self.residual_group1(x), self.linear1)
        x = project_add(self.shape.kernels, x, self.residual_group2(x), self.linear2)
        if self.aligns:
            x = self.recompute_alignment(self.alignment_part, x, flows)
        return x

    def alignment_part(self, x: Tensor, flows: Flows) -> Tensor:
        """Align the neighbours and merge them with the frame itself."""
        return self.pa_fuse(self.pa_deform(x, flows))


class ResidualGroup(nn.Module):
    """A group of self attention blocks, projected and added to what came in."""

    def __init__(self, shape: BlockShape, *, drop_rates: Sequence[float]) -> None:
        super().__init__()
        self.shape = shape
        self.residual_group = BlockGroup(shape, drop_rates=drop_rates)
        self.linear = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W, C) -> same."""
        return project_add(self.shape.kernels, x, self.residual_group(x), self.linear)


class Reconstruction(nn.Sequential):
    """The last stage: widen the channels, then attend at full size without alignment."""

    def __init__(self, in_dim: int, groups: Sequence[ResidualGroup], *, out_dim: int) -> None:
        norm, linear, kernels = (
            nn.LayerNorm(in_dim),
            nn.Linear(in_dim, out_dim),
            groups[0].shape.kernels,
        )
        widen = ReshapeNormProject(nn.Identity(), norm, linear, kernels=kernels)
        super().__init__(widen, *groups)
        self.recompute_stage: Recompute = plain_call
