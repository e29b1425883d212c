"""Convolutions between the lifted features and the heads, and those that join image scales."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.workloads.bev.model.norms import NormKind, make_norm


class Layers(nn.Sequential):
    """Layers one after the other, to be compiled: the compiler skips torch's own class."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Run them all."""
        x = input
        for layer in self:
            x = layer(x)
        return x


class ConvNormReLU(Layers):
    """A convolution without bias, a norm, and what is positive of it."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        norm: NormKind = "batch",
    ) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False),
            make_norm(norm, out_channels),
            nn.ReLU(),
        )


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(
        self, in_channels: int, out_channels: int, *, stride: int = 1, norm: NormKind = "batch"
    ) -> None:
        super().__init__()
        self.first = ConvNormReLU(in_channels, out_channels, stride=stride, norm=norm)
        self.second = Layers(
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            make_norm(norm, out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = Layers(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                make_norm(norm, out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        return functional.relu(self.second(self.first(x)) + self.shortcut(x))


class ImageNeck(nn.Module):
    """Joins image features of several scales, coarse into fine; gives the finest.

    Each scale is concatenated with the coarser result, brought to its size.
    """

    def __init__(
        self, in_channels: Sequence[int], out_channels: int, *, norm: NormKind = "batch"
    ) -> None:
        super().__init__()
        steps = []
        coarser = in_channels[-1]
        for channels in reversed(in_channels[:-1]):
            steps.append(
                Layers(
                    ConvNormReLU(channels + coarser, out_channels, kernel=1, norm=norm),
                    ConvNormReLU(out_channels, out_channels, norm=norm),
                )
            )
            coarser = out_channels
        self.steps = nn.ModuleList(steps)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps from fine to coarse -> (N, out_channels, h, w) at the finest scale."""
        joined = maps[-1]
        for step, finer in zip(self.steps, reversed(maps[:-1]), strict=True):
            coarse = _resize(joined, finer.shape[-2:])
            joined = step(torch.cat((finer, coarse), dim=1))
        return joined


class GroundEncoder(nn.Module):
    """From lifted features to what heads read, at half the resolution of the grid.

    Halves the grid, runs three residual stages of one, two and four times ``width`` channels (the
    first two halve again), and joins the last with the first.
    """

    def __init__(
        self, in_channels: int, *, width: int, out_channels: int, norm: NormKind = "batch"
    ) -> None:
        super().__init__()
        self.down = Layers(
            ConvNormReLU(in_channels, in_channels, norm=norm),
            ConvNormReLU(in_channels, in_channels, stride=2, norm=norm),
            ConvNormReLU(in_channels, in_channels, norm=norm),
        )
        self.stages = nn.ModuleList(
            Layers(
                ResidualBlock(before, after, stride=stride, norm=norm),
                ResidualBlock(after, after, norm=norm),
            )
            for before, after, stride in (
                (in_channels, width, 2),
                (width, 2 * width, 2),
                (2 * width, 4 * width, 1),
            )
        )
        self.fuse = Layers(
            ConvNormReLU(5 * width, out_channels, kernel=1, norm=norm),
            ConvNormReLU(out_channels, out_channels, norm=norm),
        )
        self.up = ConvNormReLU(out_channels, out_channels, norm=norm)

    def forward(self, ground: Tensor) -> Tensor:
        """(B, C, rows, columns) -> (B, out_channels, rows / 2, columns / 2), rounded up."""
        halved = self.down(ground)
        x, results = halved, []
        for stage in self.stages:
            x = stage(x)
            results.append(x)
        fine, deep = results[0], results[-1]
        fused = self.fuse(torch.cat((_resize(deep, fine.shape[-2:]), fine), dim=1))
        return self.up(_resize(fused, halved.shape[-2:]))


def _resize(x: Tensor, size: Sequence[int]) -> Tensor:
    return functional.interpolate(x, size=list(size), mode="bilinear", align_corners=False)
