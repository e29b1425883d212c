"""Of a format that no tool defines nothing is stated that its lines do not say by themselves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pitstop.doctor.logs.admit import admit
from pitstop.doctor.logs.examine import examine_log
from pitstop.logs.mentions import mentioned
from pitstop.records.logs.summary import LogSummary
from pitstop.records.logs.windows import ColumnNote
from pitstop.records.run import RankRecord, RunRecord
from tests.unit.doctor.log_tables import PRINTED, event, log_record

REBUILT = {
    **PRINTED,
    "step_s": ColumnNote(meaning="window mean", source="rebuilt", formula="clock"),
}


def authors_own(run: RunRecord, **columns: np.ndarray) -> RankRecord:
    """The record as of lines that no tool defines."""
    rank = run.ranks[0]
    assert rank.windows is not None
    log = replace(rank.windows.log, is_count_defined=False, format="general")
    return replace(rank, windows=replace(rank.windows, log=log, **columns))


def said(rank: RankRecord) -> LogSummary:
    return examine_log(RunRecord(source="own", ranks=(rank,))).summary


def test_counts_totals_events_and_the_run_are_not_stated() -> None:
    found = said(
        authors_own(
            log_record(0.5, total_steps=9000, notes=REBUILT, clock=True, events=[event("x", 60)])
        )
    )
    assert (found.records, found.attempts, found.first_step, found.last_step) == (None,) * 4
    assert (found.total_steps, found.run_s, found.eta) == (None, None, None)
    assert dict(found.events) == {}
    assert found.gaps == ()


def test_an_even_clock_is_stated_and_an_uneven_one_is_not() -> None:
    even = said(authors_own(log_record(0.5, notes=REBUILT))).step
    assert even is not None
    assert even.middle == 0.5
    times = np.linspace(0.1, 4.0, 40)
    assert said(authors_own(log_record(0.5, rows=40, notes=REBUILT), step_s=times)).step is None


def test_drift_and_flat_losses_are_not_judged() -> None:
    slower = log_record([0.5] * 20 + [5.0] * 4, notes=REBUILT, scalars={"loss": [1.0] * 24})
    assert examine_log(slower).verdict.findings != ()
    found = examine_log(RunRecord(source="own", ranks=(authors_own(slower),)))
    assert found.verdict.findings == ()
    assert found.verdict.outcome == "not enough evidence"


def test_a_wait_for_data_within_a_step_is_judged() -> None:
    rank = authors_own(log_record(0.5, data_s=0.2, notes=REBUILT))
    found = examine_log(RunRecord(source="own", ranks=(rank,)))
    assert [one.code for one in found.verdict.findings] == ["DATA001"]


def test_a_format_that_a_tool_defines_loses_nothing() -> None:
    run = log_record(0.5, total_steps=9000, attempt=[0] * 20 + [1] * 20, lr=0.1)
    assert admit(run.ranks[0]) is run.ranks[0]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Peak VRAM 3", "memory"),
        ("took 3", "time of a step"),
        ("Learning Rate 1", "learning rate"),
        ("at 10:31", "timestamps"),
        ("NLL 3.1", "losses"),
        ("loading 3", "wait for data"),
    ],
)
def test_what_is_mentioned_once_in_a_long_file_is_not_absent(
    tmp_path: Path, line: str, what: str
) -> None:
    log = tmp_path / "own.log"
    rest = "x 1 y 2\n" * 400_000  # beyond any sample of the file
    log.write_text(rest)
    assert mentioned(log) == ()
    log.write_text(rest + line + "\n" + rest)
    assert what in mentioned(log)
