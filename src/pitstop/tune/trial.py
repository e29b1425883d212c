"""One short run of a configuration in processes of its own; whatever becomes of it is a result.

It is the command that a user runs, `pitstop train`, stopped by SIGTERM once its record holds
enough: schedule, evaluation and saving are those of the whole run, as far as it goes.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from pitstop.doctor.examine import examine
from pitstop.doctor.facts import Facts, facts_of
from pitstop.errors import PitstopError
from pitstop.records.host.memory import MemoryReading
from pitstop.records.run import RunRecord
from pitstop.records.store import RunFollower, read_run
from pitstop.records.tuning.study import Trial, TrialEnd
from pitstop.records.verdict import Finding
from pitstop.verify.runner import ChildRunner, Program, Runner

ENOUGH_S: Final = 20.0
"""Usual length of a trial whose steps are long, measured after its first step."""
_FEWEST_STEPS: Final = 8
"""After warm-up; with fewer a median is the whim of one step."""
_FEWEST_LONG_STEPS: Final = 3
"""After warm-up, where they took long together: what disturbs a step takes far less than it."""
_NEARLY: Final = 0.7
"""Of what is enough: the last step may be shorter, and more than the first may be left out."""
_WARM_UP: Final = 1
"""Steps that are left out of the shortest trial."""
_MISUSE: Final = "exit code 2"
"""What the runner says of a command that refused: the settings do not go together, or not here."""


class Trials(Protocol):
    """Runs trials: on this machine, or on a cluster (tune/ray_cluster.py)."""

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try settings; whatever goes wrong is in the answer."""
        ...


@contextmanager
def folder_of_trial(folder: Path, number: int) -> Iterator[Path]:
    """Give an empty folder to one trial, and remove it with all that the trial wrote."""
    place = folder / f"trial-{number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def promises_of(findings: Iterable[Finding]) -> dict[str, float]:
    """Give the share of the time that each finding is about, by its code."""
    return {found.code: found.bound.share for found in findings if found.bound is not None}


@dataclass(slots=True, kw_only=True)
class EngineTrials:
    """Trials of the training engine, one after the other on this machine."""

    config: Path
    given: tuple[str, ...]
    """Overrides that the user gave; they hold for every trial."""
    folder: Path
    """Where trials write; each removes what it wrote."""
    steps: int
    """Most steps of a trial, warm-up included."""
    limit_s: float
    """Longest that a trial may take."""
    enough_s: float = ENOUGH_S
    """Of steps after the first; with so much a trial ends before it has all its steps."""
    runner: Runner = field(default_factory=ChildRunner)
    _count: int = field(default=0, init=False)

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try settings."""
        self._count += 1
        with folder_of_trial(self.folder, self._count) as place:
            return self._run(tuple(overrides), place)

    def _run(self, overrides: tuple[str, ...], place: Path) -> Trial:
        own = ("run.name=run", "checkpoint.best_of=null", "checkpoint.dir=null")
        command = [sys.executable, "-m", "pitstop", "train", str(self.config)]
        command += [*self.given, *overrides, *own, "--work-dir", str(place)]
        follower = RunFollower(place / "run" / "rank-0.jsonl")
        program = Program(
            arguments=tuple(command),
            folder=place,
            limit_s=self.limit_s,
            is_enough=lambda: follower.poll() and self._has_enough(follower),
        )
        ended = self.runner.run(program)
        if ended.status == "finished":
            trial = _read(place / "run", overrides, self.enough_s)
        else:
            refused = ended.status == "crashed" and ended.reason.startswith(_MISUSE)
            end: TrialEnd = "refused" if refused else ended.status
            trial = Trial(overrides=overrides, end=end, reason=ended.reason)
        return replace(trial, took_s=ended.wall_s)

    def _has_enough(self, follower: RunFollower) -> bool:
        table = follower.record().steps
        if table is None or len(table) < _WARM_UP + _FEWEST_LONG_STEPS - 1:
            return False
        walls_us = table.wall_us[_WARM_UP:]
        # The step under way is finished before the run leaves.
        taken_s = float(walls_us.sum() + walls_us.mean()) / 1e6
        return len(table) >= self.steps or taken_s >= self.enough_s


def _read(run: Path, overrides: tuple[str, ...], enough_s: float) -> Trial:
    """Read what a trial left that was stopped after its steps, or finished before."""
    try:
        record = read_run(run)
    except PitstopError as error:
        return Trial(overrides=overrides, end="crashed", reason=str(error))
    facts = facts_of(record.first, least_warm_up=_WARM_UP)
    is_long = facts.total_us / 1e6 >= _NEARLY * enough_s
    if facts.steps < (_FEWEST_LONG_STEPS if is_long else _FEWEST_STEPS) or not facts.samples:
        reason = f"{facts.steps} steps after warm-up are too few to measure"
        return Trial(overrides=overrides, end="refused", reason=reason)
    return _measured(overrides, record, facts)


def _measured(overrides: tuple[str, ...], record: RunRecord, facts: Facts) -> Trial:
    samples = facts.samples or 1.0
    step_us = float(facts.wall_us.mean())
    wait_us = facts.mean_part_us("data")
    peaks = [
        device.peak_reserved_bytes
        for reading in facts.readings.all(MemoryReading)
        for device in reading.devices
    ]
    return Trial(
        overrides=overrides,
        end="measured",
        wall_s=facts.total_us / facts.steps / samples / 1e6,
        compute_s=(step_us - wait_us) / samples / 1e6,
        samples=samples,
        promises=promises_of(examine(record).findings),
        peak_device_bytes=max(peaks, default=None),
        start_s=facts.first_us / 1e6,
    )
