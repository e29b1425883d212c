"""Features that have learned nothing, for a trained model to be held against.

Colour histograms say how far one comes with the colours of clothes alone; random features are
chance. Both are tokens of items, as a model's are, and are evaluated the same way.
"""

from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pitstop.workloads.reid.data.batch import ReidSample
from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES

STRIPES: Final = 6
_BITS: Final = 2
_COLOURS: Final = 1 << 3 * _BITS


class Items(Protocol):
    """Images and captions, each once; `EvalImages` is that."""

    @property
    def modalities(self) -> NDArray[np.int8]:
        """Place in `MODALITIES` of each."""
        ...

    def __len__(self) -> int:
        """Count them."""
        ...

    def sample(self, epoch: int, index: int) -> ReidSample:
        """Read one, as a record that has nothing else."""
        ...


def colour_histograms(images: NDArray[np.uint8], *, stripes: int = STRIPES) -> NDArray[np.float32]:
    """Count colours in horizontal stripes of images.

    Head, body and legs keep apart that way. Each channel has four levels, so a stripe has 64
    colours; entries are square roots of their shares, so the product of two histograms of one
    stripe is 1 for the same colours and 0 where they have none in common.

    Args:
        images: (N, 3, H, W).
        stripes: Of nearly equal height; at most H.

    Returns:
        (N, stripes * 64), rows of length one.
    """
    count, _, height, _ = images.shape
    assert 1 <= stripes <= height, "every stripe has a row of pixels"
    red, green, blue = (images >> (8 - _BITS)).astype(np.int64).transpose(1, 0, 2, 3)
    colours = (red << 2 * _BITS) | (green << _BITS) | blue
    stripe = np.arange(height) * stripes // height
    places = (np.arange(count)[:, None] * stripes + stripe)[:, :, None] * _COLOURS + colours
    counts = np.bincount(places.reshape(-1), minlength=count * stripes * _COLOURS)
    counts = counts.reshape(count, stripes, _COLOURS)
    shares = counts / counts.sum(axis=2, keepdims=True) / stripes
    return np.sqrt(shares).reshape(count, -1).astype(np.float32)


def histogram_tokens(items: Items) -> Tensor:
    """Give the histogram of every image (N, 384); captions have no colours, and get zeros.

    Raises:
        DataError: Where an image cannot be read.
    """
    tokens = torch.zeros(len(items), STRIPES * _COLOURS)
    for place, modality in enumerate(items.modalities.tolist()):
        if modality < len(IMAGE_MODALITIES):
            image = items.sample(0, place).images[modality]
            tokens[place] = torch.from_numpy(colour_histograms(image.numpy()[None])[0])
    return tokens


def random_tokens(items: int, *, width: int = STRIPES * _COLOURS, seed: int = 0) -> Tensor:
    """Draw a token for every item that has nothing to do with it (N, width)."""
    return torch.randn(items, width, generator=torch.Generator().manual_seed(seed))


def mean_of_present(tokens: Tensor, present: Tensor) -> Tensor:
    """Fuse tokens (n, 5, d) without learning: the mean of those that are there, bool (n, 5)."""
    share = present.to(tokens.dtype).unsqueeze(-1)
    return (tokens * share).sum(1) / share.sum(1)
