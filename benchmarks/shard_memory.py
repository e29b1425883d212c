"""What a rank of a divided model holds through a step, against what `pitstop plan` says of it.

    OMP_NUM_THREADS=1 python -m benchmarks.shard_memory [--training NAME ...] [--ranks 1 2 4]

Demo presets on generated data, gloo on a CPU, `train.shard` none and full. In each rank every
operation of the third step is seen, and with it every piece of memory that is made, freed, or given
another size, as FSDP2 does with what it gathers. No part of the plan is used for that. Beside it
torch's profiler counts what its allocator hands out and takes back, in one more step: the two peaks
must agree, or something was not seen.

A piece's owner is read off the objects that hold it: weights and their gradients off the model,
state off the optimizer, gathered weights off FSDP2's own parameters and its buffers. What is left
and made in the forward pass or the loss is activations, as far as backward begins with it.

A reduce-scatter of gloo copies all that it is given, and adds up all of it; that memory, which no
GPU needs, is counted by itself and in the comparison with the allocator alone.

Sizes are rounded up to 512 bytes, as a GPU's allocator does and the plan says: weights of these
presets are small. Both sides run the reference kernels, without autocast. What is left between
them is CPU against GPU: softmax's backward pass on a GPU holds a product that a CPU's does not
make, and one number of a batch lies on the host. Blocks that training drops at random are kept in
both: a plan is of a step that drops none. The figures are the first rank's, which holds the most:
rows that cannot be divided evenly are its. Bytes do not depend on the machine.
"""
# pyright: reportPrivateUsage=false

import argparse
import json
import platform
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from benchmarks.shards import ROOT, TRAININGS, hardware, make_data
from torch import Tensor
from torch.autograd.profiler import profile
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pitstop.config.load import load_config
from pitstop.plan.dry_run.request import Request, trace_all
from pitstop.plan.memory import ledger_rows
from pitstop.records.plans.plan import GATHERED, UNDIVIDED
from pitstop.train.monitor import collectives
from pitstop.train.ranks import join_ranks, leave_ranks
from pitstop.train.setup import build_trainer
from pitstop.train.step import Trainer
from pitstop.workloads.catalogue import build_task
from pitstop_probe import Clock
from tests.fakes import ListSink
from tests.integration.ranks import exit_codes, launch
from tests.integration.shard_runs import CPU, batches_of

RESULTS = ROOT / "benchmarks" / "results" / "shard_memory_cpu.json"
WAYS = ("none", "full")
RANKS = (1, 2, 4)
ALL_BLOCKS = {"deblur": ("model.drop_path=0",)}
"""So that each step is that of all blocks, by training."""
WARM_STEPS = 2
ROUND_BYTES = 512
BACKEND = "copies of gloo"
MOST_NAMED = 3
LIMIT_S = 170.0


@dataclass(slots=True, kw_only=True)
class Piece:
    """Memory that tensors share, its sizes from event to event."""

    place: tuple[str, ...]
    """Part of the step that made it; nothing for what was there before."""
    operation: str
    owner: str | None
    sizes: list[tuple[int, int]]
    """Events and the bytes from then on."""


class LiveBytes(TorchDispatchMode):
    """Sees all memory that operations of one step make, free and give another size."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.pieces: list[Piece] = []
        self.events = 0
        self.backward_began: int | None = None
        self.new_owner: str | None = None
        """Of whatever is made now."""
        self._clock = clock
        self._live: dict[int, tuple[Piece, weakref.ref[Any]]] = {}
        self._resized: dict[int, tuple[Piece, weakref.ref[Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation and enter what it made."""
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # seen again with the parts that this rank has
        made = func(*args, **(kwargs or {}))
        place = tuple(self._clock.current.path)
        if self.backward_began is None and place[:1] == ("backward",):
            self.backward_began = self.events
        for leaf in tree_leaves((made, args, kwargs)):
            if isinstance(leaf, Tensor):
                self.enter(leaf, self.new_owner, place, str(func))
        self.pass_on()
        return made

    def enter(
        self,
        tensor: Tensor,
        owner: str | None,
        place: tuple[str, ...] = (),
        operation: str = "",
    ) -> None:
        """Enter memory that is not known yet, and whose it is where that is said."""
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._live:
            piece = Piece(
                place=place,
                operation=operation,
                owner=owner,
                sizes=[(self.events, storage.nbytes())],
            )
            self.pieces.append(piece)
            self._live[key] = (piece, weakref.ref(storage, lambda _: self._leave(key)))
        piece, reference = self._live[key]
        piece.owner = piece.owner if owner in (None, BACKEND) else owner
        if owner == GATHERED:
            self._resized[key] = (piece, reference)

    def own(self, owner: str, tensors: Iterable[Tensor | None]) -> None:
        """Say whose some memory is."""
        for tensor in tensors:
            if tensor is not None:
                self.enter(tensor, owner)

    def pass_on(self) -> None:
        """Count an event, and ask what FSDP2 gives other sizes for its size."""
        for piece, reference in self._resized.values():
            storage = reference()
            size = 0 if storage is None else storage.nbytes()
            if piece.sizes[-1][1] != size:
                piece.sizes.append((self.events, size))
        self.events += 1

    def _leave(self, key: int) -> None:
        piece, _ = self._live.pop(key)
        self._resized.pop(key, None)
        piece.sizes.append((self.events, 0))


@dataclass(slots=True, kw_only=True)
class Account:
    """Bytes by owner at the peak of a step, and the most of each owner at any time."""

    peak_bytes: int = 0
    at_peak: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    event: int = 0


def settle(pieces: Sequence[Piece], *, round_to: int) -> Account:
    """Follow all owners through a step."""
    changes: list[tuple[int, str, int]] = []
    for piece in pieces:
        before = 0
        for event, exact in piece.sizes:
            size = -(-exact // round_to) * round_to
            changes.append((event, piece.owner or "temporary", size - before))
            before = size
    changes.sort(key=lambda change: change[0])
    account, now, held = Account(), defaultdict[str, int](int), 0
    for number, (event, owner, change) in enumerate(changes):
        now[owner] += change
        held += change
        is_last = number + 1 == len(changes) or changes[number + 1][0] != event
        if not is_last:
            continue
        for name, size in now.items():
            account.most[name] = max(account.most.get(name, 0), size)
        if held > account.peak_bytes:
            account.peak_bytes, account.at_peak = held, {k: v for k, v in now.items() if v}
            account.event = event
    return account


def made_by(pieces: Sequence[Piece], owner: str, event: int) -> dict[str, int]:
    """Name the operations that made most of what an owner has at an event, with the bytes."""
    made = defaultdict[str, int](int)
    for piece in pieces:
        sizes = [size for at, size in piece.sizes if at <= event]
        if (piece.owner or "temporary") == owner and sizes and sizes[-1]:
            made[f"{'/'.join(piece.place)} {piece.operation}"] += sizes[-1]
    return dict(sorted(made.items(), key=lambda item: -item[1])[:MOST_NAMED])


def name_the_rest(live: LiveBytes) -> None:
    """Call activations what backward begins with, and batch what was copied."""
    for piece in live.pieces:
        part = piece.place[0] if piece.place else ""
        if piece.owner is None and part in {"data", "copy"}:
            piece.owner = "batch"
        elif (
            piece.owner is None and part in {"forward", "loss"} and _lives_at_backward(live, piece)
        ):
            piece.owner = "activations"


def _lives_at_backward(live: LiveBytes, piece: Piece) -> bool:
    began = live.backward_began
    before = [size for event, size in piece.sizes if began is not None and event <= began]
    return bool(before) and before[-1] > 0


@contextmanager
def owners_noted(live: LiveBytes, trainer: Trainer[Any]) -> Iterator[None]:
    """Have memory that FSDP2 makes by itself entered as what it is."""
    model = trainer.model
    live.own("parameters", model.parameters())
    live.own("buffers", model.buffers())
    state = (value for each in trainer.optimizer.state.values() for value in each.values())
    live.own("optimizer state", (value for value in state if isinstance(value, Tensor)))
    if trainer.average is not None:
        live.own("averaged weights", trainer.average.state_dict().values())
    handles = []
    for weight in _fsdp_params(model):
        live.own(GATHERED, weight.all_gather_outputs)
        gathered = getattr(weight, "_unsharded_param", None)
        if gathered is not None and gathered.requires_grad:
            handles.append(
                gathered.register_post_accumulate_grad_hook(
                    lambda gathered: live.own(UNDIVIDED, [gathered.grad])
                )
            )
    gather, reduce = (_noted(live, owner) for owner in (GATHERED, UNDIVIDED))
    call = collectives._Timed.__call__

    def exchange(*args: Any, **kwargs: Any) -> Any:
        live.new_owner = BACKEND
        try:
            return call(*args, **kwargs)
        finally:
            live.new_owner = None

    with (
        mock.patch.object(collectives._TimedGather, "allocate", gather),
        mock.patch.object(collectives._TimedReduce, "allocate", reduce),
        mock.patch.object(collectives._Timed, "__call__", exchange),
    ):
        yield
    for handle in handles:
        handle.remove()


def _noted(live: LiveBytes, owner: str) -> Any:
    def allocate(timed: Any, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        made = timed._inner.allocate(size, dtype=dtype, device=device)
        live.own(owner, [made])
        return made

    return allocate


def _fsdp_params(model: torch.nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                yield from group.fsdp_params


def measure_rank(config_path: Path, overrides: Sequence[str], out: Path) -> None:
    """Do three steps in this rank, see the third, and write what the first rank held."""
    ranks = join_ranks()
    config = load_config(config_path, overrides).config
    task: Any = build_task(config)
    trainer = build_trainer(config, task, ranks, CPU).trainer
    clock = Clock(ListSink())
    batches = batches_of(config, task, ranks)

    def step(number: int) -> None:
        clock.begin_step(number)
        trainer.train_step(batches, step=number, clock=clock)

    for number in range(WARM_STEPS - 1):
        step(number)
    buckets = step_with_gradients(trainer, lambda: step(WARM_STEPS - 1))
    live = LiveBytes(clock)
    # DDP keeps its buckets between steps, where nothing but their views leads to them.
    live.own("gradients", buckets if isinstance(trainer.model, DistributedDataParallel) else [])
    del buckets
    with owners_noted(live, trainer):
        live.pass_on()
        began_bytes = settle(live.pieces, round_to=1).peak_bytes
        with live:
            step_with_gradients(trainer, lambda: step(WARM_STEPS), live)
    name_the_rest(live)
    exact = settle(live.pieces, round_to=1)
    ours = [piece for piece in live.pieces if piece.owner != BACKEND]
    rounded = settle(ours, round_to=ROUND_BYTES)
    copied = settle([piece for piece in live.pieces if piece.owner == BACKEND], round_to=1)
    grown_bytes = allocator_peak(lambda: step(WARM_STEPS + 1))
    if ranks.is_first:
        told = {
            "peak_bytes": rounded.peak_bytes,
            "at_peak": rounded.at_peak,
            "temporary_at_peak": made_by(ours, "temporary", rounded.event),
            "most": rounded.most,
            "most_of_gloo_bytes": copied.peak_bytes,
            "grown_bytes": exact.peak_bytes - began_bytes,
            "grown_by_allocator_bytes": grown_bytes,
        }
        out.write_text(json.dumps(told))
    leave_ranks()


def step_with_gradients(
    trainer: Trainer[Any], step: Callable[[], None], live: LiveBytes | None = None
) -> list[Tensor]:
    """Do a step, and give its gradients as they were before the update, for a look at whose."""
    kept: list[Tensor] = []
    update = type(trainer)._update

    def updated(self: Trainer[Any], found_inf: Tensor) -> int:
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        if live is None:
            kept.extend(gradients)
        else:
            live.own("gradients", gradients)
        return update(self, found_inf)

    with mock.patch.object(type(trainer), "_update", updated):
        step()
    return kept


def allocator_peak(step: Any) -> int:
    """Give by how much torch's CPU allocator holds more in a step than before it, at the most."""
    with profile(profile_memory=True, use_cpu=True) as profiled:
        step()
    found: Any = profiled
    events = [event for event in found.kineto_results.events() if event.name() == "[memory]"]
    changes = [(event.start_ns(), event.nbytes()) for event in events]
    held, most = 0, 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        held += change
        most = max(most, held)
    return most


def plan(config: Path, overrides: Sequence[str], ranks: int) -> dict[str, int]:
    """Plan a step as `pitstop plan` does: its rows without what is allowed for and estimated."""
    request = Request(config=str(config), overrides=tuple(overrides), ranks=ranks)
    [answer] = trace_all([request])
    rows = ledger_rows(answer.require())
    return {row.owner: row.num_bytes for row in rows if row.basis == "dry run"}


def measure(training: str, folder: Path, counts: Sequence[int]) -> dict[str, Any]:
    """Measure a preset in every way, and hold it against its plan."""
    workload, extra = TRAININGS[training]
    data = folder / "data"
    make_data(workload, data)
    config = ROOT / "configs" / workload / "demo.yaml"
    common = (f"data.root={data}", "loader.workers=0", "model.kernels=reference", *extra)
    common += ALL_BLOCKS.get(training, ())
    found: dict[str, Any] = {}
    for way in WAYS:
        overrides = (*common, f"train.shard={way}")
        for count in counts:
            out = folder / f"{way}-{count}.json"
            ranks = launch(
                measure_rank, config, overrides, out, world_size=count, logs=folder / "logs"
            )
            for process in ranks:
                process.join(LIMIT_S)
            if exit_codes(ranks) != [0] * count:
                raise SystemExit((folder / "logs" / "stderr-0").read_text()[-3000:])
            told = json.loads(out.read_text())
            found[f"{way}, {count} ranks"] = {
                "planned": plan(config, overrides, count),
                "measured": told,
            }
            print(training, way, count, found[f"{way}, {count} ranks"], flush=True)
    return found


def main() -> None:
    """Measure what was asked for and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--training", choices=TRAININGS, action="append")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for training in options.training or ("deblur", "bev", "reid"):
        with tempfile.TemporaryDirectory(prefix="shard-memory-") as folder:
            found = measure(training, Path(folder), options.ranks)
        results = json.loads(options.out.read_text()) if options.out.exists() else {}
        results["hardware"] = hardware()
        results["torch"] = torch.__version__.partition("+")[0]
        results["python"] = platform.python_version()
        runs = results.setdefault("runs", {})
        runs[training] = {**runs.get(training, {}), **found}
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
