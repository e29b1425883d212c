"""The fused splat on a CUDA device: exact, repeatable, without a row per point, without waiting.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_splat_gpu.py``.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pitstop.data.loader.prefetch import on_device
from pitstop.kernels import has_triton
from pitstop.kernels.splat import Plan, splat, splat_fused, splat_reference
from pitstop.kernels.splat_columns import splat_columns
from pitstop.kernels.splat_columns_plan import ColumnPlan, join_column_plans, make_column_plan
from pitstop.kernels.splat_plan import SplatPlan, make_plan
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.model.geometry import (
    Cameras,
    Lift,
    LiftedPoints,
    SplatGrid,
    lifted_points,
)
from pitstop.workloads.bev.model.lift_splat import MONO, LssNet

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

CELLS = 4096
LIFT = Lift(image_size=(128, 352), stride=16, depth=(1.0, 41.0, 1.0))
GRID = SplatGrid(
    forward=(-25.6, 25.6, 0.8), across=(-25.6, 25.6, 0.8), height=(-10.0, 10.0, 20.0), frame="ego"
)


def cameras(batch: int = 2) -> Cameras:
    to_ego = torch.eye(4)
    to_ego[:3, :3] = torch.tensor([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    intrinsics = torch.tensor([[278.0, 0.0, 176.0], [0.0, 278.0, 64.0], [0.0, 0.0, 1.0]])
    parts = (
        intrinsics.expand(batch, 3, 3, 3),
        to_ego.expand(batch, 3, 4, 4),
        torch.eye(3).expand(batch, 3, 3, 3),
        torch.eye(4).expand(batch, 4, 4),
    )
    return Cameras(*(part.cuda() for part in parts))


def case(
    dtype: torch.dtype, channels: int = 80, lift: Lift = LIFT
) -> tuple[Tensor, Tensor, Tensor, LiftedPoints]:
    torch.manual_seed(0)
    points = lifted_points(cameras(), lift, GRID, with_plan=True)
    pixels = points.ranks_depth.numel() // lift.num_bins
    depth = torch.randn(pixels, lift.num_bins, device="cuda").softmax(-1)
    feat = torch.randn(pixels, channels, device="cuda")
    grad = torch.randn(2 * CELLS, channels, device="cuda")
    return (
        depth.to(dtype).requires_grad_(),
        feat.to(dtype).requires_grad_(),
        grad.to(dtype),
        points,
    )


def columns_of(points: LiftedPoints, lift: Lift = LIFT, batch: int = 2) -> ColumnPlan:
    return make_column_plan(
        points.ranks_bev,
        num_cells=batch * CELLS,
        cell_picture=(64, 64),
        feature_picture=lift.feature_size,
        num_bins=lift.num_bins,
    )


def rows_of(points: LiftedPoints, lift: Lift = LIFT) -> SplatPlan:
    """The plan for points with any ranks, of points that lie in columns."""
    return make_plan(
        points[:3],
        num_cells=points.num_samples * CELLS,
        num_features=points.ranks_bev.numel() // lift.num_bins,
        cell_picture=(64, 64),
        feature_picture=lift.feature_size,
        weights_differ=True,
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


def all_of(out: Tensor, depth: Tensor, feat: Tensor, grad: Tensor) -> list[Tensor]:
    return [out.detach(), *torch.autograd.grad(out, (depth, feat), grad)]


def assert_exact(dtype: torch.dtype, channels: int, *, rtol: float) -> None:
    depth, feat, grad, points = case(dtype, channels)
    weights, rows = (part.detach().double().requires_grad_() for part in (depth, feat))
    out = splat_reference(weights, rows, *points[:3], 2 * CELLS)
    want = all_of(out, weights, rows, grad.double())
    for plan in (rows_of(points), points.plan):
        out = splat_fused(depth, feat, *points[:3], 2 * CELLS, plan)
        for mine, true in zip(all_of(out, depth, feat, grad), want, strict=True):
            assert mine.dtype == dtype
            atol = rtol * float(true.square().mean().sqrt())
            torch.testing.assert_close(mine.double(), true, rtol=rtol, atol=atol)


def test_bfloat16_loses_no_more_than_the_result_has_to() -> None:
    assert_exact(torch.bfloat16, 80, rtol=2**-8)
    assert_exact(torch.bfloat16, 17, rtol=2**-8)
    assert_exact(torch.float16, 64, rtol=2**-11)


def test_float32_is_as_exact_as_float32() -> None:
    assert_exact(torch.float32, 80, rtol=2e-5)
    assert_exact(torch.float32, 256, rtol=2e-5)


def test_columns_of_any_cells_are_as_exact_as_those_of_level_cameras() -> None:
    torch.manual_seed(2)
    # Rows, depths and cells that fill no column, no pair and no tile.
    depth = torch.rand(3 * 21 * 5, 37, device="cuda", requires_grad=True)
    feat = torch.randn(3 * 21 * 5, 80, device="cuda", requires_grad=True)
    grad = torch.randn(29 * 31, 80, device="cuda")
    weights = torch.arange(depth.numel(), device="cuda")
    for cells in (
        torch.randint(-9, 29 * 31 + 9, (depth.numel(),), device="cuda"),
        torch.full((depth.numel(),), 5, device="cuda"),
        torch.full((depth.numel(),), -1, device="cuda"),
    ):
        plan = make_column_plan(
            cells,
            num_cells=29 * 31,
            cell_picture=(29, 31),
            feature_picture=(21, 5),
            num_bins=37,
        )
        got = all_of(splat_columns(depth, feat, plan), depth, feat, grad)
        out = splat_reference(depth, feat, weights, weights // 37, cells, 29 * 31)
        for mine, true in zip(got, all_of(out, depth, feat, grad), strict=True):
            torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-3)


def test_columns_of_samples_put_together_give_the_bits_of_the_batch() -> None:
    depth, feat, grad, points = case(torch.bfloat16)
    alone = lifted_points(cameras(1), LIFT, GRID, with_plan=False)
    joined = join_column_plans([columns_of(alone, batch=1)] * 2)
    got = all_of(splat_columns(depth, feat, joined), depth, feat, grad)
    want = all_of(splat_columns(depth, feat, columns_of(points)), depth, feat, grad)
    assert all(torch.equal(mine, other) for mine, other in zip(got, want, strict=True))


def test_shared_weights_get_the_sum_of_their_gradients() -> None:
    torch.manual_seed(1)
    ranks = (
        torch.randint(0, 700, (9000,), device="cuda"),
        torch.randint(0, 90, (9000,), device="cuda"),
        torch.randint(0, 300, (9000,), device="cuda"),
    )
    depth = torch.rand(700, device="cuda", requires_grad=True)
    feat = torch.randn(90, 24, device="cuda", requires_grad=True)
    grad = torch.randn(300, 24, device="cuda")
    got = all_of(splat(depth, feat, *ranks, 300), depth, feat, grad)
    want = all_of(splat_reference(depth, feat, *ranks, 300), depth, feat, grad)
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-3)


def test_the_same_call_gives_the_same_bits() -> None:
    depth, feat, grad, points = case(torch.bfloat16)
    for plan in (rows_of(points), points.plan):
        runs = [
            all_of(splat(depth, feat, *points[:3], 2 * CELLS, plan), depth, feat, grad)
            for _ in range(5)
        ]
        for again in runs[1:]:
            assert all(torch.equal(mine, first) for mine, first in zip(again, runs[0], strict=True))


def test_no_row_per_point_is_ever_held() -> None:
    # So many points that their rows would dwarf the result and the sums of shared tiles.
    lift = replace(LIFT, depth=(1.0, 41.0, 0.125))
    depth, feat, grad, points = case(torch.bfloat16, 256, lift)
    for plan in (rows_of(points, lift), points.plan):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        all_of(splat(depth, feat, *points[:3], 2 * CELLS, plan), depth, feat, grad)
        peak = torch.cuda.max_memory_allocated() - before
        assert peak < depth.numel() * 256 * 2 / 2


def test_planning_and_splatting_never_wait_for_the_device() -> None:
    depth, feat, grad, points = case(torch.bfloat16)
    where = cameras()
    for plan in (rows_of(points), points.plan):
        all_of(splat(depth, feat, *points[:3], 2 * CELLS, plan), depth, feat, grad)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fresh = lifted_points(where, LIFT, GRID, with_plan=True)
        join_column_plans([columns_of(fresh)] * 2)
        for plan in (rows_of(fresh), fresh.plan):
            all_of(splat(depth, feat, *fresh[:3], 2 * CELLS, plan), depth, feat, grad)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_compiled_it_gives_what_it_gives_alone() -> None:
    depth, feat, grad, points = case(torch.bfloat16)

    def pooled(depth: Tensor, feat: Tensor, plan: Plan) -> Tensor:
        weights = (depth.float() * 8).softmax(-1).to(feat.dtype)
        return splat(weights, feat, *points[:3], 2 * CELLS, plan)

    for plan in (rows_of(points), columns_of(points)):
        plain = all_of(pooled(depth, feat, plan), depth, feat, grad)
        compiled = torch.compile(pooled, fullgraph=True)
        fast = all_of(compiled(depth, feat, plan), depth, feat, grad)
        for mine, true in zip(fast, plain, strict=True):
            torch.testing.assert_close(mine, true, rtol=2e-2, atol=2e-2)


def test_compiled_with_their_plan_columns_give_what_they_give_alone() -> None:
    depth, feat, grad, points = case(torch.bfloat16)

    def pooled(depth: Tensor, feat: Tensor, points: LiftedPoints) -> Tensor:
        weights = (depth.float() * 8).softmax(-1).to(feat.dtype)
        return splat(weights, feat, *points[:3], 2 * CELLS, columns_of(points))

    plain = all_of(pooled(depth, feat, points), depth, feat, grad)
    compiled = torch.compile(pooled, fullgraph=True)
    fast = all_of(compiled(depth, feat, points), depth, feat, grad)
    for mine, true in zip(fast, plain, strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-2, atol=2e-2)


def test_a_plan_made_on_the_device_equals_one_made_on_the_host() -> None:
    points = lifted_points(cameras(), LIFT, GRID, with_plan=True)
    assert points.plan is not None
    on_host = points._replace(
        ranks_depth=points.ranks_depth.cpu(),
        ranks_feat=points.ranks_feat.cpu(),
        ranks_bev=points.ranks_bev.cpu(),
    )
    rows, rows_on_host = rows_of(points), rows_of(on_host)
    pairs = points.plan.pairs
    for mine, other in (
        *zip(rows.by_cell, rows_on_host.by_cell, strict=True),
        *zip(rows.by_feature, rows_on_host.by_feature, strict=True),
        *zip(pairs, columns_of(on_host).pairs, strict=True),
    ):
        assert torch.equal(mine.cpu(), other)


def test_a_network_gives_the_same_with_either_kernel() -> None:
    settings = replace(
        MONO,
        image_size=(128, 352),
        backbone="swin_nano",
        channels=32,
        depth=LIFT.depth,
        grid=GRID,
        heads=(3,),
        width=32,
        out_stages=(2,),
    )
    batch = BevBatch(
        images=torch.randint(0, 256, (2, 3, 3, 128, 352), dtype=torch.uint8),
        **dict(zip(Cameras._fields, (part.cpu() for part in cameras()), strict=True)),
        calibration=torch.tensor([7, -1]),
        targets=torch.zeros(2, 1, 1, 1, dtype=torch.uint8),
        mask=torch.zeros(2, 1, 1, dtype=torch.uint8),
    )
    batch = on_device(batch, torch.device("cuda"))
    nets = []
    for kernels in ("reference", "fused"):
        torch.manual_seed(3)
        nets.append(LssNet(settings, kernels=kernels).cuda().eval())
    # Numbers of calibrations on the host: what is kept must not change anything either.
    known = replace(batch, calibration=torch.tensor([7, 7]))
    # Convolutions that round to ten bits make hundredths out of the last bit of a sum.
    with torch.no_grad(), without_tf32():
        plain = nets[0](batch)
        for given in (batch, known, known):
            torch.testing.assert_close(nets[1](given), plain, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    for name, claim in list(globals().items()):
        if name.startswith("test_"):
            claim()
            sys.stdout.write(f"{name}: holds\n")
