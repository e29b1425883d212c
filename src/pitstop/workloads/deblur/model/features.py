"""Networks that were trained to tell objects apart, as far as their features are compared.

Layers stand where torchvision has them, so that a file of its weights fits: `features.0.weight`
and so on. Only the layers up to the deepest one that is asked for are built.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor, nn

from pitstop.config.workloads.deblur import FEATURE_LAYERS
from pitstop.errors import ConfigError
from pitstop.workloads.deblur.model.vrt import read_checkpoint

Network: TypeAlias = Literal["vgg16", "vgg19", "alexnet", "squeezenet"]
Normalisation: TypeAlias = Literal["imagenet", "caffe"]

_VGG_WIDTHS: Final = (64, 128, 256, 512, 512)
_VGG_SIZES: Final = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}

_MEANS: Final = {"imagenet": (0.485, 0.456, 0.406), "caffe": (0.48235, 0.45882, 0.40784)}
_DEVIATIONS: Final = {"imagenet": (0.229, 0.224, 0.225), "caffe": (1 / 255,) * 3}


class Fire(nn.Module):
    """SqueezeNet's block: few channels, then many by two convolutions side by side."""

    def __init__(self, in_channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(in_channels, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, h, w) -> (N, 2 * expanded, h, w)."""
        x = self.squeeze(x).relu()
        return torch.cat((self.expand1x1(x).relu(), self.expand3x3(x).relu()), dim=1)


class Features(nn.Module):
    """Gives the outputs of chosen layers; frozen.

    Raises:
        ConfigError: When the network has no such layer.
    """

    def __init__(self, network: Network, layers: Sequence[str]) -> None:
        super().__init__()
        names = FEATURE_LAYERS[network]
        unknown = [name for name in layers if name not in names]
        if unknown:
            raise ConfigError(f"{network} has no layer {unknown[0]}; it has {', '.join(names)}")
        blocks, places = _BUILDERS[network](network)
        self.network = network
        self.taps = {places[names.index(name)]: name for name in layers}
        self.features = nn.Sequential(*blocks[: max(self.taps) + 1])
        self.requires_grad_(requires_grad=False)
        self.eval()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """(N, 3, H, W), normalised -> each layer's (N, C, h, w) by its name."""
        found = {}
        for place, layer in enumerate(self.features):
            images = layer(images)
            if place in self.taps:
                found[self.taps[place]] = images
        return found

    def train(self, mode: bool = True) -> "Features":  # noqa: ARG002, FBT001, FBT002 - torch's
        """Stay as it is: nothing here is trained."""
        return super().train(mode=False)


class Colours(nn.Module):
    """Brings colours in [0, 1] to what a network's weights expect.

    The constants are buffers: made anew in each pass, they would stop the host until the device
    has them.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer(
            "deviation", torch.tensor(deviation).view(1, 3, 1, 1), persistent=False
        )

    @classmethod
    def of(cls, kind: Normalisation) -> "Colours":
        """Make the one that a kind of weights needs."""
        return cls(_MEANS[kind], _DEVIATIONS[kind])

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> same."""
        return (images - self.mean) / self.deviation


def load_features(features: Features, path: Path, *, normalisation: Normalisation) -> None:
    """Load the weights of a network by torchvision's names; what is deeper is left out.

    Raises:
        ConfigError: When the file is not there, is another network's, or was trained for colours
            of another scale.
    """
    saved = read_checkpoint(path).tensors
    own = features.state_dict()
    missing = [name for name in own if name not in saved]
    wrong = [name for name in own if name in saved and own[name].shape != saved[name].shape]
    if missing or wrong:
        what = f"no {missing[0]}" if missing else f"another shape of {wrong[0]}"
        raise ConfigError(
            f"{path} is no file of {features.network}'s weights: it has {what}; save them with "
            f"torch.save(model.state_dict(), ...) from torchvision's {features.network}"
        )
    rest = [value for name, value in saved.items() if name.startswith("classifier")]
    # Features-only weights have a head of NaN, so that nobody takes them for a classifier.
    headless = bool(rest) and all(bool(value.isnan().all()) for value in rest)
    if headless and normalisation != "caffe":
        raise ConfigError(
            f"{path} holds features-only weights, which expect colours over 255 levels: the usual "
            "deviation would make them 57 times too small; set loss.perceptual.normalisation to "
            "caffe"
        )
    features.load_state_dict({name: saved[name] for name in own})


def _vgg(network: str) -> tuple[list[nn.Module], list[int]]:
    blocks: list[nn.Module] = []
    places = []
    channels = 3
    for width, size in zip(_VGG_WIDTHS, _VGG_SIZES[network], strict=True):
        for _ in range(size):
            blocks += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            places.append(len(blocks) - 1)
            channels = width
        blocks.append(nn.MaxPool2d(2, 2))
    return blocks, places


def _alexnet(_network: str) -> tuple[list[nn.Module], list[int]]:
    blocks = [
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    ]
    return blocks, [place for place, block in enumerate(blocks) if isinstance(block, nn.ReLU)]


def _squeezenet(_network: str) -> tuple[list[nn.Module], list[int]]:
    """Version 1.1."""
    pool = (2, 5, 8)
    fires = iter(
        (
            Fire(64, 16, 64),
            Fire(128, 16, 64),
            Fire(128, 32, 128),
            Fire(256, 32, 128),
            Fire(256, 48, 192),
            Fire(384, 48, 192),
            Fire(384, 64, 256),
            Fire(512, 64, 256),
        )
    )
    blocks: list[nn.Module] = [nn.Conv2d(3, 64, 3, stride=2), nn.ReLU()]
    while len(blocks) < 13:
        is_pool = len(blocks) in pool
        blocks.append(nn.MaxPool2d(3, 2, ceil_mode=True) if is_pool else next(fires))
    return blocks, [1, *(place for place in range(2, 13) if place not in pool)]


_BUILDERS: Final = {
    "vgg16": _vgg,
    "vgg19": _vgg,
    "alexnet": _alexnet,
    "squeezenet": _squeezenet,
}
