"""What the documentation says holds: links lead somewhere, code compiles, no page is lost."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pitstop.doctor.logs.examine import LOG_NAMES
from pitstop.doctor.rules.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE_PAGES = sorted(DOCS.rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *SITE_PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its code: brackets there are no links."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))


def relative_links(page: Path) -> list[str]:
    # Inline code stays: it may be a link's text.
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in LINK.findall(text) if "://" not in link and "mailto:" not in link]


def anchors(page: Path) -> set[str]:
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(prose(page)))
    return {title.strip().replace(" ", "-") for title in plain}


def listed(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for entry in nav.values():
            yield from listed(entry)
    elif isinstance(nav, list):
        for entry in nav:
            yield from listed(entry)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    lost = []
    for link in relative_links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost


@pytest.mark.parametrize("page", SITE_PAGES, ids=name)
def test_a_page_of_the_site_links_to_no_file_outside_it(page: Path) -> None:
    outside = [
        link
        for link in relative_links(page)
        if not (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert not outside


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_python_block_compiles(page: Path) -> None:
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(code, name(page), "exec")


def test_the_navigation_lists_every_page_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = sorted(str(page.relative_to(DOCS)) for page in SITE_PAGES)
    assert sorted(listed(config["nav"])) == pages


def test_every_rule_of_the_doctor_has_its_page_in_both_languages() -> None:
    codes = {entry.code for entry in CATALOGUE} | set(LOG_NAMES)
    pages = {page.name for page in (DOCS / "findings").glob("*.md")}
    assert pages == {f"{code}{ending}" for code in codes for ending in (".md", ".zh-CN.md")}
