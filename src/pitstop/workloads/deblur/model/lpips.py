"""LPIPS: how different two images look, by features of a network and learned weights of them.

Higher is worse. It is measured only where both files are given: published numbers are of the
published weights.
"""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from pitstop.config.workloads.deblur import LpipsSection
from pitstop.errors import ConfigError
from pitstop.workloads.deblur.model.features import Colours, Features, load_features
from pitstop.workloads.deblur.model.vrt import read_checkpoint

_LAYERS: Final = {
    "alexnet": ("relu1", "relu2", "relu3", "relu4", "relu5"),
    "vgg16": ("relu1_2", "relu2_2", "relu3_3", "relu4_3", "relu5_3"),
    "squeezenet": ("relu1", "fire3", "fire5", "fire6", "fire7", "fire8", "fire9"),
}
# Given for colours from -1 to 1, 2 c - 1: (2 c - 1 - shift) / scale.
_SHIFT: Final = (-0.030, -0.088, -0.188)
_SCALE: Final = (0.458, 0.448, 0.450)
_EPS: Final = 1e-10


class Lpips(nn.Module):
    """The metric."""

    def __init__(self, features: Features, weights: list[Tensor]) -> None:
        super().__init__()
        self.features = features
        self.colours = Colours(
            [(1 + shift) / 2 for shift in _SHIFT], [scale / 2 for scale in _SCALE]
        )
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)

    def forward(self, image: Tensor, reference: Tensor) -> Tensor:
        """Compare (N, 3, H, W) colours in [0, 1]; (N,)."""
        self.to(image.device)
        found, wanted = (self._directions(images) for images in (image, reference))
        apart = [
            ((one - other).square() * weight.view(1, -1, 1, 1)).sum(dim=1).mean(dim=(1, 2))
            for one, other, weight in zip(found, wanted, self.weights, strict=True)
        ]
        return torch.stack(apart).sum(dim=0)

    def _directions(self, images: Tensor) -> list[Tensor]:
        """Features of each layer, of length 1 at every place."""
        layers = self.features(self.colours(images)).values()
        return [layer / (layer.square().sum(dim=1, keepdim=True).sqrt() + _EPS) for layer in layers]


def build_lpips(section: LpipsSection) -> Lpips | None:
    """Make the metric; None where its weights are not given.

    Raises:
        ConfigError: Where a file is not there or is something else.
    """
    if section.weights is None:
        return None
    assert section.backbone is not None, "the configuration gives both"
    features = Features(section.network, _LAYERS[section.network])
    load_features(features, section.backbone, normalisation="imagenet")
    widths = [layer.shape[1] for layer in features(torch.zeros(1, 3, 64, 64)).values()]
    return Lpips(features, _read_weights(section.weights, widths))


def _read_weights(path: Path, widths: list[int]) -> list[Tensor]:
    saved = read_checkpoint(path).tensors
    weights = []
    for place, width in enumerate(widths):
        value = saved.get(f"lin{place}.model.1.weight")
        if value is None or value.numel() != width:
            raise ConfigError(
                f"data.lpips.weights names {path}, which has no lin{place}.model.1.weight of "
                f"{width} numbers; give the file that belongs to data.lpips.network"
            )
        weights.append(value.float().flatten())
    return weights
