"""How long a logged run took, what of it was outside steps, and what is left."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pitstop.doctor.logs.facts import LogFacts, covered_steps, row_weights
from pitstop.doctor.logs.statistics import middle_of, quartiles
from pitstop.records.logs.summary import Eta, EventTotal
from pitstop.records.logs.windows import TRAINING, Kind, WindowTable
from pitstop.records.quantity import Estimated
from pitstop.records.run import Array, Event
from pitstop.records.units import seconds_text, share_text

_FEWEST_FOR_A_TREND = 9
_LEAST_ERROR = 0.01  # of the estimate: a step time that is printed in few digits has no spread
_BY_CLOCK = "first timestamp to last record"
_FROM_RECORDS = "at least: from the first record of each attempt to its last"
_BREAK_S = 600.0
_BREAK_TIMES = 10.0
_RECURRING = ("evaluation", "checkpoint", "epoch boundary")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Wall clock of a run, as far as its log tells."""

    run_s: float | None
    """All of it, start-up too."""
    formula: str
    train_s: float | None
    """All training steps at their steady time; what they took beyond it lies outside steps."""
    start_up_s: float
    """Of ``run_s``, known to have gone by before the steps were steady."""
    silent_s: float = 0.0
    """Much longer than usual between two records, for what the log does not tell: in all."""

    @property
    def work_s(self) -> float | None:
        """The run without its start-up, of which shares are taken: a longer run has more of it."""
        if self.run_s is None:
            return None
        work_s = self.run_s - self.start_up_s
        return work_s if work_s > 0 else None


def run_time(facts: LogFacts) -> RunTime:
    """Take the run's time from the log's clock, else add up steps and timed events."""
    train_s = _train_s(facts)
    run_s, is_whole = _clock_s(facts.windows, from_record=not facts.has_run)
    formula = _BY_CLOCK if is_whole else _FROM_RECORDS
    silent_s = _silent_s(facts.windows)
    if silent_s:
        run_s = None  # the run, or a night between two processes: the log does not tell
    if not facts.is_one_run:
        run_s = train_s = None  # several runs write into the file: the clock is of them all
    if run_s is None and train_s is not None:
        apart_s = sum(_apart_s(event, facts.windows) for event in facts.rank.events)
        run_s, formula = train_s + apart_s, "at least: steps at their steady time + timed events"
    starts = [event for event in facts.rank.events if event.name == "start-up" and is_timed(event)]
    return RunTime(
        run_s=run_s,
        formula="" if run_s is None else formula,
        train_s=train_s,
        start_up_s=sum(event.wall_us for event in starts) / 1e6,
        silent_s=silent_s,
    )


def _apart_s(event: Event, windows: WindowTable) -> float:
    """Seconds that an event adds to steps at their steady time; none where they may hold it.

    What one format times, the clock of another may hold as well, unless its records are marked.
    """
    is_of_two = " + " in windows.log.format and windows.note("step_s").source == "rebuilt"
    holds = (windows.first_step <= event.step + 1) & (event.step + 1 <= windows.last_step)
    if not is_timed(event) or (is_of_two and (windows.kind[holds] == "train").any()):
        return 0.0
    return event.wall_us / 1e6


def is_timed(event: Event) -> bool:
    """Whether the log tells how long an event took."""
    return "formula" in event.detail


def event_totals(facts: LogFacts, time: RunTime) -> dict[str, EventTotal]:
    """Sum up the time outside steps, by name."""
    names = dict.fromkeys(event.name for event in facts.rank.events)
    return {
        name: _total([event for event in facts.rank.events if event.name == name], facts, time)
        for name in names
    }


def shares_of_work(facts: LogFacts, time: RunTime) -> dict[str, float]:
    """Split the run after start-up: wait for data, other step time, time outside steps, the rest.

    The shares add up to one. Without the run's time nothing is known of its shares.
    """
    if not time.work_s or time.train_s is None or not facts.has_run:
        return {}
    outside = {name: total.total_s for name, total in event_totals(facts, time).items()}
    parts = {name: s for name, s in outside.items() if s > 0 and name != "start-up"}
    share = facts.data_share
    if share is None:
        parts = {"steps": time.train_s, **parts}
    else:
        data_s = time.train_s * share
        parts = {"data": data_s, "rest of the steps": time.train_s - data_s, **parts}
    # Rounded prints may add up to a little more than the clock shows.
    whole_s = max(time.work_s, sum(parts.values()))
    shares = {name: total_s / whole_s for name, total_s in parts.items()}
    return {**shares, "unaccounted": max(0.0, 1 - sum(shares.values()))}


def share_beside_steps(facts: LogFacts, time: RunTime) -> float:
    """Share of the time from record to record that steps do not take, where no part of it is known.

    It may be evaluations or checkpoints that nobody timed, or steps that differ.
    """
    if facts.has_run or not time.run_s or time.train_s is None:
        return 0.0
    # At their usual time: a record that holds an evaluation unseen is no slow step.
    covered, step = covered_steps(facts.windows, facts.training), facts.step
    usual_s = time.train_s if covered is None or step is None else covered * step.middle
    return max(0.0, 1 - min(time.train_s, usual_s) / time.run_s)


def eta_of(facts: LogFacts, time: RunTime, events: Mapping[str, EventTotal]) -> Eta | None:
    """Estimate what is left from recent step times; None when these or the end are not known."""
    left = facts.steps_left
    recent, early = _thirds(facts)
    if left is None or recent is None or facts.is_done or not facts.is_one_run:
        return None
    if time.silent_s and time.run_s is None:
        return None  # what else the run does between its steps is not known
    values, weights = recent
    low, _, high = quartiles(values, weights)
    middle, usual = middle_of(values, weights)
    whole = facts.step
    assert whole is not None
    known = _recurring_share(time, events)
    outside = max(known, _outside_share(time))
    seconds = left * middle * (1 + outside)
    which = "median" if usual is None else "mean"
    error = left * (1 + outside) * max((high - low) / 2, abs(middle - whole.middle))
    error += _longest_event_s(events) + left * middle * (outside - known) / 2
    before = 0.0 if early is None else middle_of(*early)[0]
    return Eta(
        steps=left,
        seconds=Estimated(value=seconds, unit="s", error=max(error, _LEAST_ERROR * seconds)),
        formula=_eta_text(left, middle, f"{which} of the last {len(values)} windows", outside),
        trend=middle / before if before else None,
        is_least=time.formula != _BY_CLOCK,
    )


def _train_s(facts: LogFacts) -> float | None:
    step = facts.step
    if step is None or facts.counts_the_least:
        return None
    rows = facts.training | facts.steady if facts.basis == "windows" else facts.steady
    if not np.isfinite(facts.windows.steps[rows]).all():
        return None
    # What else a row holds is an event's; a row faster than the steady ones was as fast as it was.
    known_s = np.where(facts.steady, np.inf, step.middle)
    step_s = np.fmin(facts.windows.step_s, known_s)
    return float(np.sum((step_s * row_weights(facts.windows))[rows]))


def _clock_s(table: WindowTable, *, from_record: bool) -> tuple[float | None, bool]:
    """Add up an attempt's records on the log's clock; a clock set back loses one record, no more.

    The first attempt began at the log's first timestamp, unless other processes may have written
    before its first record. Later ones began where the steps of their first record did.

    Returns:
        The time, and whether all such beginnings are known.
    """
    total_s, is_whole = 0.0, True
    for number in np.unique(table.attempt):
        rows = np.flatnonzero((table.attempt == number) & np.isfinite(table.at_s))
        if not len(rows):
            continue
        total_s += float(np.sum(np.maximum(0.0, np.diff(table.at_s[rows]))))
        first = int(rows[0])
        is_first = number == 0 and not from_record
        begins_s = float(table.at_s[first]) if is_first else _covered_s(table, first)
        is_whole = is_whole and (is_first or (begins_s > 0 and not from_record))
        total_s += begins_s
    return (total_s if total_s > 0 else None), is_whole


def _silent_s(table: WindowTable) -> float:
    """Add up where much more time than usual passes before a record, and nothing says for what."""
    kinds: tuple[Kind, ...] = ("train", "epoch")
    rows = np.flatnonzero(table.of_kind(*TRAINING, "epoch") & np.isfinite(table.at_s))
    spent_s = np.diff(table.at_s[rows])
    spent_s = np.where(np.diff(table.attempt[rows]) > 0, 0.0, spent_s)
    usual_s = float(np.quantile(spent_s, 0.5, method="lower")) if len(spent_s) else 0.0
    is_long = spent_s > max(_BREAK_TIMES * usual_s, _BREAK_S)
    covered = table.steps[rows[1:]]
    if np.isfinite(covered).any():
        is_long &= ~(covered > _BREAK_TIMES * np.nanmedian(covered))  # lines are missing there
    return float(np.sum(spent_s[is_long & table.of_kind(*kinds)[rows[1:]]]))


def _covered_s(table: WindowTable, row: int) -> float:
    covered_s = float(table.steps[row] * table.step_s[row])
    return covered_s if np.isfinite(covered_s) and covered_s > 0 else 0.0


def _total(events: list[Event], facts: LogFacts, time: RunTime) -> EventTotal:
    timed = [event for event in events if is_timed(event)]
    total_s = sum(event.wall_us for event in timed) / 1e6
    whole_s = time.run_s if events[0].name == "start-up" else time.work_s
    formulas = dict.fromkeys(str(event.detail["formula"]) for event in timed)
    return EventTotal(
        count=len(events),
        timed=len(timed),
        total_s=total_s,
        share=min(1.0, total_s / whole_s) if timed and whole_s and facts.has_run else None,
        formula="; ".join(formulas),
    )


def _thirds(
    facts: LogFacts,
) -> tuple[tuple[Array, Array] | None, tuple[Array, Array] | None]:
    """Times and weights of the last third of the steady rows, and of the first."""
    values = facts.windows.step_s[facts.steady]
    if len(values) < 3:
        return None, None
    third = max(1, len(values) // 3)
    recent = values[-third:], facts.weights[-third:]
    if len(values) < _FEWEST_FOR_A_TREND:
        return recent, None
    return recent, (values[:third], facts.weights[:third])


def _recurring_share(time: RunTime, events: Mapping[str, EventTotal]) -> float:
    apart_s = sum(events[name].total_s for name in _RECURRING if name in events)
    return apart_s / time.train_s if time.train_s else 0.0


def _outside_share(time: RunTime) -> float:
    """What the run took beyond its steps by the clock, however much of that is known."""
    if time.work_s is None or not time.train_s or time.formula != _BY_CLOCK:
        return 0.0
    return max(0.0, time.work_s / time.train_s - 1)


def _longest_event_s(events: Mapping[str, EventTotal]) -> float:
    """One evaluation or save more or less may lie ahead than its share so far says."""
    found = [events[name] for name in _RECURRING if name in events]
    return max((total.total_s / total.timed for total in found if total.timed), default=0.0)


def _eta_text(left: int, step_s: float, how: str, outside: float) -> str:
    steps = f"{left:,} steps x {seconds_text(step_s)} ({how})"
    more = "evaluations, checkpoints, epoch starts and the like as so far"
    return f"{steps} + {share_text(outside)} for {more}" if outside else steps
