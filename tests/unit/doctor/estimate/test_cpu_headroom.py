"""CPU headroom: what remains may speed up, the share of a bound beside Amdahl's."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.estimate.combine import combined_bound, cumulative_gains
from pitstop.doctor.estimate.cpu_headroom import CpuHeadroom, cpu_headroom
from pitstop.doctor.examine import examine
from pitstop.records.verdict import Bound, Finding
from tests.unit.doctor.records import KERNELS, SETUP, facts, rank, run_of

MOST = 1 / 8


def finding(part: str, share: float, **bound: object) -> Finding:
    return Finding(
        code="X001",
        severity="warning",
        summary="",
        evidence=("seen",),
        bound=Bound(part=part, share=share, **bound),  # type: ignore[arg-type]
        remedy=(),
    )


def quartile_of(values: list[int]) -> float:
    """Lower quartile by interpolation, on sorted values."""
    ranked = sorted(values)
    place = (len(ranked) - 1) / 4
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (place - low) * (ranked[high] - ranked[low])


@given(
    st.lists(st.integers(9_000, 11_000), min_size=60, max_size=60)
    | st.lists(st.integers(1_000, 20_000), min_size=60, max_size=60)
)
def test_computing_is_counted_as_in_the_quickest_quarter_and_an_eighth_less_at_most(
    backward_us: list[int],
) -> None:
    watched = facts({"data": 5_000, "forward": 2_000, "backward": backward_us}, steps=60)
    got = cpu_headroom(watched)
    computing = [2_000 + us for us in backward_us[watched.warm_up_steps :]]
    mean = sum(computing) / len(computing)
    saved = min(max(0.0, mean - quartile_of(computing)), MOST * mean)
    wall = sum(5_000 + us for us in computing)
    assert got.share == pytest.approx(saved * len(computing) / wall)
    assert got.usual_us == pytest.approx(mean)


def test_even_steps_leave_amdahls_bound_as_it_is() -> None:
    parts = {"data": 4_000, "forward": 6_000}
    assert cpu_headroom(facts(parts)).share == 0
    verdict = examine(run_of(rank(parts)))
    [found] = verdict.findings
    assert found.bound is not None
    assert (found.bound.cpu_headroom_share, found.bound.speedup) == (0.0, pytest.approx(1 / 0.6))
    assert not any("computing" in line for line in found.evidence)


def by_turns(slow: int, quick: int, steps: int = 100) -> list[int]:
    return [quick if step % 3 == 0 else slow for step in range(steps)]


def test_a_wait_is_bounded_with_the_rest_at_its_fastest() -> None:
    computing = by_turns(10_000, 9_000)
    verdict = examine(run_of(rank({"data": 10_000, "forward": computing})))
    [found] = verdict.findings
    counted = computing[10:]
    wall = sum(10_000 + us for us in counted)
    assert found.bound is not None
    assert found.bound.share == pytest.approx(90 * 10_000 / wall)
    assert found.bound.speedup == pytest.approx(wall / (90 * 9_000))
    assert f"up to {found.bound.speedup:.2f}x faster" in verdict.message
    assert found.evidence[-1] == (
        "computing takes 9.67 ms per step next to it; the bound assumes 9.00 ms without it, "
        "the 25th percentile of the steps"
    )
    assert verdict.combined_bound == found.bound
    [gain] = verdict.cumulative_gains
    assert gain.bound.speedup == found.bound.speedup


def test_steps_in_which_something_lay_apart_tell_nothing_of_the_others() -> None:
    steps = [14_000 if step % 2 else 10_000 for step in range(100)]
    saved = dict.fromkeys(range(1, 100, 2), 5_000)
    assert cpu_headroom(facts({"forward": steps})).share > 0
    assert cpu_headroom(facts({"forward": steps}, apart={"checkpoint": saved})).share == 0


def test_a_gpu_computes_elsewhere() -> None:
    parts = {"data": 10_000, "forward": by_turns(10_000, 9_000)}
    assert cpu_headroom(facts(parts)).share > 0
    assert cpu_headroom(facts(parts, readings=[SETUP, KERNELS])).share == 0


def test_too_few_steps_and_steps_without_computing_count_on_nothing() -> None:
    assert cpu_headroom(facts({"forward": by_turns(10_000, 9_000, 20)}, steps=20)).share == 0
    assert cpu_headroom(facts({"data": by_turns(10_000, 9_000)})).share == 0
    assert cpu_headroom(facts({"data": 0, "forward": 0})).share == 0


@pytest.mark.parametrize(
    ("part", "bound", "is_widened"),
    [
        ("data", {}, True),
        ("epoch boundary", {}, True),
        ("optimizer", {}, False),
        ("backward: recompute", {}, False),
        ("exchange", {}, False),
        ("data", {"pool": "time in which the device idles", "pool_share": 0.5}, False),
    ],
)
def test_only_what_lies_beside_the_computing_is_widened(
    part: str, bound: dict[str, object], is_widened: bool
) -> None:
    before = finding(part, 0.4, **bound)
    after = CpuHeadroom(share=0.05, usual_us=10_000, fast_us=9_000).counted_in(before)
    assert after.bound is not None
    assert after.bound.cpu_headroom_share == (0.05 if is_widened else 0)
    assert (after == before) is not is_widened
    assert after.evidence[0] == "seen"


def test_a_finding_without_a_bound_and_a_hundredth_are_left_alone() -> None:
    bare = replace(finding("data", 0.4), bound=None)
    rest = CpuHeadroom(share=0.05, usual_us=10_000, fast_us=9_000)
    assert rest.counted_in(bare) is bare
    slight = finding("data", 0.4)
    assert replace(rest, share=0.009).counted_in(slight) is slight


def test_no_more_can_go_than_there_is() -> None:
    rest = CpuHeadroom(share=0.1, usual_us=10_000, fast_us=9_000)
    after = rest.counted_in(finding("data", 0.95)).bound
    assert after is not None
    assert after.saved_share == pytest.approx(1)
    with pytest.raises(ValueError, match="share lies between"):
        Bound(part="data", share=0.95, cpu_headroom_share=0.1)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 0.2)), min_size=1, max_size=6),
    st.floats(0, 0.1),
)
def test_what_remains_gets_headroom_once_whatever_goes(
    pairs: list[tuple[str, float]], headroom: float
) -> None:
    findings = [finding(part, share, cpu_headroom_share=headroom) for part, share in pairs]
    together = combined_bound(findings)
    assert together is not None
    assert together.cpu_headroom_share == headroom
    assert together.share == pytest.approx(
        sum(max(share for part, share in pairs if part == name) for name in dict(pairs))
    )
    last = cumulative_gains(findings, whole_run_hours=100.0)[-1]
    assert last.hours_saved == pytest.approx(100 * (together.share + headroom))


def test_order_and_severity_follow_from_the_part_alone() -> None:
    parts = {
        "data": 2_900,
        "forward": by_turns(3_800, 2_600),
        "optimizer": 3_700,
    }
    verdict = examine(run_of(rank(parts)))
    assert verdict.primary == "OPT001"
    data = next(found for found in verdict.findings if found.code == "DATA001")
    assert data.bound is not None
    assert data.bound.saved_share > 0.3 > data.bound.share
    assert data.severity == "warning"


def test_a_rank_that_holds_up_the_others_is_bounded_by_its_excess_alone() -> None:
    slow = rank({"data": 10_000, "forward": by_turns(10_000, 9_000)}, world=2)
    other = rank({"forward": by_turns(10_000, 9_000), "sync": 10_000}, number=1, world=2)
    found = {finding.code: finding.bound for finding in examine(run_of(slow, other)).findings}
    straggler, wait = found["COMM002"], found["DATA001"]
    assert straggler is not None
    assert wait is not None
    assert straggler.cpu_headroom_share == 0
    assert wait.cpu_headroom_share > 0.02
