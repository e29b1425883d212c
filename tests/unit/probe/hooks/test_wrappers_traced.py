"""A compiler that traces one of our wrappers finds what it stands in place of, and no more."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._dynamo.utils
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

from pitstop_probe.hooks.patches import replace_call
from pitstop_probe.hooks.torch_hooks import Models, Optimizers, Recomputation, hook_functions
from pitstop_probe.steps.step_tracker import StepTracker
from tests.fakes import ListSink

torch.set_num_threads(1)

MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
LOSS = nn.MSELoss()
BATCH = torch.ones(4, 8)


@pytest.fixture(autouse=True)
def group_and_model(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
    MODEL.zero_grad()
    torch._dynamo.reset()


def clip_norm() -> torch.Tensor:
    return nn.utils.clip_grad_norm_(MODEL.parameters(), 1.0)


def clip_value() -> None:
    nn.utils.clip_grad_value_(MODEL.parameters(), 1.0)


def zero_grad() -> torch.Tensor:
    MODEL.zero_grad()
    return BATCH + 1


def forward() -> torch.Tensor:
    return LOSS(MODEL(BATCH), BATCH)


def grad() -> Any:
    return torch.autograd.grad(forward(), list(MODEL.parameters()))


def recompute() -> Any:
    return checkpoint(MODEL, BATCH, use_reentrant=False)


def all_reduce() -> torch.Tensor:
    batch = BATCH + 1
    distributed.all_reduce(batch)
    return batch


def gather() -> torch.Tensor:
    gathered = torch.empty(4, 8)
    distributed.all_gather_into_tensor(gathered, BATCH)
    return gathered


def compiled(function: Callable[[], Any]) -> dict[str, int]:
    """Compile in one piece and call; give what was compiled."""
    for parameter in MODEL.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        torch.compile(function, backend="eager", fullgraph=True)()
    return dict(torch._dynamo.utils.counters["stats"])


@pytest.mark.parametrize(
    "function",
    [clip_norm, clip_value, zero_grad, forward, grad, recompute, all_reduce, gather],
)
def test_what_is_compiled_in_one_piece_still_is_and_is_the_same(
    function: Callable[[], Any],
) -> None:
    expected = compiled(function)
    tracker = StepTracker(ListSink())
    models = Models(tracker, torch)
    patches = [
        *hook_functions(tracker, torch),
        *Optimizers(tracker, torch).patches,
        *Recomputation(tracker, torch).patches,
    ]
    for kind in (nn.Sequential, nn.Linear, nn.MSELoss):
        models.wrap(kind)
    patches += models.patches
    try:
        tracker.stepped(1)
        assert compiled(function) == expected
        tracker.is_sampling = False
        assert compiled(function) == expected
    finally:
        for patch in patches:
            patch.off()


def test_a_call_that_is_profiled_is_traced_as_it_was() -> None:
    expected = compiled(forward)
    patch = replace_call(nn.Linear, lambda *_: pytest.fail("seen by the compiler"))
    try:
        assert compiled(forward) == expected
    finally:
        patch.off()
