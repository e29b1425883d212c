"""The tuner against a simulated pipeline: workers in turn, batches in order, space for so many."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.data.loader.tuning import FED_SHARE, MARGIN, MOST_PREFETCH, LoaderTuner, TuningLimits
from pitstop.measure.script.loader import BatchFlow, BatchTimes
from pitstop.records.loader import TuningTry

MS = 1_000_000


@dataclass
class Pipeline:
    """Time of a loop that takes batches from workers; nothing but arithmetic."""

    busy_ns: Callable[[int], int]
    own_ns: int
    workers: int
    prefetch: int
    cpu_share: float = 1.0
    now_ns: int = 0
    number: int = 0
    handing_over_ns: int = 0
    _since: int = 0
    _free: list[int] = field(default_factory=list)
    _taken: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart(self.workers, self.prefetch)

    def restart(self, workers: int, prefetch: int) -> None:
        self.workers, self.prefetch = workers, prefetch
        self._free = [self.now_ns] * workers
        self._taken, self._since = [], self.number
        self._began_ns = self.now_ns

    def step(self) -> BatchFlow:
        place = self.number - self._since
        ahead = self.workers * self.prefetch
        asked_for = self._taken[place - ahead] if place >= ahead else self._began_ns
        worker = place % self.workers
        begun = max(asked_for, self._free[worker])
        busy = self.busy_ns(self.number)
        self._free[worker] = begun + busy
        asked = self.now_ns
        taken = max(asked, begun + busy) + self.handing_over_ns
        self._taken.append(taken)
        self.number += 1
        self.now_ns = taken + self.own_ns
        times = BatchTimes(
            begun_ns=begun,
            finished_ns=begun + busy,
            cpu_ns=int(busy * self.cpu_share),
            stages_ns={"sample": busy},
            batch_bytes=1000,
        )
        own = self.own_ns if place else None
        return BatchFlow(times=times, asked_ns=asked, taken_ns=taken, own_ns=own)


def tuned(
    pipeline: Pipeline,
    *,
    cores: int = 8,
    budget_bytes: int | None = None,
    limit_s: float = math.inf,
    steps: int = 3000,
) -> LoaderTuner:
    limits = TuningLimits(cores=cores, budget_bytes=budget_bytes, limit_s=limit_s)
    tuner = LoaderTuner(
        workers=pipeline.workers,
        prefetch=pipeline.prefetch,
        limits=limits,
        now_s=lambda: pipeline.now_ns / 1e9,
    )
    for _ in range(steps):
        tuner.add(pipeline.step())
        if tuner.after_step():
            pipeline.restart(tuner.workers, tuner.prefetch)
        if tuner.reading is not None:
            return tuner
    raise AssertionError("never came to an end")


def wait_share(pipeline: Pipeline, *, steps: int = 200) -> float:
    for _ in range(10):
        pipeline.step()
    begun = pipeline.now_ns
    for _ in range(steps):
        pipeline.step()
    return 1 - steps * pipeline.own_ns / (pipeline.now_ns - begun)


@given(busy_ms=st.integers(1, 400), own_ms=st.integers(5, 100), cores=st.integers(1, 16))
def test_it_finds_the_fewest_workers_that_keep_up(busy_ms: int, own_ms: int, cores: int) -> None:
    pipeline = Pipeline(lambda _: busy_ms * MS, own_ms * MS, workers=1, prefetch=2)
    tuner = tuned(pipeline, cores=cores)
    assert tuner.reading is not None
    fewest = next((w for w in range(1, cores + 1) if busy_ms * MARGIN <= w * own_ms), None)
    if fewest is None:
        # A last worker or two may make no difference that counts.
        best = max(own_ms, busy_ms / cores)
        assert max(own_ms, busy_ms / tuner.workers) <= best * 1.021
        return
    # It aims a little higher than it must, so as not to try again; never by more than that.
    assert fewest <= tuner.workers <= max(1, math.ceil(1.2 * busy_ms / own_ms))
    assert tuner.prefetch == 2
    assert wait_share(pipeline) < FED_SHARE


def test_a_fed_loop_keeps_its_one_worker_and_is_not_disturbed() -> None:
    pipeline = Pipeline(lambda _: 10 * MS, 50 * MS, workers=1, prefetch=2)
    tuner = tuned(pipeline)
    assert tuner.reading is not None
    assert (tuner.workers, tuner.prefetch) == (1, 2)
    assert len(tuner.reading.tries) == 1
    assert tuner.reading.reason == "the loop does not wait for data"


def test_now_and_then_a_slow_batch_asks_for_more_ahead_not_for_more_workers() -> None:
    # Workers could make twice what is taken, but one batch in ten takes six times as long.
    pipeline = Pipeline(lambda n: (110 if n % 10 == 0 else 14) * MS, 50 * MS, workers=1, prefetch=1)
    tuner = tuned(pipeline)
    assert tuner.workers == 1
    assert tuner.prefetch in range(2, MOST_PREFETCH + 1)
    assert wait_share(pipeline) < FED_SHARE


def test_more_workers_are_not_asked_to_hand_over_faster() -> None:
    pipeline = Pipeline(lambda _: 20 * MS, 50 * MS, workers=1, prefetch=2)
    pipeline.handing_over_ns = 4 * MS
    tuner = tuned(pipeline)
    assert (tuner.workers, tuner.prefetch) == (1, 2)
    assert tuner.reading is not None
    assert tuner.reading.reason.endswith("the loop waits only for their transfer")


def test_nothing_is_chosen_that_there_is_no_room_for() -> None:
    pipeline = Pipeline(lambda _: 400 * MS, 50 * MS, workers=1, prefetch=2)
    tuner = tuned(pipeline, cores=64, budget_bytes=9_000)
    assert tuner.workers * tuner.prefetch * 1000 <= 9_000
    assert tuner.reading is not None
    assert all(one.workers * one.prefetch * one.batch_bytes <= 9_000 for one in tuner.reading.tries)
    assert "still waits" in tuner.reading.reason


def test_workers_that_wait_for_storage_may_be_more_than_the_cores() -> None:
    def workers(cpu_share: float) -> int:
        pipeline = Pipeline(lambda _: 150 * MS, 50 * MS, workers=1, prefetch=2, cpu_share=cpu_share)
        return tuned(pipeline, cores=2).workers

    assert workers(1.0) == 2
    assert workers(0.2) == 4


def test_it_ends_when_its_time_is_up() -> None:
    pipeline = Pipeline(lambda _: 40_000 * MS, 500 * MS, workers=1, prefetch=2)
    tuner = tuned(pipeline, cores=1000, limit_s=60.0)
    assert tuner.reading is not None
    assert "before time was up" in tuner.reading.reason
    # The first look comes after the warm-up and six batches of forty seconds.
    assert tuner.reading.spent_s < 60 + 13 * 41


def test_workers_in_each_others_way_lose_against_fewer() -> None:
    """More of them make every batch slower, as on a disk that seeks; the fastest tried wins."""
    pipeline = Pipeline(lambda _: 0, 50 * MS, workers=1, prefetch=2)
    pipeline.busy_ns = lambda _: (100 if pipeline.workers < 3 else 100 * pipeline.workers**2) * MS
    tuner = tuned(pipeline, cores=8)
    assert tuner.reading is not None
    times = {one.workers: one.own_us + one.wait_us for one in tuner.reading.tries}
    assert times[tuner.workers] <= min(times.values()) * 1.02
    assert tuner.workers == min(w for w, us in times.items() if us <= min(times.values()) * 1.02)


def test_a_loop_that_starves_later_is_tuned_anew_a_few_times_at_most() -> None:
    pipeline = Pipeline(lambda _: 20 * MS, 50 * MS, workers=1, prefetch=2)
    tuner = tuned(pipeline, cores=4)
    assert tuner.take_reading() is not None
    assert tuner.workers == 1

    def go_on(steps: int) -> list[int]:
        found = []
        for _ in range(steps):
            tuner.add(pipeline.step())
            if tuner.after_step():
                pipeline.restart(tuner.workers, tuner.prefetch)
            if tuner.take_reading() is not None:
                found.append(tuner.workers)
        return found

    assert go_on(190) == [], "fed: nothing is tried"
    pipeline.busy_ns = lambda _: 120 * MS
    assert go_on(600) == [3]
    assert wait_share(pipeline) < FED_SHARE
    pipeline.busy_ns = lambda _: 900 * MS  # more than four cores can do
    readings = go_on(20_000)
    assert 1 <= len(readings) <= 4
    assert readings[-1] == 4


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_ranks_judge_by_the_slowest_and_all_alike(slow_rank: int) -> None:
    """Two ranks in step, one of which has slower samples: both must take the same decisions."""
    busy = [(180 if rank == slow_rank else 20) * MS for rank in (0, 1)]
    pipelines = [Pipeline(lambda _, b=b: b, 50 * MS, workers=1, prefetch=2) for b in busy]
    tuners: list[LoaderTuner] = []
    asked: list[list[int]] = [[], []]

    # Numbers meet in lock-step: what a rank asks for first is compared with the other's first.
    alone = [tuned_numbers(pipeline) for pipeline in pipelines]
    met = [max(pair) for pair in zip(*alone, strict=True)]
    for rank in (0, 1):
        answers = iter(met)

        def most(number: int, rank: int = rank, answers: object = answers) -> int:
            asked[rank].append(number)
            return next(answers)  # type: ignore[call-overload]

        pipeline = Pipeline(lambda _, b=busy[rank]: b, 50 * MS, workers=1, prefetch=2)
        limits = TuningLimits(cores=8)
        tuner = LoaderTuner(workers=1, prefetch=2, limits=limits, most=most, now_s=lambda: 0.0)
        for _ in range(12):
            tuner.add(pipeline.step())
            tuner.after_step()
        tuners.append(tuner)
    assert (tuners[0].workers, tuners[0].prefetch) == (tuners[1].workers, tuners[1].prefetch)
    assert tuners[0].workers >= math.ceil(180 / 50)


def tuned_numbers(pipeline: Pipeline) -> list[int]:
    """What a rank would say at its first look."""
    said: list[int] = []

    def most(number: int) -> int:
        said.append(number)
        return number

    limits = TuningLimits(cores=8)
    tuner = LoaderTuner(workers=1, prefetch=2, limits=limits, most=most, now_s=lambda: 0.0)
    for _ in range(12):
        tuner.add(pipeline.step())
        tuner.after_step()
    return said


def test_a_try_says_its_share_and_what_it_holds() -> None:
    one = TuningTry(
        workers=3,
        prefetch=2,
        batches=24,
        own_us=60,
        wait_us=20,
        short_us=8,
        busy_us=1,
        cpu_us=1,
        late_share=0.5,
        batch_bytes=10,
    )
    assert (one.wait_share, one.short_share) == (0.25, 0.1)
