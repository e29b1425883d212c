"""From the record of a foreign log to its verdict: every rule asked, the gain bounded."""

from collections.abc import Mapping
from typing import Final

from pitstop.doctor.estimate.combine import combined_bound, cumulative_gains
from pitstop.doctor.logs.case import LogCase, case_of
from pitstop.doctor.logs.rules import EVENT_RULES, STEP_RULES, data_wait
from pitstop.doctor.logs.signs import SIGN_RULES, host_memory_fills, losses_not_finite
from pitstop.doctor.logs.summary import untimed_text
from pitstop.doctor.logs.time import share_beside_steps
from pitstop.doctor.order import is_fatal, outcome_of, share_of
from pitstop.doctor.rules.catalogue import ENTRIES
from pitstop.errors import RecordError
from pitstop.records.logs.summary import LogExamination
from pitstop.records.run import RunRecord
from pitstop.records.units import share_text, speedup_text
from pitstop.records.verdict import Finding, Severity, Verdict

LOG_NAMES: Final[Mapping[str, str]] = {
    "DRIFT001": "getting slower",
    "DRIFT002": "slow in windows",
    "LOSS002": "not learning",
    "LR001": "learning rate constant",
    "START001": "slow to start",
    "UNIT001": "mislabelled",
}
"""What a run is called whose primary finding is one that only logs have."""

_FEWEST_WINDOWS = 5
_LEAST_SHARE = 0.1
_WEIGHT: dict[Severity, int] = {"critical": 2, "warning": 1, "info": 0}


def examine_log(record: RunRecord) -> LogExamination:
    """Judge a run by its log alone.

    Raises:
        RecordError: The record was not read from a foreign log.
    """
    return examine_case(case_of_log(record))


def case_of_log(record: RunRecord) -> LogCase:
    """Work out the facts of a log's record.

    Raises:
        RecordError: The record was not read from a foreign log.
    """
    rank = next((rank for rank in record.ranks if rank.windows is not None), None)
    if rank is None:
        raise RecordError(f"{record.source} is a measured run, not a log of another tool")
    return case_of(rank, record.source)


def examine_case(case: LogCase) -> LogExamination:
    """Run every rule, order what they found, and sum it up."""
    enough = case.log.step is not None and case.log.step.windows >= _FEWEST_WINDOWS
    rules = (*EVENT_RULES, *(STEP_RULES if enough else ()), *SIGN_RULES)
    if not case.facts.is_defined:
        rules = (data_wait, losses_not_finite, host_memory_fills)  # what lines say by themselves
    found = [finding for rule in rules if (finding := rule(case)) is not None]
    findings = tuple(sorted(found, key=_order))
    primary = next((one for one in findings if one.severity != "info"), None)
    log, hours = case.log, _whole_run_hours(case)
    is_known = share_beside_steps(case.facts, case.time) < _LEAST_SHARE
    outcome = outcome_of(primary, enough=enough and is_known and case.facts.is_defined)
    verdict = Verdict(
        outcome=outcome,
        verdict=_name(primary) if primary and outcome == "bottleneck" else outcome,
        message=_message(primary, case, enough=enough),
        findings=findings,
        primary=None if primary is None else primary.code,
        shares=case.shares,
        combined_bound=combined_bound(findings),
        cumulative_gains=cumulative_gains(findings, whole_run_hours=hours),
        whole_run_hours=hours,
        steps=0 if log.step is None else log.step.steps or 0,
        rank=case.facts.rank.rank,
        start_up_s=log.start_up_s or None,
        notes=log.notes,
    )
    settings = case.facts.windows.log.settings
    return LogExamination(summary=log, verdict=verdict, settings=settings)


def _order(finding: Finding) -> tuple[int, float]:
    """Critical ones without a bound are no question of speed and come first."""
    weight = 3 if is_fatal(finding) else min(1, _WEIGHT[finding.severity])
    return -weight, -share_of(finding)


def _name(finding: Finding) -> str:
    return LOG_NAMES.get(finding.code) or ENTRIES[finding.code].name


def _message(primary: Finding | None, case: LogCase, *, enough: bool) -> str:
    step = case.log.step
    if primary is not None:
        gain = None if primary.bound is None else primary.bound.speedup
        most = (
            "" if gain is None else f"; fixing it makes the run up to {speedup_text(gain)} faster"
        )
        return f"{primary.summary}{most}"
    if step is None or not case.facts.is_defined:
        return untimed_text(case.facts)
    if not enough:
        timed = "1 timed record is" if step.windows == 1 else f"{step.windows} timed records are"
        return f"{timed} too few to judge; {_FEWEST_WINDOWS} are needed"
    beside = share_beside_steps(case.facts, case.time)
    if beside >= _LEAST_SHARE:
        return (
            f"steps at their usual time leave {share_text(beside)} of the time from record to "
            "record; what that is the log does not tell"
        )
    return f"no bottleneck of 10% or more in this log, in {step.windows} windows"


def _whole_run_hours(case: LogCase) -> float | None:
    log = case.log
    if log.run_s is None or log.total_steps is None or not case.facts.has_run:
        return None
    if log.eta is not None:
        return (log.run_s + log.eta.seconds.value) / 3600
    return log.run_s / 3600 if case.facts.is_done else None
