"""What is wrong with a configuration: every mistake, where it stands, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pitstop.errors import ConfigError

COMMAND_LINE: Final = "command line"
_SHOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a setting was written; `line` counts from 1 and is None where there are no lines."""

    source: str
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake or one risk.

    Attributes:
        key: The setting in question, such as loader.workers; empty for a file as a whole.
        message: What is wrong and what to do, as text that follows the key.
        origin: Where it was written; None for a setting that was not written at all.
    """

    key: str
    message: str
    origin: Origin | None = None


class ConfigProblems(ConfigError):  # noqa: N818 - reads as the fact it states
    """A configuration was read and is wrong.

    Attributes:
        source: The file that was asked for.
        problems: Every mistake found, in the order of the file.
    """

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: _position(problem, source)))
        count = len(self.problems)
        head = f"{source} has {count} problem{'s' if count > 1 else ''}"
        super().__init__("\n".join([head, *problem_lines(self.problems, source=source)]))


def problem_lines(problems: Iterable[Problem], *, source: str) -> list[str]:
    """Lay problems out as aligned lines; a place is named where it is not plain from `source`."""
    listed = list(problems)
    shown = listed[:_SHOWN]
    width = max((len(problem.key) for problem in shown if len(problem.key) <= 40), default=0)
    lines = [
        f"  {problem.key:<{width}}  {problem.message}{_place(problem.origin, source)}"
        if problem.key
        else f"  {problem.message}{_place(problem.origin, source)}"
        for problem in shown
    ]
    if len(listed) > _SHOWN:
        lines.append(f"  and {len(listed) - _SHOWN} more")
    return lines


def shorten(value: object, *, limit: int = 60) -> str:
    """Quote a value in a message: on one line, printable, and not longer than `limit`."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a group of settings"
    text = _list_text(value) if isinstance(value, list | tuple) else str(value)
    if not text:
        return "an empty text"
    text = text[: limit + 1]
    if not text.isprintable():
        text = ascii(text)[1:-1]
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _list_text(values: list[object] | tuple[object, ...]) -> str:
    return f"[{', '.join(shorten(value, limit=20) for value in values[:20])}]"


def _position(problem: Problem, source: str) -> tuple[bool, str, int]:
    if problem.origin is None:
        return (True, "", 0)
    elsewhere = "" if problem.origin.source == source else problem.origin.source
    return (False, elsewhere, problem.origin.line or 0)


def _place(origin: Origin | None, source: str) -> str:
    if origin is None:
        return ""
    parts = [] if origin.source == source else [origin.source]
    if origin.line is not None:
        parts.append(f"line {origin.line}")
    return f" ({', '.join(parts)})" if parts else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigCheck:
    """Whether a configuration can be used, as a record."""

    source: str
    is_sound: bool
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
