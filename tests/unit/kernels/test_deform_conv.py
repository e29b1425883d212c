import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from pitstop.kernels.deform_conv import FORMULAS, deform_conv_reference

torch.set_num_threads(1)


def read(plane: Tensor, x: float, y: float) -> float:
    """Blend the pixels of one (H, W) plane around a place; zero outside."""
    height, width = plane.shape
    left, top, total = math.floor(x), math.floor(y), 0.0
    for px, py in itertools.product((left, left + 1), (top, top + 1)):
        if 0 <= px < width and 0 <= py < height:
            total += (1 - abs(x - px)) * (1 - abs(y - py)) * plane[py, px].item()
    return total


def slow(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One output pixel, channel and tap at a time."""
    batch, in_channels, height, width = x.shape
    out_channels, group_channels, kh, kw = weight.shape
    groups = in_channels // group_channels
    deform_groups = mask.shape[1] // (kh * kw)
    out = torch.zeros(batch, out_channels, height, width, dtype=x.dtype)
    for b, o, py, px in itertools.product(
        range(batch), range(out_channels), range(height), range(width)
    ):
        total = bias[o].item()
        first = o // (out_channels // groups) * group_channels
        for c, ky, kx in itertools.product(range(group_channels), range(kh), range(kw)):
            channel = first + c
            n = channel // (in_channels // deform_groups) * kh * kw + ky * kw + kx
            place_y = py + ky - kh // 2 + offset[b, 2 * n, py, px].item()
            place_x = px + kx - kw // 2 + offset[b, 2 * n + 1, py, px].item()
            value = read(x[b, channel], place_x, place_y) * mask[b, n, py, px].item()
            total += value * weight[o, c, ky, kx].item()
        out[b, o, py, px] = total
    return out


def operands(case: tuple[int, ...], seed: int, reach: float) -> list[Tensor]:
    batch, groups, deform_groups, height, width = case
    generator = torch.Generator().manual_seed(seed)
    channels = 2 * groups * deform_groups

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return [
        draw(batch, channels, height, width),
        reach * draw(batch, 18 * deform_groups, height, width),
        draw(batch, 9 * deform_groups, height, width),
        draw(2 * groups, channels // groups, 3, 3),
        draw(2 * groups),
    ]


cases = st.tuples(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.integers(1, 4)
)


@given(cases, st.floats(0, 4), st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_it_equals_reading_tap_by_tap(case: tuple[int, ...], reach: float, seed: int) -> None:
    x, offset, mask, weight, bias = operands(case, seed, reach)
    out = deform_conv_reference(x, offset, mask, weight, bias=bias)
    torch.testing.assert_close(out, slow(x, offset, mask, weight, bias), rtol=1e-9, atol=1e-9)


def test_without_offsets_and_with_a_full_mask_it_is_a_grouped_convolution() -> None:
    x, offset, mask, weight, bias = operands((2, 3, 2, 6, 5), 0, 0.0)
    out = deform_conv_reference(x, offset, torch.ones_like(mask), weight, bias=bias)
    torch.testing.assert_close(out, functional.conv2d(x, weight, bias, padding=1, groups=3))


def test_memory_layout_does_not_change_the_result() -> None:
    x, offset, mask, weight, bias = operands((2, 1, 2, 6, 5), 0, 1.0)
    moved = [t.to(memory_format=torch.channels_last) for t in (x, offset, mask, weight)]
    out = deform_conv_reference(*moved, bias=bias)
    torch.testing.assert_close(out, deform_conv_reference(x, offset, mask, weight, bias=bias))


def test_gradients_of_all_operands_agree_with_finite_differences() -> None:
    x, offset, mask, weight, bias = (t.requires_grad_() for t in operands((1, 2, 1, 3, 3), 3, 0.4))
    assert torch.autograd.gradcheck(
        lambda *t: deform_conv_reference(*t[:4], bias=t[4]), (x, offset, mask, weight, bias)
    )


def test_autocast_leaves_the_arithmetic_in_float32() -> None:
    tensors = [t.float() for t in operands((1, 1, 2, 6, 5), 0, 1.0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = deform_conv_reference(*tensors[:4], bias=tensors[4])
    assert torch.equal(out, deform_conv_reference(*tensors[:4], bias=tensors[4]))


def test_the_formula_counts_the_products_that_torch_counts() -> None:
    x, offset, mask, weight, bias = operands((2, 2, 2, 6, 5), 0, 1.0)
    with FlopCounterMode(display=False) as counter:
        deform_conv_reference(x, offset, mask, weight, bias=bias)
    pixels = 2 * 6 * 5
    shapes = {"pixels": pixels, "in_channels": 8, "out_channels": 4, "taps": 9}
    sampling = 9 * pixels * 8 * 9
    assert FORMULAS["deform_conv"].flops(**shapes, groups=2) == counter.get_total_flops() + sampling
    floats = x.numel() + offset.numel() + mask.numel() + pixels * 4
    assert FORMULAS["deform_conv"].num_bytes(**shapes, deform_groups=2) == 4 * floats
