"""What the fused gate must do; test_gate.py runs this under Triton's interpreter."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.kernels.gate import gate_fused, gate_reference
from tests.unit.kernels.triton_interpreter import interpreter_set_right

torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def the_interpreter_is_set_right() -> Iterator[None]:
    with interpreter_set_right():
        yield


def both(version: object, joint: Tensor, grad: Tensor) -> list[Tensor]:
    leaf = joint.clone().requires_grad_()
    out = version(leaf)  # pyright: ignore[reportCallIssue]
    return [out.detach(), *torch.autograd.grad(out, leaf, grad.to(out.dtype))]


@given(tokens=st.integers(1, 40), channels=st.integers(1, 200), seed=st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_any_size_gives_the_result_and_gradient_of_float64(
    tokens: int, channels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    joint = 3 * torch.randn(tokens, 2 * channels, generator=generator)
    grad = torch.randn(tokens, channels, generator=generator)
    want = both(gate_reference, joint.double(), grad)
    for mine, true in zip(both(gate_fused, joint, grad), want, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_types_and_leading_axes_stay_and_strides_do_not_matter(dtype: torch.dtype) -> None:
    joint = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    turned = joint.permute(2, 1, 0)
    out = gate_fused(turned)
    assert (out.dtype, out.shape) == (dtype, (2, 3, 3))
    torch.testing.assert_close(out, gate_reference(turned), rtol=2e-3, atol=2e-3)


def test_far_ends_are_nothing_and_everything() -> None:
    out = both(gate_fused, torch.tensor([[-40.0, 40.0, 2.0, 3.0]]), torch.ones(1, 2))
    assert out[0].tolist() == [[0.0, 120.0]]
    assert out[1].tolist() == [[0.0, 3.0, 0.0, 40.0]]


def test_the_operation_passes_the_checks_of_torch() -> None:
    joint = torch.randn(2, 8, requires_grad=True)
    torch.library.opcheck(torch.ops.pitstop.gate.default, (joint,))
