"""From features of the ground to a logit for each class and cell."""

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.errors import ConfigError
from pitstop.workloads.bev.model.encoder import ConvNormReLU, Layers
from pitstop.workloads.bev.model.geometry import Bound, num_steps
from pitstop.workloads.bev.model.norms import NORM_GROUPS, HalfwayNorm, NormKind

EXPANSION: Final = 4
BLOCKS: Final = 4


class Bottleneck(nn.Module):
    """Narrow, convolve, widen by `EXPANSION`, and add what came in; or do it at twice the size.

    With ``upsample`` the middle convolution and the shortcut are transposed ones of stride 2.
    """

    def __init__(self, in_channels: int, width: int, *, upsample: bool = False) -> None:
        super().__init__()
        out_channels = EXPANSION * width
        middle: nn.Module = nn.Conv2d(width, width, 3, padding=1, bias=False)
        shortcut: nn.Module = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        if upsample:
            middle = nn.ConvTranspose2d(width, width, 4, 2, padding=1, bias=False)
            shortcut = nn.ConvTranspose2d(in_channels, out_channels, 2, 2, bias=False)
        self.body = Layers(
            nn.Conv2d(in_channels, width, 1, bias=False),
            _norm(width),
            nn.ReLU(),
            middle,
            _norm(width),
            nn.ReLU(),
            nn.Conv2d(width, out_channels, 1, bias=False),
            _norm(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if upsample or in_channels != out_channels:
            self.shortcut = Layers(shortcut, _norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) -> (N, 4 * width, H, W), or twice the height and width."""
        return functional.relu(self.body(x) + self.shortcut(x))


class TopdownHead(nn.Module):
    """The one-camera head: bottlenecks on the grid, then half as wide at twice its resolution."""

    def __init__(
        self, in_channels: int, classes: int, *, width: int = 128, priors: Sequence[float] = ()
    ) -> None:
        super().__init__()
        wide, narrow = EXPANSION * width, width // 2
        coarse = [Bottleneck(in_channels if i == 0 else wide, width) for i in range(BLOCKS)]
        fine = [
            Bottleneck(wide if i == 0 else EXPANSION * narrow, narrow, upsample=i == 0)
            for i in range(BLOCKS)
        ]
        self.blocks = Layers(*coarse, *fine)
        self.classifier = nn.Conv2d(EXPANSION * narrow, classes, 1)
        start_from_priors(self.classifier, priors)

    def forward(self, ground: Tensor) -> Tensor:
        """(B, C, rows, columns) -> (B, classes, 2 * rows, 2 * columns)."""
        return self.classifier(self.blocks(ground))


class GridResample(nn.Module):
    """Reads one grid of the ground at the cell centres of another; zero outside the first."""

    places: Tensor

    def __init__(self, *, source: tuple[Bound, Bound], target: tuple[Bound, Bound]) -> None:
        super().__init__()
        rows, columns = (_places(outer, inner) for outer, inner in zip(source, target, strict=True))
        grid = torch.stack(torch.broadcast_tensors(columns[None, :], rows[:, None]), dim=-1)
        self.register_buffer("places", grid, persistent=False)

    def forward(self, ground: Tensor) -> Tensor:
        """(B, C, rows, columns) of the source -> (B, C, rows, columns) of the target."""
        places = self.places.to(ground.dtype) if ground.dtype == torch.float64 else self.places
        # Places need all bits of float32: half precision would move cells by a tenth of one.
        wide = ground.to(places.dtype)
        grid = places.expand(ground.shape[0], -1, -1, -1)
        read = functional.grid_sample(wide, grid, mode="bilinear", align_corners=False)
        return read.to(ground.dtype)


class MapHead(nn.Module):
    """The six-camera head: the ground at the resolution of the targets, then a classifier each.

    Args:
        in_channels: Of the encoder's result.
        heads: Classes of each classifier, such as (6,) for the map or (6, 1) with vehicles.
        source: Forward and across bounds of the grid that comes in.
        target: Those of the logits.
        priors: Frequency of every class; none for no opinion.
        norm: Over batches or over groups of channels.
    """

    def __init__(
        self,
        in_channels: int,
        heads: Sequence[int],
        *,
        source: tuple[Bound, Bound],
        target: tuple[Bound, Bound],
        priors: Sequence[float] = (),
        norm: NormKind = "batch",
    ) -> None:
        super().__init__()
        self.resample = GridResample(source=source, target=target)
        self.classifiers = nn.ModuleList(
            Layers(
                ConvNormReLU(in_channels, in_channels, norm=norm),
                ConvNormReLU(in_channels, in_channels, norm=norm),
                nn.Conv2d(in_channels, classes, 1),
            )
            for classes in heads
        )
        if priors and len(priors) != sum(heads):
            raise ConfigError(f"{len(priors)} class frequencies for {sum(heads)} classes")
        start = 0
        for classifier, classes in zip(self.classifiers, heads, strict=True):
            last = classifier[-1]  # pyright: ignore[reportIndexIssue]
            start_from_priors(last, priors[start : start + classes])
            start += classes

    def forward(self, ground: Tensor) -> Tensor:
        """(B, C, rows, columns) -> (B, classes of all heads, rows, columns of the target)."""
        resampled = self.resample(ground)
        return torch.cat([classifier(resampled) for classifier in self.classifiers], dim=1)


def start_from_priors(classifier: nn.Conv2d, priors: Sequence[float]) -> None:
    """Let a classifier start by answering with the frequency of each class.

    Raises:
        ConfigError: When there are not as many frequencies as classes, or one is not in (0, 1).
    """
    if not priors:
        return
    bias = classifier.bias
    assert bias is not None
    if len(priors) != bias.numel():
        raise ConfigError(f"{len(priors)} class frequencies for {bias.numel()} classes")
    if not all(0 < prior < 1 for prior in priors):
        raise ConfigError(f"class frequencies must lie between 0 and 1: {list(priors)}")
    with torch.no_grad():
        bias.copy_(torch.tensor([math.log(prior / (1 - prior)) for prior in priors]))


def _norm(channels: int) -> nn.Module:
    if channels % NORM_GROUPS:
        raise ConfigError(
            f"{channels} channels do not fall into {NORM_GROUPS} groups; widen the head"
        )
    return HalfwayNorm(NORM_GROUPS, channels)


def _places(source: Bound, target: Bound) -> Tensor:
    """Centres of the target's cells where the source's edges are -1 and 1."""
    start, stop, _ = source
    first, _, step = target
    centres = first + step * (torch.arange(num_steps(target), dtype=torch.float64) + 0.5)
    return ((centres - start) / (stop - start) * 2 - 1).float()
