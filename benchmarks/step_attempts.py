"""Ways to make a step of re-identification or bird's-eye view faster, each held against fp32.

    python benchmarks/step_attempts.py reid --output FILE.json [--limit-s 130] [--only NAME ...]
    python benchmarks/step_attempts.py bev --output FILE.json

The baseline is the workload's plain fp32 preset at its best batch of 32. Every attempt is a process
of its own, with the engine's own trainer, loader and workers on the same generated data. They build
and compile side by side, some at a time, and share the compiler's cache. Once they have (or
`--gather-s` have passed), they are timed by turns: while one runs, all others are stopped by a
signal. A round is a block of each attempt that is ready between two blocks of the baseline, and
each attempt has two. Most attempts are settings of a preset; what is none, and would have to be
built first, is marked `is_setting: false`. "One graph" is forward, loss and backward of compiled
regions, recorded together, which needs no compile of the whole network.

Before it is timed, an attempt is checked: loss and gradients of one batch against the reference
network in fp32 with the same weights. It passes when gradients of every part of the network are at
most half as far again from fp32 as those of the reference network under autocast, the rounding that
its precision brings anyway, and its loss no further than twice that or one part in a thousand. Both
see the same numbers: neither the neck nor modalities are dropped out.

What was expected was counted from earlier runs (docs/lab-notes.md) before this was run. Results are
written as they come. An attempt that is not ready in time is ended and says so. `--smoke` does it
all at the smallest size on a CPU, where nothing is compiled or recorded.
"""

import argparse
import fcntl
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import torch
import torch._dynamo
from torch import Tensor, nn

import bev_step
import reid_step
from bev_step import Repeated, kernels_of
from flops import count_flops
from pitstop.config.load import load_config
from pitstop.config.sections import RunConfig
from pitstop.train.optim.precision import Precision
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.reid.synthetic.make import make_reid
from pitstop_probe import Clock
from progress import say, write
from recorded_step import RecordedTrainer
from step_runs import TOTAL_STEPS, Contestant, Kept, bf16_peak, prepare, rates, warm_up
from turns import end, stopped

Facts: TypeAlias = dict[str, Any]

GRAPHS: Final = ("train.compile.scope=whole", "train.compile.mode=reduce-overhead")
REGIONS: Final = ("train.compile.scope=regions", "train.compile.mode=default")
PLAIN: Final = ("train.compile.scope=off", "train.compile.mode=default")
BASELINE_STEPS: Final = 5
BLOCK_S: Final = 2.0
BLOCKS: Final = 2
"""Of each attempt."""
AGAIN: Final = 6
"""Times that an attempt waits for memory that others hold."""
CHUNK: Final = 16
"""Samples of the reference pass at once, where the loss is a sum over samples."""
FURTHER: Final = 1.5
"""How many times the rounding of autocast an attempt's gradients may be from fp32."""


def nothing(model: nn.Module) -> None:
    """Leave a network as it is built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way to make a step faster."""

    name: str
    preset: str
    expected_samples_per_s: float
    """Before it was run."""
    why: str
    batch_size: int = 32
    overrides: tuple[str, ...] = ()
    change: Callable[[nn.Module], None] = nothing
    """What no setting does."""
    one_graph: bool = False
    """Forward, loss and backward recorded together; no setting does that either."""

    @property
    def is_setting(self) -> bool:
        """Whether a configuration reaches it."""
        return self.change is nothing and not self.one_graph


def halve_tokens(model: nn.Module) -> None:
    """Let the tokens that blocks add to be bf16 from the first block on."""
    model.get_submodule("patches").register_forward_hook(lambda *seen: seen[-1].bfloat16())


def halve_first_stage(model: nn.Module) -> None:
    """The same for the first stage of a Swin; behind it they are bf16 already."""
    embeddings = model.get_submodule("backbone.backbone.swin.embeddings")
    embeddings.register_forward_hook(lambda *seen: (seen[-1][0].bfloat16(), *seen[-1][1:]))


class Workload(Protocol):
    """What differs between the two."""

    baseline: Attempt
    attempts: tuple[Attempt, ...]
    common: tuple[str, ...]

    def make_data(self, root: Path, *, smoke: bool) -> None:
        """Generate what is trained on."""
        ...

    def configure(self, attempt: Attempt, root: Path, *, smoke: bool) -> RunConfig:
        """Read the settings of an attempt."""
        ...


class Reid:
    """Re-identification: 224x224, four kinds of images and captions."""

    baseline = Attempt(
        name="baseline",
        preset="baseline",
        expected_samples_per_s=67,
        why="65 before captions were padded to the longest; text is 23 of its 492 ms",
        overrides=("loader.workers=4", "loader.prefetch=1"),
    )
    attempts = (
        Attempt(
            name="regions, one graph",
            preset="fast",
            one_graph=True,
            expected_samples_per_s=730,
            why="kernels take 41 of 65 ms, the rest is the host that starts 1,936 of them",
        ),
        Attempt(
            name="as shipped: regions",
            preset="fast",
            expected_samples_per_s=460,
            why="as in the run before",
        ),
        Attempt(
            name="regions, one graph, batch 64",
            preset="fast",
            batch_size=64,
            one_graph=True,
            expected_samples_per_s=770,
            why="update and clipping, 3 ms, once for twice the records",
        ),
        Attempt(
            name="regions, one graph, tokens in bf16",
            preset="fast",
            one_graph=True,
            change=halve_tokens,
            expected_samples_per_s=750,
            why="4.6 GB less to move, 1.2 ms",
        ),
        Attempt(
            name="regions, batch 64",
            preset="fast",
            batch_size=64,
            expected_samples_per_s=700,
            why="78 ms of kernels, which the host starts in 65",
        ),
        Attempt(
            name="not compiled, one graph",
            preset="fast",
            overrides=PLAIN,
            one_graph=True,
            expected_samples_per_s=520,
            why="no gaps between kernels, and every norm and activation a pass over tokens",
        ),
        Attempt(
            name="whole, CUDA graphs",
            preset="fast",
            overrides=GRAPHS,
            expected_samples_per_s=740,
            why="as one graph of regions; compiling took longer than 94 s in the run before",
        ),
    )
    common = (*reid_step.COMMON, "model.dropout=0", "data.modality_dropout=0")

    def make_data(self, root: Path, *, smoke: bool) -> None:
        """Generate people."""
        people, images, size = (15, 10, (48, 32)) if smoke else (60, 24, (256, 128))
        make_reid(root, people=people, images=images, size=size, seed=0)

    def configure(self, attempt: Attempt, root: Path, *, smoke: bool) -> RunConfig:
        """Read a preset, with what the attempt changes."""
        sizes = () if smoke else (f"train.batch_size={attempt.batch_size}",)
        smallest = (*reid_step.SMOKE, *bev_step.SMOKE_ALL) if smoke else ()
        overrides = [
            *self.common,
            f"data.root={root}",
            f"train.steps={TOTAL_STEPS}",
            "loader.workers=8",
            "loader.prefetch=2",
            *sizes,
            *attempt.overrides,
            *smallest,
        ]
        return load_config(reid_step.CONFIGS / f"{attempt.preset}.yaml", overrides).config


class Bev:
    """Bird's-eye view of one camera: 600x800, 14 classes."""

    baseline = Attempt(
        name="mono_baseline",
        preset="mono_baseline",
        expected_samples_per_s=55,
        why="as before",
        overrides=("loader.workers=5", "loader.prefetch=1"),
    )
    attempts = (
        Attempt(
            name="as shipped: whole, CUDA graphs",
            preset="mono_speed",
            expected_samples_per_s=343,
            why="as before: 91 ms of kernels, of which the bytes alone take 61",
        ),
        Attempt(
            name="regions",
            preset="mono_speed",
            overrides=REGIONS,
            expected_samples_per_s=320,
            why="what lies between regions runs uncompiled; 1,300 kernels of 70 us hide the host",
        ),
        Attempt(
            name="regions, first stage in bf16",
            preset="mono_speed",
            overrides=REGIONS,
            change=halve_first_stage,
            expected_samples_per_s=328,
            why="8 GB less to move: the residual of two blocks at 30,000 tokens of 96",
        ),
        Attempt(
            name="regions, channels-last",
            preset="mono_speed",
            overrides=(*REGIONS, "train.channels_last=true"),
            expected_samples_per_s=320,
            why="the compiler lays convolutions out so already (nhwc in the kernels' names)",
        ),
        Attempt(
            name="regions, batch 64",
            preset="mono_speed",
            batch_size=64,
            overrides=REGIONS,
            expected_samples_per_s=327,
            why="the update once for twice the samples; bytes and products grow with the batch",
        ),
        Attempt(
            name="not compiled",
            preset="mono_speed",
            overrides=PLAIN,
            expected_samples_per_s=170,
            why="every norm, activation and sum is a pass of its own over tokens and cells",
        ),
    )
    common = ()

    def make_data(self, root: Path, *, smoke: bool) -> None:
        """Generate a world and labels."""
        scenes, samples, size = (2, 2, (225, 400)) if smoke else (2, 4, (450, 800))
        bev_step.make_bev(root, scenes=scenes, samples=samples, size=size, seed=0)
        if not smoke:
            bev_step.write_all_labels(root)

    def configure(self, attempt: Attempt, root: Path, *, smoke: bool) -> RunConfig:
        """Read a preset, with what the attempt changes."""
        entry = bev_step.Entry(
            name=attempt.name,
            preset=attempt.preset,
            batch_size=attempt.batch_size,
            overrides=attempt.overrides,
        )
        return bev_step.configure(entry, root, smoke=smoke, workers="1" if smoke else "8")


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {"reid": Reid, "bev": Bev}


def totals(
    task: Any, model: nn.Module, batch: Any, precision: Precision, *, graphs: bool = False
) -> tuple[float, float, dict[str, Tensor]]:
    """Sum of losses of a batch, what they are averaged over, and the gradients of the sum."""
    for parameter in model.parameters():
        parameter.grad = None
    precision.apply_to_process()
    if graphs:
        torch.compiler.cudagraph_mark_step_begin()
    with precision.autocast():
        output = task.forward(model, batch)
    loss = task.loss(output, batch, 0)
    loss.total.backward()
    found = {
        name: parameter.grad.detach().float().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return float(loss.total.detach()), float(loss.count), found


def in_chunks(task: Any, batch: Any) -> Iterator[Any]:
    """Cut a batch up where the loss is a sum over samples; the reference in fp32 is large."""
    size = task.samples_in(batch)
    step = CHUNK if task.loss_is_separable else size
    for start in range(0, size, step):
        parts = {f.name: getattr(batch, f.name)[start : start + step] for f in fields(batch)}
        yield replace(batch, **parts)


def reference_totals(
    task: Any, model: nn.Module, batch: Any, precision: Precision
) -> tuple[float, dict[str, Tensor]]:
    """Mean loss and its gradients, part by part."""
    total, count = 0.0, 0.0
    sums: dict[str, Tensor] = {}
    for part in in_chunks(task, batch):
        one, counted, found = totals(task, model, part, precision)
        total, count = total + one, count + counted
        sums = {name: gradient + sums.get(name, 0.0) for name, gradient in found.items()}
    return total / count, {name: gradient / count for name, gradient in sums.items()}


def distances(mine: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, float]:
    """By part of the network: norm of the difference over the norm of what is right."""
    assert mine.keys() == right.keys(), "other weights have gradients"
    apart: dict[str, float] = {}
    whole: dict[str, float] = {}
    for name, gradient in right.items():
        part = name.partition(".")[0]
        apart[part] = apart.get(part, 0.0) + float((mine[name] - gradient).square().sum())
        whole[part] = whole.get(part, 0.0) + float(gradient.square().sum())
    return {part: (apart[part] / whole[part]) ** 0.5 for part in whole}


def own_totals(one: Contestant, batch: Any) -> tuple[float, dict[str, Tensor]]:
    """Mean loss of an attempt and its gradients, as they are replayed later."""
    trainer = one.trainer
    if isinstance(trainer, RecordedTrainer):
        return replayed_totals(trainer, batch, next(one.batches()))

    def once() -> tuple[float, float, dict[str, Tensor]]:
        return totals(
            trainer.task, trainer.model, batch, trainer.precision, graphs=trainer.records_graphs
        )

    # The first pass of a recorded network warms up, the second records.
    for _ in range(2 if trainer.records_graphs else 0):
        once()
    total, count, found = once()
    return total / count, {name: gradient / count for name, gradient in found.items()}


def replayed_totals(
    trainer: RecordedTrainer, batch: Any, other: Any
) -> tuple[float, dict[str, Tensor]]:
    """Record another batch, and replay that with the right one in its place."""
    trainer.precision.apply_to_process()
    trainer.record(trainer.task.to_device(other, trainer.device), Clock(Kept()))
    loss = trainer.replay(batch)
    mean = float(loss.total.detach() / loss.count)
    nominal = trainer.accumulate * trainer.task.nominal_count / float(loss.count)
    found = {
        name: parameter.grad.detach().float() * nominal
        for name, parameter in trainer.model.named_parameters()
        if parameter.grad is not None
    }
    trainer.forget()
    return mean, found


def exactness(one: Contestant, reference: RunConfig) -> dict[str, Any]:
    """Hold loss and gradients of a batch against the reference network in fp32.

    Raises:
        ArithmeticError: Where they are further off than the precision explains.
    """
    trainer, device = one.trainer, one.trainer.device
    batch = trainer.task.to_device(next(one.batches()), device)
    own_loss, mine = own_totals(one, batch)
    task = build_task(reference)
    task.train_samples()
    model = task.build_model().to(device)
    model.load_state_dict(trainer.model.state_dict())
    loss, right = reference_totals(task, model, batch, Precision("fp32", device))
    kind = one.config.train.precision
    rounded_loss, rounded = reference_totals(task, model, batch, Precision(kind, device))
    errors, limits = distances(mine, right), distances(rounded, right)
    told = {
        "loss": loss,
        "loss_error": abs(own_loss - loss) / abs(loss),
        "loss_error_of_autocast": abs(rounded_loss - loss) / abs(loss),
        "gradient_errors": errors,
        "gradient_errors_of_autocast": limits,
    }
    loss_limit = max(2 * told["loss_error_of_autocast"], 1e-3)
    is_near = all(errors[part] <= FURTHER * limits[part] for part in limits)
    if not (is_near and told["loss_error"] <= loss_limit):
        raise ArithmeticError(f"further from fp32 than rounding explains: {json.dumps(told)}")
    return told


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let one process at a time through: the reference in fp32 is large."""
    with (root.parent / "alone").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def give_memory_back() -> None:
    """Leave the device to the others."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a process is to do."""

    workload: str
    place: int
    """Of the attempt; -1 for the baseline."""
    root: Path
    smoke: bool

    @property
    def attempt(self) -> Attempt:
        """The attempt itself, whose change is no message."""
        work = WORKLOADS[self.workload]()
        return work.baseline if self.place < 0 else work.attempts[self.place]


class Runner:
    """An attempt in its own process: gets ready, then runs a block whenever it is asked."""

    def __init__(self, job: Job, stack: ExitStack) -> None:
        self.job = job
        self.work = WORKLOADS[job.workload]()
        self.device = torch.device("cpu") if job.smoke else torch.device("cuda", 0)
        attempt = job.attempt
        config = self.work.configure(attempt, job.root, smoke=job.smoke)
        task = build_task(config)
        samples: Any = task.train_samples()
        if job.workload == "bev":
            samples = Repeated(samples=samples)
        self.one = prepare(attempt.name, config, samples, task, device=self.device, stack=stack)
        if attempt.one_graph:
            self.one.trainer = RecordedTrainer.of(self.one.trainer)
        attempt.change(self.one.trainer.model)

    def get_ready(self) -> Facts:
        """Compile, and hold the attempt against the reference."""
        warm_up(self.one, 1 if self.job.smoke else 4)
        told: Facts = {"first_steps_s": self.one.first_steps_s, "compiled": self.one.compiled}
        if self.job.place < 0:
            peak = None if self.job.smoke else bf16_peak()
            told |= {"flops_per_sample": self._count(), "bf16_peak_flop_per_s": peak}
            told["hardware"] = "CPU" if self.job.smoke else torch.cuda.get_device_name()
        else:
            batch_size = self.job.attempt.batch_size
            plain = replace(self.work.baseline, batch_size=batch_size)
            reference = self.work.configure(plain, self.job.root, smoke=self.job.smoke)
            with alone(self.job.root):
                told["exactness"] = exactness(self.one, reference)
        told["workers"] = self.one.loader.applied.workers
        give_memory_back()
        return told

    def block(self) -> Facts:
        """Run steps between two moments at which the device has nothing to do."""
        one, trainer = self.one, self.one.trainer
        if isinstance(trainer, RecordedTrainer):
            trainer.precision.apply_to_process()
            batch = trainer.task.to_device(next(one.batches()), trainer.device)
            trainer.record(batch, Clock(Kept()))
        one.use_up()
        wall_s, _ = one.run(2)
        steps = BASELINE_STEPS if self.job.place < 0 else max(4, round(2 * BLOCK_S / wall_s))
        wall_s, kept = one.run(2 if self.job.smoke else steps)
        found = rates(one, kept, wall_s)
        if self.job.place >= 0 and len(one.blocks) == BLOCKS - 1:
            found |= kernels_of(one)
        one.blocks.append(found)
        if isinstance(trainer, RecordedTrainer):
            trainer.forget()
        give_memory_back()
        return found

    def _count(self) -> int:
        """Arithmetic of forward and backward of one sample of the reference."""
        task = self.one.trainer.task
        model = task.build_model().to(self.device)
        batch = task.to_device(next(self.one.batches()), self.device)
        (part, *_) = in_chunks(task, batch)

        def call() -> None:
            task.loss(task.forward(model, part), part, 0).total.backward()

        return count_flops(call).total // task.samples_in(part)


def again(action: Callable[[], Facts]) -> Facts:
    """Try once more, some times, where others hold the memory."""
    for _ in range(AGAIN):
        try:
            return action()
        except torch.OutOfMemoryError:
            give_memory_back()
            time.sleep(3)
    return action()


def be_attempt(job: Job, parent: Any) -> None:
    """Do what a process is there for."""
    if job.smoke:
        torch.set_num_threads(1)
    # torch otherwise compiles for any batch size once it has seen two, which no run would do.
    torch._dynamo.config.automatic_dynamic_shapes = False
    try:
        with ExitStack() as stack:
            runner = Runner(job, stack)
            parent.send(("ready", again(runner.get_ready)))
            while parent.recv() == "block":
                try:
                    parent.send(("block", runner.block()))
                except torch.OutOfMemoryError as error:
                    give_memory_back()
                    parent.send(("memory", str(error)[:300]))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - a failure is a result
        parent.send(("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"))


@dataclass(slots=True, kw_only=True)
class Child:
    """A process, seen from the one that asks."""

    name: str
    process: BaseProcess
    pipe: Any
    """A `Connection`, which is another class on each system."""
    began: float
    state: str = "began"
    facts: Facts = field(default_factory=dict)
    blocks: list[Facts] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self.process.pid is not None, "not started"
        return self.process.pid

    def hear(self) -> None:
        """Take what it says when it is ready or has failed."""
        said: Any = None
        try:
            self.state, said = self.pipe.recv()
        except EOFError:
            self.state, said = "failed", f"ended with {self.process.exitcode}"
        self.facts = said if self.state == "ready" else {"outcome": said}
        self.facts["took_s"] = time.perf_counter() - self.began

    def run_block(self) -> str:
        """Have it run a block, alone by then; gives what it answers with."""
        self.pipe.send("block")
        state, said = self.pipe.recv()
        if state == "block":
            self.blocks.append(said)
        else:
            self.facts["outcome"] = said
        return state


class Bench:
    """Starts attempts, and times those that are ready until the time is over."""

    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        self.began = time.perf_counter()
        self.options = options
        self.root = root
        self.work = WORKLOADS[options.workload]()
        self.children: dict[str, Child] = {}
        self.report: Facts = {
            "what": f"attempts at a faster step of {options.workload}, data in the loop, by turns",
            "torch": torch.__version__,
            "attempts": {attempt.name: self._plan(attempt) for attempt in self._chosen()},
        }
        self.work.make_data(root, smoke=options.smoke)
        say(f"data made, {self.left_s:.0f} s left")
        self.baseline = self._start(self.work.baseline, -1)

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.options.limit_s - (time.perf_counter() - self.began)

    def run(self) -> None:
        """Start, listen, and time."""
        waiting = list(self._chosen())
        while self.left_s > 0 and self.baseline.state != "failed":
            preparing = [one for one in self.children.values() if one.state == "began"]
            while waiting and len(preparing) < self.options.at_once:
                attempt = waiting.pop(0)
                place = self.work.attempts.index(attempt)
                preparing.append(self._start(attempt, place))
            self._listen(preparing)
            ready = [one for one in self._attempts() if one.state == "ready"]
            is_over = not waiting and not any(one.state == "began" for one in self._attempts())
            if ready and self.baseline.state == "ready":
                is_late = time.perf_counter() - self.began > self.options.gather_s
                if is_over or is_late:
                    self._round(ready)
            elif is_over:
                break
        self.stop()

    def stop(self) -> None:
        """End what is left, and say what became of it."""
        for one in self._attempts():
            if one.state == "began":
                one.facts["outcome"] = f"not ready after {time.perf_counter() - one.began:.0f} s"
        self.write()
        for one in self.children.values():
            end(one.pid)

    def write(self) -> None:
        """Write what is known so far."""
        facts, blocks = self.baseline.facts, self.baseline.blocks
        self.report |= {
            key: facts.get(key) for key in ("hardware", "bf16_peak_flop_per_s", "flops_per_sample")
        }
        self.report["baseline"] = {
            "preset": self.work.baseline.preset,
            "batch_size": self.work.baseline.batch_size,
            "expected_samples_per_s": self.work.baseline.expected_samples_per_s,
            "samples_per_s_median": middle(blocks),
            "blocks": blocks,
            "outcome": facts.get("outcome"),
        }
        for one in self._attempts():
            self.report["attempts"][one.name] |= one.facts
        self.report["took_s"] = time.perf_counter() - self.began
        write(self.report, self.options.output)

    def _chosen(self) -> Sequence[Attempt]:
        only = self.options.only
        return [one for one in self.work.attempts if not only or one.name in only]

    def _plan(self, attempt: Attempt) -> Facts:
        return {
            "is_setting": attempt.is_setting,
            "preset": attempt.preset,
            "batch_size": attempt.batch_size,
            "overrides": list(attempt.overrides),
            "expected_samples_per_s": attempt.expected_samples_per_s,
            "why": attempt.why,
            "outcome": "left out: no time",
        }

    def _attempts(self) -> list[Child]:
        return [one for one in self.children.values() if one is not self.baseline]

    def _start(self, attempt: Attempt, place: int) -> Child:
        context = multiprocessing.get_context("spawn")
        here, there = multiprocessing.Pipe()
        job = Job(
            workload=self.options.workload,
            place=place,
            root=self.root,
            smoke=self.options.smoke,
        )
        process = context.Process(target=be_attempt, args=(job, there))
        process.start()
        there.close()
        child = Child(name=attempt.name, process=process, pipe=here, began=time.perf_counter())
        child.facts["outcome"] = "began"
        self.children[attempt.name] = child
        return child

    def _listen(self, preparing: list[Child]) -> None:
        heard = wait([one.pipe for one in preparing], timeout=0.5)
        for one in preparing:
            if one.pipe in heard:
                one.hear()
                said = one.facts.get("outcome", one.state)
                say(f"{one.name}: {said}, {self.left_s:.0f} s left")
                self.write()

    def _round(self, ready: list[Child]) -> None:
        """Time all that are ready, each time between two blocks of the baseline."""
        self._block(self.baseline)
        for _ in range(BLOCKS):
            for one in ready:
                if one.state == "ready" and self.left_s > 0:
                    self._block(one)
            self._block(self.baseline)
            if self.baseline.state == "failed":
                return
            around = self.baseline.blocks[-2:]
            between = sum(block["samples_per_s"] for block in around) / len(around)
            for one in ready:
                if one.blocks and "ratio" not in one.blocks[-1]:
                    one.blocks[-1]["ratio"] = one.blocks[-1]["samples_per_s"] / between
                    self._sum_up(one)
            self.write()
        for one in ready:
            one.state = "done" if one.state == "ready" else one.state
            end(one.pid)

    def _block(self, one: Child) -> None:
        others = [other.pid for other in self.children.values() if other is not one]
        answer = "memory"
        for _ in range(AGAIN):
            with stopped(others):
                answer = one.run_block()
            if answer != "memory":
                break
            # Those that compile hold memory until they are ready.
            time.sleep(5)
        if answer != "block":
            one.state = "failed"

    def _sum_up(self, one: Child) -> None:
        facts = self.baseline.facts
        peak, rate = facts["bf16_peak_flop_per_s"], middle(one.blocks)
        found = [block["ratio"] for block in one.blocks]
        one.facts |= {
            "outcome": "ran",
            "samples_per_s_median": rate,
            "ratio": {"median": statistics.median(found), "low": min(found), "high": max(found)},
            "share_of_bf16_peak": rate and peak and rate * facts["flops_per_sample"] / peak,
            "blocks": one.blocks,
        }
        say(f"{one.name}: {rate:.0f} samples/s, {one.facts['ratio']}, {self.left_s:.0f} s left")


def middle(blocks: list[Facts]) -> float | None:
    """Median rate of blocks; None where there is none."""
    return statistics.median(one["samples_per_s"] for one in blocks) if blocks else None


def share_the_compiler() -> None:
    """Let processes that begin from here on share what they compile, and the cores."""
    each = max(1, (os.cpu_count() or 1) // 4)
    for name, value in (
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "1"),
        ("TORCHINDUCTOR_AUTOGRAD_CACHE", "1"),
        ("TORCHINDUCTOR_COMPILE_THREADS", str(each)),
        ("OMP_NUM_THREADS", "1"),
    ):
        os.environ.setdefault(name, value)


def main() -> None:
    """Try what there is time for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit-s", type=float, default=130.0, help="For everything together.")
    parser.add_argument("--gather-s", type=float, default=70.0, help="Then those ready are timed.")
    parser.add_argument("--at-once", type=int, default=4, help="Attempts that compile at a time.")
    parser.add_argument("--only", nargs="+", default=[], help="Names of attempts.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    share_the_compiler()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder) / "data")
        try:
            bench.run()
        finally:
            bench.stop()
    print(json.dumps(bench.report, indent=2))


if __name__ == "__main__":
    main()
