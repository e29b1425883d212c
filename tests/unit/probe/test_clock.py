"""The clock: trees that add up, on both clocks, whatever the program does."""

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop_probe import Clock, Step
from tests.fakes import FakeClock, FakeDevice, ListSink


def run_step(clock: Clock, time: FakeClock, program: list[object]) -> None:
    """Run a program: an integer lets time pass, a pair opens a span around a sub-program."""
    for item in program:
        if isinstance(item, int):
            time.advance(item)
        else:
            name, inner = item  # type: ignore[misc]
            with clock.span(name):
                run_step(clock, time, inner)


def innermost_times(program: list[object], path: tuple[str, ...] = ()) -> Counter[tuple[str, ...]]:
    """The oracle: give every microsecond to the innermost span open at that moment."""
    times: Counter[tuple[str, ...]] = Counter()
    for item in program:
        if isinstance(item, int):
            times[path] += item
        else:
            name, inner = item  # type: ignore[misc]
            times += innermost_times(inner, (*path, name))
    return times


programs = st.recursive(
    st.lists(st.integers(0, 500), max_size=4),
    lambda inner: st.lists(
        st.integers(0, 500) | st.tuples(st.sampled_from(["a", "b", "c"]), inner), max_size=5
    ),
    max_leaves=25,
)


@given(st.lists(programs, min_size=1, max_size=4))
def test_self_times_and_unaccounted_add_up_to_the_wall_exactly(steps: list[list[object]]) -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    for program in steps:
        clock.begin_step()
        run_step(clock, time, program)
    clock.close()

    assert len(sink.steps) == len(steps)
    for step, program in zip(sink.steps, steps, strict=True):
        expected = innermost_times(program)
        got = {span.path: step.self_us(span) for span in step.host_us}
        assert {path: us for path, us in got.items() if us} == {
            path: us for path, us in expected.items() if path and us
        }
        assert step.unaccounted_us == expected[()]
        assert sum(got.values()) + step.unaccounted_us == step.wall_us


@given(st.lists(programs, min_size=1, max_size=3), st.integers(0, 3))
def test_the_device_tree_adds_up_as_the_host_tree_does(
    steps: list[list[object]], same_point_us: int
) -> None:
    time, sink = FakeClock(), ListSink()
    device = FakeDevice(time, same_point_us=same_point_us)
    clock = Clock(sink, device, now_us=time.now_us)
    for program in steps:
        clock.begin_step()
        run_step(clock, time, program)
    clock.close()

    for step in sink.steps:
        assert step.device_wall_us is not None
        top = sum(us for span, us in step.device_us.items() if span.depth == 1)
        assert top <= step.device_wall_us
        for span, total_us in step.device_us.items():
            inside = sum(us for child, us in step.device_us.items() if child.parent is span)
            assert inside <= total_us
        if same_point_us == 0:
            # Every point has its own mark, and the fake device keeps the host's time.
            assert step.device_wall_us == step.wall_us
            assert step.device_us == {span: us for span, (_, us) in step.host_us.items()}
    assert device.marks_in_use <= 1  # the last border's


def test_1805_plus_1800_is_1805_not_3610() -> None:
    """The founding guide added a forward of 1805 ms to the 1800 ms that lay inside it."""
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    clock.begin_step()
    with clock.span("forward"):
        time.advance(3_000)
        with clock.span("vrt"):
            time.advance(1_799_990)
        time.advance(2_290)
    clock.close()

    [step] = sink.steps
    forward, vrt = (next(s for s in step.host_us if s.name == n) for n in ("forward", "vrt"))
    assert step.wall_us == step.accounted_us == step.host_us[forward][1] == 1_805_280
    assert step.self_us(forward) + step.self_us(vrt) == 1_805_280
    assert step.unaccounted_us == 0


def test_a_repeated_span_is_totalled_and_counted() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    clock.begin_step()
    for micro_step in range(3):
        with clock.span("forward"):
            time.advance(10 + micro_step)
        clock.count(samples=4)
    clock.close()

    [step] = sink.steps
    assert list(step.host_us.values()) == [[3, 33]]
    assert (step.samples, step.micro_steps) == (12, 3)


def test_evaluation_is_outside_the_step_but_on_the_record() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, FakeDevice(time), now_us=time.now_us)
    clock.begin_step()
    time.advance(100)
    with clock.outside_step("evaluation"):
        time.advance(5_000)
    time.advance(20)
    clock.close()

    [step] = sink.steps
    assert (step.wall_us, step.outside_us, step.device_wall_us) == (120, 5_000, 120)
    assert sink.events == [("evaluation", 0, 100, 5_000)]


def test_evaluation_inside_an_open_span_is_measured_as_a_span() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    clock.begin_step()
    with clock.span("log"), clock.outside_step("evaluation"):
        time.advance(50)
    clock.close()

    [step] = sink.steps
    assert {span.path: us for span, (_, us) in step.host_us.items()} == {
        ("log",): 50,
        ("log", "evaluation"): 50,
    }
    assert (step.wall_us, step.outside_us) == (50, 0)


def test_a_span_ends_when_an_exception_leaves_it() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    clock.begin_step()

    def fail_inside() -> None:
        with clock.span("forward"):
            time.advance(7)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail_inside()
    clock.close()
    assert [us for _, us in sink.steps[0].host_us.values()] == [7]
    assert sink.steps[0].broken == 0


def test_a_span_whose_end_was_not_seen_is_not_counted() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    clock.begin_step()
    left_open = clock.span("forward")
    left_open.__enter__()
    time.advance(10)
    clock.begin_step()
    time.advance(5)
    left_open.__exit__(None, None, None)
    clock.close()

    first, second = sink.steps
    assert (first.host_us, first.unaccounted_us, first.broken) == ({}, 10, 1)
    assert (second.host_us, second.unaccounted_us, second.broken) == ({}, 5, 1)


def test_an_inner_span_left_open_does_not_swallow_its_parent() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    clock.begin_step()
    with clock.span("outer"):
        clock.span("inner").__enter__()
        time.advance(10)
    clock.close()
    [step] = sink.steps
    assert {span.path: us for span, (_, us) in step.host_us.items()} == {("outer",): 10}
    assert step.broken == 1


def test_a_span_kept_and_entered_elsewhere_does_not_break_the_tree() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    clock.begin_step()
    kept = clock.span("a")
    with clock.span("b"):
        with kept:
            time.advance(3)
        time.advance(4)
    clock.close()
    [step] = sink.steps
    assert {span.path: us for span, (_, us) in step.host_us.items()} == {("b",): 7}
    assert step.broken == 1


def test_spans_of_other_threads_are_counted_not_measured() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    clock.begin_step()

    def prefetch() -> None:
        with clock.span("prefetch"):
            time.advance(1)

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    clock.close()
    assert sink.steps[0].host_us == {}
    assert clock.foreign_spans == 1


def test_spans_outside_a_step_measure_nothing() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, now_us=time.now_us)
    with clock.span("early"):
        time.advance(5)
    clock.close()
    assert sink.steps == []


def test_a_step_waits_for_its_device_without_holding_up_the_loop() -> None:
    time, sink = FakeClock(), ListSink()
    device = FakeDevice(time, lag_us=1_000)
    clock = Clock(sink, device, now_us=time.now_us)
    for _ in range(5):
        clock.begin_step()
        with clock.span("forward"):
            time.advance(300)
    assert [step.index for step in sink.steps] == []
    time.advance(1_000)
    clock.collect()
    assert [step.index for step in sink.steps] == [0, 1, 2, 3]
    assert all(step.device_wall_us == 300 for step in sink.steps)


def test_a_device_that_hangs_costs_device_times_not_memory() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, FakeDevice(time, lag_us=10**12), now_us=time.now_us, most_pending=8)
    for _ in range(100):
        clock.begin_step()
        time.advance(10)
    assert len(sink.steps) >= 80
    assert all(step.device_wall_us is None for step in sink.steps)


def test_sampled_steps_keep_where_their_spans_lay() -> None:
    time, sink = FakeClock(), ListSink()
    clock = Clock(sink, FakeDevice(time), now_us=time.now_us, timeline_every=2)
    for _ in range(3):
        clock.begin_step()
        time.advance(5)
        with clock.span("outer"), clock.span("inner"):
            time.advance(10)
    clock.close()
    timelines = [step.timeline for step in sink.steps]
    assert [len(rows) for rows in timelines] == [2, 0, 2]
    assert [(r.span.name, r.start_us, r.end_us, r.device_end_us) for r in timelines[0]] == [
        ("outer", 5, 15, 15),
        ("inner", 5, 15, 15),
    ]


def test_unaccounted_of_an_empty_step_is_its_wall() -> None:
    step = Step(0, 0)
    step.wall_us = 12
    assert step.unaccounted_us == 12


def test_spans_are_marked_on_about_half_of_the_steps_and_borders_on_all() -> None:
    time, sink = FakeClock(), ListSink()
    device = FakeDevice(time, span_marks_every=2)
    clock = Clock(sink, device, now_us=time.now_us)
    for _ in range(1_000):
        clock.begin_step()
        time.advance(3)
        with clock.span("forward"):
            time.advance(10)
        with clock.outside_step("evaluation"):
            time.advance(5)
    clock.close()
    assert all(step.device_wall_us == 13 for step in sink.steps)
    marked = [step.index for step in sink.steps if step.device_us]
    assert 450 <= len(marked) <= 550
    assert all(list(sink.steps[index].device_us.values()) == [10] for index in marked)
    assert {index % 10 for index in marked} == set(range(10)), "no period that a script may share"
