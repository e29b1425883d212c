"""Logs of KAIR (SwinIR, VRT and others): ``<epoch:  0, iter:     200, lr:1.000e-04> G_loss: ...``.

No times are printed: they come from the timestamps, which have two digits for the year.
"""

import math
import re
from collections.abc import Sequence

from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import number
from pitstop.logs.reader import Reader

NAN = math.nan
_HEAD = re.compile(rb"<epoch: *(\d+), iter: *(\d+(?:,\d{3})*), lr:([\d.e+-]+)> ")
_TESTED = re.compile(rb"<epoch: *(\d+), iter: *(\d+(?:,\d{3})*), Average ")
_METRIC = re.compile(rb"(PSNR_Y|SSIM_Y|PSNR|SSIM) ?: ?(\d+\.?\d*)")
_STAMP = re.compile(rb"(\d\d-\d\d-\d\d) (\d\d:\d\d:\d\d\.\d{3}) : ")
# A line that begins with its timestamp: both in one go.
_USUAL = re.compile(_STAMP.pattern + _HEAD.pattern)
_PAIRS = re.compile(rb"([A-Za-z_]\w*): ([-+]?[\dni][\w.+-]*)")
_SETTING = re.compile(rb"\b(dataloader_batch_size|dataloader_num_workers|num_gpu): (\d+)")


class _Log:
    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._settings: dict[str, int] = {}

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if b"<epoch:" in line:
            self._record(line)
        elif b"-->" in line and b"dB" in line:
            self._builder.evaluation(at=self._builder.clock.at(_STAMP, line))
        elif b"Saving the model" in line:
            self._builder.checkpoint(at=self._builder.clock.at(_STAMP, line))
        elif b"dataloader_" in line or b"num_gpu" in line:
            self._setting(line)

    def _record(self, line: bytes) -> None:
        builder = self._builder
        if (found := _USUAL.match(line)) is not None:
            day, time, *head = found.groups()
            self._train(line, found.end(), head, builder.clock.seconds(day, time))
            return
        at = builder.clock.at(_STAMP, line)
        place = line.find(b"<epoch:")
        if (found := _HEAD.match(line, place)) is not None:
            self._train(line, found.end(), found.groups(), at)
        elif (found := _TESTED.match(line, place)) is not None:
            builder.evaluation(at=at)
            step = float(found[2].replace(b",", b""))
            builder.scalars(step, _METRIC.findall(line, found.end()), "val/")

    def _train(self, line: bytes, end: int, head: Sequence[bytes], at: float) -> None:
        builder = self._builder
        epoch, count, rate = head
        step = float(count.replace(b",", b""))
        builder.brief(
            step, epoch=number(epoch), at=at, error=builder.clock.resolution_s / 2, lr=number(rate)
        )
        builder.scalars(step, _PAIRS.findall(line, end))

    def _setting(self, line: bytes) -> None:
        builder = self._builder
        for name, value in _SETTING.findall(line):
            key = name.decode()
            builder.settings.setdefault(key, value.decode())
            self._settings.setdefault(key, int(value))
        ranks = self._settings.get("num_gpu", 1)
        batch = self._settings.get("dataloader_batch_size")
        if batch is not None and ranks and builder.batch_size is None:
            builder.batch_size = batch // ranks
            builder.batch_size_from = "dataloader_batch_size / num_gpu in the log"
        workers = self._settings.get("dataloader_num_workers")
        builder.workers = workers // ranks if workers is not None and ranks else builder.workers


KAIR = Reader(
    name="KAIR",
    defined_by="cszn/KAIR: main_train_psnr.py, utils/utils_logger.py",
    start=lambda builder: _Log(builder).feed,
    needle=b"<epoch:",
    mark=_HEAD,
    rebuild="difference of timestamps / steps between the records",
    scalars="last step",
    counting="iter without its thousands separators",
)
READERS = (KAIR,)
