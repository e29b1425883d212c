"""What happens outside steps: taken out once, whatever lies inside it or across it."""

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.records.store import read_run
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock, FakeDevice, FakeMark, ListSink

both_clocks = pytest.mark.parametrize("device", [False, True], ids=["host", "device"])


def start(*, device: bool) -> tuple[FakeClock, ListSink, Clock]:
    time, sink = FakeClock(), ListSink()
    return time, sink, Clock(sink, FakeDevice(time) if device else None, now_us=time.now_us)


@both_clocks
def test_spans_inside_an_evaluation_do_not_count_for_the_step(device: bool) -> None:
    time, sink, clock = start(device=device)
    clock.begin_step()
    kept = clock.span("forward")
    with kept:
        time.advance(10)
    clock.count(samples=4)
    with clock.outside_step("evaluation"):
        time.advance(100)
        with clock.span("forward"):
            time.advance(70)
        with kept:
            time.advance(7)
        clock.count(samples=50)
    with clock.span("backward"):
        time.advance(3)
    clock.close()

    [step] = sink.steps
    assert {span.path: us for span, (_, us) in step.host_us.items()} == {
        ("forward",): 10,
        ("backward",): 3,
    }
    assert (step.wall_us, step.outside_us, step.unaccounted_us, step.samples) == (13, 177, 0, 4)
    assert sink.events == [("evaluation", 0, 10, 177)]
    assert step.device_wall_us == (13 if device else None)


@both_clocks
def test_a_checkpoint_inside_an_evaluation_is_taken_out_once(device: bool) -> None:
    time, sink, clock = start(device=device)
    clock.begin_step()
    time.advance(10)
    with clock.outside_step("evaluation"):
        time.advance(100)
        with clock.outside_step("checkpoint"):
            time.advance(50)
    time.advance(5)
    clock.close()

    [step] = sink.steps
    assert (step.wall_us, step.outside_us) == (15, 150)
    assert sink.events == [("checkpoint", 0, 110, 50), ("evaluation", 0, 10, 150)]
    assert step.device_wall_us == (15 if device else None)


@both_clocks
def test_what_is_outside_a_step_that_crosses_a_border_takes_no_time_from_either_step(
    device: bool,
) -> None:
    time, sink, clock = start(device=device)
    start_up = clock.outside_step("start-up")
    start_up.__enter__()
    time.advance(100)
    clock.begin_step()
    time.advance(3)
    start_up.__exit__()
    evaluation = clock.outside_step("evaluation")
    evaluation.__enter__()
    time.advance(20)
    clock.begin_step()
    time.advance(4)
    evaluation.__exit__()
    with clock.span("forward"):
        time.advance(2)
    clock.close()

    assert [(step.wall_us, step.outside_us) for step in sink.steps] == [(23, 0), (6, 0)]
    assert [step.unaccounted_us for step in sink.steps] == [23, 4]
    assert sink.events == [("start-up", 0, 0, 103), ("evaluation", 1, 103, 24)]


def test_saving_in_another_thread_runs_beside_the_step_not_instead_of_it() -> None:
    time, sink, clock = start(device=True)
    clock.begin_step()
    opened, done = threading.Event(), threading.Event()

    def save() -> None:
        with clock.outside_step("checkpoint"):
            opened.set()
            done.wait(10)

    thread = threading.Thread(target=save)
    thread.start()
    assert opened.wait(10)
    with clock.span("forward"):
        time.advance(40)
    done.set()
    thread.join()
    clock.close()

    [step] = sink.steps
    assert (step.wall_us, step.outside_us, step.unaccounted_us) == (40, 0, 0)
    assert sink.events == [("checkpoint", 0, 0, 40)]


moves = st.lists(
    st.sampled_from(["span", "outside", "close", "border"]) | st.integers(0, 50), max_size=40
)


@given(moves)
def test_no_time_is_lost_or_counted_twice_however_parts_are_opened(
    program: list[str | int],
) -> None:
    """All walls and all that was taken out add up to the time from first to last border."""
    time, sink, clock = start(device=True)
    clock.begin_step()
    opened = []
    for move in program:
        if isinstance(move, int):
            time.advance(move)
        elif move == "border":
            clock.begin_step()
        elif move == "close":
            if opened:
                opened.pop().__exit__(None, None, None)
        else:
            opened.append(
                clock.span("part") if move == "span" else clock.outside_step("evaluation")
            )
            opened[-1].__enter__()
    clock.close()

    assert sum(step.wall_us + step.outside_us for step in sink.steps) == time.now_us()
    for step in sink.steps:
        assert min(step.wall_us, step.outside_us, step.unaccounted_us) >= 0
        assert all(step.self_us(span) >= 0 for span in step.host_us)


def test_parts_of_a_part_that_never_ended_do_not_take_more_than_the_whole() -> None:
    time, sink, clock = start(device=False)
    clock.begin_step()
    with clock.span("part"):
        pass
    left_open = clock.span("part")
    left_open.__enter__()
    with clock.span("inner"):
        time.advance(1)
    clock.close()

    [step] = sink.steps
    assert {span.path: us for span, (_, us) in step.host_us.items()} == {("part",): 0}
    assert (step.wall_us, step.unaccounted_us, step.broken) == (1, 1, 1)


class TwoStreams(FakeDevice):
    """A device with a side stream that is `ahead_us` ahead; None: never seen to be passed."""

    def __init__(self, time: FakeClock, ahead_us: int | None) -> None:
        super().__init__(time, same_point_us=-1)
        self._ahead_us = ahead_us
        self._side: set[int] = set()
        self.on_side = False

    def mark(self) -> FakeMark:
        mark = super().mark()
        self._side.discard(id(mark))  # taken from the pool
        if self.on_side:
            self._side.add(id(mark))
            mark.at_us -= self._ahead_us or 0
        return mark

    def elapsed_us(self, start: FakeMark, end: FakeMark) -> int | None:
        if self._ahead_us is None and id(end) in self._side:
            return None
        return super().elapsed_us(start, end)


@pytest.mark.parametrize("ahead_us", [1_000, None], ids=["passed before", "not passed yet"])
def test_a_mark_on_a_side_stream_costs_that_span_its_device_time_only(
    tmp_path: Path, ahead_us: int | None
) -> None:
    time = FakeClock(5_000)
    device = TwoStreams(time, ahead_us)
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"), now_us=time.now_us)
    clock = Clock(writer, device, now_us=time.now_us)
    for _ in range(3):
        clock.begin_step()
        with clock.span("forward"):
            time.advance(20)
        with clock.span("copy"):
            time.advance(10)
            device.on_side = True
        device.on_side = False
    clock.close()
    writer.close()

    record = read_run(tmp_path).first
    assert record.steps is not None
    assert record.notes == ()
    assert [row.device_end_us for row in record.timelines[0].spans] == [20, None]
    for step in record.steps:
        assert step.host_us == {("forward",): 20, ("copy",): 10}
        assert (step.device_wall_us, dict(step.device_us)) == (30, {("forward",): 20})
