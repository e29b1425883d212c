"""Looks at the training thread: as far apart as they are dear."""

import threading

import pytest

from pitstop_probe.looks import EVERY_S, Looks
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
    monkeypatch.setattr(looks, "_look", lambda: looked.append(now_s[0]))
    for _ in range(400):
        looks._run()  # pyright: ignore[reportPrivateUsage]
    assert len(looked) == pytest.approx(now_s[0] / EVERY_S, rel=0.05)
