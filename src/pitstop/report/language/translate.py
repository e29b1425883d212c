"""Messages in another language, by a table of templates; what it lacks stays English.

Verdicts are records, and records are English: programs read them. So a message is translated where
it is shown. A template is the message with places for what changes, as the code that made it has
them; what stands in a place is translated in its turn, so that counts and parts need one entry.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_PLACE: Final = re.compile(r"\{([nw]?)\}|\((e?s)\)")
_STANDS: Final = {"": "(.*?)", "n": r"([\d.,]+)", "w": r"([^()]*?)"}
_WORD: Final = re.compile(r"[A-Za-z]{2}")
# Lists and messages of several clauses are split; code in quotes and what is in brackets is not.
_NOT_INSIDE: Final = r"(?=(?:[^`]*`[^`]*`)*[^`]*$)(?![^()]*\))"
_BETWEEN: Final = {"; ": "\uff1b", ": ": "\uff1a", ". ": "\u3002"}
_STOPS: Final = {":": "\uff1a", ".": "\u3002"}
# Words that no template took: what holds them is not translated around them.
_PROSE: Final = re.compile(r"\b[a-z]{2,} [a-z]{2,}\b")
# Letters of a template that begins with a place, up to which it fits nearly everything.
_LOOSE: Final = 14


class _Template(NamedTuple):
    pattern: re.Pattern[str]
    longest: str
    """The longest piece between places: a text without it does not match, which is seen sooner."""
    target: str
    has_words: bool
    """Whether it says something itself: one of brackets alone is for what stands in them."""


class Translator:
    """Says messages in the language of a table."""

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        """Take pairs of an English template and its counterpart."""
        # Of two that match, the one that says more is meant.
        in_order = sorted(entries, key=lambda entry: -_literal_letters(entry[0]))
        made = [(source, _template(source, target)) for source, target in in_order]
        self._added = [template for source, template in made if source[:1] == " "]
        self._loose = [template for source, template in made if _is_loose(source)]
        self._strict = [template for source, template in made if not _is_loose(source)]
        self._said: dict[str, str | None] = {}

    def __call__(self, text: str) -> str:
        """Give the text in the language, as far as the table has it."""
        body = text.strip()
        if not _WORD.search(body):
            return text
        if text != body and (said := self._matched(self._added, text)) is not None:
            return said
        start = text.index(body)
        end = text[start + len(body) :]
        said = self._matched(self._strict, body)
        if said is None and body[-1] in _STOPS and (head := self._whole(body[:-1])) is not None:
            said = head + _STOPS[body[-1]]
            end = end.lstrip(" ")
        said = said or self._whole(body)
        return text[:start] + (body if said is None else said) + end

    def _whole(self, text: str) -> str | None:
        if text not in self._said:
            self._said[text] = None  # a template of places alone must not ask for itself
            # Clauses go before templates that fit nearly everything, such as "{} of {}".
            self._said[text] = (
                self._matched(self._strict, text)
                or self._split(text, "; ")
                or self._matched(self._loose, text, without_prose=True)
                or next(filter(None, (self._split(text, one) for one in (". ", ": ", ", "))), None)
            )
        return self._said[text]

    def _matched(
        self, templates: Iterable[_Template], text: str, *, without_prose: bool = False
    ) -> str | None:
        for template in templates:
            found = template.pattern.fullmatch(text) if template.longest in text else None
            if found is None:
                continue
            places = [self(place) for place in found.groups()]
            says_nothing = not template.has_words and places == list(found.groups())
            if not (says_nothing or (without_prose and any(map(_PROSE.search, places)))):
                return template.target.format(*places)
        return None

    def _split(self, text: str, between: str) -> str | None:
        most = 1 if between == ": " else 0
        pieces = re.split(re.escape(between) + _NOT_INSIDE, text, maxsplit=most)
        said = [self(piece) for piece in pieces] if len(pieces) > 1 else pieces
        return None if said == pieces else _BETWEEN.get(between, between).join(said)


@cache
def translator(language: str) -> Translator | None:
    """Give what says messages in a language; None for English, which they are in."""
    if language == "en":
        return None
    text = Path(__file__).with_name(f"{language}.txt").read_text(encoding="utf-8")
    return Translator(entries_of(text))


def entries_of(text: str) -> Iterator[tuple[str, str]]:
    """Read a table: two lines an entry, empty lines between them, comments after ``#``."""
    lines = [line for line in text.split("\n") if line and not line.startswith("# ")]
    assert len(lines) % 2 == 0, "every template has one line below it"
    yield from zip(lines[::2], lines[1::2], strict=True)


def _template(source: str, target: str) -> _Template:
    pieces: list[str] = []
    pattern, at = "", 0
    for place in _PLACE.finditer(source):
        pieces.append(source[at : place.start()])
        stands = f"(?:{place[2]})?" if place[2] else _STANDS[place[1]]
        pattern += re.escape(pieces[-1]) + stands
        at = place.end()
    pieces.append(source[at:])
    pattern += re.escape(pieces[-1])
    return _Template(re.compile(pattern, re.DOTALL), _longest(pieces), target, _has_words(pieces))


def _longest(pieces: list[str]) -> str:
    """The longest piece, but for the first letter of all, which is a capital now and then."""
    return max([pieces[0][1:], *pieces[1:]], key=len)


def _has_words(pieces: Iterable[str]) -> bool:
    return any(map(_WORD.search, pieces))


def _literal_letters(source: str) -> int:
    """How much of a template is said, whatever stands in its places."""
    return len(_PLACE.sub("", source)) + source.count("{n}") + source.count("{w}")


def _is_loose(source: str) -> bool:
    return source.startswith("{}") and _literal_letters(source) <= _LOOSE
