"""Models without a single zero parameter, and clips to feed them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.workloads.deblur.model.vrt import VRT, VRTSettings


def random_vrt(settings: VRTSettings, *, seed: int = 0) -> VRT:
    """A model whose every weight, bias, bias table and offset convolution is non-zero.

    Offsets stay small enough that rounding does not grow from layer to layer.
    """
    torch.manual_seed(seed)
    model = VRT(**settings).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomise(name, parameter)
    return model


def _randomise(name: str, parameter: nn.Parameter) -> None:
    noise = torch.randn_like(parameter)
    if name.endswith("bias_table"):
        parameter.copy_(0.5 * noise)
    elif name.endswith("conv_offset.6.weight"):
        parameter.copy_(0.2 * noise * parameter[0].numel() ** -0.5)
    elif parameter.dim() == 1:
        parameter.add_(0.1 * noise)


def clip(batch: int, depth: int, height: int, width: int) -> Tensor:
    """Smooth random frames, (B, D, 3, H, W)."""
    generator = torch.Generator().manual_seed(1)
    small = torch.rand(batch * depth, 3, height // 4 + 1, width // 4 + 1, generator=generator)
    frames = functional.interpolate(small, (height, width), mode="bilinear", align_corners=True)
    return frames.unflatten(0, (batch, depth))


def relative_error(out: Tensor, expected: Tensor, x: Tensor) -> float:
    """Of what the model adds to its input."""
    return ((out - expected).norm() / (expected - x).norm()).item()
