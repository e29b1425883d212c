"""A run in a few numbers: totals, self times and shares, from block summaries alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from pitstop.records.distribution import EMPTY, Distribution, merge
from pitstop.records.run import Block, RankRecord, SpanPath


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSummary:
    """One span over the whole run."""

    path: SpanPath
    calls: int | None
    host: Distribution
    """Over the steps in which it was open, inclusive of its children."""
    host_self_us: int
    device: Distribution | None
    share: float
    """Inclusive host time over the wall clock of the sampled steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSummary:
    """All events of one name."""

    count: int
    total_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One rank's run. Spans are in tree order: a parent stands before its children."""

    rank: int
    world_size: int
    """Ranks of the run; this summary is of one of them."""
    steps: int
    wall: Distribution
    outside_us: int
    unaccounted: Distribution
    """Over the sampled steps: most often all, of short steps a sample."""
    device_wall: Distribution | None
    samples: int | None
    samples_per_s: float | None
    """This rank's samples over the wall clock of the steps in which they were counted; None where
    that is less than half of it, as far as single steps were read."""
    micro_steps: int | None
    broken: int
    spans: tuple[SpanSummary, ...]
    events: Mapping[str, EventSummary]
    is_finished: bool

    @property
    def sampled_steps(self) -> int:
        """Sampled steps."""
        return self.unaccounted.count

    @property
    def sampled_wall_us(self) -> int:
        """Wall clock of these steps: what parts and ``unaccounted`` add up to."""
        top = sum(span.host.total_us for span in self.spans if len(span.path) == 1)
        return self.unaccounted.total_us + top

    @property
    def unaccounted_share(self) -> float | None:
        """Share of the wall clock that no span covers, in the sampled steps."""
        if not self.sampled_wall_us or not self.sampled_steps:
            return None
        return self.unaccounted.total_us / self.sampled_wall_us

    def span(self, *path: str) -> SpanSummary | None:
        """Find a span by its names, outermost first."""
        return next((span for span in self.spans if span.path == path), None)


def summarise(record: RankRecord, *, skip_steps: int = 0) -> RunSummary:
    """Summarise a rank.

    Args:
        record: What was read.
        skip_steps: Warm-up steps to leave out. Blocks are whole, so every block that holds one of
            these steps is left out, unless that would leave nothing.
    """
    settled = [block for block in record.blocks if block.first >= skip_steps]
    blocks = settled or list(record.blocks)
    wall = merge(block.wall for block in blocks)
    seen = {path for block in blocks for path in block.spans}
    paths = [path for path in _tree_order(record.paths) if path in seen]
    host = {path: merge(_hosts(blocks, path)) for path in paths}
    unaccounted = merge(block.unaccounted for block in blocks)
    sampled_us = unaccounted.total_us + sum(host[path].total_us for path in paths if len(path) == 1)
    device_walls = [block.device_wall for block in blocks if block.device_wall is not None]
    samples = known_sum([block.samples for block in blocks])
    return RunSummary(
        rank=record.rank,
        world_size=record.attempts[-1].world_size if record.attempts else 1,
        steps=wall.count,
        wall=wall,
        outside_us=sum(block.outside_us for block in blocks),
        unaccounted=unaccounted,
        device_wall=merge(device_walls) if device_walls else None,
        samples=samples,
        samples_per_s=_rate(record, samples, wall.total_us),
        micro_steps=known_sum([block.micro_steps for block in blocks]),
        broken=sum(block.broken for block in blocks),
        spans=tuple(_span_summary(path, blocks, host, sampled_us) for path in paths),
        events=_events(record),
        is_finished=record.is_finished,
    )


def _rate(record: RankRecord, samples: float | None, wall_us: float) -> float | None:
    table = record.steps
    if table is not None and np.isnan(table.samples).any():
        # A block adds up what was counted, and does not tell in how many of its steps.
        counted = ~np.isnan(table.samples)
        samples, wall_us = table.samples[counted].sum(), table.wall_us[counted].sum()
        if 2 * wall_us < table.wall_us.sum():
            return None
    return None if samples is None or not wall_us else float(samples) / (wall_us / 1e6)


def _span_summary(
    path: SpanPath, blocks: list[Block], host: Mapping[SpanPath, Distribution], sampled_us: int
) -> SpanSummary:
    depth = len(path)
    children_us = sum(
        times.total_us
        for other, times in host.items()
        if len(other) == depth + 1 and other[:depth] == path
    )
    found = [block.spans[path] for block in blocks if path in block.spans]
    devices = [span.device for span in found if span.device is not None]
    total_us = host[path].total_us
    return SpanSummary(
        path=path,
        calls=known_sum([span.calls for span in found]),
        host=host[path],
        host_self_us=total_us - children_us,
        device=merge(devices) if devices else None,
        share=total_us / sampled_us if sampled_us else 0.0,
    )


def _hosts(blocks: list[Block], path: SpanPath) -> list[Distribution]:
    return [block.spans[path].host if path in block.spans else EMPTY for block in blocks]


def _tree_order(paths: tuple[SpanPath, ...]) -> list[SpanPath]:
    """Parents before their children, siblings in the order of first appearance."""
    place = {path: number for number, path in enumerate(paths)}
    return sorted(paths, key=lambda path: [place.get(path[: d + 1], -1) for d in range(len(path))])


@overload
def known_sum(values: Sequence[int | None]) -> int | None: ...
@overload
def known_sum(values: Sequence[float | None]) -> float | None: ...
def known_sum(values: Sequence[float | None]) -> float | None:
    """Add what is known; a single unknown makes the sum unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _events(record: RankRecord) -> dict[str, EventSummary]:
    totals: dict[str, EventSummary] = {}
    for event in record.events:
        before = totals.get(event.name, EventSummary(count=0, total_us=0))
        totals[event.name] = EventSummary(
            count=before.count + 1, total_us=before.total_us + event.wall_us
        )
    return totals
