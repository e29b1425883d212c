"""A run while it goes on, as one view: where it is, how fast, what it waits for, what is wrong.

`live_view` is a plain function of what was read and of the time; whoever shows a view (a terminal,
a pipe, a page) takes its numbers as they are. None means "not measured" and never zero.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from pitstop.errors import RecordError
from pitstop.records.host.memory import MemoryReading
from pitstop.records.run import Attempt, Reading, RunRecord, StepTable
from pitstop.records.script import Setup
from pitstop.records.store import decode
from pitstop.records.summary import known_sum
from pitstop.records.verdict import Verdict
from pitstop.report.live.process import IsAlive
from pitstop.report.live.tail import FileTail, RankTail, RunTail
from pitstop.report.live.throughput import (
    PartShare,
    TimeLeft,
    data_share_of,
    last_rows,
    parts_of,
    rate_now,
    steady_rate,
    steps_done,
    time_left,
)

State = Literal["waiting", "running", "silent", "finished", "failed", "interrupted", "killed"]

ENDED: Final[tuple[State, ...]] = ("finished", "interrupted", "failed", "killed")
"""States that nothing follows in this attempt, the better ones first."""

_SILENT_S: Final = 60.0
_SILENT_STEPS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank."""

    rank: int
    state: State
    reason: str
    age_s: float | None
    """Since its file last grew."""
    step: int | None
    """Steps done, counted from the begin of the training."""
    now_steps: int
    """Steps that the numbers below rest on."""
    step_s: float | None
    """Median wall clock of a step, what lies between steps left out."""
    samples_per_s: float | None
    """On the wall clock, what lies between steps included."""
    data_share: float | None
    parts: tuple[PartShare, ...]
    """As first seen, what no part saw last; empty where the record has no parts."""
    steady_samples_per_s: float | None
    """By the median step after the first block, or of all steps where there is no other."""
    steady_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """The latest look at memory."""

    device: str | None
    """The device that is fullest, with its rank where there are several."""
    device_peak_bytes: int | None
    """Most that the allocator took from it."""
    device_total_bytes: int | None
    tree_bytes: int | None
    """Host memory of the training process and all its descendants, now."""
    host_total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossView:
    """The loss so far."""

    step: int
    value: float | None
    """The latest; None where it is not finite."""
    means: tuple[float, ...]
    """Means of windows of equal length, from the first to the last."""
    means_steps: tuple[int, ...]
    """Step at which each of those windows ends."""
    not_finite: int
    first_not_finite: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """An evaluation or a checkpoint."""

    step: int
    took_s: float | None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """Everything that is shown of a run at one moment."""

    name: str
    source: str
    state: State
    reason: str
    age_s: float | None
    """Since any file last grew."""
    ran_s: float | None
    """From the begin of the present attempt to the end of its last step."""
    attempts: int
    world_size: int
    ranks: tuple[RankView, ...]
    step: int | None
    """Of the rank that is furthest behind."""
    total_steps: int | None
    left: TimeLeft | None
    samples_per_s: float | None
    """Of all ranks that are here."""
    steady_samples_per_s: float | None
    memory: MemoryView | None
    loss: LossView | None
    evaluation: Happened | None
    checkpoint: Happened | None
    verdict: Verdict | None
    notes: tuple[str, ...]

    @property
    def first(self) -> RankView | None:
        """The rank with the lowest number, whose parts are shown."""
        return self.ranks[0] if self.ranks else None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come of this attempt."""
        return self.state in ENDED


def live_view(
    run: RunTail, *, now_s: float, is_alive: IsAlive, verdict: Verdict | None = None
) -> LiveView:
    """Lay out what was read so far.

    Args:
        run: The run's files.
        now_s: The time, on the clock they were polled with.
        is_alive: Tells whether the process of an attempt lives, where that can be told.
        verdict: The latest verdict, if there is one.
    """
    files = run.ranks
    ranks = tuple(_rank_view(file, now_s, is_alive) for file in files)
    first = files[0].tail if files else None
    attempt = first.attempt if first else None
    world = max((file.tail.attempt.world_size for file in files if file.tail.attempt), default=1)
    steps = [rank.step for rank in ranks if rank.step is not None]
    state, reason = _state_of(ranks)
    step = min(steps, default=None)
    total = _total_steps(first) if first else None
    return LiveView(
        name=_name(run.source, attempt),
        source=str(run.source),
        state=state,
        reason=reason,
        age_s=min((rank.age_s for rank in ranks if rank.age_s is not None), default=None),
        ran_s=_ran_s(first),
        attempts=first.attempts if first else 0,
        world_size=world,
        ranks=ranks,
        step=step,
        total_steps=total,
        left=None if state in ENDED else _left(files, step, total),
        samples_per_s=known_sum([rank.samples_per_s for rank in ranks]),
        steady_samples_per_s=known_sum([rank.steady_samples_per_s for rank in ranks]),
        memory=_memory(run),
        loss=_loss(first),
        evaluation=_evaluation(first),
        checkpoint=_checkpoint(first),
        verdict=verdict,
        notes=_notes(run, ranks, world),
    )


def recent_run(run: RunTail) -> RunRecord | None:
    """The last steps of every rank as a record for the doctor; None before there is any."""
    records = [file.tail.window() for file in run.ranks]
    if not any(record.steps is not None and len(record.steps) for record in records):
        return None
    if run.outside is not None:
        outside = run.outside.tail.window().readings
        records[0] = replace(records[0], readings=(*records[0].readings, *outside))
    return RunRecord(source=str(run.source), ranks=tuple(records))


def _rank_view(file: FileTail, now_s: float, is_alive: IsAlive) -> RankView:
    tail = file.tail
    table = tail.steps()
    now = last_rows(table)
    assert tail.attempt is not None
    age_s = None if file.changed_at_s is None else max(0.0, now_s - file.changed_at_s)
    state, reason = _rank_state(tail, table, age_s, is_alive)
    parts = parts_of(table, now)
    steady, steady_steps = steady_rate(tail)
    return RankView(
        rank=tail.attempt.rank,
        state=state,
        reason=reason,
        age_s=age_s,
        step=steps_done(tail),
        now_steps=len(now),
        step_s=float(np.median(table.wall_us[now])) / 1e6 if len(now) else None,
        samples_per_s=rate_now(table, now),
        data_share=data_share_of(parts),
        parts=parts,
        steady_samples_per_s=steady,
        steady_steps=steady_steps,
    )


def _rank_state(
    tail: RankTail, table: StepTable, age_s: float | None, is_alive: IsAlive
) -> tuple[State, str]:
    if tail.ending is not None:
        return tail.ending.status, tail.ending.reason
    assert tail.attempt is not None
    alive = is_alive(tail.attempt)
    if alive is False:
        return "killed", f"process {tail.attempt.pid} is gone and wrote no ending"
    longest_s = float((table.wall_us + table.outside_us).max()) / 1e6 if len(table) else 0.0
    if alive is None and age_s is not None and age_s > max(_SILENT_S, _SILENT_STEPS * longest_s):
        return "silent", "killed, stuck, or in a long pause: its file has not grown"
    return "running", ""


def _state_of(ranks: Sequence[RankView]) -> tuple[State, str]:
    """The run's state: over when every rank is, and then as bad as the worst of them."""
    if not ranks:
        return "waiting", "there is no record yet"
    going = [rank for rank in ranks if rank.state not in ENDED]
    if not going:
        worst = max(ranks, key=lambda rank: ENDED.index(rank.state))
        return worst.state, worst.reason
    awake = [rank for rank in going if rank.state == "running"]
    return (awake or going)[0].state, (awake or going)[0].reason


def _ran_s(first: RankTail | None) -> float | None:
    table = first.steps() if first else None
    if table is None or not len(table):
        return None
    return float(table.start_us[-1] + table.wall_us[-1] + table.outside_us[-1]) / 1e6


def _total_steps(tail: RankTail) -> int | None:
    """What the training will take, where its header or a look at its script says so."""
    about: Mapping[str, Any] = tail.attempt.about if tail.attempt else {}
    said = about.get("total_steps")
    if said is None:
        setup = _last(tail.readings("setup"), Setup)
        said = None if setup is None else setup.total_steps
    return said if isinstance(said, int) and said > 0 else None


def _left(files: Sequence[FileTail], step: int | None, total: int | None) -> TimeLeft | None:
    if step is None or total is None:
        return None
    behind = next(file.tail for file in files if steps_done(file.tail) == step)
    return time_left(behind, step, total)


def _memory(run: RunTail) -> MemoryView | None:
    looks = [
        (file.tail.attempt.rank if file.tail.attempt else 0, look)
        for file in run.ranks
        if (look := _last(file.tail.readings("memory"), MemoryReading)) is not None
    ]
    outside = () if run.outside is None else run.outside.tail.readings("memory")
    # The last reading may find the processes gone.
    there = [reading for reading in outside if reading.values.get("tree")]
    host = _last(there or outside, MemoryReading) or (looks[0][1] if looks else None)
    if host is None:
        return None
    devices = [(device, rank) for rank, look in looks for device in look.devices]
    device, rank = max(devices, key=lambda one: one[0].peak_reserved_bytes, default=(None, 0))
    of_rank = f" of rank {rank}" if len(run.ranks) > 1 else ""
    return MemoryView(
        device=None if device is None else f"{device.device}{of_rank}",
        device_peak_bytes=None if device is None else device.peak_reserved_bytes,
        device_total_bytes=None if device is None else device.total_bytes,
        tree_bytes=None if host.tree is None else host.tree.tree_bytes,
        host_total_bytes=host.host_total_bytes,
    )


def _loss(first: RankTail | None) -> LossView | None:
    if first is None or first.loss.last is None:
        return None
    step, value = first.loss.last
    points = [point for point in first.loss.points if math.isfinite(point[1])]
    return LossView(
        step=step,
        value=value if math.isfinite(value) else None,
        means=tuple(mean for _, mean in points),
        means_steps=tuple(at for at, _ in points),
        not_finite=first.loss.missing,
        first_not_finite=first.loss.first_missing,
    )


def _evaluation(first: RankTail | None) -> Happened | None:
    if first is None:
        return None
    event = first.latest.get("evaluation")
    step = max((step for step, _ in first.metrics.values()), default=None)
    if step is None and event is None:
        return None
    return Happened(
        step=event.step if step is None and event else step or 0,
        took_s=None if event is None else event.wall_us / 1e6,
        metrics={
            name: value if math.isfinite(value) else None
            for name, (at, value) in first.metrics.items()
            if at == step
        },
    )


def _checkpoint(first: RankTail | None) -> Happened | None:
    if first is None:
        return None
    event, saved = first.latest.get("checkpoint"), first.saved
    if saved is None and event is None:
        return None
    return Happened(
        step=saved.step if saved else event.step if event else 0,
        took_s=None if event is None else event.wall_us / 1e6,
        path=saved.path if saved else None,
    )


def _notes(run: RunTail, ranks: Sequence[RankView], world: int) -> tuple[str, ...]:
    notes = [*run.trouble, *(note for file in run.ranks for note in file.tail.notes)]
    if ranks and len(ranks) < world:
        notes.append(f"{world - len(ranks)} of {world} ranks have no record yet")
    return tuple(dict.fromkeys(notes))


def _last(readings: Sequence[Reading], record_type: type[Any]) -> Any:
    """The latest reading, typed; None where there is none or it is damaged."""
    if not readings:
        return None
    try:
        return decode(readings[-1], record_type)
    except RecordError:
        return None


def _name(source: Path, attempt: Attempt | None) -> str:
    """The name that the run gave itself, or the last part of where it is."""
    given = attempt.about.get("name") if attempt else None
    return given if isinstance(given, str) and given not in ("", "script") else source.name
