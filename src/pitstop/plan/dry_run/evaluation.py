"""Evaluation batches on a GPU that is not there, at the size that an evaluation has."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pitstop.config.sections import RunConfig
from pitstop.data.tensors import tensors_in
from pitstop.plan.dry_run.account import settle
from pitstop.plan.dry_run.fake_gpu import DEVICE, fake_gpu
from pitstop.plan.dry_run.ledger import Ledger
from pitstop.plan.dry_run.step import batch_for, make_lasting
from pitstop.records.plans.evaluation import EvaluationTrace
from pitstop.train.evaluation.quality import gather_into
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.train.state.training_state import bare_model
from pitstop.train.task import MakesBlankEvaluation, MakesBlankMetrics, Metrics, Task

_BATCHES: Final = 2
"""What came of the one before is there until the next one is predicted."""
_CALLS: Final = 2
"""Of a model on one size, as on the tiles of a frame: each further one does what this one did."""


@dataclass(frozen=True, slots=True)
class _Blank:
    """How a tensor lies, and nothing that holds memory."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        return cls(tensor.shape, tensor.stride(), tensor.dtype)

    def made(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=DEVICE)


_Known = dict[tuple[_Blank, ...], tuple[int, Any]]
"""By what a model was called with: how often, and what it gave."""


class _NoMetrics:
    """Stands for metrics of a dataset that is not here: takes nothing in."""

    def update(self, output: Any, batch: Any) -> None:
        """Leave it."""

    def state(self) -> Tensor:
        """Give nothing."""
        return torch.zeros(0)

    def result(self, state: Tensor) -> dict[str, float]:
        """Give nothing."""
        del state
        return {}


def trace_evaluation(config: RunConfig, task: Task[Any]) -> EvaluationTrace:
    """Run two batches as an evaluation during training does: nothing is kept for backward.

    Weights, their average and the optimizer's state stay where they are. What metrics do once all
    batches are in is left out.

    Raises:
        CannotFakeError: Where an operation needs numbers.
        ConfigError: Where a setting cannot be honoured.
    """
    ledger = Ledger(lambda: ("evaluation",))
    batch_size = config.eval.batch_size
    if isinstance(task, MakesBlankEvaluation):
        batch = task.blank_eval_batch(batch_size)
    else:
        batch = batch_for(task, batch_size, task.eval_samples)
    metrics = _metrics_of(config, task)
    with fake_gpu(), ledger:
        trainer = build_trainer(config, task, Ranks(), DEVICE).trainer
        model = bare_model(trainer.model)
        make_lasting(ledger, trainer, model)
        model.eval()
        first_event = ledger.events
        averaged = nullcontext() if trainer.average is None else trainer.average.in_place()
        known = _know_what_it_gives(model)
        with averaged, torch.no_grad():
            gather_into(
                metrics,
                task,
                model,
                _repeated(batch, known),
                precision=trainer.precision,
                device=DEVICE,
            )
    account = settle(ledger, first_event)
    return EvaluationTrace(
        batch_size=batch_size,
        tile=config.eval.tile,
        owners=account.owners,
        peak_bytes=account.peak_bytes,
        peak_operation=account.operation,
        metrics=not isinstance(metrics, _NoMetrics),
    )


def _metrics_of(config: RunConfig, task: Task[Any]) -> Metrics:
    if config.data.root is not None:
        return task.metrics()
    return task.blank_metrics() if isinstance(task, MakesBlankMetrics) else _NoMetrics()


def _repeated(batch: Any, known: _Known) -> Iterator[Any]:
    """Give a batch again and again; in each the model runs anew."""
    for _ in range(_BATCHES):
        known.clear()
        yield batch


def _know_what_it_gives(model: nn.Module) -> _Known:
    """Let a model run twice on one size; after that it gives the same again without running."""
    run = model.forward
    known: _Known = {}

    def forward(*args: Any, **kwargs: Any) -> Any:
        size = tuple(_Blank.of(each) for each in tensors_in((args, kwargs)))
        calls, given = known.get(size, (0, None))
        if calls == _CALLS:
            return pytree.tree_map_only(_Blank, _Blank.made, given)
        output = run(*args, **kwargs)
        known[size] = (calls + 1, pytree.tree_map_only(Tensor, _Blank.of, output))
        return output

    model.forward = forward
    # One that is watched is not recorded as a CUDA graph, of which there are none here.
    model.register_forward_pre_hook(lambda module, given: None)  # noqa: ARG005
    return known
