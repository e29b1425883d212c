"""Weights, gradients and optimizer state divided between ranks, by torch's own FSDP2.

Each block that the task names is a group: its weights are gathered before the block runs, freed
after it, gathered again for backward, and its gradients are divided as soon as they are there. What
lies outside of all blocks is gathered for a whole pass. Between steps a rank holds its share alone.

Weights are gathered in fp32 and autocast casts them, as under DDP. torch's own policy of mixed
precision runs every operation in the low precision, norms and sums as well: other numbers.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from pitstop.config.sections import TrainSection
from pitstop.errors import ConfigError
from pitstop.train.monitor.collectives import CollectiveTimer
from pitstop.train.optim.local_part import local_part
from pitstop.train.ranks import Ranks

_SHARD_DIM: Final = "shard"
_REPLICA_DIM: Final = "replica"
_BUFFERS_AT_ONCE_BYTES: Final = 250 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """How a model is divided, counted on the model itself."""

    kind: str
    ranks: int
    """That hold one copy together."""
    replicas: int
    """Copies in all."""
    blocks: int
    """Groups that are gathered by themselves; the rest of the model is one more."""
    parameters_bytes: int
    """Of the whole model."""
    held_bytes: int
    """What this rank holds of them between steps."""
    largest_block_bytes: int
    """Most that one block takes while it is gathered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The ranks that divide a model, as far as a step needs to know them."""

    mesh: DeviceMesh
    model: nn.Module
    model_name: str
    """The model's class, before FSDP2 put one of its own in its place."""
    facts: ShardFacts
    timer: CollectiveTimer

    def sum(self, value: Tensor) -> Tensor:
        """Add a value over the ranks that hold one copy together, on the device."""
        if self.facts.ranks > 1:
            distributed.all_reduce(value, group=self.mesh.get_group(_SHARD_DIM))
        return value

    def prepare(self, *, is_last: bool) -> None:
        """Say whether the pass that follows is the last of its step.

        Gradients are divided after every pass: whole ones, kept for the end of the step, would
        take what the division saves. Copies on other hosts are added to in the last pass alone.
        """
        if self.facts.replicas > 1:
            cast("FSDPModule", self.model).set_requires_all_reduce(is_last)

    @contextmanager
    def whole_model(self) -> Iterator[None]:
        """Let every rank hold the whole model inside this context, to run it by itself.

        Ranks may run it as often as they like, by whatever method: nothing is exchanged meanwhile.
        Every rank must come by here.
        """
        self._broadcast_buffers()
        divided = {
            module: module is self.model
            for module in self.model.modules()
            if isinstance(module, FSDPModule)
        }
        for block in divided:
            block.set_reshard_after_forward(False, recurse=False)
            block.unshard()
        try:
            yield
        finally:
            for block, is_root in divided.items():
                block.reshard()
                block.set_reshard_after_forward(not is_root, recurse=False)

    def begin_step(self) -> None:
        """Count a step, and give the first rank's buffers to all, as DDP does."""
        self.timer.begin_step()
        self._broadcast_buffers()

    def _broadcast_buffers(self) -> None:
        buffers = list(self.model.buffers())
        group = distributed.group.WORLD
        assert group is not None, "ranks have joined"
        if group.size() > 1 and buffers:
            distributed._broadcast_coalesced(group, buffers, _BUFFERS_AT_ONCE_BYTES, 0)


def shard_model(
    model: nn.Module,
    train: TrainSection,
    regions: Sequence[nn.Module],
    *,
    ranks: Ranks,
    device: torch.device,
) -> Shards:
    """Divide a model between ranks, in place; its parameters are this rank's shares from then on.

    Args:
        model: On any device; its blocks are brought to this rank's one by one.
        train: Says between whom.
        regions: The blocks that the task names.
        ranks: All ranks; they have joined.
        device: This rank's own.

    Raises:
        ConfigError: Where the model cannot be divided so.
    """
    mesh = _mesh(train, ranks, device)
    blocks = blocks_of(model, regions)
    _refuse_indivisible(model)
    sizes = [_bytes(block) for block in blocks]
    whole_bytes = _bytes(model)
    name = type(model).__name__
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    with torch.no_grad():
        held_bytes = sum(local_part(each).nbytes for each in model.parameters())
    facts = ShardFacts(
        kind=train.shard,
        ranks=mesh.size(mesh.ndim - 1),
        replicas=1 if mesh.ndim == 1 else mesh.size(0),
        blocks=len(blocks),
        parameters_bytes=whole_bytes,
        held_bytes=held_bytes,
        largest_block_bytes=max(sizes, default=0),
    )
    return Shards(
        mesh=mesh, model=model, model_name=name, facts=facts, timer=_timer(model, facts, device)
    )


def ranks_of_copy(train: TrainSection, *, world_size: int, local_world_size: int) -> int:
    """Give how many ranks hold one copy of the model together.

    Raises:
        ConfigError: Where the ranks there are cannot be divided so.
    """
    if train.shard != "hybrid":
        return world_size
    size = train.shard_ranks or local_world_size
    if size < world_size and world_size % size == 0:
        return size
    whose = "train.shard_ranks is" if train.shard_ranks else "ranks of one host are"
    raise ConfigError(
        f"train.shard is hybrid and {whose} {size}, but there are {world_size} ranks: copies must "
        "be several, and each have as many ranks; set train.shard_ranks to a part of them, or "
        "train.shard to full"
    )


def _timer(model: nn.Module, facts: ShardFacts, device: torch.device) -> CollectiveTimer:
    timer = CollectiveTimer()
    # Elsewhere the host does not see how long they take, and a rank alone has none.
    if device.type == "cpu" and facts.ranks > 1:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                timer.attach(module)
    return timer


def _mesh(train: TrainSection, ranks: Ranks, device: torch.device) -> DeviceMesh:
    size = ranks_of_copy(
        train, world_size=ranks.world_size, local_world_size=ranks.local_world_size
    )
    if train.shard == "full":
        return init_device_mesh(device.type, (size,), mesh_dim_names=(_SHARD_DIM,))
    shape = (ranks.world_size // size, size)
    return init_device_mesh(device.type, shape, mesh_dim_names=(_REPLICA_DIM, _SHARD_DIM))


def blocks_of(model: nn.Module, regions: Sequence[nn.Module]) -> list[nn.Module]:
    """List the blocks to gather by themselves, inner ones first.

    Parameters that two blocks share, or a block and the rest, belong to the rest of the model.
    """
    named = set(regions) - {model}
    # Each module's own parameters, so that a block inside of another counts once.
    uses = Counter(p for module in model.modules() for p in module.parameters(recurse=False))
    return [
        module
        for module in reversed(list(model.modules()))
        if module in named and _is_alone(module, uses) and any(True for _ in module.parameters())
    ]


def _is_alone(block: nn.Module, uses: Counter[nn.Parameter]) -> bool:
    own = Counter(p for module in block.modules() for p in module.parameters(recurse=False))
    return all(uses[parameter] == count for parameter, count in own.items())


def _refuse_indivisible(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0 or not parameter.is_contiguous():
            what = "a single number" if parameter.dim() == 0 else "not contiguous in memory"
            raise ConfigError(
                f"train.shard cannot divide {name}, which is {what}; set train.shard to none, or "
                "make it a contiguous tensor of one dimension or more"
            )


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())
