"""Rules: what they say of runs whose times are known, judged through real records."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.doctor.facts import Facts, facts_of
from pitstop.doctor.rules.cadence import evaluation, time_outside_steps, unaccounted_time
from pitstop.doctor.rules.catalogue import RULES
from pitstop.doctor.rules.data import data_wait
from pitstop.records.store import read_run
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock

Parts = Mapping[str, int]


def facts_from(
    path: Path, steps: int, parts: Callable[[int], Parts], *, outside_us: int = 0
) -> Facts:
    """Write a run whose parts are given step by step ("" is time in no span) and read it."""
    time = FakeClock()
    path.unlink(missing_ok=True)
    writer = RecordWriter(str(path), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for number in range(steps):
        clock.begin_step()
        for name, us in parts(number).items():
            if name:
                with clock.span(name):
                    time.advance(us)
            else:
                time.advance(us)
        if outside_us:
            with clock.outside_step("evaluation"):
                time.advance(outside_us)
    clock.close()
    writer.close()
    return facts_of(read_run(path).first)


def test_a_run_that_waits_half_its_time_is_starved(tmp_path: Path) -> None:
    facts = facts_from(tmp_path / "r", 100, lambda _: {"data": 5_000, "forward": 5_000})
    finding = data_wait(facts)
    assert finding is not None
    assert (finding.code, finding.severity) == ("DATA001", "critical")
    assert finding.bound is not None
    assert (finding.bound.part, finding.bound.share, finding.bound.speedup) == ("data", 0.5, 2.0)
    assert "50.0% of 90 steps" in finding.evidence[0]
    assert "median wait 5.00 ms" in finding.evidence[1]


@pytest.mark.parametrize(
    ("data_us", "severity"),
    [(0, None), (999, None), (1_000, "warning"), (2_999, "warning"), (3_000, "critical")],
)
def test_a_tenth_is_worth_a_warning_and_three_tenths_are_critical(
    tmp_path: Path, data_us: int, severity: str | None
) -> None:
    facts = facts_from(tmp_path / "r", 50, lambda _: {"data": data_us, "forward": 10_000 - data_us})
    finding = data_wait(facts)
    assert (None if finding is None else finding.severity) == severity


def test_a_run_that_measured_no_wait_is_not_called_free_of_it(tmp_path: Path) -> None:
    facts = facts_from(tmp_path / "r", 50, lambda _: {"forward": 100})
    assert facts.share("data") is None
    assert data_wait(facts) is None


def test_a_slow_warm_up_does_not_count(tmp_path: Path) -> None:
    def parts(number: int) -> Parts:
        return {"data": 900_000 if number < 10 else 10, "forward": 990}

    facts = facts_from(tmp_path / "r", 100, parts)
    assert facts.warm_up_steps == 10
    assert facts.share("data") == 0.01
    assert data_wait(facts) is None


def test_warm_up_takes_at_most_fifty_steps(tmp_path: Path) -> None:
    facts = facts_from(tmp_path / "r", 2_000, lambda _: {"forward": 1})
    assert (facts.warm_up_steps, facts.steps) == (50, 1_950)


def test_time_in_no_span_is_named(tmp_path: Path) -> None:
    finding = unaccounted_time(facts_from(tmp_path / "r", 50, lambda _: {"forward": 75, "": 25}))
    assert finding is not None
    assert finding.code == "TIME001"
    assert finding.evidence == ("25.0% of the wall clock of 45 steps is in no span",)
    assert finding.bound is None, "naming spans makes nothing faster"
    fine = facts_from(tmp_path / "r", 50, lambda _: {"forward": 901, "": 99})
    assert unaccounted_time(fine) is None


def test_an_evaluation_beside_the_steps_is_a_share_of_the_run(tmp_path: Path) -> None:
    facts = facts_from(tmp_path / "r", 50, lambda _: {"forward": 80_000}, outside_us=20_000)
    assert facts.shares() == {"forward": 0.8, "evaluation": 0.2, "unaccounted": 0.0}
    finding = evaluation(facts)
    assert finding is not None
    assert finding.bound is not None
    assert (finding.code, finding.bound.share, finding.bound.speedup) == ("EVAL001", 0.2, 1.25)
    assert finding.evidence[1] == "45 times, one per 1 steps"
    assert time_outside_steps(facts) is None, "it has a rule of its own"


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["data", "forward", "log", ""]), st.integers(1, 10**6)),
        min_size=20,
        max_size=60,
    )
)
def test_shares_are_those_of_the_settled_steps_and_add_up_to_one(
    tmp_path: Path, steps: list[Parts]
) -> None:
    """The oracle adds microseconds by hand, the first tenth left out.

    Steps without any part were not sampled. Their wall clock counts; their parts are estimated.
    """
    facts = facts_from(tmp_path / "r", len(steps), lambda number: steps[number])
    settled = steps[len(steps) // 10 :]
    wall_us = sum(sum(step.values()) for step in settled)
    assert facts.steps == len(settled)
    assert facts.wall_us.sum() + facts.stalled_us == pytest.approx(wall_us)
    shares = facts.shares()
    if all(set(step) - {""} for step in settled):
        for name in shares.keys() - {"unaccounted"}:
            stalled = sum(stall.us for stall in facts.stalls if stall.part == name)
            own = sum(step.get(name, 0) for step in settled) - stalled
            expected = own / (wall_us - facts.stalled_us)
            assert shares[name] == pytest.approx(expected, abs=1e-12)
    if shares:
        assert abs(sum(shares.values()) - 1) <= 1e-9
        assert min(shares.values()) >= -1e-12


def test_no_rule_speaks_of_a_run_that_only_computes(tmp_path: Path) -> None:
    facts = facts_from(tmp_path / "r", 50, lambda _: {"data": 1, "forward": 50, "backward": 99})
    assert [rule(facts) for rule in RULES] == [None] * len(RULES)
