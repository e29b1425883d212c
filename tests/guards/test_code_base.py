"""Rules of the code base that no other tool keeps."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from pydantic import BaseModel

from pitstop.config import sections
from pitstop.config.keys import every_key, field_docs, section_classes
from pitstop.config.workloads.kinds import KINDS

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

# Lines that src/ may have, blank ones included. Deleting is a feature: raising this figure is a
# decision, taken in a change of its own that says what the lines are for.
LINE_BUDGET = 111_200

MOST_MODULES = 20
# Python itself starts it.
STARTED_BY_NAME = {"pitstop_probe.inject.sitecustomize"}

FORBIDDEN_WORDS = ("TODO", "FIXME", "XXX", "HACK")
FORBIDDEN_PACKAGES = {"utils", "common", "helpers", "core", "misc"}


def test_the_changelog_begins_with_the_packages_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    heads = re.findall(r"^## \[([^\]]+)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    names = [name for name, _ in heads]
    assert names[0] == "Unreleased"
    assert names[1] == version
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for _, date in heads[1:])


def test_the_sources_keep_to_their_line_budget() -> None:
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in SOURCES)
    assert 1_000 < lines <= LINE_BUDGET, f"{lines} lines; see LINE_BUDGET"


@pytest.mark.parametrize("word", FORBIDDEN_WORDS)
def test_no_source_puts_work_off(word: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(rf"\b{word}\b", line)
    ]
    assert found == []


def test_no_folder_holds_more_modules_than_a_reader_can_keep_in_mind() -> None:
    folders = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    crowded = {str(f.relative_to(ROOT)): n for f, n in folders.items() if n > MOST_MODULES}
    assert crowded == {}


def test_no_module_is_without_an_importer() -> None:
    imported = {name for path in SOURCES for name in _imported(path)}
    modules = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in SOURCES}
    alone = {name for name in modules if not name.endswith(("__init__", "__main__"))} - imported
    assert alone - STARTED_BY_NAME == set()


def _imported(path: Path) -> set[str]:
    """Modules that a file imports, also inside functions, and those it names in strings."""
    text = path.read_text(encoding="utf-8")
    found: set[str] = set(re.findall(r"\"(pitstop[\w.]*)\"", text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_package_is_a_drawer_for_everything() -> None:
    names = {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not names & FORBIDDEN_PACKAGES


def test_every_test_for_a_gpu_is_marked_as_one() -> None:
    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    marks = {
        file.name: ast.unparse(line.value)
        for file in files
        for line in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "pytestmark"
    }
    assert len(files) > 10
    # Without the mark `pytest -m gpu` leaves them out, and nothing says so.
    assert [f.name for f in files if "pytest.mark.gpu" not in marks.get(f.name, "")] == []


def test_every_field_of_every_section_is_described() -> None:
    found = [
        thing
        for thing in vars(sections).values()
        if isinstance(thing, type) and issubclass(thing, BaseModel) and thing is not BaseModel
    ]
    kinds = [section_classes(KINDS[kind]) for kind in KINDS]
    described = 0
    for section in found:
        assert section.__doc__, section.__name__
        for name, field in section.model_fields.items():
            # A field that is a section is described by that section's own text.
            inner = field.annotation
            is_section = isinstance(inner, type) and issubclass(inner, BaseModel)
            text = field.description or field_docs(section).get(name, "")
            assert text or is_section, f"{section.__name__}.{name}"
            described += 1
    for classes in kinds:
        for key in every_key(classes).values():
            assert key.description or key.section is not None, key.name
            described += 1
    assert described > 100, "the walk over the sections found too little"


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python up to 3.11.4, Debian 12's among them, then matches less than it should."""
    possessive = re.compile(r"\)[?*+}]\+")
    found = [str(path) for path in SOURCES if possessive.search(path.read_text(encoding="utf-8"))]
    assert found == []
