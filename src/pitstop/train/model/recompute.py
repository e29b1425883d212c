"""Activations computed again in backward instead of kept, and the proof that they are not kept.

A model offers places for it: an attribute `recompute_<part>` through which a module calls one of
its own methods (`self.recompute_attention(self.attention_part, x)`), holding `plain_call` until
somebody puts a function here in its stead. A model without such places still has units: their
`forward` is wrapped in the object itself, so names in its state stay what they were.

What runs again is timed as a part of backward. Inside compiled code it is not: there the compiler
has made it one with the rest of backward.
"""
# pyright: reportPrivateUsage=false

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import (
    CheckpointPolicy,
    _CachedTorchDispatchMode,
    _CachingTorchDispatchMode,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from pitstop.errors import ConfigError
from pitstop.train.model.part_spans import RecomputeSpan

_SEAM: Final = "recompute_"
_STAGE: Final = "stage"
_UNIT: Final = "unit"
_HALVES: Final = {"attention": "attention", "ffn": "feed_forward"}

_MIN_DEPTH: Final = 64
"""Terms of a sum from which a product is worth keeping: a shallower one is bound by memory, and
making it again costs no more than reading it."""

_ATTENTION_OPS: Final = frozenset(
    {
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "flex_attention",
    }
)


class RecomputeCall(Protocol):
    """Calls ``fn(*args)``, keeping or dropping what its backward pass will need."""

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what ``fn(*args, **kwargs)`` returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeFacts:
    """Where activations are recomputed."""

    policy: str
    places: Mapping[str, int]
    """Number of places by kind of part: attention, feed_forward, ..., stage, unit."""
    kept_bytes: int | None = None
    """Kept for backward, estimated; where a number of bytes decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A part of a model that can be recomputed by itself."""

    module: nn.Module
    part: str
    """Which of its parts: attention, feed_forward, ...; or unit, the whole module."""

    def fill(self, call: RecomputeCall) -> None:
        """Have the part called through a function."""
        if self.part == _UNIT:
            self.reset()
            _wrap(self.module, call)
        else:
            setattr(self.module, _SEAM + self.part, call)

    def reset(self) -> None:
        """Have it called as the model was written."""
        if self.part != _UNIT:
            setattr(self.module, _SEAM + self.part, plain_call)
        elif isinstance(vars(self.module).get("forward"), partial):
            del self.module.forward


def plain_call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Recompute nothing."""
    return fn(*args, **kwargs)


def recompute_all(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Keep the arguments alone and run ``fn`` again in backward, with the same random numbers."""
    if torch.compiler.is_compiling():
        return checkpoint(fn, *args, use_reentrant=False, **kwargs)
    return checkpoint(fn, *args, use_reentrant=False, context_fn=_timed_contexts, **kwargs)


def recompute_cheap(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Keep attention and deep products as well; run only the cheap rest of ``fn`` again."""
    contexts = _KEEP_COSTLY if torch.compiler.is_compiling() else _timed_costly_contexts
    return checkpoint(fn, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def keeps_outputs() -> bool:
    """Whether outputs of single operations are kept for what runs again in backward.

    Such an output must not be changed in place: what runs again would find it changed. Compilers
    make such changes out of place themselves, and the question would break their graph.
    """
    if torch.compiler.is_compiling():
        return False
    modes = (_CachingTorchDispatchMode, _CachedTorchDispatchMode)
    return any(isinstance(mode, modes) for mode in _get_current_dispatch_mode_stack())


def apply_recompute(
    model: nn.Module, policy: str | tuple[str, ...], *, units: Sequence[nn.Module] = ()
) -> RecomputeFacts:
    """Have a model recompute by a policy, whatever it did before; do this before wrapping it.

    Args:
        model: With places of its own, or without.
        policy: `none`; `full` and `selective` for all places but whole stages, and for units that
            have none; `attention` or `ffn` for these places alone; or a list of modules by name.
        units: The repeated blocks, for models without places of their own.

    Raises:
        ConfigError: When the policy finds nothing to work on.
    """
    _reset(model)
    if isinstance(policy, tuple):
        places = _recompute_stages(model, policy)
    else:
        found = [] if policy == "none" else places_of(model, units)
        if policy in _HALVES:
            found = [place for place in found if place.part == _HALVES[policy]]
        for place in found:
            place.fill(recompute_cheap if policy == "selective" else recompute_all)
        places = count_places(found)
    name = ", ".join(policy) if isinstance(policy, tuple) else policy
    if policy != "none" and not places:
        raise ConfigError(
            f"train.recompute is {name}, but {type(model).__name__} has nothing of that kind "
            f"(it offers {', '.join(sorted(_parts(model))) or 'no parts'}); set it to none, or to "
            "names of its modules"
        )
    return RecomputeFacts(policy=name, places=places)


def places_of(model: nn.Module, units: Sequence[nn.Module]) -> list[Place]:
    """All places of a model but whole stages, and units that have none."""
    own = [
        Place(module=module, part=part)
        for module in model.modules()
        for part in sorted(_seams(module) - {_STAGE})
    ]
    bare = [unit for unit in units if not _parts(unit)]
    return own + [Place(module=unit, part=_UNIT) for unit in bare]


def count_places(places: Iterable[Place]) -> dict[str, int]:
    """How many there are of each part."""
    return dict(Counter(place.part for place in places))


def _worth_keeping(_context: object, op: Any, *args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """Say which outputs selective recompute keeps, by operation and shape."""
    name = op.__name__.partition(".")[0]
    if name in {"mm", "addmm"}:
        keep = args[-1].shape[0] >= _MIN_DEPTH
    elif name == "convolution":
        keep = math.prod(args[1].shape[1:]) >= _MIN_DEPTH
    elif name in {"bmm", "baddbmm"}:
        # Scores of attention are larger than what they are made of; the weighted sum is not.
        (_, rows, depth), (_, _, columns) = args[-2].shape, args[-1].shape
        keep = rows * columns <= depth * max(rows, columns)
    else:
        keep = name in _ATTENTION_OPS
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


_KEEP_COSTLY: Final = partial(create_selective_checkpoint_contexts, _worth_keeping)

_Context = AbstractContextManager[Any]


class _TimedAgain:
    """Is open around what runs again in backward; torch leaves it early, by an error of its own."""

    __slots__ = ("_inner", "_span")

    def __init__(self, inner: _Context) -> None:
        self._inner = inner
        self._span = RecomputeSpan()

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._span.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._span.__exit__(*exc)
        self._inner.__exit__(*exc)


def _timed_contexts() -> tuple[_Context, _Context]:
    return nullcontext(), RecomputeSpan()


def _timed_costly_contexts() -> tuple[_Context, _Context]:
    forward, again = _KEEP_COSTLY()
    return forward, _TimedAgain(again)


def _seams(module: nn.Module) -> set[str]:
    return {
        name.removeprefix(_SEAM)
        for name, value in vars(module).items()
        if name.startswith(_SEAM) and callable(value)
    }


def _parts(model: nn.Module) -> set[str]:
    return {part for module in model.modules() for part in _seams(module)}


def _recompute_stages(model: nn.Module, names: tuple[str, ...]) -> dict[str, int]:
    modules = dict(model.named_modules())
    unknown = [name for name in names if name not in modules]
    if unknown:
        offered = [name for name, module in modules.items() if _STAGE in _seams(module)]
        offered = offered or [name for name, _ in model.named_children()]
        raise ConfigError(
            f"train.recompute names {', '.join(unknown)}, which {type(model).__name__} does not "
            f"have; there are {', '.join(offered)}"
        )
    for name in names:
        if _STAGE in _seams(modules[name]):
            setattr(modules[name], _SEAM + _STAGE, recompute_all)
        else:
            _wrap(modules[name], recompute_all)
    return {_STAGE: len(names)}


def _wrap(unit: nn.Module, call: RecomputeCall) -> None:
    # In the object's own dictionary: the class, other objects of it and names in the state stay.
    unit.forward = partial(call, unit.forward)


def _reset(model: nn.Module) -> None:
    for module in model.modules():
        for part in _seams(module):
            setattr(module, _SEAM + part, plain_call)
        own = vars(module).get("forward")
        if isinstance(own, partial) and own.func in (recompute_all, recompute_cheap):
            del module.forward
