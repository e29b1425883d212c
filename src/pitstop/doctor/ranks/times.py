"""What a rank works by itself: from its steps, or from the summaries of its blocks alone.

All ranks of a job have steps of one length, because those that are ahead wait in the exchange of
gradients. So a rank's wall clock does not tell who is slow; its own work does: every part but
those in which it waits. On the device's clock where there is one: there the host's parts overlap
with computing.

Of many ranks the steps are not read, which would take minutes and fill memory. A block says what
256 steps took together, exactly; of each block the longest time of a part is left out where it is
that of a stall, which comes once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.readings import Exchange
from pitstop.errors import RecordError
from pitstop.records.distribution import Distribution
from pitstop.records.run import Block, RankRecord
from pitstop.records.store import decode

# Where a rank that is ahead waits for the others: the exchange is in there.
_WAITING_PARTS: Final = ("backward", "sync")

# First steps compile, allocate and start workers: their block is left out if this many remain.
_FEWEST_BLOCKS: Final = 3

# What takes longer than its part usually does by two steps is a stall (doctor/stalls.py).
_STALL_STEPS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """One rank among the others: means of a step after warm-up."""

    rank: int
    host: str | None
    steps: int
    step_us: float
    total_us: float
    """Wall clock after warm-up: what a share is a share of."""
    own_us: Mapping[str, float]
    """By part, without those in which it waits for others."""
    exposed_us: float | None
    """Exchange of gradients that computing does not hide; None where nobody timed it."""

    @property
    def whole_own_us(self) -> float:
        """All of its own work."""
        return sum(self.own_us.values())


def own_excess_us(one: RankTimes, others: Sequence[RankTimes]) -> dict[str, float]:
    """Compare each part of a rank's own work with the median of others."""
    return {
        name: us - float(np.median([other.own_us.get(name, 0.0) for other in others]))
        for name, us in one.own_us.items()
    }


def is_own(part: str) -> bool:
    """Whether a rank works in a part, and does not wait there for others."""
    return part not in _WAITING_PARTS


def host_of(record: RankRecord) -> str | None:
    """Name the host that a rank ran on, in its last attempt."""
    return record.attempts[-1].host if record.attempts else None


def times_of(facts: Facts) -> RankTimes:
    """Take a rank's times from its steps."""
    if facts.device is not None:
        scale = 1 / facts.device.steps
        found = {name: us * scale for name, us in facts.device.parts_us.items()}
    else:
        found = {name: facts.mean_us(us) for name, us in facts.parts_us.items()}
    return RankTimes(
        rank=facts.summary.rank,
        host=host_of(facts.record),
        steps=facts.steps,
        step_us=facts.step_us,
        total_us=facts.total_us,
        own_us=_own(found),
        exposed_us=None,
    )


def times_of_blocks(record: RankRecord) -> RankTimes:
    """Take a rank's times from the summaries of its blocks."""
    blocks = settled_blocks(record.blocks)
    steps = sum(block.wall.count for block in blocks)
    wall_us = sum(block.wall.total_us for block in blocks)
    parts: dict[str, float] = {}
    for block in blocks:
        for name, us in own_of_block(block).items():
            parts[name] = parts.get(name, 0.0) + us * block.wall.count
    return RankTimes(
        rank=record.rank,
        host=host_of(record),
        steps=steps,
        step_us=wall_us / steps if steps else 0.0,
        total_us=wall_us + sum(block.outside_us for block in blocks),
        own_us={name: us / steps for name, us in parts.items()} if steps else {},
        exposed_us=_exposed_us(record, blocks),
    )


def settled_blocks(blocks: Sequence[Block]) -> Sequence[Block]:
    """Leave out the first steps, unless that would leave little."""
    filled = [block for block in blocks if block.wall.count]
    return filled[1:] if len(filled) > _FEWEST_BLOCKS else filled


def own_of_block(block: Block) -> dict[str, float]:
    """Mean of a step by part, without those in which a rank waits for others."""
    top = {path[0]: span for path, span in block.spans.items() if len(path) == 1}
    on_device = {name: span.device for name, span in top.items() if span.device is not None}
    marked = max((times.count for times in on_device.values()), default=0)
    usual_us = block.wall.quantile_us(0.5) or 0.0
    if marked:
        return _own({name: _mean(us, marked, usual_us) for name, us in on_device.items()})
    sampled = max(block.unaccounted.count, max((s.host.count for s in top.values()), default=0))
    return _own({name: _mean(span.host, sampled, usual_us) for name, span in top.items()})


def _mean(times: Distribution, steps: int, usual_us: float) -> float:
    """Mean over some steps, in the others of which the part was not opened; without a stall."""
    if steps < 2 or times.most_us < _STALL_STEPS * usual_us:
        return times.total_us / steps if steps else 0.0
    return (times.total_us - times.most_us) / (steps - 1)


def _own(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: us for name, us in parts.items() if is_own(name)}


def _exposed_us(record: RankRecord, blocks: Sequence[Block]) -> float | None:
    steps = sum(block.wall.count for block in blocks)
    sync = [block.spans[("sync",)].host.total_us for block in blocks if ("sync",) in block.spans]
    raw = [reading for reading in record.readings if reading.kind == "communication"]
    try:
        exchange = decode(raw[-1], Exchange).exposed_us if raw else None
    except RecordError:
        exchange = None
    if exchange is None and not sync:
        return None
    return (exchange or 0.0) + (sum(sync) / steps if steps else 0.0)
