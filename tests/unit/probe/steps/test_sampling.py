"""Of short steps some are sampled: fairly, and with everything else still recorded of the rest."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop_probe.clock import UnsampledSteps
from pitstop_probe.steps.parts import EVAL, TRAIN, Fetch
from pitstop_probe.steps.sampling import LATER, MIDDLING, SHORT, Rate, Sampling
from pitstop_probe.steps.step_tracker import StepTracker
from tests.fakes import one_by_one

FETCH = Fetch(7, 0)


class Keeper:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.events: list[tuple[str, int, int]] = []

    def step(self, step: Any) -> None:
        self.steps.append(step)

    def unsampled_steps(self, steps: UnsampledSteps) -> None:
        for step in one_by_one(steps):
            self.step(step)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        del start_us
        self.events.append((name, step, wall_us))

    def sampled(self) -> list[Any]:
        return [step for step in self.steps if step.sampled]


class Script:
    """A training on a clock that moves when told, in microseconds."""

    def __init__(self) -> None:
        self.now_ns = 7_000_000
        self.sink = Keeper()
        self.tracker = StepTracker(self.sink, now_ns=lambda: self.now_ns)
        self.tracker.next_stop = 10**9
        self.tracker.stepped(1)

    def part(self, kind: str, us: int, detail: Any = None) -> None:
        entered = self.tracker.enter(kind, detail)
        self.now_ns += us * 1000
        if entered:
            self.tracker.leave(kind)

    def step(self, *, forward_us: int = 300, host_us: int = 0) -> None:
        self.part("data", 100, FETCH)
        self.part("forward", forward_us, TRAIN)
        self.tracker.count(1, 4)
        self.part("backward", 200)
        self.part("optimizer", 100)
        self.now_ns += host_us * 1000
        self.tracker.stepped(1)


def named(step: Any) -> dict[str, int]:
    return {span.name: total for span, (_, total) in step.host_us.items()}


@pytest.mark.parametrize(("forward_us", "rate"), [(300, SHORT), (20_000, MIDDLING)])
def test_of_short_steps_one_in_so_many_is_sampled(forward_us: int, rate: Rate) -> None:
    script = Script()
    for _ in range(3840):
        script.step(forward_us=forward_us)
    script.tracker.close()
    assert [step.index for step in script.sink.steps] == list(range(3840))
    sampled = [step.index for step in script.sink.sampled()]
    bounds = ((80, LATER[0]), (LATER[0] + 40, LATER[1]), (LATER[1] + 40, 3840))
    for (first, end), every in zip(bounds, rate.sample_every, strict=True):
        settled = [index for index in sampled if first <= index < end]
        assert len(settled) == pytest.approx((end - first) / every, abs=1)
        # Exactly one in every window, and not always at the same place of it.
        assert set(Counter(index // every for index in settled).values()) == {1}
        assert len({index % every for index in settled}) > min(every, len(settled)) / 2


def test_it_is_known_within_forty_steps_that_steps_are_short() -> None:
    script = Script()
    for number in range(60):
        # The first steps of a script are slow, and two are slowed down for a deep profile.
        script.step(forward_us=20_000 if number in (0, 1, 2, 5, 7) else 300)
    assert script.tracker.sampled_steps < 40
    assert script.tracker.rate is SHORT


def test_a_script_of_few_middling_steps_is_all_sampled() -> None:
    script = Script()
    for _ in range(60):
        script.step(forward_us=20_000)
    script.tracker.close()
    assert len(script.sink.sampled()) == 60


def test_all_long_steps_are_sampled() -> None:
    script = Script()
    for _ in range(300):
        script.step(forward_us=MIDDLING.limit_ns // 1000)
    script.tracker.close()
    assert len(script.sink.sampled()) == 300
    parts = {"data": 100, "forward": 40_000, "backward": 200, "optimizer": 100}
    assert all(named(step) == parts for step in script.sink.steps)


def test_steps_that_become_long_are_all_sampled_again() -> None:
    script = Script()
    for number in range(300):
        script.step(forward_us=300 if number < 100 else 50_000)
    script.tracker.close()
    last = script.sink.steps[200:]
    assert all(step.sampled for step in last)
    assert not all(step.sampled for step in script.sink.steps[50:100])


@given(
    st.lists(
        st.lists(
            st.sampled_from([1000, SHORT.limit_ns, MIDDLING.limit_ns]) | st.just(1000),
            min_size=1,
            max_size=150,
        ),
        max_size=12,
    )
)
def test_steps_together_tell_what_they_tell_one_by_one(runs: list[list[int]]) -> None:
    together, apart = Sampling(), Sampling()
    for run in runs:
        together.all_ended(run)
        for took_ns in run:
            apart.ended(took_ns)
        assert together.rate is apart.rate


def test_a_single_long_step_changes_nothing() -> None:
    sampling = Sampling()
    for took_ns in [1000] * 100 + [SHORT.limit_ns] * 5 + [1000] * 5:
        sampling.ended(took_ns)
    assert sampling.rate is SHORT


def test_short_steps_that_become_middling_are_sampled_more_often() -> None:
    sampling = Sampling()
    for took_ns in [1000] * 100 + [SHORT.limit_ns] * 100:
        sampling.ended(took_ns)
    assert sampling.rate is MIDDLING
    sampled = [step for step in range(200, 1000) if sampling.next_sampled(step) == step]
    assert len(sampled) == pytest.approx(800 / MIDDLING.sample_every[0], abs=2)


def test_what_was_not_sampled_has_a_wall_clock_and_counts_but_no_parts() -> None:
    script = Script()
    for _ in range(200):
        script.step(host_us=50)
    script.tracker.close()
    bare = [step for step in script.sink.steps if not step.sampled]
    assert len(bare) > 100
    for step in bare:
        assert (step.wall_us, step.samples, step.micro_steps) == (750, 4, 1)
        assert step.host_us == {}
        assert step.device_wall_us is None
    for step in script.sink.sampled()[1:]:
        assert sum(named(step).values()) == step.wall_us


@pytest.mark.parametrize("period", range(2, 13))
def test_what_comes_at_any_period_is_met_as_often_as_it_comes(period: int) -> None:
    """The oracle: the share of steps in which the host works, over many periods."""
    script = Script()
    steps = 60 * SHORT.sample_every[0] * period
    for number in range(steps):
        script.step(host_us=400 if number % period == 0 else 0)
    script.tracker.close()
    sampled = [step for step in script.sink.sampled() if step.index >= 100]
    met = sum("host" in named(step) for step in sampled)
    # Four standard errors of so many samples.
    spread = (len(sampled) * (period - 1)) ** 0.5 / period
    assert met == pytest.approx(len(sampled) / period, abs=4 * spread)


@given(st.integers(0, 10**9), st.sampled_from([SHORT, MIDDLING]))
def test_every_place_of_a_stretch_is_as_likely_as_any_other(first: int, rate: Rate) -> None:
    sampling, every = Sampling(), rate.sample_every[-1]
    sampling.rate = rate
    places = Counter[int]()
    step = LATER[-1] + first * every
    for _ in range(50 * every):
        sampled = sampling.next_sampled(step)
        assert step <= sampled < step + 2 * every
        places[sampled % every] += 1
        step = sampled + 1
    assert len(places) == every
    assert max(places.values()) < 50 * 2


def test_an_evaluation_lies_apart_whether_or_not_its_step_is_sampled() -> None:
    script = Script()
    other = Fetch(8, 0)
    evaluated = []
    for number in range(400):
        script.step()
        if number >= 50 and number % 7 == 0:
            evaluated.append(script.tracker.steps)
            script.part("loader start", 30, other)
            for _ in range(2):
                script.part("data", 20, other)
                script.part("forward", 50, EVAL)
            script.part("data", 10, other._replace(last=True))
    script.step()
    script.tracker.close()
    found = [event for event in script.sink.events if event[0] == "evaluation"]
    assert [step for _, step, _ in found] == evaluated
    assert {wall_us for _, _, wall_us in found} == {180}
    assert {step.wall_us for step in script.sink.steps} == {700}
    outside = {step.index: step.outside_us for step in script.sink.steps if step.outside_us}
    assert outside == dict.fromkeys(evaluated, 180)


def test_a_checkpoint_and_an_epochs_start_lie_apart_in_any_step() -> None:
    script = Script()
    for number in range(200):
        script.step()
        if number % 9 == 0:
            script.part("checkpoint", 5_000)
        if number % 11 == 0:
            script.part("loader start", 40, FETCH)
    script.step()
    script.tracker.close()
    names = Counter(name for name, _, _ in script.sink.events)
    assert names["checkpoint"] == len(range(0, 200, 9))
    assert names["epoch boundary"] == len(range(0, 200, 11))
    assert {step.wall_us for step in script.sink.steps} == {700}


def test_a_span_of_the_scripts_own_is_a_part_where_its_step_is_sampled() -> None:
    script = Script()
    for _ in range(100):
        script.part("vgg loss", 30)
        script.step()
    script.tracker.close()
    assert all(named(step)["vgg loss"] == 30 for step in script.sink.sampled())
    assert len(script.sink.sampled()) < 60
    assert script.tracker.at is None


def test_what_reaches_into_a_step_that_is_sampled_is_a_part_of_it() -> None:
    script = Script()
    tracker = script.tracker
    for _ in range(100):
        tracker.enter("own")
        script.step()
        script.now_ns += 40_000
        tracker.leave("own")
    tracker.close()
    late = [step for step in script.sink.sampled() if step.index > 40]
    assert late
    assert all(named(step)["own"] == 40 for step in late)
    assert all(sum(named(step).values()) == step.wall_us for step in late)


def test_of_steps_without_samples_the_finished_ones_are_handed_over_at_the_end() -> None:
    for extra in range(SHORT.sample_every[0]):
        script = Script()
        for _ in range(100 + extra):
            script.step()
        script.part("data", 100, FETCH)
        script.tracker.close()
        assert [step.index for step in script.sink.steps] == list(range(100 + extra))
        assert {step.wall_us for step in script.sink.steps} == {700}


def test_all_ranks_sample_at_the_same_steps() -> None:
    indices = []
    for slower_us in (0, 35):
        script = Script()
        for _ in range(400):
            script.step(host_us=slower_us)
        script.tracker.close()
        indices.append([step.index for step in script.sink.sampled() if step.index > 50])
    assert indices[0] == indices[1]
