"""Every message of a finding has a Chinese one, and a table names no place that is not there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pitstop.doctor
from pitstop.doctor.rules.catalogue import CATALOGUE
from pitstop.doctor.rules.remedies import REMEDIES
from pitstop.report.language import translate
from pitstop.report.language.translate import entries_of, translator

DOCTOR = Path(pitstop.doctor.__file__).parent
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Of these only the numbers are said, or they are names and no messages.
NO_MESSAGES = {
    "TITAN X",
    "graph breaks",
    "samples/s {}",
    "the CPU",
    "DataLoader(..., num_workers={})",
    "DataLoader(..., num_workers={}, persistent_workers=True)",
    "loader.workers: {}",
    "cache.policy: epoch",
    "cache.policy: lru",
    "cache.policy: keep",
    "epoch {}",
    "rank {}",
    "a loss",  # how a gap of a log begins, by which it is found
    "the log begins in epoch",  # likewise a note
    "a learning",
    "a timestamp",
    "several runs",  # by these the reader's notes are known
    "not counted as attempts",
    "the log says",
    "of the start come again",
    "tuple[ReadingT, ...]",
}


def _template(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values
        )
    return None


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module with a word and a space, but for docstrings, annotations and errors."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Raise | ast.Assert):
            left_out |= {id(inside) for inside in ast.walk(node)}
    for node in ast.walk(tree):
        text = None if id(node) in left_out else _template(node)
        if text is None:
            continue
        left_out |= {id(inside) for inside in ast.walk(node)}
        if " " in text.strip() and re.search(r"[a-z]{2,}", text):
            yield getattr(node, "lineno", 0), text


@pytest.mark.parametrize("path", sorted(DOCTOR.rglob("*.py")), ids=lambda path: path.name)
def test_every_message_of_the_doctor_is_said_in_chinese(path: Path) -> None:
    say = translator("zh")
    assert say is not None
    untold = [
        f"{path.name}:{line}: {text}"
        for line, text in _messages(path)
        if text not in NO_MESSAGES and not CHINESE.search(say(text.replace("{}", "7")))
    ]
    assert not untold, "add them to src/pitstop/report/language/zh.txt"


def test_every_name_and_every_advice_is_said_in_chinese() -> None:
    say = translator("zh")
    assert say is not None
    advice = [line for remedy in REMEDIES.values() for line in (*remedy.settings, *remedy.code)]
    said = {text: say(text) for text in (*advice, *(entry.name for entry in CATALOGUE))}
    same = {"graph breaks", "optimizer.zero_grad(set_to_none=True)"}  # the field's own words
    assert [text for text in said.keys() - same if not CHINESE.search(said[text])] == []


def test_places_of_both_sides_agree() -> None:
    text = Path(translate.__file__).with_name("zh.txt").read_text(encoding="utf-8")
    entries = list(entries_of(text))
    for source, target in entries:
        places = len(re.findall(r"\{[nw]?\}", source))
        given = re.findall(r"\{(\d?)\}", target)
        named = {int(one) for one in given if one}
        assert not (named and "" in given), target
        # One that is left out is a word that Chinese does not say, so the others are named.
        assert len(given) == places or (named and max(named) < places), (source, target)
    assert len({source for source, _ in entries}) == len(entries), "an entry stands twice"
