"""Who prepares the batches and where that time goes: workers, stages, processor, volume."""

import math
import os.path
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from pitstop.doctor.facts import Facts
from pitstop.records.host.machine import Machine
from pitstop.records.host.memory import HostLoad
from pitstop.records.loader import LoaderReading, sum_of_stages_us
from pitstop.records.script import LoaderSetup, WorkerTimes
from pitstop.records.summary import known_sum

# Of a worker's time on a batch; below this it mostly waits, and not for its own work.
_PROCESSOR_DECIDES = 0.5

_NO_DATA = ("/usr/", "/lib", "/proc/", "/sys/", "/dev/", "/etc/")
_NO_DATA_ENDINGS = (".py", ".pyc", ".so", ".pth", ".egg")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """How batches were made, over all workers. Microseconds."""

    workers: int
    """None of them where the training process loads its batches itself."""
    batches: int
    stages_us: Mapping[str, int]
    busy_us: int
    cpu_us: int | None
    alive_us: int | None
    read_bytes: int | None
    unfinished_share: float | None
    """Share of the loop's wait in which the batch was not finished; the rest was handing over."""
    volume: str | None
    """Folder that holds the files the workers had open."""

    @property
    def processor_share(self) -> float | None:
        """Share of the workers' time on batches in which they computed."""
        if self.cpu_us is None or not self.busy_us:
            return None
        return min(1.0, self.cpu_us / self.busy_us)

    @property
    def used_share(self) -> float | None:
        """Share of their life in which the workers worked; the rest they waited for orders."""
        if not self.alive_us:
            return None
        return min(1.0, self.busy_us / self.alive_us)

    @property
    def waits_for_storage(self) -> bool:
        """Whether workers spend most of a batch neither computing nor idle."""
        share = self.processor_share
        return share is not None and share < _PROCESSOR_DECIDES

    @property
    def stage(self) -> str | None:
        """The stage that takes most of a batch."""
        return max(self.stages_us, key=self.stages_us.__getitem__, default=None)


def loader_facts_of(facts: Facts) -> LoaderFacts | None:
    """Gather what the workers reported; None where they reported nothing."""
    reported = facts.readings.all(WorkerTimes)
    loaders = () if facts.setup is None else facts.setup.loaders
    training = {pid for loader in loaders if loader.trains for pid in loader.pids}
    # Where no loader names its processes: one of training and evaluation may have workers, and the
    # other load in the process itself.
    itself = workers_of(facts) == 0
    workers = (
        tuple(times for times in reported if times.pid in training)
        or tuple(times for times in reported if (times.worker < 0) == itself)
        or reported
    )
    if workers:
        return _of_workers(workers)
    readings = facts.readings.all(LoaderReading)
    return _of_readings(readings) if readings else None


def train_loader(facts: Facts) -> LoaderSetup | None:
    """The loader of the script whose batches were trained on, the busiest."""
    setup = facts.setup
    if setup is None:
        return None
    training = [loader for loader in setup.loaders if loader.trains]
    return max(training, key=lambda loader: loader.batches, default=None)


def workers_of(facts: Facts) -> int | None:
    """Loader workers of this rank; None where the record does not tell."""
    loader = train_loader(facts)
    if loader is not None:
        return loader.workers
    proof = facts.readings.proof("loader.workers")
    found = None if proof is None else proof.get("workers")
    return found if isinstance(found, int) else None


def usable_cores(facts: Facts) -> float | None:
    """Cores this process may use; None where they were not read."""
    load, machine = facts.readings.last(HostLoad), facts.readings.last(Machine)
    counts = (load and load.usable_cores, machine and machine.cpu.usable_cores)
    # A damaged record may hold any number.
    return next((count for count in counts if count and 0 < count < math.inf), None)


def _of_workers(workers: tuple[WorkerTimes, ...]) -> LoaderFacts:
    reading = sum(worker.read_us for worker in workers)
    collating = sum(worker.collate_us for worker in workers)
    return LoaderFacts(
        # Workers that start anew for every pass have their numbers again.
        workers=len({times.worker for times in workers if times.worker >= 0}),
        batches=sum(worker.batches for worker in workers),
        stages_us={"dataset": reading, "collate": collating},
        busy_us=reading + collating,
        cpu_us=known_sum([worker.cpu_us for worker in workers]),
        alive_us=sum(times.alive_us for times in workers if times.worker >= 0) or None,
        read_bytes=known_sum([worker.read_bytes for worker in workers]),
        unfinished_share=None,
        volume=volume_of(file for worker in workers for file in worker.files),
    )


def _of_readings(readings: tuple[LoaderReading, ...]) -> LoaderFacts:
    return LoaderFacts(
        workers=readings[-1].workers,
        batches=sum(reading.batches for reading in readings),
        stages_us=sum_of_stages_us(readings),
        busy_us=sum(reading.busy_us for reading in readings),
        cpu_us=sum(reading.cpu_us for reading in readings),
        alive_us=None,
        read_bytes=None,
        unfinished_share=_unfinished(readings),
        volume=None,
    )


def _unfinished(readings: tuple[LoaderReading, ...]) -> float | None:
    wait_us = sum(reading.wait_us for reading in readings)
    return sum(reading.short_us for reading in readings) / wait_us if wait_us else None


def volume_of(files: Iterable[str]) -> str | None:
    """Name the folder that most of the data files lie under; None where it is not known."""
    folders = [
        str(PurePosixPath(file).parent)
        for file in files
        if file.startswith("/")
        and not file.startswith(_NO_DATA)
        and not file.endswith(_NO_DATA_ENDINGS)
    ]
    if not folders:
        return None
    shared = os.path.commonpath(folders)
    # Files of several volumes share no more than the root: the commonest folder tells more.
    return shared if shared != "/" else max(set(folders), key=folders.count)
