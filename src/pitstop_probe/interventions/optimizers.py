"""Optimizers of torch's built to update all weights in few calls, or with a smaller state."""

import functools
import inspect
from typing import Any, Callable, List, Mapping, Optional

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.interventions.eight_bit import EIGHT_BIT, change_to_eight_bit, package_for
from pitstop_probe.interventions.sites import Sites
from pitstop_probe.stderr import say

WAYS = ("fused", "foreach")

Built = Callable[[Any, str, Any], None]
"""Takes an optimizer, the place that built it and the frame of that place."""


def change_optimizers(
    torch: Any, changes: Mapping[str, str], sites: Sites, then: Built
) -> List[Patch]:
    """See to it that optimizers are built as wanted, and that `then` is called with each."""
    way = changes.get("optimizer")
    base = torch.optim.Optimizer
    patches = [replace(base, "__init__", lambda original: _noted(original, sites, then))]
    for kind in list(vars(torch.optim).values()):
        is_optimizer = isinstance(kind, type) and issubclass(kind, base) and kind is not base
        if way in WAYS and is_optimizer and way in _takes(kind):
            patches.append(replace(kind, "__init__", lambda plain: _changed(plain, way, sites)))
    return patches + (change_to_eight_bit(torch, sites) if way == EIGHT_BIT else [])


def _takes(kind: Any) -> List[str]:
    """Ways that an optimizer's class knows, as its constructor says."""
    if "__init__" not in vars(kind):
        return []
    known = inspect.signature(kind.__init__).parameters
    return [way for way in WAYS if way in known]


def _noted(original: Callable[..., Any], sites: Sites, then: Built) -> Callable[..., Any]:
    @functools.wraps(original)
    def build(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        original(optimizer, *args, **kwargs)
        place, frame = sites.place(), sites.own_frame()
        kind = type(optimizer)
        takes = next((found for each in kind.__mro__ if (found := _takes(each))), [])
        defaults = optimizer.defaults
        used: Optional[str] = next((way for way in WAYS if defaults.get(way)), None)
        small = package_for(optimizer)
        sites.built("optimizer", place, name=kind.__name__, takes=takes, way=used, eight_bit=small)
        try:
            then(optimizer, place, frame)
        except Exception as error:  # noqa: BLE001 - what cannot be changed must not end the script
            say("not changed: {!r}".format(error))

    return build


def _changed(plain: Callable[..., Any], way: Any, sites: Sites) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def build(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return plain(*args, **kwargs)  # which says what is wrong
        if not given.arguments.get(way):
            # They exclude each other.
            given.arguments.update({each: None for each in WAYS if given.arguments.get(each)})
            given.arguments[way] = True
            name = type(given.args[0]).__name__
            sites.changed("optimizer=" + way, sites.place(), name)
        return plain(*given.args, **given.kwargs)

    return build
