"""A planned step as one of several ranks has it, on a small network that really runs."""

from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn

from pitstop.config.sections import TrainSection
from pitstop.errors import ConfigError
from pitstop.plan.dry_run.account import settle
from pitstop.plan.dry_run.ledger import Ledger, Piece
from pitstop.plan.dry_run.over_ranks import Buckets, Division, OverRanks
from pitstop.plan.memory import RANKS_BYTES, WORKSPACE_BYTES, Gpu, ledger_rows, plan_memory
from pitstop.plan.shards import dividing_ranks, shard_notes
from pitstop.records.plans.plan import BUCKETS, GATHERED, UNDIVIDED
from tests.unit.plan.test_table import GIB, MIB, trace

WIDTH = 256
BLOCK = 4 * WIDTH * WIDTH
"""Bytes of the weight of one block."""
ENDS = 4 * 5 * WIDTH
"""Bytes of each layer that lies in no block: five rows, which two ranks cannot divide evenly."""
FILLED = 4 * 6 * WIDTH


class Net(nn.Module):
    """Three blocks between two layers that are in none."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(5, WIDTH))
        self.blocks = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
        self.end = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x @ self.start) @ self.end.T


class Step:
    """A step of the network under a ledger, and what it came to."""

    def __init__(self, *, ranks: int | None, held: bool = False, frozen: bool = False) -> None:
        self.place: tuple[str, ...] = ()
        self.ledger = Ledger(lambda: self.place, device_type="cpu")
        self.net = Net()
        self.net.blocks.requires_grad_(not frozen)
        self.over_ranks = self._over_ranks(ranks)
        with self.ledger:
            self.ledger.own("parameters", self.net.parameters())
            self._run(held=held)
        self.pieces = self.over_ranks.pieces()

    def _over_ranks(self, ranks: int | None) -> OverRanks:
        if ranks is None:
            return Buckets(self.ledger, self.net)
        blocks = list(self.net.blocks)
        in_backward = lambda: self.place == ("backward",)  # noqa: E731
        return Division(self.ledger, self.net, blocks, ranks=ranks, in_backward=in_backward)

    def _run(self, *, held: bool) -> None:
        for weight in self.net.parameters():
            if held:
                weight.grad = torch.zeros_like(weight)
                self.ledger.own("gradients", [weight.grad])
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(
                    lambda weight: self.ledger.own("gradients", [weight.grad])
                )
        if isinstance(self.over_ranks, Division):
            self.over_ranks.begin((weight, weight) for weight in self.net.parameters())
        self.first_event = self.ledger.events
        self.place = ("forward",)
        loss = self.net(torch.randn(7, 5)).sum()
        self.place = ("backward",)
        loss.backward()
        self.place = ("clip",)
        self.ended = self.ledger.events

    def most(self, owner: str) -> int:
        """Most that an owner has at one time."""
        return max(accumulate(change for _, change in sorted(self._changes(owner))))

    def after_backward(self, owner: str) -> int:
        """What an owner has once backward is done."""
        return sum(change for event, change in self._changes(owner) if event < self.ended)

    def _changes(self, owner: str) -> Iterator[tuple[int, int]]:
        for piece in self.pieces:
            if piece.owner == owner:
                yield piece.born, piece.size
                if piece.died is not None:
                    yield piece.died, -piece.size


def test_a_rank_holds_its_rows_filled_up_and_rounded_as_the_allocator_does() -> None:
    # Three of five rows; of 256 rows a hundredth part is three, 3,072 bytes.
    assert Step(ranks=2).most("parameters") == 3 * BLOCK // 2 + 2 * FILLED // 2
    small = Step(ranks=100)
    assert small.most("parameters") == 3 * 3 * 4 * WIDTH + 2 * 4 * WIDTH
    parts = small.over_ranks.parts(list(small.net.parameters()))
    assert {(*part.shape,) for part in parts} == {(3, WIDTH), (1, WIDTH)}


def test_state_that_is_not_shaped_like_its_weight_is_not_divided() -> None:
    step = Step(ranks=2)
    assert isinstance(step.over_ranks, Division)
    weight, count = step.net.start, torch.zeros(())
    with step.ledger:
        state = torch.zeros_like(weight)
        step.ledger.own("optimizer state", [state, count])
        step.over_ranks.begin([(state, weight), (count, weight)])
    step.pieces = step.over_ranks.pieces()
    assert step.most("optimizer state") == FILLED // 2 + 512


def test_blocks_are_gathered_one_after_the_other_into_a_buffer_and_from_there() -> None:
    step = Step(ranks=2)
    # When a block has been gathered there are its weights, its buffer and that of the one before.
    assert step.most(GATHERED) == 2 * FILLED + 3 * BLOCK
    assert step.after_backward(GATHERED) == 0


def test_frozen_blocks_are_let_go_of_one_after_the_other_too() -> None:
    step = Step(ranks=2, frozen=True)
    assert step.most(GATHERED) == Step(ranks=2).most(GATHERED)
    assert step.after_backward(GATHERED) == 0


def test_an_update_makes_what_it_needs_for_the_rows_of_its_rank() -> None:
    step = Step(ranks=2)
    with step.ledger:
        step.place = ("optimizer",)
        made = torch.empty(6, WIDTH)
        step.place = ("clip",)
        kept = torch.empty(6, WIDTH)
    *_, of_update, other = step.over_ranks.pieces()[: len(step.ledger.pieces)]
    assert (of_update.size, other.size) == (made.nbytes // 2, kept.nbytes)


def test_gradients_are_divided_block_by_block() -> None:
    step = Step(ranks=2)
    # Those of a block, the buffer that divides them, and of what lies in no block the last layer's.
    assert step.most(UNDIVIDED) == 2 * BLOCK + ENDS
    assert step.after_backward(UNDIVIDED) == 0
    assert step.after_backward("gradients") == 3 * BLOCK // 2 + 2 * FILLED // 2


def test_no_gradients_are_counted_at_a_peak_that_lies_in_forward() -> None:
    step = Step(ranks=2)
    step.ledger.pieces.append(Piece(GIB, step.first_event, ("forward",), "", died=step.ended // 2))
    forward_ended = min(p.born for p in step.pieces if p.owner in ("gradients", UNDIVIDED))
    step.ledger.pieces[-1].died = forward_ended
    owners = settle(step.ledger, step.first_event, step.over_ranks.pieces()).owners
    assert "gradients" not in owners
    assert UNDIVIDED not in owners
    assert owners[GATHERED] > 0


def test_a_later_micro_batch_adds_whole_gradients_to_rows_that_are_there() -> None:
    step = Step(ranks=2, held=True)
    rows = 3 * BLOCK // 2 + 2 * FILLED // 2
    assert step.most(UNDIVIDED) == 2 * BLOCK + ENDS
    assert step.after_backward("gradients") == rows
    # While a block's are added there are its rows twice.
    assert step.most("gradients") == rows + BLOCK // 2


def test_ranks_that_have_the_whole_model_keep_all_gradients_in_buckets() -> None:
    step = Step(ranks=None)
    account = settle(step.ledger, step.first_event, step.pieces)
    assert account.owners[BUCKETS] == 3 * BLOCK + 2 * ENDS
    assert "gradients" not in account.owners
    # Their peak is where everything else has its own.
    others = [piece for piece in step.pieces if piece.owner != BUCKETS]
    without = settle(step.ledger, step.first_event, others)
    assert account.peak_bytes == without.peak_bytes + 3 * BLOCK + 2 * ENDS


def test_a_copy_on_each_host_is_divided_between_as_many_ranks_as_said() -> None:
    hybrid = TrainSection(steps=1, shard="hybrid", shard_ranks=2)
    assert dividing_ranks(hybrid, ranks=8) == 2
    assert "divided between 2 ranks" in shard_notes(hybrid, ranks=8)[0]
    assert dividing_ranks(TrainSection(steps=1), ranks=8) == 1
    assert shard_notes(TrainSection(steps=1), ranks=8) == ()
    # A rank alone has nobody to divide with, whatever is asked for.
    assert dividing_ranks(hybrid, ranks=1) == 1


@pytest.mark.parametrize(
    ("ranks", "of_copy", "said"),
    [
        (4, None, "does not know how many ranks a host has"),
        (3, 2, "there are 3 ranks"),
        (4, 4, "there are 4 ranks"),
        (4, 8, "there are 4 ranks"),
    ],
)
def test_copies_that_a_run_would_refuse_are_not_planned(
    ranks: int, of_copy: int | None, said: str
) -> None:
    hybrid = TrainSection(steps=1, shard="hybrid", shard_ranks=of_copy)
    with pytest.raises(ConfigError, match=said):
        dividing_ranks(hybrid, ranks=ranks)


@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_plan_of_one_of_several_ranks_adds_no_buckets_of_its_own(shard: str) -> None:
    gathered = {BUCKETS: 70 * MIB} if shard == "none" else {GATHERED: 17 * MIB}
    owners = {"parameters": 70 * MIB, "activations": 60 * GIB, **gathered}
    one = trace(owners=owners, peak_bytes=sum(owners.values()), shard=shard, ranks=4)
    plan = plan_memory("x", one, Gpu(name="some", num_bytes=80 * GIB))
    assert plan.peak_bytes == one.peak_bytes + WORKSPACE_BYTES + RANKS_BYTES
    assert {row.basis for row in ledger_rows(one) if row.owner in gathered} == {"dry run"}
