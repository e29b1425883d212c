"""Samples of the training thread's stack: as far apart as they are dear."""

import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from pitstop_probe.stacks.stack_sampler import EVERY_S, StackSampler
from pitstop_probe.steps.parts import EVAL
from pitstop_probe.steps.step_tracker import StepTracker
from tests.fakes import ListSink


def sampler_that_costs(tracker: StepTracker, *costs_s: float) -> StackSampler:
    sampler = StackSampler(tracker)
    for cost_s in costs_s:
        sampler.remember_cost(cost_s)
    return sampler


@pytest.fixture
def tracker() -> StepTracker:
    return StepTracker(ListSink())


def test_cheap_samples_are_a_hundredth_of_a_second_apart(tracker: StepTracker) -> None:
    assert StackSampler(tracker).distance_s == EVERY_S
    assert sampler_that_costs(tracker, *[20e-6] * 9).distance_s == EVERY_S


def test_dear_samples_take_a_quarter_of_a_percent_of_the_time(tracker: StepTracker) -> None:
    sampler = sampler_that_costs(tracker, *[60e-6] * 100)
    assert sampler.distance_s == pytest.approx(400 * 60e-6)
    assert sampler.summary()["every_us"] == 24_000


def test_once_there_are_many_samples_come_half_as_often(tracker: StepTracker) -> None:
    sampler = sampler_that_costs(tracker, *[60e-6] * 100)
    sampler.taken = 99
    before_s = sampler.distance_s
    sampler.taken = 100
    assert sampler.distance_s == 2 * before_s
    sampler.forget()
    assert sampler.distance_s == before_s


def test_a_sample_that_was_interrupted_or_read_a_source_delays_only_the_next(
    tracker: StepTracker,
) -> None:
    sampler = sampler_that_costs(tracker, 0.5)
    assert sampler.distance_s == pytest.approx(10 * EVERY_S)
    sampler.remember_cost(20e-6)
    sampler.remember_cost(20e-6)
    assert sampler.distance_s == EVERY_S
    sampler.remember_cost(0.5)
    assert sampler.distance_s == EVERY_S


def test_samples_that_became_dear_move_apart(tracker: StepTracker) -> None:
    sampler = sampler_that_costs(tracker, *[20e-6] * 100, *[60e-6] * 5)
    assert sampler.distance_s == pytest.approx(400 * 60e-6)


def test_stopping_is_harmless_at_any_time(tracker: StepTracker) -> None:
    sampler, threads = StackSampler(tracker), threading.active_count()
    sampler.stop()
    for _ in range(2):
        sampler.start()
        assert threading.active_count() == threads + 1
        sampler.stop()
        sampler.stop()
        assert threading.active_count() == threads


def test_a_thread_that_cannot_start_leaves_nothing_to_stop(
    tracker: StepTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sampler = StackSampler(tracker)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            sampler.start()
    sampler.stop()
    sampler.start()
    sampler.stop()


def test_a_pause_takes_no_sample_away(
    tracker: StepTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the time between pauses is, samples come as often in sum."""
    sampler, now_s = StackSampler(tracker), [0.0]
    monkeypatch.setattr("pitstop_probe.stacks.stack_sampler.time.perf_counter", lambda: now_s[0])

    class Stopped:
        """A lock that is released a quarter of a sample's distance after one began to wait."""

        def acquire(self, timeout: float) -> bool:
            now_s[0] += min(timeout, EVERY_S / 4)
            return timeout > EVERY_S / 4

        def release(self) -> None:
            pass

    sampler._running = Stopped()  # pyright: ignore
    sampled_at: list[float] = []
    monkeypatch.setattr(sampler, "_sample", lambda _: sampled_at.append(now_s[0]))
    for _ in range(400):
        sampler._run()  # pyright: ignore[reportPrivateUsage]
    assert len(sampled_at) == pytest.approx(now_s[0] / EVERY_S, rel=0.05)


class Script:
    """A script's ways to come by a batch; each is sampled from inside."""

    def __init__(self, sampler: StackSampler) -> None:
        self.sampler = sampler
        self.seen: list[bool] = []

    def observe(self, *_: Any) -> int:
        self.seen.append(self.sampler.stack.is_feeding(sys._getframe()))  # pyright: ignore
        return len(self.seen)

    def generator(self) -> Iterator[int]:
        while True:
            yield self.observe()

    def __next__(self) -> int:
        return self.observe()

    def __iter__(self) -> "Script":
        return self

    def __getitem__(self, index: int) -> int:
        return self.observe(index)


def train_in_a_loop(sampler: StackSampler, batches: Iterable[Any]) -> None:
    """Make two turns: with the second the loop is known."""
    for turn, _ in enumerate(batches):
        sampler.start()
        sampler.stop()
        if turn == 1:
            return


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(lambda script: script.generator(), id="a generator"),
        pytest.param(lambda script: script, id="an iterator"),
        pytest.param(lambda script: map(script.observe, range(9)), id="a map"),
        pytest.param(lambda script: enumerate(map(script.observe, "abc")), id="pairs"),
        pytest.param(lambda script: iter(script.observe, None), id="a function, called on and on"),
    ],
)
def test_whatever_the_training_loop_goes_through_feeds_it(
    tracker: StepTracker, batches: Any
) -> None:
    sampler = StackSampler(tracker)
    script = Script(sampler)
    train_in_a_loop(sampler, batches(script))
    assert script.seen[-1]


def test_a_dataset_of_the_scripts_own_feeds_however_it_is_read(tracker: StepTracker) -> None:
    script = Script(StackSampler(tracker))
    assert next(script)
    assert script[5]
    assert next(script.generator())
    assert script.seen == [True] * 3


def test_waiting_at_a_queue_is_waiting_for_data(tracker: StepTracker) -> None:
    sampler = StackSampler(tracker)
    batches: queue.Queue[int] = queue.Queue()
    seen: list[bool] = []

    class Lock:
        """Looked at while the queue waits for its turn."""

        def __enter__(self) -> None:
            seen.append(sampler.stack.is_feeding(sys._getframe()))  # pyright: ignore

        def __exit__(self, *_: object) -> None:
            pass

    batches.put(1)
    batches.not_empty = batches.not_full = Lock()  # type: ignore[assignment]
    batches.not_full.notify = lambda: None  # type: ignore[method-assign]
    assert batches.get() == 1
    assert seen == [True]


def test_other_work_of_the_loop_does_not_feed_it(tracker: StepTracker) -> None:
    sampler = StackSampler(tracker)
    script = Script(sampler)

    def measure() -> None:
        for _ in map(script.observe, range(3)):
            pass

    def train() -> Iterator[int]:
        """The whole training is a generator, and still no loading."""
        for _ in range(2):
            sampler.start()
            sampler.stop()
            measure()
            script.observe()
            yield 0

    for _ in train():
        pass
    assert script.seen == [False] * 8


def test_samples_in_an_evaluation_and_in_a_step_that_is_dropped_count_for_nothing() -> None:
    now_ns = [1_000_000]
    tracker = StepTracker(ListSink(), now_ns=lambda: now_ns[0])
    sampler = StackSampler(tracker)

    def pass_through(kind: str, detail: str | None = None) -> None:
        tracker.enter(kind, detail)
        now_ns[0] += 5_000
        sampler._sample()  # pyright: ignore[reportPrivateUsage]
        now_ns[0] += 5_000
        tracker.leave(kind)

    tracker.stepped(1)
    for _ in range(3):
        pass_through("forward", EVAL)
        pass_through("backward")
        tracker.stepped(1)
    pass_through("backward")
    sampler.stop()
    assert sampler.summary()["samples"] == 0
    tracker.pause()
    tracker.resume()
    for _ in range(2):
        tracker.stepped(1)
    tracker.close()
    summary = sampler.summary()
    assert summary["samples"] == 3
    assert {line["part"] for line in summary["lines"]} == {"backward"}


def test_the_longest_steps_keep_the_line_that_most_samples_met(tracker: StepTracker) -> None:
    sampler = StackSampler(tracker)
    sleep, other = ("host", "train.py", 7, "main", None), ("data", "train.py", 3, "main", None)
    for step in range(20):
        tracker.steps = step
        for place in [sleep] * (30 if step == 11 else 1) + [other]:
            sampler._count_in_step(place)  # pyright: ignore[reportPrivateUsage]
    found = sampler.summary()["long_steps"]
    assert (found[0]["step"], found[0]["samples"]) == (11, 31)
    assert (found[0]["line"]["line"], found[0]["line"]["samples"]) == (7, 30)
    assert len(found) == 8
    sampler.forget()
    assert sampler.summary()["long_steps"] == []
