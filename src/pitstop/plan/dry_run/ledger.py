"""Keeps an account of device memory: every piece, when it came and went, and what made it.

A piece is what torch's allocator hands out: the storage that a tensor and its views share. Pieces
come with the operation that makes them and go with the last thing that holds them, as on a GPU.
"""
# pyright: reportPrivateUsage=false

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.plan.dry_run.arguments import tensors_in
from pitstop.plan.dry_run.fake_gpu import DEVICE
from pitstop.plan.dry_run.hidden import fourier_bytes, hidden_bytes
from pitstop.plan.dry_run.inside import is_fused, run_inside, signature
from pitstop.plan.dry_run.operations import OperationCounter

ROUND_BYTES: Final = 512
"""The caching allocator hands out multiples of this (CUDACachingAllocator, kMinBlockSize)."""

Place = tuple[str, ...]
"""Where in the step: its part, then what is inside it."""


@dataclass(slots=True)
class Piece:
    """Device memory that was handed out once."""

    size: int
    """Rounded as the allocator does."""
    born: int
    """Number of the event."""
    place: Place
    operation: str
    died: int | None = None
    owner: str | None = None


class Ledger(TorchDispatchMode):
    """Sees every operation inside its context.

    Args:
        place: Says where in the step things are.
        device_type: Whose memory is kept account of.
    """

    def __init__(self, place: Callable[[], Place], device_type: str = DEVICE.type) -> None:
        super().__init__()
        self.pieces: list[Piece] = []
        self.events = 0
        self.counter = OperationCounter()
        self.backward_began: list[int] = []
        self.fourier_bytes = 0
        """The largest workspace that a convolution may take; see `hidden.fourier_bytes`."""
        self._place = place
        self._device_type = device_type
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._in_backward = False
        self._inside: dict[tuple[Any, ...], int] = {}
        self._not_seen: dict[str, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare each operation the way round torch's compiler: nothing is compiled here."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation and enter what it made."""
        del types
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two of three calls, and torch takes a long way
        given = dict(kwargs or {})
        made = func(*args, **given)
        if func.namespace == "prim":  # asks for a property, does nothing
            return made
        place = self._place()
        self._watch_backward(place)
        tensors = self._tensors(made)
        for tensor in tensors:
            self._enter(tensor, place, func)
        if hidden := hidden_bytes(func, args) + self._held_inside(func, args, given):
            self._pass_by(hidden, place, func)
        if tensors:
            self.fourier_bytes = max(self.fourier_bytes, fourier_bytes(func, args))
        if tensors or self._tensors((args, given)):
            self.counter.count(func, args, given, made, place=place)
        return made

    def most_bytes(self) -> int:
        """Most that pieces hold at one time."""
        born = ((piece.born, piece.size) for piece in self.pieces)
        died = ((piece.died, -piece.size) for piece in self.pieces if piece.died is not None)
        return max(accumulate((size for _, size in sorted([*born, *died])), initial=0))

    def notes(self) -> tuple[str, ...]:
        """Say what could not be counted."""
        if not self._not_seen:
            return ()
        names, reason = ", ".join(sorted(self._not_seen)), next(iter(self._not_seen.values()))
        return (f"what {names} hold while they run is not counted: {reason}",)

    def own(self, owner: str, tensors: Iterable[Tensor | None]) -> None:
        """Say whose the pieces of these tensors are; who came first stays."""
        for tensor in tensors:
            for counted in self._tensors(tensor):
                piece = self.pieces[self.number(counted)]
                piece.owner = piece.owner or owner

    def _tensors(self, tree: Any) -> list[Tensor]:
        """Find the tensors on the device; sparse ones have no storage of their own to count."""
        return [
            leaf
            for leaf in tensors_in(tree)
            if leaf.device.type == self._device_type and leaf.layout == torch.strided
        ]

    @property
    def place(self) -> Place:
        """Where in the step things are now."""
        return self._place()

    def number(self, tensor: Tensor) -> int:
        """Give the number of a tensor's piece."""
        key = tensor.untyped_storage()._cdata
        if key not in self._live:
            self._enter(tensor, self._place(), None)
        return self._live[key][0]

    def _watch_backward(self, place: Place) -> None:
        now = bool(place) and place[0] == "backward"
        if now and not self._in_backward:
            self.backward_began.append(self.events)
        self._in_backward = now

    def _enter(self, tensor: Tensor, place: Place, func: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or not storage.nbytes():
            return
        number = len(self.pieces)
        name = "" if func is None else _name(func)
        self.pieces.append(Piece(rounded(storage.nbytes()), self.events, place, name))
        self.events += 1
        self._live[key] = (number, weakref.ref(storage, lambda _: self._leave(key)))

    def _held_inside(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Give what a fused operation holds beside its inputs and results."""
        if not is_fused(func):
            return 0
        known = signature(func, args, kwargs)
        if known not in self._inside:
            self._inside[known] = self._see_inside(func, args, kwargs)
        return self._inside[known]

    def _see_inside(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        inner = Ledger(tuple, self._device_type)
        for tensor in inner._tensors((args, kwargs)):
            inner._enter(tensor, (), None)
        given = sum(piece.size for piece in inner.pieces)
        try:
            with inner:
                made = run_inside(func, args, kwargs)
        except Exception as error:  # noqa: BLE001 - a kernel's code may ask a GPU anything
            self._not_seen[_name(func)] = str(error)
            return 0
        results = {tensor.untyped_storage()._cdata: tensor for tensor in inner._tensors(made)}
        sizes = (rounded(tensor.untyped_storage().nbytes()) for tensor in results.values())
        return max(0, inner.most_bytes() - given - sum(sizes))

    def _pass_by(self, size: int, place: Place, func: Any) -> None:
        """Enter what an operation holds while it runs and nobody sees."""
        piece = Piece(rounded(size), self.events, place, _name(func), died=self.events + 1)
        self.pieces.append(piece)
        self.events += 2

    def _leave(self, key: int) -> None:
        number, _ = self._live.pop(key)
        self.pieces[number].died = self.events
        self.events += 1


def _name(func: Any) -> str:
    return func._schema.name.partition("::")[2]


def rounded(size: int) -> int:
    """Give what the allocator hands out for a size."""
    return -(-size // ROUND_BYTES) * ROUND_BYTES
