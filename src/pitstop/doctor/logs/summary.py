"""From a log's facts to its summary: how fast, in samples, and what the log does not tell."""

from typing import Final

import numpy as np

from pitstop.doctor.logs.facts import LogFacts, is_loss, origin
from pitstop.doctor.logs.statistics import quartiles
from pitstop.doctor.logs.time import eta_of, event_totals, run_time
from pitstop.logs.memory_lines import HOST
from pitstop.records.logs.summary import LogSummary, Steady
from pitstop.records.logs.windows import (
    APART,
    COLUMNS,
    THINNED,
    FieldQuote,
    LineKind,
    finite_or_none,
)
from pitstop.records.units import seconds_text

_LEAST_SAMPLES = 0.9
_MOST_TAGS = 12
_MAY_BE_A_TIME = ("time of a step", "wait for data")
_GAPS: Final = {
    "at_s": "timestamps",
    "step_s": "time of a step",
    "data_s": "wait for data",
    "memory_bytes": "memory",
}
_ELSEWHERE: Final = {
    "memory": "memory",
    "a loss": "losses",
    "a learning": "learning rate",
    "a timestamp": "timestamps",
}
"""By words of the reason why something was not understood: it is in the log."""
_DOUBTS: Final = frozenset({"clock went back", "steps went back"})
_NOT_UNDERSTOOD = "not understood: "
_NEVER_IN_A_LOG = "forward, backward and optimizer separately, gradient sync, GPU use"


def summarise_log(facts: LogFacts) -> LogSummary:
    """Sum up a log; every number says where it comes from."""
    table = facts.windows
    log = table.log
    time = run_time(facts)
    events = event_totals(facts, time)
    rate = rate_of(facts)
    return LogSummary(
        source=facts.source,
        format=log.format,
        confidence=log.confidence,
        defined_by=log.defined_by,
        version=log.version,
        records=len(table) if facts.is_defined and APART not in log.notes else None,
        attempts=len(np.unique(table.attempt)) if facts.is_one_run else None,
        first_step=facts.first_step,
        last_step=facts.last_step,
        total_steps=facts.end_step,
        batch_size=log.batch_size,
        batch_size_from=log.batch_size_from,
        world_size=log.world_size,
        world_size_from=log.world_size_from,
        step=facts.step,
        rate=rate,
        rate_gap=None if rate is not None else _rate_gap(facts),
        data_wait=facts.data_wait,
        data_share=facts.data_share,
        run_s=time.run_s,
        run_formula=time.formula,
        start_up_s=time.start_up_s,
        events=events,
        eta=eta_of(facts, time, events),
        meanings={name: table.columns[name] for name in COLUMNS if name in table.columns},
        gaps=_gaps(facts) if facts.is_defined else (),
        quoted=log.quoted or (() if facts.is_defined else _of_curves(facts)),
        unquoted=log.unquoted,
        notes=_notes(facts),
    )


def rate_of(facts: LogFacts) -> Steady | None:
    """Samples/s at steady state: from batch and step time, else as printed."""
    if facts.basis == "windows" and (computed := computed_rate(facts)) is not None:
        return computed
    return printed_rate(facts) or computed_rate(facts)


def computed_rate(facts: LogFacts, *, ranks: int | None = None) -> Steady | None:
    """Samples of a step over its time, on all ranks where their number is known.

    Args:
        facts: The log.
        ranks: Count this many ranks instead of what the log says.
    """
    step, log = facts.step, facts.windows.log
    if step is None or log.batch_size is None or step.low <= 0:
        return None
    world = ranks or log.world_size
    samples = log.batch_size * (world or 1)
    each = f" x {world} ranks" if world is not None and world > 1 else ""
    scope = "" if world is not None else ", of one rank: the number of ranks is not in the log"
    return Steady(
        low=samples / step.high,
        middle=samples / step.middle,
        high=samples / step.low,
        unit="samples/s",
        windows=step.windows,
        steps=step.steps,
        formula=f"{log.batch_size} samples{each} / {seconds_text(step.middle)} a step{scope}",
    )


def printed_rate(facts: LogFacts) -> Steady | None:
    """Samples/s as the log prints them, over the steady rows, else over whole epochs."""
    steady = facts.steady_of("samples_per_s", "samples/s")
    if steady is not None:
        # Less than a sample in each step: one of the two is something else.
        is_whole = facts.step is None or steady.middle * facts.step.middle > _LEAST_SAMPLES
        return steady if is_whole else None
    table = facts.windows
    rows = table.of_kind("epoch") & np.isfinite(table.samples_per_s)
    count = int(rows.sum())
    if not count:
        return None
    low, middle, high = quartiles(table.samples_per_s[rows], np.ones(count))
    return Steady(
        low=low,
        middle=middle,
        high=high,
        unit="samples/s",
        windows=count,
        steps=None,
        formula=f"median of {count} epochs; {origin(table.note('samples_per_s'))}",
    )


def _notes(facts: LogFacts) -> tuple[str, ...]:
    """What the reader noted, and where the log contradicts itself in ways no rule speaks of."""
    log = facts.windows.log
    doubts = [one.message for one in log.disagreements if one.code in _DOUBTS]
    return tuple(dict.fromkeys((*doubts, *log.notes, *facts.rank.notes)))


def _rate_gap(facts: LogFacts) -> str:
    if facts.step is None:
        return untimed_text(facts)
    return "give --batch-size: samples of one optimizer step on one rank"


def _of_curves(facts: LogFacts) -> tuple[LineKind, ...]:
    """Quote what an event file holds, by its tags; of thinned curves the points are not counted."""
    fields = tuple(
        FieldQuote(
            name=name,
            role="loss" if is_loss(name) else "value",
            unit="",
            lines=len(series.value),
            first=finite_or_none(series.value[0]),
            last=finite_or_none(series.value[-1]),
        )
        for name, series in facts.rank.scalars.items()
        if len(series.value)
    )
    if not fields or any(note.startswith(THINNED) for note in facts.windows.log.notes):
        return ()
    most = max(one.lines for one in fields)
    others = tuple(one.name for one in fields[_MOST_TAGS:])
    return (LineKind(example="", lines=most, phase="", fields=fields[:_MOST_TAGS], others=others),)


def untimed_text(facts: LogFacts) -> str:
    """Say why no step time is known, or none is judged."""
    if not facts.is_defined:
        return "no tool defines this format: what its lines print is quoted, not judged"
    table = facts.windows
    doubts = any(note.startswith(_NOT_UNDERSTOOD) for note in table.log.notes)
    reasons = (
        (table.of_kind("doubtful").any(), "the log's times contradict themselves"),
        (
            np.isfinite(table.step_s[table.is_steady]).any(),
            "fewer than three windows of the log time steps alone",
        ),
        (
            np.isfinite(table.printed_step_s).any(),
            "each record may hold an evaluation, a checkpoint or the start of an epoch",
        ),
        (doubts, "no time of a step was understood in the log"),
    )
    return next((text for holds, text in reasons if holds), "the log does not time its steps")


def _gaps(facts: LogFacts) -> tuple[str, ...]:
    table = facts.windows
    missing = [
        name for column, name in _GAPS.items() if not np.isfinite(getattr(table, column)).any()
    ]
    if np.isfinite(table.printed_step_s).any():
        missing = [name for name in missing if name != "time of a step"]
    if not len(facts.learning_rates[0]):
        missing.append("learning rate")
    if not facts.rank.scalars:
        missing.append("losses")  # any curve may be one, whatever it is called
    doubts = [note for note in table.log.notes if note.startswith(_NOT_UNDERSTOOD)]
    if doubts:
        # A time that was not understood may be either: it is in the notes, not among the missing.
        missing = [name for name in missing if name not in _MAY_BE_A_TIME]
    if HOST in facts.rank.scalars:
        missing = [name for name in missing if name != "memory"]
    reasons = [note.rsplit("(", 1)[-1] for note in doubts]
    for word, name in _ELSEWHERE.items():
        if any(word in reason for reason in reasons):
            missing = [one for one in missing if one != name]
    return (*(name for name in missing if name not in table.log.mentions), _NEVER_IN_A_LOG)
