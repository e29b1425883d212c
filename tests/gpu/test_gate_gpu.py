"""The fused gate of feed-forward layers on a CUDA device, against float64.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_gate_gpu.py``.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from pitstop.kernels import has_triton
from pitstop.kernels.gate import gate_fused, gate_reference
from pitstop.workloads.deblur.model.blocks import GatedMLP

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


def both(version: Callable[[Tensor], Tensor], joint: Tensor, grad: Tensor) -> list[Tensor]:
    leaf = joint.clone().requires_grad_()
    out = version(leaf)
    return [out.detach(), *torch.autograd.grad(out, leaf, grad)]


def error_of(mine: Tensor, true: Tensor) -> float:
    """Norm of the error over that of what is right."""
    assert mine.isfinite().all()
    return float((mine.double() - true).norm() / true.norm())


def test_it_loses_no_more_than_the_plain_way_does() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for shape in ((6, 33, 40, 384), (1000, 480), (7, 10)):
            torch.manual_seed(shape[0])
            joint = torch.randn(shape, device="cuda").to(dtype)
            grad = torch.randn(*shape[:-1], shape[-1] // 2, device="cuda").to(dtype)
            right = both(gate_reference, joint.double(), grad.double())
            plain = both(gate_reference, joint, grad)
            for mine, other, true in zip(both(gate_fused, joint, grad), plain, right, strict=True):
                assert mine.dtype == dtype
                assert error_of(mine, true) <= 1.05 * error_of(other, true) + 2e-7


def test_a_layer_gives_what_two_projections_give() -> None:
    torch.manual_seed(0)
    plain = GatedMLP(96, 192, 96, kernels="reference").cuda()
    fused = GatedMLP(96, 192, 96, kernels="fused").cuda()
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(4, 50, 96, device="cuda")

    def passed(layer: GatedMLP, *, half: bool) -> dict[str, Tensor]:
        layer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            out = layer(x).float()
        out.square().mean().backward()
        grads = {name: part.grad for name, part in layer.named_parameters()}
        return {"out": out.detach()} | {k: v for k, v in grads.items() if v is not None}

    right = {name: part.double() for name, part in passed(plain, half=False).items()}
    known, found = passed(plain, half=True), passed(fused, half=True)
    assert found.keys() == right.keys()
    for name, true in right.items():
        assert error_of(found[name], true) <= 1.25 * error_of(known[name], true), name


if __name__ == "__main__":
    for name, claim in list(globals().items()):
        if name.startswith("test_"):
            claim()
            sys.stdout.write(f"{name}: holds\n")
