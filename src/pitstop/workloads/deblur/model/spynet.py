"""SpyNet: optical flow by correcting a coarse guess at ever finer scales."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.kernels import Kernels, flow_warp
from pitstop.kernels.pairs import Pairs
from pitstop.workloads.deblur.model.alignment import compute_type
from pitstop.workloads.deblur.model.casts import autocast_together

NUM_LEVELS = 6
NUM_SCALES = 4
IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_STD = (0.229, 0.224, 0.225)


class FlowCorrection(nn.Module):
    """Five 7x7 convolutions that see both images and the guess, and give the guess's error."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for in_channels, out_channels in pairwise((8, *channels, 2)):
            layers += [nn.Conv2d(in_channels, out_channels, 7, padding=3), nn.ReLU()]
        self.basic_module = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor, operands: Sequence[Tensor]) -> Tensor:
        """(N, 8, h, w) -> (N, 2, h, w).

        Args:
            x: Both images and the guess.
            operands: The parameters, in their order, in the type that convolutions take.
        """
        for place in range(0, len(operands), 2):
            weight, bias = operands[place : place + 2]
            x = functional.relu(x) if place else x
            x = functional.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)
        return x


class SpyNet(nn.Module):
    """Flow from the current frame of each pair to its neighbour.

    Args:
        channels: Widths between the five convolutions of a level; the published ones are
            (32, 64, 32, 16).
        kernels: Which version of the warp to run.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: Sequence[int], *, kernels: Kernels = "auto") -> None:
        super().__init__()
        self.kernels: Kernels = kernels
        self.basic_module = nn.ModuleList(FlowCorrection(channels) for _ in range(NUM_LEVELS))
        self.register_buffer("mean", torch.tensor(IMAGE_MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(IMAGE_STD).view(1, 3, 1, 1))

    def forward(self, frames: Tensor, pairs: Pairs) -> tuple[Tensor, ...]:
        """Estimate the flow at full, half, quarter and eighth size.

        Args:
            frames: (M, 3, H, W) in [0, 1].
            pairs: P pairs of them.

        Returns:
            Four tensors (P, 2, H // s, W // s) for s = 1, 2, 4, 8, in pixels of their own scale.
        """
        height, width = frames.shape[-2:]
        wide = (height + -height % 32, width + -width % 32)
        flows = self._coarse_to_fine(self._pyramid(_resize(frames, wide)), pairs)
        return tuple(
            _rescale(flow, (height // 2**scale, width // 2**scale))
            for scale, flow in enumerate(reversed(flows[-NUM_SCALES:]))
        )

    def _pyramid(self, image: Tensor) -> list[Tensor]:
        """Halve the normalised image five times; coarsest first."""
        levels = [(image - self.mean) / self.std]
        for _ in range(NUM_LEVELS - 1):
            levels.append(functional.avg_pool2d(levels[-1], 2))
        return levels[::-1]

    def _coarse_to_fine(self, frames: list[Tensor], pairs: Pairs) -> list[Tensor]:
        join = flow_warp.dispatch(self.kernels).join
        dtype = compute_type(frames[0].device, frames[0].dtype)
        guess = frames[0].new_zeros(pairs.current.shape[0], 2, *frames[0].shape[-2:])
        flows: list[Tensor] = []
        each = [[parameter] for parameter in self.basic_module.parameters()]
        operands = autocast_together(self.kernels, frames[0], each)
        a_level = len(operands) // NUM_LEVELS
        for level, correction in enumerate(self.basic_module):
            guess = 2 * _double(flows[-1]) if flows else guess
            seen = join(frames[level], guess, pairs, first="current", padding="border", dtype=dtype)
            flows.append(correction(seen, operands[level * a_level :][:a_level]) + guess)
        return flows


def _double(flow: Tensor) -> Tensor:
    return functional.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True)


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    if image.shape[-2:] == size:
        return image
    return functional.interpolate(image, size=size, mode="bilinear", align_corners=False)


def _rescale(flow: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a flow, and its steps with it."""
    if flow.shape[-2:] == size:
        return flow
    x, y = _resize(flow, size).unbind(1)
    return torch.stack((x * (size[1] / flow.shape[-1]), y * (size[0] / flow.shape[-2])), dim=1)
