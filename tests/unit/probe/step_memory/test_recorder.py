"""What a step saves, against witnesses that share no code with the recorder."""

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from pitstop.records.plans.script import SampledStep
from pitstop_probe.step_memory.saved_tensors import COPY, RECOMPUTED, SAVED, SavedTensors
from tests.saved_bytes import saved_bytes
from tests.unit.plan.recorded import Pictures, Tokens, pictures, record, tokens, train_step


def kept(step: SampledStep, kind: str = SAVED) -> int:
    """Bytes of one kind, each piece of memory once."""
    found = {one.storage: one.num_bytes for one in step.pieces if one.kind == kind}
    return sum(found.values())


@pytest.mark.parametrize("recompute", [False, True])
def test_it_sees_what_a_forward_pass_holds(recompute: bool) -> None:
    model, batch = Tokens(recompute=recompute), tokens(3)
    step = record(model, lambda: batch).steps[-1]
    lasting = [*model.parameters(), *model.buffers()]
    witness = saved_bytes(lambda: model(batch).float().square().mean(), ignoring=lasting)
    loss_bytes = torch.empty(()).nbytes
    assert kept(step) == pytest.approx(witness, abs=2 * loss_bytes)


def test_recomputed_pieces_are_those_that_would_be_kept_otherwise() -> None:
    batch = tokens(3)
    plain = record(Tokens(), lambda: batch).steps[-1]
    again = record(Tokens(recompute=True), lambda: batch).steps[-1]
    assert kept(again) < 0.4 * kept(plain)
    assert kept(again, RECOMPUTED) + kept(again) >= kept(plain)


def test_losses_are_bit_equal_with_and_without_the_recorder() -> None:
    torch.manual_seed(0)
    model = Tokens()
    other = copy.deepcopy(model)
    batches = [tokens(4) for _ in range(6)]
    given = iter(batches)
    record(model, lambda: next(given), steps=6)
    rule = torch.optim.AdamW(other.parameters(), lr=1e-3)
    for batch in batches:
        train_step(other, batch, rule)
    mine, others = model.state_dict(), other.state_dict()
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_nothing_is_left_on_torch() -> None:
    call, backward = nn.Module.__call__, torch.autograd.backward
    hooks = torch.autograd.graph.saved_tensors_hooks.__init__
    record(Pictures(), lambda: pictures(2))
    assert nn.Module.__call__ is call
    assert torch.autograd.backward is backward
    assert torch.autograd.graph.saved_tensors_hooks.__init__ is hooks
    assert SavedTensors(torch, lambda: (None, "")).is_possible


def test_weights_that_autocast_copies_are_told_from_activations() -> None:
    model = Tokens()
    step = record(model, lambda: tokens(3), autocast=True).steps[-1]
    products = [module for module in model.modules() if isinstance(module, nn.Linear)]
    numbers = sum(module.weight.numel() for module in products)
    assert kept(step, COPY) == pytest.approx(2 * numbers, rel=0.02)


def test_a_step_inside_the_scripts_own_hooks_is_not_recorded() -> None:
    def same(tensor: Tensor) -> Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(same, same):
        found = record(Pictures(), lambda: pictures(2))
    assert found.steps == ()
    assert "saved_tensors_hooks of its own" in (found.problem or "")


def test_a_graph_that_is_used_twice_is_counted_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x).exp()  # exp keeps its outcome, and so does the product
            return y * y

    step = record(Twice(), lambda: torch.randn(5, 8)).steps[-1]
    sizes = [one.num_bytes for one in step.pieces if one.kind == SAVED and one.made_by == "Twice"]
    assert sizes == [5 * 8 * 4]


class OwnUpdate:
    """Updates weights as a script does by itself."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self._parameters, self._lr = list(parameters), lr

    def zero_grad(self) -> None:
        for weight in self._parameters:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for weight in self._parameters:
            assert weight.grad is not None
            weight.sub_(weight.grad, alpha=self._lr)


def test_weights_that_no_optimizer_updates_are_not_planned() -> None:
    found = record(Pictures(), lambda: pictures(2), steps=45, optimizer=OwnUpdate)
    assert found.problem == "no optimizer of torch's updates the weights"


def test_a_recorder_that_fails_leaves_the_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: SavedTensors) -> None:
        raise ValueError("an odd tensor")

    monkeypatch.setattr(SavedTensors, "start", fail)
    found = record(Pictures(), lambda: pictures(2), steps=6)
    assert found.steps == ()
    assert "an odd tensor" in (found.problem or "")
