"""Trainings that are killed, stopped and paused at random moments, and what they lose by it.

After each fault the newest whole checkpoint must be at least the newest that stood there before,
and equal, in every bit, to the state that a run left alone has at that step.
"""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pitstop.train.state.checkpoint import find_newest_whole
from tests.drill.lives import LIMIT_S, POLL_S, Life, begin
from tests.drill.results import Tally
from tests.drill.states import noting_every_save, of_checkpoint
from tests.drill.workload import CONFIG

STEPS = 900
SAVED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast this machine is just now: limits are ratios to it."""

    start_s: float
    """From the start of a life to its first step."""
    run_s: float
    """A whole run."""

    def limit_s(self, usual_s: float) -> float:
        """Give a limit that a slow machine does not break by being slow."""
        return max(usual_s, 20 * self.start_s)


class Campaign:
    """Runs of one configuration, broken again and again until they finish."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._folder = folder
        self._dice = dice
        self._number = 0
        self._config = folder / "line.yaml"
        self._config.write_text(CONFIG % {"steps": STEPS})
        self.sums, self.pace = self._leave_alone()

    def _arguments(self, work_dir: Path) -> list[str]:
        return ["train", str(self._config), "--resume", "auto", "--work-dir", str(work_dir)]

    def _leave_alone(self) -> tuple[dict[int, str], Pace]:
        """Run once without a fault, with the state of each step noted."""
        sums = self._folder / "sums.json"
        alone = self._folder / "alone"
        life = begin(
            [*self._arguments(alone), "checkpoint.every_steps=1"],
            self._folder / "alone.log",
            before=noting_every_save(sums),
        )
        start_s = None
        while not life.poll():
            if start_s is None and _steps_in(alone) > 0:
                start_s = time.monotonic() - life.begun_s
            time.sleep(POLL_S)
        assert life.code == 0, life.text
        assert start_s is not None
        assert life.ended_s is not None
        shutil.rmtree(alone)
        found = {int(step): each for step, each in json.loads(sums.read_text()).items()}
        assert len(found) == STEPS
        return found, Pace(start_s=start_s, run_s=life.ended_s - life.begun_s)

    def break_one(self, tally: Tally, until_s: float, wanted: dict[str, int]) -> None:
        """Break one run until it finishes, or the time is over."""
        self._number += 1
        work_dir = self._folder / f"run-{self._number}"
        down_s: float | None = None
        while time.monotonic() < until_s:
            fault = self._choose(wanted)
            life = begin(self._arguments(work_dir), self._folder / "life.log")
            before = _steps_in(work_dir)
            if not self._await_step(life, work_dir, before, fault):
                break
            if down_s is not None and _steps_in(work_dir) > before:
                tally.recovered(time.monotonic() - down_s)
            self._apply(fault, life, work_dir, tally)
            down_s = time.monotonic()
            if self._is_finished(work_dir):
                break
        shutil.rmtree(work_dir, ignore_errors=True)

    def _choose(self, wanted: dict[str, int]) -> str:
        names = [name for name, weight in wanted.items() for _ in range(weight)]
        return self._dice.choice(names)

    def _await_step(self, life: Life, work_dir: Path, before: int, fault: str) -> bool:
        """Let a life come to the moment of its fault; False where it ended by itself."""
        in_start = fault == "SIGKILL, trainer" and self._dice.random() < 0.2
        if in_start:
            time.sleep(self._dice.uniform(0, self.pace.start_s))
            return not life.poll()
        until_s = time.monotonic() + self.pace.limit_s(LIMIT_S)
        while _steps_in(work_dir) <= before:
            if life.poll():
                return False
            if time.monotonic() > until_s:
                return True  # what follows counts it as a hang
            time.sleep(POLL_S)
        time.sleep(self._dice.uniform(0, min(1.5, 0.25 * self.pace.run_s)))
        return not life.poll()

    def _apply(self, fault: str, life: Life, work_dir: Path, tally: Tally) -> None:
        workers = life.workers()
        newest = _newest_save(work_dir)
        sent_s = time.monotonic()
        victim = self._dice.choice(workers) if workers else life.pid
        limit_s = self.pace.limit_s(LIMIT_S)
        if fault == "SIGKILL, trainer":
            os.kill(life.pid, signal.SIGKILL)
        elif fault == "SIGKILL, worker":
            _send(victim, signal.SIGKILL)
        elif fault == "SIGKILL, group":
            _send_group(life.pid, signal.SIGKILL)
        elif fault == "SIGTERM, trainer":
            _send(life.pid, signal.SIGTERM)
        elif fault == "SIGTERM, group":
            _send_group(life.pid, signal.SIGTERM)
        else:
            victim = victim if fault == "pause, worker" else life.pid
            _send(victim, signal.SIGSTOP)
            time.sleep(self._dice.uniform(0.05, 0.5))
            _send(victim, signal.SIGCONT)
            _send(life.pid, signal.SIGTERM)
        in_time = life.wait(limit_s)
        took_s = time.monotonic() - sent_s
        orphans = life.orphans(limit_s)
        self._judge(
            fault,
            life,
            work_dir,
            tally,
            newest=newest,
            in_time=in_time,
            took_s=took_s,
            orphans=orphans,
        )

    def _judge(
        self,
        fault: str,
        life: Life,
        work_dir: Path,
        tally: Tally,
        *,
        newest: int,
        in_time: bool,
        took_s: float,
        orphans: int,
    ) -> None:
        text = life.text
        checkpoint, _ = find_newest_whole(work_dir / "run" / "checkpoints")
        found = 0 if checkpoint is None else int(checkpoint.path.name.split("-")[1])
        wrong = checkpoint is not None and (
            of_checkpoint(checkpoint) != self.sums.get(checkpoint.manifest.step)
        )
        had_finished = f"finished at step {STEPS}" in text
        troubles = {
            "lost": found < newest,
            "wrong": wrong,
            "hang": not in_time,
            "orphan": orphans > 0,
            "traceback": "Traceback" in text,
            "code": not (had_finished or _fits(fault, life.code)),
        }
        if fault.startswith(("SIGTERM", "pause")):
            saved = life.code == 1 and "interrupted" in text and found > 0
            troubles["not saved in 10 s"] = not (saved or had_finished) or took_s > max(
                SAVED_WITHIN_S, 10 * self.pace.start_s
            )
            tally.took(fault, took_s)
        tally.count(fault, [name for name, is_so in troubles.items() if is_so], text)

    def _is_finished(self, work_dir: Path) -> bool:
        checkpoint, _ = find_newest_whole(work_dir / "run" / "checkpoints")
        return checkpoint is not None and checkpoint.manifest.step >= STEPS


def _fits(fault: str, code: int | None) -> bool:
    """Whether a life that met a fault may end so; one that had finished before ends with 0."""
    expected = {
        "SIGKILL, trainer": {-signal.SIGKILL, 0},
        "SIGKILL, group": {-signal.SIGKILL, 0},
        "SIGKILL, worker": {2, 0},
    }
    return code in expected.get(fault, {1, 0})


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _send_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _steps_in(work_dir: Path) -> int:
    """Tell how much of a run has happened, by the size of its record."""
    try:
        return (work_dir / "run" / "rank-0.jsonl").read_bytes().count(b"\n[")
    except OSError:
        return 0


def _newest_save(work_dir: Path) -> int:
    """Give the number of the newest save that has its name: from then on it must not be lost."""
    names = (path.name for path in (work_dir / "run" / "checkpoints").glob("save-*"))
    return max((int(name.split("-")[1]) for name in names), default=0)
