"""Named parts of a model and its loss, timed forward and backward."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pitstop.train.model.part_spans import part_spans
from pitstop.train.model.recompute import (
    RecomputeCall,
    apply_recompute,
    recompute_all,
    recompute_cheap,
)
from pitstop_probe import Clock, Step
from tests.fakes import FakeClock, FakeDevice, ListSink

torch.set_num_threads(1)
Path = tuple[str, ...]


class Kept:
    """Keeps finished steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None: ...


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.linear(x)
        return out, out.tanh()


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        one, other = self.inner(x)
        return x + one * other


class Model(nn.Module):
    """An estimator whose input needs no gradient, used by both stages; the first one is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.estimator = nn.Linear(4, 4)
        self.begin = nn.Linear(4, 4)
        self.stage1 = Stage()
        self.stage2 = Stage()

    def forward(self, x: Tensor) -> Tensor:
        guess = self.estimator(x)
        x1 = self.stage1(self.begin(x) + guess)
        return self.stage2(x1 + guess) + x1


class Distance(nn.Module):
    def forward(self, out: Tensor) -> Tensor:
        return out.square().mean()


def run(
    model: Model,
    *,
    backward: Callable[[Tensor], None] = lambda loss: loss.backward(),
    steps: int = 1,
    passes: int = 1,
    seen: list[Path] | None = None,
) -> list[Step]:
    near, far = Distance(), Distance()
    parts = {
        "estimator": model.estimator,
        "stage1": model.stage1,
        "stage1.inner": model.stage1.inner,
        "stage2": model.stage2,
        "near": near,
        "far": far,
    }
    kept = Kept()
    ticks = iter(range(1_000_000))
    clock = Clock(kept, now_us=lambda: next(ticks), timeline_every=1)
    if seen is not None:
        model.begin.weight.register_post_accumulate_grad_hook(
            lambda _: seen.append(clock.current.path)
        )
    with part_spans(parts, clock):
        for _ in range(steps):
            clock.begin_step()
            for _ in range(passes):
                with clock.span("forward"):
                    out = model(torch.ones(2, 4))
                with clock.span("loss"):
                    loss = near(out) + far(out)
                with clock.span("backward"):
                    backward(loss)
        clock.end_step()
    clock.close()
    return kept.steps


def elsewhere(loss: Tensor) -> None:
    """Go backward on another thread, as with a GPU."""
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


def times(step: Step) -> dict[Path, int]:
    """How often each span was open."""
    return {span.path: count for span, (count, _) in step.host_us.items()}


BACKWARD = {
    ("backward", "near"): 1,
    ("backward", "far"): 1,
    ("backward", "stage2"): 1,
    ("backward", "stage1"): 1,
    ("backward", "stage1", "stage1.inner"): 1,
    ("backward", "estimator"): 1,
}
FORWARD = {
    ("forward", "estimator"): 1,
    ("forward", "stage1"): 1,
    ("forward", "stage1", "stage1.inner"): 1,
    ("forward", "stage2"): 1,
    ("loss", "near"): 1,
    ("loss", "far"): 1,
}
WHOLE = {("forward",): 1, ("loss",): 1, ("backward",): 1}


def test_every_part_is_timed_forward_and_backward() -> None:
    [step] = run(Model())
    assert times(step) == WHOLE | FORWARD | BACKWARD
    assert step.broken == 0


def test_parts_go_backward_in_the_reverse_order_and_do_not_overlap() -> None:
    [step] = run(Model())
    entries = [each for each in step.timeline if each.span.path[0] == "backward"]
    outer = sorted(
        (each.start_us, each.end_us, each.span.name) for each in entries if each.span.depth == 2
    )
    assert [name for *_, name in outer] == ["far", "near", "stage2", "stage1", "estimator"]
    assert all(one[1] <= two[0] for one, two in pairwise(outer))
    assert all(start < end for start, end, _ in outer)


def test_a_part_ends_where_its_input_begins() -> None:
    """What lies between two parts is the backward pass's own, as it is the forward pass's."""
    seen: list[Path] = []
    run(Model(), seen=seen)
    assert seen == [("backward",)]


def test_all_times_of_a_step_still_add_up() -> None:
    [step] = run(Model())
    assert step.accounted_us + step.unaccounted_us == step.wall_us
    assert all(step.self_us(span) >= 0 for span in step.host_us)


def test_a_backward_pass_on_another_thread_is_seen_as_well() -> None:
    """As with a GPU, where autograd has a thread of its own for it."""

    [step] = run(Model(), backward=elsewhere)
    assert times(step) == WHOLE | FORWARD | BACKWARD


def test_steps_and_micro_steps_follow_each_other() -> None:
    steps = run(Model(), steps=2, passes=2)
    wanted = {path: 2 * count for path, count in (WHOLE | FORWARD | BACKWARD).items()}
    assert [times(step) for step in steps] == [wanted, wanted]


def test_a_part_that_is_recomputed_says_so() -> None:
    model = Model()
    model.stage1.forward = partial(recompute_all, model.stage1.forward)
    [step] = run(model)
    found = times(step)
    assert found[("forward", "stage1")] == 1
    again = [path for path in found if path[-1] == "recompute stage1.inner"]
    assert again
    assert all(path[0] == "backward" for path in again)


def test_gradients_are_what_they_were() -> None:
    def gradients(*, timed: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Model()
        if timed:
            run(model)
        else:
            out = model(torch.ones(2, 4))
            (Distance()(out) + Distance()(out)).backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for one, other in zip(gradients(timed=True), gradients(timed=False), strict=True):
        assert torch.equal(one, other)


def test_an_evaluation_is_timed_forward_alone() -> None:
    model = Model()
    with torch.no_grad():
        [step] = run(model, backward=lambda loss: None)
    assert times(step) == WHOLE | FORWARD


def test_nothing_is_left_on_the_model_afterwards() -> None:
    model = Model()
    run(model)
    assert not any(vars(module)["_forward_hooks"] for module in model.modules())
    out = model(torch.ones(2, 4))
    assert out._backward_hooks is None


class Costly(nn.Module):
    """Takes a known time whenever it runs: some before its last operation, some after it."""

    def __init__(self, time: FakeClock, cost_us: int, tail_us: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self._time = time
        self._cost_us = cost_us
        self._tail_us = tail_us

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        self._time.advance(self._cost_us)
        x = x.tanh()
        self._time.advance(self._tail_us)
        return x


class Chain:
    """Costly units in a row, timed by a clock and a device that move with them alone."""

    def __init__(self, *costs_us: int, tail_us: int = 0) -> None:
        torch.manual_seed(0)
        self.time = FakeClock()
        self.units = [Costly(self.time, cost_us, tail_us) for cost_us in costs_us]
        self.model = nn.Sequential(*self.units)
        self.sink = ListSink()
        self.clock = Clock(self.sink, FakeDevice(self.time), now_us=self.time.now_us)

    def run(
        self,
        parts: dict[str, nn.Module] | None = None,
        backward: Callable[[Tensor], None] = lambda loss: loss.backward(),
    ) -> Step:
        with part_spans(parts or {}, self.clock):
            self.clock.begin_step()
            with self.clock.span("forward"):
                loss = self.model(torch.ones(2, 4)).sum()
            with self.clock.span("backward"):
                backward(loss)
            self.clock.end_step()
        [step] = self.sink.steps
        return step


def again(times_us: dict[Path, int]) -> int:
    """Time in which something runs again: outermost spans of that name only."""
    return sum(us for path, us in times_us.items() if path.index("recompute") == len(path) - 1)


def on_host(step: Step) -> dict[Path, int]:
    found = {span.path: us for span, (_, us) in step.host_us.items()}
    return {path: us for path, us in found.items() if "recompute" in path}


def on_device(step: Step) -> dict[Path, int]:
    return {span.path: us for span, us in step.device_us.items() if "recompute" in span.path}


@settings(max_examples=40, deadline=None)
@given(
    costs_us=st.lists(st.integers(1, 10**6), min_size=1, max_size=5),
    which=st.sets(st.integers(0, 4)),
    named=st.sets(st.integers(0, 4)),
    call=st.sampled_from([recompute_all, recompute_cheap]),
    backward=st.sampled_from([torch.Tensor.backward, elsewhere]),
)
def test_what_runs_again_takes_what_it_took_before(
    costs_us: list[int],
    which: set[int],
    named: set[int],
    call: RecomputeCall,
    backward: Callable[[Tensor], None],
) -> None:
    """Whatever is recomputed and whatever has a name, on both clocks and on any thread."""
    chain = Chain(*costs_us)
    for number, unit in enumerate(chain.units):
        if number in which:
            unit.forward = partial(call, unit.forward)
    parts: dict[str, nn.Module] = {
        f"unit{number}": unit for number, unit in enumerate(chain.units) if number in named
    }
    step = chain.run(parts, backward)
    wanted_us = sum(us for number, us in enumerate(costs_us) if number in which)
    assert again(on_host(step)) == again(on_device(step)) == wanted_us
    assert all(path[0] == "backward" for path in on_host(step))
    assert step.broken == 0
    assert chain.clock.foreign_spans == 0
    assert step.accounted_us + step.unaccounted_us == step.wall_us


@pytest.mark.parametrize("call", [recompute_all, recompute_cheap])
def test_a_recomputation_that_is_stopped_early_closes_its_span(call: RecomputeCall) -> None:
    """What comes after the last value that backward needs does not run again."""
    chain = Chain(100, 20, tail_us=5_000)
    for unit in chain.units:
        unit.forward = partial(call, unit.forward)
    step = chain.run({"unit": chain.units[0]})
    assert again(on_host(step)) == 120
    assert step.broken == 0
    assert {path for path in times(step) if path[0] == "backward"} == {
        ("backward",),
        ("backward", "recompute"),
        ("backward", "unit"),
        ("backward", "unit", "recompute"),
    }


def test_an_error_in_what_runs_again_closes_its_span() -> None:
    chain = Chain(100)
    [unit] = chain.units
    once = iter([unit.forward])

    def fails_the_second_time(x: Tensor) -> Tensor:
        forward = next(once, None)
        if forward is None:
            chain.time.advance(7)
            raise MemoryError
        return forward(x)

    unit.forward = partial(recompute_all, fails_the_second_time)

    def backward(loss: Tensor) -> None:
        with pytest.raises(MemoryError):
            loss.backward()

    step = chain.run(backward=backward)
    assert on_host(step) == {("backward", "recompute"): 7}
    assert step.broken == 0


def test_recomputing_inside_what_is_recomputed_is_all_seen() -> None:
    """Here time passes in units alone, so all of backward is units that run again."""
    chain = Chain(100, 20)
    chain.model = nn.Sequential(chain.model)
    apply_recompute(chain.model, ("0", "0.0", "0.1"))
    step = chain.run(backward=elsewhere)
    [backward_us] = [us for span, (_, us) in step.host_us.items() if span.path == ("backward",)]
    assert again(on_host(step)) == backward_us > 120
    assert step.broken == 0


def test_a_graph_that_goes_backward_twice_runs_again_twice() -> None:
    def twice(loss: Tensor) -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    chain = Chain(100)
    apply_recompute(chain.model, ("0",))
    step = chain.run(backward=twice)
    assert times(step)["backward", "recompute"] == 2
    assert on_host(step) == {("backward", "recompute"): 200}


def test_a_graph_that_goes_backward_again_outside_the_parts_is_timed_once() -> None:
    chain = Chain(100)
    apply_recompute(chain.model, ("0",))
    kept: list[Tensor] = []

    def keep(loss: Tensor) -> None:
        loss.backward(retain_graph=True)
        kept.append(loss)

    chain.run(backward=keep)
    with part_spans({}, chain.clock):
        chain.clock.begin_step()
        kept[0].backward()
        chain.clock.close()
    first, second = chain.sink.steps
    assert on_host(first) == {("backward", "recompute"): 100}
    assert (on_host(second), second.broken) == ({}, 0)


@contextmanager
def nothing_around(_: Clock) -> Iterator[None]:
    yield


@contextmanager
def a_bare_step(clock: Clock) -> Iterator[None]:
    clock.begin_step()
    yield


@contextmanager
def an_evaluation(clock: Clock) -> Iterator[None]:
    clock.begin_step()
    with clock.outside_step("evaluation"):
        yield


@pytest.mark.parametrize("around", [nothing_around, a_bare_step, an_evaluation])
def test_outside_the_parts_of_a_step_nothing_is_timed(
    around: Callable[[Clock], AbstractContextManager[None]],
) -> None:
    chain = Chain(100)
    apply_recompute(chain.model, ("0",))
    with part_spans({}, chain.clock), around(chain.clock):
        chain.model(torch.ones(2, 4)).sum().backward()
    chain.clock.close()
    assert [dict(step.host_us) for step in chain.sink.steps] in ([], [{}])


def test_a_clock_times_recomputing_only_inside_its_own_context() -> None:
    chain, other = Chain(100), Chain(100)
    apply_recompute(chain.model, ("0",))
    with part_spans({}, other.clock):
        step = chain.run()
        assert again(on_host(step)) == 100
    chain.clock.begin_step()
    with chain.clock.span("backward"):
        chain.model(torch.ones(2, 4)).sum().backward()
    chain.clock.close()
    assert [on_host(step) for step in chain.sink.steps[1:]] == [{}]
    assert other.sink.steps == []
