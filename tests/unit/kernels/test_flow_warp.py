import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.kernels.flow_warp import FORMULAS, Padding, bilinear_reference, nearest4_reference

torch.set_num_threads(1)

Scene = tuple[int, int, int, int]


def pixel(image: Tensor, x: int, y: int) -> Tensor:
    """One image (C, H, W), zero outside."""
    _, height, width = image.shape
    if 0 <= x < width and 0 <= y < height:
        return image[:, y, x]
    return torch.zeros_like(image[:, 0, 0])


def blended(image: Tensor, x: float, y: float, padding: str) -> Tensor:
    _, height, width = image.shape
    if padding == "border":
        x, y = min(max(x, 0), width - 1), min(max(y, 0), height - 1)
    left, top = math.floor(x), math.floor(y)
    total = torch.zeros_like(image[:, 0, 0])
    for dx, dy in itertools.product((0, 1), (0, 1)):
        weight = (1 - abs(x - left - dx)) * (1 - abs(y - top - dy))
        total += weight * pixel(image, left + dx, top + dy)
    return total


sizes = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(2, 6), st.integers(2, 6))


def scene(size: Scene, seed: int, reach: float) -> tuple[Tensor, Tensor]:
    batch, channels, height, width = size
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(batch, channels, height, width, generator=generator, dtype=torch.float64)
    flow = torch.randn(batch, 2, height, width, generator=generator, dtype=torch.float64)
    return image, reach * flow


@given(sizes, st.sampled_from(("zeros", "border")), st.floats(0, 5), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_bilinear_equals_blending_four_pixels_by_hand(
    size: Scene, padding: Padding, reach: float, seed: int
) -> None:
    image, flow = scene(size, seed, reach)
    expected = torch.zeros_like(image)
    for b, y, x in itertools.product(range(size[0]), range(size[2]), range(size[3])):
        place = (x + flow[b, 0, y, x].item(), y + flow[b, 1, y, x].item())
        expected[b, :, y, x] = blended(image[b], *place, padding)
    out = bilinear_reference(image, flow, padding=padding)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


@given(sizes, st.floats(0, 5), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_nearest4_hands_over_the_corners_in_column_order(
    size: Scene, reach: float, seed: int
) -> None:
    image, flow = scene(size, seed, reach)
    corners = []
    for round_x, round_y in itertools.product((math.floor, math.ceil), (math.floor, math.ceil)):
        expected = torch.zeros_like(image)
        for b, y, x in itertools.product(range(size[0]), range(size[2]), range(size[3])):
            px = round_x(x + flow[b, 0, y, x].item())
            py = round_y(y + flow[b, 1, y, x].item())
            expected[b, :, y, x] = pixel(image[b], px, py)
        corners.append(expected)
    torch.testing.assert_close(nearest4_reference(image, flow), torch.cat(corners, 1))


def test_gradients_reach_image_and_flow_through_bilinear() -> None:
    image, flow = scene((1, 2, 4, 5), 0, 0.7)
    assert torch.autograd.gradcheck(
        bilinear_reference, (image.requires_grad_(), flow.requires_grad_())
    )


def test_nearest4_gives_the_flow_no_gradient_and_the_image_one() -> None:
    image, flow = scene((1, 2, 4, 5), 0, 0.7)
    nearest4_reference(image.requires_grad_(), flow.requires_grad_()).sum().backward()
    assert flow.grad is None
    assert image.grad is not None


def test_a_half_precision_image_is_fetched_from_float32_places() -> None:
    image = torch.arange(2048.0).view(1, 1, 1, 2048).bfloat16()
    flow = torch.zeros(1, 2, 1, 2048)
    flow[:, 0] = 1.0
    out = bilinear_reference(image, flow)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out[..., :-1], image[..., 1:])


def test_the_byte_floor_is_image_flow_and_result_once() -> None:
    shapes = {"batch": 2, "channels": 3, "height": 4, "width": 5}
    pixels = 2 * 4 * 5
    assert FORMULAS["bilinear"].num_bytes(**shapes, itemsize=2) == pixels * (3 * 2 * 2 + 8)
    assert FORMULAS["nearest4"].num_bytes(**shapes, itemsize=4) == pixels * (15 * 4 + 8)
    assert FORMULAS["bilinear"].flops(**shapes) == pixels * 3 * 8
    assert FORMULAS["nearest4"].flops(**shapes) == 0


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a_flow_that_is_no_number_does_not_crash_the_process(
    padding: Padding, value: float
) -> None:
    """Backward of torch's own sampling ends the process at NaN places with border padding."""
    image = torch.rand(1, 2, 4, 5, requires_grad=True)
    flow = torch.full((1, 2, 4, 5), value, requires_grad=True)
    out = bilinear_reference(image, flow, padding=padding)
    out.sum().backward()
    assert out.shape == image.shape
    assert image.grad is not None
