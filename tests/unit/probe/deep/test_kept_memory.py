"""Bytes that modules made and the backward pass finds held, against hand-computed ones."""

import gc
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pitstop_probe.deep.work_profile import WorkProfile
from tests.fork_server.client import run_python

FLOAT = 4
BATCH = 8


def kept(models: list[nn.Module], step: Callable[[], object]) -> dict[str, Any] | None:
    profile = WorkProfile(torch, models)
    profile.on()
    try:
        step()
    finally:
        profile.off()
    return profile.values(7)["kept"]


def by_name(values: dict[str, Any] | None) -> dict[str, int]:
    assert values is not None
    return {row["name"]: row["num_bytes"] for row in values["modules"]}


def one_step(model: nn.Module, *shape: int) -> Callable[[], object]:
    batch = torch.randn(BATCH, *shape)
    return lambda: model(batch).square().mean().backward()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def test_a_perceptron_keeps_what_follows_its_activation_and_its_output() -> None:
    model = perceptron()
    # What goes into the activation is held by nobody: its outcome tells where it was positive.
    found = kept([model], one_step(model, 16))
    assert by_name(found) == {"1": BATCH * 32 * FLOAT, "2": BATCH * 4 * FLOAT}
    assert found is not None
    assert found["num_bytes"] == BATCH * 36 * FLOAT


class Block(nn.Module):
    """A convolution, its norm and an activation in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(channels, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.activate = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.activate(self.norm(self.convolve(images)))


class Stages(nn.Module):
    """Blocks in a list, which nobody calls, recomputed or not."""

    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(3), Block(6)])
        self._recomputes = recomputes

    def forward(self, images: Tensor) -> Tensor:
        for block in self.blocks:
            if self._recomputes:
                images = checkpoint(block, images, use_reentrant=False)
            else:
                images = block(images)
        return images


def test_a_module_has_what_those_inside_it_made() -> None:
    model = Stages()
    maps = BATCH * 6 * 10 * 10 * FLOAT
    statistics = 2 * 6 * FLOAT  # mean and deviation, which the norm's backward pass uses
    found = kept([model], one_step(model, 3, 10, 10))
    # A norm needs what it was given; what it gave is changed in place by the activation and held.
    one = {"convolve": maps, "norm": maps + statistics}
    wanted = {"blocks": 2 * sum(one.values())}
    for number in range(2):
        wanted[f"blocks.{number}"] = sum(one.values())
        wanted.update({f"blocks.{number}.{name}": size for name, size in one.items()})
    assert by_name(found) == wanted
    assert found is not None
    rows = found["modules"]
    for row in rows:
        above = None if row["parent"] is None else rows[row["parent"]]["name"]
        assert (above or "") == row["name"].rpartition(".")[0]
    assert {row["name"]: row["kind"] for row in rows}["blocks.1.norm"] == "BatchNorm2d"


def test_what_is_recomputed_is_not_kept() -> None:
    model = Stages(recomputes=True)
    maps = BATCH * 6 * 10 * 10 * FLOAT
    found = kept([model], one_step(model, 3, 10, 10))
    # What each block gave is held, by the next one or by the loss; it was made by the norm.
    sizes = by_name(found)
    assert sizes["blocks.0"] == sizes["blocks.1"] == sizes["blocks.1.norm"] == maps


def test_of_several_backward_passes_the_one_that_begins_with_most() -> None:
    model = perceptron()

    def step() -> None:
        for count in (2, 8, 4):
            model(torch.randn(count, 16)).square().mean().backward()

    assert by_name(kept([model], step))["1"] == 8 * 32 * FLOAT


def test_without_a_backward_pass_nothing_is_said() -> None:
    model = perceptron()
    assert kept([model], lambda: model(torch.randn(BATCH, 16))) is None


def test_without_gradients_a_model_keeps_no_more_than_it_hands_on() -> None:
    teacher, student = perceptron(), perceptron()
    batch = torch.randn(BATCH, 16)

    def step() -> None:
        with torch.no_grad():
            wanted = teacher(batch)
        (student(batch) - wanted).square().mean().backward()

    # Of two models names begin with their class.
    found = kept([nn.Sequential(student), nn.ModuleDict({"teacher": teacher})], step)
    sizes = by_name(found)
    assert sizes["ModuleDict.teacher"] == BATCH * 4 * FLOAT
    assert sizes["Sequential.0"] == BATCH * 32 * FLOAT  # a difference needs nothing of its terms


def test_nothing_lives_longer_than_without_it() -> None:
    model = perceptron()
    profile = WorkProfile(torch, [model])
    profile.on()
    output = model(torch.randn(BATCH, 16))
    storage = torch.multiprocessing.reductions.StorageWeakRef(output.untyped_storage())
    output.sum().backward()
    del output
    gc.collect()
    assert storage.expired()
    profile.off()


def test_what_forbids_hooks_on_saved_tensors_goes_on_working() -> None:
    model = perceptron()
    weights: dict[str, Tensor] = dict(model.named_parameters())
    batch = torch.randn(BATCH, 16)

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, values, (batch,)).square().mean()

    def step() -> None:
        # A copy: the gradients themselves can be derived again, and hold the pass that they are of.
        gradient = torch.func.grad(loss)(weights)["0.weight"].detach().clone()
        with torch.autograd.graph.save_on_cpu():
            model(batch).square().mean().backward()
        assert torch.allclose(gradient, weights["0.weight"].grad)  # type: ignore[arg-type]

    assert by_name(kept([model], step))["2"] == BATCH * 4 * FLOAT


def test_emptied_storages_are_not_held() -> None:
    class Emptying(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            scratch = self.scratch = values + 1
            given = values * 2
            scratch.untyped_storage().resize_(0)
            return given

    model = nn.Sequential(nn.Linear(16, 16), Emptying())
    assert by_name(kept([model], one_step(model, 16))) == {"1": BATCH * 16 * FLOAT}


SCRIPT = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(30):
        batch = torch.randn(8, 16)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
"""


def test_a_watched_script_has_it_in_its_record(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    folder = tmp_path / "record"
    bare = [sys.executable, str(script)]
    doctor = [sys.executable, "-m", "pitstop", "doctor", "--detach", "--record", str(folder), "--"]
    watched = subprocess.run([*doctor, *bare], capture_output=True, text=True, check=True)
    alone = run_python(str(script))
    assert watched.stdout == alone.stdout, "to the last bit of the loss"
    lines = (folder / "rank-0.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    work = next(row for row in rows if isinstance(row, dict) and row["kind"] == "work")
    assert by_name(work["kept"]) == {"1": BATCH * 32 * FLOAT, "2": BATCH * 4 * FLOAT}
