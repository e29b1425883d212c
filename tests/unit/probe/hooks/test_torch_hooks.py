"""Optimizers are observed through torch's own hooks, with what they call."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pitstop_probe.hooks.torch_hooks import Models, Optimizers, Waits, hook_functions
from pitstop_probe.steps.gaps import name_blind_gap
from pitstop_probe.steps.parts import EVAL, MODE, TRAIN, Unset
from pitstop_probe.steps.step_tracker import StepTracker

torch.set_num_threads(1)


class Nobody:
    """A sink that lets everything go."""

    def step(self, step: Any) -> None:
        del step

    def unsampled_steps(self, steps: Any) -> None:
        del steps

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        del name, step, start_us, wall_us


@pytest.fixture
def tracker() -> Iterator[StepTracker]:
    tracker = StepTracker(Nobody())
    models, optimizers = Models(tracker, torch), Optimizers(tracker, torch)
    models.wrap(torch.nn.Sequential)
    patches = [*hook_functions(tracker, torch), *optimizers.patches, *models.patches]
    yield tracker
    for patch in patches:
        patch.off()


def details(tracker: StepTracker) -> list[Any]:
    assert tracker.raw is not None
    return [detail for _, _, _, detail, *_ in tracker.raw.regions]


def kinds(tracker: StepTracker) -> list[str]:
    assert tracker.raw is not None
    return [kind for kind, *_ in tracker.raw.regions]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_is_observed_and_gives_what_it_gave(tracker: StepTracker, by_name: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(2, 3)
    seen: list[list[str]] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        if tracker.raw is not None:
            seen.append(kinds(tracker))
        return loss

    for _ in range(2):
        expected = model(batch).square().mean().item()
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert loss is not None
        assert loss.item() == expected
    # The second step began with the pass that told what to expect.
    assert seen == [["forward", "optimizer", "closure", "zero_grad", "forward", "backward"]]
    assert tracker.open == []


def test_a_module_inside_another_of_its_class_is_part_of_it(tracker: StepTracker) -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    tracker.stepped(1)
    model(torch.zeros(2, 3))
    assert kinds(tracker) == ["forward"]
    assert tracker.raw is not None
    assert tracker.raw.calls == [(id(model), 2)]


def test_an_exception_in_a_pass_goes_through_and_ends_its_region(tracker: StepTracker) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    tracker.stepped(1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.zeros(2, 4))
    assert kinds(tracker) == ["forward"]
    assert tracker.open == []


def unlooked(tracker: StepTracker) -> None:
    """Begin a step whose parts are not noted."""
    tracker.stepped(1)
    tracker.is_sampling = False


def test_in_a_step_that_is_not_sampled_calls_are_counted_and_nothing_is_noted(
    tracker: StepTracker,
) -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unlooked(tracker)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.zeros(5, 3)).sum().backward()
        assert tracker.last_kind == "backward"
    assert kinds(tracker) == []
    assert tracker.raw is not None
    assert tracker.raw.calls == [(id(model), 5)] * 2
    assert tracker.at is None
    assert not tracker.is_sampling


def test_an_evaluation_is_noted_in_a_step_that_is_not_sampled(tracker: StepTracker) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    unlooked(tracker)
    model(torch.zeros(5, 3))
    model.eval()
    with torch.no_grad():
        model(torch.zeros(7, 3))
    model(torch.zeros(7, 3))
    assert kinds(tracker) == [MODE, "forward", "forward"]
    assert details(tracker) == [EVAL, EVAL, Unset(id(model))]
    assert tracker.raw is not None
    assert tracker.raw.calls == [(id(model), 5)]


def test_a_model_that_trains_is_seen_to_be_set_to_evaluate_and_back(tracker: StepTracker) -> None:
    """Once each: its parts are set with it, and setting it to what it is changes nothing."""
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    model(torch.zeros(5, 3))
    other = torch.nn.Linear(3, 3)
    tracker.stepped(1)
    model.train()
    assert kinds(tracker) == []
    model.eval()
    model.eval()
    other.eval()
    model[0].train()
    model.train()
    assert kinds(tracker) == [MODE, MODE]
    assert details(tracker) == [EVAL, TRAIN]


def test_a_model_known_to_train_as_it_is_trains_though_set_to_evaluate(
    tracker: StepTracker,
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    model(torch.zeros(5, 3))
    tracker.stepped(1)
    model.eval()
    tracker.trains.add(id(model))
    model(torch.zeros(7, 3))
    with torch.no_grad():
        model(torch.zeros(7, 3))
    assert details(tracker) == [EVAL, TRAIN, EVAL]
    assert tracker.raw is not None
    assert tracker.raw.calls == [(id(model), 7)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
def test_a_pass_without_gradients_is_for_what_its_batch_is_for(
    tracker: StepTracker, mode: Any, training: bool
) -> None:
    """It is not counted, be it an evaluation, a teacher or samples for a critic."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3)).train(training)
    tracker.stepped(1)
    with mode():
        model(torch.zeros(5, 3))
    model(torch.zeros(6, 3))
    assert details(tracker) == [None, TRAIN]
    assert tracker.raw is not None
    assert tracker.raw.calls == [(id(model), 6)]


def test_waits_in_an_evaluation_or_a_slowed_step_are_not_the_steps() -> None:
    tracker = StepTracker(Nobody())
    waits = Waits(tracker, torch)

    def step(purpose: str) -> None:
        for kind, detail in (("forward", purpose), ("backward", None)):
            tracker.enter(kind, detail)
            waits._timed("item", lambda: None)  # pyright: ignore[reportPrivateUsage]
            tracker.leave(kind)
        tracker.stepped(1)

    try:
        tracker.stepped(1)
        for purpose in (TRAIN, EVAL, TRAIN):
            step(purpose)
        tracker.special("pitstop")
        step(TRAIN)
        tracker.close()
    finally:
        for patch in waits.patches:
            patch.off()
    ((_, _, operation), (calls, _)), *others = waits.lines.items()
    assert (operation, calls, others) == ("item", 2 + 1 + 2, [])


def test_what_a_thread_is_in_is_known_in_a_step_that_is_not_sampled(tracker: StepTracker) -> None:
    seen: list[str | None] = []

    class Spy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(tracker.at)
            return x

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), Spy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unlooked(tracker)
    out = model(torch.zeros(5, 3))
    out.register_hook(lambda _: seen.append(tracker.at))
    out.sum().backward()
    hook = optimizer.register_step_pre_hook(lambda *_: seen.append(tracker.at))
    optimizer.step()
    hook.remove()
    assert seen == ["forward", "backward", "optimizer"]
    assert tracker.at is None


def test_the_loss_is_kept_in_a_step_that_is_not_sampled(tracker: StepTracker) -> None:
    unlooked(tracker)
    tracker.wants_loss = True
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    assert tracker.loss == 6


def test_an_exception_goes_through_a_step_that_is_not_sampled(tracker: StepTracker) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    unlooked(tracker)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.zeros(2, 4))
    assert tracker.at is None


class Transform(nn.Module):
    """Makes pictures ready, as a dataset's transforms do."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.inner is None else self.inner(x)


@pytest.mark.parametrize("is_sampling", [True, False])
@pytest.mark.parametrize("inner", [None, nn.Linear(4, 4)], ids=["bare", "with parameters"])
def test_a_module_called_for_a_batch_is_data_and_no_source_of_samples(
    tracker: StepTracker, inner: nn.Module | None, *, is_sampling: bool
) -> None:
    models = Models(tracker, torch)
    transform = Transform(inner)
    models.wrap(Transform)
    models.wrap(nn.Linear)
    try:
        tracker.stepped(1)
        tracker.is_sampling = is_sampling
        region = tracker.begin("data")
        if not is_sampling:
            tracker.at = "data"
        transform(torch.ones(5, 4))
        if region is not None:
            tracker.end(region)
        assert tracker.raw is not None
        assert tracker.raw.calls == []
        assert [noted[0] for noted in tracker.raw.regions] == (["data"] if is_sampling else [])
        assert not models.called
    finally:
        for patch in models.patches:
            patch.off()


def test_a_transform_in_the_loop_is_data_and_a_metric_after_the_model_is_neither(
    tracker: StepTracker,
) -> None:
    models = Models(tracker, torch)
    transform, model, metric = Transform(), nn.Linear(4, 4), Transform()
    for kind in (Transform, nn.Linear):
        models.wrap(kind)
    try:
        tracker.stepped(1)
        out = model(transform(torch.ones(5, 4)))
        metric(out.detach())
        loss = metric(out)
        assert tracker.raw is not None
        kinds = [noted[0] for noted in tracker.raw.regions]
        assert kinds == ["data", "forward", "host", "loss"]
        assert tracker.raw.calls == [(id(model), 5)]
        assert loss.requires_grad
    finally:
        for patch in models.patches:
            patch.off()


class Direct(nn.Module):
    """A model whose forward is called by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x / x.norm()))


@pytest.fixture
def searching(tracker: StepTracker) -> Iterator[Models]:
    models = Models(tracker, torch)
    yield models
    for patch in models.patches:
        patch.off()


def found_in_a_step(
    models: Models, tracker: StepTracker, compute: Callable[[], torch.Tensor]
) -> list[str]:
    """What was noted in a step before its backward pass, once models were sought."""
    tracker.stepped(1)
    models.search()
    compute().sum().backward()
    models.settle()
    return [kind for kind in kinds(tracker) if kind != "backward"]


def test_inside_a_forward_that_is_called_by_name_no_module_is_the_model(
    tracker: StepTracker, searching: Models
) -> None:
    model, batch = Direct(), torch.ones(2, 4)
    assert found_in_a_step(searching, tracker, lambda: model.forward(batch)) == []
    assert list(searching.called.values()) == [model]
    assert tracker.raw is not None
    assert tracker.raw.calls == []


def test_a_teacher_whose_forward_is_called_by_name_is_still_seen(
    tracker: StepTracker, searching: Models
) -> None:
    model, teacher, batch = nn.Linear(4, 4), Direct(), torch.ones(2, 4)

    def compute() -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher.forward(batch)
        return model(batch) - wanted

    assert found_in_a_step(searching, tracker, compute)[0] == "forward"
    assert model in searching.called.values()


class Frozen(nn.Module):
    """A module whose forward has a decorator that other functions have, too."""

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_decorator_of_a_forward_is_no_forward(tracker: StepTracker, searching: Models) -> None:
    frozen, model, batch = Frozen(), nn.Linear(4, 4), torch.ones(2, 4)
    # As LBFGS and others call their closures.
    compute = torch.enable_grad()(lambda: model(batch))
    assert found_in_a_step(searching, tracker, compute)[0] == "forward"
    assert list(searching.called.values()) == [model]
    assert frozen(batch).sum() == 16


def test_a_forward_with_a_decorator_is_found_under_way(
    tracker: StepTracker, searching: Models
) -> None:
    class Decorated(Direct):
        @torch.enable_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    model, batch = Decorated(), torch.ones(2, 4)
    assert found_in_a_step(searching, tracker, lambda: model.forward(batch)) == []
    assert list(searching.called.values()) == [model]


class Loop(nn.Module):
    """A trainer that is a module, and whose loop is its forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, run: Callable[[], list[str]]) -> list[str]:
        return run()


def test_a_forward_that_holds_the_steps_is_no_pass(tracker: StepTracker, searching: Models) -> None:
    model, batch = nn.Linear(4, 4), torch.ones(2, 4)
    loop = Loop(model)
    found = loop(lambda: found_in_a_step(searching, tracker, lambda: model(batch)))
    assert found[0] == "forward"
    assert list(searching.called.values()) == [model]


class Sized(Direct):
    """A model that has a length of its own."""

    def __len__(self) -> int:
        raise AssertionError("asked for by nobody but the script")


def test_nothing_of_the_scripts_runs_to_find_whose_forward_is_under_way(
    tracker: StepTracker, searching: Models
) -> None:
    model, batch = Sized(), torch.ones(2, 4)
    assert found_in_a_step(searching, tracker, lambda: model.forward(batch)) == []
    assert [id(found) for found in searching.called.values()] == [id(model)]


def test_a_loss_of_what_no_model_computed_is_a_loss(
    tracker: StepTracker, searching: Models
) -> None:
    weight, batch = torch.ones(4, 4, requires_grad=True), torch.ones(2, 4)
    criterion, activation = nn.MSELoss(), nn.ReLU()

    def compute() -> torch.Tensor:
        return criterion(activation(batch @ weight), batch)

    assert found_in_a_step(searching, tracker, compute) == ["loss"]
    assert tracker.raw is not None
    assert tracker.raw.calls == []
    tracker.raw.regions.clear()
    compute()
    assert kinds(tracker) == ["loss"]
    assert name_blind_gap(None, "loss") == "forward"
