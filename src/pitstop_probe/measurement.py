"""A measurement from beginning to end: find the models, warm up, profile, measure, end.

step   0-2            find which modules the script calls
       4-6, 7         three steps by module, one counted (not where something is compiled)
       10-12          on a GPU three profiled steps, then the device's own rates
       .. WARM_UP     not judged
       WARM_UP ..     measured
       then           profiled where that failed before; the script ends, or runs on unmeasured
"""

import contextlib
import json
import linecache
import os
import sys
import threading
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from pitstop_probe.clock import monotonic_us
from pitstop_probe.deep.deep_profile import PURPOSE, DeepProfile
from pitstop_probe.device import cuda_timer
from pitstop_probe.hooks.ablation import leave_out
from pitstop_probe.hooks.compile_calls import CompileCalls
from pitstop_probe.hooks.graphs import Graphs
from pitstop_probe.hooks.imports import when_imported
from pitstop_probe.hooks.loader_hooks import Loaders, WorkerTimer, read_worker_times
from pitstop_probe.hooks.patches import Patch
from pitstop_probe.hooks.start_up import ImportClock, StartUp
from pitstop_probe.hooks.torch_hooks import (
    Compilation,
    Models,
    Optimizers,
    Recomputation,
    Waits,
    hook_functions,
    part_of,
)
from pitstop_probe.hooks.updates import OwnUpdates
from pitstop_probe.inventory import (
    allocator_counts,
    compile_counts,
    describe_setup,
    device_memory,
    frozen_models,
    memory_by_owner,
    shared_caches,
)
from pitstop_probe.losses import Losses
from pitstop_probe.masking import mask_command, mask_lines
from pitstop_probe.stacks.stack import Stack
from pitstop_probe.stacks.stack_sampler import StackSampler
from pitstop_probe.stderr import say
from pitstop_probe.steps.sampling import LATER, SHORT
from pitstop_probe.steps.step_tracker import StepTracker
from pitstop_probe.writer import RecordWriter, describe_process

if TYPE_CHECKING:
    from pitstop_probe.doctor import Doctor

WARM_UP = 20
_SEARCH_STEPS = 3
_LOSS_EVERY = 16
# At first, and later on; stopping at a step costs as much as sampling it.
_LOSS_EVERY_OF_SHORT = (64, 256)
# How often a script may catch its own end before it is ended for good.
_PATIENCE = 3
# What a script that was ended early exits with: to a shell that is no success.
ENDED_EARLY = 3
ENDED = "ended-by-pitstop"
MEASURED = "measured-by-pitstop"


class Settings:
    """How to measure.

    Args:
        folder: Where the record goes.
        steps: Steps to measure after warm-up; None measures as long as the script runs.
        detach: Let the script run on, unmeasured, once enough was measured.
        ablate: What to leave out to measure a bound: ``data``, ``sync`` or ``log``.
        started_us: When the process started; None where nobody saw it.
        imports: What has timed imports since then.
    """

    def __init__(
        self,
        folder: str,
        steps: Optional[int] = None,
        *,
        detach: bool = False,
        ablate: Optional[str] = None,
        started_us: Optional[int] = None,
        imports: Optional[ImportClock] = None,
    ) -> None:
        self.folder = folder
        self.steps = steps
        self.detach = detach
        self.ablate = ablate
        self.started_us = started_us
        self.imports = imports
        self.doctor: Optional["Doctor"] = None
        """Who waits for the record, in another process."""
        self.loss_every: Optional[int] = None
        """Steps from one kept loss to the next; None for as many as cost little."""


class Measurement:
    """Everything that observes one training process."""

    def __init__(self, torch: Any, settings: Settings) -> None:
        self._torch = torch
        self._settings = settings
        self._busy_from = sys.maxsize if settings.steps is None else WARM_UP + settings.steps
        self._writer: Optional[RecordWriter] = None
        self._closed = False
        self._is_reported = False
        self._origin_us = monotonic_us() if settings.started_us is None else settings.started_us
        self._before: Dict[str, Any] = {}
        self._losses = Losses(torch, self._write_loss)
        self.tracker = StepTracker(self)
        self.optimizers = Optimizers(self.tracker, torch, self._meet_optimizer)
        self._stack = Stack()
        self.models = Models(self.tracker, torch, self._stack)
        self.deep = DeepProfile(
            torch,
            self.tracker,
            self.models,
            last_step=settings.steps and self._busy_from,
            write=self._reading,
        )
        self.recomputation, self.compilation = (
            Recomputation(self.tracker, torch),
            Compilation(self.tracker),
        )
        when_imported("torch._dynamo.callback", self.compilation.listen)
        self._compile_calls = CompileCalls(torch, self._stack)
        replay = WARM_UP // 2 if settings.ablate == "data" else None
        self.loaders = Loaders(self.tracker, torch, self._search, replay, stack=self._stack)
        # Over the loaders' own, for it comes off sooner.
        self._start_up = StartUp(torch, settings.imports)
        self.workers = WorkerTimer(torch, settings.folder, self.tracker)
        self.waits = Waits(self.tracker, torch) if torch.cuda.is_available() else None
        self.stack_sampler = StackSampler(self.tracker, self._stack)
        functions = hook_functions(self.tracker, torch)
        # Over one of these: a step that ends with a backward pass ends once the pass is noted.
        self.updates = OwnUpdates(self.tracker, torch, lambda: self.optimizers.is_inside)
        self._patches: List[Patch] = [
            *functions,
            *Graphs(self.tracker, torch).patches,
            self._compile_calls.patch,
            *self.updates.patches,
            *self.optimizers.patches,
            *self.recomputation.patches,
            *self.loaders.patches,
            *self.workers.patches,
            *leave_out(settings.ablate, torch, self._after_warm_up),
            *([] if self.waits is None else self.waits.patches),
        ]
        self.until_closed: List[Patch] = []
        """Patches that stay on in a pause."""
        self.tracker.at_border, self.tracker.at_failure = self._at_border, self._give_up
        util.register_after_fork(self, Measurement._close_at_its_end)

    # The sink of the tracker: a file is made when there is a first step to write.

    def step(self, step: Any) -> None:
        """Write a step."""
        self.writer.step(step)

    def unsampled_steps(self, steps: Any) -> None:
        """Write steps whose parts were not sampled."""
        self.writer.unsampled_steps(steps)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        """Write an event."""
        self.writer.event(name, step=step, start_us=start_us, wall_us=wall_us)

    @property
    def writer(self) -> RecordWriter:
        """The rank's record."""
        if self._writer is None:
            self._writer = RecordWriter(
                record_path(self._settings.folder),
                {
                    "name": "script",
                    "attached": True,
                    "warm_up_steps": WARM_UP,
                    "steps_asked": self._settings.steps,
                },
                origin_us=self._origin_us,
            )
        return self._writer

    @property
    def is_closed(self) -> bool:
        """Whether the record is complete and everything is taken off."""
        return self._closed

    @property
    def has_steps(self) -> bool:
        """Whether the script has trained."""
        return self.tracker.steps > 0

    @property
    def has_record(self) -> bool:
        """Whether anything was written, which a first update is enough for."""
        return self.has_steps or self._writer is not None

    @property
    def is_child(self) -> bool:
        """Whether this process is a loader's worker."""
        return self._torch.utils.data.get_worker_info() is not None

    def write_seen(self) -> None:
        """Say what was seen of a process that never trained."""
        path = os.path.join(self._settings.folder, "seen-{}.json".format(os.getpid()))
        seen = {
            "pid": os.getpid(),
            "command": mask_command(sys.argv),
            "torch": str(self._torch.__version__),
            "backward_passes": self.updates.passes,
            "compiled": compile_counts() is not None,
            "worker": self.is_child,
        }
        os.makedirs(self._settings.folder, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(seen, file)

    def forking(self) -> None:
        """Write everything before a fork: the child has a copy of what is not written yet."""
        if self._writer is not None and not self._closed:
            self._writer.flush()

    def forked(self) -> None:
        """Become a child process: a loader's worker, most often, but it may train by itself."""
        self.tracker.forked()
        if self._closed:
            return
        self._writer = None
        self.deep.forked()
        self._losses.clear()
        self._before = {}
        if self._settings.doctor is not None:
            self._settings.doctor.is_forked = True
        self.workers.restart()
        for hooks in (self.optimizers, self.models, self.updates):
            hooks.forked()
        # Threads do not survive a fork; another one starts with the first step, if there is one.
        self.stack_sampler = StackSampler(self.tracker, self._stack)

    def _close_at_its_end(self) -> None:
        """See to the end of a child process, which skips the interpreter's own clearing up."""
        util.Finalize(None, self.close, exitpriority=0)

    def _give_up(self, error: Exception) -> None:
        """Close after something went wrong in a step, which the tracker has reported."""
        self._is_reported = True
        self.close("failed", repr(error))

    def close(self, status: str = "finished", reason: str = "") -> None:
        """Write what remains and take everything off."""
        if self._closed:
            return
        self._closed = True
        stages: List[Callable[[], Any]] = [
            self.stack_sampler.stop,
            self.deep.drop,
            self.tracker.close,
        ]
        stages.append(self._start_up.stop)
        if self.has_steps:
            stages.append(self.deep.write_complete)
            stages.append(self._write_summary)
        if self.has_record:
            stages.append(lambda: self.writer.close(status, reason))
        for stage in (*stages, self._take_off):
            try:
                stage()
            except Exception as error:  # noqa: BLE001 - a full disk, an odd tensor: the rest stands
                if not self._is_reported:
                    self._is_reported = True
                    say("the record is incomplete: {!r}".format(error))

    def pause(self) -> None:
        """Take everything off for a while, to compare with; the step under way is not measured.

        Between two steps alone, on the thread that trains, as `resume`; what hooks and signals
        call comes in the middle of something. A loader that is iterated first in a pause is not
        observed, and what is compiled in one counts as the run's.
        """
        if self._closed or not self.tracker.active:
            return
        self.stack_sampler.stop()
        self.deep.drop()
        self.tracker.pause()
        self._patches_off()

    def resume(self) -> None:
        """Go on measuring, with the step that begins next."""
        if self._closed or self.tracker.active:
            return
        for patch in self._all_patches:
            patch.on()
        self.tracker.resume()
        if self.has_steps:
            self.stack_sampler.start()

    @property
    def _all_patches(self) -> List[Patch]:
        return [*self._patches, *self.models.patches]

    def _patches_off(self) -> None:
        for patch in reversed(self._all_patches):
            patch.off()

    def _take_off(self) -> None:
        self._patches_off()
        for patch in self.until_closed:
            patch.off()
        self.compilation.remove()

    def _after_warm_up(self) -> bool:
        return self.tracker.steps >= WARM_UP // 2

    def _at_border(self, steps: int) -> None:
        """Decide what the next step is for."""
        if self._is_capturing() or self._is_abandoned():
            return  # a graph that the device's work goes into: waiting for it would break it
        self.deep.end(steps)
        if steps == 0:
            self._begin()
        elif steps >= _SEARCH_STEPS and self.models.searching:
            self.models.settle()
        self.deep.begin(steps)
        if steps >= WARM_UP and not self._before:
            self._measure_from_here()
        self._tend_to_loss(steps)
        self.tracker.next_stop = self._next_stop(steps)
        if self._settings.steps is not None and steps >= WARM_UP + self._settings.steps:
            self._after_measuring()

    def _is_abandoned(self) -> bool:
        """Whether nobody gets the record any more: then the script is left alone from here on."""
        doctor = self._settings.doctor
        is_lost = self._writer is not None and self._writer.is_lost
        if not is_lost and (doctor is None or doctor.is_alive):
            return False
        self.close("interrupted", "nobody waits for the record any more")
        return True

    def _is_capturing(self) -> bool:
        cuda = self._torch.cuda
        return cuda.is_initialized() and cuda.is_current_stream_capturing()

    def _next_stop(self, steps: int) -> int:
        """Say before which step there is something to do: after warm-up, before few."""
        if steps < WARM_UP:
            return 0
        every = self._loss_every(steps)
        following = steps + 1 if self.tracker.wants_loss else _next_loss_step(steps, every)
        return min(following, self._busy_from)

    def _loss_every(self, steps: int) -> int:
        if self._settings.loss_every is not None:
            return self._settings.loss_every
        if self.tracker.rate is not SHORT:
            return _LOSS_EVERY
        return _LOSS_EVERY_OF_SHORT[steps >= LATER[0]]

    def _tend_to_loss(self, steps: int) -> None:
        every, was_wanted = self._loss_every(steps), self.tracker.wants_loss
        self.tracker.wants_loss = steps % every == every - 1
        if was_wanted:
            self._keep_loss(steps)
            self.models.reread_autocast()

    def _begin(self) -> None:
        """The first border: all before it was start-up."""
        tracker = self.tracker
        if self._torch.cuda.is_initialized():
            tracker.use_device(cuda_timer())
        start_us = self._settings.started_us
        if start_us is not None:
            wall_us = tracker.now() // 1000 - start_us
            known = self._start_up.end(self.compilation.total_us)
            if self.updates.ends_steps:
                known["steps"] = self.updates.steps_before
            self.writer.event("start-up", step=0, start_us=start_us, wall_us=wall_us, detail=known)
        self._start_up.stop()
        if not self.updates.ends_steps:
            self._leave_steps_to_optimizers()
        self._search()
        self.stack_sampler.start()

    def _leave_steps_to_optimizers(self) -> None:
        """Stop looking for updates of the script's own: an optimizer of torch's ends steps."""
        self.updates.stop()
        self._patches = [patch for patch in self._patches if patch not in self.updates.patches]

    def _meet_optimizer(self) -> None:
        """See to an optimizer that has stepped for the first time, after others or none."""
        if self.updates.ends_steps:
            self._leave_steps_to_optimizers()
        self._search()

    def _search(self) -> None:
        """Search for models, a few times at most: it takes long enough to be timed by itself."""
        self.tracker.enter(PURPOSE)
        # An odd object may be among all there are; what was found till then is observed.
        with contextlib.suppress(Exception):
            self.models.search()
        self.tracker.leave(PURPOSE)
        self.tracker.next_stop = 0

    def _reading(self, kind: str, values: Dict[str, Any]) -> None:
        self.writer.reading(kind, values)

    def _measure_from_here(self) -> None:
        self.stack_sampler.forget()
        if self.waits is not None:
            self.waits.forget()
        start = self.tracker.now()
        self._before = {
            "setup": self._setup(),
            # Gradients live here, inside an optimizer's step; at the script's end they may be gone.
            "owners": self._owners(),
            "sampled_steps": self.tracker.sampled_steps,
            "allocator": allocator_counts(self._torch),
            "compiled": compile_counts() or {"graphs": 0},
            "compile_us": self.compilation.total_us,
        }
        self._write_caches()
        self.tracker.note(PURPOSE, start)

    def _write_caches(self) -> None:
        # An odd cache, one whose maker is gone: then there is no reading of it.
        with contextlib.suppress(Exception):
            for values in shared_caches():
                self._reading("cache", {"step": self.tracker.steps, **values})

    def _keep_loss(self, steps: int) -> None:
        """Write the loss of the step that has ended, and earlier ones that have come by now."""
        self._losses.write_arrived()
        loss, self.tracker.loss = self.tracker.loss, None
        if loss is not None:
            self._losses.take(steps, loss)

    def _write_loss(self, step: int, loss: float) -> None:
        self.writer.scalars(step, {"loss": loss})

    def _after_measuring(self) -> None:
        if self.deep.running is not None:
            return
        self.close()
        self._leave()

    def _leave(self) -> None:
        """End the script where that is asked for and it is the one that was meant."""
        settings = self._settings
        mark(settings.folder, MEASURED)
        if settings.detach:
            return
        is_rank = describe_process()["world_size"] > 1
        if settings.doctor is None or settings.doctor.ends_this(is_rank=is_rank):
            mark(settings.folder, ENDED)
            end_script(self._torch)
        say("measured; the rest of the command runs on, unmeasured")

    def _write_summary(self) -> None:
        setup = self._setup()
        if setup["device"] is None and self._before:
            # The optimizers are gone already: what was seen of them in the steps stands.
            now = {name: setup[name] for name in ("models", "loaders")}
            setup = {**self._before["setup"], **now}
        setup.update(
            autocast=self.models.autocast,
            scaler=self.optimizers.scaled,
            recomputes=self.recomputation.seen,
            samples_per_step=self.tracker.samples_per_step,
        )
        self._reading("setup", setup)
        lines = self.stack_sampler.summary()
        self._reading(
            "host_lines", mask_lines({**lines, "outside": self.stack_sampler.outside_lines()})
        )
        owners = self._before.get("owners") or self._owners()
        if owners is not None:
            before = self._before.get("allocator", {})
            memory = device_memory(self._torch, owners["device"], before)
            self._reading("owners", {**owners, **memory})
        if self.waits is not None and self._before:
            self._reading("syncs", mask_lines(self._sync_summary()))
        exchange = self.models.exchanges.summary(self.tracker.steps)
        if exchange is not None:
            self._reading("communication", exchange)
        counts = self._compile_calls.summary(compile_counts())
        if counts is not None:
            self._reading("compiled", self._compile_summary(counts))
        for times in read_worker_times(self._settings.folder, os.getpid()):
            self._reading("worker", times)
        self._write_caches()

    def _owners(self) -> Optional[Dict[str, Any]]:
        try:
            return memory_by_owner(self._updating)
        except Exception:  # noqa: BLE001 - an odd optimizer: who holds what is not known
            return None

    @property
    def _updating(self) -> List[Any]:
        """Whatever updates weights: optimizers, or what stands in their place."""
        own = [self.updates] if self.updates.ends_steps else []
        return [*self.optimizers.seen.values(), *own]

    def _setup(self) -> Dict[str, Any]:
        models = list(self.models.names)
        setup = describe_setup(self._torch, models, self._updating, self._loader_setups())
        return {**setup, "frozen": frozen_models(self.models.called.values())}

    def _loader_setups(self) -> List[Dict[str, Any]]:
        return [
            {
                **seen.about,
                "passes": seen.passes,
                "batches": seen.batches,
                "whole_passes": seen.whole_passes,
                "whole_batches": seen.whole_batches,
                "place": seen.place,
                "trains": seen.identity in self.tracker.trains,
            }
            for seen in self.loaders.seen.values()
        ]

    def _sync_summary(self) -> Dict[str, Any]:
        assert self.waits is not None
        found = sorted(self.waits.lines.items(), key=lambda item: -item[1][1])
        return {
            "steps": self.tracker.sampled_steps - self._before["sampled_steps"],
            "calls": sum(calls for _, (calls, _) in found),
            "total_us": sum(took for _, (_, took) in found) // 1000,
            "lines": [
                {
                    "file": file,
                    "line": line,
                    "text": linecache.getline(file, line).strip()[:160],
                    "operation": operation,
                    "calls": calls,
                    "total_us": took // 1000,
                }
                for (file, line, operation), (calls, took) in found[:10]
            ],
        }

    def _compile_summary(self, counts: Dict[str, Any]) -> Dict[str, Any]:
        graphs_before = self._before.get("compiled", counts)["graphs"]
        us_before = self._before.get("compile_us", self.compilation.total_us)
        return {
            "step": self.tracker.steps,
            **counts,
            "recompiles_after_warm_up": counts["graphs"] - graphs_before,
            "compile_us": self.compilation.total_us,
            "compile_after_warm_up_us": self.compilation.total_us - us_before,
        }


def _next_loss_step(steps: int, every: int) -> int:
    """The first step after so many whose loss is kept."""
    return steps + every - (steps + 1) % every


def end_script(torch: Any) -> None:
    """End at this border, in the way a script ends itself, so that it can clean up."""
    code = _exit_code()
    if threading.current_thread() is not threading.main_thread():
        end_at_once(code)  # leaving this thread would leave the others waiting for it
    _Ending(torch, code)
    raise SystemExit(code)


class _Ending:
    """Ends a script that has caught its own end: again at the next steps, then for good."""

    def __init__(self, torch: Any, code: int) -> None:
        self._left = _PATIENCE
        self._code = code
        part_of(torch, "optim.optimizer").register_optimizer_step_post_hook(self._again)

    def _again(self, *_: Any) -> None:
        self._left -= 1
        if self._left > 0:
            raise SystemExit(self._code)
        end_at_once(self._code)


def _exit_code() -> int:
    """Say what a script that is ended exits with.

    Of a rank nobody but its launcher sees it, which would end the others before their records are
    written, or start the training again.
    """
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ or describe_process()["world_size"] > 1
    return 0 if is_launched else ENDED_EARLY


def end_at_once(code: int) -> None:
    """End the process without its consent."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def record_path(folder: str) -> str:
    """Name a file for this rank; a second process of the same rank gets another name."""
    rank = describe_process()["rank"]
    path = os.path.join(folder, "rank-{}.jsonl".format(rank))
    try:
        os.makedirs(folder, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return os.path.join(folder, "other-{}-{}.jsonl".format(rank, os.getpid()))
    return path


def mark(folder: str, name: str) -> None:
    """Leave word for others: that enough was measured, that the script was ended by us."""
    # Where the disk is full, nobody learns of it.
    with contextlib.suppress(OSError), open(os.path.join(folder, name), "a") as file:
        file.write("{}\n".format(os.getpid()))


def was_measured(folder: str) -> bool:
    """Whether a training has been measured for as long as was asked for."""
    return os.path.exists(os.path.join(folder, MEASURED))
