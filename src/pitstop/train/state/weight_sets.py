"""Which tensors of somebody's file are the weights, and in what they differ from a model's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from pitstop.errors import CheckpointError
from pitstop.train.state.checkpoint import read_state
from pitstop.train.state.foreign_archive import (
    Foreign,
    ForeignTree,
    is_archive,
    module_tensors,
    read_archive,
)

_AVERAGED: Final = ("params_ema", "ema_state_dict", "state_dict_ema", "model_ema")
_PLAIN: Final = ("params", "state_dict", "model")
_WRAPPERS: Final = ("module.", "_orig_mod.")
_GROUPS_SHOWN: Final = 4
_CLASSES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSet:
    """The weights of a file by name, without what wrappers put before the names."""

    path: Path
    tensors: Mapping[str, Tensor]
    averaged: bool
    notes: tuple[str, ...] = ()
    """Choices that should be said aloud."""


def read_weight_set(path: Path, *, key: str | None = None) -> WeightSet:
    """Read the weights of a file; never runs code.

    Args:
        path: What ``torch.save`` or TorchScript wrote: a dictionary of tensors, plain or under
            one of the usual names, or a module.
        key: Under which name they are; None for averaged weights where there are any.

    Raises:
        CheckpointError: Where it is not there, damaged, or holds no weights.
    """
    content = _read(path)
    tree: Any = content.tree
    if isinstance(tree, Foreign):
        tree = module_tensors(tree)
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} holds a {type(tree).__name__}, not a state")
    name = _choose(tree, path, key)
    tensors = tree if name is None else tree[name]
    averaged = name in _AVERAGED
    return WeightSet(
        path=path,
        tensors=_unwrapped(tensors),
        averaged=averaged,
        notes=(*_choice(tree, path, name), *_left_out(content, path)),
    )


def describe_differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Say in what weights differ from a model's, by groups of names; empty if in nothing."""
    shared = [name for name in own if name in given and own[name].shape != given[name].shape]
    parts = [
        _differing_names(own.keys() - given.keys(), "missing there"),
        _differing_names(given.keys() - own.keys(), "not known here"),
    ]
    if shared:
        first = shared[0]
        there, here = ("x".join(map(str, tensors[first].shape)) for tensors in (given, own))
        where = f": {_groups(shared)}" if len(shared) > 1 else ""
        parts.append(
            f"{len(shared)} differ in shape (such as {first}: {there} there, {here} here){where}"
        )
    return "; ".join(part for part in parts if part)


def _read(path: Path) -> ForeignTree:
    """Read an archive by our own reader, which takes tensors out of any; older files by torch's."""
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}")
    return read_archive(path) if is_archive(path) else ForeignTree(read_state(path), ())


def _choose(tree: Mapping[str, Any], path: Path, key: str | None) -> str | None:
    """Give the name under which the weights are; None where the dictionary is the weights."""
    names = [name for name, value in tree.items() if _is_tensors(value)]
    if key is not None:
        if key not in names:
            there = f"it has {', '.join(names)}" if names else "it has no named weights"
            raise CheckpointError(f"{path} has no weights under {key}; {there}")
        return key
    for name in (*_AVERAGED, *_PLAIN):
        if name in names:
            return name
    if _is_tensors(tree):
        return None
    usual = ", ".join((*_PLAIN, *_AVERAGED))
    raise CheckpointError(
        f"{path} holds no weights: they must be a dictionary of tensors, plain or under one of "
        f"{usual}"
    )


def _is_tensors(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(inner, Tensor) for inner in value.values())
    )


def _choice(tree: Mapping[str, Any], path: Path, name: str | None) -> tuple[str, ...]:
    others = [n for n in (*_AVERAGED, *_PLAIN) if n != name and _is_tensors(tree.get(n))]
    if name not in _AVERAGED or not others:
        return ()
    return (
        f"{path} has weights under {name} and {' and '.join(others)}: those under {name}, the "
        "averaged ones, are taken",
    )


def _left_out(content: ForeignTree, path: Path) -> tuple[str, ...]:
    if not content.foreign or isinstance(content.tree, Foreign):
        return ()
    shown = ", ".join(content.foreign[:_CLASSES_SHOWN])
    more = len(content.foreign) - _CLASSES_SHOWN
    return (
        f"{path} also holds objects that are not read, since that could run code: {shown}"
        + (f" and {more} more classes" if more > 0 else ""),
    )


def _unwrapped(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take off what DistributedDataParallel and torch.compile put before every name."""
    names = dict(tensors)
    while wrapper := next((w for w in _WRAPPERS if all(n.startswith(w) for n in names)), None):
        names = {name.removeprefix(wrapper): value for name, value in names.items()}
    return names


def _differing_names(names: set[str], how: str) -> str:
    if not names:
        return ""
    if len(names) == 1:
        return f"{min(names)} is {how}"
    return f"{len(names)} weights are {how} ({_groups(names)})"


def _groups(names: Iterable[str]) -> str:
    """Count names by two parts beyond what all begin with, the largest groups first."""
    split = [name.split(".") for name in sorted(names)]
    shared = 0
    while all(len(parts) > shared + 1 for parts in split) and (
        len({parts[shared] for parts in split}) == 1
    ):
        shared += 1
    counts: dict[str, list[str]] = {}
    for parts in split:
        counts.setdefault(".".join(parts[: shared + 2]), []).append(".".join(parts))
    ordered = sorted(counts.items(), key=lambda item: -len(item[1]))
    shown = [own[0] if len(own) == 1 else f"{len(own)} in {g}" for g, own in ordered]
    rest = len(shown) - _GROUPS_SHOWN
    return ", ".join(shown[:_GROUPS_SHOWN]) + (f" and {rest} more groups" if rest > 0 else "")
