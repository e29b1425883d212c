"""Lines that repeat with other numbers, gathered by the names of their numbers.

Templates that differ in free text alone (``| day | loss 0.1`` and ``| night | loss 0.2``) are one
family, for their numbers have the same names. Memory does not follow the file's size: the number of
families and of rows is bounded, and of a family with too many rows every second one is dropped.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from pitstop.logs.clock import Clock
from pitstop.logs.general.tokens import (
    HOUR,
    MOST_NUMBERS,
    NUMBER,
    STAMP,
    Slot,
    day_of,
    pattern_of,
    segments,
    slots_of,
    value_of,
)
from pitstop.logs.lines import cut

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Index = npt.NDArray[np.intp]
Phase = Literal["train", "eval", "", "other", "checkpoint", "resume"]

_MOST_ROWS = 1 << 16
_MOST_HELD = 1 << 10
_MOST_TEMPLATES = 1 << 12
_MOST_FAMILIES = 512
_MOST_EVENTS = 1 << 14
_STAMP_WITHIN = 96
_START = 4
_LEARN = 7  # a prime: shapes of lines come in turns
_MOST_USUAL = 64
_MOST_ALIKE = 6
_MOST_ALIASES = 1 << 10
_EVAL_WORDS: Final = frozenset([
    "val", "valid", "validation", "validate", "validating", "eval", "evaluate", "evaluation",
    "evaluating", "test", "testing", "dev", "infer", "inference", "验证", "测试", "评估",
])  # fmt: skip
_ULTRALYTICS_LOSSES: Final = {"box": "box_loss", "obj": "obj_loss", "cls": "cls_loss"}
_ULTRALYTICS_EVAL: Final = frozenset(("class", "images"))
"""Both head the bar of its validation."""
_OTHER_RATES: Final = frozenset(("rate of samples", "rate of tokens", "rate"))
_COUNTERS: Final = frozenset(("epoch", "epochs", "step", "steps", "iter", "iteration", "batch"))
_TRAIN_WORDS: Final = frozenset(("train", "training", "训练"))
_ASIDE_WORDS: Final = frozenset(("improve", "improved", "improvement"))
"""A line that holds a value against the best one so far is not the record of its epoch."""
_SAID: Final[dict[str, Phase]] = {
    **dict.fromkeys(_EVAL_WORDS, "eval"),
    **dict.fromkeys(_TRAIN_WORDS, "train"),
}
_LOGGER_WORDS: Final = frozenset(("info", "debug", "warning", "root", "main", "logger"))
_BAR_WORDS: Final = _TRAIN_WORDS | _COUNTERS | {"iters", "iterations", "loss", "batches", "ep"}
_SAVES = re.compile(
    rb"(?i)\b(?:sav(?:e|ed|ing)|writing)\b.{0,80}?(?:checkpoint|ckpt|model|weight|state|snapshot"
    rb"|\.pth?\b|\.h5|\.hdf5|\.pkl)|(?:checkpoint|model|weights)\W{1,3}(?:was |has been |is )?saved"
    rb"|\xe4\xbf\x9d\xe5\xad\x98"
)
_RESUMES = re.compile(
    rb"(?i)\bresum(?:e|ed|ing)\b.{0,40}(?:train|from|epoch|step|checkpoint)"
    rb"|\b(?:re)?load(?:ed|ing)\b.{0,24}\boptimi[sz]er\b.{0,24}\b(?:from|state)\b"
)
_EVENT_HINT = re.compile(rb"(?i)sav|resum|optimi|writing|\xe4\xbf\x9d\xe5\xad\x98")
_WORTH = re.compile(rb"(?i)epoch|iter|step|batch|loss|it/s|s/it|\d/\d")
_IN_BAR = re.compile(rb"\d/\d+ \[\d[\d:]*<")
_WORD = re.compile(r"[a-z]+|[^\W\d_a-z]+")
_DIGITS = re.compile(rb"\d+")
# What a line of JSON does not have; files; loggers, whose name is the module's that prints.
_NO_WORD = re.compile(rb'"\w+": null|[\w/.-]+\.py\b|\b[a-z_]\w*(?:\.[a-z_]\w*)+')
_HMS = re.compile(rb"\d\d:\d\d:\d\d")
_PAIR = re.compile(r"=\s*-?\d|\s\d")
_HEADER_WORD = re.compile(r"(?i)^(?:global_|train_)?(?:epochs?|steps?|iter(?:ation)?s?|batch)$")


@dataclass(eq=False)
class Family:
    """Lines whose numbers have the same names."""

    slots: tuple[Slot, ...]
    phase: Phase
    example: str
    number: int = 0
    is_bar: bool = False
    shape: int = -1
    """Length of the dates on its lines; 0 of a time alone, -1 without a clock."""
    count: int = 0
    """Lines seen."""
    stride: int = 1
    """Of so many lines, one is kept."""
    held: list[tuple[int, float, list[bytes]]] = field(default_factory=list)
    last: tuple[int, float, list[bytes]] | None = None
    """The last line, whether it is kept or not."""
    flat: list["array[float]"] = field(default_factory=list)
    line: "array[int]" = field(default_factory=lambda: array("q"))
    at: "array[float]" = field(default_factory=lambda: array("d"))
    names: tuple[str, ...] = ()
    """Names of the numbers on the first line, with the digits that are in them."""
    has_variants: bool = False
    """Whether other lines have other digits in their text."""
    absent: dict[int, Mask] = field(default_factory=dict)
    """By place, rows whose lines do not print that number."""

    def add(self, line: int, at: float, texts: list[bytes]) -> None:
        """Take the numbers of one line."""
        self.last = line, at, texts
        self.count += 1
        if (self.count - 1) % self.stride:
            return
        self.held.append(self.last)
        if len(self.held) >= _MOST_HELD:
            self.settle()

    def add_torn(self, line: int, at: float, texts: list[bytes], *, is_whole: bool) -> None:
        """Take the numbers of a line without an end, but for the last one, which may be cut off."""
        slot = self.slots[-1]
        if is_whole:
            self.add(line, at, texts)
        elif self.stride == 1 and not (slot.is_total or set(slot.words) & _COUNTERS):
            self.add(line, at, [*texts[:-1], b"nan"])
            self.settle()
            self.absent[len(texts) - 1] = np.arange(len(self)) == len(self) - 1

    def settle(self) -> None:
        """Convert the numbers held back, whole columns at once."""
        if not self.held:
            return
        lines, ats, rows = zip(*self.held, strict=True)
        self.held = []
        self.line.extend(lines)
        self.at.extend(ats)
        if not self.flat:
            self.flat = [array("d") for _ in self.slots]
        for column, texts in zip(self.flat, zip(*rows, strict=True), strict=True):
            try:
                column.extend(map(float, texts))
            except ValueError:
                del column[len(self.line) - len(texts) :]
                column.extend(map(value_of, texts))
        if len(self.line) > _MOST_ROWS:
            self.line, self.at = self.line[::2], self.at[::2]
            self.flat = [column[::2] for column in self.flat]
            self.stride *= 2

    def end(self) -> None:
        """Convert what is left, and keep the last line in any case."""
        self.settle()
        if self.last is not None and (not self.line or self.line[-1] < self.last[0]):
            self.held.append(self.last)
            self.settle()

    def only(self, rows: Mask) -> "Family":
        """Give the same lines without some."""
        kept = np.flatnonzero(rows).tolist()
        return replace(
            self,
            count=len(kept),
            flat=[array("d", [column[row] for row in kept]) for column in self.flat],
            line=array("q", [self.line[row] for row in kept]),
            at=array("d", [self.at[row] for row in kept]),
            absent={place: lacks[kept] for place, lacks in self.absent.items()},
        )

    def name_of(self, place: int) -> str:
        """Give the name of a number as it is printed; its digits only where no line has others."""
        return self.slots[place].name if self.has_variants else self.names[place]

    def column(self, place: int) -> Array:
        """Give one number of every line kept."""
        scale = self.slots[place].scale
        values = np.array(self.flat[place])
        # Divided, 3.1 ms are the number that 0.0031 s is.
        return values / (1 / scale) if scale < 1 else values * scale

    def __len__(self) -> int:
        return len(self.line)


@dataclass(frozen=True, slots=True)
class _Converted:
    """A template whose numbers are in other units than its family's: ``1.2s`` and ``950ms``.

    Bars print steps/s or s/step, whichever is above one; the former becomes the time of a step.
    """

    family: Family
    factors: tuple[tuple[int, float], ...]
    """Places, and what their numbers are multiplied by; 0 of a rate to invert."""

    def add(self, line: int, at: float, texts: list[bytes]) -> None:
        for place, factor in self.factors:
            value = value_of(texts[place])
            if factor == 0:
                texts[place] = b"%.9g" % (1 / value) if value > 0 else b"nan"
            else:
                texts[place] = b"%.12g" % (value * factor)
        self.family.add(line, at, texts)


class _Stamp:
    """Where the last timestamp stood; most lines have theirs at the same place on the same day."""

    def __init__(self, line: bytes, stamp: "re.Match[bytes]", key: bytes, day: bytes) -> None:
        self.start, self.time, self.end = stamp.start(), stamp.start(4), stamp.end(4)
        self.day, self.shape = day, len(day)
        self._head = line[: self.start] + key
        self._next = line[self.end : self.end + 1]

    def is_in(self, line: bytes) -> bool:
        """Whether a line begins as the last one did, with a time of as many digits."""
        return (
            line.startswith(self._head)
            and line[self.time : self.end].translate(None, b":.,").isdigit()
            and line[self.time + 2 : self.time + 6 : 3] == b"::"
            and line[self.end : self.end + 1] == self._next
            and not self._next.isdigit()
        )


class Miner:
    """Takes a file's lines and gathers families, in one pass."""

    def __init__(self) -> None:
        self.clocks: dict[int, Clock] = {}
        self.shape = -1
        """Shape of the date met last."""
        self._days: dict[bytes, bytes] = {}
        self._stamp: _Stamp | None = None
        self.notes: list[str] = []
        """What could not be read of the file."""
        self.lines = 0
        self.forgotten = 0
        """Lines whose form came once, of which nothing was kept."""
        self.events: list[int] = []
        """Lines without numbers that speak of a checkpoint or of going on from one."""
        self._templates: dict[tuple[bytes, ...], Family | _Converted | None] = {}
        self._families: dict[tuple[object, ...], Family] = {}
        self._aliases: dict[tuple[bytes, ...], Family | _Converted | None] = {}
        """Templates by their text with its digits, ``stage0: ``: quicker than leaving them out."""
        self._usual: dict[bytes, list[tuple[re.Pattern[bytes], Family]]] = {}
        """Patterns of the lines met last, by their first bytes: quicker than splitting."""
        self._spoken: dict[bytes, Phase] = {}
        """Lines without numbers that head no table, and what they say: most come again."""
        self._header: list[str] = []
        self._commas = 0
        """Commas in a row of the table."""
        self._made = 0
        self._is_torn = False

    @property
    def families(self) -> list[Family]:
        """What was gathered, the first seen first."""
        found = list(self._families.values())
        for family in found:
            family.end()
        return [family for family in found if len(family)]

    def feed_torn(self, line: bytes) -> None:
        """Take the file's last line, which has no end, where it is one more of a known template.

        Its last number may be cut off, so it is left out; a count that stands there is not read.
        """
        self._is_torn = True
        self.feed(line)

    def feed(self, line: bytes) -> None:
        """Take one line."""
        self.lines += 1
        line = cut(line).lstrip(b"\0")
        at = np.nan
        self.shape = -1
        usual = self._stamp
        if usual is not None and usual.is_in(line):
            self.shape = usual.shape
            time = line[usual.time : usual.end].replace(b",", b".")
            at = self.clocks[usual.shape].seconds(usual.day, time)
            line = line[: usual.start] + line[usual.end :]
        elif _HMS.search(line, 0, within := len(line) if line[:1] == b"{" else _STAMP_WITHIN):
            line, at = self._stamped(line, within)
        if b"%|" in line or b"<" in line:
            for segment in segments(line):
                self._take(segment, at)
        else:
            self._take(line, at)

    def _stamped(self, line: bytes, within: int) -> tuple[bytes, float]:
        """Take the timestamp off a line, and give its moment; one clock for each shape of date.

        It stands at the beginning, or anywhere in JSON.
        """
        stamp = STAMP.search(line, 0, within)
        if stamp is None:
            hour = HOUR.match(line)
            if hour is None:
                return line, np.nan
            self.shape = 0
            return line[hour.end() :], self._clock(0).hour(hour[1].replace(b",", b"."))
        key = stamp[0][: stamp.start(4) - stamp.start()]
        day = self._days.get(key)
        if day is None:
            if len(self._days) > _MOST_TEMPLATES:
                self._days.clear()
            day = self._days[key] = day_of(stamp)
        self.shape = len(day)
        at = self._clock(self.shape).seconds(day, stamp[4].replace(b",", b"."))
        if stamp.end() == stamp.end(4):
            self._stamp = _Stamp(line, stamp, key, day)
        return line[: stamp.start()] + line[stamp.end() :], at

    def _clock(self, shape: int) -> Clock:
        clock = self.clocks.get(shape)
        if clock is None:
            clock = self.clocks[shape] = Clock()
        return clock

    def _take(self, line: bytes, at: float) -> None:
        if self._commas and line.count(b",") == self._commas:
            line = line.replace(b",", b", ")  # 10,168 is two cells of a row, not ten thousand
        for pattern, family in () if self._is_torn else self._usual.get(line[:_START], ()):
            if (match := pattern.match(line)) is not None:
                family.add(self.lines, at, list(match.groups()))
                return
        parts = NUMBER.split(line)
        count = len(parts) // 2
        if not count:
            if line.strip():
                self._words(line)
        elif self._is_torn:
            self._end(line, at, parts)
        elif count <= MOST_NUMBERS:
            self._sort(line, at, parts)

    def _end(self, line: bytes, at: float, parts: list[bytes]) -> None:
        """Put the file's last line, which has no end, to those of its template."""
        key = tuple(parts[::2])
        found = self._templates.get(key) or self._aliases.get(key)
        # What stands behind the last number is as in other lines: then the number is whole.
        is_whole = bool(parts[-1].strip()) or line.rstrip()[-1:].isalpha()
        if isinstance(found, Family):
            found.add_torn(self.lines, at, parts[1::2], is_whole=is_whole)
        elif found is not None and is_whole:
            found.add(self.lines, at, parts[1::2])

    def _sort(self, line: bytes, at: float, parts: list[bytes]) -> None:
        """Put a line to those of its template."""
        key, texts = tuple(parts[::2]), parts[1::2]
        found = self._templates.get(key) or self._aliases.get(key)
        is_known = found is not None
        if found is None:
            found = self._template(key, texts, line)
        if isinstance(found, Family):
            found.add(self.lines, at, texts)
            if is_known and self.lines % _LEARN == 0 and len(key[0]) >= _START:
                self._learn(line, key, found)
        elif isinstance(found, _Converted):
            found.add(self.lines, at, texts)

    def _template(
        self, key: tuple[bytes, ...], texts: list[bytes], line: bytes
    ) -> "Family | _Converted | None":
        """Find a template by its text without the digits in it: names of files differ in those."""
        plain = tuple(_DIGITS.sub(b"#", part) for part in key)
        found = self._templates.get(plain)
        if found is None:
            found = self._new(plain, key, texts, line)
        elif isinstance(found, Family):
            found.has_variants = True
        if len(self._aliases) >= _MOST_ALIASES:
            self._aliases.clear()
        self._aliases[key] = found
        return found

    def _learn(self, line: bytes, key: tuple[bytes, ...], family: Family) -> None:
        """Expect more lines that begin like this one."""
        if len(self._usual) >= _MOST_USUAL:
            self._usual.clear()
        alike = self._usual.setdefault(line[:_START], [])
        alike.append((pattern_of(key), family))
        del alike[:-_MOST_ALIKE]

    def _words(self, line: bytes) -> None:
        """Look at a line without numbers: an event, or the head of a table."""
        phase = self._spoken.get(line)
        if phase is None:
            phase = _event_of(line) if _EVENT_HINT.search(line) is not None else ""
            if columns := _columns(line):
                self._table(columns, line)
            elif len(self._spoken) < _MOST_ALIASES:
                self._spoken[line] = phase
        if phase and len(self.events) < _MOST_EVENTS:
            self.events.append(self.lines)

    def _table(self, columns: list[str], line: bytes) -> None:
        self._header = columns
        self._commas = line.count(b",") if line.count(b",") == len(columns) - 1 else 0

    def _new(
        self, key: tuple[bytes, ...], printed: tuple[bytes, ...], texts: list[bytes], line: bytes
    ) -> "Family | _Converted | None":
        """Learn a template; where nearly every line is a new one, only those worth it."""
        self._made += 1
        if self._made > _MOST_TEMPLATES and _WORTH.search(line) is None:
            return None
        if len(self._templates) >= _MOST_TEMPLATES:
            self._templates.clear()
        columns = _columns(line) if b"," in line or b"\t" in line else []
        if columns:
            self._table(columns, line)
            return None
        found = self._templates[key] = self._family(key, texts, line, _event_of(line))
        family = found.family if isinstance(found, _Converted) else found
        if family is not None and not family.names:
            plain = [slot.name for slot in slots_of(key, texts)]
            names = [slot.name for slot in slots_of(printed, texts)]
            # What a table's head names keeps that name.
            family.names = tuple(
                name if slot.name == was else slot.name
                for slot, was, name in zip(family.slots, plain, names, strict=True)
            )
        return found

    def _family(
        self, key: tuple[bytes, ...], texts: list[bytes], line: bytes, phase: Phase
    ) -> "Family | _Converted | None":
        slots = slots_of(key, texts)
        is_bar = _IN_BAR.search(line) is not None
        rates = [place for place, s in enumerate(slots) if is_bar and s.unit == "rate of steps"]
        slots = tuple(
            replace(slot, unit="time of a step", scale=1.0) if place in rates else slot
            for place, slot in enumerate(slots)
        )
        if self._header:
            slots = _named_by(self._header, key, slots)
        phase = phase or phase_of(key, slots, is_bar=is_bar)
        # Of one number, 59s and 1:02 are two ways to print it.
        names = (
            (s.name.lower(), s.unit.replace("duration", "time"), s.is_total, s.is_mean)
            for s in slots
        )
        identity = (self.shape, phase, *names)
        family = self._families.get(identity)
        if family is None:
            if len(self._families) >= _MOST_FAMILIES and not self._forget():
                self.forgotten += 1
                return None
            text = line.decode("utf-8", "replace").strip()
            family = Family(
                slots, phase, text[:160], number=self.lines, is_bar=is_bar, shape=self.shape
            )
            self._families[identity] = family
        factors = [(place, 0.0) for place in rates]
        factors += [
            (place, slot.scale / kept.scale)
            for place, (slot, kept) in enumerate(zip(slots, family.slots, strict=True))
            if slot.scale != kept.scale
        ]
        return _Converted(family, tuple(factors)) if factors else family

    def _forget(self) -> bool:
        """Make room: forget families of a single line, and the templates that lead to them."""
        rare = [key for key, family in self._families.items() if family.count <= 1]
        for key in rare:
            del self._families[key]
        self.forgotten += len(rare)
        self._templates.clear()
        self._aliases.clear()
        return bool(rare)


def _event_of(line: bytes) -> Phase:
    if _RESUMES.search(line) is not None:
        return "resume"
    return "checkpoint" if _SAVES.search(line) is not None else ""


def phase_of(literals: Sequence[bytes], slots: Sequence[Slot], *, is_bar: bool = False) -> Phase:
    """Say whether a line is of the training or of an evaluation; empty where it does not tell.

    The first such word before the first value decides: the name of a bar, a logger's function, or
    what the line says of itself. Words in the names of values decide where all agree. A bar with
    another name counts something else.
    """
    if is_bar and any(slot.unit in _OTHER_RATES for slot in slots):
        return "other"
    if any(_ASIDE_WORDS & set(slot.words) for slot in slots):
        return "other"
    words = _head_words(literals, slots)
    phase: Phase = ""
    for word in words:
        if word in _SAID:
            phase = _SAID[word]
            break
    if not phase and is_bar and set(words) >= _ULTRALYTICS_EVAL:
        phase = "eval"
    if not phase and is_bar and not set(words) <= _LOGGER_WORDS:
        phase = "train" if _BAR_WORDS & set(words) else "other"
    return phase or _by_values(slots)


def _head_words(literals: Sequence[bytes], slots: Sequence[Slot]) -> list[str]:
    """Words before the first value, and those right before the first count."""
    counts = 0
    for slot in slots:
        if slot.name and not set(slot.words) & _COUNTERS:
            break
        counts += 1
    head = b" ".join(literals[: max(1, min(counts, len(literals) - 1))])
    for place, slot in enumerate(slots):
        if slot.has_total or set(slot.words) & _COUNTERS:
            head += b" " + literals[place]  # what a logger prints comes before
            behind = literals[place + 1 + slot.has_total]
            if any(_is_trained(one) for one in slots):
                # Words of a value's name say nothing of the line: ``epoch 3 val loss 0.4``.
                value = next((one.name for one in slots[place + 1 :] if not one.is_total), "")
                behind = behind[: max(behind.find(value.encode()), 0)] if value else b""
            head += b" " + behind
            break
    return _WORD.findall(_NO_WORD.sub(b"", head).decode("utf-8", "replace").lower())


def _is_trained(slot: Slot) -> bool:
    """Whether a value is of the training by its name: a loss that is no evaluation's."""
    words = set(slot.words)
    is_loss = any(word.endswith("loss") for word in words)
    return bool(words & _TRAIN_WORDS) or (is_loss and not words & _EVAL_WORDS)


def _by_values(slots: Sequence[Slot]) -> Phase:
    named = [set(slot.words) for slot in slots if slot.name and not slot.is_total]
    values = [words for words in named if not words & {"epoch", "step", "iter", "time", "lr"}]
    return "eval" if values and all(words & _EVAL_WORDS for words in values) else ""


def _columns(line: bytes) -> list[str]:
    """Read a line as the head of a table; nothing unless a counter is in it."""
    text = line.decode("utf-8", "replace").strip().strip("|")
    for separator in (r",", r"\s*\|\s*", r"\t+", r"\s{2,}", r"\s+"):
        names = [name.strip(" \"'") for name in re.split(separator, text)]
        if len(names) > 1 and all(names):
            is_head = any(_HEADER_WORD.match(name) for name in names)
            are_words = all(name[0].isalpha() and not _PAIR.search(name) for name in names)
            return names if is_head and are_words and max(map(len, names)) <= 48 else []
    return []


def _row_before_bar(header: list[str], slots: tuple[Slot, ...]) -> tuple[Slot, ...] | None:
    """Name the row that ultralytics prints before its bar: ``1/300  3.4G  0.12 ...: 5%| 2/40``."""
    percents = [place for place, slot in enumerate(slots) if slot.unit == "percent"]
    cells = [place for place in range(percents[0]) if not slots[place].is_total] if percents else []
    if len(cells) != len(header):
        return None
    named = list(slots)
    for name, place in zip(header, cells, strict=True):
        named[place] = replace(slots[place], name=_ULTRALYTICS_LOSSES.get(name, name))
        if slots[place].has_total:
            named[place + 1] = replace(slots[place + 1], name=name)
    return tuple(named)


def _named_by(
    header: list[str], literals: Sequence[bytes], slots: tuple[Slot, ...]
) -> tuple[Slot, ...]:
    """Give the numbers of a table's row the names in its head."""
    if (row := _row_before_bar(header, slots)) is not None:
        return row
    commas = sum(text.count(b",") for text in literals)
    is_row = commas == len(header) - 1
    if any(slot.name or slot.is_total for slot in slots) and not is_row:
        return slots
    if is_row or any(b"," in text for text in literals[1:-1]):
        places = list(np.cumsum([text.count(b",") for text in literals[:-1]]))
    else:
        places = list(range(len(slots)))
        if len(slots) != len(header):
            return slots
    if places[-1] >= len(header) or len(set(places)) < len(places):
        return slots
    named = []
    for slot, place in zip(slots, places, strict=True):
        one = slots_of((header[place].encode() + b"=", b""), (b"0",))[0]
        named.append(one if not slot.unit else replace(one, unit=slot.unit, scale=slot.scale))
    return tuple(named)
