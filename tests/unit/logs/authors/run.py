"""Logs that made-up authors print of made-up runs, each with the truth beside it.

An author is drawn from a seed: how the run counts, what stands on a line in which order and under
which names, which clock there is, how evaluations look, whether the run was begun anew. Every
choice is one that some public log makes. The run is simulated step by step, so what is true of it
is known without reading a line.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median

CLOCKS = (
    "%Y-%m-%d %H:%M:%S,%f - INFO - ", "[%Y-%m-%d %H:%M:%S] ", "%H:%M:%S | ", "%m/%d %H:%M:%S ",
    "[%d-%m-%Y %H:%M:%S] train.py:88 ", "%Y-%m-%d %H:%M:%S.%f INFO root: ", "I%m%d %H:%M:%S.%f 7] ",
)  # fmt: skip
_ZERO = datetime(2031, 3, 4, 8, 0, 0, tzinfo=UTC)


@dataclass(slots=True)
class Truth:
    """What is so of a run; a reader may say less, and nothing else."""

    seed: int
    step_s: float = 0.0
    data_s: float = 0.0
    last_step: int | None = None
    """As the author counts; of a count from zero, one more is as good."""
    is_from_zero: bool = False
    total_steps: int | None = None
    batch_size: int = 1
    world_size: int = 1
    processes: int = 1
    epochs: int = 0
    run_s: float = 0.0
    """Of all processes, without the time between them."""
    left_s: float = 0.0
    """What the epochs not yet done would take."""
    evaluations_s: float = 0.0
    printed_rates: list[float] = field(default_factory=list[float], repr=False)
    holds: set[str] = field(default_factory=set[str])
    """What the log does print, in the words in which a report would call it absent."""
    counts: str = "run"
    """``run``, ``epoch`` (begins anew in each), ``epochs`` (nothing else) or ``samples``."""
    is_interleaved: bool = False
    is_coarse: bool = False
    starts_s: float = 0.0
    """How long the first step of each epoch takes beyond the others."""
    hidden_s: float = 0.0
    """What else each step took on average that no line tells: a clock cannot leave it out."""


@dataclass(frozen=True, slots=True)
class Record:
    """One printed moment of the training."""

    process: int
    epoch: int
    inside: int
    """Steps of the epoch done by now."""
    step: int
    """Steps of the run done by now."""
    at_s: float
    last_s: float
    interval_s: float
    interval: int
    epoch_s: float
    run_s: float
    data_s: float
    loss: float


@dataclass(frozen=True, slots=True)
class Run:
    """What is trained, and how long everything takes."""

    epochs: int
    per_epoch: int
    done_epochs: int
    step_s: float
    data_share: float
    start_s: float
    evaluation_s: float
    every: int
    prints_first: bool
    """Prints steps 1, 1 + every, ... as a count from zero does."""
    batch: int
    ranks: int
    restart: str
    """Empty, ``back`` (goes on from an earlier epoch), ``scratch`` or ``next`` (the next epoch)."""

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.per_epoch


def draw_run(draw: random.Random) -> Run:
    """Draw what is trained."""
    per_epoch = draw.choice([24, 37, 60, 118, 391])
    every = draw.choice([1, 2, 5, 10, 10, 20])
    while per_epoch // every < 6:
        every = max(1, every // 2)
    step_s = draw.choice([0.004, 0.05, 0.3, 0.3, 1.2, 7.0])
    epochs = draw.randint(3, 9)
    return Run(
        epochs=epochs,
        per_epoch=per_epoch,
        done_epochs=draw.choice([epochs, epochs, max(2, epochs - 2)]),
        step_s=step_s,
        data_share=draw.choice([0.01, 0.05, 0.4]),
        start_s=draw.choice([0.0, 0.0, 3.0 * step_s]),
        evaluation_s=draw.choice([0.0, 5.0, 12.0]) * step_s,
        every=every,
        prints_first=draw.random() < 0.4,
        batch=draw.choice([8, 32, 48, 256]),
        ranks=draw.choice([1, 1, 1, 4]),
        restart=draw.choice([""] * 7 + ["back", "scratch", "next"]),
    )


def simulate(run: Run, draw: random.Random, truth: Truth) -> Iterator[Record | str]:
    """Go through the run: records, and ``begin``, ``epoch``, ``evaluated``, ``end`` between."""
    at, steps = 30.0, list[float]()
    spans = [range(run.done_epochs)]
    if run.restart:
        stop = max(2, run.done_epochs - 1)
        again = {"back": stop - 1, "scratch": 0, "next": stop}[run.restart]
        spans = [range(stop), range(again, max(run.done_epochs, again + 1))]
    for process, span in enumerate(spans):
        # Longer than any epoch by far: else nobody can tell it from one.
        night_s = max(draw.choice([900.0, 4000.0, 40000.0]), 15 * run.per_epoch * run.step_s)
        at += night_s if process else 0.0
        began = at
        yield f"begin {process} {span[0]} {at}"
        at += 20.0
        for epoch in span:
            yield f"epoch {epoch} {at}"
            opened, last = at, at
            printed = 0
            at += run.start_s
            for inside in range(1, run.per_epoch + 1):
                took = run.step_s * draw.uniform(0.98, 1.02)
                at += took
                steps.append(took)
                is_printed = (inside - 1 if run.prints_first else inside) % run.every == 0
                if not is_printed:
                    continue
                step = epoch * run.per_epoch + inside
                yield Record(
                    process=process, epoch=epoch, inside=inside, step=step, at_s=at, last_s=took,
                    interval_s=at - last, interval=inside - printed, epoch_s=at - opened,
                    run_s=at - began, data_s=took * run.data_share,
                    loss=2.5 * draw.uniform(0.99, 1.01) / (1 + step / 40),
                )  # fmt: skip
                last, printed = at, inside
            truth.evaluations_s += run.evaluation_s
            at += run.evaluation_s
            yield f"evaluated {epoch} {at}"
        truth.run_s += at - began
    truth.step_s, truth.data_s = median(steps), median(steps) * run.data_share
    truth.processes, truth.epochs = len(spans), run.done_epochs
    truth.starts_s = run.start_s
    whole_s = run.per_epoch * run.step_s + run.start_s + run.evaluation_s
    truth.left_s = (run.epochs - spans[-1].stop) * whole_s
    yield f"end {at}"


def stamp(form: str, at_s: float) -> str:
    """Write a moment in an author's form; milliseconds where it has a fraction."""
    moment = _ZERO + timedelta(seconds=at_s)
    return moment.strftime(form.replace("%f", f"{moment.microsecond // 1000:03}"))


def clock_text(seconds: float) -> str:
    """Write a duration as a bar does."""
    hours, rest = divmod(int(seconds), 3600)
    return (f"{hours}:" if hours else "") + f"{rest // 60:02}:{rest % 60:02}"
