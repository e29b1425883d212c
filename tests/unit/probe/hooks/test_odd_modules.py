"""Whatever modules and arguments a script has, observing them raises nothing in it."""

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.callback
from torch import nn

from pitstop_probe.hooks.torch_hooks import Compilation, Models
from pitstop_probe.steps.step_tracker import StepTracker
from tests.fakes import ListSink

torch.set_num_threads(1)


class Tree(nn.Module):
    """Has a name of its own for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.children = [1, 2]  # type: ignore[assignment]
        self.held = nn.Linear(3, 3)


class HalfMade(nn.Module):
    """Has not called what makes it one."""

    def __init__(self) -> None:
        pass


@pytest.fixture
def tracker() -> StepTracker:
    return StepTracker(ListSink())


@pytest.fixture
def models(tracker: StepTracker) -> Iterator[Models]:
    models = Models(tracker, torch)
    yield models
    for patch in models.patches:
        patch.off()


def test_all_modules_that_live_can_be_gone_through(models: Models, tracker: StepTracker) -> None:
    alive = [Tree(), HalfMade(), nn.Sequential(nn.Tanh())]
    tracker.stepped(1)
    models.search()
    for kind in (*map(type, alive), nn.Linear, nn.Tanh):
        assert "__call__" in vars(kind)


def test_before_the_first_border_nothing_is_wrapped_for_a_compiler_to_meet(models: Models) -> None:
    model = nn.Sequential(nn.Tanh())
    models.search()
    assert models.patches == []
    assert "__call__" not in vars(type(model))


@pytest.mark.parametrize("sampled", [True, False])
def test_a_batch_without_a_shape_is_a_pass_of_unknown_samples(
    models: Models, tracker: StepTracker, sampled: bool
) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, batch: Any) -> torch.Tensor:
            return self.weight * batch.values().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    with pytest.raises(RuntimeError):
        _ = batch.shape
    model = Sum()
    models.wrap(Sum)
    tracker.stepped(1)
    tracker.is_sampling = sampled
    for _ in range(3):
        assert model(batch) == 9
    assert tracker.raw is not None
    assert tracker.raw.calls == [(id(model), None)] * 3


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("is_on", [True, False])
def test_autocast_is_seen_with_one_function_for_all_devices_or_several(
    tracker: StepTracker, is_old: bool, is_on: bool
) -> None:
    old = SimpleNamespace(
        nn=nn,
        compiler=SimpleNamespace(),
        _utils=SimpleNamespace(),
        is_autocast_enabled=lambda: False,
        is_autocast_cpu_enabled=lambda: torch.is_autocast_enabled("cpu"),
        is_grad_enabled=torch.is_grad_enabled,
        get_autocast_gpu_dtype=lambda: torch.float16,
        get_autocast_cpu_dtype=lambda: torch.get_autocast_dtype("cpu"),
    )
    models = Models(tracker, old if is_old else torch)
    models.wrap(nn.Linear)
    tracker.stepped(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
        nn.Linear(3, 3)(torch.ones(2, 3))
    for patch in models.patches:
        patch.off()
    assert models.autocast == ("bfloat16" if is_on else None)


def test_a_compiler_that_was_reset_can_still_be_left() -> None:
    compilation = Compilation(StepTracker(ListSink()))
    compilation.listen(torch._dynamo.callback)
    torch._dynamo.reset()
    compilation.remove()
