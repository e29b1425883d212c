"""One evaluation batch on a GPU that is not there, at the size that an evaluation has."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, Final

import torch
from torch import nn

from pitstop.config.sections import RunConfig
from pitstop.plan.dry_run.account import settle
from pitstop.plan.dry_run.fake_gpu import DEVICE, fake_gpu
from pitstop.plan.dry_run.ledger import Ledger
from pitstop.plan.dry_run.step import batch_for, make_lasting
from pitstop.records.plans.evaluation import EvaluationTrace
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.train.state.training_state import bare_model
from pitstop.train.task import MakesBlankEvaluation, Task, predict

_TILES: Final = 2
"""Of a frame that is cut: from the second on, each does what the one before did."""


class _EnoughError(Exception):
    """Everything that can be seen has been seen."""


def trace_evaluation(config: RunConfig, task: Task[Any]) -> EvaluationTrace:
    """Run one batch as an evaluation during training does: nothing is kept for backward.

    Weights, their average and the optimizer's state stay where they are. Metrics are left out.

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
    with fake_gpu(), ledger:
        trainer = build_trainer(config, task, Ranks(), DEVICE).trainer
        model = bare_model(trainer.model)
        make_lasting(ledger, trainer, model)
        model.eval()
        first_event = ledger.events
        averaged = nullcontext() if trainer.average is None else trainer.average.in_place()
        model.register_forward_pre_hook(_stop_at(_TILES))
        with (
            averaged,
            torch.no_grad(),
            trainer.precision.autocast(),
            suppress(_EnoughError),
        ):
            predict(task, model, task.to_device(batch, DEVICE))
    account = settle(ledger, first_event)
    return EvaluationTrace(
        batch_size=batch_size,
        tile=config.eval.tile,
        owners=account.owners,
        peak_bytes=account.peak_bytes,
        peak_operation=account.operation,
    )


def _stop_at(calls: int) -> Callable[[nn.Module, Any], None]:
    left = [calls]

    def count(module: nn.Module, given: Any) -> None:
        del module, given
        if not left[0]:
            raise _EnoughError
        left[0] -= 1

    return count
