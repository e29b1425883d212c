"""Where in a script something happens, and what the lines seen there tell of the script."""

import re
from collections.abc import Iterable
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.doctor.host_lines import line_text
from pitstop.records.script import HostLine, HostLines
from pitstop.records.units import share_text

# Looks below which a place is named without its share: one of two tells no half.
_FEWEST_FOR_SHARES: Final = 8
_MOST_PLACES: Final = 2
# A second place with less than this share of the samples only met the line by chance.
_WORTH_NAMING: Final = 0.2

_ENVIRONMENT: Final = re.compile(r"\benvs?\w*\.(step|reset)\(|\bgym(nasium)?\b|\bpettingzoo\b")
_GRADIENT: Final = re.compile(r"\.grad\b")


def places_of(facts: Facts, part: str) -> tuple[str, ...]:
    """Name the lines most often sampled in a part of the step, or outside steps."""
    lines = _lines_of(facts, part)
    samples = sum(line.samples for line in lines)
    named = [line for line in lines[:_MOST_PLACES] if line.samples >= _WORTH_NAMING * samples]
    if samples < _FEWEST_FOR_SHARES:
        return tuple(f"at {line_text(line)}" for line in named[:1])
    return tuple(
        f"{share_text(line.samples / samples)} of it at {line_text(line)}" for line in named
    )


def steps_environments(facts: Facts, part: str) -> bool:
    """Whether a line that a part spends much on steps an environment, as training by acting."""
    return _is_about(facts, part, _ENVIRONMENT)


def works_on_gradients(facts: Facts, part: str) -> bool:
    """Whether a line that a part spends much on reads or writes gradients by hand."""
    return _is_about(facts, part, _GRADIENT)


def _is_about(facts: Facts, part: str, pattern: re.Pattern[str]) -> bool:
    lines = _lines_of(facts, part)
    samples = sum(line.samples for line in lines)
    # Not the first alone: a sample of Python that runs on for less than the interpreter's switching
    # interval is put off to where the lock is let go, which may be the next line.
    return mentions([line for line in lines if line.samples >= _WORTH_NAMING * samples], pattern)


def acts_between_updates(facts: Facts) -> bool:
    """Whether a policy that is set to evaluate collects what the next updates train on.

    Who trains by acting steps environments somewhere: if in no step, then there.
    """
    found = facts.readings.last(HostLines)
    within = () if found is None else found.lines
    between = _lines_of(facts, "evaluation")
    return mentions(between, _ENVIRONMENT) and not mentions(within, _ENVIRONMENT)


def mentions(lines: Iterable[HostLine], pattern: re.Pattern[str]) -> bool:
    """Whether a line, or what it called, speaks of something."""
    return any(pattern.search(text) for line in lines for text in (line.text, line.calls or ""))


def _lines_of(facts: Facts, part: str) -> tuple[HostLine, ...]:
    """The lines of a part, each once whatever it called; most samples first."""
    found = facts.readings.last(HostLines)
    if found is None:
        return ()
    merged: dict[tuple[str, int], list[HostLine]] = {}
    for line in (*found.lines, *found.outside):
        if line.part == part:
            merged.setdefault((line.file, line.line), []).append(line)
    groups = sorted(merged.values(), key=lambda group: -sum(line.samples for line in group))
    return tuple(_joined(group) for group in groups)


def _joined(lines: list[HostLine]) -> HostLine:
    first = lines[0]
    return HostLine(
        part=first.part,
        file=first.file,
        line=first.line,
        function=first.function,
        text=first.text,
        samples=sum(line.samples for line in lines),
        # What it called differs from sample to sample; it is the line that is named.
        calls=first.calls if len(lines) == 1 else None,
    )
