"""Notes what autograd keeps for the backward pass, in the order in which it comes and goes.

Tensors are handed through as they are, so a step computes what it would compute. A piece of memory
is told apart by a weak reference to its storage, which keeps the address from being used again.
"""

import functools
from typing import Any, Callable, Dict, List, Optional, Tuple

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.hooks.torch_hooks import part_of

SAVED, SCORES, COPY, INPUT, GRADIENT, RECOMPUTED, ELSEWHERE = (
    "saved",
    "scores",
    "weight copy",
    "input",
    "gradient",
    "recomputed",
    "elsewhere",
)
"""Kinds of pieces: kept for backward; scores of torch's attention, which a processor keeps where a
GPU makes them again; a weight in another format; what a block is given; a gradient; what
recomputation makes again; what the script's own hooks take away."""

# Of torch.utils.checkpoint: what notes a region in forward, and what fills it again in backward.
_RECOMPUTING = "_checkpoint_hook"
_REFILLING = "_recomputation_hook"
_FURTHEST = 8
_WHILE_TRACING = True

Place = Tuple[Optional[int], str]


class _Kept:
    """A tensor in the hands of autograd; says when autograd lets go of it."""

    __slots__ = ("_events", "_piece", "tensor")

    def __init__(self, tensor: Any, piece: Optional[int], events: List[int]) -> None:
        self.tensor = tensor
        self._piece = piece
        self._events = events

    def __del__(self) -> None:
        # Whichever thread it is on: to append is one operation.
        if self._piece is not None:
            self._events.append(-self._piece - 1)


class SavedTensors:
    """Notes pieces of memory while it is on, which is for a step at a time.

    Args:
        torch: The script's torch.
        place: Says in which repeated block of the model, and in which class of module, we are.
        is_scores: Says whether a tensor is one of the scores of torch's attention.

    Attributes:
        pieces: What was noted, as the record has it.
        events: A piece's number and one where it comes, the negative of that where it goes.
    """

    def __init__(
        self,
        torch: Any,
        place: Callable[[], Place],
        is_scores: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        self._torch = torch
        self._place, self._is_scores = place, is_scores
        self._reference = part_of(torch, "multiprocessing.reductions").StorageWeakRef
        self._numbers: Dict[Tuple[int, str], int] = {}
        self._storages: Dict[int, Tuple[int, Any]] = {}
        self._lasting: Dict[int, Any] = {}
        self._patch: Optional[Patch] = None
        self._regions = 0
        self.pieces: List[Dict[str, Any]] = []
        self.events: List[int] = []

    @property
    def is_possible(self) -> bool:
        """Whether nobody else's hooks stand around the whole step: ours would replace them."""
        top = getattr(self._torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        try:
            return top is None or top(_WHILE_TRACING) is None
        except Exception:  # noqa: BLE001 - another version of torch: nobody says that there are any
            return True

    def start(self) -> None:
        """Begin with nothing noted."""
        self._numbers, self._storages = {}, {}
        self.pieces, self.events = [], []
        self._regions = 0
        hooks = self._torch.autograd.graph.saved_tensors_hooks
        self._patch = replace(hooks, "__init__", self._observing)
        self._torch._C._autograd._push_saved_tensors_default_hooks(self._pack, _unpack)

    def stop(self) -> None:
        """Note nothing more; what autograd still holds is as it was."""
        if self._patch is not None:
            self._torch._C._autograd._pop_saved_tensors_default_hooks()
            self._patch.off()
            self._patch = None
            self._numbers, self._storages = {}, {}

    def keep_apart(self, tensors: Any) -> None:
        """Take tensors for lasting ones: weights and buffers, which are there anyway."""
        for tensor in tensors:
            reference = self._refer(tensor)
            if reference is not None:
                self._lasting[reference.cdata] = reference

    def note(self, tensor: Any, kind: str, block: Optional[int] = None) -> Optional[int]:
        """Enter the memory behind a tensor; give its piece, None where it has none."""
        reference = self._refer(tensor)
        if reference is None or reference.cdata in self._lasting:
            return None
        number = self._numbers.get((reference.cdata, kind))
        if number is not None:
            return number
        where, made_by = self._place()
        number = self._numbers[reference.cdata, kind] = len(self.pieces)
        storage = self._storages.setdefault(reference.cdata, (len(self._storages), reference))[0]
        self.pieces.append(
            {
                "storage": storage,
                "num_bytes": tensor.untyped_storage().nbytes(),
                "shape": _dimensions(tensor),
                "dtype": str(tensor.dtype).replace("torch.", ""),
                "kind": kind,
                "block": where if block is None else block,
                "made_by": made_by,
                "made_with": "",
            }
        )
        return number

    def _refer(self, tensor: Any) -> Any:
        try:
            return self._reference(tensor.untyped_storage())
        except Exception:  # noqa: BLE001 - sparse, or somebody's own kind of tensor
            return None

    def _pack(self, tensor: Any) -> Any:
        number = None
        try:
            number = self.note(tensor, self._kind(tensor))
            if number is not None:
                self.events.append(number + 1)
                # Whoever saves its own outcome does not name itself; the next to save it does.
                if tensor.grad_fn is not None:
                    self.pieces[number]["made_with"] = type(tensor.grad_fn).__name__
        except Exception:  # noqa: BLE001 - an odd tensor is not counted; the step goes on
            number = None
        return _Kept(tensor, number, self.events)

    def _kind(self, tensor: Any) -> str:
        if self._is_scores(tensor):
            return SCORES
        return COPY if _is_weight_copy(tensor) else SAVED

    def _observing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """See what the script's own hooks are given, those of recomputation above all."""

        @functools.wraps(original)
        def init(hooks: Any, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
            name = type(hooks).__name__
            if name == _REFILLING:
                return original(hooks, pack, unpack)
            kind, region = ELSEWHERE, None
            if name == _RECOMPUTING:
                kind, region, self._regions = RECOMPUTED, self._regions, self._regions + 1

            def noting(tensor: Any) -> Any:
                try:
                    self.note(tensor, kind, region)
                except Exception:  # noqa: BLE001, S110 - an odd tensor is not counted
                    pass
                return pack(tensor)

            return original(hooks, noting, unpack)

        return init


def _unpack(kept: _Kept) -> Any:
    return kept.tensor


def _dimensions(tensor: Any) -> List[int]:
    """Give the sizes of a tensor, without those in which it repeats the same memory."""
    strides = tensor.stride()
    return [int(size) for size, stride in zip(tensor.shape, strides) if stride or size == 1]


def _is_weight_copy(tensor: Any) -> bool:
    """Whether a tensor is a weight in another format or order, and nothing else."""
    made_by = tensor.grad_fn
    for _ in range(_FURTHEST):
        if made_by is None:
            return False
        weight = getattr(made_by, "variable", None)
        if weight is not None:
            return weight.numel() == tensor.numel()
        before = made_by.next_functions
        if len(before) != 1:
            return False
        made_by = before[0][0]
    return False
