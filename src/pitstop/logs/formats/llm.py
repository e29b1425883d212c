"""Logs of nanoGPT and of torchtitan: one line a record, counted in steps.

nanoGPT prints the time of one single step out of each interval, and where an evaluation came
before, that step holds it. torchtitan prints tokens per second of one device over the interval;
times of a step come from its timestamps.
"""

import math
import re

from pitstop.logs.batch import Batch, Layout
from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import COUNT, FINITE, number
from pitstop.logs.reader import Reader

NAN = math.nan
_GIB = 1 << 30

_ITER = re.compile(rb"iter (\d+): loss ([^ ,]+), time ([\d.]+)ms(?:, mfu (-?[\d.]+)%)?")
_STEP = re.compile(rb"^step (\d+): train loss (\S+), val loss (\S+)")


# A whole record as it is nearly always printed; -100 % stands for "not known yet".
_ITER_USUAL = re.compile(
    rb"iter " + COUNT + rb": loss " + FINITE + rb", time (\d++\.?+\d*+)ms, mfu (\d++\.?+\d*+)%"
)  # fmt: skip
_ITER_LAYOUT = Layout(
    step=0, printed=2, printed_unit=1000.0, curves=((b"loss", 1), (b"mfu_percent", 3))
)


class _NanoGpt:
    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._batch = Batch(builder)
        self._batch.set_layout(_ITER_LAYOUT)

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if (found := _ITER_USUAL.match(line)) is not None:
            self._batch.add(found.groups())
        elif line.startswith((b"iter ", b"step ", b"saving checkpoint", b"Resuming training")):
            self._batch.flush()
            self._unusual(line)

    def _unusual(self, line: bytes) -> None:
        builder = self._builder
        if (found := _ITER.match(line)) is not None:
            step_text, loss, time_ms, mfu = found.groups()
            step = float(step_text)
            builder.train(step, printed=number(time_ms) / 1000)
            builder.scalar("loss", step, number(loss))
            if mfu and mfu != b"-100.00":
                builder.scalar("mfu_percent", step, number(mfu))
        elif (found := _STEP.match(line)) is not None:
            step = float(found[1])
            builder.evaluation(step=step)
            builder.scalars(step, [(b"val/train_loss", found[2]), (b"val/loss", found[3])])
        elif line.startswith(b"saving checkpoint"):
            builder.checkpoint()
        elif line.startswith(b"Resuming training from"):
            builder.restart("the log says that training is resumed")


_TITAN = re.compile(rb"(?<!validate )step: *(\d+)  loss: +(\S+)  ")
_VALIDATED = re.compile(rb"validate step: *(\d+)  loss: +(\S+)  ")
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d,\d{3}) - ")
_TITAN_PAIRS = re.compile(
    rb"(loss|grad_norm|tps|tflops|mfu): +(-?\d+(?:,\d{3})*(?:\.\d+)?|nan|inf)(?=\s|%|$)"
)
# A whole record as it is usually printed: what the other patterns find in it, in one go.
_TITAN_USUAL = re.compile(
    rb"(?<!validate )step: *(\d+)  loss: +(-?\d+(?:\.\d+)?)  grad_norm: +(-?\d+(?:\.\d+)?)  "
    rb"memory: +(\d+\.?\d*)GiB\([\d.]+%\)  tps: +(\d+(?:,\d{3})*)  "
    rb"tflops: +(\d+(?:\.\d+)?)  mfu: +(\d+(?:\.\d+)?)%\Z"
)
_TITAN_NAMES = (b"loss", b"grad_norm", b"tps", b"tflops", b"mfu")
_TITAN_MEMORY = re.compile(rb"memory: +(\d+\.?\d*)GiB")
_TITAN_SETTING = re.compile(rb"local batch size (\d+), global batch size (\d+)")


class _Titan:
    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if b"step: " in line:
            self._record(line)
        elif b"Saving the checkpoint" in line or b"Saving a full checkpoint" in line:
            self._builder.checkpoint(at=self._builder.clock.at(_STAMP, line))
        elif b"Training starts at step" in line:
            self._begins(line)

    def _record(self, line: bytes) -> None:
        builder = self._builder
        at = builder.clock.at(_STAMP, line)
        if (found := _TITAN_USUAL.match(line, line.find(b"step:"))) is not None:
            self._usual(found, at)
        elif (found := _VALIDATED.search(line)) is not None:
            builder.evaluation(step=number(found[1]), at=at)
            builder.scalars(number(found[1]), [(b"val/loss", found[2])])
        elif (found := _TITAN.search(line)) is not None:
            memory = _TITAN_MEMORY.search(line, found.end())
            step = float(found[1])
            builder.train(
                step,
                at=at,
                total=at,
                error=builder.clock.resolution_s / 2,
                memory=number(memory[1]) * _GIB if memory else NAN,
            )
            pairs = _TITAN_PAIRS.findall(line, found.start())
            builder.scalars(step, [(name, value.replace(b",", b"")) for name, value in pairs])

    def _usual(self, found: re.Match[bytes], at: float) -> None:
        builder = self._builder
        step_text, loss, norm, memory, tps, *rest = found.groups()
        step = float(step_text)
        builder.train(
            step,
            at=at,
            total=at,
            error=builder.clock.resolution_s / 2,
            memory=number(memory) * _GIB,
        )
        values = (loss, norm, tps.replace(b",", b""), *rest)
        builder.scalars(step, zip(_TITAN_NAMES, values, strict=True))

    def _begins(self, line: bytes) -> None:
        builder = self._builder
        builder.restart("the log says that training starts")
        builder.mark(builder.clock.at(_STAMP, line))
        if (found := _TITAN_SETTING.search(line)) is not None and int(found[1]):
            local, whole = int(found[1]), int(found[2])
            builder.batch_size, builder.batch_size_from = local, "local batch size in the log"
            builder.note("global batch size / local batch size = ranks x accumulation")
            builder.settings["global batch size"] = str(whole)


NANOGPT = Reader(
    name="nanoGPT",
    defined_by="karpathy/nanoGPT: train.py",
    start=lambda builder: _NanoGpt(builder).feed,
    needle=b"iter ",
    mark=_ITER,
    step="last step",
    step_formula="time in ms / 1000",
    scalars="last step",
    notes=("each record prints the time of a single step, not of the interval",),
)
TORCHTITAN = Reader(
    name="torchtitan",
    defined_by="pytorch/torchtitan: torchtitan/components/metrics.py, torchtitan/tools/logging.py",
    start=lambda builder: _Titan(builder).feed,
    needle=b"step: ",
    mark=re.compile(rb"step: *\d+  loss: +\S+  (?:grad_norm: +\S+  )?memory: +\d"),
    rebuild="difference of timestamps / steps between the records",
    scalars="last step",
    memory_formula="memory in GiB x 2^30 (peak reserved since the record before)",
    notes=("tps is tokens per second of one device, not samples",),
)
READERS = (NANOGPT, TORCHTITAN)
