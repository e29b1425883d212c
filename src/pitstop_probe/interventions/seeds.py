"""Known random numbers in every trial.

Two trials of a script without a seed then draw the same numbers. One with another offset draws
others: how far apart two seeds are is the measure of what a change may do to the loss.
"""

import functools
import random
from typing import Any, Callable, List

from pitstop_probe.hooks.imports import when_imported
from pitstop_probe.hooks.patches import Patch, replace


def seed(torch: Any, offset: int) -> List[Patch]:
    """Begin with known random numbers, and add an offset to every seed that the script sets."""
    torch.manual_seed(offset)
    random.seed(offset)
    patches: List[Patch] = []
    if offset:
        owners = ((torch, "manual_seed"), (torch.random, "manual_seed"), (random, "seed"))
        patches += [replace(owner, name, _shifted(offset)) for owner, name in owners]
    when_imported("numpy.random", lambda module: patches.extend(_seed_numpy(module, offset)))
    return patches


def _seed_numpy(module: Any, offset: int) -> List[Patch]:
    module.seed(offset)
    names = ("seed", "default_rng") if offset else ()
    return [replace(module, name, _shifted(offset)) for name in names]


def _shifted(offset: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def seeded(*args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], int):
                args = (args[0] + offset, *args[1:])
            return original(*args, **kwargs)

        return seeded

    return make
