"""Fused attention in volumes on a CUDA device: exact, repeatable, without scores, without waiting.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_window_attention_gpu.py``.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pitstop.kernels import has_triton, window_attention
from pitstop.kernels.window_attention import (
    REFERENCE,
    Size,
    WindowAttention,
    Windows,
    joint_attention_fused,
    mutual_attention_fused,
    self_attention_fused,
    shift_regions,
)
from pitstop.workloads.deblur.model.blocks import BlockGroup, BlockShape, relative_position_index

try:
    import pytest
except ModuleNotFoundError:  # a machine with a GPU and little else
    pytest = None
else:
    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(
            not (torch.cuda.is_available() and has_triton()), reason="needs a CUDA device, Triton"
        ),
    ]

FUSED = WindowAttention(self_attention_fused, mutual_attention_fused, joint_attention_fused)
Case = tuple[str, list[Tensor], tuple[Any, ...], dict[str, Any], Tensor]
"""Operation, what has gradients, what has not, how it is cut, and the gradient of its result."""


def case(
    kind: str,
    dtype: torch.dtype,
    *,
    size: Size = (2, 8, 8),
    counts: Size = (3, 4, 5),
    batch: int = 2,
    heads: int = 6,
    channels: int = 16,
    shifted: bool = True,
) -> Case:
    torch.manual_seed(channels)
    depth, height, width = (side * count for side, count in zip(size, counts, strict=True))
    shift = tuple(
        side // 2 if shifted and n > 1 else 0 for side, n in zip(size, counts, strict=True)
    )
    windows = Windows(size, (shift[0], shift[1], shift[2]))
    shape = (batch, depth, height, width, 3 * heads * channels)
    qkv, mutual = (torch.randn(shape, device="cuda").to(dtype).requires_grad_() for _ in range(2))
    index = relative_position_index(size).cuda()
    table = torch.randn(int(index.max()) + 1, heads, device="cuda", requires_grad=True)
    regions = shift_regions((depth, height, width), windows, device=qkv.device) if shifted else None
    cut: dict[str, Any] = {"windows": windows, "num_heads": heads}
    leaves = {
        "self_attention": [qkv, table],
        "mutual_attention": [mutual],
        "joint_attention": [qkv, mutual, table],
    }[kind]
    more = (regions,) if kind == "mutual_attention" else (index, regions)
    width_out = heads * channels * (2 if kind == "joint_attention" else 1)
    grad = torch.randn(*shape[:4], width_out, device="cuda").to(dtype)
    return kind, leaves, more, cut, grad


def all_of(versions: WindowAttention, given: Case) -> list[Tensor]:
    kind, leaves, more, cut, grad = given
    out = getattr(versions, kind)(*leaves, *more, **cut)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def exact(given: Case) -> list[Tensor]:
    """Result and gradients in float64."""
    kind, leaves, more, cut, grad = given
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    return all_of(REFERENCE, (kind, wide, more, cut, grad.double()))


def error_of(mine: Tensor, true: Tensor) -> float:
    """Norm of the error over that of what is right."""
    assert mine.isfinite().all()
    return float((mine.double() - true).norm() / true.norm())


@contextmanager
def tf32(*, allowed: bool) -> Iterator[None]:
    """Multiply float32 as tf32, or as float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"shifted": False},
    {"channels": 20, "heads": 3},
    {"channels": 24, "heads": 2},
    {"channels": 30, "heads": 2},
    {"channels": 32, "heads": 2},
    {"size": (2, 3, 5), "channels": 12, "heads": 2},
)
SELF_SHAPES: tuple[dict[str, Any], ...] = (
    {"size": (6, 8, 8), "counts": (1, 3, 3)},
    {"size": (6, 8, 8), "counts": (2, 2, 2), "channels": 20},
    {"size": (5, 8, 8), "counts": (1, 2, 2)},
    {"size": (1, 8, 8), "counts": (4, 3, 3), "channels": 20},
    {"size": (1, 7, 7), "counts": (4, 3, 3), "channels": 32, "heads": 3},
)


def cases(dtype: torch.dtype) -> Iterator[Case]:
    for shape in SHAPES:
        for kind in ("self_attention", "mutual_attention", "joint_attention"):
            yield case(kind, dtype, **shape)
    for shape in SELF_SHAPES:
        yield case("self_attention", dtype, **shape)


def test_half_precision_loses_no_more_than_the_plain_way_does() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for given in cases(dtype):
            right, plain = exact(given), all_of(REFERENCE, given)
            for mine, other, true in zip(all_of(FUSED, given), plain, right, strict=True):
                assert mine.dtype == other.dtype
                assert error_of(mine, true) <= 1.05 * error_of(other, true) + 1e-4, given[3]


def test_float32_is_float32_and_tf32_only_where_it_is_allowed() -> None:
    for allowed, most in ((False, 5e-6), (True, 3e-3)):
        for given in cases(torch.float32):
            with tf32(allowed=allowed):
                found = all_of(FUSED, given)
            for mine, true in zip(found, exact(given), strict=True):
                assert error_of(mine, true) < most, given[3]


def test_tf32_by_halves_is_as_exact_as_the_plain_way_in_tf32() -> None:
    before = window_attention.HALVES_FOR_TF32
    window_attention.HALVES_FOR_TF32 = True
    try:
        for given in cases(torch.float32):
            for size in (1.0, 1e-9):
                sized = (*given[:4], given[4] * size)
                with tf32(allowed=True):
                    found, plain = all_of(FUSED, sized), all_of(REFERENCE, sized)
                for mine, other, true in zip(found, plain, exact(sized), strict=True):
                    assert error_of(mine, true) <= 1.25 * error_of(other, true) + 1e-5, given[3]
    finally:
        window_attention.HALVES_FOR_TF32 = before


def test_the_same_call_gives_the_same_bits() -> None:
    for given in (
        case("joint_attention", torch.bfloat16),
        case("self_attention", torch.bfloat16, size=(6, 8, 8), counts=(1, 6, 6)),
    ):
        runs = [all_of(FUSED, given) for _ in range(5)]
        for again in runs[1:]:
            assert all(torch.equal(mine, first) for mine, first in zip(again, runs[0], strict=True))


def test_scores_are_never_held() -> None:
    given = case("self_attention", torch.bfloat16, size=(6, 8, 8), counts=(1, 16, 16))
    all_of(FUSED, given)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = all_of(FUSED, given)
    peak = torch.cuda.max_memory_allocated() - before
    num_scores = 2 * 256 * 6 * 384 * 384
    assert peak - sum(part.nbytes for part in kept) < num_scores / 4


def test_attending_never_waits_for_the_device() -> None:
    given = case("joint_attention", torch.bfloat16)
    all_of(FUSED, given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        all_of(FUSED, given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_volumes_beyond_32_bits_are_found() -> None:
    # 2**31 numbers lie before the last windows.
    windows, heads, channels = Windows((1, 8, 8), (0, 0, 0)), 1, 64
    frames = 2**31 // (256 * 256 * 3 * channels) + 2
    qkv = torch.zeros(1, frames, 256, 256, 3 * channels, dtype=torch.bfloat16, device="cuda")
    qkv[:, -1] = torch.randn(256, 256, 3 * channels, device="cuda").bfloat16()
    index = relative_position_index(windows.size).cuda()
    table = torch.randn(15 * 15, heads, device="cuda")
    cut: dict[str, Any] = {"windows": windows, "num_heads": heads}
    got = self_attention_fused(qkv, table, index, None, **cut)[:, -1:]
    alone = self_attention_fused(qkv[:, -1:].clone(), table, index, None, **cut)
    assert torch.equal(got, alone)


def test_a_group_of_blocks_gives_what_plain_blocks_give() -> None:
    shape = BlockShape(
        dim=96,
        num_heads=6,
        window=(2, 8, 8),
        mutual=True,
        mlp_ratio=2,
        qkv_bias=True,
        kernels="reference",
    )
    torch.manual_seed(0)
    plain = BlockGroup(shape, drop_rates=[0.0, 0.0]).cuda()
    fused = BlockGroup(replace(shape, kernels="fused"), drop_rates=[0.0, 0.0]).cuda()
    fused.load_state_dict(plain.state_dict())
    # No multiple of the windows: the branch pads and crops.
    x = torch.randn(1, 5, 20, 27, 96, device="cuda")

    def passed(group: BlockGroup, *, half: bool) -> dict[str, Tensor]:
        group.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            out = group(x).float()
        out.square().mean().backward()
        grads = {name: part.grad for name, part in group.named_parameters()}
        found = {"out": out.detach().double()}
        return found | {name: part.double() for name, part in grads.items() if part is not None}

    with tf32(allowed=False):
        right, got = passed(plain, half=False), passed(fused, half=False)
    for name, true in right.items():
        if "qkv" not in name or "bias" not in name:
            assert error_of(got[name], true) < 1e-4, name
    known, found = passed(plain, half=True), passed(fused, half=True)
    for name, true in right.items():
        # What all keys have in common weighs nothing: its gradient is rounding alone.
        if "qkv" not in name or "bias" not in name:
            assert error_of(found[name], true) <= 1.25 * error_of(known[name], true), name


if __name__ == "__main__":
    for name, claim in list(globals().items()):
        if name.startswith("test_"):
            claim()
            sys.stdout.write(f"{name}: holds\n")
