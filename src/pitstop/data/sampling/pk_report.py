"""What an epoch of people really contains, counted from its batches."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pitstop.data.sampling.pk_plan import KINDS, Ints, Queues, Shape
from pitstop.records.units import share_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PKReport:
    """One epoch over all ranks: who is in it, what of the data it sees, what batches look like."""

    epoch_unit: str
    batches: int
    """On each rank."""
    world_size: int
    people_per_batch: int
    records_per_person: int
    people: int
    """In the dataset."""
    people_without_pair: int
    """Of those that take part: no RGB record, or nothing but RGB."""
    people_left_out: int
    """Not taking part, since they have no pair and only people with one are wanted."""
    people_seen: int
    """In at least one batch of this epoch."""
    records: int
    """In the dataset."""
    draws: int
    """Places in all batches."""
    records_seen: int
    """Different records drawn."""
    repeats_in_batch: int
    """Draws of a record that is in the same batch already, for want of others of its person."""
    rgb_records_in_batch: Mapping[int, int]
    """Number of batches by the number of RGB records in them."""

    @property
    def seen_share(self) -> float:
        """Share of the dataset's records that are drawn at least once."""
        return self.records_seen / self.records

    @property
    def repeats(self) -> int:
        """Draws of a record that was drawn before in this epoch."""
        return self.draws - self.records_seen

    def messages(self) -> tuple[str, ...]:
        """Give it as text, for a log."""
        ranks = f" on each of {self.world_size} ranks" if self.world_size > 1 else ""
        batch = f"{self.people_per_batch} people x {self.records_per_person} records"
        lines = [
            f"an epoch over {self.epoch_unit} is {self.batches:,} batches of {batch}{ranks}",
            f"it draws {self.draws:,} times and sees {self.records_seen:,} of {self.records:,} "
            f"records ({share_text(self.seen_share)}) and {self.people_seen:,} of "
            f"{self.people:,} people; "
            f"{self.repeats:,} draws repeat a record, {self.repeats_in_batch:,} within a batch",
            f"batches have {_range(self.rgb_records_in_batch)} RGB records",
        ]
        if self.people_left_out:
            lines.append(f"{self.people_left_out:,} people are left out: they have no pair")
        if self.people_without_pair:
            lines.append(
                f"{self.people_without_pair:,} people take part without a pair: they lack RGB "
                "records, or any others"
            )
        return tuple(lines)


def report_on(
    plan: Ints, *, queues: Queues, shape: Shape, masks: Ints, people_in_all: int, epoch_unit: str
) -> PKReport:
    """Count the batches of an epoch, given as (groups, ranks, places)."""
    batches = plan.reshape(-1, plan.shape[-1])
    in_order = np.sort(batches, axis=1)
    seen = np.unique(batches)
    person_of = np.full(len(masks), -1)
    person_of[queues.records] = queues.queue_of // KINDS
    rgb = (masks[batches] & 1).sum(axis=1)
    numbers, times = np.unique(rgb, return_counts=True)
    return PKReport(
        epoch_unit=epoch_unit,
        batches=shape.groups,
        world_size=shape.world_size,
        people_per_batch=shape.people,
        records_per_person=shape.records,
        people=people_in_all,
        people_without_pair=int((~queues.has_pair).sum()),
        people_left_out=people_in_all - queues.people,
        people_seen=len(np.unique(person_of[seen])),
        records=len(masks),
        draws=batches.size,
        records_seen=len(seen),
        repeats_in_batch=int((in_order[:, 1:] == in_order[:, :-1]).sum()),
        rgb_records_in_batch=dict(zip(numbers.tolist(), times.tolist(), strict=True)),
    )


def _range(counts: Mapping[int, int]) -> str:
    low, high = min(counts), max(counts)
    if low == high:
        return str(low)
    most_often = max(counts, key=lambda number: counts[number])
    return f"{low} to {high}, most often {most_often},"
