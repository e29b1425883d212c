"""A planned step of a model that ranks divide: what one of them holds, and what it gathers.

The dry run is of one rank that has everything. Weights, gradients, averages and the optimizer's
state are divided exactly, up to rows that cannot be; what is gathered while blocks run follows from
how FSDP2 works and is an estimate: the block that runs and the next one, with the buffer that one
of them arrived in, and everything outside of blocks for the whole pass. Gradients of a block are
there once more in the buffer that divides them.
"""

from dataclasses import replace
from typing import Final

from pitstop.records.plans.plan import GATHERED, UNDIVIDED, StepTrace

_DIVIDED: Final = ("parameters", "gradients", "optimizer state", "averaged weights")
_BLOCKS_GATHERED: Final = 3
_BLOCKS_OF_GRADIENTS: Final = 2


def divide_trace(trace: StepTrace, *, ranks: int) -> StepTrace:
    """Give the step as one of several ranks does it; unchanged where the model is not divided.

    Args:
        trace: Of a rank that has everything.
        ranks: All of them; under `hybrid` without `train.shard_ranks`, taken for those of a host.
    """
    size = min(ranks, trace.shard_ranks or ranks)
    if trace.shard == "none" or size == 1:
        return trace
    owners = {
        owner: -(-held // size) if owner in _DIVIDED else held
        for owner, held in trace.owners.items()
    }
    # From the first block of backward on, a share of all of them is there.
    owners["gradients"] = -(-trace.gradient_bytes // size)
    block, outside = trace.largest_block_bytes, trace.outside_blocks_bytes
    owners[GATHERED] = outside + _BLOCKS_GATHERED * block
    owners[UNDIVIDED] = outside + _BLOCKS_OF_GRADIENTS * block
    change = sum(owners.values()) - sum(trace.owners.values())
    return replace(
        trace,
        owners=owners,
        peak_bytes=trace.peak_bytes + change,
        reserved_bytes=trace.reserved_bytes + change,
        gradient_bytes=owners["gradients"],
        optimizer_bytes={kind: -(-total // size) for kind, total in trace.optimizer_bytes.items()},
        notes=(*trace.notes, _note(trace, size)),
    )


def _note(trace: StepTrace, size: int) -> str:
    assumed = (
        f"; all {size} ranks are taken to be of one host"
        if trace.shard == "hybrid" and trace.shard_ranks is None
        else ""
    )
    return f"divided between {size} ranks: what they gather while blocks run is estimated{assumed}"
