"""Numbers of a line with their names and units, in whichever order they are printed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan

MOST_NUMBERS = 256

# Digit runs are bounded: no count has more, and a longer run is an identifier.
_DURATION = (
    rb"\d{1,4}+(?::\d\d(?::\d\d)?(?:\.\d{1,6})?(?![\d:])"
    rb"|h ?\d\d?m(?: ?\d\d?(?:\.\d{1,6})?s)?\b|m ?\d\d?(?:\.\d{1,6})?s\b)"
)
_THOUSANDS = rb"(?<![,])\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,40})?(?!\d|,\d)"
_PLAIN = rb"(?:\d{1,18}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,3})?(?!\d)"
_SPECIAL = rb"(?:[nN]a[nN]|[iI]nf)(?![A-Za-z])"
NUMBER = re.compile(
    rb"[ \t]*+((?:(?<![\w.@])(?<!\.py:)[-+]?|(?<=poch)|(?<=tep)|(?<=ter)|(?<=rank))"
    rb"(?:" + _DURATION + rb"|" + _THOUSANDS + rb"|" + _PLAIN + rb"|" + _SPECIAL + rb"))[ \t]*+"
)
_ANY = (
    rb"[ \t]*+([-+]?(?:" + _DURATION + rb"|" + _THOUSANDS + rb"|" + _PLAIN + rb"|" + _SPECIAL
    + rb"))[ \t]*+"
)  # fmt: skip
STAMP = re.compile(
    rb"(?:(\d{4}[-/.]\d\d[-/.]\d\d|\b\d\d[-/.]\d\d[-/.](?:\d{4}|\d\d)|\b\d\d[-/]\d\d)[ T_|,]{1,2}"
    rb"|\b[IWE](\d{8}|\d{4}) +|\b([A-Z][a-z]{2} [ \d]?\d) )"
    rb"(\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?:Z|[+-]\d\d:?\d\d)?"
)
HOUR = re.compile(rb"\A\W{0,2}(\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?=[\]\s|,)])(?! *<)")
_DRAWN = re.compile(rb"%\|[^|]{0,512}\|")
_BAR_END = re.compile(rb"\[\d[\d:]*<[^\]]{0,256}\]")

_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0,
    "secs": 1.0, "second": 1.0, "seconds": 1.0, "m": 60.0, "min": 60.0, "mins": 60.0,
    "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hrs": 3600.0, "hours": 3600.0,
}  # fmt: skip
_BYTES = {
    "kb": 1e3, "kib": 2.0**10, "mb": 2.0**20, "mib": 2.0**20, "m": 2.0**20, "gb": 2.0**30,
    "gib": 2.0**30, "g": 2.0**30,
}  # fmt: skip
_STEP_WORD = r"(?:its?|iters?|iterations?|steps?|batch(?:es)?|b)(?![a-z])"
_PER_S = r"(?:/| per )(?:second|sec|s)(?![a-z])"
_UNITS = (
    ("rate of steps", re.compile(rf"{_STEP_WORD}{_PER_S}")),
    ("rate of samples", re.compile(rf"(?:samples?|imgs?|images?|examples?|ex|seqs?){_PER_S}")),
    ("rate of tokens", re.compile(rf"(?:tok|toks|tokens|words?|wps|tokens){_PER_S}")),
    ("rate", re.compile(rf"\w+{_PER_S}")),
    ("time of a step", re.compile(rf"(ms|s|sec|min)(?:/| per ){_STEP_WORD}")),
    ("time", re.compile(r"(ns|us|µs|msec|ms|secs?|seconds?|s|mins?|minutes|hours|hrs?)")),
    ("bytes", re.compile(r"([kmg]i?b)", re.IGNORECASE)),
    ("percent", re.compile(r"%")),
)
_EACH = re.compile(rf"(?i)(ms|s|sec|secs)(?:/| per ){_STEP_WORD}")
# A unit before a colon or an equals sign is the name of the next number.
_AFTER_UNIT = re.compile(r"(?![A-Za-z0-9/_]|\s*[=:])")
_IN_BRACKETS = re.compile(r"[(\[](ms|s|sec|secs|seconds|min|GB|MB|MiB|GiB)[)\]]$")
_TOTAL = re.compile(r"\s*\]?\s*(?:/|\bof\b)\s*\[?\s*")
_CUT = re.compile(r"[|,;:()\[\]{}<>\"'\t]|\s{2,}|\s[-=~]+\s|->+|\s/\s|&")
_GROUP = re.compile(r"\([A-Za-z_ ]{0,24}\)$")
_ENDS = " \t:=([{\"'|,>~-#*"
_TWO_COUNTS = re.compile(
    r"(?i)(?:train )?(ep(?:och)?)/(step|it(?:er(?:ation)?)?|batch|global_step)s?"
)
"""Names of two counts, ``epoch/iter: 3/199``: the second is no total."""
_LINKS = frozenset(("is", "at", "and", "the", "of", "was", "a", "in"))
_BEHIND = re.compile(
    r"(?:-| ?)(epochs?|steps?|iters?|iterations?|batch(?:es)?)\b(?![ \t]*[:=#\[/])"
)
_ORDINAL = re.compile(r"-?(?:st|nd|rd|th) (epoch|step|iteration)\b")
_WRAPPED = re.compile(r"\b(?:tensor|array|np\.\w+)\($")
"""A value printed as what it is in the program: ``loss = tensor(0.3, device='cuda:0')``."""
_OF_BYTES = re.compile(r" ?(allocated|reserved|used|free|peak)\b(?![ \t]*[:=])")
_MOST_WORDS = 3
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NAME_WORD = re.compile(r"[a-z]+|[^\W\d_a-zA-Z]+")
_SUFFIX = re.compile(r"_(ms|us|s|sec|secs|seconds|min|gb|mb|mib|gib)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What stands around one number of a template."""

    name: str
    unit: str
    """Kind of unit, such as ``"time"``; empty without one."""
    scale: float
    """Factor to seconds or bytes."""
    is_total: bool
    """Whether it is the 390 of ``20/390``."""
    is_mean: bool
    """Whether it is the 0.31 of ``0.3 (0.31)``."""
    has_total: bool = False
    opens: str = ""
    """Text right before it, without its name: tells ``[1, 200]`` from ``1 200``."""
    unit_text: str = ""
    """The unit as it stands behind the number."""
    is_fragment: bool = False
    """Whether it is a part of a word or a date: ``8_1_3``, ``2031-03-04``."""

    @property
    def words(self) -> tuple[str, ...]:
        """The name in single words, in lower case."""
        return _words_of(self.name)


@lru_cache(maxsize=1 << 12)  # every rule asks for them, and names come again in every template
def _words_of(name: str) -> tuple[str, ...]:
    spaced = _HUMP.sub(" ", name)
    return tuple(_NAME_WORD.findall(spaced.lower()))


_COLONS = bytes.maketrans(b"hm", b"::")
_MONTHS = b"JanFebMarAprMayJunJulAugSepOctNovDec"


def day_of(stamp: "re.Match[bytes]") -> bytes:
    """Give a stamp's date as ``YYYY-MM-DD`` or, without a year, as ``MM-DD``.

    Of ``03.24.23`` the month comes first unless it cannot; ``23-03-24`` begins with the year.
    """
    if (short := stamp[2]) is not None:
        year = short[:-4] + b"-" if len(short) == len("YYYYMMDD") else b""
        return year + short[-4:-2] + b"-" + short[-2:]
    if (spoken := stamp[3]) is not None:
        return b"%02d-%02d" % (_MONTHS.find(spoken[:3]) // 3 + 1, int(spoken[4:]))
    day = stamp[1]
    parts = re.split(rb"[-/.]", day)
    if len(parts) == 2 or len(parts[0]) == 4:
        return b"-".join(parts)
    if len(parts[2]) == 2 and b"-" in day:
        return b"20" + b"-".join(parts)
    month, of_month, year = parts if int(parts[0]) <= 12 else (parts[1], parts[0], parts[2])
    return (b"20" if len(year) == 2 else b"") + b"-".join((year, month, of_month))


def segments(line: bytes) -> list[bytes]:
    """Take the drawing out of a progress bar, and apart what is glued behind it."""
    line = _DRAWN.sub(b"%|", line)
    found = []
    place = 0
    for end in _BAR_END.finditer(line):
        found.append(line[place : end.end()])
        place = end.end()
    rest = line[place:]
    return [*found, rest] if rest.strip() or not found else found


def pattern_of(literals: Sequence[bytes]) -> re.Pattern[bytes]:
    """Make the pattern of lines that differ from this one in nothing but their numbers."""
    return re.compile(_ANY.join(map(re.escape, literals)) + rb"\Z")


def is_duration(text: bytes) -> bool:
    """Whether a number is one of minutes and seconds: ``1:20``, ``1m20s``, ``1h02m``."""
    return b":" in text or text[-1:] in (b"s", b"m")


def value_of(text: bytes) -> float:
    """Convert a printed number or a duration; NaN when it is neither."""
    try:
        return float(text)
    except ValueError:
        return _duration_of(text)


def _duration_of(text: bytes) -> float:
    try:
        if not is_duration(text):
            return float(text.replace(b",", b""))
        seconds = 0.0
        for part in text.translate(_COLONS, b" s").split(b":"):
            seconds = 60 * seconds + float(part or 0)  # of 1h20m no seconds are printed
    except ValueError:
        return nan
    return seconds


def slots_of(literals: Sequence[bytes], texts: Sequence[bytes]) -> tuple[Slot, ...]:
    """Name the numbers of a line by the text around them.

    Args:
        literals: Text before, between and after the numbers.
        texts: The numbers as printed, one fewer.
    """
    words = [text.decode("utf-8", "replace") for text in literals]
    found: list[Slot] = []
    for place, text in enumerate(texts):
        before, after = words[place], words[place + 1]
        if found:
            length = _unit(before)[2] if found[-1].unit or not found[-1].name else 0
            found[-1], before = _named_behind(found[-1], before[length:])
        is_total = place > 0 and _TOTAL.fullmatch(before) is not None
        name, unit, scale = _name(before, after)
        kind, factor, length = _unit(after)
        if kind and place + 1 < len(texts) and _names_next(name, after, words[place + 2]):
            kind = ""
        if is_duration(text):
            unit, scale = "duration", 1.0
        elif kind:
            unit, scale = kind, factor
        is_mean = place > 0 and before.strip() == "(" and not unit
        if is_total and (pair := _TWO_COUNTS.fullmatch(found[-1].name)) is not None:
            found[-1] = replace(found[-1], name=pair[1], has_total=False)
            name, is_total = pair[2], False
        elif is_total or is_mean:
            name = found[-1].name
        found.append(
            Slot(
                name=name,
                unit=unit,
                scale=scale,
                is_total=is_total,
                is_mean=is_mean,
                has_total=_TOTAL.fullmatch(after) is not None and place + 1 < len(texts),
                opens=_WRAPPED.sub("", before).strip()[-1:],
                unit_text=after[:length].strip() if kind else "",
                is_fragment=after.startswith("_") or after == "-",
            )
        )
    return tuple(found)


def _names_next(name: str, between: str, behind: str) -> bool:
    """Whether a unit between two numbers is the second one's name: ``loss 0.3  it/s 4.1``."""
    rate = between.strip()
    return bool(name) and "/" in rate and _unit(rate)[2] == len(rate) and not _unit(behind)[2]


def _named_behind(slot: Slot, after: str) -> tuple[Slot, str]:
    """Name a number by the text behind it, ``0-epoch`` or ``9.8GB reserved``; give what is left."""
    if slot.unit == "bytes" and (behind := _OF_BYTES.match(after)) is not None:
        return replace(slot, name=f"{slot.name} {behind[1]}".strip()), after[behind.end() :]
    behind = _BEHIND.match(after) if _may_be_named(slot) else None
    if behind is None or not after[behind.end() :].strip():
        return slot, after
    return replace(slot, name=behind[1]), after[behind.end() :]


def _may_be_named(slot: Slot) -> bool:
    """Whether the text behind a number may name it: ``0-epoch``, ``INFO:0-epoch``."""
    return not (slot.is_total or slot.unit) and slot.name in ("", "INFO", "DEBUG", "WARNING")


def _unit(after: str) -> tuple[str, float, int]:
    """Find the unit at the beginning of a text: its kind, factor and length."""
    for kind, pattern in _UNITS:
        match = pattern.match(after)
        if match is None or _AFTER_UNIT.match(after, match.end()) is None:
            continue
        factor = 1.0
        if pattern.groups:
            word = match[1].lower()
            factor = _BYTES[word] if kind == "bytes" else _SECONDS[word]
        return kind, factor, match.end()
    return "", 1.0, 0


def _name(before: str, after: str) -> tuple[str, str, float]:
    """Find the name at the end of a text, and the unit where the name itself tells it.

    An epoch may be named behind its number alone: ``this is the 4th epoch``.
    """
    if (nth := _ORDINAL.match(after)) is not None:
        return nth[1], "", 1.0
    text = _WRAPPED.sub("", before).rstrip(" \t:=")
    unit, scale = "", 1.0
    if (found := _IN_BRACKETS.search(text)) is not None:
        word = found[1].lower()
        unit, scale = ("bytes", _BYTES[word]) if word in _BYTES else ("time", _SECONDS[word])
        text = text[: found.start()]
    text = _GROUP.sub("", text.rstrip(_ENDS)).rstrip(_ENDS)
    last = [piece for piece in _CUT.split(text)[-1:] if piece.strip()]
    words = last[0].split() if last else []
    while words and words[-1] in _LINKS:
        words.pop()
    while words and words[0] in _LINKS:
        words.pop(0)
    name = " ".join(words[-_MOST_WORDS:]).strip(" -=>#*.!?\\/")
    if not unit and (each := _EACH.fullmatch(name)) is not None:
        unit, scale = "time of a step", _SECONDS[each[1].lower()]
    if not unit and (ending := _SUFFIX.search(name)) is not None:
        word = ending[1]
        unit, scale = ("bytes", _BYTES[word]) if word in _BYTES else ("time", _SECONDS[word])
    return name, unit, scale
