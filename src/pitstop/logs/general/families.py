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
    LONGEST_LINE,
    MOST_NUMBERS,
    NUMBER,
    STAMP,
    Slot,
    pattern_of,
    segments,
    slots_of,
    value_of,
)

Array = npt.NDArray[np.float64]
Phase = Literal["train", "eval", "", "checkpoint", "resume"]

_MOST_ROWS = 1 << 16
_MOST_HELD = 1 << 10
_MOST_TEMPLATES = 1 << 12
_MOST_FAMILIES = 512
_MOST_EVENTS = 1 << 14
_STAMP_WITHIN = 96
_START = 4
_LEARN = 8
_MOST_USUAL = 64
_EVAL_WORDS: Final = frozenset(
    [
        "val",
        "valid",
        "validation",
        "validate",
        "validating",
        "eval",
        "evaluate",
        "evaluation",
        "evaluating",
        "test",
        "testing",
        "dev",
        "infer",
        "inference",
    ]
)
_COUNTERS: Final = frozenset(("epoch", "epochs", "step", "steps", "iter", "iteration", "batch"))
_TRAIN_WORDS: Final = frozenset(("train", "training"))
_SAVES = re.compile(
    rb"(?i)\b(?:sav(?:e|ed|ing)|writing)\b.{0,80}?(?:checkpoint|ckpt|model|weight|state|snapshot"
    rb"|\.pth?\b|\.h5|\.hdf5|\.pkl)|(?:checkpoint|model|weights)\W{1,3}(?:was |has been |is )?saved"
    rb"|\xe4\xbf\x9d\xe5\xad\x98"
)
_RESUMES = re.compile(rb"(?i)\bresum(?:e|ed|ing)\b.{0,40}(?:train|from|epoch|step|checkpoint)")
_EVENT_HINT = re.compile(rb"(?i)sav|resum|writing|\xe4\xbf\x9d\xe5\xad\x98")
_WORTH = re.compile(rb"(?i)epoch|iter|step|batch|loss|it/s|s/it|\d/\d")
_IN_BAR = re.compile(rb"\d/\d+ \[\d[\d:]*<")
_WORD = re.compile(r"[a-z]+")
_HEADER_WORD = re.compile(r"(?i)^(?:global_)?(?:epoch|step|iter(?:ation)?s?|batch)$")


@dataclass(eq=False)
class Family:
    """Lines whose numbers have the same names."""

    slots: tuple[Slot, ...]
    phase: Phase
    example: str
    number: int = 0
    count: int = 0
    """Lines seen."""
    stride: int = 1
    """Of so many lines, one is kept."""
    held: list[tuple[int, float, list[bytes]]] = field(default_factory=list)
    flat: list["array[float]"] = field(default_factory=list)
    line: "array[int]" = field(default_factory=lambda: array("q"))
    at: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, line: int, at: float, texts: list[bytes]) -> None:
        """Take the numbers of one line."""
        self.count += 1
        if self.count % self.stride:
            return
        self.held.append((line, at, texts))
        if len(self.held) >= _MOST_HELD:
            self.settle()

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
            self.line, self.at = self.line[1::2], self.at[1::2]
            self.flat = [column[1::2] for column in self.flat]
            self.stride *= 2

    def column(self, place: int) -> Array:
        """Give one number of every line kept."""
        return np.array(self.flat[place]) * self.slots[place].scale

    def __len__(self) -> int:
        return len(self.line)


@dataclass(frozen=True, slots=True)
class _Inverted:
    """A bar's template whose rate becomes the time of a step: bars print whichever is above one."""

    family: Family
    place: int

    def add(self, line: int, at: float, texts: list[bytes]) -> None:
        rate = value_of(texts[self.place])
        texts[self.place] = b"%.9g" % (1 / rate) if rate > 0 else b"nan"
        self.family.add(line, at, texts)


class Miner:
    """Takes a file's lines and gathers families, in one pass."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lines = 0
        self.numbered = 0
        self.events: list[tuple[int, float, Phase]] = []
        """Checkpoints and resumptions: line, moment, which."""
        self._templates: dict[tuple[bytes, ...], Family | _Inverted | Phase] = {}
        self._families: dict[tuple[object, ...], Family] = {}
        self._usual: dict[bytes, tuple[re.Pattern[bytes], Family]] = {}
        """Patterns of the lines met last, by their first bytes: quicker than splitting."""
        self._header: list[str] = []
        self._made = 0

    @property
    def families(self) -> list[Family]:
        """What was gathered, the first seen first."""
        found = list(self._families.values())
        for family in found:
            family.settle()
        return [family for family in found if len(family)]

    def feed(self, line: bytes) -> None:
        """Take one line."""
        self.lines += 1
        line = line[:LONGEST_LINE]
        at = np.nan
        if b":" in line:
            stamp = STAMP.search(line, 0, _STAMP_WITHIN)
            if stamp is not None:
                day = stamp[1] or stamp[2][:2] + b"/" + stamp[2][2:]
                at = self.clock.seconds(day, stamp[3].replace(b",", b"."))
                line = line[: stamp.start()] + line[stamp.end() :]
        if b"%|" in line or b"<" in line:
            for segment in segments(line):
                self._take(segment, at)
        else:
            self._take(line, at)

    def _take(self, line: bytes, at: float) -> None:
        usual = self._usual.get(line[:_START])
        if usual is not None and (match := usual[0].match(line)) is not None:
            self.numbered += 1
            usual[1].add(self.lines, at, list(match.groups()))
            return
        parts = NUMBER.split(line)
        count = len(parts) // 2
        if not count:
            self._words(line, at)
            return
        if count > MOST_NUMBERS:
            return
        key = tuple(parts[::2])
        found = self._templates.get(key)
        if found is None:
            found = self._new(key, parts[1::2], line)
        if isinstance(found, Family):
            self.numbered += 1
            found.add(self.lines, at, parts[1::2])
            if found.count % _LEARN == 0 and len(key[0]) >= _START:
                self._learn(line, key, found)
        else:
            self._other(at, found, parts[1::2])

    def _other(self, at: float, found: "_Inverted | Phase", texts: list[bytes]) -> None:
        if isinstance(found, _Inverted):
            self.numbered += 1
            found.add(self.lines, at, texts)
        elif found:
            self._event(at, found)

    def _learn(self, line: bytes, key: tuple[bytes, ...], family: Family) -> None:
        """Expect more lines that begin like this one."""
        if len(self._usual) >= _MOST_USUAL:
            self._usual.clear()
        self._usual[line[:_START]] = (pattern_of(key), family)

    def _words(self, line: bytes, at: float) -> None:
        """Look at a line without numbers: an event, or the head of a table."""
        if _EVENT_HINT.search(line) is not None:
            phase = _event_of(line)
            if phase:
                self._event(at, phase)
        columns = _columns(line)
        if columns:
            self._header = columns

    def _event(self, at: float, phase: Phase) -> None:
        if len(self.events) < _MOST_EVENTS:
            self.events.append((self.lines, at, phase))

    def _new(
        self, key: tuple[bytes, ...], texts: list[bytes], line: bytes
    ) -> "Family | _Inverted | Phase":
        """Learn a template; where nearly every line is a new one, only those worth it."""
        self._made += 1
        if self._made > _MOST_TEMPLATES and _WORTH.search(line) is None:
            return ""
        if len(self._templates) >= _MOST_TEMPLATES:
            self._templates.clear()
        phase = _event_of(line)
        found: Family | _Inverted | Phase = phase or self._family(key, texts, line)
        self._templates[key] = found
        return found

    def _family(
        self, key: tuple[bytes, ...], texts: list[bytes], line: bytes
    ) -> "Family | _Inverted | Phase":
        slots = slots_of(key, texts)
        inverted = -1
        if _IN_BAR.search(line) is not None:
            for place, slot in enumerate(slots):
                if slot.unit == "rate of steps":
                    inverted = place
                    changed = replace(slot, unit="time of a step", scale=1.0)
                    slots = (*slots[:place], changed, *slots[place + 1 :])
        if self._header:
            slots = _named_by(self._header, key, slots)
        phase = phase_of(key, slots)
        identity = (phase, *((s.name.lower(), s.unit, s.is_total, s.is_mean) for s in slots))
        family = self._families.get(identity)
        if family is None:
            if len(self._families) >= _MOST_FAMILIES and not self._forget():
                return ""
            text = line.decode("utf-8", "replace").strip()
            family = Family(slots, phase, text[:160], number=self.lines)
            self._families[identity] = family
        return family if inverted < 0 else _Inverted(family, inverted)

    def _forget(self) -> bool:
        """Make room: forget families of a single line, and the templates that lead to them."""
        rare = [key for key, family in self._families.items() if family.count <= 1]
        for key in rare:
            del self._families[key]
        self._templates.clear()
        return bool(rare)


def _event_of(line: bytes) -> Phase:
    if _RESUMES.search(line) is not None:
        return "resume"
    return "checkpoint" if _SAVES.search(line) is not None else ""


def phase_of(literals: Sequence[bytes], slots: Sequence[Slot]) -> Phase:
    """Say whether a line is of the training or of an evaluation; empty where it does not tell.

    The first such word before the first value decides: the name of a bar, a logger's function, or
    what the line says of itself. Words in the names of values decide where all agree.
    """
    counts = 0
    for slot in slots:
        if slot.name and not set(slot.words) & _COUNTERS:
            break
        counts += 1
    head = b" ".join(literals[: max(1, min(counts, len(literals) - 1))])
    for word in _WORD.findall(head.decode("utf-8", "replace").lower()):
        if word in _TRAIN_WORDS:
            return "train"
        if word in _EVAL_WORDS:
            return "eval"
    named = [set(slot.words) for slot in slots if slot.name and not slot.is_total]
    values = [words for words in named if not words & {"epoch", "step", "iter", "time", "lr"}]
    if values and all(words & _EVAL_WORDS for words in values):
        return "eval"
    return ""


def _columns(line: bytes) -> list[str]:
    """Read a line without numbers as the head of a table; nothing unless a counter is in it."""
    text = line.decode("utf-8", "replace").strip().strip("|")
    for separator in (r",", r"\s*\|\s*", r"\t+", r"\s{2,}", r"\s+"):
        names = [name.strip(" \"'") for name in re.split(separator, text)]
        if len(names) > 1 and all(names):
            is_head = any(_HEADER_WORD.match(name) for name in names)
            return names if is_head and max(map(len, names)) <= 48 else []
    return []


def _named_by(
    header: list[str], literals: Sequence[bytes], slots: tuple[Slot, ...]
) -> tuple[Slot, ...]:
    """Give the numbers of a table's row the names in its head."""
    if any(slot.name or slot.is_total for slot in slots):
        return slots
    if any(b"," in text for text in literals[1:-1]):
        places = list(np.cumsum([text.count(b",") for text in literals[:-1]]))
    else:
        places = list(range(len(slots)))
        if len(slots) != len(header):
            return slots
    if places[-1] >= len(header):
        return slots
    named = []
    for slot, place in zip(slots, places, strict=True):
        one = slots_of((header[place].encode() + b"=", b""), (b"0",))[0]
        named.append(one if not slot.unit else slot)
    return tuple(named)
