"""Optimizers are observed through torch's own hooks, with what they call."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pitstop_probe.parts import EVAL, TRAIN, Unset
from pitstop_probe.torch_hooks import Models, Optimizers, Waits, hook_functions
from pitstop_probe.watch import Watch

torch.set_num_threads(1)


class Nobody:
    """A sink that lets everything go."""

    def step(self, step: Any) -> None:
        del step

    def bare_steps(self, steps: Any) -> None:
        del steps

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        del name, step, start_us, wall_us


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch(Nobody())
    models, optimizers = Models(watch, torch), Optimizers(watch, torch)
    models.wrap(torch.nn.Sequential)
    patches = [*hook_functions(watch, torch), *optimizers.patches, *models.patches]
    yield watch
    for patch in patches:
        patch.off()


def details(watch: Watch) -> list[Any]:
    assert watch.raw is not None
    return [detail for _, _, _, detail, *_ in watch.raw.regions]


def kinds(watch: Watch) -> list[str]:
    assert watch.raw is not None
    return [kind for kind, *_ in watch.raw.regions]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_is_observed_and_gives_what_it_gave(watch: Watch, by_name: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(2, 3)
    seen: list[list[str]] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        if watch.raw is not None:
            seen.append(kinds(watch))
        return loss

    for _ in range(2):
        expected = model(batch).square().mean().item()
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert loss is not None
        assert loss.item() == expected
    # The second step began with the pass that told what to expect.
    assert seen == [["forward", "optimizer", "closure", "zero_grad", "forward", "backward"]]
    assert watch.open == []


def test_a_module_inside_another_of_its_class_is_part_of_it(watch: Watch) -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    watch.stepped(1)
    model(torch.zeros(2, 3))
    assert kinds(watch) == ["forward"]
    assert watch.raw is not None
    assert watch.raw.calls == [(id(model), 2)]


def test_an_exception_in_a_pass_goes_through_and_ends_its_region(watch: Watch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    watch.stepped(1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.zeros(2, 4))
    assert kinds(watch) == ["forward"]
    assert watch.open == []


def unlooked(watch: Watch) -> None:
    """Begin a step whose parts are not noted."""
    watch.stepped(1)
    watch.looking = False


def test_in_a_step_that_is_not_looked_at_calls_are_counted_and_nothing_is_noted(
    watch: Watch,
) -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unlooked(watch)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.zeros(5, 3)).sum().backward()
        assert watch.last_kind == "backward"
    assert kinds(watch) == []
    assert watch.raw is not None
    assert watch.raw.calls == [(id(model), 5)] * 2
    assert watch.at is None
    assert not watch.looking


def test_an_evaluation_is_noted_in_a_step_that_is_not_looked_at(watch: Watch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    unlooked(watch)
    model(torch.zeros(5, 3))
    model.eval()
    with torch.no_grad():
        model(torch.zeros(7, 3))
    model(torch.zeros(7, 3))
    assert details(watch) == [EVAL, Unset(id(model))]
    assert watch.raw is not None
    assert watch.raw.calls == [(id(model), 5)]


def test_a_model_known_to_train_as_it_is_trains_though_set_to_evaluate(watch: Watch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    model(torch.zeros(5, 3))
    watch.stepped(1)
    model.eval()
    watch.trains.add(id(model))
    model(torch.zeros(7, 3))
    with torch.no_grad():
        model(torch.zeros(7, 3))
    assert details(watch) == [TRAIN, EVAL]
    assert watch.raw is not None
    assert watch.raw.calls == [(id(model), 7)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
def test_a_pass_without_gradients_is_for_what_its_batch_is_for(
    watch: Watch, mode: Any, training: bool
) -> None:
    """It is not counted, be it an evaluation, a teacher or samples for a critic."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3)).train(training)
    watch.stepped(1)
    with mode():
        model(torch.zeros(5, 3))
    model(torch.zeros(6, 3))
    assert details(watch) == [None, TRAIN]
    assert watch.raw is not None
    assert watch.raw.calls == [(id(model), 6)]


def test_waits_in_an_evaluation_or_a_slowed_step_are_not_the_steps() -> None:
    watch = Watch(Nobody())
    waits = Waits(watch, torch)

    def step(purpose: str) -> None:
        for kind, detail in (("forward", purpose), ("backward", None)):
            watch.enter(kind, detail)
            waits._timed("item", lambda: None)  # pyright: ignore[reportPrivateUsage]
            watch.leave(kind)
        watch.stepped(1)

    try:
        watch.stepped(1)
        for purpose in (TRAIN, EVAL, TRAIN):
            step(purpose)
        watch.special("pitstop")
        step(TRAIN)
        watch.close()
    finally:
        for patch in waits.patches:
            patch.off()
    ((_, _, operation), (calls, _)), *others = waits.lines.items()
    assert (operation, calls, others) == ("item", 2 + 1 + 2, [])


def test_what_a_thread_is_in_is_known_in_a_step_that_is_not_looked_at(watch: Watch) -> None:
    seen: list[str | None] = []

    class Spy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(watch.at)
            return x

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), Spy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unlooked(watch)
    out = model(torch.zeros(5, 3))
    out.register_hook(lambda _: seen.append(watch.at))
    out.sum().backward()
    hook = optimizer.register_step_pre_hook(lambda *_: seen.append(watch.at))
    optimizer.step()
    hook.remove()
    assert seen == ["forward", "backward", "optimizer"]
    assert watch.at is None


def test_the_loss_is_kept_in_a_step_that_is_not_looked_at(watch: Watch) -> None:
    unlooked(watch)
    watch.wants_loss = True
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    assert watch.loss == 6


def test_an_exception_goes_through_a_step_that_is_not_looked_at(watch: Watch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    unlooked(watch)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.zeros(2, 4))
    assert watch.at is None


class Transform(nn.Module):
    """Makes pictures ready, as a dataset's transforms do."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.inner is None else self.inner(x)


@pytest.mark.parametrize("looking", [True, False])
@pytest.mark.parametrize("inner", [None, nn.Linear(4, 4)], ids=["bare", "with parameters"])
def test_a_module_called_for_a_batch_is_data_and_no_source_of_samples(
    watch: Watch, inner: nn.Module | None, *, looking: bool
) -> None:
    models = Models(watch, torch)
    transform = Transform(inner)
    models.wrap(Transform)
    models.wrap(nn.Linear)
    try:
        watch.stepped(1)
        watch.looking = looking
        region = watch.begin("data")
        if not looking:
            watch.at = "data"
        transform(torch.ones(5, 4))
        if region is not None:
            watch.end(region)
        assert watch.raw is not None
        assert watch.raw.calls == []
        assert [noted[0] for noted in watch.raw.regions] == (["data"] if looking else [])
        assert not models.called
    finally:
        for patch in models.patches:
            patch.off()


def test_a_transform_in_the_loop_is_data_and_a_metric_after_the_model_is_neither(
    watch: Watch,
) -> None:
    models = Models(watch, torch)
    transform, model, metric = Transform(), nn.Linear(4, 4), Transform()
    for kind in (Transform, nn.Linear):
        models.wrap(kind)
    try:
        watch.stepped(1)
        out = model(transform(torch.ones(5, 4)))
        metric(out.detach())
        loss = metric(out)
        assert watch.raw is not None
        kinds = [noted[0] for noted in watch.raw.regions]
        assert kinds == ["data", "forward", "host", "loss"]
        assert watch.raw.calls == [(id(model), 5)]
        assert loss.requires_grad
    finally:
        for patch in models.patches:
            patch.off()
