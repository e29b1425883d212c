"""Private words stay out of what users read: messages, templates, documentation."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# History keeps the words it was written with.
NOT_READ = {"docs/lab-notes.md", "CHANGELOG.md"}

# Whole words with their inflections, and what to say instead.
BANNED = {
    r"mend(s|ed|ing)?": "fix",
    r"cur(e|es|ed|ing)": "fix",
    r"diseases?": "bottleneck",
    r"sick(er|est|ness)?": "slow",
    r"heed(s|ed|ing)?": "handle",
    r"grave(r|st|ly)?": "severe, critical",
    r"crews?": "worker settings",
    r"tall(y|ies|ied|ying)": "count, throughput",
    r"middle hal(f|ves)": "IQR",
    r"looked[ -]at": "sampled",
    r"closer looks?": "profile",
    r"quicker rest": "CPU headroom",
    r"rungs?": "gain",
}
PATTERN = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)


def _sources() -> list[Path]:
    return sorted((ROOT / "src" / "pitstop").rglob("*.py"))


def _pages() -> list[Path]:
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")),
        *(ROOT / "src" / "pitstop" / "report" / "templates").iterdir(),
    ]
    return sorted(page for page in pages if str(page.relative_to(ROOT)) not in NOT_READ)


def _messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give string literals and parts of f-strings, without docstrings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        yield from _messages(node)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return _messages(ast.parse(text))
    return iter(enumerate(text.splitlines(), 1))


def test_nothing_that_users_read_has_a_private_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in (*_sources(), *_pages())
        for line, text in _lines(path)
        for match in PATTERN.finditer(text)
    ]
    listing = "\n".join(found)
    assert not found, f"{len(found)} places; for what to say see BANNED\n{listing}"


@pytest.mark.parametrize(
    "word", ["mending", "Cured", "graver", "tallies", "middle halves", "was looked at", "rungs"]
)
def test_inflections_of_private_words_are_found(word: str) -> None:
    assert PATTERN.search(f"a {word} one")


@pytest.mark.parametrize(
    "word", ["recommended", "amendment", "secure", "procured", "accurate", "security", "trunk"]
)
def test_words_that_contain_private_words_are_not(word: str) -> None:
    assert not PATTERN.search(f"a {word} one")
