"""Fused alignment on a CUDA device: exact, repeatable where asked, without columns or waiting.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_alignment_gpu.py``.
"""

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pitstop.kernels import Kernels, deform_conv, flow_warp, has_triton
from pitstop.kernels.pairs import neighbour_pairs
from pitstop.workloads.deblur.model.alignment import Alignment
from pitstop.workloads.deblur.model.spynet import SpyNet
from pitstop.workloads.deblur.model.vrt import VRT, VRT_SMALL

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

Run = Callable[..., Tensor]


@contextmanager
def float32_as_float32() -> Iterator[None]:
    """Multiply and convolve float32 without shortening it."""
    backends: Any = torch.backends
    before = torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        backends.cudnn.allow_tf32 = before[1]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


def scene(
    dtype: torch.dtype, *, groups: int = 16, channels: int = 96, size: tuple[int, int] = (44, 52)
) -> list[Tensor]:
    """Frames, raw offsets, flows, weight and biases of two clips of three frames."""
    torch.manual_seed(groups + channels)
    frames = draw(6, channels, *size).to(dtype).to(memory_format=torch.channels_last)
    raw = draw(8, 27 * groups, *size).to(dtype).to(memory_format=torch.channels_last)
    weight = draw(channels, channels, 3, 3) * (9 * channels) ** -0.5
    return [frames, raw, 4 * draw(8, 2, *size), weight, draw(channels), 0.2 * draw(27 * groups)]


def aligned(version: Run) -> Run:
    pairs = neighbour_pairs(2, 3, torch.device("cuda"))

    def run(*inputs: Tensor) -> Tensor:
        frames, raw, flow, weight, bias, raw_bias = inputs
        learned: dict[str, Any] = {"bias": bias, "raw_bias": raw_bias, "max_residue": 5.0}
        return version(frames, raw, flow, weight, pairs=pairs, **learned)

    return run


def all_of(run: Run, inputs: list[Tensor], *, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Result and gradients of all inputs."""
    inputs = [part.detach().to(dtype or part.dtype).requires_grad_() for part in inputs]
    out = run(*inputs)
    torch.manual_seed(9)
    grad = draw(*out.shape).bfloat16().to(out.dtype)
    grads = torch.autograd.grad(out, inputs, grad, materialize_grads=True)
    return [out.detach(), *(part for part in grads if part.any())]


def error_of(mine: Tensor, true: Tensor) -> float:
    """Root mean square of the error over that of what is right; NaN never passes."""
    assert mine.isfinite().all()
    return float((mine.double() - true).square().mean().sqrt() / true.square().mean().sqrt())


def assert_exact(fused: Run, plain: Run, inputs: list[Tensor], *, limit: float) -> None:
    """No further from float64 than ``limit``, or little further than plain PyTorch is.

    How a result changes with a place jumps where the place enters another pixel. A few places lie
    so near that rounding decides which, in either version, and no limit of rounding holds there.
    """
    right = all_of(plain, inputs, dtype=torch.float64)
    with float32_as_float32():
        mine, other = all_of(fused, inputs), all_of(plain, inputs)
    errors = [error_of(a, b) for a, b in zip(mine, right, strict=True)]
    plain_errors = [error_of(a, b) for a, b in zip(other, right, strict=True)]
    for error, known in zip(errors, plain_errors, strict=True):
        assert error < max(limit, 2 * known), (errors, plain_errors)


def test_aligning_is_as_exact_as_its_numbers() -> None:
    versions = aligned(deform_conv.align_fused), aligned(deform_conv.align_reference)
    for dtype, limit in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.5e-2)):
        assert_exact(*versions, scene(dtype), limit=limit)
        assert_exact(*versions, scene(dtype, groups=2, channels=24, size=(9, 33)), limit=limit)
        assert_exact(*versions, scene(dtype, groups=12, channels=120, size=(5, 7)), limit=limit)


def test_plain_deformable_convolution_is_as_exact_as_its_numbers() -> None:
    def plainly(version: Run) -> Run:
        return lambda x, offset, mask, weight, bias: version(x, offset, mask, weight, bias=bias)

    torch.manual_seed(0)
    # Not at whole pixels, of which there are many among half-precision numbers: see assert_exact.
    offset = (3 * draw(2, 18 * 8, 30, 34)).floor() + 0.1 + 0.8 * draw(2, 18 * 8, 30, 34).sigmoid()
    inputs = [draw(2, 48, 30, 34), offset, draw(2, 9 * 8, 30, 34)]
    inputs += [draw(40, 48, 3, 3) * 0.05, draw(40)]
    versions = plainly(deform_conv.deform_conv_fused), plainly(deform_conv.deform_conv_reference)
    for dtype, limit in ((torch.float32, 2e-5), (torch.float16, 2e-3)):
        assert_exact(*versions, [part.to(dtype) for part in inputs], limit=limit)


def test_warps_are_as_exact_as_their_numbers() -> None:
    torch.manual_seed(1)
    pairs = neighbour_pairs(1, 6, torch.device("cuda"))
    for dtype, limit in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
        for order in (torch.channels_last, torch.contiguous_format):
            image = draw(10, 20, 31, 40).to(dtype).contiguous(memory_format=order)
            inputs = [image, 5 * draw(10, 2, 31, 40)]
            for padding in ("zeros", "border"):
                options: dict[str, Any] = {"padding": padding}
                assert_exact(
                    lambda i, f, options=options: flow_warp.bilinear_fused(i, f, **options),
                    lambda i, f, options=options: flow_warp.bilinear_reference(i, f, **options),
                    inputs,
                    limit=limit,
                )
                options |= {"pairs": pairs, "first": "current"}
                assert_exact(
                    lambda i, f, options=options: flow_warp.join_fused(i, f, **options),
                    lambda i, f, options=options: flow_warp.join_reference(i, f, **options),
                    [image[:6], inputs[1]],
                    limit=limit,
                )
            fused, plain = flow_warp.nearest4_fused, flow_warp.nearest4_reference
            assert_exact(fused, plain, inputs, limit=limit)


def test_places_that_are_no_numbers_are_read_as_in_the_reference() -> None:
    torch.manual_seed(2)
    image, flow = draw(1, 8, 12, 13), draw(1, 2, 12, 13)
    # Far outside, not infinitely far: there the reference's answer depends on the device.
    for place, value in enumerate((float("nan"), 1e4, -1e4)):
        flow[0, :, 2 * place, 3] = value
        flow[0, place % 2, 2 * place, 7] = value
    for padding in ("zeros", "border"):
        options: dict[str, Any] = {"padding": padding}
        mine = all_of(lambda i, f, o=options: flow_warp.bilinear_fused(i, f, **o), [image, flow])
        other = all_of(
            lambda i, f, o=options: flow_warp.bilinear_reference(i, f, **o), [image, flow]
        )
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_how_work_is_cut_changes_nothing_but_the_order_of_sums() -> None:
    from pitstop.kernels import deform_conv_triton as conv

    inputs = scene(torch.bfloat16)
    want = all_of(aligned(deform_conv.align_fused), inputs)
    shipped = conv.FORWARD, conv.BACKWARD
    try:
        for cut in ((32, 4, 4), (64, 4, 8, 1, 9), (16, 16, 8, 1, 4000)):
            conv.FORWARD = conv.BACKWARD = conv.Launch(*cut)
            got = all_of(aligned(deform_conv.align_fused), inputs)
            for mine, other in zip(got, want, strict=True):
                assert error_of(mine, other.double()) < 1e-2
    finally:
        conv.FORWARD, conv.BACKWARD = shipped


def test_deterministic_algorithms_give_the_same_bits() -> None:
    torch.manual_seed(3)
    warped = [draw(4, 96, 32, 32), 6 * draw(4, 2, 32, 32)]
    torch.use_deterministic_algorithms(mode=True)
    try:
        for run, inputs in (
            (aligned(deform_conv.align_fused), scene(torch.bfloat16)),
            (flow_warp.bilinear_fused, warped),
            (flow_warp.nearest4_fused, warped),
        ):
            first = all_of(run, inputs)
            for _ in range(4):
                again = all_of(run, inputs)
                assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))
    finally:
        torch.use_deterministic_algorithms(mode=False)
    loose = all_of(flow_warp.bilinear_fused, warped)
    for mine, other in zip(loose, all_of(flow_warp.bilinear_fused, warped), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_columns_are_never_held() -> None:
    inputs = scene(torch.bfloat16, size=(128, 128))
    run = aligned(deform_conv.align_fused)
    all_of(run, inputs)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    held = sum(part.nbytes for part in all_of(run, inputs))
    peak = torch.cuda.max_memory_allocated() - before
    assert peak - held < 8 * 128 * 128 * 96 * 9 * 2


def test_aligning_never_waits_for_the_device() -> None:
    inputs, run = scene(torch.bfloat16), aligned(deform_conv.align_fused)
    all_of(run, inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = run(*(part.requires_grad_() for part in inputs))
        out.backward(torch.ones_like(out))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def found_by(
    module: torch.nn.Module, kernels: Kernels, call: Run, *, half: bool
) -> dict[str, Tensor]:
    """Result and gradients of all weights by one kind of kernels."""
    for part in module.modules():
        if isinstance(part, VRT | SpyNet | Alignment):
            part.kernels = kernels
    module.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        out = call(module).float()
    torch.manual_seed(5)
    (out * draw(*out.shape)).sum().backward()
    grads = {name: weight.grad for name, weight in module.named_parameters()}
    return {"output": out.detach(), **{name: g for name, g in grads.items() if g is not None}}


def assert_no_worse(module: torch.nn.Module, calls: Sequence[Run], *, limit: float) -> None:
    """In float32 the same; in bfloat16 hardly further from float32 than the plain way.

    Errors in bfloat16 are root mean squares over all calls: one gradient of few numbers may be
    near or far by luck.
    """
    squares: dict[str, list[tuple[float, float]]] = {}
    for call in calls:
        with float32_as_float32():
            right = found_by(module, "reference", call, half=False)
            same = found_by(module, "auto", call, half=False)
        plain = found_by(module, "reference", call, half=True)
        fused = found_by(module, "auto", call, half=True)
        assert right.keys() == same.keys() == fused.keys()
        for name, value in right.items():
            true = value.double()
            # Places near a pixel's border: see assert_exact.
            assert error_of(same[name], true) < 2e-2, name
            pair = (error_of(fused[name], true) ** 2, error_of(plain[name], true) ** 2)
            squares.setdefault(name, []).append(pair)
    for name, pairs in squares.items():
        found, known = (math.sqrt(statistics.fmean(side)) for side in zip(*pairs, strict=True))
        # The fused result is bfloat16 like everything around it, the plain one float32.
        assert found <= limit * known + 4e-3, name


def test_a_stage_aligned_in_bfloat16_is_as_exact_as_the_plain_way() -> None:
    torch.manual_seed(6)
    module = Alignment(96, num_steps=1, deformable_groups=16, max_residue=5.0).cuda()
    with torch.no_grad():
        for weight in module.conv_offset[6].parameters():
            weight.normal_(std=0.02)
    x, flow = draw(1, 4, 48, 48, 96), 3 * draw(2, 3, 2, 48, 48)
    assert_no_worse(module, [lambda m: m(x, (flow,))], limit=1.25)


def test_a_small_network_gives_the_same_by_both_kinds_of_kernels() -> None:
    torch.manual_seed(7)
    model = VRT(**VRT_SMALL).cuda().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 or "conv_offset.6" in name:
                weight.add_(0.02 * torch.randn_like(weight))
    clips = [torch.rand(1, 4, 3, 64, 64, device="cuda") for _ in range(6)]
    # The flow estimator's gradients are sums that all but cancel, some of them a single number: of
    # six such errors the root mean square is twice another one's by chance now and then.
    assert_no_worse(model, [partial(restored, clip=clip) for clip in clips], limit=3.0)


def restored(model: torch.nn.Module, *, clip: Tensor) -> Tensor:
    return model(clip)


if __name__ == "__main__":
    for name, claim in list(globals().items()):
        if name.startswith("test_"):
            claim()
            sys.stdout.write(f"{name}: holds\n")
            sys.stdout.flush()
