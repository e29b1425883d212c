"""Rules about the time of a logged run: what waits, what lies outside steps, what gets slower.

Shares and bounds are of the run's wall clock without start-up, where the log tells it, so that
they add. Where it does not, the wait for data is bounded within the step.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from pitstop.doctor.logs.case import LogCase
from pitstop.doctor.logs.facts import Mask
from pitstop.doctor.logs.level import Level, begins_anew
from pitstop.doctor.logs.numbers import (
    at_row,
    covered_text,
    spread_text,
    work_text,
)
from pitstop.doctor.logs.statistics import USUAL
from pitstop.doctor.logs.time import is_timed
from pitstop.doctor.rules.remedies import REMEDIES
from pitstop.doctor.thresholds import WORTH_A_WARNING, severity_of
from pitstop.records.run import Array
from pitstop.records.units import change_text, seconds_text, share_text
from pitstop.records.verdict import Bound, Finding

LogRule = Callable[[LogCase], Finding | None]

_SPIKES_SHARE = 0.05
_ONE_SPIKES_SHARE = 0.20
_UNACCOUNTED = 0.20


def data_wait(case: LogCase) -> Finding | None:
    """Report a log whose steps wait for their batch more than a tenth of the time."""
    share, wait, step = case.log.data_share, case.log.data_wait, case.log.step
    if share is None or wait is None or step is None or share < WORTH_A_WARNING:
        return None
    of_run = case.shares.get("data")
    run = () if of_run is None else (f"that is {share_text(of_run)} of {work_text(case.log)}",)
    return Finding(
        code="DATA001",
        severity=severity_of(share),
        summary="the training loop waits for data",
        evidence=(
            f"waiting for data took {share_text(share)} of {covered_text(wait)} "
            "(sum of the waits / sum of the step times)",
            f"wait {spread_text(wait)}",
            f"step {spread_text(step)}",
            *run,
        ),
        bound=Bound(part="data", share=share if of_run is None else of_run),
        remedy=(
            "prepare batches in parallel with the step: more loader workers",
            "make a batch cheaper to prepare: decode only what the crop needs, cache, or pack",
        ),
    )


def epoch_starts(case: LogCase) -> Finding | None:
    """Report a run that spends a tenth of its time on starting its loader for every epoch."""
    return _outside_steps(
        case,
        name="epoch boundary",
        code="DATA002",
        summary="each new epoch stalls the training loop",
    )


def evaluations(case: LogCase) -> Finding | None:
    """Report a run that spends a tenth of its time or more on evaluation."""
    return _outside_steps(
        case,
        name="evaluation",
        code="EVAL001",
        summary="evaluating takes much of the run",
    )


def checkpoints(case: LogCase) -> Finding | None:
    """Report a run that spends a tenth of its time or more on saving."""
    return _outside_steps(
        case,
        name="checkpoint",
        code="CKPT001",
        summary="saving checkpoints takes much of the run",
    )


def start_up(case: LogCase) -> Finding | None:
    """Report a run of which a tenth or more goes by before its steps are steady.

    Judged over the whole training where its end is known: every short log is mostly start-up.
    """
    log = case.log
    if log.run_s is None or not log.start_up_s:
        return None
    left_s = 0.0 if log.eta is None else log.eta.seconds.value
    share = log.start_up_s / (log.run_s + left_s)
    if share < WORTH_A_WARNING:
        return None
    ended = log.total_steps is not None
    left = f" + {seconds_text(left_s)} estimated to be left" if left_s else ""
    return Finding(
        code="START001",
        severity="warning" if ended else "info",
        summary="start-up takes much of the run",
        evidence=(
            f"start-up {seconds_text(log.start_up_s)} = {share_text(share)} of "
            f"{seconds_text(log.run_s)} ({log.run_formula}){left}",
            f"({log.events['start-up'].formula})",
        ),
        # Shares of other findings are of the run without start-up, so this one does not add.
        bound=None,
        remedy=(
            "check what happens before the first step: indexing the dataset, imports, workers, "
            "compiling",
        ),
    )


def gets_slower(case: LogCase) -> Finding | None:
    """Report a run whose later steps take a tenth longer than its earlier ones, or more."""
    level = case.level
    if level is None or level.shape == "constant" or level.ratio <= 1:
        return None
    excess_s = float(np.sum((level.step_s - level.early[1]) * case.facts.weights))
    waited_s = _growth_of_wait_s(case, level)
    grows = (
        "look for what grows with the run: losses kept with their graph, a cache without a "
        "limit, a metric over all steps so far",
        "check the machine during that time: GPU temperature and clocks, other jobs, storage",
    )
    changed = (
        "check what changed there: a resume on another machine, another job on the host, thermal "
        "throttling of the GPU, a stage of the schedule with larger inputs",
    )
    return Finding(
        code="DRIFT001",
        severity="warning",
        summary="the steps get slower as the run goes on",
        evidence=(*_drift_text(case, level), *_growth_of_wait(case, level)),
        bound=_bound_within_steps(case, "drift", excess_s - waited_s),
        remedy=grows if level.shape == "slope" else changed,
    )


def slow_windows(case: LogCase) -> Finding | None:
    """Report a run that loses a twentieth of its time in single records half as slow again."""
    facts, level = case.facts, case.level
    if level is None or facts.step is None or facts.basis != "windows" or begins_anew(facts):
        return None
    if not facts.has_run:
        return None  # what else lies between two records is not known, nor of what it is a share
    step_s = facts.windows.step_s[facts.steady]
    slow = (step_s > USUAL * level.step_s) & (level.step_s > 0)
    lost_s = float(np.sum(((step_s - level.step_s) * facts.weights)[slow]))
    lost = _bound_within_steps(case, "slow windows", lost_s)
    count = int(slow.sum())
    if lost is None or lost.share < (_SPIKES_SHARE if count > 1 else _ONE_SPIKES_SHARE):
        return None
    waited_s = _wait_within_s(case, slow)
    worst = int(np.argmax(np.where(slow, step_s - level.step_s, 0.0)))
    return Finding(
        code="DRIFT002",
        # A single one may be a break that somebody made; it is no pattern.
        severity="warning" if count > 1 else "info",
        summary="some windows of the run are much slower than the rest",
        evidence=(
            f"{count} of {len(step_s)} windows took more than {USUAL:g} times the median step; "
            f"the time beyond it adds up to {seconds_text(lost_s)}, {share_text(lost.share)} of "
            f"{work_text(case.log)}",
            f"the worst, from {at_row(facts, worst)}: {seconds_text(step_s[worst])} a step, "
            f"{step_s[worst] / level.step_s[worst]:.1f} times the usual",
            f"step {spread_text(facts.step)}",
            *(
                (f"{share_text(min(1.0, waited_s / lost_s))} of that is wait for data",)
                if waited_s
                else ()
            ),
        ),
        # What is wait for data belongs to that bound and must not count twice.
        bound=_bound_within_steps(case, "slow windows", lost_s - waited_s),
        remedy=(
            "check what happens at these steps: slow files, storage shared with others, an "
            "evaluation or a save that the log does not mention",
        ),
    )


def unaccounted_time(case: LogCase) -> Finding | None:
    """Report a run with a fifth of its clock in no record: the verdict may miss it."""
    share = case.shares.get("unaccounted")
    time = case.time
    if case.log.run_s is None and time.silent_s > _UNACCOUNTED * (time.train_s or 0.0):
        evidence = (
            f"{seconds_text(time.silent_s)} pass in long silences between records: other work, or "
            "a break between two processes"
        )
    elif share is not None and share >= _UNACCOUNTED:
        evidence = (
            f"{share_text(share)} of {work_text(case.log)} is neither steps at their steady time "
            "nor an event with a known duration"
        )
    else:
        return None
    return Finding(
        code="TIME001",
        severity="warning",
        summary="part of the run is not in the log",
        evidence=(evidence,),
        # What it holds is not known, so neither is what could be gained.
        bound=None,
        remedy=("measure the run itself with `pitstop doctor -- CMD`",),
    )


EVENT_RULES: Final[tuple[LogRule, ...]] = (epoch_starts, evaluations, checkpoints, start_up)
"""Need the run's time, however it is known."""

STEP_RULES: Final[tuple[LogRule, ...]] = (data_wait, gets_slower, slow_windows, unaccounted_time)
"""Need several timed windows."""


def _outside_steps(case: LogCase, *, name: str, code: str, summary: str) -> Finding | None:
    total = case.log.events.get(name)
    if total is None or total.share is None or total.share < WORTH_A_WARNING:
        return None
    timed = [e.wall_us / 1e6 for e in case.facts.rank.events if e.name == name and is_timed(e)]
    low, middle, high = np.quantile(timed, (0.25, 0.5, 0.75), method="inverted_cdf")
    untimed = total.count - total.timed
    more = "1 more is" if untimed == 1 else f"{untimed} more are"
    least = f"; {more} not timed, so this is a lower bound" if untimed else ""
    often = "once" if total.timed == 1 else f"{total.timed} times"
    return Finding(
        code=code,
        # Of a single one it is not known how often it comes, nor, so, its share of a longer run.
        severity=severity_of(total.share) if total.count > 1 or case.facts.is_done else "info",
        summary=summary,
        evidence=(
            f"{name}, {often}: {seconds_text(total.total_s)} = {share_text(total.share)} of "
            f"{work_text(case.log)}{least}",
            f"median {seconds_text(middle)}, IQR {seconds_text(low)} to "
            f"{seconds_text(high)} ({total.formula})",
        ),
        bound=Bound(part=name, share=total.share),
        remedy=REMEDIES[code].code,
    )


def _bound_within_steps(case: LogCase, part: str, lost_s: float) -> Bound | None:
    """Bound the gain of time lost within steps: of the run, else of all steps."""
    whole_s = case.time.work_s or case.time.train_s
    return Bound(part=part, share=min(1.0, max(0.0, lost_s) / whole_s)) if whole_s else None


def _drift_text(case: LogCase, level: Level) -> tuple[str, ...]:
    facts = case.facts
    early, late = seconds_text(level.early[1]), seconds_text(level.late[1])
    formula = "" if facts.step is None else facts.step.formula.partition("; ")[2]
    if level.shape == "slope":
        what = f"{early} a step in the first third of the log, {late} in the last"
    else:
        where = at_row(facts, level.row)
        what = f"{late} a step from {where} on{_resumed(case, level.row)}, {early} before"
    return (
        f"{what}: {change_text(level.ratio - 1)} (medians of {level.early_rows} and "
        f"{level.late_rows} windows; {formula})",
        f"IQR {seconds_text(level.early[0])} to {seconds_text(level.early[2])} and "
        f"{seconds_text(level.late[0])} to {seconds_text(level.late[2])}",
    )


def _resumed(case: LogCase, row: int) -> str:
    attempt = case.facts.windows.attempt[case.facts.steady]
    return " (where the run was resumed)" if row and attempt[row] != attempt[row - 1] else ""


def _waits_s(case: LogCase) -> Array | None:
    """Give the wait for data of every steady window; None where one does not say it."""
    data_s = case.facts.windows.data_s[case.facts.steady]
    return data_s if np.isfinite(data_s).all() else None


def _growth_of_wait(case: LogCase, level: Level) -> tuple[str, ...]:
    """Say how much of a slower step is a longer wait for data, where the log has both."""
    data_s = _waits_s(case)
    if data_s is None:
        return ()
    early, late = float(np.median(data_s[: level.row])), float(np.median(data_s[level.row :]))
    went = f"{seconds_text(early)} to {seconds_text(late)}"
    return (f"the wait for data in it went from {went} (medians)",)


def _growth_of_wait_s(case: LogCase, level: Level) -> float:
    """Of what slower steps took longer, what was wait for data; zero where that is not known."""
    data_s = _waits_s(case)
    if data_s is None:
        return 0.0
    early, late = np.median(data_s[: level.row]), np.median(data_s[level.row :])
    return max(0.0, float(late - early)) * float(case.facts.weights[level.row :].sum())


def _wait_within_s(case: LogCase, slow: Mask) -> float:
    """Of what slow windows took longer, what was wait for data; zero where that is not known."""
    data_s = _waits_s(case)
    if data_s is None:
        return 0.0
    usual_s = float(np.median(data_s))
    return max(0.0, float(np.sum(((data_s - usual_s) * case.facts.weights)[slow])))
