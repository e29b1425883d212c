"""What few stack samples divided is reported with its interval, and never called healthy."""

from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.division import division_error, wilson_interval
from pitstop.doctor.examine import examine
from pitstop.records.script import GapShares, HostLine, HostLines
from pitstop.records.verdict import Verdict
from tests.unit.doctor.records import ON_CPU, facts, rank, run_of

SAMPLES = st.integers(1, 2_000)


def gap(share: float, samples: int) -> GapShares:
    shares = {"data": share, "loss": 1 - share}
    return GapShares(before="forward", after="backward", samples=samples, shares=shares)


def found(*gaps: GapShares) -> HostLines:
    return HostLines(samples=500, every_us=5_000, lines=(), gaps=gaps)


def score_root(share: float, samples: int, end: float) -> float:
    """The proportion between a share and 0 or 1 that lies two of its own errors off the share."""
    inside, outside = share, end
    for _ in range(80):
        middle = (inside + outside) / 2
        if abs(share - middle) <= 2 * sqrt(middle * (1 - middle) / samples):
            inside = middle
        else:
            outside = middle
    return inside


@given(st.floats(0, 1), SAMPLES)
def test_the_interval_ends_where_a_proportion_would_be_two_errors_off(
    share: float, samples: int
) -> None:
    low, high = wilson_interval(share, samples)
    assert low == pytest.approx(score_root(share, samples, 0.0), abs=1e-6)
    assert high == pytest.approx(score_root(share, samples, 1.0), abs=1e-6)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1


@given(st.floats(0, 1), SAMPLES, st.integers(2, 10))
def test_more_samples_leave_less_open(share: float, samples: int, times: int) -> None:
    low, high = wilson_interval(share, samples)
    narrow_low, narrow_high = wilson_interval(share, times * samples)
    assert narrow_high - narrow_low < high - low
    assert division_error(gap(share, times * samples), "data", {}) < division_error(
        gap(share, samples), "data", {}
    )


@pytest.mark.parametrize("samples", [5, 8, 15, 40, 150])
def test_two_errors_hold_the_truth_19_times_in_20(samples: int) -> None:
    """By the exact probability of every count that can be drawn."""
    held = []
    for truth in np.linspace(0.02, 0.98, 97):
        covered = 0.0
        for count in range(samples + 1):
            share = count / samples
            error = division_error(gap(share, samples), "data", {})
            if abs(share - truth) <= 2 * error:
                covered += comb(samples, count) * truth**count * (1 - truth) ** (samples - count)
        held.append(covered)
    assert np.mean(held) > 0.95
    assert min(held) > 0.90


@given(st.floats(0.05, 0.95), st.integers(5, 300), st.integers(0, 2**32 - 1))
def test_the_interval_of_a_simulated_run_holds_the_share_of_its_gap(
    truth: float, samples: int, seed: int
) -> None:
    """Of two hundred runs of one script, whose gap is half of a step."""
    drawn = np.random.default_rng(seed).binomial(samples, truth, 200) / samples
    held = [
        abs(share - truth) <= 2 * division_error(gap(share, samples), "data", {}) for share in drawn
    ]
    assert np.mean(held) > 0.80  # nine of ten at least, less four errors of two hundred runs


def divided(samples: int, *, data: int = 300, rest: int = 700, **others: int) -> Verdict:
    """A run with as much data as loss, both out of one gap."""
    parts = {"forward": rest, "data": data, "loss": data, "backward": rest, **others}
    return examine(run_of(rank(parts, readings=[ON_CPU, found(gap(0.5, samples))])))


def test_a_finding_says_how_many_samples_it_rests_on_and_is_less_sure() -> None:
    verdict = divided(8)
    finding = verdict.findings[0]
    assert (finding.code, finding.confidence) == ("DATA001", "low")
    assert "divided by 8 stack samples: data takes 6.3% to 23.7% of the time" in finding.doubts[0]
    assert "15.0% ± 4.3%" in finding.evidence[0]
    assert finding.bound is not None
    assert finding.bound.error == pytest.approx(0.3 * 0.1443, rel=0.01)
    assert verdict.message.endswith(finding.doubts[0])


def test_many_samples_leave_nothing_open() -> None:
    verdict = divided(5_000)
    assert (verdict.findings[0].code, verdict.findings[0].confidence) == ("DATA001", "high")
    assert "uncertain" not in verdict.message


@pytest.mark.parametrize(("samples", "outcome"), [(6, "not enough evidence"), (5_000, "healthy")])
def test_healthy_is_not_said_where_the_interval_reaches_over_the_limit(
    samples: int, outcome: str
) -> None:
    verdict = divided(samples, data=100)
    assert verdict.outcome == outcome
    assert verdict.findings == ()
    if outcome != "healthy":
        assert "divided by 6 stack samples: data takes" in verdict.message
        assert "measure more steps" in verdict.message


@pytest.mark.parametrize("samples", [5, 5_000])
def test_a_part_that_may_be_larger_than_the_bottleneck_is_named_with_it(samples: int) -> None:
    parts = {"forward": 600, "data": 100, "loss": 800, "backward": 600, "optimizer": 1_000}
    gaps = found(gap(0.11, samples))
    verdict = examine(run_of(rank(parts, readings=[ON_CPU, gaps])))
    assert verdict.primary == "OPT001"
    assert ("uncertain: the time between forward and backward" in verdict.message) == (samples == 5)


def test_steps_that_were_divided_by_fewer_samples_make_a_part_less_sure() -> None:
    """The first half of the run had no division yet: all of the gap was called loss."""
    early, late = np.repeat([0.0, 500.0], 60), np.repeat([1_000.0, 500.0], 60)
    parts = {"forward": 500, "data": early, "loss": late, "backward": 500}
    seen = facts(parts, steps=120, readings=[found(gap(0.5, 100_000))])
    share = seen.share("data") or 0.0
    assert share < 0.24
    assert seen.division_error("data") == pytest.approx(0.25 - share, rel=0.05)
    # A part that has time of its own besides the gap's ends with another share: nothing is known.
    waits = {"forward": 500, "data": 500 + early, "loss": late, "backward": 500}
    other = facts(waits, steps=120, readings=[found(gap(0.5, 100_000))])
    assert other.division_error("data") < 0.01


def test_a_run_without_divided_gaps_is_as_sure_as_its_steps() -> None:
    seen = facts({"forward": 500, "data": 500}, readings=[found()])
    assert seen.division_error("data") == 0.0
    assert seen.share_error("data") == seen.steps_error("data")


def on_loss(samples: int) -> Verdict:
    """A run whose time between forward and backward was not divided and is called loss."""
    line = HostLine(
        part="loss", file="a.py", line=1, function="f", text="", samples=samples, calls=None
    )
    lines = HostLines(samples=13, every_us=5_000, lines=(line,))
    parts = {"forward": 200, "loss": 600, "backward": 200}
    return examine(run_of(rank(parts, readings=[ON_CPU, lines])))


def test_a_loss_that_no_sample_saw_is_stated_with_reservation() -> None:
    doubted, seen = on_loss(1), on_loss(5)
    assert [verdict.findings[0].code for verdict in (doubted, seen)] == ["LOSS001", "LOSS001"]
    assert "1 stack sample found the loss being computed" in doubted.message
    assert doubted.findings[0].confidence == "low"
    assert "stack sample" not in seen.message
