"""Puts something of ours in the place of something of torch's, and takes it off again."""

import functools
import sys
from typing import Any, Callable, List

from pitstop_probe.hooks.imports import when_imported

Undo = Callable[[], None]


class Patch:
    """Something that stands in another's place until it is taken off; it can be put on again.

    Args:
        put: Puts it on and gives back how to take it off.
    """

    __slots__ = ("_put", "_undo")

    def __init__(self, put: Callable[[], Undo]) -> None:
        self._put = put
        self._undo = put()

    def on(self) -> None:
        """Put it on again; twice is no more than once."""
        self.off()
        self._undo = self._put()

    def off(self) -> None:
        """Take it off; twice is no more than once."""
        undo, self._undo = self._undo, _nothing
        undo()


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Put `make(original)` in the place of an attribute; nothing where there is none."""
    original = getattr(owner, name, None)
    if original is None:
        return Patch(lambda: _nothing)
    wrapper = make(original)
    # What the owner itself has; a static method is more than the function it gives.
    own = vars(owner).get(name)

    def put() -> Undo:
        # Ours may still be there: somebody's wrapper lay on top when it was to come off.
        present = vars(owner).get(name)
        if present is not own and present is not wrapper:
            return _nothing  # somebody else's came in between: ours would leave it out
        setattr(owner, name, wrapper)
        return undo

    def undo() -> None:
        if vars(owner).get(name) is not wrapper:
            return  # somebody put another wrapper on top: it must go on working
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return Patch(put)


def once_imported(name: str, make: Callable[[Any], List[Patch]]) -> Patch:
    """Put patches on a module as soon as it is imported, by whomever."""
    patches: List[Patch] = []
    is_on = False

    def arrived(module: Any) -> None:
        patches.extend(make(module))
        if not is_on:
            undo()

    def put() -> Undo:
        nonlocal is_on
        is_on = True
        for patch in patches:
            patch.on()
        return undo

    def undo() -> None:
        nonlocal is_on
        is_on = False
        for patch in reversed(patches):
            patch.off()

    when_imported(name, arrived)
    return Patch(put)


def tracing_test(torch: Any) -> Callable[[], bool]:
    """Give what is true where the compiler traces its caller: wrappers have to ask it first."""
    # The one that asks for nothing else takes a third of the time; before 2.3 it was elsewhere.
    test = getattr(torch.compiler, "is_dynamo_compiling", None)
    return getattr(torch._utils, "is_compiling", bool) if test is None else test


# Module, arguments, and the call that would have been made.
Around = Callable[[Any, Any, Any, Callable[..., Any]], Any]


def replace_call(kind: Any, around: Around) -> Patch:
    """Put something around the calls of a class.

    An inherited call is looked up each time: others, such as tracers, put theirs in its place for
    a while, and it must be found.
    """
    own = vars(kind).get("__call__")
    is_traced = tracing_test(sys.modules["torch"])

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        original = super(kind, module).__call__ if own is None else functools.partial(own, module)
        if is_traced():
            return original(*args, **kwargs)
        return around(module, args, kwargs, original)

    return replace(kind, "__call__", lambda _: call)


def _nothing() -> None:
    pass
