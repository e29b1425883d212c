"""Logs of mmcv 1.x and of mmengine, text and JSON.

mmcv prints means over the logging interval; mmengine prints means over its window (10 steps unless
configured otherwise). After a validation, mmcv's next record carries the evaluation in
``data_time``, after a checkpoint in ``time``; validation records count validation batches.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import number
from pitstop.logs.reader import Reader

NAN = math.nan
_MIB = 1 << 20

_HEAD = re.compile(
    rb"(?P<day>\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d) (?P<time>\d\d:\d\d:\d\d(?:,\d{3})?) - \S+ - "
    rb"(?:[A-Z]+) - (?:Iter|Epoch)(?:\((?P<mode>train|val|test)\))?\s+"
    rb"(?:\[\s*(?P<epoch>\d+)\])?\[\s*(?P<step>\d+)(?:/(?P<of>\d+))?\]\s+"
)
_STAMP = re.compile(rb"(\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d) (\d\d:\d\d:\d\d(?:,\d{3})?) - ")
# "eta: 2 days, 11:45:59" holds the separator, so pairs are found, never split.
_PAIRS = re.compile(
    rb"([A-Za-z_][\w./@-]*): ([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))(?![\w:.])"
)
_OWN = frozenset((b"time", b"data_time", b"memory", b"lr", b"base_lr", b"eta"))
_SETTING = re.compile(rb"\b(samples_per_gpu|workers_per_gpu|batch_size|num_workers)\s*=\s*(\d+)")


class _Text:
    """Reads text lines; both projects share the shape, and differ in separators."""

    def __init__(self, builder: LogBuilder, *, is_mmengine: bool) -> None:
        self._builder = builder
        self._is_mmengine = is_mmengine
        self._in_train_loader = False

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if (b"Iter" in line or b"Epoch" in line) and (found := _HEAD.match(line)) is not None:
            self._record(line, found)
        elif b" - INFO - " in line:
            self._moment(line)
        elif not self._builder.code and b"=" in line:
            self._setting(line)  # the configuration stands before the first record

    def _record(self, line: bytes, found: re.Match[bytes]) -> None:
        builder = self._builder
        day, time, mode, epoch_text, step_text, of_text = found.groups()
        pairs = _PAIRS.findall(line, found.end())
        at = builder.clock.seconds(day, time)
        epoch = number(epoch_text) if epoch_text else NAN
        if mode in (b"val", b"test"):
            self._evaluated(pairs, at, epoch)
            return
        step = inside = float(step_text)
        if epoch_text and of_text:
            builder.steps_per_epoch = int(of_text)
            step += (epoch - 1) * int(of_text)
        else:
            inside = NAN
            if of_text:
                builder.total_steps = int(of_text)
        own = {name: number(value) for name, value in pairs if name in _OWN}
        builder.train(
            step,
            epoch=epoch,
            inside=inside,
            at=at,
            printed=own.get(b"time", NAN),
            data=own.get(b"data_time", NAN),
            lr=own.get(b"lr", NAN),
            memory=own.get(b"memory", NAN) * _MIB,
        )
        builder.scalars(step, [pair for pair in pairs if pair[0] not in _OWN])

    def _evaluated(self, pairs: list[tuple[bytes, bytes]], at: float, epoch: float) -> None:
        metrics = [pair for pair in pairs if pair[0] not in _OWN]
        if not metrics and self._is_mmengine:
            return  # progress inside an evaluation
        builder = self._builder
        builder.evaluation(epoch=epoch, at=at)
        step = builder.last_step if math.isfinite(builder.last_step) else 0.0
        builder.scalars(step, metrics, "val/")

    def _moment(self, line: bytes) -> None:
        if b"Saving checkpoint" in line:
            self._builder.checkpoint(at=self._at(line))
        elif b"Start running" in line or b"resumed epoch" in line or b"resumed from" in line:
            self._builder.restart("the log says that a run starts or is resumed")
            self._builder.mark(self._at(line))

    def _at(self, line: bytes) -> float:
        stamp = _STAMP.match(line)
        return self._builder.clock.seconds(stamp[1], stamp[2]) if stamp else NAN

    def _setting(self, line: bytes) -> None:
        if b"_dataloader" in line:
            self._in_train_loader = b"train_dataloader" in line
        for name, value in _SETTING.findall(line):
            if name.endswith(b"_per_gpu") or self._in_train_loader:
                self._keep(name, int(value))

    def _keep(self, name: bytes, value: int) -> None:
        builder = self._builder
        builder.settings.setdefault(name.decode(), str(value))
        if name in (b"samples_per_gpu", b"batch_size"):
            if builder.batch_size is None:
                builder.batch_size, builder.batch_size_from = value, f"{name.decode()} in the log"
        elif builder.workers is None:
            builder.workers = value


_JSON_OWN = frozenset(
    ("mode", "epoch", "iter", "step", "lr", "base_lr", "memory", "time", "data_time", "eta")
)


class _Json:
    """Reads JSON lines; in mmcv's the step may be that of the epoch, whose length is not said."""

    def __init__(self, builder: LogBuilder, *, is_mmengine: bool) -> None:
        self._builder = builder
        self._is_mmengine = is_mmengine
        self._base = 0.0
        self._inside = 0.0
        self._epoch = NAN

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if not line.startswith(b"{"):
            return
        values = json.loads(line)
        if not isinstance(values, dict):
            raise TypeError("no object")
        is_train = values.get("mode") == "train" if not self._is_mmengine else "iter" in values
        if is_train:
            self._train(values)
        elif values.get("mode") in ("val", "test") or (self._is_mmengine and "step" in values):
            self._evaluated(values)
        elif not self._is_mmengine:
            self._builder.restart("the log says that a run starts")

    def _train(self, values: Mapping[str, Any]) -> None:
        builder = self._builder
        epoch = _number(values.get("epoch"))
        step = _number(values.get("step" if self._is_mmengine else "iter"))
        if not math.isfinite(step):
            raise ValueError("a record without its step")
        inside = NAN
        if not self._is_mmengine:
            if step < self._inside and epoch > self._epoch:
                self._base += self._inside
                builder.note(
                    "steps are counted anew in each epoch and the length of an epoch is not said: "
                    "step = printed step + last printed step of each epoch before"
                )
            self._inside, self._epoch = step, epoch
            step += self._base
        rate = values.get("lr")
        builder.train(
            step,
            epoch=epoch,
            inside=inside,
            printed=_number(values.get("time")),
            data=_number(values.get("data_time")),
            lr=_number(next(iter(rate.values()), None) if isinstance(rate, dict) else rate),
            memory=_number(values.get("memory")) * _MIB,
        )
        self._scalars(step, values, "")

    def _evaluated(self, values: Mapping[str, Any]) -> None:
        self._builder.evaluation(epoch=_number(values.get("epoch")))
        step = self._builder.last_step
        self._scalars(step if math.isfinite(step) else 0.0, values, "val/")

    def _scalars(self, step: float, values: Mapping[str, Any], prefix: str) -> None:
        for name, value in values.items():
            if name not in _JSON_OWN and type(value) in (int, float):
                self._builder.scalar(prefix + name, step, float(value))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else NAN


_MEMORY = "memory in MiB x 2^20"
_BY_EPOCH = "(epoch - 1) x steps per epoch + step, where the log counts by epoch"

MMCV_TEXT = Reader(
    name="mmcv text",
    defined_by="open-mmlab/mmcv (1.x): mmcv/runner/hooks/logger/text.py, mmcv/utils/logging.py",
    start=lambda builder: _Text(builder, is_mmengine=False).feed,
    needle=b"[",
    mark=re.compile(
        rb"\d\d:\d\d:\d\d,\d{3} - \S+ - [A-Z]+ - (?:Iter|Epoch)(?:\((?:train|val)\))? ?"
        rb"(?:\[\d+\])?\[\d+(?:/\d+)?\]\s"
    ),
    step="window mean",
    data="window mean",
    scalars="window mean",
    memory_formula=_MEMORY,
    counting=_BY_EPOCH,
)
MMCV_JSON = Reader(
    name="mmcv JSON",
    defined_by="open-mmlab/mmcv (1.x): mmcv/runner/hooks/logger/text.py",
    start=lambda builder: _Json(builder, is_mmengine=False).feed,
    takes_long_lines=True,
    needle=b'"mode"',
    mark=re.compile(rb'^\{"mode": ?"(?:train|val)", ?"epoch": ?\d+, ?"iter": ?\d+'),
    step="window mean",
    data="window mean",
    scalars="window mean",
    memory_formula=_MEMORY,
    counting="step, plus the last printed step of each epoch before where it begins anew",
)
MMENGINE_TEXT = Reader(
    name="mmengine text",
    defined_by=(
        "open-mmlab/mmengine: mmengine/runner/log_processor.py, mmengine/logging/logger.py"
    ),
    start=lambda builder: _Text(builder, is_mmengine=True).feed,
    needle=b"[",
    mark=re.compile(
        rb"\d\d:\d\d:\d\d - \S+ - [A-Z]+ - (?:Iter|Epoch)\((?:train|val|test)\)\s+"
        rb"(?:\[\s*\d+\])?\[\s*\d+/\d+\]  "
    ),
    step="window mean",
    data="window mean",
    scalars="window mean",
    memory_formula=_MEMORY,
    counting=_BY_EPOCH,
    notes=(
        "times, losses and gradient norms are means over the last 10 steps unless configured "
        "otherwise, whatever the interval of the records",
    ),
)
MMENGINE_JSON = Reader(
    name="mmengine JSON",
    defined_by=(
        "open-mmlab/mmengine: mmengine/visualization/vis_backend.py (LocalVisBackend), "
        "mmengine/runner/log_processor.py"
    ),
    start=lambda builder: _Json(builder, is_mmengine=True).feed,
    takes_long_lines=True,
    needle=b'"step"',
    mark=re.compile(rb'^\{(?=.*"(?:data_time|time|loss)": ).*"step": ?\d+\}'),
    step="window mean",
    data="window mean",
    scalars="window mean",
    memory_formula=_MEMORY,
    notes=("times are means over the last 10 steps unless configured otherwise",),
)
READERS = (MMCV_TEXT, MMCV_JSON, MMENGINE_TEXT, MMENGINE_JSON)
