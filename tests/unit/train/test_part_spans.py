"""Named parts of a model and its loss, timed forward and backward."""

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from pitstop.train.part_spans import part_spans
from pitstop.train.recompute import recompute_all
from pitstop_probe import Clock, Step

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

    def elsewhere(loss: Tensor) -> None:
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()

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
