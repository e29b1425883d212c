"""Channels-last: weights and pictures laid out with all channels of a pixel together."""

from dataclasses import dataclass

import torch
from torch import nn

from pitstop.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsLastFacts:
    """What was laid out anew."""

    num_weights: int
    """Convolution weights for which the layout makes a difference."""


def use_channels_last(model: nn.Module) -> ChannelsLastFacts:
    """Lay out the weights of two-dimensional convolutions anew, in place; values do not change.

    Inputs should come in the same layout (`x.contiguous(memory_format=torch.channels_last)`);
    convolutions then hand it on.

    Raises:
        ConfigError: When the model has no weight that this would change.
    """
    changed = 0
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            weight = module.weight
            before = weight.stride()
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
            changed += before != weight.stride()
    if not changed:
        raise ConfigError(
            f"channels-last has no effect: {type(model).__name__} has no two-dimensional "
            "convolution whose weights it would change"
        )
    return ChannelsLastFacts(num_weights=changed)
