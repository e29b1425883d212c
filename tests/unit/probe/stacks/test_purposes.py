"""Whole scripts in small: what trains and what evaluates, whatever mode the model is in."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pitstop_probe.clock import UnsampledSteps
from pitstop_probe.hooks.loader_hooks import Loaders
from pitstop_probe.hooks.torch_hooks import Models, Optimizers, hook_functions
from pitstop_probe.steps.step_tracker import StepTracker
from tests.fakes import one_by_one

torch.set_num_threads(1)

BATCH = 4
EPOCHS = 12
EPOCH = 30


class Keeper:
    """A sink that keeps samples and what lay outside steps."""

    def __init__(self) -> None:
        self.samples: list[int | None] = []
        self.events: Counter[str] = Counter()
        self.sampled = 0
        self.close: Callable[[], None] = lambda: None

    def step(self, step: Any) -> None:
        self.samples.append(step.samples)
        self.sampled += step.sampled

    def unsampled_steps(self, steps: UnsampledSteps) -> None:
        for step in one_by_one(steps):
            self.step(step)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        del step, start_us, wall_us
        self.events[name] += 1


@pytest.fixture
def kept() -> Iterator[Keeper]:
    keeper = Keeper()
    tracker = StepTracker(keeper)
    models, optimizers = Models(tracker, torch), Optimizers(tracker, torch)
    loaders = Loaders(tracker, torch, lambda: None)
    models.wrap(nn.Linear)
    patches = [
        *hook_functions(tracker, torch),
        *optimizers.patches,
        *models.patches,
        *loaders.patches,
    ]
    keeper.close = tracker.close
    yield keeper
    for patch in patches:
        patch.off()


def made_up(batches: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.zeros(batches * BATCH, 3)), BATCH)


def train(kept: Keeper, evaluate: Callable[[nn.Module], None], *, model: nn.Module) -> None:
    """Train for some epochs, long enough that not all steps are sampled."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = made_up(EPOCH)
    for _ in range(EPOCHS):
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
        evaluate(model)
    optimizer.step()  # so that what came after the last lies in a step
    kept.close()
    assert kept.sampled < len(kept.samples) / 2


def test_an_evaluation_in_training_mode_is_told_apart_and_its_samples_are_not_trained(
    kept: Keeper,
) -> None:
    held_out = made_up(7)

    @torch.no_grad()
    def evaluate(model: nn.Module) -> None:
        for (inputs,) in held_out:
            model(inputs)

    train(kept, evaluate, model=nn.Linear(3, 3))
    assert kept.events["evaluation"] == EPOCHS
    assert set(kept.samples[:-1]) == {BATCH}


def test_an_evaluation_of_averaged_weights_is_told_apart(kept: Keeper) -> None:
    """They never train, and are set to evaluate as long as they are."""
    model, held_out = nn.Linear(3, 3), made_up(7)
    average = copy.deepcopy(model).eval()

    @torch.inference_mode()
    def evaluate(_: nn.Module) -> None:
        for (inputs,) in held_out:
            average(inputs)

    train(kept, evaluate, model=model)
    assert kept.events["evaluation"] == EPOCHS


@pytest.mark.parametrize("gradients", [True, False])
def test_a_model_that_nobody_sets_back_to_train_is_still_trained(
    kept: Keeper, gradients: bool
) -> None:
    def evaluate(model: nn.Module) -> None:
        model.eval()
        with torch.set_grad_enabled(gradients):
            model(torch.zeros(BATCH, 3))

    train(kept, evaluate, model=nn.Linear(3, 3))
    # With gradients on, the evaluation itself is not told from training any more.
    assert kept.events["evaluation"] == (0 if gradients else EPOCHS)
    # Those of the steps until that was known are not.
    assert set(kept.samples[:-1]) == {BATCH, None}
    assert kept.samples[: EPOCH - 1] == [BATCH] * (EPOCH - 1)
    assert kept.samples[-EPOCH:-1] == [BATCH] * (EPOCH - 1)


def test_a_teacher_that_sees_each_batch_first_is_part_of_the_step(kept: Keeper) -> None:
    class Taught(nn.Module):
        """Called as one, though its modules are what is observed."""

        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = self.teacher(inputs)
            return self.student(inputs) - wanted

    train(kept, lambda _: None, model=Taught())
    assert kept.events["evaluation"] == 0
    assert set(kept.samples[:-1]) == {BATCH}
