"""Fused attention in windows on a CUDA device: exact, repeatable, without scores, without waiting.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_windows_gpu.py``.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pitstop.kernels import Kernels, has_triton
from pitstop.kernels.windows import attend_windows, attend_windows_fused, attend_windows_reference
from pitstop.workloads.bev.model.swin import SwinFeatures

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

Version = Callable[..., Tensor]
Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""Projections, bias, mask, and the gradient of the result."""

IMAGE_SIZE = (224, 300)
"""In windows of 7: 8x11 of them, some filled up, then 4x6."""


def case(
    dtype: torch.dtype,
    *,
    num_windows: int = 6 * 88 + 3,
    tokens: int = 49,
    heads: int = 3,
    channels: int = 32,
    places: int = 88,
) -> Inputs:
    torch.manual_seed(tokens)
    shape = (num_windows, tokens, 3, heads, channels)
    qkv = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    bias = torch.randn(heads, tokens, tokens, device="cuda", requires_grad=True)
    mask = None
    if places:
        mask = torch.where(torch.rand(places, tokens, tokens, device="cuda") > 0.7, -100.0, 0.0)
    grad = torch.randn(num_windows, tokens, heads, channels, device="cuda").to(dtype)
    return qkv, bias, mask, grad


def all_of(version: Version, given: Inputs) -> list[Tensor]:
    qkv, bias, mask, grad = given
    out = version(qkv, bias, mask, scale=qkv.shape[-1] ** -0.5)
    return [out.detach(), *torch.autograd.grad(out, (qkv, bias), grad)]


def exact(given: Inputs) -> list[Tensor]:
    """Result and gradients in float64."""
    qkv, bias, mask, grad = given
    return all_of(
        attend_windows_reference,
        (
            qkv.detach().double().requires_grad_(),
            bias.detach().double().requires_grad_(),
            None if mask is None else mask.double(),
            grad.double(),
        ),
    )


@contextmanager
def without_tf32() -> Iterator[None]:
    """Multiply and convolve float32 as float32."""
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def error_of(mine: Tensor, true: Tensor) -> float:
    """Root mean square of the error over that of what is right."""
    return float((mine.double() - true).square().mean().sqrt() / true.square().mean().sqrt())


def assert_exact(given: Inputs, *, atol: float) -> None:
    """Everywhere within ``atol`` of the right numbers' size, and by and large as the plain way."""
    dtype = given[0].dtype
    right = exact(given)
    with without_tf32():
        plain = all_of(attend_windows_reference, given)
    fused = all_of(attend_windows_fused, given)
    assert [part.dtype for part in fused] == [dtype, dtype, torch.float32]
    for mine, other, true in zip(fused, plain, right, strict=True):
        size = float(true.square().mean().sqrt())
        torch.testing.assert_close(mine.double(), true, rtol=atol / 4, atol=atol * size)
        assert error_of(mine, true) <= 1.2 * error_of(other, true)


def test_half_precision_loses_no_more_than_the_plain_way_does() -> None:
    for dtype, atol in ((torch.bfloat16, 2**-4), (torch.float16, 2**-7)):
        assert_exact(case(dtype), atol=atol)
        assert_exact(case(dtype, places=0), atol=atol)
        assert_exact(case(dtype, tokens=64, heads=2, channels=64, places=2), atol=atol)
        assert_exact(case(dtype, tokens=16, heads=4, channels=24, places=3), atol=atol)
        assert_exact(case(dtype, tokens=17, heads=1, channels=16, places=5), atol=atol)


def test_float32_is_as_exact_as_float32() -> None:
    for given in (
        case(torch.float32),
        case(torch.float32, tokens=64, heads=2, channels=64, places=0),
        case(torch.float32, tokens=16, heads=4, channels=24, places=3),
    ):
        for mine, true in zip(all_of(attend_windows_fused, given), exact(given), strict=True):
            size = float(true.square().mean().sqrt())
            torch.testing.assert_close(mine.double(), true, rtol=2e-5, atol=2e-5 * size)


def test_how_windows_are_shared_out_changes_nothing_but_the_order_of_sums() -> None:
    from pitstop.kernels import windows_triton

    given = case(torch.bfloat16)
    qkv, bias, mask, grad = (None if part is None else part.detach() for part in given)
    assert qkv is not None
    assert bias is not None
    assert grad is not None
    scale = qkv.shape[-1] ** -0.5
    want = windows_triton.attend(qkv, bias, mask, scale)
    want_grads = windows_triton.attend_backward(grad, qkv, bias, mask, scale)
    for launch in ((1, 1, 4, 1), (64, 1, 4, 3), (5, 1, 8, 2), (16, 10**6, 2, 1), (8, 1, 4, 2, 168)):
        cut = windows_triton.Launch(*launch)
        got = windows_triton.attend(qkv, bias, mask, scale, launch=cut)
        torch.testing.assert_close(got, want, rtol=2**-7, atol=1e-2)
        grads = windows_triton.attend_backward(grad, qkv, bias, mask, scale, launch=cut)
        torch.testing.assert_close(grads[0], want_grads[0], rtol=2**-7, atol=2e-2)
        torch.testing.assert_close(grads[1], want_grads[1], rtol=1e-3, atol=1e-2)


def test_the_same_call_gives_the_same_bits() -> None:
    given = case(torch.bfloat16)
    runs = [all_of(attend_windows, given) for _ in range(5)]
    for again in runs[1:]:
        assert all(torch.equal(mine, first) for mine, first in zip(again, runs[0], strict=True))


def test_scores_are_never_held() -> None:
    given = case(torch.bfloat16, num_windows=88 * 128)
    all_of(attend_windows, given)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = all_of(attend_windows, given)
    peak = torch.cuda.max_memory_allocated() - before
    held = sum(part.nbytes for part in kept)
    assert peak - held < 88 * 128 * 3 * 49 * 49 * 2 / 2


def test_attending_never_waits_for_the_device() -> None:
    given = case(torch.bfloat16)
    all_of(attend_windows, given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        all_of(attend_windows, given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_more_windows_than_fit_into_32_bits_are_found() -> None:
    from pitstop.kernels import windows_triton

    # 2**31 numbers lie before the last windows.
    num_windows = 2**31 // (64 * 3 * 64) + 8
    qkv = torch.zeros(num_windows, 64, 3, 1, 64, dtype=torch.bfloat16, device="cuda")
    qkv[-8:] = torch.randn(8, 64, 3, 1, 64, device="cuda").bfloat16()
    bias = torch.randn(1, 64, 64, device="cuda")
    got = windows_triton.attend(qkv, bias, None, 0.125)[-8:]
    alone = windows_triton.attend(qkv[-8:].clone(), bias, None, 0.125)
    assert torch.equal(got, alone)


def test_compiled_it_gives_what_it_gives_alone() -> None:
    qkv, bias, mask, grad = case(torch.bfloat16)

    def pooled(qkv: Tensor, bias: Tensor) -> Tensor:
        return attend_windows((qkv * 0.5).tanh(), bias * 2, mask, scale=0.2)

    def both(run: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        out = run(qkv, bias)
        return [out.detach(), *torch.autograd.grad(out, (qkv, bias), grad)]

    for mine, true in zip(both(torch.compile(pooled, fullgraph=True)), both(pooled), strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-2, atol=2e-2)


def features_of(kernels: Kernels) -> SwinFeatures:
    torch.manual_seed(0)
    features = SwinFeatures(
        "swin_t", out_stages=(0, 1), image_size=IMAGE_SIZE, kernels=kernels
    ).cuda()
    torch.manual_seed(1)
    with torch.no_grad():
        # Fresh tables are zero and fresh projections small: attention would be a plain mean.
        for path, weight in features.named_parameters():
            if "bias_table" in path:
                weight.normal_()
            elif "q_proj.weight" in path or "k_proj.weight" in path:
                weight.normal_(std=weight.shape[1] ** -0.5)
    return features


def pass_of(features: SwinFeatures, run: Any, *, half: bool) -> dict[str, Tensor]:
    """Maps, and gradients of all weights, in float64."""
    torch.manual_seed(2)
    images = torch.randn(2, 3, *IMAGE_SIZE, device="cuda")
    features.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        maps = [part.float() for part in run(images)]
    torch.stack([(part * torch.randn_like(part)).sum() for part in maps]).sum().backward()
    found = {f"stage {stage}": part.detach().double() for stage, part in enumerate(maps)}
    for name, weight in features.named_parameters():
        # What all keys have in common weighs nothing: its gradient is rounding alone.
        if "k_proj.bias" not in name:
            assert weight.grad is not None, name
            found[name] = weight.grad.double()
    return found


def errors_of(got: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, float]:
    return {name: error_of(got[name], true) for name, true in right.items()}


def compiled(features: SwinFeatures, mode: str = "default") -> Any:
    return torch.compile(features, fullgraph=True, dynamic=False, mode=mode)


def test_backbones_of_both_kinds_give_the_same_compiled_or_not() -> None:
    plain, joined = features_of("reference"), features_of("auto")
    with without_tf32():
        want = pass_of(plain, plain, half=False)
        for run in (joined, compiled(joined)):
            errors = errors_of(pass_of(joined, run, half=False), want)
            assert max(errors.values()) < 1e-3, errors


def test_in_bfloat16_joined_attention_is_as_exact_as_plain_in_every_way_to_run_it() -> None:
    plain, joined = features_of("reference"), features_of("auto")
    with without_tf32():
        right = pass_of(plain, plain, half=False)
    known = errors_of(pass_of(plain, compiled(plain), half=True), right)
    recorded = compiled(joined, "reduce-overhead")
    # A CUDA graph is recorded after some calls, and replayed from then on.
    for run in (joined, compiled(joined), *[recorded] * 4):
        errors = errors_of(pass_of(joined, run, half=True), right)
        for name, error in errors.items():
            assert error <= 1.5 * known[name] + 0.01, (name, error, known[name])


if __name__ == "__main__":
    for name, claim in list(globals().items()):
        if name.startswith("test_"):
            claim()
            sys.stdout.write(f"{name}: holds\n")
