"""The two towers of CLIP: images of all modalities in one pass, and captions.

Blocks compute what CLIP's do and take their weights. Queries, keys and values are one product,
attention is torch's fused one. `kernels: reference` does the same the textbook way: one modality
after the other, every product by itself, attention written out.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.errors import CheckpointError
from pitstop.train.model.recompute import RecomputeCall, plain_call
from pitstop.workloads.reid.data.modalities import CP, IMAGE_MODALITIES, NIR, RGB, SK
from pitstop.workloads.reid.model.adapters import AdaptedLinear, AdapterShape

Kernels = Literal["auto", "reference", "fused"]

CHANNELS: Final = {RGB: 3, NIR: 1, CP: 3, SK: 1}
"""Channels that a patch embedding reads; of a grey image all three are alike."""

# What CLIP's weights expect.
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION: Final = (0.26862954, 0.26130258, 0.27577711)
_EPS: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerShape:
    """Sizes of a stack of blocks."""

    width: int
    layers: int
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneShape:
    """Sizes of the two towers."""

    image: TowerShape
    patch: int
    text: TowerShape


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionShape:
    """What the text tower must know of the tokenizer."""

    vocabulary: int
    length: int
    """Longest caption in tokens."""
    end_token: int
    words_sum: int = 0
    """Tells vocabularies of one size apart; 0 where nobody knows."""


def _shape(patch: int, image: tuple[int, int, int], text: tuple[int, int, int]) -> BackboneShape:
    sizes = [TowerShape(width=w, layers=n, heads=h) for w, n, h in (image, text)]
    return BackboneShape(image=sizes[0], patch=patch, text=sizes[1])


BACKBONES: Final = {
    "vit_b_16": _shape(16, (768, 12, 12), (512, 12, 8)),
    "vit_b_32": _shape(32, (768, 12, 12), (512, 12, 8)),
    "vit_l_14": _shape(14, (1024, 24, 16), (768, 12, 12)),
    "vit_s_16": _shape(16, (384, 12, 6), (256, 6, 4)),
    "vit_ti_8": _shape(8, (192, 6, 3), (128, 3, 2)),
    "tiny": _shape(8, (64, 2, 2), (64, 2, 2)),
}
"""By `model.backbone`; the first three are CLIP's own."""


class Block(nn.Module):
    """One layer: attention, then a feed-forward part, each added to what came in."""

    def __init__(
        self, shape: TowerShape, *, adapters: AdapterShape, causal: bool, kernels: Kernels
    ) -> None:
        super().__init__()
        width = shape.width
        # CLIP's own spreads: what is added up over all layers begins small.
        added_std = width**-0.5 * (2 * shape.layers) ** -0.5
        self.heads = shape.heads
        self.causal = causal
        self.kernels = kernels
        self.norm_1 = nn.LayerNorm(width, eps=_EPS)
        self.qkv = AdaptedLinear(width, 3 * width, adapters=adapters, std=added_std, parts=3)
        self.out = AdaptedLinear(width, width, adapters=adapters, std=width**-0.5)
        self.norm_2 = nn.LayerNorm(width, eps=_EPS)
        self.widen = AdaptedLinear(width, 4 * width, adapters=adapters, std=(2 * width) ** -0.5)
        self.narrow = AdaptedLinear(4 * width, width, adapters=adapters, std=added_std)
        self.recompute_attention: RecomputeCall = plain_call
        self.recompute_feed_forward: RecomputeCall = plain_call

    def forward(self, x: Tensor, modality: int | None = None) -> Tensor:
        """Pass tokens on.

        Args:
            x: (G, N, L, width): N sequences of each of G modalities.
            modality: Which one it is where G is 1; None for all.
        """
        x = x + self.recompute_attention(self.attention_part, x, modality)
        return x + self.recompute_feed_forward(self.feed_forward_part, x, modality)

    def attention_part(self, x: Tensor, modality: int | None) -> Tensor:
        """Let tokens of a sequence ask each other."""
        groups, count, length, width = x.shape
        normed = self.norm_1(x).flatten(1, 2)
        if self.kernels == "reference":
            assert groups == 1
            parts = [self.qkv.by_itself(normed, modality or 0, part) for part in range(3)]
        else:
            parts = list(self.qkv(normed, modality).unflatten(-1, (3, width)).unbind(-2))
        shape = (groups * count, length, self.heads, width // self.heads)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in parts)
        mixed = self._attend(q, k, v).transpose(1, 2).reshape(groups, count * length, width)
        return self._map(self.out, mixed, modality).view(x.shape)

    def feed_forward_part(self, x: Tensor, modality: int | None) -> Tensor:
        """Think about each token by itself."""
        wide = self._map(self.widen, self.norm_2(x).flatten(1, 2), modality)
        # CLIP's own approximation of GELU.
        wide = wide * torch.sigmoid(1.702 * wide)
        return self._map(self.narrow, wide, modality).view(x.shape)

    def _map(self, linear: AdaptedLinear, x: Tensor, modality: int | None) -> Tensor:
        if self.kernels == "reference":
            return linear.by_itself(x, modality or 0)
        return linear(x, modality)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.kernels != "reference":
            return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if self.causal:
            length = q.shape[-2]
            later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return scores.softmax(dim=-1) @ v


class TextBlock(Block):
    """The same for captions, with a forward pass of its own.

    The compiler keeps what it made by the function it made it of. Sharing one, the towers would
    find each other's sizes and have them compiled as variables.
    """

    def forward(self, x: Tensor, modality: int | None = None) -> Tensor:
        """As `Block.forward`."""
        x = x + self.recompute_attention(self.attention_part, x, modality)
        return x + self.recompute_feed_forward(self.feed_forward_part, x, modality)


class PatchTokens(nn.Module):
    """Cuts images into patches and makes tokens of them, by a map of its own for each modality.

    Args:
        width: Length of a token.
        patch: Side of a patch in pixels.
        grid: Rows and columns of patches.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, width: int, *, patch: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.patch = patch
        self.grid = grid
        self.weights = nn.ParameterDict(
            {
                name: nn.Parameter(torch.randn(width, channels, patch, patch) * 0.02)
                for name, channels in CHANNELS.items()
            }
        )
        # CLIP normalises three channels apart, which leaves a constant where one stands for them.
        self.offsets = nn.ParameterDict(
            {
                name: nn.Parameter(torch.zeros(width))
                for name, channels in CHANNELS.items()
                if channels == 1
            }
        )
        self.class_token = nn.Parameter(torch.randn(width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn(1 + grid[0] * grid[1], width) * 0.02)
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.register_buffer("mean", torch.tensor(_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(_DEVIATION).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor, modality: int | None = None) -> Tensor:
        """Make tokens of images.

        Args:
            images: uint8 (B, 4, 3, H, W), or (B, 3, H, W) of one modality.
            modality: Which one it is; None for all.

        Returns:
            (G, B, 1 + patches, width), the class token first.
        """
        if modality is not None:
            patches = [self._embed(images, IMAGE_MODALITIES[modality])]
        else:
            patches = [
                self._embed(images[:, place], name) for place, name in enumerate(IMAGE_MODALITIES)
            ]
        tokens = torch.stack(patches)
        first = self.class_token.to(tokens.dtype).expand(*tokens.shape[:2], 1, -1)
        return self.norm(torch.cat([first, tokens], dim=2) + self.positions)

    def _embed(self, images: Tensor, name: str) -> Tensor:
        """(B, 3, H, W) -> (B, patches, width), as a convolution with steps of a patch does it."""
        weight = self.weights[name]
        channels = weight.shape[1]
        # Of the grey ones the first channel stands for all three: mean and deviation do, too.
        mean, deviation = (
            (self.mean, self.deviation)
            if channels == 3
            else (self.mean.mean(), self.deviation.mean())
        )
        pixels = (images[:, :channels].float() / 255 - mean) / deviation
        rows, columns = self.grid
        cut = pixels.view(len(images), channels, rows, self.patch, columns, self.patch)
        cut = cut.permute(0, 2, 4, 1, 3, 5).reshape(len(images), rows * columns, -1)
        offset = self.offsets[name] if channels == 1 else None
        return functional.linear(cut, weight.flatten(1), offset)


class ImageTrunk(nn.Module):
    """The blocks that images of all modalities share."""

    def __init__(self, shape: TowerShape, *, rank: int, embed_dim: int, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        adapters = AdapterShape(modalities=len(IMAGE_MODALITIES), rank=rank)
        self.blocks = nn.ModuleList(
            Block(shape, adapters=adapters, causal=False, kernels=kernels)
            for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width, eps=_EPS)
        self.image_projection = nn.Parameter(torch.empty(embed_dim, shape.width))
        nn.init.normal_(self.image_projection, std=shape.width**-0.5)

    def forward(self, tokens: Tensor, modality: int | None = None) -> Tensor:
        """(G, B, L, width) -> (G, B, embed_dim)."""
        if self.kernels == "reference" and modality is None:
            return torch.cat([self._pass(tokens[m : m + 1], m) for m in range(len(tokens))])
        return self._pass(tokens, modality)

    def _pass(self, tokens: Tensor, modality: int | None) -> Tensor:
        for block in _calls(self.blocks):
            tokens = block(tokens, modality)
        return functional.linear(self.norm(tokens[:, :, 0]), self.image_projection)


class TextTower(nn.Module):
    """Captions: each token sees those before it, and the end token speaks for all."""

    def __init__(
        self, shape: TowerShape, *, captions: CaptionShape, embed_dim: int, kernels: Kernels
    ) -> None:
        super().__init__()
        self.end_token = captions.end_token
        self._words_sum = captions.words_sum
        self.words = nn.Embedding(captions.vocabulary, shape.width)
        self.positions = nn.Parameter(torch.randn(captions.length, shape.width) * 0.01)
        nn.init.normal_(self.words.weight, std=0.02)
        self.blocks = nn.ModuleList(
            TextBlock(shape, adapters=AdapterShape(), causal=True, kernels=kernels)
            for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width, eps=_EPS)
        self.text_projection = nn.Parameter(torch.empty(embed_dim, shape.width))
        nn.init.normal_(self.text_projection, std=shape.width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, embed_dim)."""
        x = (self.words(tokens) + self.positions[: tokens.shape[1]]).unsqueeze(0)
        for block in _calls(self.blocks):
            x = block(x, None)
        ends = (tokens == self.end_token).int().argmax(dim=1)
        pooled = x[0].gather(1, ends.view(-1, 1, 1).expand(-1, 1, x.shape[-1]))[:, 0]
        return functional.linear(self.norm(pooled), self.text_projection)

    def get_extra_state(self) -> Tensor:
        """Let weights say which words they were trained on: places of words are not in them."""
        return torch.tensor(self._words_sum)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse weights that know other words under the same numbers.

        Raises:
            CheckpointError: Where they do.
        """
        if self._words_sum and int(state) and int(state) != self._words_sum:
            raise CheckpointError(
                "the checkpoint was trained on captions with other words than those of data.root, "
                "so it would read every caption wrongly; set data.root to the dataset it was "
                "trained on, with the same data.holdout"
            )


def _calls(blocks: Iterable[nn.Module]) -> Iterator[Callable[..., Tensor]]:
    """Give what to call for each block.

    Outside training that is the plain forward pass: batches of an evaluation vary in size and
    modality, and compiled blocks would be compiled anew for each.
    """
    for block in blocks:
        yield block if block.training else block.forward
