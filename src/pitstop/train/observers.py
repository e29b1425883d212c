"""Observers of a run: the protocol, and the journal that writes the record."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pitstop.records.communication import CommunicationReading
from pitstop.records.engine import EngineSetup
from pitstop.records.host.held import HeldMemory
from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.loader import CacheReading, LoaderReading, SkippedReading, TuningReading
from pitstop.train.throughput import Throughput
from pitstop_probe import RecordWriter

Status = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What is known before the first step."""

    name: str
    folder: Path
    first_step: int
    total_steps: int
    effective_batch: int
    world_size: int
    messages: tuple[str, ...]
    """What was decided and should be said aloud: scaled rates, resumed checkpoints."""


class Observer:
    """Base of all observers: every method does nothing, so each overrides what it cares for.

    Observers run on the training thread at their cadence; what they do is timed as part of the
    step ("log") or outside it, never hidden.
    """

    def started(self, start: RunStart) -> None:
        """The run begins."""

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Loss, rate and others, read from the device a few steps after `step`."""

    def memory(self, step: int, reading: MemoryReading, warnings: Sequence[str]) -> None:
        """Memory was read."""

    def host_load(self, step: int, load: HostLoad) -> None:
        """How busy the GPUs, the processor and the disks were since the last reading."""

    def progress(self, step: int, throughput: Throughput) -> None:
        """Time for a bar to move."""

    def communicated(self, step: int, reading: CommunicationReading) -> None:
        """The cost of exchanging gradients was read."""

    def loaded(self, step: int, reading: LoaderReading) -> None:
        """How batches were made since the last reading."""

    def tuned(self, step: int, reading: TuningReading) -> None:
        """The loader has found its setting."""

    def skipped(self, step: int, reading: SkippedReading) -> None:
        """Damaged samples were skipped."""

    def cached(self, step: int, reading: CacheReading) -> None:
        """The counters of the host's cache were read."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation ended."""

    def saved(self, step: int, path: Path) -> None:
        """A checkpoint was taken."""

    def warned(self, step: int, kind: str, text: str) -> None:
        """Something a reader of the run must know, such as a step that was left out."""

    def ended(self, step: int, status: Status, reason: str) -> None:
        """The run ended."""


class Journal(Observer):
    """Writes what happens into the run's record."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Keep values beside the steps."""
        self._writer.scalars(step, values)

    def memory(self, step: int, reading: MemoryReading, warnings: Sequence[str]) -> None:
        """Keep the whole reading."""
        self._writer.reading("memory", {"step": step, **asdict(reading)})
        for warning in warnings:
            self.warned(step, "memory", warning)

    def host_load(self, step: int, load: HostLoad) -> None:
        """Keep the whole reading."""
        self._writer.reading("load", {"step": step, **asdict(load)})

    def communicated(self, step: int, reading: CommunicationReading) -> None:
        """Keep the reading, and what follows from it."""
        exposed = {"exposed_us": reading.exposed_us}
        self._writer.reading("communication", {"step": step, **asdict(reading), **exposed})

    def loaded(self, step: int, reading: LoaderReading) -> None:
        """Keep the reading."""
        self._writer.reading("loader", {"step": step, **asdict(reading)})

    def tuned(self, step: int, reading: TuningReading) -> None:
        """Keep what was tried and what was chosen."""
        self._writer.reading("loader_tuning", {"step": step, **asdict(reading)})

    def skipped(self, step: int, reading: SkippedReading) -> None:
        """Keep which samples, and what was wrong with them."""
        self._writer.reading("skipped", {"step": step, **asdict(reading)})

    def cached(self, step: int, reading: CacheReading) -> None:
        """Keep the reading, and the rate that follows from it."""
        rate = {"hit_rate": reading.hit_rate}
        self._writer.reading("cache", {"step": step, **asdict(reading), **rate})

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep metrics as values under their own names."""
        self._writer.scalars(step, {f"eval/{name}": value for name, value in metrics.items()})

    def saved(self, step: int, path: Path) -> None:
        """Keep where the checkpoint is."""
        self._writer.reading("saved", {"step": step, "path": str(path)})

    def warned(self, step: int, kind: str, text: str) -> None:
        """Keep the warning."""
        self._writer.reading("warning", {"step": step, "about": kind, "text": text})

    def engine(self, setup: EngineSetup) -> None:
        """Keep what the run works on."""
        self._writer.reading("engine", asdict(setup))

    def held(self, held: HeldMemory) -> None:
        """Keep what stays on the device from step to step."""
        self._writer.reading("held", asdict(held))

    def applied(self, setting: str, proof: Mapping[str, Any]) -> None:
        """Keep what a setting really did."""
        self._writer.reading("applied", {"setting": setting, "proof": proof})
