"""Puts something of ours in the place of something of torch's, and takes it off again."""

import functools
from typing import Any, Callable

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


# Module, arguments, and the call that would have been made.
Around = Callable[[Any, Any, Any, Callable[..., Any]], Any]


def replace_call(kind: Any, around: Around) -> Patch:
    """Put something around the calls of a class.

    An inherited call is looked up each time: others, such as tracers, put theirs in its place for
    a while, and it must be found.
    """
    own = vars(kind).get("__call__")

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if own is None:
            return around(module, args, kwargs, super(kind, module).__call__)
        return around(module, args, kwargs, functools.partial(own, module))

    return replace(kind, "__call__", lambda _: call)


def _nothing() -> None:
    pass
