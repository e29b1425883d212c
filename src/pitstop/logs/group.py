"""Which files are of one run, and what they say together.

A run often leaves several files: text and JSON, a bar's output and a table. They are of one run
when their formats differ and either their curves agree or their names belong together. Two files
of one format are never joined: runs from one seed print the same losses at different speeds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pitstop.records.logs.windows import LogSource, WindowTable
from pitstop.records.run import Event, RankRecord, ScalarSeries

_FEWEST_COMMON = 3
_SAME = 2e-3
_AGREE = 0.9
_NAMES = re.compile(r"(?:\.(?:log|txt|json|csv|out|gz|jsonl))+$")
_ANY_RUN = frozenset(("metrics", "scalars", "log", "train", "trainer_state", "stdout", "events"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One file, read."""

    path: Path
    rank: RankRecord
    formats: frozenset[str]


def group(files: Sequence[Read]) -> list[list[Read]]:
    """Put files of one run together; groups stand in the order of their first files."""
    groups: list[list[Read]] = []
    for file in files:
        home = next((members for members in groups if _belongs(file, members)), None)
        if home is None:
            groups.append([file])
        else:
            home.append(file)
    return groups


def _belongs(file: Read, members: list[Read]) -> bool:
    if any(file.formats & other.formats for other in members):
        return False
    return any(_agree(file.rank, other.rank) for other in members) or (
        all(_named_alike(file.path, other.path) for other in members)
        and not any(_agree(file.rank, other.rank) is False for other in members)
    )


def _named_alike(one: Path, other: Path) -> bool:
    first, second = _NAMES.sub("", one.name), _NAMES.sub("", other.name)
    near = one.parent == other.parent or one.parent.parent in (other.parent, other.parent.parent)
    if near and first == second:
        return True
    generic = first in _ANY_RUN or second in _ANY_RUN or "tfevents" in one.name + other.name
    inside = one.parent == other.parent or "vis_data" in (one.parent.name, other.parent.name)
    return near and generic and inside


def _agree(one: RankRecord, other: RankRecord) -> bool | None:
    """Whether curves of both are equal; None where they have too few points in common."""
    points = equal = 0
    for name in one.scalars.keys() & other.scalars.keys():
        first, second = one.scalars[name], other.scalars[name]
        _, here, there = np.intersect1d(first.step, second.step, return_indices=True)
        a, b = first.value[here], second.value[there]
        good = np.isfinite(a) & np.isfinite(b)
        a, b = a[good], b[good]
        points += len(a)
        equal += int((np.abs(a - b) <= _SAME * np.maximum(np.abs(a), np.abs(b)) + 1e-4).sum())
    return equal >= _AGREE * points if points >= _FEWEST_COMMON else None


def join(ranks: Sequence[RankRecord]) -> RankRecord:
    """Join what several formats say of one run; the one that knows most step times leads."""
    ordered = sorted(ranks, key=_knows, reverse=True)
    lead = ordered[0]
    assert lead.windows is not None, "a log's record has a table"
    scalars: dict[str, ScalarSeries] = {}
    for rank in reversed(ordered):
        scalars |= rank.scalars
    events = _joined_events(ordered)
    tables = [rank.windows for rank in ordered[1:] if rank.windows is not None]
    log = _joined_source(lead.windows.log, [table.log for table in tables])
    return replace(
        lead,
        scalars=scalars,
        events=events,
        notes=log.notes,
        windows=replace(_marked(lead, _with_columns(lead.windows, tables), events), log=log),
    )


def _marked(lead: RankRecord, table: WindowTable, events: tuple[Event, ...]) -> WindowTable:
    """Mark the records that hold an evaluation of which another reading knows: its time is in them.

    It comes right before the step that follows it.
    """
    kind = table.kind.copy()
    for event in events:
        if event.name == "evaluation" and event not in lead.events:
            holds = (table.first_step <= event.step + 1) & (event.step + 1 <= table.last_step)
            kind[holds & (table.attempt == event.attempt) & (kind == "train")] = "after eval"
    return replace(table, kind=kind)


def _joined_events(ordered: Sequence[RankRecord]) -> tuple[Event, ...]:
    """Take events of each name from the file that knows most of their durations."""
    names = dict.fromkeys(event.name for rank in ordered for event in rank.events)
    found: list[Event] = []
    for name in names:
        each = [[event for event in rank.events if event.name == name] for rank in ordered]
        found += max(each, key=lambda events: (sum(e.wall_us > 0 for e in events), len(events)))
    return tuple(sorted(found, key=lambda event: (event.attempt, event.step)))


def _with_columns(lead: WindowTable, others: Sequence[WindowTable]) -> WindowTable:
    """Take from other files what the lead does not print, at the records that cover their steps."""
    for name in ("lr", "memory_bytes"):
        there = next((one for one in others if np.isfinite(getattr(one, name)).any()), None)
        if there is None or np.isfinite(getattr(lead, name)).any():
            continue
        values = getattr(there, name)
        known = np.isfinite(values)
        column = np.full(len(lead), np.nan)
        for step, value in zip(there.last_step[known], values[known], strict=True):
            column[(lead.first_step <= step) & (step <= lead.last_step)] = value
        notes = {**lead.columns, name: there.note(name)}
        lead = replace(lead, **{name: column}, columns=notes)
    return lead


def _knows(rank: RankRecord) -> tuple[int, int, int]:
    table = rank.windows
    if table is None:
        return (0, 0, 0)
    return (
        int(np.isfinite(table.step_s).sum()),
        int(np.isfinite(table.data_s).sum() + np.isfinite(table.at_s).sum()),
        len(table),
    )


def _joined_source(lead: LogSource, others: Sequence[LogSource]) -> LogSource:
    every = (lead, *others)

    def first(name: str) -> object:
        return next((v for log in every if (v := getattr(log, name)) is not None), None)

    names = ("batch_size", "batch_size_from", "world_size", "world_size_from", "workers",
             "steps_per_epoch", "total_steps", "total_epochs", "started", "version")  # fmt: skip
    return replace(
        lead,
        format=" + ".join(dict.fromkeys(log.format for log in every)),
        confidence=min(log.confidence for log in every),
        defined_by="; ".join(dict.fromkeys(log.defined_by for log in every)),
        is_count_defined=any(log.is_count_defined for log in every),
        mentions=tuple(dict.fromkeys(name for log in every for name in log.mentions)),
        files=tuple(dict.fromkeys(file for log in every for file in log.files)),
        settings={k: v for log in reversed(every) for k, v in log.settings.items()},
        disagreements=tuple(item for log in every for item in log.disagreements),
        notes=tuple(dict.fromkeys(note for log in every for note in log.notes)),
        **{name: first(name) for name in names},
    )
