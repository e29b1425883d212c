"""Ways to make a step of re-identification or bird's-eye view faster, each held against fp32.

    python benchmarks/step_attempts.py reid --output FILE.json [--limit-s 150] [--only NAME ...]
    python benchmarks/step_attempts.py bev --output FILE.json

The baseline is the workload's plain fp32 preset at its best batch of 32. Attempts come one after
the other, each between two blocks of the baseline, all with the engine's own trainer, loader and
workers on the same generated data. Nearly all are settings of a preset; what is none, and would
have to be built first, is marked `is_setting: false`.

Before it is timed, an attempt is checked: loss and gradients of one batch against the reference
network in fp32 with the same weights. It passes when gradients of every part of the network are at
most half as far again from fp32 as those of the reference network under autocast, the rounding that
its precision brings anyway, and its loss no further than twice that or one part in a thousand. Both
see the same numbers: neither the neck nor modalities are dropped out.

What was expected was counted from earlier runs (docs/lab-notes.md) before this was run. Results are
written after every block. An attempt that takes longer than `--each-s` is stopped and says so; one
for which there is no time left is named. `--smoke` does it all at the smallest size on a CPU, where
nothing is compiled.
"""

import argparse
import gc
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Protocol

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
from progress import say, write
from step_runs import TOTAL_STEPS, Contestant, bf16_peak, prepare, rates, warm_up

GRAPHS: Final = ("train.compile.scope=whole", "train.compile.mode=reduce-overhead")
WHOLE: Final = ("train.compile.scope=whole", "train.compile.mode=default")
TUNED: Final = ("train.compile.scope=whole", "train.compile.mode=max-autotune")
BASELINE_STEPS: Final = 5
BLOCK_S: Final = 2.0
CHUNK: Final = 16
"""Samples of the reference pass at once, where the loss is a sum over samples."""
FURTHER: Final = 1.5
"""How many times the rounding of autocast an attempt's gradients may be from fp32."""


class OutOfTimeError(Exception):
    """An attempt took too long."""


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

    @property
    def is_setting(self) -> bool:
        """Whether a configuration reaches it."""
        return self.change is nothing


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
        overrides=("loader.prefetch=1",),
    )
    attempts = (
        Attempt(
            name="whole, CUDA graphs",
            preset="fast",
            overrides=GRAPHS,
            expected_samples_per_s=710,
            why="45 ms: the trunk's 38, captions 3 without gaps between kernels, 4 for the rest",
        ),
        Attempt(
            name="as shipped: regions",
            preset="fast",
            expected_samples_per_s=450,
            why="419 before; kernels of captions are shorter, starting them takes as long",
        ),
        Attempt(
            name="whole, CUDA graphs, batch 64",
            preset="fast",
            batch_size=64,
            overrides=GRAPHS,
            expected_samples_per_s=750,
            why="update and clipping, 3 ms, once for twice the records",
        ),
        Attempt(
            name="whole, CUDA graphs, tokens in bf16",
            preset="fast",
            overrides=GRAPHS,
            change=halve_tokens,
            expected_samples_per_s=730,
            why="4.6 GB less to move, 1.2 ms",
        ),
        Attempt(
            name="whole",
            preset="fast",
            overrides=WHOLE,
            expected_samples_per_s=500,
            why="fewer calls of the host, and it still starts every kernel",
        ),
        Attempt(
            name="whole, max-autotune",
            preset="fast",
            overrides=TUNED,
            expected_samples_per_s=720,
            why="products are large and cuBLAS has them; the rest is bound by bytes",
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
        overrides=("loader.workers=6", "loader.prefetch=1"),
    )
    attempts = (
        Attempt(
            name="as shipped: whole, CUDA graphs",
            preset="mono_speed",
            expected_samples_per_s=343,
            why="as before: 91 ms of kernels, of which the bytes alone take 61",
        ),
        Attempt(
            name="batch 64",
            preset="mono_highmem",
            batch_size=64,
            expected_samples_per_s=350,
            why="the update once for twice the samples; bytes and products grow with the batch",
        ),
        Attempt(
            name="first stage in bf16",
            preset="mono_speed",
            change=halve_first_stage,
            expected_samples_per_s=352,
            why="8 GB less to move: the residual of two blocks at 30,000 tokens of 96",
        ),
        Attempt(
            name="channels-last",
            preset="mono_speed",
            overrides=("train.channels_last=true",),
            expected_samples_per_s=343,
            why="the compiler lays convolutions out so already (nhwc in the kernels' names)",
        ),
        Attempt(
            name="whole, no graphs",
            preset="mono_speed",
            overrides=WHOLE,
            expected_samples_per_s=335,
            why="1,300 kernels of 70 us: the host keeps up",
        ),
        Attempt(
            name="whole, max-autotune",
            preset="mono_speed",
            overrides=TUNED,
            expected_samples_per_s=370,
            why="products that end in their GELU save 8 of some 130 passes over a block's tokens",
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
        return bev_step.configure(entry, root, smoke=smoke, workers="1" if smoke else "12")


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

    def once() -> tuple[float, float, dict[str, Tensor]]:
        return totals(
            trainer.task, trainer.model, batch, trainer.precision, graphs=trainer.records_graphs
        )

    # The first pass of a recorded network warms up, the second records.
    for _ in range(2 if trainer.records_graphs else 0):
        once()
    total, count, found = once()
    return total / count, {name: gradient / count for name, gradient in found.items()}


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
def at_most(seconds: float) -> Iterator[None]:
    """Stop what takes longer, wherever it is."""

    def stop(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Bench:
    """Measures attempts until the time is over."""

    def __init__(self, options: argparse.Namespace, root: Path, stack: ExitStack) -> None:
        self.began = time.perf_counter()
        self.options = options
        self.root = root
        self.smoke = bool(options.smoke)
        self.device = torch.device("cpu") if self.smoke else torch.device("cuda", 0)
        self.work = WORKLOADS[options.workload]()
        self.peak = None if self.smoke else bf16_peak()
        self.report: dict[str, Any] = {
            "what": f"attempts at a faster step of {options.workload}, data in the loop",
            "hardware": "CPU" if self.smoke else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "bf16_peak_flop_per_s": self.peak,
            "attempts": {},
        }
        self.work.make_data(root, smoke=self.smoke)
        say(f"data made, {self.left_s:.0f} s left")
        self.baseline = self._build(self.work.baseline, stack)
        self.flops_per_sample = self._count()
        warm_up(self.baseline, 1 if self.smoke else 3)
        self._baseline_block()

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.options.limit_s - (time.perf_counter() - self.began)

    def run(self) -> None:
        """Try one after the other."""
        for attempt in self.work.attempts:
            if self.options.only and attempt.name not in self.options.only:
                continue
            told: dict[str, Any] = {
                "is_setting": attempt.is_setting,
                "preset": attempt.preset,
                "batch_size": attempt.batch_size,
                "overrides": list(attempt.overrides),
                "expected_samples_per_s": attempt.expected_samples_per_s,
                "why": attempt.why,
                "outcome": "left out: no time",
            }
            self.report["attempts"][attempt.name] = told
            if self.left_s > self.options.least_s:
                self._try(attempt, told)
            self.write()

    def write(self) -> None:
        """Write what is known so far."""
        blocks = self.baseline.blocks
        self.report["baseline"] = {
            "preset": self.work.baseline.preset,
            "batch_size": self.baseline.config.train.batch_size,
            "samples_per_s_median": statistics.median(b["samples_per_s"] for b in blocks),
            "blocks": blocks,
        }
        self.report["flops_per_sample"] = self.flops_per_sample
        self.report["took_s"] = time.perf_counter() - self.began
        write(self.report, self.options.output)

    def _try(self, attempt: Attempt, told: dict[str, Any]) -> None:
        began = time.perf_counter()
        try:
            with at_most(min(self.options.each_s, self.left_s)), ExitStack() as stack:
                self._measure(attempt, told, stack)
        except OutOfTimeError:
            told["outcome"] = f"stopped after {time.perf_counter() - began:.0f} s"
        except Exception as error:  # noqa: BLE001 - a failure is a result
            told["outcome"] = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
        told["took_s"] = time.perf_counter() - began
        say(f"{attempt.name}: {told['outcome']}, {self.left_s:.0f} s left")
        # What was compiled and recorded for this one holds memory that the next one needs.
        torch._dynamo.reset()
        gc.collect()
        if not self.smoke:
            torch.cuda.empty_cache()

    def _measure(self, attempt: Attempt, told: dict[str, Any], stack: ExitStack) -> None:
        told["outcome"] = "began"
        one = self._build(attempt, stack)
        attempt.change(one.trainer.model)
        warm_up(one, 1 if self.smoke else 4)
        told |= {"first_steps_s": one.first_steps_s, "compiled": one.compiled}
        told["outcome"] = "compiled"
        self.write()
        plain = replace(self.work.baseline, batch_size=attempt.batch_size)
        told["exactness"] = exactness(one, self.work.configure(plain, self.root, smoke=self.smoke))
        for _ in range(2):
            # Between two blocks of the baseline, so that a drift of the machine favours neither.
            before = self.baseline.blocks[-1]["samples_per_s"]
            one.blocks.append(self._block(one))
            if len(one.blocks) == 1:
                self._baseline_block()
            after = self.baseline.blocks[-1]["samples_per_s"]
            one.blocks[-1]["ratio"] = one.blocks[-1]["samples_per_s"] / ((before + after) / 2)
            self._sum_up(one, told)
            self.write()
        told |= kernels_of(one)

    def _sum_up(self, one: Contestant, told: dict[str, Any]) -> None:
        rate = statistics.median(block["samples_per_s"] for block in one.blocks)
        ratios = [block["ratio"] for block in one.blocks]
        told |= {
            "outcome": "ran",
            "workers": one.loader.applied.workers,
            "samples_per_s_median": rate,
            "ratio": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
            "share_of_bf16_peak": self.peak and rate * self.flops_per_sample / self.peak,
            "host_waits_for_data": one.blocks[-1]["host_waits_for_data"],
            "blocks": one.blocks,
        }
        say(f"{one.name}: {rate:.0f} samples/s, {told['ratio']}")

    def _block(self, one: Contestant) -> dict[str, Any]:
        one.use_up()
        wall_s, _ = one.run(2)
        steps = 2 if self.smoke else max(4, round(2 * BLOCK_S / wall_s))
        wall_s, kept = one.run(steps)
        return rates(one, kept, wall_s)

    def _baseline_block(self) -> None:
        one = self.baseline
        one.use_up()
        wall_s, kept = one.run(1 if self.smoke else BASELINE_STEPS)
        one.blocks.append(rates(one, kept, wall_s))
        self.write()

    def _build(self, attempt: Attempt, stack: ExitStack) -> Contestant:
        config = self.work.configure(attempt, self.root, smoke=self.smoke)
        task = build_task(config)
        samples: Any = task.train_samples()
        if self.options.workload == "bev":
            samples = Repeated(samples=samples)
        return prepare(attempt.name, config, samples, task, device=self.device, stack=stack)

    def _count(self) -> int:
        """Arithmetic of forward and backward of one sample of the reference."""
        task = self.baseline.trainer.task
        model = task.build_model().to(self.device)
        batch = task.to_device(next(self.baseline.batches()), self.device)
        (part, *_) = in_chunks(task, batch)

        def call() -> None:
            task.loss(task.forward(model, part), part, 0).total.backward()

        return count_flops(call).total // task.samples_in(part)


def main() -> None:
    """Try what there is time for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit-s", type=float, default=150.0, help="For everything together.")
    parser.add_argument("--each-s", type=float, default=60.0, help="For one attempt.")
    parser.add_argument("--least-s", type=float, default=20.0, help="An attempt needs this long.")
    parser.add_argument("--only", nargs="+", default=[], help="Names of attempts.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    if options.smoke:
        torch.set_num_threads(1)
    # torch otherwise compiles for any batch size once it has seen two, which no run would do.
    torch._dynamo.config.automatic_dynamic_shapes = False
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(options, Path(folder) / "data", stack)
        bench.run()
    bench.write()
    print(json.dumps(bench.report, indent=2))


if __name__ == "__main__":
    main()
