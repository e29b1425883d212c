"""Short ways to what torch's fake tensors give: a step asks for tens of thousands of them.

Torch looks up every operation under a key that has to serve compilers too: shapes with unknowns,
constants, sparse tensors. Here there are none, so views are taken by torch's own C++ code, and what
an operation makes of arguments that lie alike is made again without asking.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)

_COPIES: Final = frozenset({torch.ops.aten._to_copy.default, torch.ops.aten.zeros_like.default})
_NAMESPACES: Final = frozenset({"aten", "prims", "pitstop"})
"""Of operations that are known to make the same of the same."""

_Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]


class _Kind(Enum):
    VIEW = auto()
    """Gives parts of its first argument."""
    NEW = auto()
    """Neither changes its arguments nor gives them back."""
    OTHER = auto()


class _TooSpecialError(Exception):
    """An argument of which more than its layout matters."""


@dataclass(frozen=True, slots=True)
class _Results:
    """What an operation makes: one tensor, or a list of them."""

    layouts: tuple[_Layout | None, ...]
    is_list: bool


@dataclass(slots=True)
class ShortWays:
    """Makes results on one device for one mode of fake tensors."""

    mode: FakeTensorMode
    device: torch.device
    _known: dict[tuple[Any, ...] | None, _Results | None] = field(default_factory=dict)
    _kinds: dict[Any, _Kind] = field(default_factory=dict)

    def run(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        long_way: Callable[[], Any],
    ) -> Any:
        """Give the results of an operation, by torch's long way where there is no other."""
        if self._lies_alike(func, args, kwargs):
            like = args[0]
            return self._new((like.shape, like.stride(), kwargs.get("dtype") or like.dtype))
        if func not in self._kinds:
            self._kinds[func] = _kind(func)
        kind = self._kinds[func]
        if kind is _Kind.VIEW and self._is_plain(args[0]):
            return self._view(func, args, kwargs)
        key = self._key(func, args, kwargs) if kind is _Kind.NEW else None
        if (results := self._known.get(key)) is not None:
            return self._made_again(results)
        made = long_way()
        if key is not None and key not in self._known:
            self._known[key] = self._results(args, made)
        return made

    def _view(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with in_kernel_invocation_manager(self.mode):
            made = func(*args, **kwargs)
        if isinstance(made, Tensor):
            return FakeTensor(self.mode, made, self.device)
        return [FakeTensor(self.mode, one, self.device) for one in made]

    def _key(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        try:
            return (func, self._described(args), self._described(sorted(kwargs.items())))
        except _TooSpecialError:
            return None

    def _lies_alike(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a copy lies on the device as its original lies somewhere.

        Weights, gradients and an optimizer's state come this way.
        """
        if func not in _COPIES or len(args) != 1:
            return False
        like = args[0]
        return (
            torch.device(kwargs.get("device") or like.device) == self.device
            and kwargs.get("layout") in {None, torch.strided}
            and kwargs.get("memory_format") in {None, torch.preserve_format}
            and like.layout == torch.strided
            and like.is_contiguous()
            and not like.is_complex()
        )

    def _is_plain(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, FakeTensor)
            and tensor.fake_device == self.device
            and tensor.constant is None
            and tensor.layout == torch.strided
            and not tensor.dtype.is_complex
        )

    def _described(self, item: Any) -> Any:
        """Name all that decides about results: how tensors lie, and plain values."""
        if isinstance(item, Tensor):
            if not self._is_plain(item):
                raise _TooSpecialError
            return (item.shape, item.stride(), item.dtype)
        if isinstance(item, (tuple, list)):
            return tuple([self._described(one) for one in item])
        return (type(item), item)  # 1, 1.0 and True are equal, and make different results

    def _results(self, args: Sequence[Any], made: Any) -> _Results | None:
        """Note what was made; None where making it again would not be the same."""
        is_list = isinstance(made, (tuple, list))
        single = made if is_list else [made]
        layouts = [self._layout(one) for one in single]
        if any(
            layout is None and one is not None for layout, one in zip(layouts, single, strict=True)
        ):
            return None
        storages = [one.untyped_storage()._cdata for one in single if one is not None]
        given = {one.untyped_storage()._cdata for one in args if isinstance(one, Tensor)}
        if len({*storages, *given}) != len(storages) + len(given):
            return None
        return _Results(tuple(layouts), is_list=is_list)

    def _layout(self, tensor: Any) -> _Layout | None:
        if not self._is_plain(tensor):
            return None
        layout = (tensor.shape, tensor.stride(), tensor.dtype)
        size = self._new(layout).untyped_storage().nbytes()
        is_whole = tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == size
        return layout if is_whole else None

    def _made_again(self, results: _Results) -> Any:
        made = [None if layout is None else self._new(layout) for layout in results.layouts]
        return tuple(made) if results.is_list else made[0]

    def _new(self, layout: _Layout) -> FakeTensor:
        shape, stride, dtype = layout
        empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return FakeTensor(self.mode, empty, self.device)


def _kind(func: Any) -> _Kind:
    if func.namespace not in _NAMESPACES:
        return _Kind.OTHER
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    if func.has_kernel_for_dispatch_key(implicit) or "_foreach" in func._schema.name:
        return _Kind.OTHER  # may do anything of several others; lists of hundreds of tensors
    if func.is_view:
        return _Kind.VIEW
    named = (*func._schema.arguments, *func._schema.returns)
    return _Kind.NEW if all(one.alias_info is None for one in named) else _Kind.OTHER
