"""The loop around the step: the order of an iteration, and the observer methods it calls.

    started
    ┌─ border                    the clock ends the last step and begins this one
    │  rate for this step
    │  train_step                data copy forward loss backward clip optimizer   (step.py)
    │  check                     flags of two steps ago: was an update left out, must we stop?
    │                                                        -> warned
    │                            while the loader is tuned   -> tuned
    ├─ outside the step, each at its own cadence and timed by itself:
    │  log                       loss, rate, norm            -> values (read two steps later)
    │  cache order               at the begin of an epoch
    │  loader                    how batches were made, as log -> loaded, skipped, cached
    │  communication             with several ranks, as log  -> communicated
    │  progress                                              -> progress
    │  memory                    and load of the host        -> memory, host_load
    │  evaluation                                            -> evaluated
    │  checkpoint                                            -> saved
    └─ until the last step, a signal, or an error
    ended

Whatever must be decided together (leaving the run, rolling back) is decided from values that were
added up over all ranks and are read by all of them at the same step.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from pitstop.config.sections import CheckpointSection, EvalSection, LogSection
from pitstop.data.loader.batches import Loader
from pitstop.data.loader.worker_ends import WorkerLostError
from pitstop.measure.host.load import LoadMeter
from pitstop.measure.host.memory import read_memory
from pitstop.train.monitor.communication import read_communication
from pitstop.train.monitor.deferred import DeferredScalars
from pitstop.train.monitor.loader_supervisor import LoaderSupervisor
from pitstop.train.monitor.memory_monitor import MemoryMonitor
from pitstop.train.observers import Observer, Status
from pitstop.train.optim.nonfinite import NonFinitePolicy
from pitstop.train.optim.schedule import Schedule
from pitstop.train.state.training_state import LastGood
from pitstop.train.step import StepResult, Trainer
from pitstop.train.stop_signals import StopSignals
from pitstop.train.task import BatchT
from pitstop.train.throughput import StepThroughput
from pitstop_probe import Clock

# Since the last good checkpoint: without a limit a run that always fails would go back for ever.
MOST_ROLLBACKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Each how many steps something happens; None is never."""

    log: int
    norm: int | None
    progress: int
    memory: int | None
    evaluation: int | None
    checkpoint: int | None

    @classmethod
    def of(cls, log: LogSection, evaluation: EvalSection, saving: CheckpointSection) -> "Cadence":
        """Gather the cadences from their sections."""
        return cls(
            log=log.every_steps,
            norm=log.norm_every_steps,
            progress=log.progress_every_steps,
            memory=log.memory_every_steps,
            evaluation=evaluation.every_steps,
            checkpoint=saving.every_steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a loop ended."""

    status: Status
    step: int
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class Loop(Generic[BatchT]):
    """Runs steps until there is a reason to stop."""

    trainer: Trainer[BatchT]
    loader: Loader[BatchT]
    supervisor: LoaderSupervisor
    schedule: Schedule
    cadence: Cadence
    clock: Clock
    throughput: StepThroughput
    observers: tuple[Observer, ...]
    policy: NonFinitePolicy
    memory: MemoryMonitor
    first_step: int
    total_steps: int
    evaluate: Callable[[], Mapping[str, float]]
    save: Callable[[int, Mapping[str, object], Mapping[str, float]], Path]
    """Takes the step, the place in the data, and metrics where these weights were evaluated."""
    settle: Callable[[], None]
    """Waits until what was saved is whole on the disk."""
    step: int = field(init=False)
    """Steps done, those before a checkpoint this run goes on from included."""
    _consumed: int = field(init=False, default=0)
    _evaluated: tuple[int, dict[str, float]] = field(init=False, default=(-1, {}))
    _deferred: DeferredScalars = field(init=False)
    _last_good: LastGood | None = field(init=False, default=None)
    _rollbacks: int = field(init=False, default=0)
    _stop: StopSignals = field(init=False, default_factory=StopSignals)
    _stop_agreed: bool = field(init=False, default=False)
    _load: LoadMeter = field(init=False, default_factory=LoadMeter)
    _later: tuple[int, Callable[[], None]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Prepare what the loop keeps from step to step."""
        self.step = self.first_step
        self._deferred = DeferredScalars(self.trainer.device)
        self._consumed = self.loader.position
        if self.policy.policy == "rollback":
            self._last_good = LastGood(self.trainer, self.first_step)

    def run(self) -> Outcome:
        """Run to the last step, or to a signal; both leave a checkpoint behind."""
        batches = self._endless()
        with self._stop.noted():
            while self.step < self.total_steps and not self._stop_agreed:
                if self._iterate(self.step, batches):
                    self.step += 1
            self._hand_over(self._deferred.rest())
            self.clock.close()
            interrupted = self._stop_agreed and self.step < self.total_steps
            if not interrupted:
                self._evaluate(self.step)
            self._save(self.step, is_last=True)
        if interrupted:
            reason = self._stop.reason or "another rank received a signal to stop"
            return Outcome(status="interrupted", step=self.step, reason=reason)
        return Outcome(status="finished", step=self.step)

    def after_steps(self, steps: int, act: Callable[[], None]) -> None:
        """Have something done once, when this many steps of this run are over."""
        self._later = (self.first_step + steps, act)

    def _iterate(self, step: int, batches: Iterator[BatchT]) -> bool:
        """Make one step and what is due after it; False where there was no batch to make it of."""
        self.clock.begin_step(step)
        self.schedule.apply(step)
        try:
            result = self.trainer.train_step(
                batches,
                step=step,
                clock=self.clock,
                wants_norm=_due(self.cadence.norm, step + 1),
                leaving=self._stop.reason is not None,
            )
        except WorkerLostError:
            if not self._is_whole_without_batch:
                raise
            self._stop_agreed = True
            return False
        with self.clock.span("check"):
            self._push(step, result)
            ready = self._deferred.due(step)
            self.supervisor.after_step(step, self._notify)
        self._hand_over(ready)
        self._supervise_loader(step)
        self._after_step(step)
        return True

    def _after_step(self, step: int) -> None:
        done = step + 1
        if self.trainer.ranks.world_size > 1 and _due(self.cadence.log, done):
            with self.clock.outside_step("communication"):
                self._read_communication(step)
        if self._later is not None and done >= self._later[0]:
            self._later[1]()
            self._later = None
        if _due(self.cadence.progress, done):
            with self.clock.outside_step("progress"):
                self._show_progress(done)
        if _due(self.cadence.memory, done) or step == self.first_step:
            with self.clock.outside_step("memory"):
                self._read_memory(step)
        # Several ranks learn of it together, a few steps later.
        if self.trainer.ranks.world_size == 1 and self._stop.reason is not None:
            self._stop_agreed = True
        if done < self.total_steps and not self._stop_agreed:
            self._evaluate_and_save(done)

    def _evaluate_and_save(self, done: int) -> None:
        if _due(self.cadence.evaluation, done):
            self._evaluate(done)
        if _due(self.cadence.checkpoint, done):
            self._save(done)

    @property
    def _is_whole_without_batch(self) -> bool:
        """Whether a run that is to stop can leave where a batch should come and does not.

        Nothing of the step has happened then, unless earlier micro-batches have, or other ranks
        wait for this one in it.
        """
        is_alone = self.trainer.ranks.world_size == 1
        return self._stop.reason is not None and is_alone and self.trainer.accumulate == 1

    def finish_loader(self) -> None:
        """Report what the loader has not reported yet, however the run ended."""
        self.supervisor.finish(self.step, self._notify)

    def _endless(self) -> Iterator[BatchT]:
        """Batches of epoch after epoch; a step may begin in one and end in the next."""
        while True:
            for batch, consumed in self.loader:
                self._consumed = consumed
                yield batch
            self.loader.set_epoch(self.loader.epoch + 1)
            self._consumed = 0

    def _push(self, step: int, result: StepResult) -> None:
        """Send on their way: the flags of every step, and what the log asked for."""
        values = {
            "found_inf": result.found_inf,
            "bad_loss": result.bad_loss,
            "leaving": result.leaving,
        }
        known = {}
        if _due(self.cadence.log, step + 1):
            values |= {"loss": result.loss, **{f"loss/{k}": v for k, v in result.terms.items()}}
            known["lr"] = float(self.trainer.optimizer.param_groups[0]["lr"])
            known["host_syncs"] = float(result.host_syncs)
        if _due(self.cadence.norm, step + 1) and result.grad_norm is not None:
            values["grad_norm"] = result.grad_norm
        self._deferred.push(step, values, known)

    def _hand_over(self, ready: list[tuple[int, dict[str, float]]]) -> None:
        for step, values in ready:
            flags = {name: values.pop(name) for name in ("found_inf", "bad_loss", "leaving")}
            self._handle_nonfinite(
                step, bad_loss=flags["bad_loss"] > 0, found_inf=flags["found_inf"] > 0
            )
            self._stop_agreed = self._stop_agreed or flags["leaving"] > 0
            if values:
                with self.clock.outside_step("log"):
                    self._notify(lambda observer, s=step, v=values: observer.values(s, v))

    def _handle_nonfinite(self, step: int, *, found_inf: bool, bad_loss: bool) -> None:
        action = self.policy.judge(found_inf=found_inf, bad_loss=bad_loss)
        if action == "nothing":
            return
        if action == "stop":
            raise self.policy.error(step, bad_loss=bad_loss)
        text = f"step {step}: update skipped, the loss or a gradient is not finite"
        if action == "rollback":
            text = self._roll_back(step, bad_loss=bad_loss)
        self._notify(lambda observer: observer.warned(step, "nonfinite", text))

    def _roll_back(self, step: int, *, bad_loss: bool) -> str:
        assert self._last_good is not None
        self._rollbacks += 1
        if self._rollbacks > MOST_ROLLBACKS:
            raise self.policy.error(step, bad_loss=bad_loss)
        self._last_good.restore(self.trainer)
        return (
            f"step {step}: not finite; weights rolled back to those of step {self._last_good.step}"
        )

    def _supervise_loader(self, step: int) -> None:
        if self.supervisor.wants_order:
            with self.clock.outside_step("cache order"):
                self.supervisor.announce_order()
        if _due(self.cadence.log, step + 1):
            with self.clock.outside_step("loader"):
                self.supervisor.report(step, self._notify)

    def _read_communication(self, step: int) -> None:
        shards = self.trainer.shards
        reading = read_communication(self.trainer.model) if shards is None else shards.timer.read()
        if reading is not None:
            self._notify(lambda observer: observer.communicated(step, reading))

    def _show_progress(self, done: int) -> None:
        self.clock.collect()
        throughput = self.throughput.take()
        self._notify(lambda observer: observer.progress(done, throughput))

    def _read_memory(self, step: int) -> None:
        reading = read_memory()
        warnings = self.memory.judge(step, reading)
        self._notify(lambda observer: observer.memory(step, reading, warnings))
        # Ranks of a host would all say the same.
        if self.trainer.ranks.local_rank == 0:
            load = self._load.read()
            self._notify(lambda observer: observer.host_load(step, load))

    def _evaluate(self, done: int) -> None:
        try:
            with self.clock.outside_step("evaluation"):
                metrics = dict(self.evaluate())
        except Exception:
            # A broken evaluation must not cost the training before it. Several ranks save
            # together, and the others are still evaluating: there only one rank alone can save.
            if self.trainer.ranks.world_size == 1:
                self._save(done, is_last=True)
            raise
        self._evaluated = (done, metrics)
        self._notify(lambda observer: observer.evaluated(done, metrics))

    def _save(self, done: int, *, is_last: bool = False) -> None:
        # What is still on its way belongs to steps before the checkpoint; a resumed run would
        # never hear of it.
        self._hand_over(self._deferred.rest())
        with self.clock.outside_step("checkpoint"):
            place = self.loader.state_dict(consumed=self._consumed)
            step, metrics = self._evaluated
            # Metrics of earlier weights are not this checkpoint's, whatever is kept as the best.
            path = self.save(done, place, metrics if step == done else {})
            if is_last:  # a run that says it finished has its last checkpoint
                self.settle()
        if self._last_good is not None and self.policy.in_a_row == 0:
            self._last_good.keep(self.trainer, done)
            self._rollbacks = 0
        self._notify(lambda observer: observer.saved(done, path))

    def _notify(self, notify: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            notify(observer)


def _due(every: int | None, done: int) -> bool:
    return every is not None and done % every == 0
