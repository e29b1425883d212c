"""The fused token-wise half of attention blocks on a CUDA device, against float64.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_block_gpu.py``.
"""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pitstop.kernels import Kernels, has_triton
from pitstop.kernels.window_attention import Windows, shift_regions
from pitstop.workloads.deblur.model.blocks import (
    AttentionBlock,
    BlockShape,
    BranchScale,
    BranchScales,
)

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

WINDOW = Windows((2, 8, 8), (1, 4, 4))
VOLUME = (4, 16, 24)


def block_of(kernels: Kernels, dim: int, *, mutual: bool) -> AttentionBlock:
    shape = BlockShape(
        dim=dim,
        num_heads=6,
        window=(2, 8, 8),
        mutual=mutual,
        mlp_ratio=2.0,
        qkv_bias=True,
        kernels=kernels,
    )
    torch.manual_seed(dim)
    module = AttentionBlock(shape)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return module.cuda()


def passed(
    module: AttentionBlock, x: Tensor, scale: BranchScale, *, half: bool
) -> dict[str, Tensor]:
    """Result and all gradients."""
    module.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    regions = shift_regions(VOLUME, WINDOW, device=x.device)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        out = module(x, WINDOW, regions, BranchScales(scale, scale))
    weight = torch.linspace(-1, 1, out.numel(), device=x.device, dtype=out.dtype).view_as(out)
    (out * weight).sum().backward()
    grads = {name: one.grad for name, one in module.named_parameters() if one.grad is not None}
    assert x.grad is not None
    return {"out": out.detach(), "x": x.grad, **grads}


def error_of(mine: Tensor, true: Tensor) -> float:
    """Norm of the error over that of what is right."""
    assert mine.isfinite().all()
    return float((mine.double() - true).norm() / true.norm())


def test_a_block_loses_no_more_than_the_plain_one_does() -> None:
    for dim in (96, 120):
        for mutual in (False, True):
            plain = block_of("reference", dim, mutual=mutual)
            fused = block_of("fused", dim, mutual=mutual)
            x = torch.randn(2, *VOLUME, dim, device="cuda")
            scale = torch.tensor([1.25, 0.5], device="cuda").view(2, 1, 1, 1, 1)
            wide = copy.deepcopy(plain).double()
            right = passed(wide, x.double(), scale.double(), half=False)
            known = passed(plain, x, scale, half=True)
            found = passed(fused, x, scale, half=True)
            assert found.keys() == right.keys()
            for name, true in right.items():
                assert found[name].dtype == torch.float32, name
                limit = 1.25 * error_of(known[name], true) + 1e-6
                assert error_of(found[name], true) <= limit, (dim, mutual, name)


@contextmanager
def products(setting: str) -> Iterator[None]:
    """Multiply float32 as torch's setting says."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = setting
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_float32_is_as_exact_as_torchs_own_products() -> None:
    # Split operands leave out 2 ** -22 of a product; the plain way rounds each sum to 2 ** -24.
    for setting, most, spare in (("ieee", 1.25, 1e-6), ("tf32", 1.25, 1e-5)):
        for dim, mutual, scaled in ((96, True, False), (120, False, True)):
            plain = block_of("reference", dim, mutual=mutual)
            fused = block_of("fused", dim, mutual=mutual)
            x = torch.randn(2, *VOLUME, dim, device="cuda")
            scale = torch.tensor([1.25, 0.5], device="cuda").view(2, 1, 1, 1, 1)
            given = scale if scaled else True
            wide = copy.deepcopy(plain).double()
            right = passed(wide, x.double(), scale.double() if scaled else True, half=False)
            with products(setting):
                known = passed(plain, x, given, half=False)
                found = passed(fused, x, given, half=False)
            for name, true in right.items():
                limit = most * error_of(known[name], true) + spare
                assert error_of(found[name], true) <= limit, (setting, dim, name)


def test_the_same_call_gives_the_same_bits() -> None:
    fused = block_of("fused", 96, mutual=True)
    x = torch.randn(2, *VOLUME, 96, device="cuda")
    scale = torch.ones(2, 1, 1, 1, 1, device="cuda")
    first, again = passed(fused, x, scale, half=True), passed(fused, x, scale, half=True)
    assert all(torch.equal(first[name], again[name]) for name in first)


if __name__ == "__main__":
    for name, claim in list(globals().items()):
        if name.startswith("test_"):
            claim()
            sys.stdout.write(f"{name}: holds\n")
