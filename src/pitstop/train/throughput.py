"""The throughput of the latest steps, from the same readings that go into the record."""

from dataclasses import dataclass, field

from pitstop_probe import RecordWriter, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Throughput of the steps since the last call of `take`."""

    steps: int
    samples_per_s: float | None
    """On the wall clock of the steps; None before the first step."""
    data_share: float | None
    """Share of that time spent waiting for data."""
    step_s: float | None
    """Mean wall clock of a step."""


@dataclass(slots=True)
class StepThroughput:
    """Passes steps on to the record and adds them up on the way."""

    writer: RecordWriter
    _steps: int = field(init=False, default=0)
    _samples: int = field(init=False, default=0)
    _wall_us: int = field(init=False, default=0)
    _data_us: int = field(init=False, default=0)

    def step(self, step: Step) -> None:
        """Take a finished step."""
        self._steps += 1
        self._samples += step.samples or 0
        self._wall_us += step.wall_us
        for span, (_, total_us) in step.host_us.items():
            if span.depth == 1 and span.name == "data":
                self._data_us += total_us
        self.writer.step(step)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        """Hand an event on."""
        self.writer.event(name, step=step, start_us=start_us, wall_us=wall_us)

    def take(self) -> Throughput:
        """Give the throughput since the last call, and begin anew."""
        wall_s = self._wall_us / 1e6
        throughput = Throughput(
            steps=self._steps,
            samples_per_s=self._samples / wall_s if wall_s else None,
            data_share=self._data_us / self._wall_us if self._wall_us else None,
            step_s=wall_s / self._steps if self._steps else None,
        )
        self._steps = self._samples = self._wall_us = self._data_us = 0
        return throughput
