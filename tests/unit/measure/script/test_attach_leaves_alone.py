"""A watched script behaves as it does unwatched, whatever it does with its model."""

import copy
import gc
import io
import multiprocessing
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

import pitstop
from pitstop.records.store import read_run
from pitstop_probe.attach import current


@pytest.fixture(autouse=True)
def watched(tmp_path: Path) -> Iterator[Path]:
    torch.set_num_threads(1)
    folder = tmp_path / "run"
    with pitstop.attach(folder):
        yield folder


def finish() -> None:
    """End the measurement that the fixture began."""
    measurement = current()
    assert measurement is not None
    measurement.close()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model: nn.Module, steps: int, after: Callable[[int], object] = lambda _: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        after(step)


def test_measuring_may_end_in_the_midst_of_the_scripts_own_hooks() -> None:
    """It ends inside an optimizer's step, while torch goes through all hooks of that step."""
    calls: list[int] = []

    handle = register_optimizer_step_post_hook(lambda *_: calls.append(1))
    measurement = current()
    assert measurement is not None
    # As under --detach, where the last border closes the measurement.
    measurement.tracker.at_border = lambda steps: finish() if steps == 10 else None
    train(network(), 30)
    handle.remove()
    assert measurement.is_closed
    assert len(calls) == 30


def test_the_whole_model_can_be_saved_after_any_step() -> None:
    model = network()
    saved = [io.BytesIO() for _ in range(30)]
    train(model, 30, lambda step: torch.save(model, saved[step]))
    assert not any(b"pitstop" in file.getvalue() for file in saved)


def test_a_copy_carries_nothing_of_the_probe() -> None:
    model = network()
    copies: list[nn.Module] = []
    train(model, 30, lambda _: copies.append(copy.deepcopy(model)))
    for each in copies:
        hooks = [module._forward_hooks for module in each.modules()]  # pyright: ignore[reportPrivateUsage]
        assert not any(hooks)


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, nested: Tensor) -> Tensor:
        return self.layer(torch.nested.to_padded_tensor(nested, 0.0))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_input_whose_size_cannot_be_told_is_no_reason_to_fail() -> None:
    model = Padded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])
        optimizer.zero_grad()
        model(nested).square().mean().backward()
        optimizer.step()
    measurement = current()
    assert measurement is not None
    assert measurement.tracker.active


def test_a_tracer_sees_the_same_network() -> None:
    model = network()
    train(model, 10)
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes].count("call_module") == 3


def _optimizer_after_training() -> "weakref.ref[torch.optim.Optimizer]":
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return weakref.ref(optimizer)


def test_optimizers_are_let_go() -> None:
    seen = [_optimizer_after_training() for _ in range(4)]
    gc.collect()
    assert [ref() for ref in seen] == [None] * 4


def test_no_hook_stays_on_a_parameter_that_is_the_input() -> None:
    source = nn.Parameter(torch.randn(4, 8))
    model = network()
    optimizer = torch.optim.SGD([source, *model.parameters()], lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        model(source).square().mean().backward()
        optimizer.step()
    assert not source._backward_hooks


def test_sparse_gradients_are_measured_to_the_end(watched: Path) -> None:
    table = nn.Embedding(50, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    for _ in range(30):
        optimizer.zero_grad()
        table(torch.randint(0, 50, (4,))).square().mean().backward()
        optimizer.step()
    finish()
    assert read_run(watched).first.is_finished


def test_a_model_that_is_never_called_has_a_forward_pass_all_the_same(watched: Path) -> None:
    weight = nn.Parameter(torch.randn(64, 64))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        hidden = torch.randn(64, 64)
        for _ in range(20):
            hidden = torch.tanh(hidden @ weight)
        hidden.square().mean().backward()
        optimizer.step()
    finish()
    rank = read_run(watched).first
    assert ("forward",) in rank.paths


def _train_in_child() -> None:
    train(network(), 40)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_training_in_a_forked_process_is_measured(watched: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_train_in_child)
    process.start()
    process.join()
    assert process.exitcode == 0
    rank = read_run(watched).first
    assert rank.steps is not None
    assert len(rank.steps) > 30
    assert rank.is_finished


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_forked_workers_write_nothing_of_their_parents_record(watched: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(40, 8))
    for _ in range(4):
        for (batch,) in DataLoader(data, batch_size=4, num_workers=2):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    finish()
    lines = (watched / "rank-0.jsonl").read_bytes().splitlines()
    assert len(lines) == len(set(lines))
