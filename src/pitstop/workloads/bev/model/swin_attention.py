"""Attention of a Swin block with one projection instead of three, and windows in one operation.

Weights stay where transformers has them, under the same names: a checkpoint of either kind loads
into the other.
"""

from typing import Any

import torch
from torch import Tensor, nn

from pitstop.kernels import Kernels, windows


class JoinedAttention(nn.Module):
    """Takes over the layers of a `SwinAttention`, and gives what it gives.

    Args:
        attention: A `SwinAttention` of transformers; its layers become this module's.
        kernels: Which version of `pitstop.kernels.windows` to run.

    Raises:
        ConfigError: When that version cannot run here.
    """

    def __init__(self, attention: nn.Module, *, kernels: Kernels = "auto") -> None:
        super().__init__()
        taken: Any = attention
        assert not taken.attention_dropout, (
            "weights of attention that are dropped are not made here"
        )
        self.num_heads = int(taken.num_attention_heads)
        self.scale = float(taken.scaling)
        self.has_bias = taken.q_proj.bias is not None
        self.attend = windows.dispatch(kernels)
        # In the order of transformers: an optimizer numbers weights by it.
        self.q_proj: nn.Linear = taken.q_proj
        self.k_proj: nn.Linear = taken.k_proj
        self.v_proj: nn.Linear = taken.v_proj
        self.o_proj: nn.Linear = taken.o_proj
        self.relative_position_bias: nn.Module = taken.relative_position_bias

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,  # noqa: ARG002 - called by transformers
    ) -> tuple[Tensor, None]:
        """Attend inside windows.

        Args:
            hidden_states: (N, T, C) tokens of all windows of the batch.
            attention_mask: (windows of a picture, T, T), or None.
            kwargs: What a block hands on; nothing of it changes attention.

        Returns:
            (N, T, C), and no weights of attention: they are never kept.
        """
        projected = nn.functional.linear(hidden_states, *self._joined())
        qkv = projected.unflatten(-1, (3, self.num_heads, -1))
        bias = self.relative_position_bias().squeeze(0)
        out = self.attend(qkv, bias, attention_mask, scale=self.scale)
        return self.o_proj(out.flatten(-2)), None

    def _joined(self) -> tuple[Tensor, Tensor | None]:
        """Weights and biases of the three projections, one below the other."""
        query, key, value = self.q_proj, self.k_proj, self.v_proj
        weight = torch.cat((query.weight, key.weight, value.weight))
        if not self.has_bias:
            return weight, None
        return weight, torch.cat((query.bias, key.bias, value.bias))


def join_attention(backbone: nn.Module, *, kernels: Kernels = "auto") -> None:
    """Put a `JoinedAttention` in the place of every attention of a Swin.

    Raises:
        ConfigError: When that version of the kernels cannot run here.
    """
    for module in list(backbone.modules()):
        if type(module).__name__ == "SwinLayer":
            module.attention = JoinedAttention(module.get_submodule("attention"), kernels=kernels)
