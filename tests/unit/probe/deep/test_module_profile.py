"""Modules at any depth: everything adds up, nothing is changed, nothing is waited for."""

# pyright: reportPrivateUsage=false

from itertools import count
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pitstop_probe.deep.module_profile import ModuleProfile, module_names


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class FakeDevice:
    """Marks that count up, and that the device passes when it is told to."""

    def __init__(self) -> None:
        self.has_passed = False
        self.released: list[Any] = []
        self._next = count()

    def mark(self) -> int:
        return next(self._next)

    def passed(self, mark: int) -> bool:
        del mark
        return self.has_passed

    def elapsed_us(self, start: int, end: int) -> int:
        return end - start

    def release(self, marks: list[Any]) -> None:
        self.released += marks


def watched(device: Any = None) -> Any:
    """A tracker whose clock goes on by a microsecond at each reading."""
    ticks = count(0, 1000)
    return SimpleNamespace(device=device, now=lambda: next(ticks), thread=get_ident())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Align(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)


class Odd(nn.Module):
    """Gives what is no tensor beside what is, and changes it afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"x": self.layer(x), "count": 3, "more": [None, "text"]}


class Net(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Block() for _ in range(3))
        self.heads = nn.ModuleDict({"odd": Odd(), "unused": nn.Linear(4, 4)})
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            if self.reentrant is None:
                x = stage(x)
            else:
                x = checkpoint(stage, x, use_reentrant=self.reentrant)
        x = self.heads["odd"](x)["x"]
        return x.relu_()


def go(model: nn.Module, times: int = 1) -> list[Tensor]:
    model.zero_grad()
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    for _ in range(times):
        model(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def sampled(model: nn.Module, *, steps: int = 1, device: Any = None) -> dict[str, Any]:
    profile = ModuleProfile(watched(device), torch, [model])
    profile._is_capturing = lambda: False
    profile.on()
    for step in range(steps):
        if step:
            profile.border()
        go(model)
    profile.off()
    if device is not None:
        assert not profile.is_complete
        device.has_passed = True
    assert profile.is_complete
    return profile.values(9)


def by_name(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in values["modules"]}


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradients_are_the_same_to_the_bit_and_nothing_stays_on(reentrant: bool | None) -> None:
    torch.manual_seed(1)
    model = Net(reentrant)
    bare, original = go(model), torch.autograd.backward
    profile = ModuleProfile(watched(), torch, [model])
    profile.on()
    seen = go(model)
    profile.off()
    assert all(torch.equal(one, other) for one, other in zip(bare, seen, strict=True))
    assert "__call__" not in vars(nn.Linear)
    assert "__call__" not in vars(Block)
    assert torch.autograd.backward is original


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_every_part_is_what_its_parts_are_and_its_own(reentrant: bool | None) -> None:
    values = sampled(Net(reentrant))
    rows = values["modules"]
    inside: dict[int, list[int]] = {}
    for row in rows:
        if row["parent"] is not None:
            assert rows[row["parent"]]["name"] in ("stages", "heads") or row["name"].startswith(
                rows[row["parent"]]["name"]
            )
            inside.setdefault(row["parent"], [0, 0])
            inside[row["parent"]][0] += row["forward_us"]
            inside[row["parent"]][1] += row["backward_us"] or 0
    for parent, (forward, backward) in inside.items():
        assert forward <= rows[parent]["forward_us"]
        assert backward <= rows[parent]["backward_us"]
    outermost = [row for row in rows if row["parent"] is None]
    assert {row["name"] for row in outermost} == {"stages", "heads"}
    assert 0 < sum(row["forward_us"] for row in outermost) <= values["forward_us"]
    assert 0 < sum(row["backward_us"] for row in outermost) <= values["backward_us"]


def test_lists_and_dictionaries_hold_what_is_called_through_them() -> None:
    found = by_name(sampled(Net(None)))
    assert found["stages"]["kind"] == "ModuleList"
    assert (found["stages"]["calls"], found["stages.0"]["calls"]) == (0, 1)
    assert found["heads"]["forward_us"] == found["heads.odd"]["forward_us"]
    assert "heads.unused" not in found
    assert "stages.2.inner.2" in found


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_run_again_is_told_from_backward(reentrant: bool) -> None:
    found = by_name(sampled(Net(reentrant)))
    for stage in ("stages.0", "stages.1", "stages.2"):
        assert 0 < found[stage]["recompute_us"] < found[stage]["backward_us"]
        assert found[f"{stage}.inner.0"]["recompute_us"] > 0
    assert found["heads.odd"]["recompute_us"] == 0
    assert all(row["recompute_us"] == 0 for row in by_name(sampled(Net(None))).values())


def test_a_shared_module_is_part_of_whatever_called_it() -> None:
    class Sharing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.align = Align()
            pairs = [nn.Sequential(Block(), self.align) for _ in range(2)]
            self.stages = nn.ModuleList(pairs)

        def forward(self, x: Tensor) -> Tensor:
            return self.stages[1](self.stages[0](x))

    values = sampled(Sharing())
    rows = values["modules"]
    above = [rows[row["parent"]]["name"] for row in rows if row["name"] == "align"]
    assert sorted(above) == ["stages.0", "stages.1"]
    kinds = {kind["kind"]: kind["places"] for kind in values["kinds"]}
    assert kinds == {"Block": 2, "Align": 2}, "torch's own classes tell nothing of a model"


def test_wrappers_leave_no_trace_in_names() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    class Compiled(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self._orig_mod = module

        def forward(self, x: Tensor) -> Tensor:
            return self._orig_mod(x)

    wrapped = DistributedDataParallel(Compiled(Net(None)))
    assert set(by_name(sampled(wrapped))) == set(by_name(sampled(Net(None))))


def test_models_beside_each_other_are_told_apart() -> None:
    one, two = Net(None), nn.Linear(4, 4)
    names = dict(module_names([one, two]).values())
    assert names["Net.stages.0"] == "Block"
    assert names["Linear"] == "Linear"


def test_a_frozen_part_has_no_backward_pass() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.trained = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.frozen(x)
            return self.trained(x)

    found = by_name(sampled(Half()))
    assert found["frozen"]["backward_us"] is None
    assert found["trained"]["backward_us"] > 0


class Slow(torch.autograd.Function):
    """Its backward pass reads the clock some times, so it takes that long."""

    clock: Any = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        for _ in range(50):
            Slow.clock()
        return grads[0] * 2


class SlowBack(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Slow.apply(x)


@pytest.mark.parametrize(
    "after", [nn.Identity(), nn.Dropout(0.0).eval(), nn.ReLU(inplace=True)], ids=repr
)
def test_what_passes_its_input_on_has_no_share_of_the_module_before(after: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), SlowBack(), after, nn.Linear(4, 4))
    tracker = watched()
    Slow.clock = tracker.now
    profile = ModuleProfile(tracker, torch, [model])
    profile.on()
    go(model)
    profile.off()
    rows = by_name(profile.values(9))
    assert rows["1"]["backward_us"] >= 50
    assert (rows.get("2", {}).get("backward_us") or 0) < 10


def test_one_odd_step_of_three_does_not_show() -> None:
    tracker = watched()
    plain = count(0, 1000)
    jump = {"ns": 0}
    tracker.now = lambda: next(plain) + jump["ns"]
    model = Net(None)
    profile = ModuleProfile(tracker, torch, [model])
    profile.on()

    def stall(*_: Any) -> None:
        jump["ns"] += 10**9

    go(model)
    profile.border()
    handle = model.stages[1].register_forward_hook(stall)
    go(model)
    handle.remove()
    profile.border()
    go(model)
    profile.off()
    assert by_name(profile.values(6))["stages.1"]["forward_us"] < 1000


def test_a_devices_marks_are_read_once_they_passed_and_given_back() -> None:
    device = FakeDevice()
    values = sampled(Net(False), device=device)
    assert values["clock"] == "device"
    assert by_name(values)["stages"]["forward_us"] > 0
    assert sorted(device.released) == list(range(len(device.released)))


def test_a_device_that_fails_costs_the_reading_and_not_the_call() -> None:
    device = FakeDevice()
    profile = ModuleProfile(watched(device), torch, [model := Net(None)])
    profile._is_capturing = lambda: False
    device.mark = lambda: 1 // 0
    profile.on()
    assert go(model)
    profile.off()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        profile.values(5)


def test_a_call_that_raises_leaves_the_rest_where_it_was() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("planted")

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = Raises(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except ValueError:
                return self.good(x)

    values = sampled(Catches())
    assert {row["name"]: row["parent"] for row in values["modules"]} == {"bad": None, "good": None}
