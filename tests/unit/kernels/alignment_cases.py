"""What the kernels of alignment must do; test_alignment_kernels.py runs this interpreted."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.kernels import deform_conv_triton, fallback, flow_warp_triton
from pitstop.kernels.deform_conv import (
    align_fused,
    align_reference,
    deform_conv_fused,
    deform_conv_reference,
)
from pitstop.kernels.flow_warp import (
    Padding,
    bilinear_fused,
    bilinear_reference,
    join_fused,
    join_reference,
    nearest4_fused,
    nearest4_reference,
)
from pitstop.kernels.pairs import neighbour_pairs
from pitstop.workloads.deblur.model.alignment import Alignment
from pitstop.workloads.deblur.model.spynet import SpyNet
from pitstop.workloads.deblur.model.vrt import VRT, VRT_SMALL, VRTSettings
from tests.unit.kernels.triton_interpreter import interpreter_set_right
from tests.unit.workloads.deblur.random_vrt import clip, random_vrt

torch.set_num_threads(1)

CPU = torch.device("cpu")
NARROW: VRTSettings = VRT_SMALL | {
    "depths": (1,) * 8,
    "embed_dims": (8,) * 8,
    "num_heads": (1,) * 8,
    "indep_reconsts": (),
    "flow_channels": (4, 4, 4, 4),
}
Run = Callable[..., Tensor]


@pytest.fixture(scope="module", autouse=True)
def the_interpreter_is_set_right() -> Iterator[None]:
    with interpreter_set_right():
        yield


@pytest.fixture
def same_bits() -> Iterator[None]:
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def draws(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator)


def all_of(run: Run, inputs: list[Tensor], *, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Result, and gradients of all inputs (zeros for one that has none)."""
    inputs = [part.detach().to(dtype or part.dtype).requires_grad_() for part in inputs]
    out = run(*inputs)
    grad = draws(99)(*out.shape).to(out.dtype)
    grads = torch.autograd.grad(out, inputs, grad, materialize_grads=True)
    return [out.detach(), *grads]


def assert_as_exact(run: Run, reference: Run, inputs: list[Tensor], *, tolerance: float) -> None:
    got = all_of(run, inputs)
    want = all_of(reference, inputs, dtype=torch.float64)
    for mine, true, given_part in zip(got, want, [None, *inputs], strict=True):
        assert given_part is None or mine.dtype == given_part.dtype
        size = float(true.square().mean().sqrt())
        torch.testing.assert_close(mine.double(), true, rtol=tolerance, atol=tolerance * size)


def taps(
    batch: int, groups: int, channels: int, size: tuple[int, int], reach: float, seed: int
) -> list[Tensor]:
    """Operands of a plain deformable convolution to five channels."""
    draw = draws(seed)
    return [
        draw(batch, groups * channels, *size),
        reach * draw(batch, 18 * groups, *size),
        draw(batch, 9 * groups, *size),
        draw(5, groups * channels, 3, 3),
        draw(5),
    ]


def plainly(version: Run) -> Run:
    return lambda x, offset, mask, weight, bias: version(x, offset, mask, weight, bias=bias)


@given(
    batch=st.integers(1, 2),
    groups=st.integers(1, 3),
    channels=st.integers(1, 9),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    reach=st.floats(0.1, 4),
)
@example(batch=2, groups=3, channels=6, height=5, width=7, reach=1.5)
@settings(max_examples=3, deadline=None)
def test_convolution_and_all_gradients_are_those_of_float64(
    batch: int, groups: int, channels: int, height: int, width: int, reach: float
) -> None:
    inputs = taps(batch, groups, channels, (height, width), reach, seed=batch + 10 * channels)
    reference = plainly(deform_conv_reference)
    assert_as_exact(plainly(deform_conv_fused), reference, inputs, tolerance=2e-5)


def test_half_numbers_are_sampled_as_they_are_and_summed_in_float32() -> None:
    inputs = [part.half() for part in taps(1, 2, 6, (6, 7), 1.5, seed=3)]
    reference = plainly(deform_conv_reference)
    assert_as_exact(plainly(deform_conv_fused), reference, inputs, tolerance=4e-3)


def test_any_memory_order_gives_the_same() -> None:
    x, offset, mask, weight, bias = taps(2, 2, 3, (4, 6), 1.0, seed=4)
    want = deform_conv_fused(x, offset, mask, weight, bias=bias)
    moved = [part.to(memory_format=torch.channels_last) for part in (x, offset, mask, weight)]
    assert torch.equal(deform_conv_fused(*moved, bias=bias), want)
    wide = torch.cat((x, x), dim=3)[..., :6]
    assert torch.equal(deform_conv_fused(wide, offset, mask, weight, bias=bias), want)


@pytest.mark.parametrize("launch", [(32, 1, 4, 1, 1), (64, 4, 8, 2, 10**6)])
def test_how_work_is_cut_changes_nothing_but_the_order_of_sums(
    launch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = taps(1, 3, 5, (5, 9), 1.5, seed=5)
    want = all_of(plainly(deform_conv_fused), inputs)
    cut = deform_conv_triton.Launch(*launch)
    monkeypatch.setattr(deform_conv_triton, "FORWARD", cut)
    monkeypatch.setattr(deform_conv_triton, "BACKWARD", cut)
    for mine, other in zip(all_of(plainly(deform_conv_fused), inputs), want, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_offset_that_is_no_number_spoils_its_own_pixel_alone() -> None:
    x, offset, mask, weight, bias = taps(1, 2, 3, (4, 5), 1.0, seed=6)
    want = deform_conv_fused(x, offset, mask, weight, bias=bias)
    offset[0, 7, 1, 2] = float("nan")
    offset[0, 9, 3, 4] = float("inf")
    offset[0, 11, 0, 0] = -1e30
    out = deform_conv_fused(x, offset, mask, weight, bias=bias)
    spoilt = torch.zeros(4, 5, dtype=torch.bool)
    spoilt[1, 2] = True
    assert torch.equal(out.isnan().any(1)[0], spoilt)
    untouched = ~spoilt
    untouched[3, 4] = untouched[0, 0] = False
    assert torch.equal(out[0][:, untouched], want[0][:, untouched])


def guided(version: Run, batch: int, num_frames: int, residue: float = 2.5) -> Run:
    pairs = neighbour_pairs(batch, num_frames, CPU)

    def run(*inputs: Tensor) -> Tensor:
        frames, raw, flow, weight, bias, raw_bias = inputs
        return version(
            frames,
            raw,
            flow,
            weight,
            bias=bias,
            raw_bias=raw_bias,
            pairs=pairs,
            max_residue=residue,
        )

    return run


def clips(
    batch: int, num_frames: int, groups: int, size: tuple[int, int], *, spare: int = 0
) -> list[Tensor]:
    draw, channels = draws(num_frames), 3 * groups
    num_pairs = 2 * batch * (num_frames - 1)
    return [
        draw(batch * num_frames, channels, *size),
        draw(num_pairs, 27 * groups + spare, *size),
        2 * draw(num_pairs, 2, *size),
        draw(channels, channels, 3, 3),
        draw(channels),
        draw(27 * groups),
    ]


@pytest.mark.parametrize(
    ("batch", "num_frames", "groups", "spare"), [(1, 4, 2, 0), (2, 2, 3, 0), (1, 2, 2, 30)]
)
def test_guided_convolution_and_all_gradients_are_those_of_float64(
    batch: int, num_frames: int, groups: int, spare: int
) -> None:
    inputs = clips(batch, num_frames, groups, (5, 6), spare=spare)
    run, reference = (guided(v, batch, num_frames) for v in (align_fused, align_reference))
    assert_as_exact(run, reference, inputs, tolerance=2e-5)


@pytest.mark.usefixtures("same_bits")
def test_whole_numbers_add_up_to_the_same_gradients() -> None:
    inputs = clips(1, 3, 2, (5, 6))
    got = all_of(guided(align_fused, 1, 3), inputs)
    torch.use_deterministic_algorithms(mode=False)
    for mine, other in zip(got, all_of(guided(align_fused, 1, 3), inputs), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("same_bits")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_gradient_that_is_no_number_is_not_hidden_by_whole_numbers() -> None:
    x, offset, mask, weight, bias = taps(1, 1, 3, (3, 3), 0.5, seed=8)
    out = deform_conv_fused(x.requires_grad_(), offset, mask, weight, bias=bias)
    (grad,) = torch.autograd.grad(out, x, torch.full_like(out, float("nan")))
    assert grad.isnan().any()


sizes = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6))


@given(sizes, st.sampled_from(("zeros", "border")), st.floats(0.1, 5))
@example((2, 3, 5, 7), "zeros", 2.0)
@example((2, 3, 5, 7), "border", 2.0)
@example((1, 2, 1, 6), "zeros", 2.0)
@settings(max_examples=6, deadline=None)
def test_warps_and_their_gradients_are_those_of_float64(
    size: tuple[int, int, int, int], padding: Padding, reach: float
) -> None:
    draw = draws(sum(size))
    inputs = [draw(*size), reach * draw(size[0], 2, *size[2:])]
    assert_as_exact(
        lambda image, flow: bilinear_fused(image, flow, padding=padding),
        lambda image, flow: bilinear_reference(image, flow, padding=padding),
        inputs,
        tolerance=2e-5,
    )
    assert_as_exact(nearest4_fused, nearest4_reference, inputs, tolerance=1e-6)


@pytest.mark.parametrize("first", ["warped", "current"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_joining_is_warping_and_laying_side_by_side(first: Any, padding: Padding) -> None:
    draw, pairs = draws(1), neighbour_pairs(2, 3, CPU)
    inputs = [draw(6, 4, 5, 7), 2 * draw(8, 2, 5, 7)]
    options: dict[str, Any] = {"pairs": pairs, "first": first, "padding": padding}
    assert_as_exact(
        lambda images, flow: join_fused(images, flow, **options),
        lambda images, flow: join_reference(images, flow, **options),
        inputs,
        tolerance=2e-5,
    )
    images, flow = inputs
    half = join_fused(images, flow, **options, dtype=torch.float16)
    assert torch.equal(half, join_fused(images, flow, **options).half())
    assert half.is_contiguous(memory_format=torch.channels_last)


def test_wide_images_are_warped_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_warp_triton, "MAX_BLOCK_CHANNELS", 4)
    draw = draws(2)
    inputs = [draw(1, 11, 4, 5), draw(1, 2, 4, 5)]
    assert_as_exact(bilinear_fused, bilinear_reference, inputs, tolerance=2e-5)
    assert_as_exact(nearest4_fused, nearest4_reference, inputs, tolerance=1e-6)


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_warped_images_keep_type_and_memory_order(
    order: torch.memory_format, dtype: torch.dtype
) -> None:
    draw = draws(3)
    image = draw(2, 3, 4, 5).to(dtype).contiguous(memory_format=order)
    flow = draw(2, 2, 4, 5)
    for version, reference in (
        (bilinear_fused, bilinear_reference),
        (nearest4_fused, nearest4_reference),
    ):
        out = version(image, flow)
        assert out.dtype == dtype
        assert out.is_contiguous(memory_format=order)
        torch.testing.assert_close(out, reference(image, flow), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a_flow_that_is_no_number_leads_where_the_reference_goes(
    padding: Padding, value: float
) -> None:
    draw = draws(4)
    image, flow = draw(1, 2, 4, 5), draw(1, 2, 4, 5)
    flow[0, :, 1, 2] = value
    flow[0, 0, 2, 3] = value

    def run(version: Run) -> list[Tensor]:
        return all_of(lambda i, f: version(i, f, padding=padding), [image, flow])

    for mine, other in zip(run(bilinear_fused), run(bilinear_reference), strict=True):
        # A CPU makes NaN of infinitely far places outside, where a CUDA device finds nothing.
        there = torch.where(other.isnan(), 0.0, other)
        torch.testing.assert_close(mine, there, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nearest4_fused(image, flow), nearest4_reference(image, flow))


@pytest.mark.usefixtures("same_bits")
def test_warps_add_whole_numbers_up_to_the_same_gradients() -> None:
    draw = draws(5)
    inputs = [draw(2, 3, 5, 7), 2 * draw(2, 2, 5, 7)]
    for version in (bilinear_fused, nearest4_fused):
        torch.use_deterministic_algorithms(mode=True)
        got = all_of(version, inputs)
        torch.use_deterministic_algorithms(mode=False)
        for mine, other in zip(got, all_of(version, inputs), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.fixture
def fused_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels that are interpreted count as such that can run."""
    for module in (fallback, "pitstop.kernels.deform_conv", "pitstop.kernels.flow_warp"):
        name = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{name}.obstacle_on", lambda _: None)


@pytest.mark.usefixtures("fused_everywhere")
@pytest.mark.parametrize("batch", [1, 2])
def test_alignment_gives_the_same_by_both_ways(batch: int) -> None:
    draw = draws(6)
    module = Alignment(8, num_steps=1, deformable_groups=2, max_residue=2.5)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.1 * draw(*weight.shape))
    x, flow = draw(batch, 3, 5, 6, 8), 2 * draw(2 * batch, 2, 2, 5, 6)

    def found(kernels: Any) -> list[Tensor]:
        module.kernels = kernels
        module.zero_grad()
        own, moves = x.clone().requires_grad_(), flow.clone().requires_grad_()
        out = module(own, (moves,))
        out.backward(draws(7)(*out.shape))
        grads = [weight.grad for weight in (own, moves, *module.parameters())]
        return [out.detach(), *(grad for grad in grads if grad is not None)]

    by_reference, fused = found("reference"), found("fused")
    assert len(by_reference) == len(fused) == 3 + len(list(module.parameters()))
    for mine, other in zip(fused, by_reference, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("fused_everywhere")
def test_a_whole_network_gives_the_same_by_both_ways() -> None:
    fused, plain = random_vrt(NARROW), random_vrt(NARROW)
    for module in plain.modules():
        if isinstance(module, VRT | SpyNet | Alignment):
            module.kernels = "reference"
    x = clip(1, 3, 8, 16)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), plain(x), rtol=1e-4, atol=1e-5)
