"""One of several ranks in a dry run: what it holds of the model, and what it exchanges.

The dry run is of one rank that has everything. A rank of DDP keeps all gradients in its buckets,
from step to step. A rank that divides the model holds its rows; what it gathers and divides is
entered beside the pieces of the dry run, at the events at which FSDP2 does it:

- A block's weights are gathered before it runs and again before its backward pass: into one buffer,
  and from there into each weight's own memory. Forward keeps the buffer until the next block has
  been gathered. Backward asks for the block that comes next as soon as one begins.
- Gradients of a block are copied into one buffer, divided, and let go of. The buffer stays until
  the next block's gradients are there.
- What lies in no block is gathered for the whole pass, and its gradients are divided at the end.

Rows that cannot be divided evenly are filled up, so that all ranks exchange the same. The rank is
the first, which holds the most.
"""
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pitstop.plan.dry_run.ledger import Ledger, Piece, rounded
from pitstop.records.plans.plan import BUCKETS, GATHERED, UNDIVIDED

GRADIENTS: Final = "gradients"


class OverRanks(Protocol):
    """How one of several ranks differs from one that has everything."""

    def pieces(self) -> list[Piece]:
        """Give the memory of the step as this rank has it."""
        ...

    def parts(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Give what this rank holds of weights, without numbers."""
        ...


class Buckets:
    """A rank of DDP: each has the whole model, and gradients are views of what is exchanged."""

    def __init__(self, ledger: Ledger, model: nn.Module) -> None:
        self._ledger = ledger
        self._bytes = sum(each.nbytes for each in model.parameters() if each.requires_grad)

    def pieces(self) -> list[Piece]:
        """Put all buckets, which are there all the time, in the place of gradients."""
        others = [piece for piece in self._ledger.pieces if piece.owner != GRADIENTS]
        return [*others, Piece(rounded(self._bytes), 0, (), "", owner=BUCKETS)]

    def parts(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Give all of them."""
        return list(weights)


@dataclass(slots=True, eq=False)
class _Group:
    """Weights that are gathered together, and where they are in a step."""

    weights: list[nn.Parameter]
    is_root: bool = False
    gathered: list[Piece] = field(default_factory=list)
    arriving: Piece | None = None
    whole: list[tuple[nn.Parameter, Piece | None]] = field(default_factory=list)
    """Weights whose gradients are there and not divided yet."""
    in_backward: bool = False


class Division:
    """A rank that divides the model with others.

    Args:
        ledger: Of the dry run; it counts the events.
        model: As it is run, on shapes.
        blocks: What is gathered by itself, inner ones first.
        ranks: That hold one copy together.
        in_backward: Whether the step is in its backward pass.
    """

    def __init__(
        self,
        ledger: Ledger,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        *,
        ranks: int,
        in_backward: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._ranks = ranks
        self._in_backward = in_backward
        self._made: list[Piece] = []
        self._divided_at: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._forward_buffer: Piece | None = None
        self._backward_buffer: Piece | None = None
        self._order: list[_Group] = []
        self._groups: list[_Group] = []
        self._ends_backward = False
        self._first_event = 0
        taken: set[nn.Parameter] = set()
        for module in (*blocks, model):
            weights = [each for each in module.parameters() if each not in taken]
            taken.update(weights)
            self._watch(module, _Group(weights=weights, is_root=module is model))

    def begin(self, lasting: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Begin a step.

        Args:
            lasting: What a rank keeps between steps, and the weight that each is divided like.
        """
        self._first_event = self._ledger.events
        for tensor, weight in lasting:
            if tensor.shape == weight.shape:
                number = self._ledger.number(tensor)
                self._sizes[number] = rounded(self._part_bytes(weight))

    def pieces(self) -> list[Piece]:
        """Give what this rank holds: its rows, what it gathers, what it divides."""
        changed = [self._changed(number, piece) for number, piece in enumerate(self._ledger.pieces)]
        return [*changed, *self._made]

    def parts(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Give the rows of each weight that this rank holds."""
        return [
            torch.empty((self._rows(each), *each.shape[1:]), dtype=each.dtype, device="meta")
            for each in weights
        ]

    def _changed(self, number: int, piece: Piece) -> Piece:
        if number in self._divided_at:
            return replace(piece, owner=UNDIVIDED, died=self._divided_at[number])
        size = self._sizes.get(number, piece.size)
        if number not in self._sizes and piece.place[:1] == ("optimizer",):
            size = rounded(-(-size // self._ranks))  # an update of this rank's rows alone
        return replace(piece, size=size)

    def _watch(self, module: nn.Module, group: _Group) -> None:
        if not group.weights:
            return
        self._groups.append(group)

        def before(_: nn.Module, given: Any) -> None:
            self._before_forward(group, given)

        def after(_: nn.Module, __: Any, output: Any) -> None:
            self._after_forward(group, output)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        for weight in group.weights:
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(
                    lambda weight, group=group: self._has_gradient(group, weight)
                )

    def _before_forward(self, group: _Group, given: Any) -> None:
        if self._in_backward():  # runs again there, with weights that backward has gathered
            return
        buffer = self._make(GATHERED, self._exchanged(group.weights))
        self._gather(group)
        self._end(self._forward_buffer)
        self._forward_buffer = buffer
        if not (group.is_root or any(each.requires_grad for each in group.weights)):
            # No gradient of its own ends a frozen block: what it hands back to the one before does.
            for tensor in tree_leaves(given):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(lambda _: self._let_go(group))

    def _after_forward(self, group: _Group, output: Any) -> None:
        if self._in_backward():
            return
        self._order.append(group)
        if group.is_root:
            self._end(self._forward_buffer)
            self._forward_buffer = None
        else:
            self._let_go(group)
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._before_backward(group))

    def _before_backward(self, group: _Group) -> None:
        if group.in_backward:
            return
        group.in_backward = True
        if not self._ends_backward:
            self._ends_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        if not group.gathered:
            self._ask_for(group)
            self._gather(group)
            self._end(group.arriving)
            group.arriving = None
        place = self._order.index(group)
        if place and not self._order[place - 1].gathered:
            self._ask_for(self._order[place - 1])

    def _has_gradient(self, group: _Group, weight: nn.Parameter) -> None:
        """Note a gradient; the last one of a block lets all of them be divided."""
        if weight.grad is None or not self._first_event:
            return
        number = self._ledger.number(weight.grad)
        if self._ledger.pieces[number].born < self._first_event:
            # Of an earlier micro-batch: this rank's rows of it. What was added came whole.
            self._sizes[number] = rounded(self._part_bytes(weight))
            group.whole.append((weight, self._make(UNDIVIDED, weight.nbytes)))
        else:
            group.whole.append((weight, None))
            self._divided_at[number] = self._ledger.events  # until it is known
        trained = sum(each.requires_grad for each in group.weights)
        if not group.is_root and len(group.whole) == trained:
            self._divide(group)

    def _divide(self, group: _Group) -> None:
        self._let_go(group)
        self._end(self._backward_buffer)
        self._backward_buffer = None
        if not group.whole:
            return
        weights = [weight for weight, _ in group.whole]
        self._backward_buffer = self._make(UNDIVIDED, self._exchanged(weights))
        at = self._tick()
        for weight, added in group.whole:
            self._end(added)
            if added is None and weight.grad is not None:
                self._divided_at[self._ledger.number(weight.grad)] = at
        rows = self._make(GRADIENTS, sum(map(self._part_bytes, weights)))
        if any(added is not None for _, added in group.whole):
            self._end(rows)  # added to the rows that are there
        group.whole.clear()

    def _end_backward(self) -> None:
        for group in reversed(self._groups):  # what lies in no block is the last of them
            if group.whole or group.gathered:
                self._divide(group)
            self._end(group.arriving)
        self._end(self._backward_buffer)

    def _ask_for(self, group: _Group) -> None:
        if group.arriving is None:
            group.arriving = self._make(GATHERED, self._exchanged(group.weights))

    def _gather(self, group: _Group) -> None:
        self._let_go(group)
        group.gathered = [
            self._make(GATHERED, self._ranks * self._part_bytes(each)) for each in group.weights
        ]

    def _let_go(self, group: _Group) -> None:
        for piece in group.gathered:
            self._end(piece)
        group.gathered = []

    def _exchanged(self, weights: Iterable[Tensor]) -> int:
        return self._ranks * sum(map(self._part_bytes, weights))

    def _part_bytes(self, weight: Tensor) -> int:
        return weight.nbytes // max(1, _rows(weight)) * self._rows(weight)

    def _rows(self, weight: Tensor) -> int:
        return -(-_rows(weight) // self._ranks)

    def _make(self, owner: str, num_bytes: int) -> Piece:
        piece = Piece(rounded(num_bytes), self._tick(), self._ledger.place, "", owner=owner)
        self._made.append(piece)
        return piece

    def _end(self, piece: Piece | None) -> None:
        if piece is not None and piece.died is None:
            piece.died = self._tick()

    def _tick(self) -> int:
        self._ledger.events += 1
        return self._ledger.events - 1


def _rows(weight: Tensor) -> int:
    return weight.shape[0] if weight.dim() else 1
