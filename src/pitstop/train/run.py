"""A whole training run, from a configuration to its ending, in the order in which it happens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple

from pitstop.config.sections import RunConfig
from pitstop.data.loader.batches import Loader, build_loader
from pitstop.data.loader.fetch import Samples
from pitstop.data.sampling.samplers import Batches, Deal, train_order
from pitstop.errors import CheckpointError, PitstopError
from pitstop.measure.host.garbage import long_lived_frozen
from pitstop.records.run import HostClock
from pitstop.train.evaluation.quality import eval_loader, evaluate, require_metric
from pitstop.train.host_cache import HostCache, open_cache, require_cacheable
from pitstop.train.hosts import (
    compare_clocks,
    decided_by_first,
    describe_hosts,
    done_by_all,
    require_same,
    require_shared_folder,
)
from pitstop.train.loop import Cadence, Loop, Outcome
from pitstop.train.lost_ranks import naming_lost_ranks
from pitstop.train.model.compiling import CompileMonitor, require_compiled
from pitstop.train.model.part_spans import named_parts, part_spans
from pitstop.train.monitor.communication import sample_communication
from pitstop.train.monitor.loader_supervisor import LoaderSupervisor, tuner_for
from pitstop.train.monitor.memory_monitor import MemoryMonitor
from pitstop.train.monitor.tensorboard import TensorBoard
from pitstop.train.observers import Journal, Observer, RunStart, Status
from pitstop.train.optim.build import optimizer_facts
from pitstop.train.optim.nonfinite import NonFinitePolicy
from pitstop.train.optim.schedule import Schedule
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.run_lock import LostFolderError, RunFolder, run_lock
from pitstop.train.setup import TrainerSetup, build_trainer, choose_device
from pitstop.train.starting import StartingPoint, find_starting_point, seen_from_here
from pitstop.train.state.checkpoint import BestOf, Checkpoint, CheckpointWriter, join_writers
from pitstop.train.state.random_state import capture_random_state
from pitstop.train.state.training_state import bare_model, restore_trainer, trainer_state
from pitstop.train.step import Trainer
from pitstop.train.task import BatchT, Task
from pitstop.train.throughput import StepThroughput
from pitstop.train.work import describe_engine, describe_held, settings_of_all_hosts
from pitstop.train.world_size import OwnState, describe_change, own_state
from pitstop_probe import Clock, RecordWriter, cuda_timer

# Steps within which everything that will be compiled has been: forward, backward, update.
_COMPILING_STEPS = 3

# What putting a state of another shape into place raises.
_UNFIT = (LookupError, RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError)


class _Prepared(NamedTuple, Generic[BatchT]):
    """A run that is about to begin."""

    loop: Loop[BatchT]
    setup: TrainerSetup[BatchT]
    writer: RecordWriter
    journal: Journal


@dataclass(slots=True, kw_only=True)
class TrainingRun(Generic[BatchT]):
    """One run of a task under a configuration."""

    config: RunConfig
    config_yaml: str
    """The configuration as text; every checkpoint carries it."""
    task: Task[BatchT]
    observers: Sequence[Observer] = ()
    """Observers besides the record; on the first rank only."""
    resume: Path | str | None = None
    """See `pitstop.train.starting.find_starting_point`."""
    launcher: int | None = None
    """Process that started this one, as it was when this one began; see `join_ranks`."""
    folder: Path = field(init=False)
    """Where its record goes."""
    saves: Path = field(init=False)
    """Where its checkpoints go, in a folder of their own; seen by all hosts."""

    def __post_init__(self) -> None:
        """Each run has a folder of its own."""
        name = self.config.run.name
        self.folder = self.config.run.work_dir / name
        shared = self.config.checkpoint.dir
        self.saves = self.folder if shared is None else shared / name

    def run(self) -> Outcome:
        """Train to the end, a signal or an error; the record says which it was.

        Raises:
            PitstopError: Where the run cannot begin or cannot go on.
        """
        try:
            with ExitStack() as stack:
                timeout_s = self.config.run.rank_timeout_s
                ranks = join_ranks(launcher=self.launcher, timeout_s=timeout_s)
                stack.callback(leave_ranks)
                with naming_lost_ranks(ranks, None):
                    start = self._starting_point(ranks, stack)
                    prepared = self._prepared(start, ranks, stack)
                return prepared if isinstance(prepared, Outcome) else self._run_loop(prepared)
        except OSError as error:
            raise PitstopError(
                f"the run in {self.folder} stopped: {error}; free space on the disk "
                "or make it writable, then continue with --resume auto"
            ) from error

    def _starting_point(self, ranks: Ranks, stack: ExitStack) -> StartingPoint:
        """Have the first rank hold the run's folder and say where it begins; see that all can."""

        def begin() -> StartingPoint:
            for folder in dict.fromkeys((self.folder, self.saves)):
                stack.enter_context(run_lock(folder))
            return find_starting_point(self.saves, self.resume)

        start = decided_by_first(ranks, begin)
        require_same(ranks, "settings", settings_of_all_hosts(self.config))
        require_shared_folder(ranks, self.saves)
        # All bytes of a checkpoint are compared once a host, not once a rank.
        reads = ranks.local_rank == 0 and not ranks.is_first
        return done_by_all(
            ranks, lambda: seen_from_here(start, self.saves, self.resume, compares=reads)
        )

    def _prepared(
        self, start: StartingPoint, ranks: Ranks, stack: ExitStack
    ) -> _Prepared[BatchT] | Outcome:
        """Build what the loop needs, or say that nothing is left to do.

        The stack lets go of it, the last thing first.
        """
        setup = build_trainer(self.config, self.task, ranks, choose_device(ranks))
        loader, cache = self._train_loader(ranks, stack)
        require_same(ranks, "data", {**loader.state_dict(), "rank": None})
        rounds = ranks.most(len(loader))
        own = _go_to_place(start.checkpoint, loader, ranks)
        total_steps = self._total_steps(start.checkpoint, loader, ranks, rounds=rounds)
        # Before the checkpoint is loaded, which brings the rate of its own step along.
        schedule = Schedule(setup.trainer.optimizer, self.config.schedule, total_steps=total_steps)
        first_step = _restore(start.checkpoint, own, setup.trainer, seed=self.config.run.seed)
        if start.checkpoint is not None and first_step >= total_steps:
            return self._already_finished(start.checkpoint, ranks)
        clock = compare_clocks(ranks)
        writer = self._record_writer(ranks, clock, total_steps)
        stack.callback(_close_quietly, writer)
        journal = Journal(writer)
        saver = stack.enter_context(self._saver(ranks))
        loop = Loop(
            trainer=setup.trainer,
            loader=loader,
            supervisor=(
                supervisor := LoaderSupervisor(
                    loader=loader,
                    tuner=tuner_for(self.config.loader, loader, ranks),
                    cache=cache,
                )
            ),
            schedule=schedule,
            cadence=Cadence.of(self.config.log, self.config.eval, self.config.checkpoint),
            throughput=(throughput := StepThroughput(writer)),
            clock=Clock(throughput, cuda_timer()),
            observers=(journal, *(self._audience() if ranks.is_first else ())),
            policy=NonFinitePolicy(
                policy=self.config.train.on_nan, scaled=self.config.train.precision == "fp16"
            ),
            memory=MemoryMonitor(
                train=self.config.train, loader=self.config.loader, cache=self.config.cache
            ),
            first_step=first_step,
            total_steps=total_steps,
            evaluate=self._evaluation(setup.trainer, stack),
            save=self._saving(setup.trainer, loader, saver, writer),
            settle=saver.wait,
        )
        if supervisor.wants_order:
            supervisor.announce_order()
        left = ranks.most(len(loader) - loader.position)
        change = describe_change(start.checkpoint, self.config, ranks, batches_left=left)
        for text in change:
            journal.warned(first_step, "ranks", text)
        news = (*setup.messages, *start.messages, *describe_hosts(ranks, clock), *change)
        self._announce(loop, setup, news, journal)
        return _Prepared(loop, setup, writer, journal)

    def _record_writer(
        self, ranks: Ranks, clock: HostClock | None, total_steps: int
    ) -> RecordWriter:
        return RecordWriter(
            str(self.folder / f"rank-{ranks.rank}.jsonl"),
            {
                "name": self.config.run.name,
                "total_steps": total_steps,
                "targets": self.config.targets.model_dump(exclude_none=True),
                **({} if clock is None else {"clock": asdict(clock)}),
            },
        )

    def _already_finished(self, checkpoint: Checkpoint, ranks: Ranks) -> Outcome:
        """Say that there is nothing left to do; the record and the checkpoints stay as they are."""
        step = checkpoint.manifest.step
        reason = f"all its steps are done; its last checkpoint is {checkpoint.path}"
        for observer in self.observers if ranks.is_first else ():
            observer.ended(step, "finished", reason)
        return Outcome(status="finished", step=step, reason=reason)

    def _run_loop(self, prepared: _Prepared[BatchT]) -> Outcome:
        """Run the loop with its parts timed and its compiler monitored; write how it ended."""
        loop, setup, writer, journal = prepared
        trainer = setup.trainer
        parts = named_parts(self.task, bare_model(trainer.model))
        # Hooks inside a compiled model would cut it up or be left out.
        named = {} if self.config.train.compile.scope == "whole" else parts
        status: Status = "failed"
        reason = ""
        try:
            with (
                part_spans(named, loop.clock),
                self._compiler_monitored(loop, journal),
                naming_lost_ranks(trainer.ranks, self.folder),
                long_lived_frozen(),
            ):
                outcome = loop.run()
            status, reason = outcome.status, outcome.reason
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            reason = f"{type(error).__name__}: {error}"
            raise
        else:
            return outcome
        finally:
            # Where the disk is full the record cannot say so; the first error is the one to report.
            with suppress(OSError):
                loop.clock.close()
                loop.finish_loader()
                journal.applied("optimizer.kind", asdict(optimizer_facts(trainer.optimizer)))
                writer.close(status, reason)
            for observer in loop.observers:
                observer.ended(loop.step, status, reason)

    def _audience(self) -> tuple[Observer, ...]:
        """Every observer besides the record."""
        if not self.config.log.tensorboard:
            return tuple(self.observers)
        return (*self.observers, TensorBoard(self.folder))

    def _train_loader(
        self, ranks: Ranks, stack: ExitStack
    ) -> tuple[Loader[BatchT], HostCache | None]:
        samples = self.task.train_samples()
        deal = Deal.of(self.config, rank=ranks.rank, world_size=ranks.world_size)
        batches = train_order(self.task, samples, deal)
        cache = self._host_cache(samples, batches, ranks, stack)
        loader = build_loader(
            samples if cache is None else cache.cached_samples(),
            batches,
            self.task.collate,
            self.config.loader,
            world_size_on_host=ranks.local_world_size,
        )
        return stack.enter_context(loader), cache

    def _host_cache(
        self, samples: Samples, batches: Batches, ranks: Ranks, stack: ExitStack
    ) -> HostCache | None:
        section = self.config.cache
        if not section.budget:
            return None
        cacheable = require_cacheable(samples, self.task.name)
        return HostCache(
            shared=stack.enter_context(open_cache(section, ranks)),
            section=section,
            samples=cacheable,
            batches=batches,
            ranks=ranks,
        )

    def _total_steps(
        self, checkpoint: Checkpoint | None, loader: Loader[BatchT], ranks: Ranks, *, rounds: int
    ) -> int:
        """Count the steps of the whole run; of epochs, what is left of them at the present place.

        Args:
            checkpoint: Where the run goes on from, if anywhere.
            loader: At the place from which it goes on.
            ranks: A rank may have a batch less than others; all must end at the same step.
            rounds: Batches of a whole epoch.
        """
        train = self.config.train
        if train.steps is not None:
            return train.steps
        assert train.epochs is not None, "the configuration gives one of the two"
        done = 0 if checkpoint is None else checkpoint.manifest.step
        later_epochs = max(0, train.epochs - 1 - loader.epoch)
        left = ranks.most(len(loader) - loader.position + later_epochs * rounds)
        return max(1, done + left // train.accumulate)

    def _evaluation(
        self, trainer: Trainer[BatchT], stack: ExitStack
    ) -> Callable[[], dict[str, float]]:
        """Give a function that evaluates the averaged weights where there are any."""
        ranks = trainer.ranks
        loader = stack.enter_context(
            eval_loader(self.task, self.config.eval, self.config.loader, ranks)
        )

        def run_evaluation() -> dict[str, float]:
            loader.rewind()
            averaged = nullcontext() if trainer.average is None else trainer.average.in_place()
            with averaged, trainer.whole_model():
                return evaluate(
                    self.task,
                    bare_model(trainer.model),
                    (batch for batch, _ in loader),
                    precision=trainer.precision,
                    device=trainer.device,
                    ranks=ranks,
                )

        return run_evaluation

    def _saver(self, ranks: Ranks) -> CheckpointWriter:
        return CheckpointWriter(
            self.saves / "checkpoints",
            keep_last=self.config.checkpoint.keep_last,
            best_of=self._best_of(),
            ranks=join_writers(rank=ranks.rank, world_size=ranks.world_size, timeout=ranks.timeout),
        )

    def _saving(
        self,
        trainer: Trainer[BatchT],
        loader: Loader[BatchT],
        saver: CheckpointWriter,
        writer: RecordWriter,
    ) -> Callable[[int, Mapping[str, object], Mapping[str, float]], Path]:
        """Give a function that saves a checkpoint while training goes on.

        Where the run's folder was deleted, the state is saved all the same, and the run ends.
        """
        folder = self.saves / "checkpoints"
        # One rank judges: what it decides, the others learn by its end.
        own_folder = RunFolder.of(self.saves) if trainer.ranks.is_first else None

        def save(step: int, place: Mapping[str, object], metrics: Mapping[str, float]) -> Path:
            was_deleted = own_folder is not None and own_folder.is_deleted()
            # First: a run that goes on from here never comes by these steps again.
            writer.flush()
            try:
                saver.wait()
            except CheckpointError:
                # A save fails on all ranks or on none, so that all of them ask here.
                if not trainer.ranks.most(was_deleted):
                    raise
            if was_deleted:
                self.saves.mkdir(parents=True)
            saver.save(
                {**trainer_state(trainer), "step": step, "config": self.config_yaml},
                {"loader": dict(place), "random": capture_random_state()},
                step=step,
                epoch=loader.epoch,
                metrics=metrics,
            )
            if was_deleted:
                saver.wait()
                raise LostFolderError(
                    f"{self.saves} was deleted while the run went on: its record and earlier "
                    f"checkpoints are gone; the state of step {step} was saved there anew, "
                    "continue with --resume auto"
                )
            return folder

        return save

    def _best_of(self) -> BestOf | None:
        metric = self.config.checkpoint.best_of
        if metric is None:
            return None
        return BestOf(metric=metric, higher_is_better=require_metric(self.task, metric))

    def _announce(
        self,
        loop: Loop[BatchT],
        setup: TrainerSetup[BatchT],
        messages: tuple[str, ...],
        journal: Journal,
    ) -> None:
        sample_communication(setup.trainer.model)
        for setting, proof in setup.applied.items():
            journal.applied(setting, proof)
        journal.applied("loader.workers", asdict(loop.loader.applied))
        journal.engine(describe_engine(self.config, setup.trainer))
        journal.held(describe_held(setup.trainer))
        train = self.config.train
        news = RunStart(
            name=self.config.run.name,
            folder=self.folder,
            first_step=loop.first_step,
            total_steps=loop.total_steps,
            effective_batch=train.batch_size * train.accumulate * setup.trainer.ranks.world_size,
            world_size=setup.trainer.ranks.world_size,
            messages=messages,
        )
        for observer in loop.observers:
            observer.started(news)

    @contextmanager
    def _compiler_monitored(self, loop: Loop[BatchT], journal: Journal) -> Iterator[None]:
        """Prove that what should be compiled was; a switch that compiled nothing is an error."""
        section = self.config.train.compile
        if section.scope == "off":
            yield
            return
        with CompileMonitor() as monitor:
            loop.after_steps(_COMPILING_STEPS, lambda: require_compiled(section, monitor.proof()))
            yield
            journal.applied("train.compile.scope", asdict(monitor.proof()))


def _close_quietly(writer: RecordWriter) -> None:
    """Close the record of a run that could not begin; one that began is closed already."""
    with suppress(OSError):
        writer.close("failed", "the run could not begin")


def _go_to_place(
    checkpoint: Checkpoint | None, loader: Loader[BatchT], ranks: Ranks
) -> OwnState | None:
    """Go to the place in the data that a checkpoint was saved at; give what is this rank's own."""
    if checkpoint is None:
        return None
    with _fitting(checkpoint):
        own = own_state(checkpoint, ranks)
        loader.load_state_dict(own.place)
    return own


def _restore(
    checkpoint: Checkpoint | None, own: OwnState | None, trainer: Trainer[BatchT], *, seed: int
) -> int:
    """Put a checkpoint's state into a new trainer; give the step to go on with."""
    if checkpoint is None or own is None:
        return 0
    with _fitting(checkpoint):
        step = restore_trainer(trainer, checkpoint)
        own.restore_random(seed=seed, rank=trainer.ranks.rank, step=step)
    return step


@contextmanager
def _fitting(checkpoint: Checkpoint) -> Iterator[None]:
    try:
        yield
    except _UNFIT as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{checkpoint.path} does not fit this configuration; a run goes on with the settings "
            f"it was saved with ({reason})"
        ) from error
