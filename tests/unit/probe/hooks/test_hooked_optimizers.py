"""An update is one step however many optimizers step inside one another, and if some raise."""

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pitstop_probe.hooks.torch_hooks import Optimizers
from pitstop_probe.steps.step_tracker import StepTracker
from tests.fakes import ListSink

torch.set_num_threads(1)


class Around(torch.optim.Optimizer):
    """One that leaves the work to another."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


class Forgiving(Around):
    """One that goes on if the other cannot."""

    def step(self, closure: Any = None) -> Any:
        try:
            self.inner.step()
        except ValueError:
            return None


class Child(torch.optim.SGD):
    """One that calls its parent's step, which torch has wrapped, too."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Raises(torch.optim.Optimizer):
    """One whose steps raise while it is told to."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.raises = True

    def step(self, closure: Any = None) -> Any:
        if self.raises:
            raise ValueError("no step today")


class Watched:
    """A tracker with its optimizers' hooks on."""

    def __init__(self) -> None:
        self.tracker = StepTracker(ListSink())
        self.called_at: list[int] = []
        self.optimizers = Optimizers(self.tracker, torch, self._on_new)

    def _on_new(self) -> None:
        self.called_at.append(self.tracker.steps)


@pytest.fixture
def watched() -> Iterator[Watched]:
    found = Watched()
    yield found
    for patch in found.optimizers.patches:
        patch.off()


def parameters() -> list[nn.Parameter]:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return [parameter]


def sgd() -> torch.optim.SGD:
    return torch.optim.SGD(parameters(), lr=0.1)


MAKERS: dict[str, Callable[[], torch.optim.Optimizer]] = {
    "around": lambda: Around(sgd()),
    "around one around": lambda: Around(Around(sgd())),
    "child": lambda: sgd() and Child(parameters(), lr=0.1),
    "forgiving": lambda: Forgiving(Raises(parameters())),
}


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("make", MAKERS)
def test_one_inside_another_ends_one_step(watched: Watched, make: str, sampled: bool) -> None:
    optimizer, tracker = MAKERS[make](), watched.tracker
    optimizer.step()
    for count in range(1, 4):
        tracker.is_sampling = sampled
        optimizer.step()
        assert tracker.steps == count
        assert (tracker.at, tracker.open) == (None, [])
    assert tracker.step_ends.closer == id(optimizer)


def test_what_steps_inside_another_is_known_for_it_holds_the_state(watched: Watched) -> None:
    inner = sgd()
    outer = Around(inner)
    outer.step()
    assert set(watched.optimizers.seen) == {id(inner), id(outer)}


@pytest.mark.parametrize("sampled", [True, False])
def test_what_one_that_raised_left_open_ends_with_the_next(watched: Watched, sampled: bool) -> None:
    optimizer, tracker = Raises(parameters()), watched.tracker
    tracker.stepped(id(optimizer))
    tracker.is_sampling = sampled
    with pytest.raises(ValueError, match="no step today"):
        optimizer.step()
    optimizer.raises = False
    optimizer.step()
    assert tracker.steps == 1
    assert (tracker.at, tracker.open) == (None, [])
    tracker.is_sampling = True
    assert tracker.raw is not None
    regions = tracker.raw.regions
    optimizer.step()
    assert [(kind, end > start) for kind, start, end, *_ in regions] == [("optimizer", True)]


def test_a_step_on_another_thread_ends_nothing_of_ours(watched: Watched) -> None:
    optimizer, other, tracker = sgd(), sgd(), watched.tracker
    optimizer.step()
    region = tracker.begin("optimizer")
    thread = threading.Thread(target=other.step)
    thread.start()
    thread.join()
    assert tracker.open == [region]
    assert tracker.steps == 0


def test_a_new_one_is_told_of_once_and_after_the_border_that_it_makes(watched: Watched) -> None:
    first, second = sgd(), sgd()
    for _ in range(3):
        first.step()
    assert watched.called_at == []
    for _ in range(2):
        first.step()
        second.step()
    assert watched.called_at == [4]


def test_one_that_does_not_set_the_pace_is_counted_once_under_a_scaler(watched: Watched) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    first, second = sgd(), sgd()
    for optimizer in (first, second):
        scaler.step(optimizer)
    others = []
    for _ in range(3):
        scaler.step(first)
        others.append(watched.tracker.step_ends.others)
    assert others == [1, 2, 3]


def test_an_update_that_a_scaler_leaves_out_ends_the_step_all_the_same(watched: Watched) -> None:
    scaler = torch.amp.GradScaler("cpu")
    optimizer = sgd()
    parameter = optimizer.param_groups[0]["params"][0]
    for value in (1.0, math.inf, 1.0):
        scaler.scale(parameter.sum() * value).backward()
        scaler.step(optimizer)
        scaler.update()
    assert watched.tracker.steps == 2
