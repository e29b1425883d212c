"""The spike branch a second time, from its description: one pixel, one head, one tap at a time.

Reads parameters by name and imports nothing of the package. Features are (B, D, C, H, W), as in
`vrt_oracle`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vrt_oracle import Oracle

State = Mapping[str, Tensor]


def conv3(p: State, name: str, x: Tensor, stride: tuple[int, int, int]) -> Tensor:
    """3x3x3 with a padding of zeros, tap by tap; (B, C, T, H, W)."""
    weight, bias = p[f"{name}.weight"], p[f"{name}.bias"]
    batch, _, *sizes = x.shape
    out_sizes = [-(-size // step) for size, step in zip(sizes, stride, strict=True)]
    padded = torch.zeros(batch, x.shape[1], *(size + 2 for size in sizes), dtype=x.dtype)
    padded[:, :, 1:-1, 1:-1, 1:-1] = x
    out = bias.view(1, -1, 1, 1, 1).expand(batch, -1, *out_sizes).clone()
    for tap in itertools.product(range(3), repeat=3):
        places = [
            torch.arange(count) * step + shift
            for count, step, shift in zip(out_sizes, stride, tap, strict=True)
        ]
        picked = padded[:, :, places[0]][:, :, :, places[1]][:, :, :, :, places[2]]
        out += torch.einsum("oc,bcthw->bothw", weight[:, :, *tap], picked)
    return out


def encode(p: State, voxels: Tensor, strides: Sequence[int]) -> list[Tensor]:
    """Binned spikes (B, T, K, H, W) -> four scales (B, T, C, h, w)."""

    def twice(x: Tensor, name: str) -> Tensor:
        for block in range(2):
            inner = conv3(p, f"{name}.{block}.conv1", x, (1, 1, 1)).clamp_min(0)
            x = (x + conv3(p, f"{name}.{block}.conv2", inner, (1, 1, 1))).clamp_min(0)
        return x

    x = conv3(p, "spike_encoder.in_proj", voxels.transpose(1, 2), (1, 1, 1)).clamp_min(0)
    scales = [twice(x, "spike_encoder.res0")]
    for i, stride in enumerate(strides):
        x = conv3(p, f"spike_encoder.downs.{i}", scales[-1], (stride, 2, 2)).clamp_min(0)
        scales.append(twice(x, f"spike_encoder.residuals.{i}"))
    return [scale.transpose(1, 2) for scale in scales]


def layer_norm(p: State, name: str, x: Tensor) -> Tensor:
    """Over the last axis, of one pixel's (T, C)."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / (variance + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def attend(p: State, name: str, query: Tensor, memory: Tensor, heads: int) -> Tensor:
    """One pixel: (T, C) asks (S, C)."""
    dim = query.shape[1]
    weight, bias = p[f"{name}.in_proj_weight"], p[f"{name}.in_proj_bias"]
    q = query @ weight[:dim].T + bias[:dim]
    k = memory @ weight[dim : 2 * dim].T + bias[dim : 2 * dim]
    v = memory @ weight[2 * dim :].T + bias[2 * dim :]
    width = dim // heads
    rows = []
    for t in range(len(q)):
        pieces = []
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            scores = torch.stack([(q[t, own] * key).sum() for key in k[:, own]])
            share = (scores / math.sqrt(width)).exp()
            share = share / share.sum()
            pieces.append(sum(s * value for s, value in zip(share, v[:, own], strict=True)))
        rows.append(torch.cat(pieces))
    return torch.stack(rows) @ p[f"{name}.out_proj.weight"].T + p[f"{name}.out_proj.bias"]


def feed_forward(p: State, name: str, x: Tensor) -> Tensor:
    hidden = x @ p[f"{name}.0.weight"].T + p[f"{name}.0.bias"]
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return hidden @ p[f"{name}.2.weight"].T + p[f"{name}.2.bias"]


def over_time(p: State, name: str, spikes: Tensor, heads: int) -> Tensor:
    """Self attention over time of each pixel; (B, T, C, h, w)."""
    out = torch.empty_like(spikes)
    for b, y, x in itertools.product(*(range(spikes.shape[axis]) for axis in (0, 3, 4))):
        pixel = spikes[b, :, :, y, x]
        normed = layer_norm(p, f"{name}.ln1", pixel)
        pixel = pixel + attend(p, f"{name}.attn", normed, normed, heads)
        pixel = pixel + feed_forward(p, f"{name}.mlp", layer_norm(p, f"{name}.ln2", pixel))
        out[b, :, :, y, x] = pixel
    return out


def fuse(p: State, name: str, frames: Tensor, spikes: Tensor, heads: int) -> Tensor:
    """Cross attention of frames over spikes, each pixel by itself."""
    out = torch.empty_like(frames)
    for b, y, x in itertools.product(*(range(frames.shape[axis]) for axis in (0, 3, 4))):
        pixel, memory = frames[b, :, :, y, x], spikes[b, :, :, y, x]
        answer = attend(
            p,
            f"{name}.attn.attn",
            layer_norm(p, f"{name}.ln_q", pixel),
            layer_norm(p, f"{name}.ln_kv", memory),
            heads,
        )
        pixel = pixel + answer
        pixel = pixel + feed_forward(p, f"{name}.ffn", layer_norm(p, f"{name}.ln_ffn", pixel))
        out[b, :, :, y, x] = pixel
    return out


class SpikeOracle(Oracle):
    """VRT's oracle whose first four stages are fused with spikes."""

    def restore(
        self, x: Tensor, voxels: Tensor, *, strides: Sequence[int], heads: int, fuse_heads: int
    ) -> Tensor:
        p = {name: value.to(x.dtype) for name, value in self.state.items()}
        self.fuse_heads = fuse_heads
        self.spikes = [
            over_time(p, f"spike_temporal_sa.blocks.{i}", scale, heads)
            for i, scale in enumerate(encode(p, voxels, strides))
        ]
        return self(x)

    def stage(self, f: Tensor, k: int, *args: Any, **kwargs: Any) -> Tensor:
        out = super().stage(f, k, *args, **kwargs)
        if k > 3:
            return out
        name = f"cross_attn_fuse.fuse_blocks.{k}"
        return fuse(self.p, name, out, self.spikes[k], self.fuse_heads)
