"""Hand-made stand-ins: a clock that moves when told, a device that lags, a sink that keeps."""

from pitstop_probe import Step
from pitstop_probe.clock import UnsampledSteps


class FakeClock:
    """Time that passes only when a test says so."""

    def __init__(self, start_us: int = 0) -> None:
        self.time_us = start_us

    def now_us(self) -> int:
        return self.time_us

    def advance(self, us: int) -> None:
        self.time_us += us


class FakeMark:
    """A point on the fake device's time line."""

    def __init__(self, at_us: int) -> None:
        self.at_us = at_us


class FakeDevice:
    """A device that keeps the host's time and reports marks `lag_us` late."""

    def __init__(
        self,
        time: FakeClock,
        *,
        lag_us: int = 0,
        same_point_us: int = 0,
        span_marks_every: int = 1,
    ) -> None:
        self._time = time
        self._lag_us = lag_us
        self._pool: list[FakeMark] = []
        self.marks_in_use = 0
        self.span_marks_every = span_marks_every
        # Same point 0 still shares marks of the very same microsecond.
        self.same_point_us = same_point_us

    def mark(self) -> FakeMark:
        self.marks_in_use += 1
        mark = self._pool.pop() if self._pool else FakeMark(0)
        mark.at_us = self._time.now_us()
        return mark

    def passed(self, mark: FakeMark) -> bool:
        return self._time.now_us() - mark.at_us >= self._lag_us

    def elapsed_us(self, start: FakeMark, end: FakeMark) -> int | None:
        return end.at_us - start.at_us

    def release(self, marks: list[FakeMark]) -> None:
        assert len({id(mark) for mark in marks}) == len(marks), "a mark was released twice"
        assert not {id(mark) for mark in marks} & {id(mark) for mark in self._pool}
        self.marks_in_use -= len(marks)
        self._pool += marks


class ListSink:
    """Keeps what a clock hands over."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.events: list[tuple[str, int, int, int]] = []

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def unsampled_steps(self, steps: UnsampledSteps) -> None:
        self.steps += one_by_one(steps)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        self.events.append((name, step, start_us, wall_us))


def one_by_one(steps: UnsampledSteps) -> list[Step]:
    """Give steps that were handed over together as if each had come alone."""
    found: list[Step] = []
    start_us = steps.start_us
    for index, (wall_us, samples, micro_steps) in enumerate(zip(*steps[2:], strict=True)):
        step = Step(steps.first + index, start_us)
        step.wall_us, step.samples, step.micro_steps = wall_us, samples, micro_steps
        step.sampled = False
        found.append(step)
        start_us += wall_us
    return found
