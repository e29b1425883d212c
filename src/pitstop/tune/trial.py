"""One short run of a configuration in processes of its own; whatever becomes of it is a result.

It is the command that a user runs, `pitstop train`, stopped by SIGTERM once its record holds enough
steps: schedule, evaluation and saving are those of the whole run, as far as it goes.
"""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import psutil

from pitstop.data.loader.worker_ends import signal_at_parent_death
from pitstop.doctor.examine import examine
from pitstop.doctor.facts import Facts, facts_of
from pitstop.errors import PitstopError
from pitstop.records.host.memory import MemoryReading
from pitstop.records.run import RunRecord
from pitstop.records.store import RunFollower, read_run
from pitstop.records.tuning.study import Trial, TrialEnd

_ENDED_FOR: Final[Mapping[TrialEnd, str]] = {
    "hung": "it did not make its steps in time and was ended",
    "out of memory": "the host's memory was full and it was ended",
}
_POLL_S: Final = 0.1
_LEAVING_S: Final = 60.0
"""For the checkpoint that a stopped run saves."""
_FEWEST_STEPS: Final = 8
"""After warm-up; with fewer a median is the whim of one step."""
_LEAST_FREE: Final = 0.03
"""Share of the host's memory below which a trial is ended before the system ends something else."""


class Trials(Protocol):
    """Runs trials; a cluster could be behind it."""

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try settings; whatever goes wrong is in the answer."""
        ...


@dataclass(slots=True, kw_only=True)
class EngineTrials:
    """Trials of the training engine, one after the other on this machine."""

    config: Path
    given: tuple[str, ...]
    """Overrides that the user gave; they hold for every trial."""
    folder: Path
    """Where trials write; each removes what it wrote."""
    steps: int
    """Steps of a trial, warm-up included."""
    limit_s: float
    """Longest that a trial may take."""
    _count: int = field(default=0, init=False)

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try settings."""
        self._count += 1
        place = self.folder / f"trial-{self._count}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            return self._run(tuple(overrides), place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _run(self, overrides: tuple[str, ...], place: Path) -> Trial:
        log, run = place / "output.txt", place / "run"
        own = ("run.name=run", "checkpoint.best_of=null")
        command = [sys.executable, "-m", "pitstop", "train", str(self.config)]
        command += [*self.given, *overrides, *own, "--work-dir", str(place)]
        begun_s = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # The tuner has one thread, so running Python between fork and exec is safe.
                preexec_fn=_end_with_tuner if sys.platform == "linux" else None,  # noqa: PLW1509
            )
            try:
                ended_by_us = self._follow(process, run / "rank-0.jsonl", begun_s)
            finally:
                _kill_group(process)
        took_s = time.monotonic() - begun_s
        text = log.read_text(encoding="utf-8", errors="replace")
        if ended_by_us is None:
            trial = _judged(run, overrides, text, process.returncode)
        else:
            reason = f"{_ENDED_FOR[ended_by_us]}; its last line: {_last_line(text)}"
            trial = Trial(overrides=overrides, end=ended_by_us, reason=reason)
        return replace(trial, took_s=took_s)

    def _follow(
        self, process: subprocess.Popen[bytes], record: Path, begun_s: float
    ) -> TrialEnd | None:
        """Wait until it has made its steps; say what it was ended for, None where for nothing."""
        follower = RunFollower(record)
        while process.poll() is None:
            if follower.poll() and _steps(follower) >= self.steps:
                process.terminate()
                return None if _has_left(process, _LEAVING_S) else "hung"
            if time.monotonic() - begun_s > self.limit_s:
                return "hung"
            memory = psutil.virtual_memory()
            if memory.available < _LEAST_FREE * memory.total:
                return "out of memory"
            time.sleep(_POLL_S)
        return None


def _steps(follower: RunFollower) -> int:
    table = follower.record().steps
    return 0 if table is None else len(table.wall_us)


def _has_left(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_with_tuner() -> None:
    """A tuner that is killed leaves no training behind."""
    signal_at_parent_death(signal.SIGKILL)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of it, loader workers among them."""
    for member in _members(process.pid):
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _members(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _judged(run: Path, overrides: tuple[str, ...], text: str, code: int) -> Trial:
    """Judge a trial that ended by itself, or that was stopped after its steps."""
    try:
        record = read_run(run)
    except PitstopError:
        return Trial(overrides=overrides, end=_trouble(code, text), reason=_last_line(text))
    ending = record.first.ending
    if ending is None or ending.status not in ("finished", "interrupted"):
        said_last = _last_line(text) if ending is None else ending.reason
        return Trial(overrides=overrides, end=_trouble(code, text + said_last), reason=said_last)
    facts = facts_of(record.first)
    if facts.steps < _FEWEST_STEPS or not facts.samples:
        reason = f"{facts.steps} steps after warm-up are too few to measure"
        return Trial(overrides=overrides, end="refused", reason=reason)
    return _measured(overrides, record, facts)


def _trouble(code: int, text: str) -> TrialEnd:
    """Tell from exit code and output what went wrong."""
    lowered = text.lower()
    if "was not finite" in lowered:
        return "not finite"
    if code == -signal.SIGKILL or "outofmemory" in lowered or "out of memory" in lowered:
        return "out of memory"
    # 2 is misuse: the settings do not go together, or not with this machine.
    return "refused" if code == 2 else "crashed"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def _measured(overrides: tuple[str, ...], record: RunRecord, facts: Facts) -> Trial:
    samples = facts.samples or 1.0
    step_us = float(facts.wall_us.mean())
    wait_us = facts.mean_us(facts.parts_us["data"]) if "data" in facts.parts_us else 0.0
    peaks = [
        device.peak_reserved_bytes
        for reading in facts.readings.all(MemoryReading)
        for device in reading.devices
    ]
    findings = [found for found in examine(record).findings if found.bound is not None]
    return Trial(
        overrides=overrides,
        end="measured",
        wall_s=facts.total_us / facts.steps / samples / 1e6,
        compute_s=(step_us - wait_us) / samples / 1e6,
        samples=samples,
        promises={found.code: found.bound.share for found in findings if found.bound},
        peak_device_bytes=max(peaks, default=None),
        start_s=facts.first_us / 1e6,
    )
