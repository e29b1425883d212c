"""Adam and AdamW with their state in 8 bits, by a package that the script's environment has."""

import functools
import importlib
import importlib.util
import inspect
from typing import Any, Callable, List, Optional

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.interventions.sites import Sites
from pitstop_probe.stderr import say

EIGHT_BIT = "8bit"
_CLASSES = ("Adam", "AdamW")
_PACKAGES = ("torchao", "bitsandbytes")
# How an update is launched, which the 8-bit classes decide themselves.
_WAYS = ("fused", "foreach", "capturable")


def package() -> Optional[str]:
    """Name the package that has 8-bit optimizers here; None where there is none."""
    return next((name for name in _PACKAGES if importlib.util.find_spec(name)), None)


def package_for(optimizer: Any) -> Optional[str]:
    """Name the package that has this very optimizer in 8 bits."""
    kind = type(optimizer)
    return package() if kind.__module__.startswith("torch.optim") and _has(kind) else None


def _has(kind: Any) -> bool:
    return kind.__name__ in _CLASSES


def change_to_eight_bit(torch: Any, sites: Sites) -> List[Patch]:
    """See to it that Adam and AdamW are built with their state in 8 bits."""
    kinds = [getattr(torch.optim, name) for name in _CLASSES]
    return [
        replace(kind, "__init__", lambda plain, k=kind: _changed(plain, k, sites)) for kind in kinds
    ]


def _changed(plain: Callable[..., Any], kind: Any, sites: Sites) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def build(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        # Somebody's own class may do more than its parent.
        found = _eight_bit_class(kind.__name__) if type(optimizer) is kind else None
        if found is None:
            return plain(optimizer, *args, **kwargs)
        try:
            given = dict(signature.bind(optimizer, *args, **kwargs).arguments)
        except TypeError:
            return plain(optimizer, *args, **kwargs)  # which says what is wrong
        given = {name: value for name, value in given.items() if name not in _WAYS}
        own = next(iter(given))
        del given[own]
        if not set(given) <= set(inspect.signature(found).parameters):
            return plain(optimizer, *args, **kwargs)  # it asks for what the other does not have
        optimizer.__class__ = found
        sites.changed("optimizer=" + EIGHT_BIT, sites.place(), kind.__name__)
        return found.__init__(optimizer, **given)

    return build


def _eight_bit_class(name: str) -> Any:
    where = package()
    if where is None:
        return None
    try:
        return getattr(importlib.import_module(where + ".optim"), name + EIGHT_BIT)
    except Exception as error:  # noqa: BLE001 - a broken package must not end the script
        say("no 8-bit optimizer: {!r}".format(error))
        return None
