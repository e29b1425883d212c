"""Where the script built what can be changed, and what was changed there: one line of JSON each.

The tuner outside reads it: to know what there is to change, to be sure that a change took hold, and
to name the line that the user would change.
"""

import json
import os
import sys
from typing import Any, Set

from pitstop_probe.stacks.stack import Stack, innermost_own

_MOST = 200


class Sites:
    """Writes down what was built and changed, each place once.

    Args:
        folder: Of the record.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._stack = Stack()
        self._known: Set[str] = set()

    def place(self) -> str:
        """File and line of the innermost frame of the script's own; empty where there is none."""
        return self._stack.place(sys._getframe(1)) or ""  # pyright: ignore[reportPrivateUsage]

    def own_frame(self) -> Any:
        """Give the innermost frame of the script's own; None where there is none."""
        found = innermost_own(self._stack, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return None if found is None else found[0]

    def is_called_by_script(self) -> bool:
        """Tell whether the caller of the caller is the script's own, and no library."""
        frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        return not self._stack.is_library(frame.f_code.co_filename)

    def built(self, kind: str, place: str, **facts: Any) -> None:
        """Note that the script built something."""
        self._write({"built": kind, "place": place, **facts})

    def changed(self, change: str, place: str, name: str = "") -> None:
        """Note that something was changed there."""
        self._write({"changed": change, "place": place, "name": name})

    def _write(self, line: Any) -> None:
        text = json.dumps(line)
        if text in self._known or len(self._known) >= _MOST:
            return
        self._known.add(text)
        path = os.path.join(self._folder, "sites-{}.jsonl".format(os.getpid()))
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError:
            pass  # a full disk must not stop a training
