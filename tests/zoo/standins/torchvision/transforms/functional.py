"""Operations on one picture: PIL pictures or tensors of channels, rows, columns."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance


class InterpolationMode(Enum):
    """How a picture is resized."""

    NEAREST = 0
    BILINEAR = 2
    BICUBIC = 3


def to_tensor(picture: Any) -> torch.Tensor:
    """Scale a picture to 0..1."""
    array = np.asarray(picture)
    if array.ndim == 2:
        array = array[:, :, None]
    tensor = torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
    return tensor.float().div(255) if tensor.dtype == torch.uint8 else tensor


def to_pil_image(tensor: Any) -> Image.Image:
    """Turn a tensor of 0..1 into a picture."""
    array = tensor.numpy() if isinstance(tensor, torch.Tensor) else tensor
    if isinstance(tensor, torch.Tensor):
        array = (array.transpose(1, 2, 0) * 255).clip(0, 255).astype(np.uint8)
    return Image.fromarray(array.squeeze())


def normalize(
    tensor: torch.Tensor, mean: Sequence[float], std: Any, inplace: bool = False
) -> torch.Tensor:
    """Subtract the mean and divide by the deviation of each channel."""
    centre = torch.as_tensor(mean, dtype=tensor.dtype).view(-1, 1, 1)
    spread = torch.as_tensor(std, dtype=tensor.dtype).view(-1, 1, 1)
    return tensor.sub_(centre).div_(spread) if inplace else (tensor - centre) / spread


def resize(picture: Any, size: Any, interpolation: Any = InterpolationMode.BILINEAR) -> Any:
    """Resize to a height and a width, or the shorter side to a number."""
    how = interpolation.value if isinstance(interpolation, InterpolationMode) else interpolation
    if isinstance(size, int):
        width, height = picture.size
        scale = size / min(width, height)
        size = (round(height * scale), round(width * scale))
    return picture.resize((size[1], size[0]), how)


def crop(picture: Any, top: int, left: int, height: int, width: int) -> Any:
    """Cut a rectangle out."""
    if isinstance(picture, torch.Tensor):
        return picture[..., top : top + height, left : left + width]
    return picture.crop((left, top, left + width, top + height))


def pad(picture: Any, padding: int, fill: int = 0) -> Any:
    """Put a border around a picture."""
    array = np.asarray(picture)
    around = ((padding, padding), (padding, padding)) + ((0, 0),) * (array.ndim - 2)
    return Image.fromarray(np.pad(array, around, constant_values=fill))


def hflip(picture: Any) -> Any:
    """Mirror a picture."""
    if isinstance(picture, torch.Tensor):
        return picture.flip(-1)
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def adjust(picture: Any, kind: str, factor: float) -> Any:
    """Change brightness, contrast or colour."""
    enhancer: Any = getattr(ImageEnhance, kind)
    return enhancer(picture).enhance(factor)


def adjust_brightness(picture: Any, factor: float) -> Any:
    """Brighter or darker."""
    return adjust(picture, "Brightness", factor)


def adjust_contrast(picture: Any, factor: float) -> Any:
    """More or less contrast."""
    return adjust(picture, "Contrast", factor)


def adjust_saturation(picture: Any, factor: float) -> Any:
    """More or less colour."""
    return adjust(picture, "Color", factor)


def adjust_hue(picture: Any, factor: float) -> Any:
    """Turn the hue by a part of the circle."""
    bands = np.array(picture.convert("HSV"))
    bands[..., 0] = (bands[..., 0].astype(int) + int(factor * 255)) % 256
    return Image.fromarray(bands, "HSV").convert(picture.mode)
