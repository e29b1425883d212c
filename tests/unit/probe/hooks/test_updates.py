"""Updates that no optimizer of torch makes end steps, too, and accumulation does not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pitstop_probe.hooks.updates import OwnUpdates
from pitstop_probe.steps.step_tracker import StepTracker
from tests.unit.probe.hooks.test_torch_hooks import Nobody

torch.set_num_threads(1)

Update = Callable[[list[Tensor]], None]


@pytest.fixture
def tracker() -> StepTracker:
    return StepTracker(Nobody())


@pytest.fixture
def updates(tracker: StepTracker) -> Iterator[OwnUpdates]:
    updates = OwnUpdates(tracker, torch)
    yield updates
    updates.stop()


@torch.no_grad()
def in_place(weights: list[Tensor]) -> None:
    for weight in weights:
        assert weight.grad is not None
        weight.sub_(0.01 * weight.grad)
        weight.grad = None


def on_the_data(weights: list[Tensor]) -> None:
    """Neither bumps the weight's own count of writes nor lets its gradient go."""
    for weight in weights:
        assert weight.grad is not None
        weight.data.sub_(0.01 * weight.grad)
        weight.grad.zero_()


@torch.no_grad()
def never_cleared(weights: list[Tensor]) -> None:
    for weight in weights:
        assert weight.grad is not None
        weight.add_(weight.grad, alpha=-1e-4)


@pytest.mark.parametrize("update", [in_place, on_the_data, never_cleared])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_every_update_ends_one_step(
    tracker: StepTracker, updates: OwnUpdates, update: Update, passes: int
) -> None:
    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    borders: list[int] = []
    tracker.at_border = borders.append
    for _ in range(30):
        for _ in range(passes):
            model(batch).square().mean().backward()
        update(list(model.parameters()))
    assert updates.passes == 30 * passes
    assert updates.ends_steps
    # Until ten passes are over nobody looks, and the last step's end is another's beginning.
    assert borders == list(range(30 - -(-10 // passes)))
    assert updates.steps_before + len(borders) == 30


def test_gradients_that_are_only_gathered_end_no_step(updates: OwnUpdates) -> None:
    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    for _ in range(40):
        model(batch).square().mean().backward()
    assert updates.passes == 40
    assert not updates.ends_steps


class Thing:
    """Can be referred to weakly, as a tensor can, and is none."""


@pytest.mark.parametrize("kept", [Thing(), 3], ids=["object", "number"])
def test_what_a_function_of_the_script_keeps_is_not_taken_for_a_weight(
    updates: OwnUpdates, kept: object
) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.variable = kept
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
            return grad_outputs[0] * 2

    weight = torch.ones(3, requires_grad=True)
    for _ in range(2):
        Double.apply(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [4.0] * 3
    assert updates.passes == 2
    assert updates.steps_before == 1


# torch's own, while it loads its compiler.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is:DeprecationWarning")
def test_a_compiled_optimizer_ends_steps(tracker: StepTracker, updates: OwnUpdates) -> None:
    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, backend="eager")
    borders: list[int] = []
    tracker.at_border = borders.append
    for _ in range(20):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        step()
    assert borders == list(range(10))
    assert updates.steps_before == 10


@pytest.mark.parametrize("trained", range(0, 81, 20))
def test_other_models_with_gradients_do_not_hide_an_update(
    tracker: StepTracker, updates: OwnUpdates, trained: int
) -> None:
    batch = torch.randn(2, 4)
    models = [nn.Linear(4, 4) for _ in range(81)]
    for other in models:
        other.weight.grad, other.bias.grad = torch.ones(4, 4), torch.ones(4)
    model = models[trained]
    model.zero_grad()
    borders: list[int] = []
    tracker.at_border = borders.append
    for _ in range(20):
        model(batch).square().mean().backward()
        in_place(list(model.parameters()))
    assert borders == list(range(10))


def test_its_weights_are_those_with_gradients(updates: OwnUpdates) -> None:
    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    model.weight.requires_grad = False
    for _ in range(12):
        model(batch).square().mean().backward()
    (group,) = updates.param_groups
    assert any(weight is model.bias for weight in group["params"])
    assert not any(weight is model.weight for weight in group["params"])


def test_a_backward_pass_inside_another_is_part_of_it(updates: OwnUpdates) -> None:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            del ctx
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            del ctx
            with torch.enable_grad():
                inner = torch.ones(1, requires_grad=True)
                inner.square().sum().backward()
            return grads[0]

    weight = torch.ones(1, requires_grad=True)
    Nested.apply(weight).sum().backward()
    assert updates.passes == 1


def loss_of(weights: list[Tensor], batch: Tensor) -> Tensor:
    return (batch @ weights[0] + weights[1]).square().mean()


def made_weights() -> list[Tensor]:
    return [torch.randn(4, 4, requires_grad=True), torch.zeros(4, requires_grad=True)]


def changed_in_place(weights: list[Tensor], gradients: tuple[Tensor, ...]) -> list[Tensor]:
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(0.01 * gradient)
    return weights


def bound_anew(weights: list[Tensor], gradients: tuple[Tensor, ...]) -> list[Tensor]:
    pairs = zip(weights, gradients, strict=True)
    return [(weight - 0.01 * gradient).detach().requires_grad_() for weight, gradient in pairs]


def inner_loop(weights: list[Tensor], batch: Tensor) -> list[Tensor]:
    """Adapt to a task: what it does is differentiated again."""
    fast = weights
    for _ in range(3):
        gradients = torch.autograd.grad(loss_of(fast, batch), fast, create_graph=True)
        fast = [weight - 0.01 * gradient for weight, gradient in zip(fast, gradients, strict=True)]
    return fast


@pytest.mark.parametrize("update", [changed_in_place, bound_anew])
@pytest.mark.parametrize("adapt", [lambda weights, _: weights, inner_loop], ids=["plain", "maml"])
@pytest.mark.parametrize("passes", [1, 2])
def test_weights_that_gradients_are_asked_for_tell_of_updates(
    tracker: StepTracker, updates: OwnUpdates, update: Any, adapt: Any, passes: int
) -> None:
    weights, batch = made_weights(), torch.randn(8, 4)
    borders: list[int] = []
    tracker.at_border = borders.append
    for _ in range(30):
        losses = [loss_of(adapt(weights, batch), batch) for _ in range(passes)]
        gradients = [torch.autograd.grad(loss, weights) for loss in losses]
        weights = update(weights, gradients[0])
    assert updates.passes == 30 * passes
    assert borders == list(range(30 - -(-10 // passes)))
    assert updates.steps_before + len(borders) == 30


def test_updates_by_functions_of_a_model_are_steps(
    tracker: StepTracker, updates: OwnUpdates
) -> None:
    model, batch = nn.Linear(4, 4), torch.randn(8, 4)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    borders: list[int] = []
    tracker.at_border = borders.append

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (batch,)).square().mean()

    def adapted(weights: dict[str, Tensor]) -> Tensor:
        gradients = torch.func.grad(loss)(weights)
        return loss({name: weight - 0.01 * gradients[name] for name, weight in weights.items()})

    for function in (loss, adapted):
        for _ in range(15):
            gradients = torch.func.grad(function)(weights)
            weights = {name: value - 0.01 * gradients[name] for name, value in weights.items()}
    # Those of the inner loop are none.
    assert updates.passes == 30
    assert borders == list(range(20))
    assert updates.steps_before == 10


def test_gradients_without_an_update_end_no_step_however_they_are_asked_for(
    updates: OwnUpdates,
) -> None:
    weights, batch = made_weights(), torch.randn(8, 4)
    for _ in range(40):
        torch.autograd.grad(loss_of(weights, batch), weights)
    assert updates.passes == 40
    assert not updates.ends_steps


def test_two_networks_updated_in_turns_make_one_step(
    tracker: StepTracker, updates: OwnUpdates
) -> None:
    batch = torch.randn(8, 4)
    networks = [made_weights(), [torch.randn(4, 9, requires_grad=True), torch.zeros(9)]]
    networks[1][1].requires_grad_()
    borders: list[int] = []
    tracker.at_border = borders.append
    for _ in range(30):
        for weights in networks:
            gradients = torch.autograd.grad(loss_of(weights, batch), weights)
            changed_in_place(weights, gradients)
    assert updates.passes == 60
    # Once both are known one of them sets the pace.
    assert len(borders) in range(25, 28)


def test_what_an_optimizers_closure_does_is_the_optimizers(tracker: StepTracker) -> None:
    inside = [True]
    updates = OwnUpdates(tracker, torch, lambda: inside[0])
    try:
        model, batch = nn.Linear(4, 4), torch.randn(2, 4)
        for _ in range(30):
            model(batch).square().mean().backward()
            in_place(list(model.parameters()))
        assert updates.passes == 0
    finally:
        updates.stop()
