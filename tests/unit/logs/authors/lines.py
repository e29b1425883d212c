"""Authors who print a line for a record: one counter, and fields in their own words and order."""

import random
from collections.abc import Callable
from datetime import timedelta

from tests.unit.logs.authors.run import (
    CLOCKS,
    Record,
    Run,
    Truth,
    clock_text,
    draw_run,
    simulate,
    stamp,
)

Field = Callable[[Record], str]
_LOSS = ("loss", "Loss", "train_loss", "total_loss", "loss_ce", "Train Loss", "avg_loss", "l_pix")
_STEP = ("step", "iter", "Iteration", "global_step", "batch", "Step", "Iter", "it", "Batch")
_EPOCH = ("Epoch", "epoch", "ep", "Train Epoch", "EPOCH")
_ANY_TIME = ("time", "Time", "took", "cost", "t", "duration", "elapsed", "dt")
_STEP_TIME = ("step_time", "iter_time", "batch_time", "time/iter", "time per step")


class Author:
    """Prints the records of a run in a way of its own."""

    def __init__(self, run: Run, draw: random.Random, truth: Truth) -> None:
        self.run, self.draw, self.truth = run, draw, truth
        self.clock = draw.choice(["", "", "", "", *CLOCKS])
        truth.is_coarse = bool(self.clock) and "%f" not in self.clock
        if self.clock:
            truth.holds.add("timestamps")
        self.base = 1 - run.prints_first
        self.first_epoch = draw.choice([0, 1])
        self.sep, self.joint = draw.choice([": ", "=", ":", " "]), draw.choice([", ", " | ", "  "])
        self.counts = draw.choice(["run", "run", "epoch", "epoch", "epoch", "samples"])
        self.has_total = draw.random() < 0.7
        self.fields = [self._loss(), *self._rest()]
        if draw.random() < 0.3:
            draw.shuffle(self.fields)
        self.evaluates = draw.choice(["line", "lines", "bar", "silent", "line", "counted"])
        self.ranks = run.ranks if draw.random() < 0.4 else 1
        self.head = self._counter()
        self.last: Record | None = None
        self.is_quiet = run.restart == "next" and draw.random() < 0.5
        """Whether the second process goes on without a word."""
        truth.counts, truth.is_from_zero = self.counts, run.prints_first
        truth.batch_size = run.batch
        is_silent = self.evaluates == "silent" or self.counts == "run"
        truth.hidden_s = (run.start_s + is_silent * run.evaluation_s) / run.per_epoch
        if self.ranks > 1:
            truth.world_size = self.ranks

    def _named(self, name: str, text: str) -> str:
        return f"{name}{self.sep}{text}"

    def _loss(self) -> Field:
        name = self.draw.choice(_LOSS)
        self.truth.holds.add("losses")
        with_mean = self.draw.random() < 0.15
        return lambda r: self._named(
            name, f"{r.loss:.4f}" + (f" ({1.1 * r.loss:.4f})" if with_mean else "")
        )

    def _rest(self) -> list[Field]:
        makers = (self._rate_of_learning, self._time, self._data, self._speed, self._memory,
                  self._left, self._batch, self._metric)  # fmt: skip
        odds = (0.5, 0.6, 0.25, 0.3, 0.3, 0.25, 0.1, 0.3)
        return [make() for make, odd in zip(makers, odds, strict=True) if self.draw.random() < odd]

    def _rate_of_learning(self) -> Field:
        name, constant = self.draw.choice(["lr", "learning_rate", "LR"]), self.draw.random() < 0.3
        self.truth.holds.add("learning rate")
        return lambda r: self._named(name, f"{1e-3 if constant else 1e-3 / (1 + r.step / 500):.2e}")

    def _metric(self) -> Field:
        name = self.draw.choice(["acc", "Acc@1", "grad_norm", "PSNR", "num_samples", "scale"])
        return lambda r: self._named(name, f"{100 * (1 - r.loss / 3):.2f}")

    def _time(self) -> Field:
        kind = self.draw.choice(["last", "mean", "interval", "epoch", "run", "pair", "part"])
        named = self.draw.random() < 0.5
        name = self.draw.choice(_STEP_TIME if kind in ("last", "mean") and named else _ANY_TIME)
        if kind == "part":
            name = self.draw.choice(["forward time", "bwd", "sync time", "fwd_time", "opt time"])
        unit, scale = self.draw.choice([("s", 1.0), ("ms", 1e3), ("", 1.0), ("s", 1.0)])
        value: Callable[[Record], float] = {
            "last": lambda r: r.last_s,
            "mean": lambda r: r.interval_s / r.interval,
            "interval": lambda r: r.interval_s,
            "epoch": lambda r: r.epoch_s,
            "run": lambda r: r.run_s,
            "pair": lambda r: r.last_s,
            "part": lambda r: 0.3 * r.last_s,
        }[kind]
        if kind in ("last", "mean", "pair"):
            self.truth.holds.add("time of a step")
        if kind == "pair":
            return lambda r: self._named(
                name, f"{r.last_s * scale:.3f} ({r.epoch_s / r.inside * scale:.3f})"
            )
        return lambda r: self._named(name, f"{value(r) * scale:.4f}{unit}")

    def _data(self) -> Field:
        name = self.draw.choice(["data_time", "data", "Data", "data time", "load_time"])
        unit, scale = self.draw.choice([("s", 1.0), ("ms", 1e3), ("", 1.0)])
        self.truth.holds.add("wait for data")
        return lambda r: self._named(name, f"{r.data_s * scale:.5f}{unit}")

    def _speed(self) -> Field:
        of, factor = self.draw.choice(
            [("samples/s", self.run.batch), ("img/s", self.run.batch * 4), ("it/s", 1),
             ("tokens/s", self.run.batch * 512), ("steps/sec", 1), ("examples/sec", self.run.batch)]
        )  # fmt: skip
        is_behind = self.draw.random() < 0.5
        rates = (
            self.truth.printed_rates if factor not in (1, self.run.batch * 512) else list[float]()
        )

        def field(record: Record) -> str:
            rate = factor * record.interval / record.interval_s
            rates.append(rate)
            return f"{rate:.2f} {of}" if is_behind else self._named(of, f"{rate:.2f}")

        return field

    def _memory(self) -> Field:
        name = self.draw.choice(["mem", "memory", "max mem", "GPU mem", "vram"])
        unit = self.draw.choice(["MB", "GB", ""])
        self.truth.holds.add("memory")
        return lambda r: self._named(name, f"{8.25 if unit == 'GB' else 8448:g}{unit}")

    def _left(self) -> Field:
        of_run = self.draw.random() < 0.7
        name = self.draw.choice(["eta", "ETA", "remaining"])

        def field(record: Record) -> str:
            end = self.run.total - record.step if of_run else self.run.per_epoch - record.inside
            return self._named(name, str(timedelta(seconds=int(end * self.run.step_s))))

        return field

    def _batch(self) -> Field:
        name, factor = self.draw.choice(
            [("batch_size", 1), ("bs", 1), ("global_batch_size", 4), ("total batch size", 4)]
        )
        return lambda r: self._named(name, f"{self.run.batch * factor}") if r.step else ""

    def _counter(self) -> Field:
        run, draw = self.run, self.draw
        name, epoch = draw.choice(_STEP), draw.choice(_EPOCH)
        e0, base = self.first_epoch, 1 - self.base
        of_epochs = f"/{run.epochs}" if draw.random() < 0.4 else ""
        shape = draw.randrange(5)

        def number(record: Record) -> tuple[int, int]:
            return record.epoch + e0, record.inside - base

        if self.counts == "run":
            total = f"/{run.total}" if self.has_total else ""
            with_epoch = draw.random() < 0.5
            return lambda r: (
                self._named(name, f"{r.step - base}{total}")
                + (
                    f"{self.joint}{self._named(epoch, f'{r.epoch + e0}{of_epochs}')}"
                    if with_epoch
                    else ""
                )
            )
        if self.counts == "samples":
            data = run.per_epoch * run.batch
            return lambda r: (
                f"{epoch}: {r.epoch + e0} [{(r.inside - base) * run.batch}/{data} "
                f"({100 * (r.inside - base) / run.per_epoch:.0f}%)]"
            )
        total = f"/{run.per_epoch}" if self.has_total or shape == 0 else ""

        def field(record: Record) -> str:
            number_of_epoch, inside = number(record)
            whole = f"{number_of_epoch}{of_epochs}"
            return (
                f"{epoch}: [{whole}][{inside}{total}]",
                f"{epoch} {whole}{self.joint}{self._named(name, f'{inside}{total}')}",
                f"[{epoch} {whole}] [{name} {inside}{total}]",
                f"{epoch} [{whole}] {name} [{inside}{total}]",
                f"{epoch}/{name}: {number_of_epoch}/{inside}",
            )[shape]

        return field

    def line(self, record: Record) -> list[str]:
        """Print one record, once for each rank that writes."""
        self.last = record
        head = "" if not self.clock else stamp(self.clock, record.at_s)
        said = self.joint.join(text for make in (self.head, *self.fields) if (text := make(record)))
        if self.ranks == 1:
            return [head + said]
        return [f"{head}[rank {rank}] {said}" for rank in range(self.ranks)]

    def between(self, event: str) -> list[str]:
        """Print what stands between the records."""
        what, *numbers = event.split()
        at = float(numbers[-1])
        head = "" if not self.clock else stamp(self.clock, at)
        if what == "begin":
            texts = [f"arguments: lr=0.001 epochs={self.run.epochs}", "model has 12345678 weights"]
            if int(numbers[0]) and self.is_quiet:
                return []
            if int(numbers[0]) and self.run.restart != "scratch":
                texts.append(f"resuming from checkpoint, epoch {numbers[1]}")
            return [head + text for text in texts]
        if what == "evaluated":
            return self._evaluated(int(numbers[0]) + self.first_epoch, head, at)
        return []

    def _evaluated(self, epoch: int, head: str, at: float) -> list[str]:
        del at
        if not self.run.evaluation_s or self.evaluates == "silent":
            return []
        name = self.draw.choice(["Val", "Validation", "Test"])
        last = f"{head}{name} epoch {epoch}: loss 0.{epoch}7, acc 8{epoch}.1"
        if self.evaluates == "counted" and self.last is not None:
            return [f"{head}{self.head(self.last)}{self.joint}Average PSNR : 28.{epoch}1dB"]
        if self.evaluates == "line":
            return [last, head + "saving checkpoint to model.pth"]
        if self.evaluates == "lines":
            return [f"{head}{name}: [{n}/40] loss 0.{n}, acc 80.{n}" for n in range(0, 40, 10)]
        whole = self.run.evaluation_s
        return [
            f"{name}: {n * 10}%|###| {n}/10 [{clock_text(whole * n / 10)}<"
            f"{clock_text(whole * (1 - n / 10))},  {10 / whole:.2f}it/s]"
            for n in range(11)
        ] + [last]


def lines_of(seed: int) -> tuple[list[str], Truth]:
    """Print a whole run: lines that count steps, whatever else stands on them."""
    draw = random.Random(seed)
    truth = Truth(seed)
    run = draw_run(draw)
    author = Author(run, draw, truth)
    lines: list[str] = []
    last: Record | None = None
    for event in simulate(run, draw, truth):
        if isinstance(event, Record):
            lines += author.line(event)
            last = event
        else:
            lines += author.between(event)
    assert last is not None
    base = 1 if run.prints_first else 0
    truth.last_step = last.step - base
    truth.total_steps = run.total
    if author.is_quiet:
        truth.processes = 1  # nobody can tell
    return lines, truth
