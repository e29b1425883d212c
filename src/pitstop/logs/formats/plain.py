"""Lines of ``key=value`` or ``key: value`` pairs of nobody's format in particular.

Read only where no other format is found. What a number sums up is not known, so it is not said;
times are taken from keys whose name leaves no doubt about their unit.
"""

import math
import re
from collections.abc import Container
from dataclasses import dataclass

from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import FINITE, number
from pitstop.logs.reader import Feed, Reader

NAN = math.nan
_PAIR = re.compile(
    rb"([A-Za-z_\x80-\xff][\w./@()\x80-\xff-]*)\s*[=:]\s*"
    rb"(-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))(?![\w.:]|/\w)"
)
_PLACE = re.compile(rb"^\[\s*(\d+),\s*(\d+)\]")
_SPOKEN = re.compile(rb"(?i)\bepoch[ :=]+(\d+),? *(?:batch|iter|iteration|step)[ :=]+(\d+)")
_STAMP = re.compile(rb"(\d{4}[-/]\d\d[-/]\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{3})?)")
_STEP = frozenset((b"step", b"global_step", b"iter", b"iteration", b"it", b"steps", b"batch"))
_EPOCH = frozenset((b"epoch", b"ep"))
_SECONDS = {
    b"step_s": 1.0, b"step_time": 1.0, b"iter_time": 1.0, b"time_per_iter": 1.0, b"s/it": 1.0,
    b"batch_time": 1.0, b"step_time_s": 1.0, b"step_ms": 1e-3, b"step_time_ms": 1e-3,
    b"iter_time_ms": 1e-3, b"time_ms": 1e-3, b"ms/step": 1e-3,
}  # fmt: skip
_WAITS = {
    b"data_time": 1.0, b"data_s": 1.0, b"data_wait_s": 1.0, b"data_time_ms": 1e-3, b"data_ms": 1e-3
}  # fmt: skip
_RATES = frozenset((b"samples/s", b"samples_per_s", b"samples_per_sec", b"imgs/s", b"img/s"))
_MOST_SHAPES = 256
_NEVER = re.compile(rb"(?!)")
_LR = frozenset((b"lr", b"learning_rate"))


@dataclass(slots=True)
class _Plan:
    """Which pair of a line of this shape is what; -1 for none."""

    step: int
    epoch: int
    time: int
    time_unit: float
    wait: int
    wait_unit: float
    rate: int
    lr: int
    others: list[tuple[bytes, int]]
    """Names and places of the pairs that are nothing of the above."""


def _plan(names: tuple[bytes, ...]) -> _Plan:
    lower = [name.lower() for name in names]

    def first(wanted: Container[bytes]) -> int:
        return next((place for place, name in enumerate(lower) if name in wanted), -1)

    time, wait = first(_SECONDS), first(_WAITS)
    own = {first(_STEP), first(_EPOCH), time, wait, first(_RATES), first(_LR)}
    return _Plan(
        step=first(_STEP),
        epoch=first(_EPOCH),
        time=time,
        time_unit=_SECONDS[lower[time]] if time >= 0 else 1.0,
        wait=wait,
        wait_unit=_WAITS[lower[wait]] if wait >= 0 else 1.0,
        rate=first(_RATES),
        lr=first(_LR),
        others=[(name, place) for place, name in enumerate(names) if place not in own],
    )


class _Lines:
    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._plans: dict[tuple[bytes, ...], _Plan] = {}
        self._base = 0.0
        self._inside = 0.0
        self._epoch = NAN
        self._usual = _NEVER
        self._usual_plan: _Plan | None = None
        self._learnt = 0

    def feed(self, line: bytes) -> None:
        """Take one line."""
        plan = self._usual_plan
        if plan is not None and (found := self._usual.match(line)) is not None:
            day, time, *texts = found.groups()
            at = self._builder.clock.seconds(day, time) if day else NAN
            epoch = number(texts[plan.epoch]) if plan.epoch >= 0 else NAN
            self._record(at, (float(texts[plan.step]), epoch), texts, plan)
        elif b"=" in line or b": " in line:
            self._any(line)

    def _any(self, line: bytes) -> None:
        pairs = _PAIR.findall(line)
        if not pairs:
            return
        names = tuple([name for name, _ in pairs])
        plan = self._plans.get(names)
        if plan is None:
            if len(self._plans) >= _MOST_SHAPES:
                self._plans.clear()
            plan = self._plans[names] = _plan(names)
        place = None
        if plan.step < 0 or line[:1] == b"[":
            place = _PLACE.match(line) or _SPOKEN.search(line)
        texts = [text for _, text in pairs]
        stamp = _STAMP.search(line, 0, 64)
        if place is not None:
            at = self._builder.clock.seconds(stamp[1], stamp[2]) if stamp else NAN
            self._record(at, (number(place[2]), number(place[1])), texts, plan)
        elif plan.step >= 0 and len(pairs) > 1:
            epoch = number(texts[plan.epoch]) if plan.epoch >= 0 else NAN
            step = float(texts[plan.step])
            at = self._builder.clock.seconds(stamp[1], stamp[2]) if stamp else NAN
            self._record(at, (step, epoch), texts, plan)
            if line[:1] != b"[" and self._learnt < _MOST_SHAPES:
                self._learnt += 1
                self._learn(line, stamp, plan)

    def _learn(self, line: bytes, stamp: re.Match[bytes] | None, plan: _Plan) -> None:
        """Expect more lines that differ from this one in nothing but their numbers and time."""
        place = 0
        pattern = b"()()"
        if stamp is not None:
            if stamp.start():
                return
            place, pattern = stamp.end(), _STAMP.pattern
        for found in _PAIR.finditer(line):
            if found.start() < place:
                return
            pattern += re.escape(line[place : found.start(2)]) + FINITE
            place = found.end()
        self._usual = re.compile(pattern + re.escape(line[place:]) + rb"\Z")
        self._usual_plan = plan

    def _over_the_run(self, step: float, epoch: float) -> float:
        if step < self._inside and epoch > self._epoch:
            self._base += self._inside
            self._builder.note(
                "steps are counted anew in each epoch: step = printed step + last printed step of "
                "each epoch before"
            )
        self._inside, self._epoch = step, epoch
        return self._base + step

    def _record(
        self, at: float, where: tuple[float, float], texts: list[bytes], plan: _Plan
    ) -> None:
        builder = self._builder
        step, epoch = where
        builder.train(
            self._over_the_run(step, epoch),
            epoch=epoch,
            at=at,
            printed=number(texts[plan.time]) * plan.time_unit if plan.time >= 0 else NAN,
            data=number(texts[plan.wait]) * plan.wait_unit if plan.wait >= 0 else NAN,
            rate=number(texts[plan.rate]) if plan.rate >= 0 else NAN,
            lr=number(texts[plan.lr]) if plan.lr >= 0 else NAN,
        )
        builder.scalars(builder.last_step, [(name, texts[place]) for name, place in plan.others])


def _start(builder: LogBuilder) -> Feed:
    return _Lines(builder).feed


PLAIN = Reader(
    name="key=value lines",
    defined_by="lines of `key=value` or `key: value` pairs with a step; no source defines them",
    start=_start,
    mark=re.compile(
        rb"(?i)(?:^|[\s|,\[(])(?:(?:global_)?steps?|iter(?:ation)?|it|batch)\s*[=: ]\s*\d+.*"
        rb"[A-Za-z_\x80-\xff][\w./@\x80-\xff-]*\s*[=:]\s*-?\d|^\[\s*\d+,\s*\d+\] *\S+="
    ),
    weight=0.6,
    step="not known",
    step_formula="x 1/1000 where the key says ms",
    data="not known",
    data_formula="x 1/1000 where the key says ms",
    rate="not known",
    counting="step, plus the last printed step of each epoch before where it begins anew",
)
READERS = (PLAIN,)
