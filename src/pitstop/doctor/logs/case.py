"""Everything the rules ask of one log, worked out once."""

from collections.abc import Mapping
from dataclasses import dataclass

from pitstop.doctor.logs.facts import LogFacts, facts_of_log
from pitstop.doctor.logs.level import Level, level_of
from pitstop.doctor.logs.summary import summarise_log
from pitstop.doctor.logs.time import RunTime, run_time, shares_of_work
from pitstop.records.logs.summary import LogSummary
from pitstop.records.run import RankRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogCase:
    """One log as the rules see it."""

    facts: LogFacts
    log: LogSummary
    time: RunTime
    shares: Mapping[str, float]
    """Of the run without its start-up; empty where its time is not known."""
    level: Level | None
    """Step time as the run goes on; None where the log does not time its steps."""


def case_of(rank: RankRecord, source: str) -> LogCase:
    """Work out a log's facts."""
    facts = facts_of_log(rank, source)
    time = run_time(facts)
    return LogCase(
        facts=facts,
        log=summarise_log(facts),
        time=time,
        shares=shares_of_work(facts, time),
        level=level_of(facts),
    )
