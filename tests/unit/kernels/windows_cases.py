"""What attention in windows must do; test_windows.py runs this under Triton's interpreter."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.kernels import windows_triton
from pitstop.kernels.windows import attend_windows_fused, attend_windows_reference
from tests.unit.kernels.triton_interpreter import interpreter_set_right

torch.set_num_threads(1)

Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""Projections, bias, mask, and the gradient of the result."""


@pytest.fixture(scope="module", autouse=True)
def the_interpreter_is_set_right() -> Iterator[None]:
    with interpreter_set_right():
        yield


def inputs(
    num_windows: int, tokens: int, *, heads: int = 2, channels: int = 16, places: int = 0
) -> Inputs:
    generator = torch.Generator().manual_seed(num_windows * 64 + tokens + places)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    mask = None
    if places:
        mask = torch.where(draw(places, tokens, tokens) > 0.5, -100.0, 0.0)
    return (
        draw(num_windows, tokens, 3, heads, channels),
        draw(heads, tokens, tokens),
        mask,
        draw(num_windows, tokens, heads, channels),
    )


def by_loop(given: Inputs, *, scale: float) -> list[Tensor]:
    """Result and both gradients in float64, a window and a head at a time, by the formulas."""
    qkv, bias, mask, grad = (None if part is None else part.double() for part in given)
    assert qkv is not None
    assert bias is not None
    assert grad is not None
    out, grad_qkv, grad_bias = (torch.zeros_like(part) for part in (grad, qkv, bias))
    for window in range(qkv.shape[0]):
        for head in range(qkv.shape[3]):
            query, key, value = qkv[window, :, :, head].unbind(1)
            scores = torch.einsum("ic,jc->ij", query, key) * scale + bias[head]
            if mask is not None:
                scores += mask[window % len(mask)]
            powers = (scores - scores.amax(1, keepdim=True)).exp()
            weights = powers / powers.sum(1, keepdim=True)
            out[window, :, head] = torch.einsum("ij,jc->ic", weights, value)
            behind = grad[window, :, head]
            # The Jacobian of each row's softmax, written out.
            slopes = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
            back = torch.einsum("ijk,ic,kc->ij", slopes, behind, value)
            grad_bias[head] += back
            grad_qkv[window, :, 0, head] = torch.einsum("ij,jc->ic", back, key) * scale
            grad_qkv[window, :, 1, head] = torch.einsum("ij,ic->jc", back, query) * scale
            grad_qkv[window, :, 2, head] = torch.einsum("ij,ic->jc", weights, behind)
    return [out, grad_qkv, grad_bias]


def by_kernel(given: Inputs, *, scale: float) -> list[Tensor]:
    qkv, bias, mask, grad = given
    qkv, bias = qkv.clone().requires_grad_(), bias.clone().requires_grad_()
    out = attend_windows_fused(qkv, bias, mask, scale=scale)
    return [out.detach(), *torch.autograd.grad(out, (qkv, bias), grad)]


def agree(got: list[Tensor], want: list[Tensor], *, rtol: float = 1e-5, atol: float = 2e-5) -> None:
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=rtol, atol=atol)


@given(
    num_windows=st.integers(1, 9),
    tokens=st.integers(4, 64) | st.sampled_from([16, 17, 49, 64]),
    heads=st.integers(1, 3),
    channels=st.sampled_from([16, 24, 32, 64]),
    places=st.integers(0, 5),
    run=st.integers(1, 5),
)
@settings(max_examples=40, deadline=None)
def test_any_windows_give_the_results_and_gradients_of_a_plain_loop(
    num_windows: int, tokens: int, heads: int, channels: int, places: int, run: int
) -> None:
    given_ = inputs(num_windows, tokens, heads=heads, channels=channels, places=places)
    scale = channels**-0.5
    launch = windows_triton.Launch(run, 1, 4, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_triton, "FORWARD", launch)
        patch.setattr(windows_triton, "BACKWARD", launch)
        agree(by_kernel(given_, scale=scale), by_loop(given_, scale=scale))


@pytest.mark.parametrize(("run", "programs"), [(1, 1), (3, 1), (100, 1), (100, 12), (16, 10**6)])
@pytest.mark.parametrize("places", [0, 3])
def test_how_windows_are_shared_out_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, run: int, programs: int, places: int
) -> None:
    launch = windows_triton.Launch(run, programs, 4, 1)
    monkeypatch.setattr(windows_triton, "FORWARD", launch)
    monkeypatch.setattr(windows_triton, "BACKWARD", launch)
    given_ = inputs(11, 9, places=places)
    agree(by_kernel(given_, scale=0.25), by_loop(given_, scale=0.25))


def test_keys_that_are_masked_with_infinity_are_never_looked_at() -> None:
    qkv, bias, _, grad = inputs(4, 9)
    mask = torch.zeros(2, 9, 9)
    mask[1, :, 5:] = float("-inf")
    given_ = (qkv, bias, mask, grad)
    got = by_kernel(given_, scale=0.25)
    agree(got, by_loop(given_, scale=0.25))
    assert torch.equal(got[1][1::2, 5:, 1:], torch.zeros_like(got[1][1::2, 5:, 1:]))


def test_half_precision_loses_what_half_precision_has_to() -> None:
    # Not bfloat16: the interpreter multiplies its bits as integers. A device's test does.
    qkv, bias, mask, grad = inputs(5, 49, channels=32, places=2)
    given_ = (qkv.half(), bias, mask, grad.half())
    got = by_kernel(given_, scale=32**-0.5)
    assert [part.dtype for part in got] == [torch.float16, torch.float16, torch.float32]
    agree(got, by_loop(given_, scale=32**-0.5), rtol=2e-3, atol=2e-3)


def test_bias_and_mask_may_be_of_any_type() -> None:
    qkv, bias, mask, grad = inputs(4, 16, places=2)
    assert mask is not None
    given_ = (qkv, bias.half(), mask.bfloat16(), grad)
    got = by_kernel(given_, scale=0.25)
    assert got[2].dtype == torch.float16
    want = by_loop(given_, scale=0.25)
    agree(got[:2], want[:2])
    agree(got[2:], want[2:], rtol=1e-3, atol=1e-4)


def test_the_same_call_gives_the_same_bits() -> None:
    given_ = inputs(7, 20, places=3)
    first = by_kernel(given_, scale=0.25)
    for mine, again in zip(first, by_kernel(given_, scale=0.25), strict=True):
        assert torch.equal(mine, again)


def test_projections_that_are_not_contiguous_are_read_all_the_same() -> None:
    qkv, bias, mask, grad = inputs(4, 9, places=2)
    turned = qkv.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
    leaned = grad.transpose(1, 2).contiguous().transpose(1, 2)
    got = by_kernel((turned, bias.mT.contiguous().mT, mask, leaned), scale=0.25)
    agree(got, by_loop((qkv, bias, mask, grad), scale=0.25))


def test_it_is_one_graph_for_the_compiler_and_gradients_stay() -> None:
    qkv, bias, mask, _ = inputs(4, 9, places=2)
    parts = (qkv.requires_grad_(), bias.requires_grad_())

    def pooled(qkv: Tensor, bias: Tensor) -> Tensor:
        return attend_windows_fused(qkv.tanh(), bias, mask, scale=0.25).square().sum()

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(*parts), parts)
    true = attend_windows_reference(qkv.tanh(), bias, mask, scale=0.25).square().sum()
    for mine, right in zip(got, torch.autograd.grad(true, parts), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("places", [0, 2])
def test_the_operation_passes_the_checks_of_torch(places: int) -> None:
    qkv, bias, mask, _ = inputs(4, 9, places=places)
    arguments = (qkv.requires_grad_(), bias.requires_grad_(), mask, 0.25)
    torch.library.opcheck(torch.ops.pitstop.attend_windows.default, arguments)


def test_gradients_are_of_the_types_that_the_compiler_was_given() -> None:
    # Called by hand: autograd would bring them to these types in silence.
    qkv, bias, mask, grad = inputs(4, 9, places=2)
    arguments = (grad.half(), qkv.half(), bias.bfloat16(), mask, 0.25)
    torch.library.opcheck(torch.ops.pitstop.attend_windows_backward.default, arguments)


@pytest.mark.parametrize(
    ("tokens", "channels", "dtype"),
    [(65, 16, torch.float32), (9, 65, torch.float32), (9, 16, torch.float64)],
)
def test_windows_that_a_program_cannot_hold_are_refused_by_name(
    tokens: int, channels: int, dtype: torch.dtype
) -> None:
    qkv, bias, _, _ = inputs(1, tokens, channels=channels)
    with pytest.raises(ConfigError, match="at most 64 tokens and heads of at most 64 channels"):
        attend_windows_fused(qkv.to(dtype), bias, scale=1.0)


def test_what_does_not_fit_together_is_noticed() -> None:
    qkv, bias, mask, _ = inputs(2, 9, places=1)
    assert mask is not None
    with pytest.raises(AssertionError, match="other heads"):
        attend_windows_fused(qkv, bias[:1], scale=1.0)
    with pytest.raises(AssertionError, match="other windows"):
        attend_windows_fused(qkv, bias, mask[:, 1:], scale=1.0)
    with pytest.raises(AssertionError, match="not learned"):
        attend_windows_fused(qkv, bias, mask.requires_grad_(), scale=1.0)
