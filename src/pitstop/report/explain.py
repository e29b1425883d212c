"""What a finding means and what to change: the pages of docs/findings, in the terminal.

One source: the documentation site shows the same files, and the wheel carries them.
"""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pitstop.config.shipped import shipped_folder
from pitstop.errors import PitstopError

LANGUAGES: Final = {"en": ".md", "zh": ".zh-CN.md"}
"""Languages the pages are written in, with how the names of their files end."""

_TITLE: Final = re.compile(r"\A# (?P<code>[A-Z]+\d{3})[:\uFF1A] ?(?P<summary>.+)\n")
# A link to another page leads nowhere in a terminal; what it says stays.
_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")
_OTHER_LANGUAGE: Final = re.compile(r"^\[(?:中文|English)\]\([^)]*\)\n+", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One finding, explained."""

    code: str
    summary: str
    text: str
    """Markdown without links to other pages; begins with what to change."""


def explain(code: str, language: str = "en") -> Explanation:
    """Give the page of a finding.

    Raises:
        PitstopError: There is no such finding or language.
    """
    pages = _pages(language)
    page = pages.get(code.upper())
    if page is None:
        near = difflib.get_close_matches(code.upper(), pages, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise PitstopError(f"no finding is called {code}; {hint}`pitstop explain` lists them all")
    return _read(page)


def explain_all(language: str = "en") -> tuple[Explanation, ...]:
    """Give every finding, by code."""
    return tuple(_read(page) for page in _pages(language).values())


def require_language(language: str) -> None:
    """Refuse a language that the pages are not written in.

    Raises:
        PitstopError: It is none of them.
    """
    if language not in LANGUAGES:
        raise PitstopError(f"--lang {language} is not one of {', '.join(LANGUAGES)}")


def _pages(language: str) -> dict[str, Path]:
    require_language(language)
    folder = shipped_folder("findings", in_checkout="docs/findings")
    if folder is None:
        raise PitstopError("the package came without the pages of its findings; install it again")
    ending = LANGUAGES[language]
    found = {path.name.removesuffix(ending): path for path in sorted(folder.glob(f"*{ending}"))}
    return {code: path for code, path in found.items() if "." not in code}


def _read(page: Path) -> Explanation:
    text = page.read_text(encoding="utf-8")
    title = _TITLE.match(text)
    assert title is not None, page
    body = _OTHER_LANGUAGE.sub("", text[title.end() :].lstrip("\n"), count=1)
    return Explanation(
        code=title["code"], summary=title["summary"], text=_LINK.sub(r"\1", body).strip()
    )


def explanation_report(found: Explanation) -> RenderableType:
    """One finding: its name, what to change, why, how it is measured.

    Markdown stays as it is written, but for headings and fences: it reads well, and what is copied
    from it is what stands there.
    """
    lines = [line for line in found.text.splitlines() if not line.startswith("```")]
    return Group(
        Text(f"{found.code} {found.summary}\n", style="bold"),
        *(
            Text(line.removeprefix("## "), style="bold" if line.startswith("## ") else "")
            for line in lines
        ),
    )


def overview_report(found: tuple[Explanation, ...]) -> RenderableType:
    """All findings, one line each."""
    table = Table.grid(padding=(0, 2))
    for one in found:
        table.add_row(Text(one.code, style="bold"), Text(one.summary))
    return Group(table, Text(f"\nnext: pitstop explain {found[0].code}"))
