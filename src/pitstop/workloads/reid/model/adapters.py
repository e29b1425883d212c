"""Linear maps that all modalities share, with a low-rank change of its own for each.

A change is added to the weight before the product, not to its outcome. With some thousands of
tokens a modality that is far less to read and write, and all modalities are one batched product:
the trunk is passed once, not once for each.
"""

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

_ALPHA: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """How many modalities have a change of their own, and of what rank; 0 for none."""

    modalities: int = 0
    rank: int = 0

    @property
    def adapts(self) -> bool:
        """Whether there is any change at all."""
        return self.modalities > 0 and self.rank > 0


class AdaptedLinear(nn.Module):
    """A linear map W, and W + up x down / rank for each modality.

    Args:
        width_in: Length of what comes in.
        width_out: Length of what goes out.
        adapters: The changes; they begin at zero.
        parts: Maps stacked into one, such as queries, keys and values; each has a change.
        std: Spread of the first weights.
    """

    def __init__(
        self, width_in: int, width_out: int, *, adapters: AdapterShape, std: float, parts: int = 1
    ) -> None:
        super().__init__()
        self.parts = parts
        self.adapters = adapters
        self.weight = nn.Parameter(torch.empty(width_out, width_in))
        self.bias = nn.Parameter(torch.zeros(width_out))
        nn.init.normal_(self.weight, std=std)
        if adapters.adapts:
            stacked = (adapters.modalities, parts)
            self.adapter_down = nn.Parameter(torch.empty(*stacked, adapters.rank, width_in))
            self.adapter_up = nn.Parameter(torch.zeros(*stacked, width_out // parts, adapters.rank))
            nn.init.normal_(self.adapter_down, std=width_in**-0.5)

    def forward(self, x: Tensor, modality: int | None = None) -> Tensor:
        """Map tokens of modalities side by side, or of one.

        Args:
            x: (G, N, in), G being the number of modalities, or 1.
            modality: Which one it is where G is 1; None for all of them in their order.
        """
        if not self.adapters.adapts:
            return functional.linear(x, self.weight, self.bias)
        weights = self.adapted_weights(modality).to(x.dtype)
        # Not one call with the bias: it would be written out for every token first, where the
        # compiler adds it on the way to whatever comes next.
        product = torch.bmm(x, weights.transpose(1, 2))
        return product + self.bias.to(product.dtype)

    def adapted_weights(self, modality: int | None = None) -> Tensor:
        """Give the weights of all modalities, or of one: (G, out, in), in full precision."""
        down, up = self._changes(modality)
        return self.weight + (_ALPHA / self.adapters.rank) * _product(up, down).flatten(1, 2)

    def by_itself(self, x: Tensor, modality: int, part: int = 0) -> Tensor:
        """Map tokens of one modality the textbook way: the map, and the change beside it.

        Args:
            x: (..., in).
            modality: Whose tokens they are.
            part: Which of the stacked maps.
        """
        rows = slice(part * self._rows, (part + 1) * self._rows)
        mapped = functional.linear(x, self.weight[rows], self.bias[rows])
        if not self.adapters.adapts:
            return mapped
        changed = functional.linear(x, self.adapter_down[modality, part])
        changed = functional.linear(changed, self.adapter_up[modality, part])
        return mapped + (_ALPHA / self.adapters.rank) * changed

    @property
    def _rows(self) -> int:
        return self.weight.shape[0] // self.parts

    def _changes(self, modality: int | None) -> tuple[Tensor, Tensor]:
        if modality is None:
            return self.adapter_down, self.adapter_up
        own = slice(modality, modality + 1)
        return self.adapter_down[own], self.adapter_up[own]


def _product(up: Tensor, down: Tensor) -> Tensor:
    """Multiply (..., out, r) with (..., r, in), in full precision whatever autocast says."""
    if torch.compiler.is_compiling():
        # A handful of outer products: the compiler joins them with the addition and the rounding
        # that follow, where a matrix product would write and read its outcome.
        ranks = range(down.shape[-2])
        return reduce(add, (up[..., :, i, None] * down[..., i, None, :] for i in ranks))
    with torch.autocast(up.device.type, enabled=False):
        return up @ down
