"""No number without a second support: what is taken out of a record, and that the rest stays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitstop.doctor.logs.admit import admit, support
from pitstop.doctor.logs.examine import examine_log
from pitstop.logs.mentions import mentioned
from pitstop.logs.read import read_logs
from pitstop.records.logs.summary import LogSummary
from pitstop.records.logs.windows import ColumnNote
from pitstop.records.run import Event, RankRecord, RunRecord
from tests.unit.doctor.log_tables import PRINTED, log_record

COUNTED = {**PRINTED, "last_step": ColumnNote(meaning="last step", source="printed")}
REBUILT = {
    **PRINTED,
    "step_s": ColumnNote(meaning="window mean", source="rebuilt", formula="clock"),
    "last_step": ColumnNote(meaning="last step", source="printed"),
}


def authors_own(run: RunRecord, **columns: np.ndarray) -> RankRecord:
    """The record as of lines that no tool defines."""
    rank = run.ranks[0]
    assert rank.windows is not None
    log = replace(rank.windows.log, is_count_defined=False, format="general")
    return replace(rank, windows=replace(rank.windows, log=log, **columns))


def said(rank: RankRecord) -> LogSummary:
    return examine_log(RunRecord(source="own", ranks=(rank,))).summary


def notes_of(rank: RankRecord) -> str:
    return "\n".join(said(rank).notes)


def test_a_count_alone_is_quoted_and_nothing_follows_from_it() -> None:
    rank = authors_own(log_record(0.5, rows=40, steps=50, total_steps=2000, notes=COUNTED))
    found = said(rank)
    # Its total is reached: one support, and the count may still be of anything.
    assert (found.last_step, found.total_steps) == (None, None)
    assert (found.step, found.rate, found.run_s, found.eta) == (None, None, None, None)
    assert "a count goes from 50 to 2,000; only its total, which is reached" in notes_of(rank)
    assert "time of a step" not in found.gaps


@pytest.mark.parametrize(
    ("given", "supports"),
    [
        ({"notes": REBUILT, "clock": True}, ["the time, which passes evenly"]),
        ({"notes": REBUILT, "scalars": {"loss": [1.0] * 40}}, ["the values of a training"]),
        ({"notes": REBUILT, "lr": 0.1, "total_steps": 2000}, ["the values", "its total"]),
        ({"total_steps": 2001}, ["its total"]),
        ({"total_steps": 2051}, []),
        ({"total_steps": 1999}, []),
        ({"count_name": "iter"}, ["its name"]),
    ],
)
def test_what_supports_a_count(given: dict[str, Any], supports: list[str]) -> None:
    rank = authors_own(log_record(0.5, rows=40, steps=50, **given))
    assert rank.windows is not None
    found = [one for one in support(rank, rank.windows) if given.get("clock") or "time" not in one]
    assert len(found) == len(supports)
    assert all(one.startswith(start) for one, start in zip(found, supports, strict=True))


def test_two_supports_let_steps_and_their_time_through() -> None:
    rank = authors_own(log_record(0.5, notes=REBUILT, clock=True, count_name="iter"))
    found = said(rank)
    assert found.last_step == 2000
    assert found.step is not None
    assert found.step.middle == pytest.approx(0.5)


def test_a_first_count_that_the_next_does_not_follow_is_not_stated() -> None:
    run = log_record(0.5, notes=REBUILT, clock=True, count_name="iter")
    steps = np.arange(1, 41) * 50.0
    assert said(authors_own(run)).first_step == 50
    steps[0] = 8.0  # "Batch: 8" of a head, under the name of the count
    found = said(authors_own(run, last_step=steps, first_step=steps - 7))
    assert (found.first_step, found.last_step) == (None, 2000)


def test_a_total_that_was_never_reached_is_quoted() -> None:
    rank = authors_own(
        log_record(0.5, notes=REBUILT, clock=True, count_name="iter", total_steps=9000)
    )
    found = said(rank)
    assert (found.last_step, found.total_steps, found.eta) == (2000, None, None)
    assert "9,000 is printed as a total; the count never reached it" in notes_of(rank)


def test_an_attempt_that_shows_in_one_way_is_not_counted() -> None:
    run = log_record(0.5, notes=REBUILT, clock=True, count_name="iter", attempt=[0] * 20 + [1] * 20)
    steps = np.tile(np.arange(1, 21) * 50.0, 2)
    again = {"last_step": steps, "first_step": steps - 49}
    found = said(authors_own(run, **again))
    assert (found.attempts, found.run_s) == (None, None)
    assert any("its last step is the least it can be" in note for note in found.notes)
    late = np.arange(1, 41) * 25.0 + np.repeat((0.0, 90_000.0), 20)
    assert said(authors_own(run, **again, at_s=late)).attempts == 2
    epochs = {"epoch": np.tile(np.repeat((1.0, 2.0), 10), 2)}
    assert said(authors_own(run, **again, **epochs)).attempts == 2


def test_the_time_of_a_run_is_the_least_and_shares_are_not_stated() -> None:
    evaluations = [
        Event(
            attempt=0,
            name="evaluation",
            step=step,
            start_us=0,
            wall_us=40_000_000,
            detail={"formula": "x"},
        )
        for step in (500, 1000, 1500)
    ]
    given = {"notes": REBUILT, "clock": True, "count_name": "iter", "events": evaluations}
    found = said(authors_own(log_record(0.5, **given)))
    assert found.run_formula.startswith("at least: ")
    assert found.events["evaluation"].count == 3
    assert found.events["evaluation"].share is None
    start = Event(
        attempt=0, name="start-up", step=1, start_us=0, wall_us=9_000_000, detail={"formula": "x"}
    )
    found = said(authors_own(log_record(0.5, **{**given, "events": [start]})))
    assert dict(found.events) == {}
    defined = examine_log(log_record(0.5, **given)).summary
    assert not defined.run_formula.startswith("at least")
    assert defined.events["evaluation"].share is not None


def test_events_that_come_unevenly_may_not_be_all() -> None:
    def events(*steps: int) -> list[Event]:
        return [
            Event(attempt=0, name="evaluation", step=step, start_us=0, wall_us=0, detail={})
            for step in steps
        ]

    for steps, is_stated in (((500, 1000, 1500), True), ((500, 1000, 1900), False), ((9,), False)):
        rank, _ = admit(authors_own(log_record(0.5, events=events(*steps))))
        assert bool(rank.events) == is_stated


def test_a_format_that_a_tool_defines_loses_nothing() -> None:
    run = log_record(0.5, total_steps=9000, attempt=[0] * 20 + [1] * 20, lr=0.1)
    rank, admission = admit(run.ranks[0])
    assert rank.windows is not None
    assert run.ranks[0].windows is not None
    assert rank.windows.log == run.ranks[0].windows.log
    assert admission.attempts
    assert admission.run


def test_a_hole_among_epochs_leaves_their_number_open(tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    for missing, is_all in ((None, True), (17, False)):
        epochs = [n for n in range(1, 41) if n != missing]
        log.write_text("".join(f"Epoch {n}: train loss {3 / n:.4f}\n" for n in epochs))
        found = examine_log(read_logs([log])[0]).summary
        assert found.records == (40 if is_all else None)


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


def test_flat_epochs_are_not_called_steps(tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    log.write_text("".join(f"Epoch {n}: train loss 0.7{n % 2}\n" for n in range(1, 200)))
    [finding] = [
        one for one in examine_log(read_logs([log])[0]).verdict.findings if one.code == "LOSS002"
    ]
    assert "steps" not in " ".join(finding.evidence)
