"""What the script asked torch.compile for: nothing is compiled before its result is called."""

import functools
import sys
from typing import Any, Callable, Dict, Optional

from pitstop_probe.hooks.patches import Patch, replace, tracing_test
from pitstop_probe.stacks.stack import Stack, innermost_own


class CompileCalls:
    """Counts the script's own calls of torch.compile; those of packages are theirs.

    Attributes:
        count: How many there were.
        place: File and line of the last one.
    """

    def __init__(self, torch: Any, stack: Stack) -> None:
        self.count = 0
        self.place: Optional[str] = None
        self._stack = stack
        self._is_traced = tracing_test(torch)
        self.patch: Patch = replace(torch, "compile", self._observed)

    def summary(self, counts: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
        """Set the calls beside what was compiled; None where there is neither."""
        if counts is None and not self.count:
            return None
        nothing = {"graphs": 0, "graph_breaks": 0, "reasons": []}
        return {**(counts or nothing), "calls": self.count, "place": self.place}

    def _observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001 - torch's own name for it
            if not self._is_traced():
                self._count(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            return original(*args, **kwargs)

        return compile

    def _count(self, frame: Any) -> None:
        found = innermost_own(self._stack, frame)
        # As in `model.compile()`, what torch calls in turn is the script's call, too.
        if found is not None and all("torch" in code.co_filename for code in found[1]):
            self.count += 1
            self.place = self._stack.place(found[0])
