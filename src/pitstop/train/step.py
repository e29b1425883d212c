"""One optimizer step, from waiting for data to updated weights. Read this page first.

    for each micro-batch:  data -> copy -> forward -> loss -> backward
    then once:             clip (scale, check, clip) -> optimizer (update, loss scale, average)

Everything stays on the device. The step reads no loss, no norm and no flag: reading one would
stop the host until the device has caught up, on every step. What must be known on the host
(logging, NaN policy) is read later, by whoever needs it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pitstop.train.model.distill import Teacher
from pitstop.train.optim.ema import WeightAverage
from pitstop.train.optim.gradients import Clipper, gradients_of, scale_and_check, total_norm
from pitstop.train.optim.local_part import local_parts
from pitstop.train.optim.precision import Precision
from pitstop.train.ranks import Ranks
from pitstop.train.task import BatchT, Loss, Task
from pitstop_probe import Clock

if TYPE_CHECKING:  # what it stands on takes half a second to import, of which most have no use
    from pitstop.train.model.shard import Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step leaves behind; all tensors stay on the device until somebody reads them."""

    loss: Tensor
    """Mean over all samples of this rank's micro-batches."""
    terms: dict[str, Tensor]
    """Parts of the loss, of the last micro-batch."""
    grad_norm: Tensor | None
    """Before clipping; None when neither clipping nor logging asked for it."""
    found_inf: Tensor
    """1 when the gradients were not finite and the update was left out, else 0."""
    bad_loss: Tensor
    """How many ranks had a loss that was not finite."""
    leaving: Tensor
    """How many ranks received a signal to stop."""
    samples: int
    host_syncs: int
    """How often this step made the host wait for the device: 0, or 1 where the optimizer cannot
    take the flag."""


@dataclass(slots=True, kw_only=True)
class Trainer(Generic[BatchT]):
    """Everything a step works with."""

    task: Task[BatchT]
    model: nn.Module
    """As it is called: possibly wrapped for several ranks, or divided between them."""
    optimizer: torch.optim.Optimizer
    precision: Precision
    clipper: Clipper
    average: WeightAverage | None
    teacher: Teacher | None
    ranks: Ranks
    device: torch.device
    accumulate: int
    shards: "Shards | None" = None
    """Who divides the model; None where each rank has the whole."""
    records_graphs: bool = False
    """Whether the compiled model runs as CUDA graphs, whose memory the next pass writes over."""
    _parameters: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        """List the parameters once: walking a deep model takes milliseconds."""
        self._parameters = list(self.model.parameters())

    def train_step(
        self,
        batches: Iterator[BatchT],
        *,
        step: int,
        clock: Clock,
        wants_norm: bool = False,
        leaving: bool = False,
    ) -> StepResult:
        """Run one optimizer step over `accumulate` micro-batches.

        Args:
            batches: Where micro-batches come from; the wait for them is part of the step.
            step: Number of the step, for terms of the loss that have a cadence.
            clock: Times the parts.
            wants_norm: Give the gradient norm even where clipping does not need it.
            leaving: This rank received a signal to stop; all ranks learn of it with this step.
        """
        total = torch.zeros((), device=self.device)
        own_count: Tensor | int = 0
        samples = 0
        terms: dict[str, Tensor] = {}
        if self.shards is not None:
            self.shards.begin_step()
        for micro_step in range(self.accumulate):
            with clock.span("data"):
                batch = next(batches)
            with clock.span("copy"):
                batch = self.task.to_device(batch, self.device)
            if self.records_graphs:
                torch.compiler.cudagraph_mark_step_begin()
            with self._gradient_sync(micro_step):
                loss = self._forward_and_backward(batch, step=step, clock=clock)
            if self.records_graphs and micro_step == 0 and self.accumulate > 1:
                self._move_gradients_out()
            total += loss.total.detach()
            own_count = own_count + loss.count
            terms = dict(loss.terms)
            samples += self.task.samples_in(batch)
        clock.count(samples=samples, micro_steps=self.accumulate)

        with clock.span("clip"):
            count, bad_loss, left = self._over_ranks(total, own_count, leaving=leaving)
            found_inf = self._scale_and_check(count)
            norm = self._clip(wants_norm=wants_norm)
        with clock.span("optimizer"):
            syncs = self._update(found_inf)
        return StepResult(
            loss=total / own_count,
            terms=terms,
            grad_norm=norm,
            found_inf=found_inf,
            bad_loss=bad_loss,
            leaving=left,
            samples=samples,
            host_syncs=syncs,
        )

    def _forward_and_backward(self, batch: BatchT, *, step: int, clock: Clock) -> Loss:
        with clock.span("forward"), self.precision.autocast():
            output = self.task.forward(self.model, batch)
        # In fp32: a smooth absolute error of 1e-6 under the root is zero in fp16.
        with clock.span("loss"):
            loss = self._with_teacher(self.task.loss(output, batch, step), output, batch)
        with clock.span("backward"):
            # Divided by a fixed count so that fp16 sees gradients of an ordinary size; the exact
            # count of the whole step is known, and put right, only after the last micro-batch.
            share = loss.total / (self.accumulate * self.task.nominal_count)
            self.precision.scaled(share).backward()
        return loss

    def _move_gradients_out(self) -> None:
        """Copy gradients out of the graphs' memory; later micro-batches add to the copies."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def _with_teacher(self, loss: Loss, output: Any, batch: BatchT) -> Loss:
        if self.teacher is None:
            return loss
        with self.precision.autocast():
            wanted = self.teacher.output(self.task, batch)
        distance = self.task.distance(output, wanted)
        return Loss(
            total=loss.total + self.teacher.weight * distance * loss.count,
            count=loss.count,
            terms={**loss.terms, "distill": distance.detach()},
        )

    def _over_ranks(
        self, total: Tensor, count: Tensor | int, *, leaving: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add up over all ranks: what was averaged over, losses not finite, wishes to stop."""
        # Filled on the device: a number that is copied there would make the host wait.
        counted = count.double() if isinstance(count, Tensor) else self._number(count)
        bad = (~torch.isfinite(total)).double()
        everyone = self.ranks.sum(torch.stack([counted, bad, self._number(leaving)]))
        return everyone[0], everyone[1], everyone[2]

    def _number(self, value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float64, device=self.device)

    def _scale_and_check(self, count: Tensor) -> Tensor:
        """Make gradients those of the mean over all samples of all ranks; flag non-finite ones."""
        # Ranks were averaged, not added: their number belongs into the factor.
        nominal = self.accumulate * self.task.nominal_count * self.ranks.world_size
        factor = self.precision.unscale_factor(nominal / count)
        return scale_and_check(self._gradients(), factor, self._over_parts)

    def _gradients(self) -> list[Tensor]:
        """The gradients that exist, or this rank's parts of them."""
        gradients = gradients_of(self._parameters)
        if self.shards is None:
            return gradients
        # A model with fewer rows than ranks leaves some without a part.
        return local_parts(gradients) or [self._number(0.0)]

    @property
    def _over_parts(self) -> Callable[[Tensor], Tensor] | None:
        return None if self.shards is None else self.shards.sum

    def whole_model(self) -> AbstractContextManager[None]:
        """Let this rank hold the whole model inside this context, to evaluate it."""
        return nullcontext() if self.shards is None else self.shards.whole_model()

    def _clip(self, *, wants_norm: bool) -> Tensor | None:
        """Clip where the configuration says so; give the norm only where somebody uses it."""
        gradients = self._gradients()
        if self.clipper.clips:
            return self.clipper.clip(gradients, self._over_parts)
        return total_norm(gradients, self._over_parts) if wants_norm else None

    def _update(self, found_inf: Tensor) -> int:
        """Update the weights unless a gradient was not finite; count the syncs that took."""
        syncs = apply_update(self.optimizer, found_inf)
        self.precision.update(found_inf)
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update()
        return syncs

    def _gradient_sync(self, micro_step: int) -> AbstractContextManager[object]:
        """Exchange gradients between ranks in the last micro-batch only."""
        is_last = micro_step == self.accumulate - 1
        if self.shards is not None:
            self.shards.prepare(is_last=is_last)
        if isinstance(self.model, DistributedDataParallel) and not is_last:
            return self.model.no_sync()
        return nullcontext()


def takes_flag(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer skips an update by itself, from a flag on the device."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def apply_update(optimizer: torch.optim.Optimizer, found_inf: Tensor) -> int:
    """Step, or leave the step out if `found_inf` is 1; give the number of host syncs.

    A fused optimizer takes the flag on the device. Any other one depends on the host, which
    costs the one sync of the whole step.
    """
    if takes_flag(optimizer):
        optimizer.grad_scale = None  # type: ignore[attr-defined]  # gradients are unscaled already
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        return 0
    if not found_inf.item():
        optimizer.step()
    return 1
