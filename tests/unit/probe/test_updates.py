"""Updates that no optimizer of torch makes end steps, too, and accumulation does not."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from pitstop_probe.updates import OwnUpdates
from pitstop_probe.watch import Watch
from tests.unit.probe.test_torch_hooks import Nobody

torch.set_num_threads(1)

Update = Callable[[list[Tensor]], None]


@pytest.fixture
def watch() -> Watch:
    return Watch(Nobody())


@pytest.fixture
def updates(watch: Watch) -> Iterator[OwnUpdates]:
    updates = OwnUpdates(watch, torch)
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
    watch: Watch, updates: OwnUpdates, update: Update, passes: int
) -> None:
    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    borders: list[int] = []
    watch.at_border = borders.append
    for _ in range(30):
        for _ in range(passes):
            model(batch).square().mean().backward()
        update(list(model.parameters()))
    assert updates.passes == 30 * passes
    assert updates.ends_steps
    # Until ten passes are over nobody looks, and the last step's end is another's beginning.
    assert borders == list(range(30 - -(-10 // passes)))


def test_gradients_that_are_only_gathered_end_no_step(updates: OwnUpdates) -> None:
    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    for _ in range(40):
        model(batch).square().mean().backward()
    assert updates.passes == 40
    assert not updates.ends_steps


# torch's own, while it loads its compiler.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is:DeprecationWarning")
def test_a_compiled_optimizer_ends_steps(watch: Watch, updates: OwnUpdates) -> None:
    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, backend="eager")
    borders: list[int] = []
    watch.at_border = borders.append
    for _ in range(20):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        step()
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
