"""Looks at the training thread: as far apart as they are dear."""

import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from pitstop_probe.looks import EVERY_S, Looks
from pitstop_probe.parts import EVAL
from pitstop_probe.watch import Watch
from tests.fakes import ListSink


def looks_that_cost(watch: Watch, *costs_s: float) -> Looks:
    looks = Looks(watch)
    for cost_s in costs_s:
        looks.remember_cost(cost_s)
    return looks


@pytest.fixture
def watch() -> Watch:
    return Watch(ListSink())


def test_cheap_looks_are_a_hundredth_of_a_second_apart(watch: Watch) -> None:
    assert Looks(watch).distance_s == EVERY_S
    assert looks_that_cost(watch, *[20e-6] * 9).distance_s == EVERY_S


def test_dear_looks_take_a_quarter_of_a_percent_of_the_time(watch: Watch) -> None:
    looks = looks_that_cost(watch, *[60e-6] * 100)
    assert looks.distance_s == pytest.approx(400 * 60e-6)
    assert looks.summary()["every_us"] == 24_000


def test_once_there_are_many_looks_come_half_as_often(watch: Watch) -> None:
    looks = looks_that_cost(watch, *[60e-6] * 100)
    looks.taken = 99
    before_s = looks.distance_s
    looks.taken = 100
    assert looks.distance_s == 2 * before_s
    looks.forget()
    assert looks.distance_s == before_s


def test_one_interrupted_look_delays_the_next_ones_and_is_forgotten(watch: Watch) -> None:
    looks = looks_that_cost(watch, 0.5)
    assert looks.distance_s == pytest.approx(10 * EVERY_S)
    for _ in range(200):
        looks.remember_cost(20e-6)
    assert looks.distance_s == EVERY_S


def test_stopping_is_harmless_at_any_time(watch: Watch) -> None:
    looks, threads = Looks(watch), threading.active_count()
    looks.stop()
    for _ in range(2):
        looks.start()
        assert threading.active_count() == threads + 1
        looks.stop()
        looks.stop()
        assert threading.active_count() == threads


def test_a_thread_that_cannot_start_leaves_nothing_to_stop(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    looks = Looks(watch)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            looks.start()
    looks.stop()
    looks.start()
    looks.stop()


def test_a_pause_takes_no_look_away(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the stretches between pauses are, looks come as often in sum."""
    looks, now_s = Looks(watch), [0.0]
    monkeypatch.setattr("pitstop_probe.looks.time.perf_counter", lambda: now_s[0])

    class Stopped:
        """A lock that is released a quarter of a look's distance after one began to wait."""

        def acquire(self, timeout: float) -> bool:
            now_s[0] += min(timeout, EVERY_S / 4)
            return timeout > EVERY_S / 4

        def release(self) -> None:
            pass

    looks._running = Stopped()  # pyright: ignore
    looked: list[float] = []
    monkeypatch.setattr(looks, "_look", lambda _: looked.append(now_s[0]))
    for _ in range(400):
        looks._run()  # pyright: ignore[reportPrivateUsage]
    assert len(looked) == pytest.approx(now_s[0] / EVERY_S, rel=0.05)


class Script:
    """A script's ways to come by a batch; each is looked at from inside."""

    def __init__(self, looks: Looks) -> None:
        self.looks = looks
        self.seen: list[bool] = []

    def look(self, *_: Any) -> int:
        self.seen.append(self.looks.stack.is_feeding(sys._getframe()))  # pyright: ignore
        return len(self.seen)

    def generator(self) -> Iterator[int]:
        while True:
            yield self.look()

    def __next__(self) -> int:
        return self.look()

    def __iter__(self) -> "Script":
        return self

    def __getitem__(self, index: int) -> int:
        return self.look(index)


def train_in_a_loop(looks: Looks, batches: Iterable[Any]) -> None:
    """Make two turns: with the second the loop is known."""
    for turn, _ in enumerate(batches):
        looks.start()
        looks.stop()
        if turn == 1:
            return


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(lambda script: script.generator(), id="a generator"),
        pytest.param(lambda script: script, id="an iterator"),
        pytest.param(lambda script: map(script.look, range(9)), id="a map"),
        pytest.param(lambda script: enumerate(map(script.look, "abc")), id="pairs"),
        pytest.param(lambda script: iter(script.look, None), id="a function, called on and on"),
    ],
)
def test_whatever_the_training_loop_goes_through_feeds_it(watch: Watch, batches: Any) -> None:
    looks = Looks(watch)
    script = Script(looks)
    train_in_a_loop(looks, batches(script))
    assert script.seen[-1]


def test_a_dataset_of_the_scripts_own_feeds_however_it_is_read(watch: Watch) -> None:
    script = Script(Looks(watch))
    assert next(script)
    assert script[5]
    assert next(script.generator())
    assert script.seen == [True] * 3


def test_waiting_at_a_queue_is_waiting_for_data(watch: Watch) -> None:
    looks = Looks(watch)
    batches: queue.Queue[int] = queue.Queue()
    seen: list[bool] = []

    class Lock:
        """Looked at while the queue waits for its turn."""

        def __enter__(self) -> None:
            seen.append(looks.stack.is_feeding(sys._getframe()))  # pyright: ignore

        def __exit__(self, *_: object) -> None:
            pass

    batches.put(1)
    batches.not_empty = batches.not_full = Lock()  # type: ignore[assignment]
    batches.not_full.notify = lambda: None  # type: ignore[method-assign]
    assert batches.get() == 1
    assert seen == [True]


def test_other_work_of_the_loop_does_not_feed_it(watch: Watch) -> None:
    looks = Looks(watch)
    script = Script(looks)

    def measure() -> None:
        for _ in map(script.look, range(3)):
            pass

    def train() -> Iterator[int]:
        """The whole training is a generator, and still no loading."""
        for _ in range(2):
            looks.start()
            looks.stop()
            measure()
            script.look()
            yield 0

    for _ in train():
        pass
    assert script.seen == [False] * 8


def test_looks_in_an_evaluation_and_in_a_step_that_is_dropped_count_for_nothing() -> None:
    now_ns = [1_000_000]
    watch = Watch(ListSink(), now_ns=lambda: now_ns[0])
    looks = Looks(watch)

    def pass_through(kind: str, detail: str | None = None) -> None:
        watch.enter(kind, detail)
        now_ns[0] += 5_000
        looks._look()  # pyright: ignore[reportPrivateUsage]
        now_ns[0] += 5_000
        watch.leave(kind)

    watch.stepped(1)
    for _ in range(3):
        pass_through("forward", EVAL)
        pass_through("backward")
        watch.stepped(1)
    pass_through("backward")
    looks.stop()
    assert looks.summary()["samples"] == 0
    watch.pause()
    watch.resume()
    for _ in range(2):
        watch.stepped(1)
    watch.close()
    summary = looks.summary()
    assert summary["samples"] == 3
    assert {line["part"] for line in summary["lines"]} == {"backward"}


def test_the_longest_steps_keep_the_line_that_most_looks_met(watch: Watch) -> None:
    looks = Looks(watch)
    sleep, other = ("host", "train.py", 7, "main", None), ("data", "train.py", 3, "main", None)
    for step in range(20):
        watch.steps = step
        for place in [sleep] * (30 if step == 11 else 1) + [other]:
            looks._count_in_step(place)  # pyright: ignore[reportPrivateUsage]
    found = looks.summary()["long_steps"]
    assert (found[0]["step"], found[0]["samples"]) == (11, 31)
    assert (found[0]["line"]["line"], found[0]["line"]["samples"]) == (7, 30)
    assert len(found) == 8
    looks.forget()
    assert looks.summary()["long_steps"] == []
