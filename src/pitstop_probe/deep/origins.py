"""Where an operation comes from: the script's line that asked for it, and the module around it.

What backward runs was asked for in forward: autograd numbers its functions, so the number of the
one at work leads back to the line whose operation made it.
"""

import itertools
import os
import re
import sys
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from pitstop_probe.stacks.stack import OWN

_MOST_OPERATIONS = 48
_NUMBER = re.compile(r"\d+")


class Place(NamedTuple):
    """A line of the script and the module, by name, that it ran in."""

    file: str
    line: int
    module: Optional[str]


class Origins:
    """Adds up the work of operations by where they come from.

    Args:
        torch: The script's torch.
        modules: Name and class of the modules that are known, by identity.
    """

    def __init__(self, torch: Any, modules: Dict[int, Tuple[str, str]]) -> None:
        self._folder = os.path.dirname(torch.__file__)
        self._call = torch.nn.Module._call_impl.__code__
        # Before 2.1 there are none of these; then backward is not led back to any line.
        self._next_number = getattr(torch.autograd, "_get_sequence_nr", None)
        self._node_at_work = getattr(torch._C, "_current_autograd_node", lambda: None)
        self._modules = modules
        self._made: Dict[int, Place] = {}
        self._work: Dict[str, Dict[Tuple[str, int], List[int]]] = {}
        self._names: Dict[Tuple[str, int], Set[str]] = {}

    def note_line(self) -> Optional[Place]:
        """Find where the operation that has just run comes from."""
        node = self._node_at_work()
        place = self._on_stack(until_backward=node is not None)
        if node is not None:
            return place or self._made.get(node._sequence_nr())
        if place is not None and self._next_number is not None:
            self._made[self._next_number() - 1] = place
        return place

    def _on_stack(self, *, until_backward: bool) -> Optional[Place]:
        frame: Any = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        found: Optional[Tuple[str, int]] = None
        module: Optional[str] = None
        while frame is not None:
            code = frame.f_code
            if until_backward and code.co_name == "_engine_run_backward":
                break
            if code is self._call and module is None:
                about = self._modules.get(id(frame.f_locals.get("self")))
                module = None if about is None else about[0]
            file = code.co_filename
            if found is None and not file.startswith((self._folder, OWN, "<")):
                found = file, frame.f_lineno or 0  # None where a frame has just begun
            if found is not None and module is not None:
                break
            frame = frame.f_back
        return None if found is None else Place(found[0], found[1], module)

    def add(self, operation: str, place: Optional[Place], work: int) -> None:
        """Add an operation's bytes to its line."""
        if place is None:
            return
        line = (place.file, place.line)
        entry = self._work.setdefault(operation, {}).setdefault(line, [0, 0])
        entry[0] += 1
        entry[1] += work
        if place.module:
            self._names.setdefault(line, set()).add(place.module)

    def values(self) -> List[Dict[str, Any]]:
        """Give the line with most of each operation's bytes, the largest operations first."""
        totals = {
            name: sum(work for _, work in lines.values()) for name, lines in self._work.items()
        }
        largest = sorted(totals, key=lambda name: -totals[name])[:_MOST_OPERATIONS]
        return [self._largest_line(name, totals[name]) for name in largest]

    def _largest_line(self, operation: str, total: int) -> Dict[str, Any]:
        lines = self._work[operation]
        file, line = max(lines, key=lambda each: lines[each][1])
        calls, work = lines[file, line]
        return {
            "operation": operation,
            "file": file,
            "line": line,
            "module": common_name(self._names.get((file, line), ())),
            "calls": calls,
            "share": work / total if total else 1.0,
        }


def common_name(names: Iterable[str]) -> Optional[str]:
    """Give the module that many lie in, with stars for numbers that differ; None where none is."""
    found = set(names)
    if len(found) == 1:
        return found.pop()
    parts = [_NUMBER.sub("*", name).split(".") for name in found]
    alike = itertools.takewhile(lambda each: len(set(each)) == 1, zip(*parts))
    return ".".join(each[0] for each in alike) or None
