"""Everything a run needs to go on: taken out of a trainer, and put back."""

from copy import deepcopy
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pitstop.train.optim.saved_state import load_optimizer_state
from pitstop.train.step import Trainer
from pitstop.train.task import BatchT


def bare_model(model: nn.Module) -> nn.Module:
    """The model itself, without the wrapper that several ranks need."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def trainer_state(trainer: Trainer[BatchT]) -> dict[str, Any]:
    """Describe a trainer in plain tensors and numbers; the tensors are the live ones."""
    return {
        "model": bare_model(trainer.model).state_dict(),
        "optimizer_class": type(trainer.optimizer).__name__,
        "optimizer": trainer.optimizer.state_dict(),
        "precision": trainer.precision.state_dict(),
        "clipper": trainer.clipper.state_dict(),
        "average": None if trainer.average is None else trainer.average.state_dict(),
    }


def load_trainer_state(trainer: Trainer[BatchT], state: dict[str, Any]) -> None:
    """Put a state back; it must be that of an equal trainer.

    Raises:
        ValueError: It is no state of this optimizer, or only one of the two has averaged weights.
    """
    own_class = type(trainer.optimizer).__name__
    if state["optimizer_class"] != own_class:
        raise ValueError(f"saved by {state['optimizer_class']}, but the optimizer is {own_class}")
    if (trainer.average is None) != (state["average"] is None):
        raise ValueError("train.ema is set in one of the two and not in the other")
    bare_model(trainer.model).load_state_dict(state["model"])
    load_optimizer_state(trainer.optimizer, state["optimizer"])
    trainer.precision.load_state_dict(state["precision"])
    trainer.clipper.load_state_dict(state["clipper"])
    if trainer.average is not None:
        trainer.average.load_state_dict(state["average"])


class LastGood:
    """A copy of the trainer in memory, to fall back on when training goes astray."""

    def __init__(self, trainer: Trainer[BatchT], step: int) -> None:
        self.keep(trainer, step)

    def keep(self, trainer: Trainer[BatchT], step: int) -> None:
        """Replace the copy with the present state."""
        self.step = step
        self._state = deepcopy(trainer_state(trainer))

    def restore(self, trainer: Trainer[BatchT]) -> None:
        """Put the copy back; it stays good for another time."""
        load_trainer_state(trainer, deepcopy(self._state))
