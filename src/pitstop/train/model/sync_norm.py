"""Batch norm over the batches of all ranks, and what batch norm does to an effective batch.

Batch norm compares samples with each other, but only those of one pass: of a micro-batch on one
rank. The mean and deviation of a large batch are those of all its samples. Over ranks they can be
had by exchanging sums; over micro-batches that follow one another they cannot.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from pitstop.errors import ConfigError

_BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncNormFacts:
    """What `train.sync_norm` did."""

    norms: int
    """Batch norms that are exchanged over ranks."""
    ranks: int
    own: bool
    """Whether the exchange is that of this module; torch's own runs on GPUs alone."""


class RankedBatchNorm(nn.Module):
    """Batch norm whose mean and deviation are those of the samples of all ranks, on any device.

    Parameters and buffers are those of the batch norm it stands for, under the same names.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
        super().__init__()
        self.eps = norm.eps
        self.momentum = norm.momentum
        self.register_parameter("weight", norm.weight)
        self.register_parameter("bias", norm.bias)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) of this rank's samples -> the same, normalised."""
        if not self.training and self.running_mean is not None:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        axes = [axis for axis in range(x.dim()) if axis != 1]
        wide = x if x.dtype == torch.float64 else x.float()
        count = _sum_over_ranks(wide.new_tensor([x.numel() / x.shape[1]]))
        mean = _sum_over_ranks(wide.sum(axes)) / count
        centred = wide - _over(mean, x)
        # Of what is left, not of squares: two large numbers would cancel.
        variance = _sum_over_ranks(centred.square().sum(axes)) / count
        if self.training:
            self._follow(mean.detach(), variance.detach(), count)
        normalised = centred * _over((variance + self.eps).rsqrt(), x)
        if self.weight is not None and self.bias is not None:
            normalised = normalised * _over(self.weight, x) + _over(self.bias, x)
        return normalised.to(x.dtype)

    def _follow(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running mean and variance as torch's batch norm does."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = self.momentum
        step = 1 / self.num_batches_tracked if share is None else share
        unbiased = variance * (count / (count - 1).clamp_min(1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), step)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), step)


class _SumOverRanks(torch.autograd.Function):
    """A sum that every rank's loss depends on, so every rank's gradient reaches every summand."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        del ctx
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        total = grads[0].clone()
        dist.all_reduce(total)
        return total


def _sum_over_ranks(value: Tensor) -> Tensor:
    total: Any = _SumOverRanks.apply(value)
    return total


def _over(values: Tensor, x: Tensor) -> Tensor:
    """Lay a number of each channel out over (N, C, ...)."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def synchronise_norms(
    model: nn.Module, *, ranks: int, device: torch.device
) -> tuple[nn.Module, SyncNormFacts]:
    """Exchange the batch norms of a model for ones over all ranks; on one rank nothing changes.

    Raises:
        ConfigError: Where the model has none.
    """
    found = batch_norms(model)
    if not found:
        raise ConfigError(
            "train.sync_norm has no effect: the model has no batch norm; set it to false"
        )
    facts = SyncNormFacts(norms=len(found), ranks=ranks, own=device.type != "cuda")
    if ranks == 1:
        return model, facts
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model), facts
    for name in found:
        above, _, last = name.rpartition(".")
        norm = model.get_submodule(name)
        assert isinstance(norm, _BatchNorm)
        setattr(model.get_submodule(above), last, RankedBatchNorm(norm))
    return model, facts


def batch_norms(model: nn.Module) -> list[str]:
    """Name the batch norms of a model."""
    kinds = (*_BatchNorm, nn.SyncBatchNorm, RankedBatchNorm)
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]


def describe_batches(
    model: nn.Module, *, batch_size: int, accumulate: int, ranks: int, synchronised: bool
) -> tuple[str, ...]:
    """Warn where batch norm makes micro-batches or ranks another training than the large batch."""
    found = batch_norms(model)
    apart = accumulate * (1 if synchronised else ranks)
    if not found or apart == 1:
        return ()
    together = batch_size * (ranks if synchronised else 1)
    parts = [f"{accumulate} micro-batches"] if accumulate > 1 else []
    parts += [f"{ranks} ranks"] if ranks > 1 else []
    fixes = ["train.sync_norm: true for ranks"] if ranks > 1 and not synchronised else []
    fixes += ["a larger train.batch_size with a smaller train.accumulate"] if accumulate > 1 else []
    return (
        f"{' on '.join(parts)} are not a batch of {batch_size * accumulate * ranks}: batch norm "
        f"({len(found)} of them, such as {found[0]}) takes mean and deviation of {together} "
        f"samples at a time; {' or '.join(fixes)} changes that, and so does a model without batch "
        "norm (bird's-eye view: model.norm: group)",
    )
