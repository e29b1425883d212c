"""The splat of whole frustums: `pitstop.kernels.splat` for points that lie as cameras lift them.

Where every pixel has the same depths, weights and features need no ranks: only the cells do. Then
16 pixels of an image column are taken as one, which is what a level camera does with them anyway.
Any cells are right; cells that a column shares are fast.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.kernels.splat_columns_plan import ColumnPlan, Frustum, Pairs
from pitstop.kernels.splat_plan import MAX_CHANNELS, Tiling


def splat_columns(depth: Tensor, feat: Tensor, plan: ColumnPlan) -> Tensor:
    """Sum every pixel's feature row, times each of its weights, into the cells of the plan.

    Summed in float32, always with the same bits. Rows of points are never kept: memory beyond the
    inputs' and the result's sizes is the plan and the sums of tiles that are shared out. In
    float16, the weights of a pixel that go to one cell must not sum to more than 65504.

    Args:
        depth: Weights of all pixels, any shape, read flat: pictures, rows, columns, depths.
        feat: (..., C) feature rows of all pixels, read as (pixels, C); of the type of ``depth``,
            or both are brought to the wider of the two.
        plan: What `make_column_plan` gave for the cells of the points.

    Returns:
        (cells, C) in the type of the inputs.

    Raises:
        ConfigError: For more channels than a program can hold, and for float64.
    """
    dtype = torch.promote_types(depth.dtype, feat.dtype)
    depth, feat = depth.reshape(-1).to(dtype), feat.reshape(-1, feat.shape[-1]).to(dtype)
    if feat.shape[1] > MAX_CHANNELS or dtype == torch.float64:
        raise ConfigError(
            f"the splat of columns takes at most {MAX_CHANNELS} channels of at most float32, "
            f"not {feat.shape[1]} of {dtype}; set model.kernels to 'auto'"
        )
    assert depth.numel() == plan.frustum.num_points, "the plan is of other weights"
    assert feat.shape[0] == plan.frustum.num_pixels, "the plan is of other features"
    sizes = [*plan.cells, *plan.frustum, plan.pair_bins]
    return _columns_op(depth.contiguous(), feat.contiguous(), list(plan.pairs), sizes)


def _plan_of(pairs: Sequence[Tensor], sizes: Sequence[int]) -> ColumnPlan:
    return ColumnPlan(Pairs(*pairs), Tiling(*sizes[:6]), Frustum(*sizes[6:10]), sizes[10])


@torch.library.custom_op("pitstop::splat_columns", mutates_args=())
def _columns_op(
    depth: Tensor, feat: Tensor, pairs: Sequence[Tensor], sizes: Sequence[int]
) -> Tensor:
    from pitstop.kernels.splat_columns_triton import splat_pairs

    return splat_pairs(depth, feat, _plan_of(pairs, sizes))


@_columns_op.register_fake
def _(depth: Tensor, feat: Tensor, pairs: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:  # noqa: ARG001 - named by the operation
    return feat.new_empty(Tiling(*sizes[:6]).num_owners, feat.shape[1])


@torch.library.custom_op("pitstop::splat_columns_backward", mutates_args=())
def _columns_backward_op(  # noqa: PLR0917 - operations take all by place
    grad: Tensor, depth: Tensor, feat: Tensor, targets: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    from pitstop.kernels.splat_columns_triton import gather_columns

    return gather_columns(grad, depth, feat, targets, Frustum(*sizes))


@_columns_backward_op.register_fake
def _(  # noqa: PLR0917 - operations take all by place
    grad: Tensor,  # noqa: ARG001 - named by the operation
    depth: Tensor,
    feat: Tensor,
    targets: Tensor,  # noqa: ARG001 - named by the operation
    sizes: Sequence[int],  # noqa: ARG001 - named by the operation
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(depth), torch.empty_like(feat)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch names them
    depth, feat, pairs, sizes = inputs
    ctx.save_for_backward(depth, feat, pairs[0])
    ctx.num_tensors = len(pairs)
    ctx.sizes = sizes[6:10]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, list[None], None]:
    depth, feat, targets = ctx.saved_tensors
    grad_depth, grad_feat = _columns_backward_op(grad.contiguous(), depth, feat, targets, ctx.sizes)
    return grad_depth, grad_feat, [None] * ctx.num_tensors, None


_columns_op.register_autograd(_backward, setup_context=_keep_for_backward)
