"""What the fused splat must do; test_splat_fused.py runs this under Triton's interpreter."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.kernels import splat_plan
from pitstop.kernels.splat import splat_fused, splat_reference
from pitstop.kernels.splat_plan import SplatPlan, make_plan
from tests.unit.kernels.triton_interpreter import interpreter_set_right

torch.set_num_threads(1)

Ranks = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(scope="module", autouse=True)
def the_interpreter_is_set_right() -> Iterator[None]:
    with interpreter_set_right():
        yield


def frustum(cameras: int, height: int, width: int, bins: int, cells: int) -> Ranks:
    """A point for every bin of every pixel, some of them in no cell."""
    pixels = cameras * height * width
    generator = torch.Generator().manual_seed(pixels + cells)
    ranks_depth = torch.arange(pixels * bins)
    ranks_bev = torch.randint(-1, cells + 1, (pixels * bins,), generator=generator)
    return ranks_depth, ranks_depth // bins, ranks_bev


def inputs(weights: int, rows: int, channels: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(weights * rows + channels)
    depth = torch.rand(weights, generator=generator)
    return depth, torch.randn(rows, channels, generator=generator)


def by_loop(
    depth: Tensor, feat: Tensor, ranks: Ranks, num_cells: int, grad: Tensor
) -> list[Tensor]:
    """Result and both gradients in float64, a point at a time."""
    depth, feat, grad = depth.double(), feat.double(), grad.double()
    out = torch.zeros(num_cells, feat.shape[1], dtype=torch.float64)
    grad_depth, grad_feat = torch.zeros_like(depth), torch.zeros_like(feat)
    for d, f, b in zip(*(rank.tolist() for rank in ranks), strict=True):
        if 0 <= b < num_cells:
            out[b] += depth[d] * feat[f]
            grad_depth[d] += (grad[b] * feat[f]).sum()
            grad_feat[f] += depth[d] * grad[b]
    return [out, grad_depth, grad_feat]


def by_kernel(
    depth: Tensor, feat: Tensor, ranks: Ranks, grad: Tensor, plan: SplatPlan | None
) -> list[Tensor]:
    depth, feat = depth.clone().requires_grad_(), feat.clone().requires_grad_()
    out = splat_fused(depth, feat, *ranks, grad.shape[0], plan)
    return [out.detach(), *torch.autograd.grad(out, (depth, feat), grad)]


def agree(got: list[Tensor], want: list[Tensor], *, rtol: float, atol: float) -> None:
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=rtol, atol=atol)


@given(
    points=st.integers(1, 150),
    weights=st.integers(1, 60),
    rows=st.integers(1, 40),
    cells=st.integers(1, 50),
    channels=st.integers(1, 20) | st.integers(33, 84),
)
@settings(max_examples=15, deadline=None)
def test_any_ranks_give_the_sums_and_gradients_of_a_plain_loop(
    points: int, weights: int, rows: int, cells: int, channels: int
) -> None:
    generator = torch.Generator().manual_seed(points)
    ranks = (
        torch.randint(0, weights, (points,), generator=generator),
        torch.randint(0, rows, (points,), generator=generator),
        torch.randint(-2, cells + 2, (points,), generator=generator),
    )
    depth, feat = inputs(weights, rows, channels)
    grad = torch.randn(cells, channels, generator=generator)
    got = by_kernel(depth, feat, ranks, grad, None)
    agree(got, by_loop(depth, feat, ranks, cells, grad), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("picture", [(6, 10), (5, 7), None])
def test_pictures_of_cells_and_pixels_only_change_who_works_on_what(
    picture: tuple[int, int] | None,
) -> None:
    cells = 60 if picture == (6, 10) else 35
    ranks = frustum(2, 5, 3, 7, cells)
    plan = make_plan(
        ranks,
        num_cells=cells,
        num_features=30,
        cell_picture=picture,
        feature_picture=(5, 3),
        weights_differ=True,
    )
    depth, feat = inputs(210, 30, 12)
    grad = torch.randn(cells, 12)
    got = by_kernel(depth, feat, ranks, grad, plan)
    agree(got, by_loop(depth, feat, ranks, cells, grad), rtol=1e-5, atol=1e-5)


def test_a_crowded_tile_is_shared_out_and_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splat_plan, "CELL_CHUNK", 32)
    monkeypatch.setattr(splat_plan, "FEATURE_CHUNK", 16)
    ranks = frustum(1, 8, 4, 9, 40)
    ranks[2][:200] = 3
    plan = make_plan(ranks, num_cells=40, num_features=32, weights_differ=True)
    counts = torch.bincount(plan.by_cell.pieces[plan.by_cell.pieces >= 0])
    assert counts.max() >= 6
    depth, feat = inputs(288, 32, 20)
    grad = torch.randn(40, 20)
    got = by_kernel(depth, feat, ranks, grad, plan)
    agree(got, by_loop(depth, feat, ranks, 40, grad), rtol=1e-5, atol=1e-5)


def test_half_precision_is_summed_in_float32() -> None:
    # Not bfloat16: the interpreter multiplies its bits as integers. A device's test does.
    ranks = (torch.arange(600), torch.arange(600) % 50, torch.zeros(600, dtype=torch.int64))
    depth, feat = inputs(600, 50, 16)
    depth, feat = depth.half(), feat.half()
    grad = torch.randn(2, 16).half()
    got = by_kernel(depth, feat, ranks, grad, None)
    assert {part.dtype for part in got} == {torch.float16}
    want = by_loop(depth, feat, ranks, 2, grad)
    # The result's own rounding and no more; a sum of 600 in half precision would lose 0.5 %.
    agree(got, want, rtol=2**-11, atol=1e-5)


def test_the_same_call_gives_the_same_bits() -> None:
    ranks = frustum(1, 6, 4, 9, 11)
    depth, feat = inputs(216, 24, 9)
    grad = torch.randn(11, 9)
    first = by_kernel(depth, feat, ranks, grad, None)
    for mine, again in zip(first, by_kernel(depth, feat, ranks, grad, None), strict=True):
        assert torch.equal(mine, again)


def test_it_is_one_graph_for_the_compiler_and_gradients_stay() -> None:
    ranks = frustum(1, 4, 4, 5, 12)
    plan = make_plan(ranks, num_cells=12, num_features=16, weights_differ=True)
    depth, feat = (part.requires_grad_() for part in inputs(80, 16, 8))

    def pooled(depth: Tensor, feat: Tensor, ranks: Ranks, plan: SplatPlan) -> Tensor:
        return splat_fused(depth.softmax(0), feat, *ranks, 12, plan).square().sum()

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(depth, feat, ranks, plan), (depth, feat))
    want = torch.autograd.grad(
        splat_reference(depth.softmax(0), feat, *ranks, 12).square().sum(), (depth, feat)
    )
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine, true)


def test_a_plan_is_made_in_one_graph_without_looking_at_the_values() -> None:
    ranks = frustum(1, 4, 4, 5, 12)
    depth, feat = inputs(80, 16, 8)

    def pooled(depth: Tensor, feat: Tensor, ranks: Ranks) -> Tensor:
        return splat_fused(depth, feat, *ranks, 12)

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(depth, feat, ranks), splat_reference(depth, feat, *ranks, 12)
    )


def test_the_operation_passes_the_checks_of_torch() -> None:
    ranks = frustum(1, 2, 4, 3, 6)
    plan = make_plan(ranks, num_cells=6, num_features=8)
    depth, feat = (part.requires_grad_() for part in inputs(24, 8, 4))
    arguments = (
        depth,
        feat,
        [*plan.by_cell, *plan.by_feature],
        [*plan.cells, *plan.features, 0],
    )
    torch.library.opcheck(torch.ops.pitstop.splat.default, arguments)


def test_more_channels_than_a_program_holds_are_refused_by_name() -> None:
    ranks = frustum(1, 2, 2, 2, 3)
    depth, feat = inputs(8, 4, 257)
    with pytest.raises(ConfigError, match="at most 256 channels"):
        splat_fused(depth, feat, *ranks, 3)
