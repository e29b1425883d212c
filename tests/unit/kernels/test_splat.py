import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.kernels import splat_plan
from pitstop.kernels.splat import FORMULAS, dispatch, splat, splat_fused, splat_reference
from pitstop.kernels.splat_plan import TILE, Order, Tiling, make_plan

torch.set_num_threads(1)


Ranks = tuple[Tensor, Tensor, Tensor]


def random_ranks(points: int, *, weights: int, rows: int, cells: int) -> Ranks:
    generator = torch.Generator().manual_seed(points * 7 + cells)
    return (
        torch.randint(0, weights, (points,), generator=generator),
        torch.randint(0, rows, (points,), generator=generator),
        torch.randint(-2, cells + 2, (points,), generator=generator),
    )


def test_the_figures_of_a_public_example_come_out() -> None:
    depth = torch.tensor([0.3, 0.4, 0.2, 0.1, 0.7, 0.6, 0.8, 0.9], requires_grad=True)
    feat = torch.ones(4, 2, requires_grad=True)
    weights, rows, cells = [0, 4, 1, 6], [0, 0, 1, 2], [0, 0, 1, 1]
    ranks = (torch.tensor(weights), torch.tensor(rows), torch.tensor(cells))
    out = splat(depth, feat, *ranks, 4)
    grads = torch.autograd.grad(out.sum(), (depth, feat))
    assert float(out.detach().sum()) == pytest.approx(4.4)
    torch.testing.assert_close(grads[0], torch.tensor([2.0, 2, 0, 0, 2, 0, 2, 0]))
    torch.testing.assert_close(grads[1], torch.tensor([[1.0, 1], [0.4, 0.4], [0.8, 0.8], [0, 0]]))


@given(
    points=st.integers(0, 120),
    weights=st.integers(1, 40),
    rows=st.integers(1, 30),
    cells=st.integers(1, 40),
)
@settings(max_examples=40, deadline=None)
def test_sums_and_gradients_are_those_of_a_float64_loop(
    points: int, weights: int, rows: int, cells: int
) -> None:
    ranks = random_ranks(points, weights=weights, rows=rows, cells=cells)
    depth, feat = torch.rand(weights, requires_grad=True), torch.randn(rows, 5, requires_grad=True)
    grad = torch.randn(cells, 5)
    out = splat_reference(depth, feat, *ranks, cells)
    got = (out, *torch.autograd.grad(out, (depth, feat), grad))
    want = [torch.zeros(part.shape, dtype=torch.float64) for part in got]
    for d, f, b in zip(*(rank.tolist() for rank in ranks), strict=True):
        if 0 <= b < cells:
            want[0][b] += depth[d].double() * feat[f].double()
            want[1][d] += (grad[b].double() * feat[f].double()).sum()
            want[2][f] += depth[d].double() * grad[b].double()
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_summed_in_float32_both_ways() -> None:
    # A few weights and rows that thousands of points share: sums in bfloat16 would lose percents.
    generator = torch.Generator().manual_seed(2)
    depth = torch.rand(3, generator=generator).bfloat16().requires_grad_()
    feat = torch.rand(5, 4, generator=generator).bfloat16().requires_grad_()
    grad = torch.rand(2, 4, generator=generator).bfloat16()
    numbers = torch.arange(6000)
    ranks = (numbers % 3, numbers % 5, numbers % 2)
    out = splat_reference(depth, feat, *ranks, 2)
    got = [out, *torch.autograd.grad(out, (depth, feat), grad)]
    wide = depth.detach().double().requires_grad_(), feat.detach().double().requires_grad_()
    true = splat_reference(wide[0], wide[1], *ranks, 2)
    want = [true, *torch.autograd.grad(true, wide, grad.double())]
    for mine, right in zip(got, want, strict=True):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(mine.double(), right, rtol=2**-8, atol=0)


def test_what_is_summed_into_a_gradient_is_not_rounded_before() -> None:
    odd = 1 + 2**-7
    depth = torch.tensor([odd, 1 + 2**-6]).bfloat16()
    feat = torch.ones(1, 1).bfloat16().requires_grad_()
    numbers = torch.arange(4096)
    out = splat_reference(depth, feat, numbers % 2, numbers * 0, numbers % 2, 2)
    (grad,) = torch.autograd.grad(out, feat, torch.tensor([[odd], [-1.0]]).bfloat16())
    # odd * odd needs 14 bits: rounded to bfloat16 it would cancel against 1 + 2**-6.
    assert float(grad) == 2048 * 2**-14


def test_shapes_of_cameras_are_read_flat() -> None:
    depth, feat = torch.rand(2, 3, 4, 5), torch.randn(2, 3, 4, 7)
    ranks = (torch.arange(120), torch.arange(120) // 5, torch.arange(120) % 9)
    flat = splat_reference(depth.flatten(), feat.flatten(0, 2), *ranks, 9)
    assert torch.equal(splat_reference(depth, feat, *ranks, 9), flat)


def test_the_wider_of_two_types_is_kept() -> None:
    ranks = random_ranks(10, weights=4, rows=3, cells=5)
    out = splat(torch.rand(4), torch.randn(3, 2).bfloat16(), *ranks, 5)
    assert out.dtype == torch.float32


def test_it_compiles_to_one_graph_and_keeps_its_gradients() -> None:
    ranks = random_ranks(50, weights=20, rows=6, cells=8)
    depth, feat = torch.rand(20, requires_grad=True), torch.randn(6, 4, requires_grad=True)

    def pooled(depth: Tensor, feat: Tensor, ranks: Ranks) -> Tensor:
        return splat(depth, feat, *ranks, 8).square().sum()

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(depth, feat, ranks), (depth, feat))
    want = torch.autograd.grad(pooled(depth, feat, ranks), (depth, feat))
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine, true)


def walked(order: Order, tiling: Tiling) -> list[tuple[int, int, int]]:
    """Every point of an order as its pieces of work meet it: weight, gathered row, owner."""
    met = []
    for piece, tile in enumerate(order.pieces.tolist()):
        if tile < 0:
            continue
        share = piece - int(order.first_pieces[tile])
        start = int(order.starts[tile]) + share * tiling.chunk
        for point in range(start, min(start + tiling.chunk, int(order.ends[tile]))):
            row, place = divmod(int(order.rows[point]), TILE)
            picture, inside = divmod(tile, tiling.per_picture)
            y = inside // tiling.across * tiling.rows + place // tiling.columns
            x = inside % tiling.across * tiling.columns + place % tiling.columns
            owner = (picture * tiling.height + y) * tiling.width + x
            met.append((int(order.weights[point]), row, owner))
    return met


@given(
    points=st.integers(0, 150),
    picture=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    pictures=st.integers(1, 3),
    chunk=st.integers(1, 40),
)
@settings(max_examples=40, deadline=None)
def test_a_plan_meets_every_kept_point_once_in_both_orders(
    points: int, picture: tuple[int, int], pictures: int, chunk: int
) -> None:
    cells = picture[0] * picture[1] * pictures
    ranks = random_ranks(points, weights=30, rows=24, cells=cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splat_plan, "CELL_CHUNK", chunk)
        patch.setattr(splat_plan, "FEATURE_CHUNK", chunk)
        plan = make_plan(
            ranks,
            num_cells=cells,
            num_features=24,
            cell_picture=picture,
            feature_picture=(4, 3),
        )
    all_points = zip(*(rank.tolist() for rank in ranks), strict=True)
    kept = sorted(point for point in all_points if 0 <= point[2] < cells)
    assert sorted(walked(plan.by_cell, plan.cells)) == kept
    turned = sorted((d, b, f) for d, f, b in kept)
    assert sorted(walked(plan.by_feature, plan.features)) == turned


def test_every_tile_has_somebody_to_write_its_zeros() -> None:
    nothing = torch.zeros(0, dtype=torch.int32)
    plan = make_plan((nothing, nothing, nothing), num_cells=100, num_features=40)
    assert sorted(plan.by_cell.pieces.tolist()) == list(range(7))
    assert sorted(plan.by_feature.pieces.tolist()) == list(range(3))


def test_sizes_of_a_plan_do_not_depend_on_the_geometry() -> None:
    shapes = []
    for cell in (0, 1000):
        ranks = (torch.arange(900), torch.arange(900) // 9, torch.full((900,), cell))
        plan = make_plan(ranks, num_cells=64, num_features=100)
        shapes.append([part.shape for part in (*plan.by_cell, *plan.by_feature)])
    assert shapes[0] == shapes[1]


def test_auto_is_the_version_that_decides_by_device() -> None:
    assert dispatch("auto") is splat
    assert dispatch("reference") is splat_reference


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is there")
def test_fused_without_triton_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="needs Triton, which is not installed; set"):
        dispatch("fused")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_fused_is_there_where_triton_is() -> None:
    assert dispatch("fused") is splat_fused


def test_a_word_that_names_no_version_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="auto, reference, fused"):
        dispatch("fast")  # pyright: ignore[reportArgumentType]


def test_the_byte_floor_counts_each_input_and_output_once() -> None:
    sizes = {"num_points": 1_632_000, "num_weights": 1_993_728, "num_rows": 16_896}
    grid = {"num_cells": 65_536, "channels": 80, "itemsize": 2}
    forward = FORMULAS["splat"].num_bytes(**sizes, **grid)
    assert forward == 2 * (1_993_728 + 16_896 * 80 + 65_536 * 80) + 12 * 1_632_000
    backward = FORMULAS["splat_backward"].num_bytes(**sizes, **grid)
    assert backward - forward == 2 * (1_993_728 + 16_896 * 80)
    assert FORMULAS["splat"].flops(num_points=10, channels=4) == 80
    assert FORMULAS["splat_backward"].flops(num_points=10, channels=4) == 160
