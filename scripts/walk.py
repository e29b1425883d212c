"""Which files of pitstop a command enters, in order: for docs/architecture.md.

    python scripts/walk.py train configs/deblur/demo.yaml train.steps=2
    python scripts/walk.py doctor runs/deblur-demo

Runs the command in this process and counts, by `sys.setprofile`, the files that are entered and how
often control passes from one file to another. Import of a module is not counted, nor are other
threads and processes. For `train` it also gives the frames of pitstop on the stack when the first
step begins.
"""

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pitstop
from pitstop.cli.main import main

SOURCES = str(Path(pitstop.__file__).parent) + "/"
STEP = ("train/step.py", "train_step")


class Walk:
    """What was entered so far."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.switches = 0
        self.stack_at_step: list[str] = []
        self._last = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take a call in; see `sys.setprofile`."""
        path = frame.f_code.co_filename
        # Bodies of modules and classes run when they are imported: they are not a walk.
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event != "call" or not is_function or not path.startswith(SOURCES):
            return
        name = path.removeprefix(SOURCES)
        self.files[name] = self.files.get(name, 0) + 1
        self.switches += name != self._last
        self._last = name
        if (name, frame.f_code.co_name) == STEP and not self.stack_at_step:
            self.stack_at_step = list(reversed(_frames(frame)))


def _frames(frame: FrameType | None) -> list[str]:
    """Name the frames of pitstop from this one outwards."""
    found = []
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(SOURCES):
            found.append(f"{path.removeprefix(SOURCES)}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found


def walk(run: Callable[[], object]) -> Walk:
    """Run something and say which files it entered."""
    found = Walk()
    sys.setprofile(found)
    try:
        with suppress(SystemExit):
            run()
    finally:
        sys.setprofile(None)
    return found


if __name__ == "__main__":
    seen = walk(main)
    print(
        f"\n{len(seen.files)} files entered, {seen.switches} switches between files",
        file=sys.stderr,
    )
    for number, (name, calls) in enumerate(seen.files.items(), 1):
        print(f"{number:3} {name} ({calls} calls)", file=sys.stderr)
    if seen.stack_at_step:
        print(f"{len(seen.stack_at_step)} frames of pitstop at the first step:", file=sys.stderr)
        print("  " + "\n  ".join(seen.stack_at_step), file=sys.stderr)
