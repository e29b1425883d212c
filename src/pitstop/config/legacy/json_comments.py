"""Option files as KAIR writes them: JSON with `//` comments, and the line of every key.

A `//` inside a string, such as that of an address, belongs to the string.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from pitstop.errors import ConfigError

_MAX_DEPTH: Final = 40
_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|//[^\n]*)*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_ATOM: Final = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")


@dataclass(slots=True, kw_only=True)
class JsonFile:
    """What a file says, and the line of each key by its path."""

    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)


def read_json(text: str, source: str) -> JsonFile:
    """Read JSON with comments; of a key that is set twice the last one counts, as json has it.

    Raises:
        ConfigError: When it is no such JSON, with the line.
    """
    reader = _Reader(text, source)
    values = reader.document()
    if not isinstance(values, dict):
        raise ConfigError(f"{source}:1: must be an object of settings, not a list or a value")
    return JsonFile(values=values, lines=reader.lines)


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._at = 0
        self.lines: dict[str, int] = {}

    def document(self) -> Any:
        value = self._value("", depth=0)
        if self._peek():
            raise self._problem("more follows after the last bracket")
        return value

    def _value(self, path: str, *, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise self._problem(f"is nested deeper than {_MAX_DEPTH} levels")
        match self._peek():
            case "{":
                return self._object(path, depth)
            case "[":
                return self._list(path, depth)
            case '"':
                return self._string()
            case _:
                return self._atom()

    def _object(self, path: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for _ in self._items("}"):
            if self._peek() != '"':
                raise self._problem("expected a key in quotes")
            line = self._line()
            key = self._string()
            inner = f"{path}.{key}" if path else key
            self.lines[inner] = line
            self._expect(":")
            made[key] = self._value(inner, depth=depth + 1)
        return made

    def _list(self, path: str, depth: int) -> list[Any]:
        return [self._value(path, depth=depth + 1) for _ in self._items("]")]

    def _items(self, end: str) -> Any:
        """Step from item to item of an object or a list, up to its closing bracket."""
        self._at += 1
        if self._peek() == end:
            self._at += 1
            return
        while True:
            yield
            if self._peek() == end:
                self._at += 1
                return
            self._expect(",")

    def _string(self) -> str:
        return str(json.loads(self._match(_STRING, "a text in quotes that ends on its line")))

    def _atom(self) -> Any:
        text = self._match(_ATOM, "a value")
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._problem(f"{text[:40]} is no value") from error

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._problem(f"expected {expected}")
        self._at = found.end()
        return found.group()

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._problem(f"expected `{sign}`")
        self._at += 1

    def _peek(self) -> str:
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank else self._at
        return self._text[self._at : self._at + 1]

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _problem(self, message: str) -> ConfigError:
        return ConfigError(f"{self._source}:{self._line()}: is not readable as JSON: {message}")
