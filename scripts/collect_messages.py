"""Print every message that src/pitstop can show to a user, with its place.

A message is a string literal with a blank in it that is not a docstring; parts of an f-string are
joined, with ``{...}`` for what is filled in.

    python scripts/collect_messages.py [PATH ...]
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_SOURCE = _ROOT / "src" / "pitstop"


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Give line and text of every string literal that is not a docstring."""
    yield from _inside(ast.parse(source))


def _inside(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(map(_part, node.values))
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.lineno, node.value
        return
    for child in ast.iter_child_nodes(node):
        # A literal that stands alone documents what is above it: nobody is shown it.
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield from _inside(child)


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    inner = [text for _, text in _inside(node.value) if " " in text]
    return f"{{{ast.unparse(node.value)}}}" if inner else "{...}"


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _shown(path: Path) -> Path:
    path = path.resolve()
    return path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path


if __name__ == "__main__":
    for file in _files([Path(name) for name in sys.argv[1:]] or [_SOURCE]):
        for line, text in messages(file.read_text(encoding="utf-8")):
            if " " in text.strip():
                print(f"{_shown(file)}:{line}: {text!r}")
