"""The usual transforms. As in the original most of them are modules, some are not."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import ImageFilter
from torch import nn

from . import functional
from .functional import InterpolationMode

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "GaussianBlur",
    "InterpolationMode",
    "Lambda",
    "Normalize",
    "Pad",
    "RandomApply",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "Resize",
    "ToPILImage",
    "ToTensor",
]


class Compose:
    """One after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """A picture as a tensor of 0..1."""

    def __call__(self, picture: Any) -> torch.Tensor:
        return functional.to_tensor(picture)


class ToPILImage:
    """A tensor as a picture."""

    def __init__(self, mode: str | None = None) -> None:
        self.mode = mode

    def __call__(self, picture: Any) -> Any:
        return functional.to_pil_image(picture)


class Lambda:
    """A function as a transform."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        self.lambd = lambd

    def __call__(self, picture: Any) -> Any:
        return self.lambd(picture)


class Normalize(nn.Module):
    """See `functional.normalize`."""

    def __init__(self, mean: Any, std: Any, inplace: bool = False) -> None:
        super().__init__()
        self.mean, self.std, self.inplace = mean, std, inplace

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return functional.normalize(tensor, self.mean, self.std, self.inplace)


class Resize(nn.Module):
    """See `functional.resize`."""

    def __init__(self, size: Any, interpolation: Any = InterpolationMode.BILINEAR) -> None:
        super().__init__()
        self.size, self.interpolation = size, interpolation

    def forward(self, picture: Any) -> Any:
        return functional.resize(picture, self.size, self.interpolation)


class Pad(nn.Module):
    """A border."""

    def __init__(self, padding: int, fill: int = 0) -> None:
        super().__init__()
        self.padding, self.fill = padding, fill

    def forward(self, picture: Any) -> Any:
        return functional.pad(picture, self.padding, self.fill)


class CenterCrop(nn.Module):
    """The middle."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.size = (size, size) if isinstance(size, int) else tuple(size)

    def forward(self, picture: Any) -> Any:
        width, height = picture.size
        rows, columns = self.size
        return functional.crop(picture, (height - rows) // 2, (width - columns) // 2, rows, columns)


class RandomCrop(nn.Module):
    """A rectangle somewhere, of the padded picture where asked for."""

    def __init__(self, size: Any, padding: int | None = None) -> None:
        super().__init__()
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.padding = padding

    def forward(self, picture: Any) -> Any:
        if self.padding:
            picture = functional.pad(picture, self.padding)
        width, height = picture.size
        top = int(torch.randint(0, height - self.size[0] + 1, (1,)))
        left = int(torch.randint(0, width - self.size[1] + 1, (1,)))
        return functional.crop(picture, top, left, *self.size)


class RandomResizedCrop(nn.Module):
    """A rectangle of some size somewhere, resized."""

    def __init__(self, size: Any, scale: tuple[float, float] = (0.08, 1.0)) -> None:
        super().__init__()
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.scale = scale

    def forward(self, picture: Any) -> Any:
        width, height = picture.size
        part = float(torch.empty(1).uniform_(*self.scale)) ** 0.5
        rows, columns = max(1, int(height * part)), max(1, int(width * part))
        top = int(torch.randint(0, height - rows + 1, (1,)))
        left = int(torch.randint(0, width - columns + 1, (1,)))
        return functional.resize(functional.crop(picture, top, left, rows, columns), self.size)


class RandomHorizontalFlip(nn.Module):
    """Mirrored, half of the time."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, picture: Any) -> Any:
        return functional.hflip(picture) if torch.rand(1) < self.p else picture


class RandomRotation(nn.Module):
    """Turned by some degrees."""

    def __init__(self, degrees: float) -> None:
        super().__init__()
        self.degrees = degrees

    def forward(self, picture: Any) -> Any:
        return picture.rotate(float(torch.empty(1).uniform_(-self.degrees, self.degrees)))


class RandomGrayscale(nn.Module):
    """Grey, now and then."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.p = p

    def forward(self, picture: Any) -> Any:
        return picture.convert("L").convert("RGB") if torch.rand(1) < self.p else picture


class ColorJitter(nn.Module):
    """Other colours."""

    def __init__(
        self,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        hue: float = 0.0,
    ) -> None:
        super().__init__()
        self.kinds = {"Brightness": brightness, "Contrast": contrast, "Color": saturation}
        self.hue = hue

    def forward(self, picture: Any) -> Any:
        for kind, most in self.kinds.items():
            picture = functional.adjust(
                picture, kind, 1 + float(torch.empty(1).uniform_(-1)) * most
            )
        return functional.adjust_hue(picture, random.uniform(-self.hue, self.hue))


class RandomApply(nn.Module):
    """All of them, or none."""

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        super().__init__()
        self.transforms, self.p = transforms, p

    def forward(self, picture: Any) -> Any:
        if torch.rand(1) >= self.p:
            return picture
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class GaussianBlur(nn.Module):
    """Blurred."""

    def __init__(self, kernel_size: Any, sigma: Any = (0.1, 2.0)) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, picture: Any) -> Any:
        return picture.filter(ImageFilter.GaussianBlur(np.mean(self.sigma)))
