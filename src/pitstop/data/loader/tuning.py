"""Workers and batches ahead, found by trying: the fewest that keep the training loop fed.

A trial is a window of the run itself. The loader starts with one worker; after a few steps the
tuner knows what a step takes by itself, what a batch takes to make and how long the loop waited,
and says with how many workers to go on. Nothing is read for the sake of measuring, and the batches
and their order do not depend on it.

    starved, workers cannot keep up    more workers: what a batch takes over what a step takes
    starved, though they could         more batches ahead: some take much longer than others
    fed, with a margin                 done
    no more to be had                  done: of all tried, the cheapest within 2 % of the fastest

Afterwards it looks again now and then: where the loop starves, because other jobs came or samples
grew, it begins anew from the present setting, a few times at most.

The loop is starved for as long as the batch it asks for is not finished. Handing over a finished
one takes its time as well, which no number of workers changes.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pitstop.measure.script.loader import BatchFlow
from pitstop.records.loader import TuningReading, TuningTry

FED_SHARE: Final = 0.02
"""Share of the time below which waiting for data costs less than runs differ by."""
MARGIN: Final = 1.1
"""Workers must make batches faster than the loop takes them by this, or the first slow sample
empties what was made ahead."""
MOST_PREFETCH: Final = 8
"""Batches ahead of each worker: more would cost memory and only move the first wait."""
LIMIT_S: Final = 60.0
"""Trials are steps of the run: a setting that is nearly as good now beats a better one later."""

# A settled loop is checked after this many steps, then after twice as many, and so on. So much
# starving makes it begin anew, so often at most.
_FIRST_PAUSE: Final = 200
_UNSETTLING_SHARE: Final = 0.05
_MOST_ROUNDS: Final = 5

# A new setting is more than enough by this factor, so that it need not be changed again.
_AIM: Final = 1.2
_EQUALLY_FAST: Final = 1.02

# Steps after which a trial may end, and the share of starving from which on it does: what is plain
# to see after a few steps is not worth more of them.
_EARLY_CHECKS: Final = {6: 0.25, 12: 0.10}
_USUAL_CHECK: Final = 24
_LAST_CHECK: Final = 48

# The first steps of a run compile, choose kernels and fill allocators.
_RUN_WARM_UP: Final = 5
_TRIAL_WARM_UP: Final = 2

# Below this share of processor time a worker mostly waits for storage: more of them than there
# are cores can help.
_IDLE_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningLimits:
    """How far tuning may go, for one rank."""

    cores: int
    """This rank's share of the host's cores."""
    budget_bytes: int | None = None
    """What prepared batches may hold; None where nothing is known."""
    limit_s: float = LIMIT_S
    """How long trials may go on together; a trial under way is ended at its next look."""


@dataclass(slots=True, kw_only=True)
class LoaderTuner:
    """Judges the present setting after each step; all ranks judge alike, by the worst of them."""

    workers: int
    prefetch: int
    limits: TuningLimits
    most: Callable[[int], int] = int
    """Largest of a number over all ranks; every rank asks at the same steps."""
    now_s: Callable[[], float] = time.perf_counter
    reading: TuningReading | None = field(init=False, default=None)
    """What it came to in this round, until somebody takes it."""
    _is_settled: bool = field(init=False, default=False)
    _rounds: int = field(init=False, default=1)
    _waits_for_storage: bool | None = field(init=False, default=None)
    _tries: list[TuningTry] = field(init=False, default_factory=list)
    _flows: list[BatchFlow] = field(init=False, default_factory=list)
    _steps: int = field(init=False, default=0)
    _begun_s: float | None = field(init=False, default=None)

    def add(self, flow: BatchFlow) -> None:
        """Take in one batch."""
        if not self._is_settled or self._pause - self._steps <= _LAST_CHECK:
            self._flows.append(flow)

    def take_reading(self) -> TuningReading | None:
        """Give what this round came to, once."""
        reading, self.reading = self.reading, None
        return reading

    def after_step(self) -> bool:
        """Look at the trial after a step; tell whether `workers` or `prefetch` have changed."""
        self._steps += 1
        if self._is_settled:
            self._check_again()
            return False
        if self._begun_s is None:
            self._begun_s = self.now_s()
        if self._steps == self._warm_up():
            self._flows.clear()
        settled = self._steps - self._warm_up()
        if settled not in (*_EARLY_CHECKS, _USUAL_CHECK, _LAST_CHECK):
            return False
        trial = self._judge_together()
        if self._waits_for_storage is None:
            self._waits_for_storage = trial.cpu_us < _IDLE_SHARE * trial.busy_us
        spent_s = self.most(int((self.now_s() - self._begun_s) * 1e3)) / 1e3
        is_late = spent_s >= self.limits.limit_s
        if not (is_late or self._is_over(trial, settled)):
            return False
        self._tries.append(trial)
        return self._go_on(trial, spent_s, is_late=is_late)

    def stop(self) -> None:
        """End with what is known; a run may be over before its loader is tuned."""
        if not self._is_settled and self._tries and self._begun_s is not None:
            self.reading = self._reading(
                workers=self.workers,
                prefetch=self.prefetch,
                reason="the run ended before another setting was judged",
                spent_s=self.now_s() - self._begun_s,
            )

    @property
    def _pause(self) -> int:
        return _FIRST_PAUSE << (self._rounds - 1)

    def _check_again(self) -> None:
        if self._rounds >= _MOST_ROUNDS or self._steps < self._pause:
            return
        present = self._judge_together()
        self._steps = 0
        self._flows.clear()
        # One that had its batches in time is checked less often; one that starves is tuned anew.
        self._rounds += 1
        if present.short_share >= _UNSETTLING_SHARE:
            self._is_settled, self._begun_s = False, None
            self._tries.clear()

    def _warm_up(self) -> int:
        # Each worker's first batch comes late, and all of them at once.
        first = _TRIAL_WARM_UP if self._tries else _RUN_WARM_UP
        return first + self.workers

    def _is_over(self, trial: TuningTry, settled: int) -> bool:
        if settled in _EARLY_CHECKS:
            # Where nothing else is left to try, this one deserves all its steps.
            is_plain = trial.short_share >= _EARLY_CHECKS[settled]
            return is_plain and self._following(trial) is not None
        # A wait that workers with time to spare left may have been chance.
        return settled == _LAST_CHECK or _is_fed(trial) or not _is_ample(trial)

    def _judge_together(self) -> TuningTry:
        own = [flow.own_ns for flow in self._flows if flow.own_ns is not None]
        count = max(1, len(self._flows))

        def mean_us(total_ns: int) -> int:
            return self.most(total_ns // count // 1000)

        return TuningTry(
            workers=self.workers,
            prefetch=self.prefetch,
            batches=len(self._flows),
            # The quickest rank: the others' time holds waiting for each other.
            own_us=-self.most(-int(statistics.median(own) / 1e3) if own else 0),
            wait_us=mean_us(sum(flow.wait_ns for flow in self._flows)),
            short_us=mean_us(sum(flow.short_ns for flow in self._flows)),
            busy_us=mean_us(sum(flow.times.busy_ns for flow in self._flows)),
            cpu_us=mean_us(sum(flow.times.cpu_ns for flow in self._flows)),
            late_share=self.most(1000 * sum(map(_came_late, self._flows)) // count) / 1000,
            batch_bytes=self.most(max((f.times.batch_bytes for f in self._flows), default=0)),
        )

    def _go_on(self, trial: TuningTry, spent_s: float, *, is_late: bool) -> bool:
        following = None if is_late else self._following(trial)
        if following is not None:
            self._begin(*following)
            return True
        best = trial if _is_fed(trial) else _cheapest_of_fastest(self._tries)
        changed = (best.workers, best.prefetch) != (self.workers, self.prefetch)
        self.workers, self.prefetch = best.workers, best.prefetch
        self.reading = self._reading(
            workers=best.workers,
            prefetch=best.prefetch,
            reason=_reason(best, is_late=is_late),
            spent_s=spent_s,
        )
        self._is_settled = True
        self._steps = 0
        self._flows.clear()
        return changed

    def _reading(
        self, *, workers: int, prefetch: int, reason: str, spent_s: float
    ) -> TuningReading:
        return TuningReading(
            tries=tuple(self._tries),
            workers=workers,
            prefetch=prefetch,
            reason=reason,
            spent_s=spent_s,
        )

    def _following(self, trial: TuningTry) -> tuple[int, int] | None:
        """Say what to try next; None where this will do, or there is nothing more to try."""
        if _is_fed(trial) and _is_ample(trial):
            return None
        tried = {(one.workers, one.prefetch) for one in (*self._tries, trial)}
        more = (min(self._most_workers(), _workers_for(trial)), trial.prefetch)
        deeper = (trial.workers, min(MOST_PREFETCH, trial.prefetch * 2))
        wider = (min(self._most_workers(), trial.workers + 1), trial.prefetch)
        choices = (deeper, wider) if _is_ample(trial) else (more,)
        fitting = (choice for choice in choices if self._fits(choice, trial.batch_bytes))
        return next((choice for choice in fitting if choice not in tried), None)

    def _begin(self, workers: int, prefetch: int) -> None:
        self.workers, self.prefetch = workers, prefetch
        self._steps = 0
        self._flows.clear()

    def _most_workers(self) -> int:
        """Give the share of cores, or twice that where the first, lone worker left one idle."""
        return self.limits.cores * (2 if self._waits_for_storage else 1)

    def _fits(self, setting: tuple[int, int], batch_bytes: int) -> bool:
        budget = self.limits.budget_bytes
        return budget is None or setting[0] * setting[1] * batch_bytes <= budget


def _is_fed(trial: TuningTry) -> bool:
    return trial.short_share < FED_SHARE


def _is_ample(trial: TuningTry) -> bool:
    return _making_us(trial) * MARGIN <= trial.workers * trial.own_us


def _workers_for(trial: TuningTry) -> int:
    wanted = math.ceil(_AIM * _making_us(trial) / max(1, trial.own_us))
    return max(trial.workers + 1, wanted)


def _making_us(trial: TuningTry) -> float:
    """What a batch costs a worker, handing it over included.

    Where workers never rest, that is what passes between two batches, times the workers. They
    rest where most batches are there in time and only some come late. Of batches that workers
    make side by side, all but the first may be in time.
    """
    is_tireless = trial.short_share >= 0.10 and trial.late_share * trial.workers >= 0.5
    if not is_tireless:
        return trial.busy_us
    return max(trial.busy_us, trial.workers * (trial.own_us + trial.wait_us))


def _came_late(flow: BatchFlow) -> bool:
    return flow.times.finished_ns > flow.asked_ns


def _cheapest_of_fastest(tries: list[TuningTry]) -> TuningTry:
    fastest = min(one.own_us + one.wait_us for one in tries)
    near = [one for one in tries if one.own_us + one.wait_us <= fastest * _EQUALLY_FAST]
    return min(near, key=lambda one: (one.workers, one.prefetch))


def _reason(best: TuningTry, *, is_late: bool) -> str:
    if best.wait_share < FED_SHARE:
        return "the loop does not wait for data"
    if _is_fed(best):
        return "batches are ready in time; the loop waits only for their transfer"
    if is_late:
        return "the fastest setting tried before time was up; the loop still waits"
    return "the fastest setting that this host allows; the loop still waits"
