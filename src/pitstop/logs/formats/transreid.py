"""Logs of the TransReID family: reid-strong-baseline, TransReID, TOP-ReID, IRRA and others.

``Loss`` and ``Acc`` are means since the epoch began. "Time per batch" of a finished epoch holds
the start of the loader's workers; reid-strong-baseline prints the time of the whole epoch under
that name. The file begins with a YAML dump of the configuration.
"""

import math
import re

import numpy as np

from pitstop.logs.builder import EPOCH, TRAIN, LogBuilder
from pitstop.logs.numbers import number
from pitstop.logs.reader import Reader
from pitstop.logs.rows import Rows
from pitstop.records.logs.windows import Disagreement

NAN = math.nan

_RECORD = re.compile(rb"Epoch\[(\d+)\] Iter(?:ation)?\[(\d+)/(\d+)\],? ")
_DONE = re.compile(
    rb"Epoch (\d+) done\. Time per (batch|epoch): (\d+\.?\d*)\[s\] Speed: (\d+\.?\d*)\[samples/s\]"
)
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:,\d{3})?) \S+ [A-Z]+: ")
_PAIRS = re.compile(
    rb"([A-Za-z_]\w*(?: \w+)*): ([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))(?=[,\s:]|$)"
)
_METRIC = re.compile(rb"(mAP|Rank-\d+)\s*: ?(\d+\.?\d*)%")
_SETTING = re.compile(rb"^(\s*)([A-Z][A-Z0-9_]*):(?: (\S.*))?$")
_KEPT = frozenset(
    ("IMS_PER_BATCH", "NUM_WORKERS", "NUM_INSTANCE", "MAX_EPOCHS", "EVAL_PERIOD", "LOG_PERIOD",
     "CHECKPOINT_PERIOD", "DIST_TRAIN", "SAMPLER")
)  # fmt: skip
_FORMULA = (
    "difference of timestamps / steps between the records; in epoch records the printed time of a "
    "batch, or batch size / Speed where that is the time of the epoch"
)
_IS_EPOCH = 3.0
_DIFFERS = 1.2
_HALF_A_MS = 0.0005
"""Rounding of a printed time."""


class _Log:
    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._section = ""
        self._ended_at = NAN
        self._length = 0

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if b"Epoch[" in line and b"done." not in line:
            if (found := _RECORD.search(line)) is not None:
                self._record(line, found)
        elif b"Epoch" in line:
            self._epoch(line)
        elif b"%" in line and (found := _METRIC.search(line)) is not None:
            builder = self._builder
            step = max(builder.last_step, 0.0)
            builder.scalars(step, [(found[1], found[2])], "val/")
            builder.mark(builder.clock.at(_STAMP, line))
        elif b"tart training" in line:
            self._builder.mark(self._builder.clock.at(_STAMP, line))
        elif b":" in line and not len(self._builder):
            self._setting(line)

    def _epoch(self, line: bytes) -> None:
        # A bar that names the last record may stand before the end of the epoch in one line.
        if (found := _DONE.search(line)) is not None:
            self._done(line, found)
        elif b"Validation Results" in line:
            at = self._builder.clock.at(_STAMP, line)
            self._builder.evaluation(
                at=at,
                wall_s=at - self._ended_at,
                formula="timestamp of the results - timestamp of the end of the epoch",
            )

    def _record(self, line: bytes, found: re.Match[bytes]) -> None:
        builder = self._builder
        epoch, inside, length = number(found[1]), number(found[2]), int(found[3])
        builder.steps_per_epoch = self._length = length
        step = (epoch - 1) * length + inside
        at = builder.clock.at(_STAMP, line)
        pairs = _PAIRS.findall(line, found.end())
        rate = b"nan"
        if pairs and pairs[-1][0] == b"Base Lr":
            rate = pairs.pop()[1]
        builder.train(
            step,
            epoch=epoch,
            inside=inside,
            at=at,
            total=at,
            error=builder.clock.resolution_s / 2,
            lr=number(rate),
        )
        builder.scalars(step, pairs)

    def _done(self, line: bytes, found: re.Match[bytes]) -> None:
        builder = self._builder
        at = builder.clock.at(_STAMP, line)
        epoch = number(found[1])
        step = epoch * self._length if self._length else NAN
        builder.summary(
            EPOCH, step=step, epoch=epoch, at=at, printed=number(found[3]), rate=number(found[4])
        )
        if found[2] == b"epoch":
            builder.version = "Time per epoch"
        builder.mark(at)
        self._ended_at = at

    def _setting(self, line: bytes) -> None:
        found = _SETTING.match(line)
        if found is None:
            return
        name = found[2].decode()
        if found[3] is None:
            self._section = name
            return
        if name in _KEPT and self._section != "TEST":
            value = found[3].decode("utf-8", "replace").strip()
            self._builder.settings.setdefault(name, value)
            self._count(name, value)

    def _count(self, name: str, value: str) -> None:
        builder = self._builder
        if not value.isdigit():
            return
        if name == "IMS_PER_BATCH" and self._section == "SOLVER":
            builder.batch_size = int(value)
            builder.batch_size_from = "SOLVER.IMS_PER_BATCH in the log"
        elif name == "NUM_WORKERS":
            builder.workers = int(value)
        elif name == "MAX_EPOCHS":
            builder.total_epochs = int(value)


def judge(builder: LogBuilder, rows: Rows) -> list[Disagreement]:
    """Find what "Time per batch" is, and how many steps an epoch really had."""
    found: dict[str, Disagreement] = {}
    steady = rows.steady_s()
    for row in np.flatnonzero(rows.code == EPOCH).tolist():
        first = _first_of_epoch(rows, row)
        printed = float(rows.raw["printed"][row])
        length = builder.steps_per_epoch or 0
        wall = float(rows.raw["at"][row] - rows.raw["since"][first]) if first >= 0 else NAN
        per_batch = _true_batch_s(builder, rows, row, wall)
        rows.step_s[row] = per_batch
        if length:
            rows.first[row] = rows.raw["step"][row] - length + 1
        if per_batch < printed / _IS_EPOCH:
            if builder.version != "Time per epoch":
                _count(found, _epoch_named_batch(builder, rows, row, per_batch))
        elif steady > 0 and printed > _DIFFERS * steady and first >= 0:
            _count(found, _start_up(rows, row, first, steady))
        _fewer_steps(builder, found, wall=wall, per_batch=per_batch)
    if (fewer := found.get("fewer steps than announced")) is not None and fewer.rebuilt is not None:
        builder.steps_per_epoch = int(fewer.rebuilt)
    return list(found.values())


def _count(found: dict[str, Disagreement], new: Disagreement) -> None:
    """Keep the first of each kind, and how many there were."""
    old = found.get(new.code)
    times = 1 if old is None else old.times + 1
    kept = new if old is None else old
    fields = {name: getattr(kept, name) for name in type(kept).__dataclass_fields__}
    found[new.code] = Disagreement(**{**fields, "times": times})


def _first_of_epoch(rows: Rows, row: int) -> int:
    """Find the first training row of the epoch that ends with this row; -1 when there is none."""
    same = (
        (rows.code == TRAIN)
        & (rows.raw["epoch"] == rows.raw["epoch"][row])
        & (rows.raw["attempt"] == rows.raw["attempt"][row])
    )
    places = np.flatnonzero(same[:row])
    return int(places[0]) if len(places) else -1


def _true_batch_s(builder: LogBuilder, rows: Rows, row: int, wall: float) -> float:
    """Give the time of a batch: as printed, unless that is the time of the epoch."""
    printed, speed = float(rows.raw["printed"][row]), float(rows.raw["rate"][row])
    length = builder.steps_per_epoch or 0
    if builder.batch_size and speed > 0:
        by_speed = builder.batch_size / speed
        return by_speed if printed > _IS_EPOCH * by_speed else printed
    if builder.version == "Time per epoch" or (length > _IS_EPOCH and printed > 0.5 * wall):
        return printed / length if length else NAN
    return printed


def _epoch_named_batch(builder: LogBuilder, rows: Rows, row: int, per_batch: float) -> Disagreement:
    printed, speed = float(rows.raw["printed"][row]), float(rows.raw["rate"][row])
    how = (
        f"{builder.batch_size} samples / {speed:g} samples/s"
        if builder.batch_size
        else f"{printed:g} s / {builder.steps_per_epoch} steps"
    )
    return Disagreement(
        code="epoch named batch",
        message=(
            f'"Time per batch: {printed:g}[s]" is the time of the whole epoch; a batch took '
            f"{per_batch:.3g} s ({how})"
        ),
        printed=printed,
        rebuilt=per_batch,
        unit="s",
        attempt=int(rows.raw["attempt"][row]),
        step=_whole(rows.raw["step"][row]),
    )


def _start_up(rows: Rows, row: int, first: int, steady: float) -> Disagreement:
    printed = float(rows.raw["printed"][row])
    since, inside = rows.raw["since"][first], rows.raw["inside"][first]
    extra = float(rows.raw["total"][first] - since - inside * steady)
    return Disagreement(
        code="start-up in the mean",
        message=(
            f'"Time per batch: {printed:g}[s]" is {steady:.3g} s a step plus {extra:.0f} s before '
            f"the first one: timestamp of the epoch's first record - end of the epoch before - "
            f"{inside:.0f} x {steady:.3g} s"
        ),
        printed=printed,
        rebuilt=steady,
        unit="s",
        extra_s=extra,
        attempt=int(rows.raw["attempt"][row]),
        step=_whole(rows.raw["step"][row]),
    )


def _fewer_steps(
    builder: LogBuilder, found: dict[str, Disagreement], *, wall: float, per_batch: float
) -> None:
    """The announced length of an epoch is an estimate of the sampler's; time / time is exact."""
    announced = builder.steps_per_epoch
    steps = wall / per_batch if per_batch > 0 else NAN
    if not announced or not math.isfinite(steps) or "epoch named batch" in found:
        return
    counted = round(steps)
    # What the printed time is rounded by is a step or more of a long epoch: then none is named.
    rounding = _HALF_A_MS * steps / per_batch
    if max(abs(steps - counted), rounding) > 0.1 or not 0.5 * announced < counted < announced:
        return
    _count(
        found,
        Disagreement(
            code="fewer steps than announced",
            message=(
                f"an epoch has {counted} steps, not the announced {announced}: time of the epoch "
                "by timestamps / printed time of a batch"
            ),
            printed=float(announced),
            rebuilt=float(counted),
            unit="steps",
        ),
    )


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


TRANSREID = Reader(
    name="TransReID family",
    defined_by=(
        "damo-cv/TransReID: processor/processor.py; "
        "michuanhaohao/reid-strong-baseline: engine/trainer.py"
    ),
    start=lambda builder: _Log(builder).feed,
    needle=b"Epoch",
    mark=re.compile(rb"Epoch\[\d+\] Iter(?:ation)?\[\d+/\d+\],? |Epoch \d+ done\. Time per "),
    rebuild=_FORMULA,
    step="per epoch",
    scalars="running mean of the epoch",
    rate="per epoch",
    counting="(epoch - 1) x announced steps per epoch + step",
    judge=judge,
    notes=(
        "losses and accuracies are means since the epoch began",
        "steps are counted by the announced length of an epoch; a sampler may yield fewer",
    ),
)
READERS = (TRANSREID,)
