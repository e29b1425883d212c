"""What the splat of columns must do; test_splat_columns.py runs this under Triton's interpreter."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.kernels import splat_columns_plan, splat_columns_triton
from pitstop.kernels.splat import splat_fused, splat_reference
from pitstop.kernels.splat_columns import splat_columns
from pitstop.kernels.splat_columns_plan import (
    ColumnPlan,
    Frustum,
    join_column_plans,
    make_column_plan,
)
from tests.unit.kernels.triton_interpreter import interpreter_set_right

torch.set_num_threads(1)

Cells = Callable[[Frustum, int, torch.Generator], Tensor]


@pytest.fixture(scope="module", autouse=True)
def the_interpreter_is_set_right() -> Iterator[None]:
    with interpreter_set_right():
        yield


def anywhere(frustum: Frustum, num_cells: int, generator: torch.Generator) -> Tensor:
    """Cells without any order, some of them outside."""
    return torch.randint(-2, num_cells + 2, (frustum.num_points,), generator=generator)


def level(frustum: Frustum, num_cells: int, generator: torch.Generator) -> Tensor:
    """One cell for a column of the picture at one depth, as a level camera has it."""
    pictures, height, width, bins = frustum
    cells = torch.randint(-2, num_cells + 2, (pictures, 1, width, bins), generator=generator)
    return cells.expand(pictures, height, width, bins).flatten()


def rolling(frustum: Frustum, num_cells: int, generator: torch.Generator) -> Tensor:
    """Neighbouring cells along a column and along the depths."""
    pictures, height, width, bins = frustum
    start = torch.randint(-3, num_cells, (pictures, 1, width, 1), generator=generator)
    rows, depths = torch.arange(height)[:, None, None], torch.arange(bins)
    return (start + rows // 5 + depths // 3).flatten()


def nowhere(frustum: Frustum, num_cells: int, generator: torch.Generator) -> Tensor:
    """Everything left out, on either side."""
    points = torch.arange(frustum.num_points)
    return torch.where(points % 2 == 0, num_cells + points, -1 - points)


def at_one_place(frustum: Frustum, num_cells: int, generator: torch.Generator) -> Tensor:
    """Everything in the last cell."""
    return torch.full((frustum.num_points,), num_cells - 1)


def inputs(frustum: Frustum, channels: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(frustum.num_points + channels)
    depth = torch.rand(frustum.num_points, generator=generator)
    return depth, torch.randn(frustum.num_pixels, channels, generator=generator)


def by_loop(depth: Tensor, feat: Tensor, cells: Tensor, grad: Tensor) -> list[Tensor]:
    """Result and both gradients in float64, a point at a time."""
    depth, feat, grad = depth.double(), feat.double(), grad.double()
    bins = depth.numel() // feat.shape[0]
    out = torch.zeros_like(grad)
    grad_depth, grad_feat = torch.zeros_like(depth), torch.zeros_like(feat)
    for point, cell in enumerate(cells.tolist()):
        if 0 <= cell < grad.shape[0]:
            pixel = point // bins
            out[cell] += depth[point] * feat[pixel]
            grad_depth[point] = (grad[cell] * feat[pixel]).sum()
            grad_feat[pixel] += depth[point] * grad[cell]
    return [out, grad_depth, grad_feat]


def by_kernel(depth: Tensor, feat: Tensor, grad: Tensor, plan: ColumnPlan) -> list[Tensor]:
    depth, feat = depth.clone().requires_grad_(), feat.clone().requires_grad_()
    out = splat_columns(depth, feat, plan)
    return [out.detach(), *torch.autograd.grad(out, (depth, feat), grad)]


def agree(got: list[Tensor], want: list[Tensor], *, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=rtol, atol=atol)


def plan_of(
    cells: Tensor, frustum: Frustum, *, num_cells: int, picture: tuple[int, int] | None = None
) -> ColumnPlan:
    return make_column_plan(
        cells,
        num_cells=num_cells,
        cell_picture=picture,
        feature_picture=(frustum.height, frustum.width),
        num_bins=frustum.bins,
    )


@given(
    frustum=st.builds(
        Frustum,
        pictures=st.integers(1, 2),
        height=st.integers(1, 20),
        width=st.integers(1, 3),
        bins=st.integers(1, 10),
    ),
    picture=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    planes=st.integers(1, 2),
    channels=st.integers(1, 20) | st.integers(33, 84),
    where=st.sampled_from([anywhere, level, rolling, nowhere, at_one_place]),
)
@settings(max_examples=40, deadline=None)
def test_any_frustum_gives_the_sums_and_gradients_of_a_plain_loop(
    frustum: Frustum, picture: tuple[int, int], planes: int, channels: int, where: Cells
) -> None:
    generator = torch.Generator().manual_seed(frustum.num_points)
    num_cells = planes * picture[0] * picture[1]
    cells = where(frustum, num_cells, generator)
    depth, feat = inputs(frustum, channels)
    grad = torch.randn(num_cells, channels, generator=generator)
    want = by_loop(depth, feat, cells, grad)
    plan = plan_of(cells, frustum, num_cells=num_cells, picture=picture)
    agree(by_kernel(depth, feat, grad, plan), want)
    on_a_line = plan_of(cells, frustum, num_cells=num_cells)
    agree(by_kernel(depth, feat, grad, on_a_line), want)


@pytest.mark.parametrize(
    ("tile", "pair_bins", "chunk", "block_pairs"),
    [((4, 4), 1, 1, 1), ((2, 8), 8, 3, 2), ((8, 4), 16, 5, 4), ((8, 8), 2, 64, 1)],
)
def test_how_the_forward_pass_is_cut_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
    tile: tuple[int, int],
    pair_bins: int,
    chunk: int,
    block_pairs: int,
) -> None:
    monkeypatch.setattr(splat_columns_plan, "CELL_TILE", tile)
    monkeypatch.setattr(splat_columns_plan, "PAIR_BINS", pair_bins)
    monkeypatch.setattr(splat_columns_plan, "CHUNK", chunk)
    monkeypatch.setattr(splat_columns_plan, "PAIR_POINTS", 1)
    launch = splat_columns_triton.FORWARD._replace(block_pairs=block_pairs)
    monkeypatch.setattr(splat_columns_triton, "FORWARD", launch)
    frustum = Frustum(2, 18, 3, 11)
    cells = rolling(frustum, 63, torch.Generator().manual_seed(1))
    plan = plan_of(cells, frustum, num_cells=63, picture=(7, 9))
    depth, feat = inputs(frustum, 12)
    grad = torch.randn(63, 12)
    agree(by_kernel(depth, feat, grad, plan), by_loop(depth, feat, cells, grad))


@pytest.mark.parametrize(("block_bins", "programs"), [(16, 1), (16, 1000), (32, 8), (64, 1)])
def test_how_the_backward_pass_is_cut_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, block_bins: int, programs: int
) -> None:
    launch = splat_columns_triton.BACKWARD._replace(block_bins=block_bins, programs=programs)
    monkeypatch.setattr(splat_columns_triton, "BACKWARD", launch)
    frustum = Frustum(1, 6, 2, 70)
    cells = anywhere(frustum, 20, torch.Generator().manual_seed(2))
    plan = plan_of(cells, frustum, num_cells=20)
    depth, feat = inputs(frustum, 7)
    grad = torch.randn(20, 7)
    agree(by_kernel(depth, feat, grad, plan), by_loop(depth, feat, cells, grad))


def test_half_precision_is_summed_in_float32() -> None:
    # Not bfloat16: the interpreter multiplies its bits as integers. A device's test does.
    frustum = Frustum(1, 32, 3, 40)
    cells = level(frustum, 3, torch.Generator().manual_seed(3))
    plan = plan_of(cells, frustum, num_cells=3)
    depth, feat = (part.half() for part in inputs(frustum, 40))
    grad = torch.randn(3, 40).half()
    got = by_kernel(depth, feat, grad, plan)
    assert {part.dtype for part in got} == {torch.float16}
    # The result's own rounding and no more: sums of four weights are no halves themselves.
    agree(got, by_loop(depth, feat, cells, grad), rtol=2**-11, atol=1e-5)


def test_a_batch_put_together_from_samples_equals_the_batch_planned_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(splat_columns_plan, "CHUNK", 2)
    monkeypatch.setattr(splat_columns_plan, "PAIR_POINTS", 2)
    frustum = Frustum(2, 18, 2, 5)
    generator = torch.Generator().manual_seed(4)
    samples = [where(frustum, 35, generator) for where in (anywhere, level, nowhere)]
    plans = [plan_of(cells, frustum, num_cells=35, picture=(5, 7)) for cells in samples]
    assert all(bool((plan.pairs.tiles < 0).any()) for plan in plans)
    joined = join_column_plans(plans)
    kept = [torch.where((cells >= 0) & (cells < 35), cells, -1000) for cells in samples]
    cells = torch.cat([rank + 35 * number for number, rank in enumerate(kept)])
    whole = frustum._replace(pictures=6)
    depth, feat = inputs(whole, 5)
    grad = torch.randn(105, 5)
    together = by_kernel(depth, feat, grad, joined)
    agree(together, by_loop(depth, feat, cells, grad))
    at_once = plan_of(cells, whole, num_cells=105, picture=(5, 7))
    assert (joined.cells, joined.frustum) == (at_once.cells, at_once.frustum)
    for mine, other in zip(together, by_kernel(depth, feat, grad, at_once), strict=True):
        assert torch.equal(mine, other)


def test_the_same_call_gives_the_same_bits() -> None:
    frustum = Frustum(1, 20, 3, 9)
    cells = anywhere(frustum, 11, torch.Generator().manual_seed(5))
    plan = plan_of(cells, frustum, num_cells=11)
    depth, feat = inputs(frustum, 9)
    grad = torch.randn(11, 9)
    first = by_kernel(depth, feat, grad, plan)
    for mine, again in zip(first, by_kernel(depth, feat, grad, plan), strict=True):
        assert torch.equal(mine, again)


def test_planning_and_summing_are_one_graph_for_the_compiler_and_gradients_stay() -> None:
    frustum = Frustum(1, 5, 4, 6)
    cells = rolling(frustum, 12, torch.Generator().manual_seed(6))
    depth, feat = (part.requires_grad_() for part in inputs(frustum, 8))

    def pooled(depth: Tensor, feat: Tensor, cells: Tensor) -> Tensor:
        plan = plan_of(cells, frustum, num_cells=12)
        return splat_columns(depth.softmax(0), feat, plan).square().sum()

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(depth, feat, cells), (depth, feat))
    ranks = torch.arange(frustum.num_points)
    true = splat_reference(depth.softmax(0), feat, ranks, ranks // 6, cells, 12).square().sum()
    for mine, right in zip(got, torch.autograd.grad(true, (depth, feat)), strict=True):
        torch.testing.assert_close(mine, right)


def test_the_operation_passes_the_checks_of_torch() -> None:
    frustum = Frustum(1, 2, 4, 3)
    cells = anywhere(frustum, 6, torch.Generator().manual_seed(7))
    plan = plan_of(cells, frustum, num_cells=6)
    depth, feat = (part.requires_grad_() for part in inputs(frustum, 4))
    sizes = [*plan.cells, *plan.frustum, plan.pair_bins]
    arguments = (depth, feat, list(plan.pairs), sizes)
    torch.library.opcheck(torch.ops.pitstop.splat_columns.default, arguments)


def test_more_channels_than_a_program_holds_are_refused_by_name() -> None:
    frustum = Frustum(1, 2, 2, 2)
    plan = plan_of(torch.zeros(8, dtype=torch.int64), frustum, num_cells=3)
    depth, feat = inputs(frustum, 257)
    with pytest.raises(ConfigError, match="at most 256 channels"):
        splat_columns(depth, feat, plan)


def test_a_plan_of_columns_makes_the_fused_splat_sum_columns() -> None:
    frustum = Frustum(2, 18, 3, 6)
    cells = rolling(frustum, 20, torch.Generator().manual_seed(8))
    plan = plan_of(cells, frustum, num_cells=20, picture=(4, 5))
    depth, feat = inputs(frustum, 9)
    ranks = torch.arange(frustum.num_points)
    # Ranks are not read where there is a plan.
    wrong = torch.zeros_like(ranks)
    for by_weight, by_cell in ((ranks, cells), (wrong, wrong)):
        shaped = depth.view(2, 18, 3, 6), feat.view(2, 18, 3, 9)
        got = splat_fused(*shaped, by_weight, by_weight // 6, by_cell, 20, plan)
        assert torch.equal(got, splat_columns(depth, feat, plan))
    with pytest.raises(AssertionError, match="another grid"):
        splat_fused(depth, feat, ranks, ranks // 6, cells, 21, plan)
