"""One feature of however many modalities there are, and the neck that classifies it."""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

_MLP_RATIO: Final = 2
_FEATURE_NORM: Final = 8.0
_CLASSIFIER_STD: Final = 0.001


class Fusion(nn.Module):
    """Lets the modalities of a record ask each other, and takes their mean.

    Modalities that are missing are neither asked nor counted. A null token of their own holds
    their place; it is heard only where a record has nothing else.
    """

    def __init__(self, embed_dim: int, *, heads: int, modalities: int) -> None:
        super().__init__()
        self.heads = heads
        self.null_tokens = nn.Parameter(torch.randn(modalities, embed_dim) * embed_dim**-0.5)
        self.norm_1 = nn.LayerNorm(embed_dim)
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.norm_2 = nn.LayerNorm(embed_dim)
        self.widen = nn.Linear(embed_dim, _MLP_RATIO * embed_dim)
        self.narrow = nn.Linear(_MLP_RATIO * embed_dim, embed_dim)

    def forward(self, tokens: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Join the modalities of records, and describe each by itself as well.

        Args:
            tokens: (M, B, d), one for each modality; what stands at a missing one does not matter.
            present: bool (B, M).

        Returns:
            Features of records (B, d), and of each modality as if it were all there is (M, B, d).
        """
        together = self.join(tokens.transpose(0, 1), present)
        one = tokens.reshape(-1, 1, tokens.shape[-1])
        heard = torch.ones(one.shape[:2], dtype=torch.bool, device=tokens.device)
        return together, self._join(one, heard).view(tokens.shape)

    def join(self, tokens: Tensor, present: Tensor) -> Tensor:
        """Join tokens (N, M, d) of which some are present, bool (N, M): features (N, d)."""
        x = torch.where(present.unsqueeze(-1), tokens, self.null_tokens.to(tokens.dtype))
        heard = present | ~present.any(dim=1, keepdim=True)
        return self._join(x, heard)

    def _join(self, x: Tensor, heard: Tensor) -> Tensor:
        x = x + self.out(self._attend(self.norm_1(x), heard))
        x = x + self.narrow(functional.gelu(self.widen(self.norm_2(x))))
        share = heard.to(x.dtype).unsqueeze(-1)
        return (x * share).sum(dim=1) / share.sum(dim=1)

    def _attend(self, x: Tensor, heard: Tensor) -> Tensor:
        count, length, width = x.shape
        parts = self.qkv(x).view(count, length, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        mask = heard.view(count, 1, 1, length)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return mixed.transpose(1, 2).reshape(count, length, width)


class Neck(nn.Module):
    """Who it is: features normalised over the batch, brought to one length, and classified."""

    def __init__(self, embed_dim: int, *, people: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(embed_dim)
        # Classes must not drift away from the origin that cosine similarity measures from.
        self.norm.bias.requires_grad = False
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(embed_dim, people, bias=False)
        nn.init.normal_(self.classifier.weight, std=_CLASSIFIER_STD)

    def forward(self, features: Tensor) -> Tensor:
        """(B, d) -> (B, people), in full precision."""
        with torch.autocast(features.device.type, enabled=False):
            normed = functional.normalize(self.norm(features.float())) * _FEATURE_NORM
            return self.classifier(self.dropout(normed))
