"""Which finding comes first does not depend on luck: resampled runs agree, near ones are equal."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pitstop.doctor.examine import examine
from pitstop.doctor.order import equals_of, half_width, is_about_equal, ordered, primary_of
from pitstop.doctor.rules.catalogue import CATALOGUE
from pitstop.records.run import RankRecord
from pitstop.records.verdict import Bound, Finding, Verdict
from tests.unit.doctor.records import noisy, rank, run_of

STEPS = 220


def finding(code: str, share: float, *, part: str | None = None, error: float = 0.0) -> Finding:
    return Finding(
        code=code,
        severity="warning",
        summary="",
        evidence=(),
        bound=Bound(part=part or code, share=share, error=error),
        remedy=(),
    )


def resampled(record: RankRecord, seed: int) -> RankRecord:
    """Draw the steps of a run anew, as another run of the same script would have them."""
    table = record.steps
    assert table is not None
    rows = np.random.default_rng(seed).integers(0, len(table), len(table))
    return replace(
        record,
        steps=replace(
            table,
            wall_us=table.wall_us[rows],
            host_us=table.host_us[rows],
            samples=table.samples[rows],
        ),
    )


def bounded(verdict: Verdict) -> dict[str, Finding]:
    return {one.code: one for one in verdict.findings if one.bound is not None}


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(1_500, 6_000),
    st.floats(3_000, 9_000),
    st.floats(4_500, 9_000),
    st.floats(0.05, 0.8),
)
def test_three_runs_agree_in_the_order_of_what_differs_by_more_than_its_interval(
    seed: int, data_us: float, update_us: float, loss_us: float, spread: float
) -> None:
    parts = {
        "data": noisy(data_us, STEPS, seed, spread),
        "optimizer": noisy(update_us, STEPS, seed + 1, spread),
        "loss": noisy(loss_us, STEPS, seed + 2, spread),
        "forward": noisy(3_000, STEPS, seed + 3),
    }
    record = rank(parts, steps=STEPS)
    verdicts = [examine(run_of(resampled(record, seed + number))) for number in range(3)]
    found = [bounded(verdict) for verdict in verdicts]
    shared = sorted(set.intersection(*(set(one) for one in found)))
    for number, first in enumerate(shared):
        for second in shared[number + 1 :]:
            equal = [is_about_equal(one[first], one[second]) for one in found]
            before = {list(one).index(first) < list(one).index(second) for one in found}
            if len(set(equal)) == 1:
                assert len(before) == 1, "different in all three, or equal in all three"
    clear = all(not equals_of(one.findings[0], one.findings) for one in verdicts if one.findings)
    if clear and len({frozenset(one) for one in found}) == 1:
        assert len({verdict.primary for verdict in verdicts}) == 1


@given(st.permutations([("DATA001", 0.30), ("OPT001", 0.31), ("HOST001", 0.305), ("LOG001", 0.1)]))
def test_what_is_about_equal_has_one_order_whichever_is_larger(
    drawn: list[tuple[str, float]],
) -> None:
    shares = [share for _, share in drawn]
    found = [finding(code, share) for (code, _), share in zip(sorted(drawn), shares, strict=True)]
    largest = max(found, key=lambda one: one.bound.share if one.bound else 0)
    order = [one.code for one in ordered(found, primary_of(found))]
    equal = [one.code for one in found if is_about_equal(one, largest)]
    places = [entry.code for entry in CATALOGUE]
    assert order[:3] == sorted(equal, key=places.index)


def test_about_equal_is_said_by_both_and_in_the_sentence() -> None:
    parts = {
        "data": noisy(3_000, STEPS, 1),
        "optimizer": noisy(3_100, STEPS, 2),
        "forward": noisy(3_000, STEPS, 3),
    }
    verdict = examine(run_of(rank(parts, steps=STEPS)))
    assert [one.code for one in verdict.findings] == ["DATA001", "OPT001"]
    assert "; OPT001 is about equal" in verdict.message
    for one, other in (("DATA001", "OPT001"), ("OPT001", "DATA001")):
        evidence = bounded(verdict)[one].evidence
        assert any(line.startswith(f"about equal to {other}:") for line in evidence)


def test_findings_on_one_part_are_not_equal_but_the_same() -> None:
    found = [finding("DATA001", 0.3, part="data"), finding("DATA003", 0.3, part="data")]
    assert equals_of(found[0], found) == ()


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.2), st.floats(0, 0.2))
def test_overlap_is_that_of_two_intervals(
    one: float, other: float, error: float, second: float
) -> None:
    pair = finding("DATA001", one, error=error), finding("OPT001", other, error=second)
    wide = [half_width(each) for each in pair]
    # Exactly at the edge rounding decides.
    assume(abs(abs(one - other) - sum(wide)) > 1e-9)
    overlap = max(one - wide[0], other - wide[1]) <= min(one + wide[0], other + wide[1])
    assert is_about_equal(*pair) == overlap == is_about_equal(*reversed(pair))
    assert wide[0] >= 2 * error


def test_larger_by_more_than_both_intervals_comes_first_against_the_catalogue() -> None:
    found = [finding("DATA001", 0.2), finding("OPT001", 0.4)]
    assert [one.code for one in ordered(found, primary_of(found))] == ["OPT001", "DATA001"]
    unsure = [finding("DATA001", 0.2, error=0.06), finding("OPT001", 0.4, error=0.04)]
    assert [one.code for one in ordered(unsure, primary_of(unsure))] == ["DATA001", "OPT001"]


def test_a_stall_decides_nothing_however_critical() -> None:
    odd = replace(finding("STALL001", 0.0), bound=None)
    assert primary_of([odd]) is None
    slow = finding("DATA001", 0.2)
    assert primary_of([odd, slow]) is slow


@pytest.mark.parametrize("severity", ["warning", "critical"])
def test_information_is_never_called_equal(severity: str) -> None:
    info = replace(finding("OPT001", 0.3), severity="info")
    serious = replace(finding("DATA001", 0.3), severity=severity)
    assert equals_of(serious, [info, serious]) == equals_of(info, [info, serious]) == ()
