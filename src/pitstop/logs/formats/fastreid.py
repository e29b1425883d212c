"""Logs of fast-reid: the console, ``log.txt`` and ``metrics.json``.

The printed ``time`` is the mean since the run began, ``data_time`` that of the last 20 steps, and
each loss the median of 200: all hide what a single step did. So times of a step come from
timestamps; these have no year and whole seconds.
"""

import json
import math
import re

from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import number
from pitstop.logs.reader import Feed, Reader

NAN = math.nan
_MIB = 1 << 20

_STAMP = re.compile(rb"\[(\d\d/\d\d) (\d\d:\d\d:\d\d)(?:\]| )")
_PROGRESS = re.compile(rb" (?:epoch/iter: (\d+)/|iter: )(\d+)  ")
_PAIRS = re.compile(rb"(\w[\w./-]*): ([-+]?(?:\d[\d.]*(?:e[-+]\d+)?|nan|inf))(?=[ M]|$)")
_OWN = frozenset((b"time", b"data_time", b"lr", b"max_mem"))
_INFERENCE = re.compile(rb"Total inference time: (?:(\d+) days?, )?(\d+):(\d\d):(\d\d(?:\.\d+)?) ")
_LOGGER = re.compile(rb"fastreid|\bd2\.|detectron2|fvcore")  # detectron2 prints the same lines
_SETTING = re.compile(rb"\b(IMS_PER_BATCH|NUM_WORKERS): (\d+)")
_FORMULA = "difference of timestamps / steps between the records"


class _Text:
    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if b"iter: " in line and (found := _PROGRESS.search(line)) is not None:
            self._record(line, found)
        elif _LOGGER.search(line) is not None:
            self._other(line)
        elif not self._builder.code and b": " in line:
            self._setting(line)  # the configuration stands before the first record

    def _record(self, line: bytes, found: re.Match[bytes]) -> None:
        builder = self._builder
        at = builder.clock.at(_STAMP, line)
        step = float(found[2])
        pairs = _PAIRS.findall(line, found.end())
        own = {name: number(value) for name, value in pairs if name in _OWN}
        builder.version = "epoch/iter" if found[1] else "iter (0.x)"
        builder.train(
            step,
            epoch=number(found[1]) if found[1] else NAN,
            at=at,
            total=at,
            error=builder.clock.resolution_s / 2,
            printed=own.get(b"time", NAN),
            data=own.get(b"data_time", NAN),
            lr=own.get(b"lr", NAN),
            memory=own.get(b"max_mem", NAN) * _MIB,
        )
        builder.scalars(step, [pair for pair in pairs if pair[0] not in _OWN])

    def _other(self, line: bytes) -> None:
        builder = self._builder
        at = builder.clock.at(_STAMP, line)
        if (found := _INFERENCE.search(line)) is not None:
            days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
            wall_s = days * 86400 + hours * 3600 + minutes * 60 + seconds
            builder.evaluation(at=at, wall_s=wall_s, formula="printed: Total inference time")
        elif b"Start inference" in line or b"Prepare testing set" in line:
            builder.evaluation(at=at)
        elif b"Saving checkpoint" in line:
            builder.checkpoint(at=at)
        elif b"Starting training from" in line:
            builder.restart("the log says that training starts")
            builder.mark(at)
        else:
            self._setting(line)

    def _setting(self, line: bytes) -> None:
        builder = self._builder
        for name, value in _SETTING.findall(line):
            builder.settings.setdefault(name.decode(), value.decode())
            if name == b"NUM_WORKERS" and builder.workers is None:
                builder.workers = int(value)
            elif name == b"IMS_PER_BATCH":
                builder.note("IMS_PER_BATCH counts the samples of all ranks of a step")


def _json(builder: LogBuilder) -> Feed:
    def feed(line: bytes) -> None:
        if not line.startswith(b"{"):
            return
        values = json.loads(line)
        step = float(values["iteration"])
        numbers = {k: float(v) for k, v in values.items() if type(v) in (int, float)}
        if "time" in numbers or "data_time" in numbers:
            builder.train(
                step,
                printed=numbers.get("time", NAN),
                data=numbers.get("data_time", NAN),
                lr=numbers.get("lr", NAN),
            )
        for name, value in numbers.items():
            if name not in ("iteration", "time", "data_time", "lr", "eta_seconds"):
                builder.scalar(name, step, value)

    return feed


FASTREID_TEXT = Reader(
    name="fast-reid text",
    defined_by=(
        "JDAI-CV/fast-reid: fastreid/utils/events.py (CommonMetricPrinter), "
        "fastreid/utils/logger.py, fastreid/evaluation/evaluator.py"
    ),
    start=lambda builder: _Text(builder).feed,
    needle=b"iter: ",
    mark=re.compile(
        rb"\[\d\d/\d\d \d\d:\d\d:\d\d(?:\]| fastreid).* (?:epoch/iter: \d+/|iter: )\d+  "
    ),
    rebuild=_FORMULA,
    step="running mean of the run",
    data="window mean",
    scalars="median of the window",
    memory_formula="max_mem in MiB x 2^20",
    notes=("printed time is the mean since the run began; each loss is the median of 200 steps",),
)
FASTREID_JSON = Reader(
    name="fast-reid JSON",
    defined_by="JDAI-CV/fast-reid: fastreid/utils/events.py (JSONWriter)",
    start=_json,
    takes_long_lines=True,
    needle=b'"iteration"',
    mark=re.compile(rb'^\{.*"iteration": ?\d+'),
    step="median of the window",
    data="median of the window",
    scalars="median of the window",
    notes=("times and losses are medians of the last 20 steps",),
)
READERS = (FASTREID_TEXT, FASTREID_JSON)
