"""Which script a command runs, and which commit of it: what a page names beside its numbers.

Git's files are read, not asked for through git: nothing that a repository configures is run.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pitstop.records.script import Source

_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MOST_BYTES: Final = 1 << 22


def source_of(command: Sequence[str]) -> Source:
    """Find the first Python file that a command names, and the commit it stands in."""
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    folder = Path() if script is None else script.parent
    return Source(script=None if script is None else script.name, commit=commit_of(folder))


def commit_of(folder: Path) -> str | None:
    """Give the commit that is checked out around a folder; None outside of git."""
    with suppress(OSError, ValueError):
        start = folder.resolve()
        for place in (start, *start.parents):
            if (place / ".git").exists():
                return _head(_git_folder(place / ".git"))
    return None


def _git_folder(path: Path) -> Path:
    """A worktree and a submodule have a file that says where their folder is."""
    if path.is_dir():
        return path
    return path.parent / _text(path).removeprefix("gitdir:").strip()


def _head(folder: Path) -> str | None:
    head = _text(folder / "HEAD").strip()
    if not head.startswith("ref:"):
        return _commit(head)
    name = head.removeprefix("ref:").strip()
    common = folder / "commondir"
    shared = folder / _text(common).strip() if common.exists() else folder
    for place in (folder, shared):
        if (place / name).is_file():
            return _commit(_text(place / name))
    packed = [line.split() for line in _text(shared / "packed-refs").splitlines()]
    return next((_commit(words[0]) for words in packed if words[1:] == [name]), None)


def _commit(text: str) -> str | None:
    found = text.strip()
    return found if _COMMIT.fullmatch(found) else None


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_MOST_BYTES)
