"""Everything a run needs to go on: taken out of a trainer, and put back."""

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pitstop.train.optim.saved_state import load_optimizer_state
from pitstop.train.state.checkpoint import Checkpoint
from pitstop.train.state.shards import DividedTensor, fill_marks, map_tensors
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


def restore_trainer(trainer: Trainer[BatchT], checkpoint: Checkpoint) -> int:
    """Put a checkpoint's state into a trainer; give the step it was saved after.

    Who divided the model when it was saved, and who does now, need not be the same. All ranks that
    divide it must call this.

    Raises:
        ValueError: It is not the state of an equal trainer.
        CheckpointError: It cannot be read.
    """
    if trainer.shards is None:
        state = checkpoint.common()
    else:
        state, index = checkpoint.divided()
        owners = _divided_like(trainer)
        if index:
            # Here, where it is needed: importing what it stands on takes half a second.
            from pitstop.train.state.shard_storage import load_shards

            targets = {key: _blank(key, each, owners) for key, each in index.items()}
            load_shards(targets, index, checkpoint.read_shard)
            state = fill_marks(state, targets)
        else:
            state = map_tensors(state, partial(_divide, owners=owners))
    load_trainer_state(trainer, state)
    return int(state["step"])


def _divided_like(trainer: Trainer[BatchT]) -> dict[str, nn.Parameter]:
    """Name the parameter whose division each tensor of a state follows, by path or its begin."""
    named = dict(trainer.model.named_parameters())
    owners = {f"model.{name}": each for name, each in named.items()}
    owners |= {f"average.{name}": each for name, each in named.items()}
    updated = (each for group in trainer.optimizer.param_groups for each in group["params"])
    return owners | {f"optimizer.state.{place}": each for place, each in enumerate(updated)}


def _owner(path: str, owners: dict[str, nn.Parameter]) -> nn.Parameter | None:
    is_optimizers = path.startswith("optimizer.state.")
    return owners.get(path.rpartition(".")[0] if is_optimizers else path)


def _blank(path: str, tensor: DividedTensor, owners: dict[str, nn.Parameter]) -> Tensor:
    """Make a tensor, divided as now, for rows that were divided in whatever way."""
    owner = _owner(path, owners)
    if owner is None or tuple(owner.shape) != tensor.shape:
        raise ValueError(f"{path} of the shape {tensor.shape} is no part of this model's state")
    return torch.zeros_like(owner, dtype=tensor.dtype, requires_grad=False)


def _divide(path: str, tensor: Tensor, *, owners: dict[str, nn.Parameter]) -> Tensor:
    """Take this rank's part of a whole tensor, where its owner is divided."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    owner = _owner(path, owners)
    if not isinstance(owner, DTensor) or owner.shape != tensor.shape:
        return tensor
    # Every rank has read all of it: nothing need be sent.
    whole = tensor.to(owner.device_mesh.device_type)
    return distribute_tensor(whole, owner.device_mesh, owner.placements, src_data_rank=None)


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
