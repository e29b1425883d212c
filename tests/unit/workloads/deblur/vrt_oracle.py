"""A second VRT, written from the specification to be compared with the first.

One frame pair, one tap, one window at a time; every place is found by index arithmetic on plain
integers. It reads parameters by name, uses no stored buffer, and imports nothing of the package.
Features are (B, D, C, H, W). `Quirks` holds what tests bend on purpose.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Quirks:
    """Deliberate mistakes; the defaults make none."""

    mutual_first: bool = True
    max_residue: float = 10.0
    corner_order: tuple[int, ...] = (0, 1, 2, 3)


class Oracle:
    def __init__(
        self, state: Mapping[str, Tensor], settings: Mapping[str, Any], quirks: Quirks | None = None
    ) -> None:
        self.state = state
        self.settings = settings
        self.quirks = quirks or Quirks()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        self.p = {name: value.to(x.dtype) for name, value in self.state.items()}
        pa = self.settings["pa_frames"]
        flows_b, flows_f = self.flows(x) if pa else ([], [])
        s = self.conv_frames("conv_first", self.first_input(x, flows_b, flows_f) if pa else x)
        kinds = ("none", "down", "down", "down", "up", "up", "up")
        outs: list[Tensor] = []
        f = s
        for k, kind in enumerate(kinds):
            scale = (0, 1, 2, 3, 2, 1, 0)[k]
            skip = {5: 2, 6: 1}.get(k)
            f = f if skip is None else f + outs[skip]
            pick = [steps[scale] for steps in flows_b], [steps[scale] for steps in flows_f]
            f = self.stage(f, k, kind, *pick, residue=self.quirks.max_residue / 2**scale)
            outs.append(f)
        f = self.last_stage(f + outs[0])
        y = s + self.linear("conv_after_body", self.norm("norm", f))
        return self.conv_frames("conv_last", y) + x

    # Channel-wise layers; channels are axis 2.

    def linear(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.p[f"{name}.weight"], self.p.get(f"{name}.bias")
        out = torch.einsum("oc,bdchw->bdohw", weight, x)
        return out if bias is None else out + bias[:, None, None]

    def norm(self, name: str, x: Tensor) -> Tensor:
        mean = x.mean(2, keepdim=True)
        var = ((x - mean) ** 2).mean(2, keepdim=True)
        scale, bias = self.p[f"{name}.weight"], self.p[f"{name}.bias"]
        return (x - mean) / torch.sqrt(var + 1e-5) * scale[:, None, None] + bias[:, None, None]

    def mlp(self, name: str, x: Tensor) -> Tensor:
        gate = self.linear(f"{name}.fc11", x)
        gate = gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2)))
        return self.linear(f"{name}.fc2", gate * self.linear(f"{name}.fc12", x))

    def conv_frames(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.p[f"{name}.weight"], self.p[f"{name}.bias"]
        return functional.conv3d(x.transpose(1, 2), weight, bias, padding=(0, 1, 1)).transpose(1, 2)

    def conv(self, name: str, x: Tensor) -> Tensor:
        weight = self.p[f"{name}.weight"]
        return functional.conv2d(x, weight, self.p[f"{name}.bias"], padding=weight.shape[-1] // 2)

    # Stages.

    def stage(
        self,
        x: Tensor,
        k: int,
        kind: str,
        flows_b: list[Any],
        flows_f: list[Any],
        *,
        residue: float,
    ) -> Tensor:
        name, cfg = f"stage{k + 1}", self.settings
        if kind == "none":
            x = self.norm(f"{name}.reshape.1", x)
        else:
            x = fold(x) if kind == "down" else unfold(x)
            x = self.linear(f"{name}.reshape.2", self.norm(f"{name}.reshape.1", x))
        depth, heads, window = cfg["depths"][k], cfg["num_heads"][k], tuple(cfg["window_size"])
        num_mutual = int(depth * cfg["mul_attn_ratio"])
        pair_window = (2, *window[1:])
        g = self.group(f"{name}.residual_group1", x, num_mutual, heads, pair_window, mutual=True)
        x = self.linear(f"{name}.linear1", g) + x
        g = self.group(f"{name}.residual_group2", x, depth - num_mutual, heads, window)
        x = self.linear(f"{name}.linear2", g) + x
        if cfg["pa_frames"]:
            back, forth = self.align(f"{name}.pa_deform", x, flows_b, flows_f, residue)
            x = self.mlp(f"{name}.pa_fuse", torch.cat((x, back, forth), 2))
        return x

    def last_stage(self, x: Tensor) -> Tensor:
        cfg = self.settings
        x = self.linear("stage8.0.2", self.norm("stage8.0.1", x))
        for i in range(7, len(cfg["depths"])):
            window = tuple(cfg["window_size"])
            window = (1, *window[1:]) if i in cfg["indep_reconsts"] else window
            name, heads = f"stage8.{i - 6}", cfg["num_heads"][i]
            g = self.group(f"{name}.residual_group", x, cfg["depths"][i], heads, window)
            x = x + self.linear(f"{name}.linear", g)
        return x

    def group(
        self, name: str, x: Tensor, depth: int, heads: int, full: Any, *, mutual: bool = False
    ) -> Tensor:
        size = tuple(
            min(w, n) if axis or not mutual else w
            for axis, (w, n) in enumerate(zip(full, volume(x), strict=True))
        )
        half = tuple(w // 2 if n > w else 0 for w, n in zip(full, volume(x), strict=True))
        for i in range(depth):
            block = f"{name}.blocks.{i}"
            shift = half if i % 2 else (0, 0, 0)
            y = self.norm(f"{block}.norm1", x)
            x = x + self.attention(f"{block}.attn", y, heads, full, size, shift)
            x = x + self.mlp(f"{block}.mlp", self.norm(f"{block}.norm2", x))
        return x

    def attention(
        self, name: str, x: Tensor, heads: int, full: Any, size: Any, shift: Any
    ) -> Tensor:
        depth, height, width = volume(x)
        channels = x.shape[2]
        padded = tuple(-(-n // w) * w for n, w in zip(volume(x), size, strict=True))
        filled = x.new_zeros(x.shape[0], padded[0], channels, padded[1], padded[2])
        filled[:, :depth, :, :height, :width] = x
        out = torch.zeros_like(filled)
        bias = self.p[f"{name}.relative_position_bias_table"][bias_rows(full, size)]
        for rows, labels in cut(padded, size, shift):
            d, h, w = rows.unbind(-1)
            tokens = filled[:, d, :, h, w].transpose(0, 1)
            mask = torch.where(labels[:, None] == labels[None], 0.0, -100.0).to(x.dtype)
            qkv = self.project(f"{name}.qkv_self", tokens)
            result = attend(*qkv, heads, bias.permute(2, 0, 1) + mask)
            if f"{name}.qkv_mut.weight" in self.p:
                result = self.mutual(name, tokens, mask, heads, size, result)
            result = result @ self.p[f"{name}.proj.weight"].T + self.p[f"{name}.proj.bias"]
            out[:, d, :, h, w] = result.transpose(0, 1)
        return out[:, :depth, :, :height, :width]

    def mutual(
        self, name: str, tokens: Tensor, mask: Tensor, heads: int, size: Any, own: Tensor
    ) -> Tensor:
        half = tokens.shape[1] // 2
        places = sine_places(tuple(self.settings["window_size"][1:]), size[1:], tokens.shape[2]).to(
            tokens
        )
        q, k, v = self.project(f"{name}.qkv_mut", tokens + torch.cat((places, places)))
        mask = mask[:half, :half]
        first = attend(q[:, half:], k[:, :half], v[:, :half], heads, mask)
        second = attend(q[:, :half], k[:, half:], v[:, half:], heads, mask)
        other = torch.cat((first, second), 1)
        return torch.cat((other, own) if self.quirks.mutual_first else (own, other), 2)

    def project(self, name: str, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = tokens @ self.p[f"{name}.weight"].T
        q, k, v = (out + self.p.get(f"{name}.bias", 0)).chunk(3, -1)
        return q, k, v

    # Motion.

    def flows(self, x: Tensor) -> tuple[list[Any], list[Any]]:
        """[step][scale] -> list over t of flows t -> t + step, and t + step -> t."""
        count = x.shape[1] - 1
        one_b = [self.spynet(x[:, t], x[:, t + 1]) for t in range(count)]
        one_f = [self.spynet(x[:, t + 1], x[:, t]) for t in range(count)]
        back = [[[pair[scale] for pair in one_b] for scale in range(4)]]
        forth = [[[pair[scale] for pair in one_f] for scale in range(4)]]
        for step in range(1, self.settings["pa_frames"] // 2):
            back.append([[] for _ in range(4)])
            forth.append([[] for _ in range(4)])
            for scale, t in itertools.product(range(4), range(count - step)):
                far, near = back[-2][scale][t], back[0][scale][t + step]
                back[-1][scale].append(far + warp(near, far))
                far, near = forth[-2][scale][t + 1], forth[0][scale][t]
                forth[-1][scale].append(far + warp(near, far))
        return back, forth

    def spynet(self, ref: Tensor, supp: Tensor) -> list[Tensor]:
        h, w = ref.shape[-2:]
        wide = (math.ceil(h / 32) * 32, math.ceil(w / 32) * 32)
        mean = torch.tensor([0.485, 0.456, 0.406]).to(ref)[:, None, None]
        std = torch.tensor([0.229, 0.224, 0.225]).to(ref)[:, None, None]
        levels = []
        for frame in (ref, supp):
            image = functional.interpolate(frame, wide, mode="bilinear", align_corners=False)
            levels.append(
                [functional.avg_pool2d((image - mean) / std, 2**n) for n in (5, 4, 3, 2, 1, 0)]
            )
        flow, kept = None, []
        for level, (a, b) in enumerate(zip(*levels, strict=True)):
            up = a.new_zeros(a.shape[0], 2, *a.shape[-2:])
            if flow is not None:
                up = 2 * functional.interpolate(
                    flow, scale_factor=2, mode="bilinear", align_corners=True
                )
            y = torch.cat((a, warp(b, up, border=True), up), 1)
            for layer in (0, 2, 4, 6, 8):
                y = self.conv(f"spynet.basic_module.{level}.basic_module.{layer}", y)
                y = y.relu() if layer < 8 else y
            flow = y + up
            kept.append(flow)
        result = []
        for scale, flow in enumerate(reversed(kept[2:])):
            size = (h // 2**scale, w // 2**scale)
            ratio = torch.tensor([size[1] / flow.shape[-1], size[0] / flow.shape[-2]]).to(flow)
            small = functional.interpolate(flow, size, mode="bilinear", align_corners=False)
            result.append(small * ratio[:, None, None])
        return result

    def first_input(self, x: Tensor, flows_b: list[Any], flows_f: list[Any]) -> Tensor:
        frames = []
        for t in range(x.shape[1]):
            nothing = x.new_zeros(x.shape[0], 12, *x.shape[-2:])
            back = forth = nothing
            if t + 1 < x.shape[1]:
                back = self.corners(x[:, t + 1], flows_b[0][0][t])
            if t > 0:
                forth = self.corners(x[:, t - 1], flows_f[0][0][t - 1])
            frames.append(torch.cat((x[:, t], back, forth), 1))
        return torch.stack(frames, 1)

    def corners(self, image: Tensor, flow: Tensor) -> Tensor:
        px, py = targets(flow)
        samples = [
            fetch(image, fx(px), fy(py))
            for fx, fy in (
                (torch.floor, torch.floor),
                (torch.floor, torch.ceil),
                (torch.ceil, torch.floor),
                (torch.ceil, torch.ceil),
            )
        ]
        return torch.cat([samples[i] for i in self.quirks.corner_order], 1)

    def align(
        self, name: str, x: Tensor, flows_b: list[Any], flows_f: list[Any], residue: float
    ) -> tuple[Tensor, Tensor]:
        count, steps = x.shape[1], self.settings["pa_frames"] // 2
        sides: list[list[Tensor]] = [[], []]
        for t, (sign, flows, out) in itertools.product(
            range(count), ((1, flows_b, sides[0]), (-1, flows_f, sides[1]))
        ):
            if not 0 <= t + sign < count:
                out.append(torch.zeros_like(x[:, t]))
                continue
            near, moves = [], []
            for n in range(1, steps + 1):
                inside = 0 <= t + sign * n < count
                zero = x.new_zeros(x.shape[0], 2, *x.shape[-2:])
                near.append(x[:, t + sign * n] if inside else torch.zeros_like(x[:, t]))
                moves.append(flows[n - 1][t if sign > 0 else t - n] if inside else zero)
            out.append(self.align_one(name, x[:, t], near, moves, residue))
        return torch.stack(sides[0], 1), torch.stack(sides[1], 1)

    def align_one(
        self, name: str, current: Tensor, near: list[Tensor], moves: list[Tensor], residue: float
    ) -> Tensor:
        warped = [warp(image, flow) for image, flow in zip(near, moves, strict=True)]
        y = torch.cat((*warped, current, *moves), 1)
        for layer in (0, 2, 4, 6):
            y = self.conv(f"{name}.conv_offset.{layer}", y)
            y = torch.where(y > 0, y, 0.1 * y) if layer < 6 else y
        third = y.shape[1] // 3
        offset, mask = residue * torch.tanh(y[:, : 2 * third]), torch.sigmoid(y[:, 2 * third :])
        share = offset.shape[1] // len(moves)
        offset = torch.stack(
            [offset[:, i] + moves[i // share][:, (i + 1) % 2] for i in range(2 * third)], 1
        )
        return deform_conv(
            torch.cat(near, 1), offset, mask, self.p[f"{name}.weight"], self.p[f"{name}.bias"]
        )


def deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Tap by tap and group by group; kernel 3x3."""
    deform_groups = mask.shape[1] // 9
    share = x.shape[1] // deform_groups
    rows = torch.arange(x.shape[2]).to(x)[:, None]
    columns = torch.arange(x.shape[3]).to(x)
    sampled = torch.zeros(9, *x.shape).to(x)
    for g, tap in itertools.product(range(deform_groups), range(9)):
        n = g * 9 + tap
        py = rows + tap // 3 - 1 + offset[:, 2 * n]
        px = columns + tap % 3 - 1 + offset[:, 2 * n + 1]
        channels = slice(g * share, (g + 1) * share)
        sampled[tap, :, channels] = blend(x[:, channels], px, py) * mask[:, n, None]
    groups = x.shape[1] // weight.shape[1]
    ins, outs = weight.shape[1], weight.shape[0] // groups
    parts = [
        sum(
            torch.einsum(
                "oc,bchw->bohw",
                weight[g * outs : (g + 1) * outs, :, tap // 3, tap % 3],
                sampled[tap][:, g * ins : (g + 1) * ins],
            )
            for tap in range(9)
        )
        for g in range(groups)
    ]
    return torch.cat([part for part in parts if isinstance(part, Tensor)], 1) + bias[:, None, None]


def targets(flow: Tensor) -> tuple[Tensor, Tensor]:
    h, w = flow.shape[-2:]
    return torch.arange(w).to(flow) + flow[:, 0], torch.arange(h).to(flow)[:, None] + flow[:, 1]


def warp(image: Tensor, flow: Tensor, *, border: bool = False) -> Tensor:
    px, py = targets(flow)
    h, w = image.shape[-2:]
    px, py = (px * 0 if w == 1 else px), (py * 0 if h == 1 else py)
    if border:
        px, py = px.clamp(0, w - 1), py.clamp(0, h - 1)
    return blend(image, px, py)


def blend(image: Tensor, px: Tensor, py: Tensor) -> Tensor:
    left, top = px.floor(), py.floor()
    fx, fy = (px - left)[:, None], (py - top)[:, None]
    return (
        fetch(image, left, top) * (1 - fx) * (1 - fy)
        + fetch(image, left + 1, top) * fx * (1 - fy)
        + fetch(image, left, top + 1) * (1 - fx) * fy
        + fetch(image, left + 1, top + 1) * fx * fy
    )


def fetch(image: Tensor, px: Tensor, py: Tensor) -> Tensor:
    """Pixels at whole places, zero outside."""
    h, w = image.shape[-2:]
    inside = (px >= 0) & (px < w) & (py >= 0) & (py < h)
    place = (py.clamp(0, h - 1) * w + px.clamp(0, w - 1)).long().flatten(1)
    pixels = image.flatten(2).gather(2, place[:, None].expand(-1, image.shape[1], -1))
    return pixels.view(*image.shape[:2], *px.shape[1:]) * inside[:, None]


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, extra: Tensor) -> Tensor:
    """(B, N, C) each; ``extra`` is added to the scores, (heads, N, N) or (N, N)."""
    dim = q.shape[-1] // heads
    outs = []
    for head in range(heads):
        part = slice(head * dim, (head + 1) * dim)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(dim)
        weights = torch.softmax(scores + (extra[head] if extra.dim() == 3 else extra), -1)
        outs.append(weights @ v[..., part])
    return torch.cat(outs, -1)


def volume(x: Tensor) -> tuple[int, int, int]:
    return x.shape[1], x.shape[3], x.shape[4]


@cache
def cut(padded: Any, size: Any, shift: Any) -> list[tuple[Tensor, Tensor]]:
    """For each window, where its tokens lie in the unrolled volume, and their region labels."""
    windows = []
    for start in itertools.product(*(range(0, n, w) for n, w in zip(padded, size, strict=True))):
        rows, labels = [], []
        for step in itertools.product(*(range(w) for w in size)):
            rolled = [a + b for a, b in zip(start, step, strict=True)]
            axes = list(zip(rolled, padded, size, shift, strict=True))
            rows.append([(place + s) % n for place, n, _, s in axes])
            labels.append(
                tuple(0 if s == 0 else (p >= n - w) + (p >= n - s) for p, n, w, s in axes)
            )
        names = {label: i for i, label in enumerate(sorted(set(labels)))}
        windows.append((torch.tensor(rows), torch.tensor([names[label] for label in labels])))
    return windows


@cache
def bias_rows(full: Any, size: Any) -> Tensor:
    wd, wh, ww = full
    places = list(itertools.product(*(range(w) for w in size)))
    rows = [
        [
            (a[0] - b[0] + wd - 1) * (2 * wh - 1) * (2 * ww - 1)
            + (a[1] - b[1] + wh - 1) * (2 * ww - 1)
            + (a[2] - b[2] + ww - 1)
            for b in places
        ]
        for a in places
    ]
    return torch.tensor(rows)


@cache
def sine_places(full: Any, size: Any, channels: int) -> Tensor:
    """(height * width, C), of the part of the full window that is used."""
    rows = [
        [
            sine(place, length, k, channels // 2)
            for place, length in ((y, full[0]), (x, full[1]))
            for k in range(channels // 2)
        ]
        for y in range(size[0])
        for x in range(size[1])
    ]
    return torch.tensor(rows)


def sine(place: int, length: int, k: int, features: int) -> float:
    angle = (place + 1) / (length + 1e-6) * 2 * math.pi / 10000 ** (2 * (k // 2) / features)
    return math.cos(angle) if k % 2 else math.sin(angle)


def fold(x: Tensor) -> Tensor:
    return torch.cat([x[..., h::2, w::2] for w in (0, 1) for h in (0, 1)], 2)


def unfold(x: Tensor) -> Tensor:
    b, d, c, h, w = x.shape
    out = x.new_zeros(b, d, c // 4, 2 * h, 2 * w)
    for wo, ho in itertools.product((0, 1), (0, 1)):
        start = (wo * 2 + ho) * (c // 4)
        out[..., ho::2, wo::2] = x[:, :, start : start + c // 4]
    return out
