"""A finished page in another language: what stands between its tags, and names that are heard.

Code, styles and scripts stay, and so does what is in the language already, as explanations are.
"""

import json
import re
from html import escape, unescape
from typing import Final

from pitstop.report.language.translate import Translator

HTML_LANGUAGE: Final = {"en": "en", "zh": "zh-CN"}

_TAG: Final = re.compile(r"(<[^>]*>)")
_HEARD: Final = re.compile(r'(aria-label|alt)="([^"]*)"')
_KEPT: Final = re.compile(r"<(style|script|code|pre)[\s>]")
_SAID: Final = re.compile(r"var SAID = \{.*?\};", re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def page_in_language(page: str, say: Translator) -> str:
    """Translate what a reader sees or hears of a page."""
    pieces = _TAG.split(page)
    until: str | None = None
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            if until is None:
                pieces[place] = _between_tags(piece, say)
        elif until is not None:
            until = None if piece == until else until
        elif (kept := _KEPT.match(piece)) is not None:
            until = f"</{kept[1]}>"
        else:
            pieces[place] = _HEARD.sub(lambda heard: _heard(heard, say), piece)
    return "".join(pieces)


def script_in_language(script: str, say: Translator) -> str:
    """Translate what a script says, which stands together in it."""
    return _SAID.sub(lambda said: _QUOTED.sub(lambda text: _quoted(text, say), said[0]), script)


def _between_tags(text: str, say: Translator) -> str:
    if not text.strip():
        return text
    plain = unescape(text)
    said = say(plain)
    return text if said == plain else escape(said)


def _heard(heard: re.Match[str], say: Translator) -> str:
    return f'{heard[1]}="{escape(say(unescape(heard[2])))}"'


def _quoted(text: re.Match[str], say: Translator) -> str:
    said = say(text[1])
    return text[0] if said == text[1] else json.dumps(said, ensure_ascii=False)
