"""Sums of weighted feature rows into the cells of a grid: the splat of lift-splat-shoot.

Every point of a camera's frustum has a depth weight, a feature row (its pixel's) and a cell. The
cell gets the sum of weight times row over its points: one sparse matrix product. A tensor with a
row per point, hundreds of megabytes a sample, is what the reference makes and the fused versions
never do. There are two of them: one for points with any ranks, as others' code has them, one for
whole frustums (`splat_columns`), which our networks lift and which is more than twice as fast
(`benchmarks/bev_splat.py`). The plan says which.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.kernels import Formula, Kernels, has_triton, refuse_without_triton
from pitstop.kernels.splat_columns import splat_columns
from pitstop.kernels.splat_columns_plan import ColumnPlan
from pitstop.kernels.splat_plan import MAX_CHANNELS, Order, SplatPlan, Tiling, make_plan

Plan: TypeAlias = SplatPlan | ColumnPlan
"""Points with any ranks in the order they are summed in, or those of whole frustums."""

_NUM_ORDER: Final = len(Order._fields)


def dispatch(kernels: Kernels = "auto") -> Callable[..., Tensor]:
    """Give the version that ``kernels`` asks for.

    Raises:
        ConfigError: When that version cannot run here, or the word names none.
    """
    refuse_without_triton(kernels, operation="the fused splat")
    if kernels == "reference":
        return splat_reference
    return splat_fused if kernels == "fused" else splat


_HAS_TRITON: Final = has_triton()


def splat(  # noqa: PLR0913, PLR0917 - one signature for all versions
    depth: Tensor,
    feat: Tensor,
    ranks_depth: Tensor,
    ranks_feat: Tensor,
    ranks_bev: Tensor,
    num_cells: int,
    plan: Plan | None = None,
) -> Tensor:
    """Run the fused version where it can run, the reference elsewhere; see `splat_reference`."""
    fits = feat.is_cuda and feat.shape[-1] <= MAX_CHANNELS and feat.dtype != torch.float64
    version = splat_fused if _HAS_TRITON and fits else splat_reference
    return version(depth, feat, ranks_depth, ranks_feat, ranks_bev, num_cells, plan)


def splat_reference(  # noqa: PLR0913, PLR0917 - one signature for all versions
    depth: Tensor,
    feat: Tensor,
    ranks_depth: Tensor,
    ranks_feat: Tensor,
    ranks_bev: Tensor,
    num_cells: int,
    plan: Plan | None = None,  # noqa: ARG001 - all versions are called alike
) -> Tensor:
    """Sum ``depth[ranks_depth[i]] * feat[ranks_feat[i]]`` into row ``ranks_bev[i]``.

    Summed in float32 or wider. On a CUDA device the order of the sums, and with it the last bits,
    differs from call to call; the fused version's does not.

    Args:
        depth: Weights, any shape, read flat.
        feat: (..., C) feature rows, read as (rows, C); of the type of ``depth``, or both are
            brought to the wider of the two.
        ranks_depth: (P,) integers into the flat ``depth``.
        ranks_feat: (P,) integers into the feature rows.
        ranks_bev: (P,) integers; a point whose cell is outside [0, num_cells) is left out.
        num_cells: Rows of the result.
        plan: What `make_plan` or `make_column_plan` gave for these ranks; the fused version then
            takes it instead of the ranks, and sorts nothing.

    Returns:
        (num_cells, C) in the type of the inputs.
    """
    depth, feat = _flat(depth, feat)
    wide = torch.promote_types(feat.dtype, torch.float32)
    # Widened before they are gathered, so that gradients of a row are summed wide, too.
    weights = depth.to(wide).index_select(0, ranks_depth.long())
    points = feat.to(wide).index_select(0, ranks_feat.long()) * weights[:, None]
    kept = (ranks_bev >= 0) & (ranks_bev < num_cells)
    # One row more for what is left out: shapes stay the same whatever the geometry.
    cells = torch.where(kept, ranks_bev, num_cells).long()
    sums = points.new_zeros(num_cells + 1, feat.shape[1]).index_add(0, cells, points)
    return sums[:num_cells].to(feat.dtype)


def splat_fused(  # noqa: PLR0913, PLR0917 - one signature for all versions
    depth: Tensor,
    feat: Tensor,
    ranks_depth: Tensor,
    ranks_feat: Tensor,
    ranks_bev: Tensor,
    num_cells: int,
    plan: Plan | None = None,
) -> Tensor:
    """Do the same with Triton, forward and backward, always with the same bits.

    Rows of points are never kept: memory beyond the inputs' and the result's sizes is the plan and
    the sums of tiles that are shared out. Whole frustums are summed by columns where the plan is of
    columns.

    Raises:
        ConfigError: For more channels than a program can hold, and for float64.
    """
    depth, feat = _flat(depth, feat)
    if feat.shape[1] > MAX_CHANNELS or feat.dtype == torch.float64:
        raise ConfigError(
            f"model.kernels is 'fused', but the fused splat takes at most {MAX_CHANNELS} "
            f"channels of at most float32, not {feat.shape[1]} of {feat.dtype}; set it to 'auto'"
        )
    if isinstance(plan, ColumnPlan):
        assert plan.cells.num_owners == num_cells, "the plan is of another grid"
        return splat_columns(depth, feat, plan)
    if plan is None:
        ranks = (ranks_depth, ranks_feat, ranks_bev)
        plan = make_plan(ranks, num_cells=num_cells, num_features=feat.shape[0])
    assert plan.cells.num_owners == num_cells, "the plan is of another grid"
    assert plan.features.num_owners == feat.shape[0], "the plan is of other features"
    orders = [*plan.by_cell, *plan.by_feature]
    sizes = [*plan.cells, *plan.features, int(plan.weights_differ)]
    return _splat_op(depth.contiguous(), feat.contiguous(), orders, sizes)


def _flat(depth: Tensor, feat: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(depth.dtype, feat.dtype)
    return depth.reshape(-1).to(dtype), feat.reshape(-1, feat.shape[-1]).to(dtype)


@torch.library.custom_op("pitstop::splat", mutates_args=())
def _splat_op(
    depth: Tensor, feat: Tensor, orders: Sequence[Tensor], sizes: Sequence[int]
) -> Tensor:
    from pitstop.kernels.splat_triton import sum_rows

    return sum_rows(depth, feat, Order(*orders[:_NUM_ORDER]), Tiling(*sizes[:6]))


@_splat_op.register_fake
def _(depth: Tensor, feat: Tensor, orders: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:  # noqa: ARG001 - named by the operation
    return feat.new_empty(Tiling(*sizes[:6]).num_owners, feat.shape[1])


@torch.library.custom_op("pitstop::splat_backward", mutates_args=())
def _splat_backward_op(  # noqa: PLR0917 - operations take all by place
    grad: Tensor, depth: Tensor, feat: Tensor, orders: Sequence[Tensor], sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    from pitstop.kernels.splat_triton import (
        sum_rows_and_products,
    )

    order, scatter = Order(*orders), bool(sizes[-1])
    grad_feat, products = sum_rows_and_products(
        depth, grad, feat, order, Tiling(*sizes[6:12]), scatter=scatter
    )
    if scatter:
        return products, grad_feat
    grad_depth = torch.zeros(depth.shape, dtype=torch.float32, device=depth.device)
    # Sorts by weight, so that sums are taken in one order: `index_add_` would not.
    grad_depth.index_put_((order.weights.long(),), products, accumulate=True)
    return grad_depth.to(depth.dtype), grad_feat


@_splat_backward_op.register_fake
def _(  # noqa: PLR0917 - operations take all by place
    grad: Tensor,  # noqa: ARG001 - named by the operation
    depth: Tensor,
    feat: Tensor,
    orders: Sequence[Tensor],  # noqa: ARG001 - named by the operation
    sizes: Sequence[int],  # noqa: ARG001 - named by the operation
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(depth), torch.empty_like(feat)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch names them
    depth, feat, orders, sizes = inputs
    ctx.save_for_backward(depth, feat, *orders[_NUM_ORDER:])
    ctx.sizes = sizes


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, list[None], None]:
    depth, feat, *order = ctx.saved_tensors
    grad_depth, grad_feat = _splat_backward_op(grad.contiguous(), depth, feat, order, ctx.sizes)
    return grad_depth, grad_feat, [None] * (2 * _NUM_ORDER), None


_splat_op.register_autograd(_backward, setup_context=_keep_for_backward)


def _formula(*, passes: int) -> Formula:
    """Count sums over all points: one forward, one for each of two gradients backward."""

    def flops(*, num_points: int, channels: int) -> int:
        """A product and a sum for each channel of each point that is kept."""
        return 2 * passes * num_points * channels

    def num_bytes(
        *,
        num_points: int,
        num_weights: int,
        num_rows: int,
        num_cells: int,
        channels: int,
        itemsize: int,
    ) -> int:
        """Weights and features once each way, cells once, three 4-byte indices a kept point."""
        values = passes * (num_weights + num_rows * channels) + num_cells * channels
        return values * itemsize + 12 * num_points

    return Formula(flops=flops, num_bytes=num_bytes)


FORMULAS: Final[dict[str, Formula]] = {
    "splat": _formula(passes=1),
    "splat_backward": _formula(passes=2),
}
