"""Lines of Python on which the training thread was found: which part, whose fault."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.records.script import HostLine, HostLines, LongStep, Syncs

# Fewer samples tell no shares: the error of one half is then above a seventh.
_FEWEST_SAMPLES: Final = 8

# Looks added to both sides before an error is taken: of eight that all met a line it is not zero.
_NOT_YET_SEEN: Final = 2

# A line that holds most samples of a long step is what made it long.
_MOSTLY_THERE: Final = 0.5

# Parts whose calls stand in the training loop.
_TRAINING: Final = ("forward", "backward", "optimizer", "zero_grad")

_PASSES: Final = ("forward", "loss", "backward")

# A function with this share of its time on lines that write is there for writing.
_MOSTLY_LOGGING: Final = 0.2

_LOGGING: Final = re.compile(
    r"\b(print|pprint)\b"
    r"|\b(logging|logger|loguru|tqdm|wandb|mlflow|comet_ml|tensorboardX?|json|csv)\b(?!\s*=)"
    r"|\b(set_postfix|set_description|SummaryWriter|add_scalars?|add_histogram|add_images?"
    r"|writerows?|log_metrics?|log_dict)\b"
    r"|\b(stdout|stderr|log\w*|\w*_log|log_file|fh|fp|f)\.(write|flush|info|debug|warning)\b"
)

# While the next batch is waited for, the loop's own line is on the stack, and what it wraps the
# loader in: `for x in tqdm(loader)`. A bar draws only once the batch is there, outside this part.
_NEXT_BATCH: Final = re.compile(r"\s*(async\s+)?for\b|.*\bnext\(")
_BAR: Final = re.compile(r"\btqdm\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Looks that found the training thread in one part."""

    part: str
    samples: int
    lines: tuple[HostLine, ...]
    """Most samples first."""

    def share_of(self, lines: Sequence[HostLine]) -> float:
        """Share of the part that lies on some lines."""
        return sum(line.samples for line in lines) / self.samples

    def error_of(self, share: float) -> float:
        """Standard error of such a share: samples hit or miss a line."""
        counted = self.samples + 2 * _NOT_YET_SEEN
        settled = (share * self.samples + _NOT_YET_SEEN) / counted
        return math.sqrt(settled * (1 - settled) / counted)


def lines_of_part(facts: Facts, part: str) -> HostTime | None:
    """Give the lines of a part; None where there were too few samples to tell shares."""
    found = facts.readings.last(HostLines)
    if found is None:
        return None
    lines = _merged(line for line in _usual_lines(facts, found) if line.part == part)
    samples = sum(line.samples for line in lines)
    if samples < _FEWEST_SAMPLES:
        return None
    return HostTime(part=part, samples=samples, lines=lines)


def long_step(facts: Facts, step: int) -> LongStep | None:
    """Give where most samples of a long step met the thread; None where they do not agree."""
    found = facts.readings.last(HostLines)
    for long in () if found is None else found.long_steps:
        if long.step == step and long.line.samples >= _MOSTLY_THERE * long.samples:
            return long
    return None


def _usual_lines(facts: Facts, found: HostLines) -> tuple[HostLine, ...]:
    """Take the samples that fell in stalls off their lines, as the stalls are off the parts."""
    within = [stall.step for stall in facts.stalls if not stall.is_outside]
    stalled = [long.line for step in within if (long := long_step(facts, step)) is not None]
    stalled_samples = {_place(line): 0 for line in stalled}
    for line in stalled:
        stalled_samples[_place(line)] += line.samples
    left = (
        replace(line, samples=line.samples - stalled_samples.get(_place(line), 0))
        for line in found.lines
    )
    return tuple(line for line in left if line.samples > 0)


def _place(line: HostLine) -> tuple[str, str, int, str | None]:
    return line.part, line.file, line.line, line.calls


def _merged(lines: Iterable[HostLine]) -> tuple[HostLine, ...]:
    """Count a line once, whatever it was waiting for further down; most samples first.

    A lambda or a comprehension on a line is that line: people see one.
    """
    merged: dict[tuple[str, int], HostLine] = {}
    for line in lines:
        key = (line.file, line.line)
        seen = merged.get(key)
        if seen is None:
            merged[key] = line
            continue
        calls = " ".join(dict.fromkeys(name for name in (seen.calls, line.calls) if name))
        named = line.function if seen.function.startswith("<") else seen.function
        merged[key] = replace(
            seen, function=named, samples=seen.samples + line.samples, calls=calls or None
        )
    return tuple(sorted(merged.values(), key=lambda line: line.samples, reverse=True))


def is_logging(line: HostLine) -> bool:
    """Whether a line prints, logs, draws a bar or writes a log file."""
    texts = (line.calls or "", line.text)
    if line.part == "data":
        if _NEXT_BATCH.match(line.text):
            return False
        texts = tuple(_BAR.sub("", text) for text in texts)
    return any(_LOGGING.search(text) for text in texts)


def logging_lines(facts: Facts, host: HostTime) -> tuple[HostLine, ...]:
    """Give the lines of a part that log, and all lines of functions that do little else.

    A function that writes a log also gathers and formats what it writes. The training loop itself
    is no such function, however much it prints: of it, the lines that print count alone.
    """
    found = facts.readings.last(HostLines)
    every = () if found is None else found.lines
    loops = {(line.file, line.function) for line in every if line.part in _TRAINING}
    by_function: dict[tuple[str, str], list[HostLine]] = {}
    for line in host.lines:
        by_function.setdefault(_function_of(line, host.lines), []).append(line)
    logging: list[HostLine] = []
    for function, lines in by_function.items():
        direct = [line for line in lines if is_logging(line)]
        written, whole = (sum(line.samples for line in group) for group in (direct, lines))
        is_logger = function not in loops and written >= _MOSTLY_LOGGING * whole
        logging += lines if is_logger else direct
    return tuple(sorted(logging, key=lambda line: line.samples, reverse=True))


def _function_of(line: HostLine, lines: Sequence[HostLine]) -> tuple[str, str]:
    """The function a line stands in; of a comprehension, the one around it."""
    if not line.function.startswith("<"):
        return line.file, line.function
    around: dict[str, list[int]] = {}
    for other in lines:
        if other.file == line.file and not other.function.startswith("<"):
            around.setdefault(other.function, []).append(other.line)
    inside = [name for name, at in around.items() if min(at) <= line.line <= max(at)]
    closest = min(inside, key=lambda name: max(around[name]) - min(around[name]), default=None)
    return line.file, line.function if closest is None else closest


def is_sync(facts: Facts, line: HostLine) -> bool:
    """Whether a line was seen to wait for the device; such time has a rule of its own."""
    syncs = facts.readings.last(Syncs)
    if syncs is None:
        return False
    return any((line.file, line.line) == (other.file, other.line) for other in syncs.lines)


def may_load(facts: Facts, line: HostLine) -> bool:
    """Whether a line may make the next batch: it does not stand below the passes of its function.

    A function that makes a batch when it is called is not distinguished from other Python.
    """
    found = facts.readings.last(HostLines)
    passes = [
        other.line
        for other in (() if found is None else found.lines)
        if other.part in _PASSES and (other.file, other.function) == (line.file, line.function)
    ]
    return not passes or line.line < min(passes)


def line_text(line: HostLine) -> str:
    """Where and what: ``train.py:41 `print(loss)` ``."""
    name = line.file.replace("\\", "/").rpartition("/")[2]
    called = (line.calls or "").split(" ")[0]
    is_new = called and called.rpartition(".")[2] not in line.text
    calls = f" (in {called})" if is_new else ""
    return f"{name}:{line.line} `{line.text.strip()}`{calls}"
