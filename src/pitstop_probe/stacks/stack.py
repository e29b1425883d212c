"""Whose work is on a stack: the script's own lines, and what they are for."""

import opcode
import os
import sysconfig
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from pitstop_probe.stacks.statements import CALLS_MODEL, DATA, Flow, Statement, statements_of

# Everything of the probe's lies below it: a frame is ours by its file.
OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_GENERATOR = 0x20  # inspect.CO_GENERATOR, without importing inspect
_FOR_ITER = opcode.opmap["FOR_ITER"]
# Packages may lie elsewhere, too: a user's own, those of an environment below this one.
_PACKAGES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))
_GIVERS = ("__next__", "__getitem__")
_QUEUES = ("queue.py", "queues.py")


class Stack:
    """Reads stacks of the training thread, by what was learnt of the training loop."""

    def __init__(self) -> None:
        self._foreign = library_folders()
        self._libraries: Dict[str, bool] = {}
        self._loop: Set[int] = set()
        # By identity: the code, kept so that no other gets its place, and the lines in it.
        self._model_lines: Dict[int, Tuple[Any, Set[int]]] = {}
        self._statements: Dict[int, List[Statement]] = {}
        self._flows: Dict[int, Optional[Flow]] = {}

    def is_library(self, file: str) -> bool:
        """Whether a file is not the script's own."""
        found = self._libraries.get(file)
        if found is None:
            found = file.startswith(self._foreign) or any(name in file for name in _PACKAGES)
            self._libraries[file] = found
        return found

    def learn_loop(self, frame: Any) -> None:
        """Keep which functions of the script's own are around its training."""
        self._loop.update(id(own.f_code) for own in self._own(frame))

    def learn_model_call(self, frame: Any) -> None:
        """Keep which lines of the script's own a call of the model comes from."""
        for own in self._own(frame):
            code = own.f_code
            _, lines = self._model_lines.setdefault(id(code), (code, set()))
            if own.f_lineno not in lines:
                lines.add(own.f_lineno)
                self._flows.pop(id(code), None)

    def purpose(self, frame: Any) -> Optional[str]:
        """Say what the work under way is for: loss, data or host; None where nothing tells."""
        if self.is_feeding(frame):
            return DATA
        for own in reversed(list(self._own(frame))):
            flow = self._flow(own.f_code)
            if flow is None:
                return None
            found = flow.purpose_at(own.f_lineno)
            if found != CALLS_MODEL:
                return found
        return None

    def makes_batch(self, frame: Any) -> bool:
        """Whether a call of a module that gives no gradients makes a batch.

        It does in what feeds the loop, and in a function beside the model whose result the model
        is given. A teacher's results are for the loss; and what the function calls that calls the
        model, too, is part of the pass.
        """
        if self.is_feeding(frame):
            return True
        frames = list(self._own(frame))
        for own in reversed(frames[1:]):
            flow = self._flow(own.f_code)
            if flow is None:
                return False
            if flow.purpose_at(own.f_lineno) != CALLS_MODEL:
                return flow.makes_arguments(own.f_lineno)
        return False

    def caller(self, frame: Any) -> int:
        """Identity of the code that is the innermost of the script's own."""
        own = next(self._own(frame), None)
        return 0 if own is None else id(own.f_code)

    def is_feeding(self, frame: Any) -> bool:
        """Whether the next batch is being made.

        By a generator of the script's own, by what gives one item at a time, or by whatever the
        training loop goes through; or it is waited for at a queue.
        """
        innermost = frame
        while frame is not None:
            code = frame.f_code
            if self.is_library(code.co_filename):
                if code.co_name == "get" and code.co_filename.endswith(_QUEUES):
                    return True
            elif id(code) in self._loop:
                return frame is not innermost and _is_iterating(frame)
            elif code.co_flags & _GENERATOR or code.co_name in _GIVERS:
                return frame.f_back is not None
            frame = frame.f_back
        return False

    def place(self, frame: Any) -> Optional[str]:
        """File and line of the innermost frame of the script's own."""
        own = next(self._own(frame), None)
        return None if own is None else "{}:{}".format(own.f_code.co_filename, own.f_lineno)

    def _own(self, frame: Any) -> Iterator[Any]:
        """The frames of the script's own, innermost first."""
        while frame is not None:
            if not self.is_library(frame.f_code.co_filename):
                yield frame
            frame = frame.f_back

    def _flow(self, code: Any) -> Optional[Flow]:
        """What the lines of some code are for; None where it calls no model."""
        identity = id(code)
        known = self._model_lines.get(identity)
        if known is None:
            return None
        if identity not in self._flows:
            # Reading the source takes milliseconds; that another line calls the model does not.
            if identity not in self._statements:
                named = code.co_filename, code.co_name, code.co_firstlineno
                self._statements[identity] = statements_of(*named)
            found = self._statements[identity]
            self._flows[identity] = Flow(found, list(known[1])) if found else None
        return self._flows[identity]


def _is_iterating(frame: Any) -> bool:
    """Whether a function waits for the next item of what a loop of its goes through."""
    code, place = frame.f_code.co_code, frame.f_lasti
    while place > 0 and not code[place]:  # what an instruction keeps lies behind it
        place -= 2
    return code[place] == _FOR_ITER


def library_folders() -> Tuple[str, ...]:
    """Where code is that the script did not write: the standard library, packages, the probe."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*folders, OWN, "<frozen")


def innermost_own(stack: Stack, frame: Any) -> Optional[Tuple[Any, List[Any]]]:
    """The innermost frame of the script's own, and what it had called, innermost first."""
    below: List[Any] = []
    while frame is not None:
        code = frame.f_code
        if not stack.is_library(code.co_filename):
            return frame, below
        if not code.co_filename.startswith(OWN):
            below.append(code)
        frame = frame.f_back
    return None
