"""Progress bars of tqdm, and the ``iter=50 | loss=...`` lines that loops print beside them.

The printed rate is a moving average; the count over the elapsed time is exact to a second. A bar
is drawn again and again in one physical line, other output is glued to it, and a bar that runs
over its total loses it.
"""

import math
import re
from dataclasses import dataclass, replace

from pitstop.logs.batch import Batch, Layout
from pitstop.logs.builder import LogBuilder
from pitstop.logs.numbers import COUNT, FINITE, number
from pitstop.logs.reader import Feed, Reader
from pitstop.records.logs.windows import Disagreement

NAN = math.nan
_RATE = rb", +(?:(\d+\.?\d*)|\?)(?:(s)/[A-Za-z]+|[A-Za-z]+/s)(?:, ([^\]]*))?\]"
_ELAPSED = rb" \[((?:\d+:)?\d\d:\d\d)"
_BAR = re.compile(rb"(?<![\d.])(\d+)/(\d+)" + _ELAPSED + rb"<[^,\]]*(?:, \d+:\d\d:\d\d)?" + _RATE)
_LOST = re.compile(rb"(\d+)()[a-z]+" + _ELAPSED + _RATE)
_WORD = re.compile(rb"[A-Za-z\x80-\xff]+")
_EVAL = re.compile(rb"(?i)^(?:val|eval|test|infer|extract)")
_PREPARES = re.compile(
    rb"(?i)^(?:load|read|fetch|download|pre|process|map|filter|token|generat|sav|writ|convert|cach"
    rb"|build|creat|index|copy|render|scan|verif|check|sanity|resolv|upload|materializ)"
)
"""Names of bars that draw other work, however often they are drawn."""
_PAIR = re.compile(
    rb"([A-Za-z_\x80-\xff][\w./@\x80-\xff-]*)=(-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))(?![\w.])"
)
_COUNT_BYTES = 40
_TEXT_BYTES = 400
_LONG_S = 30.0
_DRAWN = 2000
_MOST_BARS = 64
LEFT_OUT = "other bars are left out"
SEVERAL = "bars of one name count to several totals"
_TABLE = re.compile(rb"(?:\d[\d./]{0,16}G? {1,16}){4}")
"""A row of a table before the bar: its first number is the epoch, and the bar has no name."""
_NONE = b"\0"
"""Name of the training's bar where every bar is of an evaluation."""


@dataclass(slots=True)
class _Update:
    bar: bytes
    n: int
    total: int
    elapsed_s: float
    rate: float
    is_slow: bool
    pairs: list[tuple[bytes, bytes]]
    is_apart: bool = False
    """Whether something else was printed since the drawing before."""


class _Bars:
    """Reads bars; which one is the training is decided by who is drawn most often."""

    def __init__(self, builder: LogBuilder, main: bytes = b"") -> None:
        self._builder = builder
        builder.close = self._end
        self._wanted = main
        """Name of the training's bar, where that is known."""
        self._held: list[_Update] | None = []
        self._main = b""
        self._base = 0.0
        self._epoch = 0.0
        self._last = 0
        self.late: tuple[_Update, float] | None = None
        self._lost = False
        self._elapsed = b""
        self._waiting: tuple[bytes, re.Match[bytes]] | None = None
        self._is_table = False
        self._ended_s = 0.0
        self._was_partial = False
        """Whether this bar was drawn before its end; some logs keep the last drawing alone."""
        self._is_apart = False
        self._full = b""
        """Other bar that was drawn at its end last: a full bar is often drawn again."""
        self._ends: set[int] = set()
        """Counts at which bars ended."""
        self._is_short = False
        """Whether a bar was last drawn before its total, and another one followed."""

    def feed(self, line: bytes) -> None:
        """Take one line."""
        place = line.find(b" [")
        if place < 0:
            self._is_apart |= bool(line)
            return
        # The count stands right before the bracket; searching from there is quick.
        start = max(place - _COUNT_BYTES, line.rfind(b" ", 0, place), line.rfind(b"|", 0, place))
        found = _BAR.search(line, max(start, 0)) or _LOST.search(line, max(start, 0))
        if found is None:
            self._is_apart = True
            return
        if _TABLE.search(line, 0, place) is not None:
            self._is_table = True
            return
        if self._held is None:
            self._one_a_second(line, found)
            return
        self._held.append(self._updated(line, found))
        if len(self._held) >= _DRAWN:
            self._decide()

    def _one_a_second(self, line: bytes, found: re.Match[bytes]) -> None:
        """Take the first drawing of each second; the elapsed time tells the others apart by none.

        The last one before the count begins anew is taken too, for it ends an epoch.
        """
        elapsed = found[3]
        if elapsed == self._elapsed and found[1] != found[2]:
            self._waiting = (line, found)
            return
        if self._waiting is not None:
            if int(found[1]) < int(self._waiting[1][1]):
                self._take(_update(*self._waiting))
            self._waiting = None
        self._elapsed = elapsed
        self._take(self._updated(line, found))

    def _updated(self, line: bytes, found: re.Match[bytes]) -> _Update:
        update = _update(line, found)
        update.is_apart, self._is_apart = self._is_apart, False
        return update

    def _end(self) -> None:
        """Take what was held back, and say what was found."""
        if self._held is not None:
            self._decide()
        if self._waiting is not None:
            self._take(_update(*self._waiting))
        if self._ends and self._last > max(self._ends):
            self._ends.add(self._last)
        if len(self._ends) > 1 or self._is_short:
            ends = "" if len(self._ends) == 1 else f" to {max(self._ends)}"
            self._builder.note(
                f"bars end at {min(self._ends)}{ends}: their last steps are not always drawn, so "
                "the count of steps is the least it can be"
            )
        self._leave_out_nothing()
        self._builder.found += self.judge()
        is_of_run = b"epoch" not in self._main.lower()
        if is_of_run and not self._epoch and self._builder.steps_per_epoch is not None:
            # One single bar counts the run.
            self._builder.total_steps = self._builder.steps_per_epoch
            self._builder.steps_per_epoch = None

    def _leave_out_nothing(self) -> None:
        """Leave out values that are zero at every drawing: rounded to it, or never set."""
        series = self._builder.series
        for name in [name for name, one in series.items() if one.value and not any(one.value)]:
            del series[name]
            self._builder.note(f"{name} is 0 at every drawing of the bar: it is left out")

    def _decide(self) -> None:
        held, self._held = self._held, None
        if not held:
            return
        drawn: dict[bytes, int] = {}
        for update in held:
            if not _EVAL.match(update.bar) and (update.bar in drawn or len(drawn) < _MOST_BARS):
                drawn[update.bar] = drawn.get(update.bar, 0) + 1
        others = [bar for bar in drawn if _PREPARES.match(bar) is None]
        has_bar = drawn and not self._is_table
        self._main = max(others or drawn, key=lambda bar: drawn[bar]) if has_bar else _NONE
        if self._wanted in drawn:
            self._main = self._wanted
        if len(drawn) > 1:
            rest = b", ".join(bar or b"(no name)" for bar in drawn if bar != self._main)
            self._builder.note(f"{LEFT_OUT}: {rest.decode('utf-8', 'replace')}")
        for update in held:
            self._take(update)

    def _take(self, update: _Update) -> None:
        if update.bar != self._main:
            is_full = update.n >= update.total > 0
            if _EVAL.match(update.bar) and is_full and self._full != update.bar:
                self._builder.evaluation(
                    wall_s=update.elapsed_s,
                    formula="printed: elapsed time of the finished bar",
                    is_part=True,
                )
            self._full = update.bar if is_full else b""
            return
        self._full = b""
        if update.n == 0:
            self._turn(0)
            return
        is_full = update.n == update.total
        is_other = update.is_apart or update.elapsed_s != self._ended_s
        is_anew = is_full and not self._was_partial and is_other
        if update.n < self._last or (update.n == self._last and is_anew):
            self._turn(update.n)
            self._was_partial = False
        self._was_partial |= not is_full
        self._ended_s = update.elapsed_s
        self._count(update)

    def _turn(self, n: int) -> None:
        """Begin another bar: the next epoch."""
        if self._last:
            if len(self._ends) < _MOST_BARS:
                self._ends.add(self._last)
            self._is_short |= self._last < (self._builder.steps_per_epoch or 0)
            self._base += self._last
            self._epoch += 1
            self._last = n

    def _count(self, update: _Update) -> None:
        builder = self._builder
        if not update.total and not self._lost and builder.steps_per_epoch:
            self._lost = True
            builder.note("the bar lost its total: it ran further than announced")
        if update.total:
            if builder.steps_per_epoch not in (None, update.total):
                builder.note(SEVERAL)
            builder.steps_per_epoch = update.total
        rate = update.rate if update.is_slow or not update.rate else 1 / update.rate
        self._late(update, update.n * rate)
        step = self._base + update.n
        if step > builder.last_step:
            builder.train(
                step,
                epoch=self._epoch,
                inside=float(update.n),
                total=update.elapsed_s,
                error=0.5,
                since=0.0,
                printed=rate,
            )
            builder.scalars(step, update.pairs)
        self._last = update.n

    def _late(self, update: _Update, by_rate_s: float) -> None:
        """Remember a bar whose elapsed time is far more than its count took: it began before."""
        if self.late is None and _LONG_S < by_rate_s < update.elapsed_s / 2:
            self.late = (update, by_rate_s)

    def judge(self) -> list[Disagreement]:
        """Say that the elapsed time of a bar is not that of its count."""
        if self.late is None:
            return []
        update, by_rate_s = self.late
        return [
            Disagreement(
                code="elapsed is not of this epoch",
                message=(
                    f"a bar at {update.n} shows {update.elapsed_s:.0f} s elapsed, but at its "
                    f"printed rate that many steps take {by_rate_s:.0f} s: it began before this "
                    "epoch, or waited"
                ),
                printed=update.elapsed_s,
                rebuilt=by_rate_s,
                unit="s",
                extra_s=update.elapsed_s - by_rate_s,
            )
        ]


def _update(line: bytes, found: re.Match[bytes]) -> _Update:
    count, total, elapsed, rate, slow, more = found.groups()
    seconds = int(elapsed[-2:]) + 60 * int(elapsed[-5:-3])
    if len(elapsed) > 5:
        seconds += 3600 * int(elapsed[:-6])
    before = line[: found.start()].partition(b"%|")[0]
    word = _WORD.search(before)
    name = word[0].lower() if word is not None else b"of " + total
    pairs = _PAIR.findall(before, max(0, len(before) - _TEXT_BYTES)) if b"=" in before else []
    return _Update(
        bar=name,
        n=int(count),
        total=int(total) if total else 0,
        elapsed_s=float(seconds),
        rate=number(rate) if rate else NAN,
        is_slow=slow is not None,
        pairs=pairs + _PAIR.findall(more) if more else pairs,
    )


def without_name(total: int) -> Reader:
    """Give the reader of bars for a file whose training draws a bar without a name."""

    def start(builder: LogBuilder) -> Feed:
        return _Bars(builder, b"of %d" % total).feed

    return replace(BARS, start=start)


_ITER = re.compile(rb"\biter=(\d+) \| ")
_STAMP = re.compile(rb"(\d{4}[-/]\d\d[-/]\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{3})?)")
_OWN = frozenset((b"iter", b"epoch", b"lr"))
_MOST_SHAPES = 64
_NEVER = re.compile(rb"(?!)")


class _IterLines:
    """Reads the lines; nearly all of a file have the same names in the same order."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._batch = Batch(builder)
        self._usual = _NEVER
        self._shapes = 0

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if (match := self._usual.match(line)) is not None:
            self._batch.add(match.groups())
        elif b"iter=" in line and (found := _ITER.search(line)) is not None:
            self._batch.flush()
            self._record(line, found)

    def _record(self, line: bytes, found: re.Match[bytes]) -> None:
        builder = self._builder
        stamp = _STAMP.search(line, 0, 48)
        at = builder.clock.seconds(stamp[1], stamp[2]) if stamp else NAN
        pairs = _PAIR.findall(line, found.start())
        own = {name: number(value) for name, value in pairs if name in _OWN}
        step = float(found[1])
        builder.brief(
            step,
            epoch=own.get(b"epoch", NAN),
            at=at,
            error=builder.clock.resolution_s / 2,
            lr=own.get(b"lr", NAN),
        )
        builder.scalars(step, [pair for pair in pairs if pair[0] not in _OWN])
        if stamp is None:
            self._learn([name for name, _ in pairs])

    def _learn(self, names: list[bytes]) -> None:
        """Expect more lines with these names and nothing else, the step first."""
        if self._shapes >= _MOST_SHAPES or len(set(names)) < len(names):
            return
        self._shapes += 1
        texts = [COUNT if name in (b"iter", b"epoch") else FINITE for name in names]
        pairs = [re.escape(name) + b"=" + text for name, text in zip(names, texts, strict=True)]
        self._usual = re.compile(rb" \| ".join(pairs) + rb"\Z")
        self._batch.set_layout(
            Layout(
                step=0,
                epoch=names.index(b"epoch") if b"epoch" in names else -1,
                lr=names.index(b"lr") if b"lr" in names else -1,
                error=self._builder.clock.resolution_s / 2,
                curves=tuple((name, names.index(name)) for name in names if name not in _OWN),
            )
        )


BARS = Reader(
    name="tqdm",
    is_count_defined=False,
    defined_by="tqdm/tqdm: tqdm/std.py (format_meter)",
    start=lambda builder: _Bars(builder).feed,
    needle=b"[",
    mark=re.compile(_BAR.pattern + b"|" + _LOST.pattern),
    weight=0.9,
    rebuild="difference of elapsed times / steps between the records, elapsed to the second",
    step="EMA",
    step_formula="1 / printed rate, or the rate itself where it is seconds a step",
    scalars="last step",
    counting="count of the bar + last count of each bar before",
    notes=(
        "the printed rate is a moving average of tqdm's, not the speed of the run",
        "of a bar drawn several times a second, one drawing a second is kept",
    ),
)
ITER_LINES = Reader(
    name="iter= lines",
    is_count_defined=False,
    count_name="iter",
    defined_by="a loop's own lines, `iter=50 | loss_seg=0.52 | ...`; no public source defines them",
    start=lambda builder: _IterLines(builder).feed,
    needle=b"iter=",
    mark=re.compile(rb"\biter=\d+ \| [\w./-]+="),
    weight=0.95,
    rebuild="difference of timestamps / steps between the records, where lines have timestamps",
    scalars="not known",
)
READERS = (BARS, ITER_LINES)
