"""Heads on the ground plane: norms keep the precision that they were asked in."""

import pytest
import torch
from torch import nn

from pitstop.workloads.bev.model.heads import TopdownHead
from pitstop.workloads.bev.model.norms import HalfwayNorm

torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_norm_answers_in_the_dtype_it_was_asked_in(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = HalfwayNorm(16, 32)
    plain = nn.GroupNorm(16, 32)
    x = 3 + 2 * torch.randn(2, 32, 5, 4).to(dtype)
    if dtype == torch.float64:
        norm, plain = norm.double(), plain.double()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = norm(x)
    wanted = plain(x.to(torch.promote_types(dtype, torch.float32)))
    assert found.dtype == dtype
    assert torch.equal(found, wanted.to(dtype)), "computed in float32, rounded once"


def test_no_activation_of_a_head_stays_in_float32_under_autocast() -> None:
    head = TopdownHead(16, 3, width=32)
    seen: list[torch.dtype] = []
    for module in head.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(torch.randn(1, 16, 6, 5))
    assert len(seen) > 40
    assert set(seen) == {torch.bfloat16}
    assert logits.dtype == torch.bfloat16
