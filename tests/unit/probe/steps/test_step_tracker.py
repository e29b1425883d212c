"""The tracker finds the borders of steps and hands over what lay between them."""

from typing import Any

import pytest

from pitstop_probe.clock import HAND_OVER_US, UnsampledSteps
from pitstop_probe.steps.parts import EVAL, TRAIN, Unset
from pitstop_probe.steps.step_tracker import StepEnds, StepTracker, Undecided
from tests.fakes import one_by_one


class Keeper:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.events: list[tuple[str, int]] = []

    def step(self, step: Any) -> None:
        self.steps.append(step)

    def unsampled_steps(self, steps: UnsampledSteps) -> None:
        for step in one_by_one(steps):
            self.step(step)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        del step, start_us
        self.events.append((name, wall_us))


class Ticks:
    """A clock in nanoseconds that moves when told, in microseconds."""

    def __init__(self) -> None:
        self.now_ns = 7_000_000

    def __call__(self) -> int:
        return self.now_ns

    def pass_us(self, us: int) -> None:
        self.now_ns += us * 1000


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def sink() -> Keeper:
    return Keeper()


@pytest.fixture
def tracker(sink: Keeper, ticks: Ticks) -> StepTracker:
    return StepTracker(sink, now_ns=ticks)


def region(tracker: StepTracker, ticks: Ticks, kind: str, us: int, detail: Any = None) -> None:
    tracker.enter(kind, detail)
    ticks.pass_us(us)
    tracker.leave(kind)


def named(step: Any) -> dict[str, int]:
    return {"/".join(span.path): total for span, (_, total) in step.host_us.items()}


def test_a_step_lies_between_two_optimizer_steps(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    for _ in range(3):
        region(tracker, ticks, "data", 10)
        region(tracker, ticks, "forward", 20, TRAIN)
        tracker.count(1, 8)
        ticks.pass_us(3)
        region(tracker, ticks, "backward", 40)
        region(tracker, ticks, "optimizer", 5)
        tracker.stepped(1)
    tracker.close()
    assert [step.index for step in sink.steps] == [0, 1]
    assert all(step.wall_us == 78 for step in sink.steps)
    assert named(sink.steps[0]) == {
        "data": 10,
        "forward": 20,
        "loss": 3,
        "backward": 40,
        "optimizer": 5,
    }
    assert [step.samples for step in sink.steps] == [8, 8]
    assert all(step.unaccounted_us == 0 for step in sink.steps)


def test_a_closure_inside_the_optimizer_is_taken_out_of_it(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    for _ in range(2):
        tracker.enter("optimizer")
        region(tracker, ticks, "forward", 20, TRAIN)
        region(tracker, ticks, "backward", 40)
        ticks.pass_us(7)
        tracker.leave("optimizer")
        tracker.stepped(1)
    tracker.close()
    assert named(sink.steps[0]) == {"forward": 20, "backward": 40, "optimizer": 7}


def test_a_region_whose_end_was_lost_ends_with_what_holds_it(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    tracker.stepped(1)
    tracker.enter("optimizer")
    tracker.enter("copy")
    ticks.pass_us(9)
    tracker.leave("optimizer")
    tracker.stepped(1)
    tracker.close()
    assert sum(named(sink.steps[0]).values()) == 9
    assert tracker.open == []


def test_a_special_step_is_told_apart_and_counts_for_nothing(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    for step in range(4):
        if step == 2:
            tracker.special("pitstop")
        ticks.pass_us(11)
        tracker.stepped(1)
    tracker.close()
    assert [step.index for step in sink.steps] == [0, 2]
    assert sink.events == [("pitstop", 11)]
    assert tracker.sampled_steps == 2


def test_a_model_that_is_never_set_back_to_train_trains_as_it_is(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    """Who sets it to train in a step evaluates with it where it is not."""
    for step in range(4):
        region(tracker, ticks, "forward", 20, Unset(1))
        region(tracker, ticks, "forward", 30, Unset(2))
        if step != 2:
            tracker.count(1, 8)
        region(tracker, ticks, "backward", 40)
        tracker.stepped(1)
    tracker.close()
    assert tracker.trains == {1, 2}
    assert sink.events == [("evaluation", 20)]
    assert [named(step)["forward"] for step in sink.steps] == [30, 50, 50]


def test_calls_of_a_step_that_is_not_sampled_are_counted_as_of_one_that_is(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    for step in range(201):
        for _ in range(2):
            region(tracker, ticks, "forward", 100, TRAIN)
            tracker.count(1, 8)
        if step % 50 == 49:
            tracker.count(1, 8)
        region(tracker, ticks, "backward", 300)
        tracker.stepped(1)
    tracker.close()
    bare = [step for step in sink.steps if not step.sampled]
    odd = [step.index for step in bare if step.samples is None]
    assert len(bare) > 100
    assert {(step.micro_steps, step.samples) for step in bare} == {(1, 8), (None, None)}
    assert set(odd) <= {48, 98, 148, 198}
    assert tracker.samples_per_step == 8


def test_what_lies_outside_has_no_row_in_a_timeline(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    tracker.stepped(1)
    region(tracker, ticks, "pitstop", 5)
    region(tracker, ticks, "forward", 20, TRAIN)
    tracker.stepped(1)
    tracker.close()
    assert [row.span.name for row in sink.steps[0].timeline] == ["forward"]


def test_what_was_seen_in_an_evaluation_or_a_slowed_step_is_not_the_trainings(
    tracker: StepTracker, ticks: Ticks
) -> None:
    seen = Undecided(tracker)
    for step in range(4):
        if step == 3:
            tracker.special("pitstop")
        for kind, detail in (("forward", EVAL), ("backward", None), ("optimizer", None)):
            tracker.enter(kind, detail)
            ticks.pass_us(5)
            seen.add(ticks(), (step, kind))
            ticks.pass_us(5)
            tracker.leave(kind)
        tracker.stepped(1)
    seen.add(ticks(), "after the last step")
    assert list(seen.decided()) == []
    tracker.close()
    training = [(step, kind) for step in range(3) for kind in ("backward", "optimizer")]
    # All of the first step lay before the first border.
    assert list(seen.decided()) == [(0, "forward"), *training]
    seen.drop_step()
    tracker.settled += 1
    assert list(seen.decided()) == []


def test_after_the_training_what_is_seen_takes_no_more_and_more_memory(
    tracker: StepTracker, ticks: Ticks
) -> None:
    seen = Undecided(tracker)
    tracker.stepped(1)
    for number in range(20_000):
        seen.add(ticks(), number)
    tracker.settled = 1
    kept = list(seen.decided())
    assert len(kept) == 1 << 14
    assert kept[-1] == 19_999


@pytest.mark.parametrize("most", [2048, 5000])
def test_however_much_lay_outside_the_latest_is_known(
    tracker: StepTracker, ticks: Ticks, most: int
) -> None:
    seen = Undecided(tracker)
    for _ in range(most):
        region(tracker, ticks, "checkpoint", 10)
        tracker.stepped(1)
    seen.add(ticks() - 1_000, "in the last")
    tracker.close()
    tracker.settled += 1
    assert list(seen.decided()) == []
    assert len(tracker.outside) <= 2048


def test_recomputation_is_a_child_of_the_backward_pass(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    tracker.stepped(1)
    tracker.enter("backward")
    start = ticks()
    ticks.pass_us(30)
    tracker.recomputed(start, ticks())
    ticks.pass_us(10)
    tracker.leave("backward")
    tracker.stepped(1)
    tracker.close()
    assert named(sink.steps[0]) == {"backward": 40, "backward/recompute": 30}


def test_a_pause_leaves_out_its_steps_and_the_one_it_began_in(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    def step() -> None:
        region(tracker, ticks, "forward", 20, TRAIN)
        ticks.pass_us(5)
        tracker.stepped(1)

    step()  # where the first begins
    step()
    step()
    tracker.enter("forward", TRAIN)
    tracker.pause()
    for _ in range(3):
        step()
    tracker.resume()
    step()  # where the next begins
    step()
    tracker.close()
    assert [step.index for step in sink.steps] == [0, 1, 3]
    assert [step.wall_us for step in sink.steps] == [25, 25, 25]
    assert named(sink.steps[-1])["forward"] == 20


def test_a_pause_does_not_bring_the_handing_over_nearer(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    def step() -> None:
        ticks.pass_us(50_000)
        tracker.stepped(1)

    for _ in range(4):
        step()
    tracker.pause()
    ticks.pass_us(10 * HAND_OVER_US)
    tracker.resume()
    step()
    step()
    assert sink.steps == []
    for _ in range(HAND_OVER_US // 50_000):
        step()
    assert sink.steps != []


def test_a_pause_before_the_first_step_changes_nothing(tracker: StepTracker, sink: Keeper) -> None:
    stops: list[int] = []
    tracker.at_border = stops.append
    tracker.pause()
    tracker.stepped(1)
    tracker.resume()
    for _ in range(3):
        tracker.stepped(1)
    tracker.close()
    assert [step.index for step in sink.steps] == [0, 1]
    assert stops == [0, 1, 2]


def test_other_threads_and_a_closed_watch_note_nothing(tracker: StepTracker, ticks: Ticks) -> None:
    tracker.stepped(1)
    tracker.thread = -1
    assert not tracker.enter("forward")
    tracker.note("copy", ticks())
    assert tracker.raw is not None
    assert tracker.raw.regions == []


def test_what_reaches_over_a_border_is_shared_by_both_steps(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    tracker.stepped(1)
    ticks.pass_us(2)
    tracker.enter("own")
    ticks.pass_us(5)
    tracker.stepped(1)
    ticks.pass_us(8)
    tracker.leave("own")
    ticks.pass_us(1)
    tracker.stepped(1)
    tracker.close()
    assert [named(step) for step in sink.steps] == [{"host": 2, "own": 5}, {"own": 8, "host": 1}]


def test_the_end_of_a_region_that_is_closed_already_changes_nothing(
    tracker: StepTracker, sink: Keeper, ticks: Ticks
) -> None:
    tracker.stepped(1)
    outer, inner = tracker.begin("optimizer"), tracker.begin("copy")
    assert outer is not None
    assert inner is not None
    ticks.pass_us(4)
    tracker.end(outer)
    ticks.pass_us(3)
    tracker.end(inner)
    tracker.stepped(1)
    tracker.close()
    assert named(sink.steps[0]) == {"copy": 4, "host": 3}


def test_borders_before_the_next_stop_pass_without_a_word(tracker: StepTracker) -> None:
    called: list[int] = []

    def stop(step: int) -> None:
        called.append(step)
        tracker.next_stop = 4 if step == 1 else 0

    tracker.at_border = stop
    for _ in range(7):
        tracker.stepped(1)
    assert called == [0, 1, 4, 5, 6]


class Device:
    """A device whose marks are numbers; it has passed all up to one of them."""

    span_marks_every = 2
    same_point_us = 0

    def __init__(self, passed: int) -> None:
        self.made = 0
        self.asked = 0
        self.released: list[int] = []
        self._passed = passed

    def mark(self) -> int:
        self.made += 1
        return self.made

    def passed(self, mark: int) -> bool:
        self.asked += 1
        return mark <= self._passed

    def elapsed_us(self, start: int, end: int) -> int:
        return end - start

    def release(self, marks: list[int]) -> None:
        self.released += marks


def test_steps_the_device_has_passed_are_handed_over_without_asking_for_each(
    sink: Keeper, ticks: Ticks
) -> None:
    device = Device(passed=9)
    tracker = StepTracker(sink, device, ticks)
    for _ in range(13):
        ticks.pass_us(40_000)
        tracker.stepped(1)
    # Marks 1 to 9 are the borders of the first 8 steps.
    assert [step.index for step in sink.steps] == list(range(8))
    assert all(step.device_wall_us == 1 for step in sink.steps)
    assert device.released == list(range(1, 9))
    assert device.asked <= 4
    tracker.close()
    assert [step.device_wall_us for step in sink.steps[8:]] == [None] * 4


def test_while_a_graph_is_captured_nothing_is_asked_of_the_device(
    sink: Keeper, ticks: Ticks
) -> None:
    """A mark would go into the graph, and a question would break it."""
    device = Device(passed=10**9)
    device.span_marks_every = 1
    tracker = StepTracker(sink, device, ticks)
    for step in range(12):
        tracker.is_capturing = lambda step=step: step == 5
        before = device.made, device.asked
        ticks.pass_us(HAND_OVER_US // 2)
        region(tracker, ticks, "forward", 50_000, TRAIN)
        tracker.stepped(1)
        assert step != 5 or before == (device.made, device.asked)
    tracker.close()
    # What was captured was not made: it lies in the step around it, which has no device time.
    assert [step.index for step in sink.steps] == list(range(10))
    long = max(sink.steps, key=lambda step: step.wall_us)
    assert [step.device_wall_us is None for step in sink.steps] == [
        step is long for step in sink.steps
    ]


# Of short steps one in ten is sampled, later one in twenty, and every second of those marked; of
# middling ones one in eight, and all of those marked.
@pytest.mark.parametrize(("step_us", "every"), [(50_000, 2), (20_000, 8), (1_000, 30)])
def test_parts_of_short_steps_are_marked_less_often(
    sink: Keeper, ticks: Ticks, step_us: int, every: int
) -> None:
    device = Device(passed=10**9)
    tracker = StepTracker(sink, device, ticks)
    for _ in range(2001):
        region(tracker, ticks, "forward", step_us, TRAIN)
        tracker.stepped(1)
    tracker.close()
    assert [step.index for step in sink.steps] == list(range(2000))
    marked = [step for step in sink.steps if step.device_us]
    assert len(marked) == pytest.approx(2000 / every, rel=0.2)
    assert all(step.device_wall_us is not None for step in marked)
    # Every mark that was made came back once, but for that of the last border.
    assert len(set(device.released)) == len(device.released)
    assert device.made - len(device.released) <= 1


def test_borders_between_short_steps_without_marks_are_not_marked(
    sink: Keeper, ticks: Ticks
) -> None:
    device = Device(passed=10**9)
    tracker = StepTracker(sink, device, ticks)
    for _ in range(2001):
        ticks.pass_us(1_000)
        tracker.stepped(1)
    tracker.close()
    # One step in twenty is marked, later one in forty, at both borders.
    assert 100 < device.made < 200
    assert any(step.device_wall_us is None for step in sink.steps)
    assert any(step.device_wall_us is not None for step in sink.steps)


def borders(sequence: str) -> str:
    step_ends = StepEnds()
    return "".join("|" if step_ends.closes(ord(name)) else "." for name in sequence)


def test_a_cycle_of_optimizers_ends_with_the_last_of_them() -> None:
    assert borders("AAAA") == "||||"
    assert borders("ABABAB") == "||.|.|"
    assert borders("DDDDDGDDDDDG") == "||||||.....|"


def test_an_optimizer_that_hardly_ever_steps_does_not_set_the_pace() -> None:
    sequence = "A" * 10 + "B" + "A" * 200
    assert borders(sequence).count("|") > 150


def test_a_fault_of_the_probe_ends_the_measuring_and_not_the_training(
    tracker: StepTracker, capsys: pytest.CaptureFixture[str]
) -> None:
    failures: list[Exception] = []

    def fail(_: int) -> None:
        raise ZeroDivisionError("planted")

    tracker.at_border, tracker.at_failure = fail, failures.append
    tracker.stepped(1)
    assert not tracker.active
    assert [str(failure) for failure in failures] == ["planted"]
    assert "measuring stopped" in capsys.readouterr().err


class _LaggingDevice(Device):
    """A device on which everything happens one millisecond after the host asked for it."""

    LAG_US = 1_000

    def __init__(self, ticks: Ticks) -> None:
        super().__init__(passed=10**9)
        self._ticks = ticks
        self._at_us: dict[int, int] = {}

    def mark(self) -> int:
        mark = super().mark()
        self._at_us[mark] = self._ticks() // 1000 + self.LAG_US * (mark > 1)
        return mark

    def elapsed_us(self, start: int, end: int) -> int:
        return self._at_us[end] - self._at_us[start]


@pytest.mark.parametrize("every", [1, 2, 4])
def test_a_timeline_is_of_a_step_whose_parts_lie_on_the_device_as_well(
    sink: Keeper, ticks: Ticks, every: int
) -> None:
    device = _LaggingDevice(ticks)
    device.span_marks_every = every
    tracker = StepTracker(sink, device, ticks)
    for _ in range(201):
        region(tracker, ticks, "forward", 30_000, TRAIN)
        region(tracker, ticks, "optimizer", 20_000)
        tracker.stepped(1)
    tracker.close()
    drawn = [step for step in sink.steps if step.timeline]
    assert len(drawn) == 4
    assert all(step.index % 64 <= 32 for step in drawn)
    for step in drawn:
        lag = step.device_wall_us - step.wall_us  # the very first mark came without delay
        assert [(row.span.name, row.start_us, row.end_us) for row in step.timeline] == [
            ("forward", 0, 30_000),
            ("optimizer", 30_000, 50_000),
        ]
        assert [(row.device_start_us, row.device_end_us) for row in step.timeline] == [
            (lag, 30_000 + lag),
            (30_000 + lag, 50_000 + lag),
        ]


def test_a_timeline_does_not_wait_for_ever_for_marks(sink: Keeper, ticks: Ticks) -> None:
    device = Device(passed=10**9)
    tracker = StepTracker(sink, device, ticks)
    tracker.is_capturing = lambda: True  # then no part is marked
    for _ in range(101):
        region(tracker, ticks, "forward", 50_000, TRAIN)
        tracker.is_capturing = lambda: False
        tracker.stepped(1)
        tracker.is_capturing = lambda: True
    tracker.close()
    drawn = [step for step in sink.steps if step.timeline]
    assert [step.index for step in drawn] == [32, 96]
    assert all(row.device_start_us is None for step in drawn for row in step.timeline)
