"""One odd step makes no verdict; what recurs keeps its share, however rarely it comes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.doctor.examine import examine
from pitstop.doctor.facts import facts_of
from pitstop.doctor.rules.stall import stall
from pitstop.records.script import HostLines, LongStep
from tests.unit.doctor.records import (
    ON_CPU,
    facts,
    host_line,
    host_lines,
    noisy,
    rank,
    run_of,
)

STEPS = 200
PARTS = ("data", "host", "optimizer")


def parts(seed: int) -> dict[str, np.ndarray]:
    """A run that waits for its data half of the time, with an update that is dear, too."""
    return {
        "data": noisy(6_000, STEPS, seed),
        "forward": noisy(2_000, STEPS, seed + 1),
        "optimizer": noisy(4_000, STEPS, seed + 2),
        "host": noisy(300, STEPS, seed + 3),
    }


def sampled(lines: HostLines, *long: LongStep) -> HostLines:
    return replace(lines, long_steps=long)


single = st.tuples(st.sampled_from(PARTS), st.integers(20, STEPS - 1), st.floats(0.01, 3_600.0))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), single)
def test_a_single_stall_of_any_length_changes_no_order(
    seed: int, odd: tuple[str, int, float]
) -> None:
    part, step, seconds = odd
    plain = parts(seed)
    before = examine(run_of(rank(plain, steps=STEPS)))
    stalled = {name: us.copy() for name, us in plain.items()}
    stalled[part][step] += round(seconds * 1e6)
    after = examine(run_of(rank(stalled, steps=STEPS)))
    codes = [finding.code for finding in after.findings if finding.code != "STALL001"]
    assert codes == [finding.code for finding in before.findings] == ["DATA001", "OPT001"]
    assert after.primary == "DATA001"
    if seconds > 1:
        found = next(finding for finding in after.findings if finding.code == "STALL001")
        assert f"step {step}: " in found.evidence[0]
        assert f" longer in {part} " in found.evidence[0]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(4, 88),
    st.sampled_from(["first", "last"]),
    st.floats(0.01, 60.0),
    st.sampled_from(PARTS),
)
def test_what_recurs_keeps_its_full_share(
    seed: int, every: int, phase: str, seconds: float, part: str
) -> None:
    """The oracle adds all times by hand: nothing is taken from what comes again."""
    times = parts(seed)
    again = slice(0 if phase == "first" else every - 1, None, every)
    cost = np.random.default_rng(seed).uniform(0.7, 1.4, STEPS) * seconds * 1e6
    times[part][again] += cost.round()[again]
    run = facts(times, steps=STEPS)
    counted = {name: us[20:].sum() for name, us in times.items()}
    assert run.stalls == ()
    assert run.share(part) == pytest.approx(counted[part] / sum(counted.values()))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(5, 60), single)
def test_a_stall_beside_something_that_recurs_is_told_from_it(
    seed: int, every: int, odd: tuple[str, int, float]
) -> None:
    part, step, seconds = odd
    times = parts(seed)
    times["host"][every - 1 :: every] += 80_000.0
    before = facts(times, steps=STEPS)
    # Far longer than what recurs, and in another step: else nobody could tell.
    step += (step + 1) % every == 0
    step = min(step, STEPS - 1)
    times[part][step] += round(1e6 + seconds * 1e6)
    after = facts(times, steps=STEPS)
    assert [stall.step for stall in after.stalls] == [step]
    assert before.stalls == ()
    for name in times:
        assert after.share(name) == pytest.approx(before.share(name) or 0.0, rel=0.02)


@pytest.mark.parametrize("steps", [(60,), (60, 150), (60, 100, 171)])
def test_up_to_three_stalls_are_one_finding_with_every_step(steps: tuple[int, ...]) -> None:
    times = parts(1)
    for step in steps:
        times["host"][step] += 25e6
    run = facts(times, steps=STEPS)
    found = stall(run)
    assert found is not None
    assert (found.severity, found.bound) == ("warning", None)
    for step in steps:
        assert any(
            line.startswith(f"step {step}: 25.0 s longer in host") for line in found.evidence
        )
    whole = 25e6 * len(steps)
    share = whole / (whole + run.total_us)
    assert f"{len(steps)} stall" in found.summary
    assert f"{share:.1%} of the run" in found.summary


def test_four_like_ones_recur_though_no_two_distances_are_alike() -> None:
    times = parts(1)
    times["host"][[33, 60, 131, 170]] += 1e6
    run = facts(times, steps=STEPS)
    assert run.stalls == ()
    assert (run.share("host") or 0) > 0.6


def test_a_stall_in_one_evaluation_leaves_the_others_their_share() -> None:
    evaluations = dict.fromkeys(range(24, STEPS, 25), 100_000)
    usual = facts(parts(1), steps=STEPS, apart={"evaluation": evaluations})
    odd = facts(parts(1), steps=STEPS, apart={"evaluation": {**evaluations, 124: 30_000_000}})
    assert odd.share("evaluation") == usual.share("evaluation")
    found = stall(odd)
    assert found is not None
    assert found.evidence[0].startswith("step 124: 29.9 s longer in evaluation, outside the step")
    assert stall(usual) is None


def test_long_evaluations_among_short_ones_keep_their_share() -> None:
    """Every tenth step a quick one, every fiftieth all of it."""
    often = dict.fromkeys(range(9, STEPS, 10), 20_000)
    seldom = dict.fromkeys(range(49, STEPS, 50), 2_000_000)
    run = facts(parts(1), steps=STEPS, apart={"evaluation": {**often, **seldom}})
    assert run.stalls == ()


def test_the_line_that_stalled_is_named_and_its_looks_blame_nobody() -> None:
    times = parts(1)
    times["host"] = noisy(4_000, STEPS, 9)
    times["host"][60] += 25e6
    sleep, metric = host_line("time.sleep(25)", 1_250), host_line("metric(out)", 80)
    long = LongStep(step=60, samples=1_260, line=sleep)
    lines = sampled(host_lines(sleep, metric), long)
    verdict = examine(run_of(rank(times, steps=STEPS, readings=[ON_CPU, lines])))
    found = {finding.code: finding for finding in verdict.findings}
    assert "train.py" in found["STALL001"].evidence[0]
    assert "`time.sleep(25)`" in found["STALL001"].evidence[0]
    assert any("metric(out)" in line for line in found["HOST001"].evidence)
    assert not any("sleep" in line for line in found["HOST001"].evidence)
    assert verdict.message.endswith("; also, step 60 stalled for 25.0 s (not included above)")


def test_a_step_that_stalled_in_two_parts_is_named_once() -> None:
    times = parts(1)
    times["host"] = noisy(4_000, STEPS, 9)
    times["host"][60] += 12e6
    times["forward"][60] += 13e6
    verdict = examine(run_of(rank(times, steps=STEPS, readings=[ON_CPU])))
    assert verdict.message.endswith("; also, step 60 stalled for 25.0 s (not included above)")


def test_a_stall_in_a_step_that_was_not_sampled_says_so() -> None:
    times = parts(1)
    times["host"][61] += 25e6
    whole = rank(times, steps=STEPS)
    assert whole.steps is not None
    host = np.full_like(whole.steps.host_us, np.nan)
    host[::8] = whole.steps.host_us[::8]
    run = facts_of(replace(whole, steps=replace(whole.steps, host_us=host)))
    assert [(one.step, one.part) for one in run.stalls] == [(61, None)]
    found = stall(run)
    assert found is not None
    assert "in a step that was not sampled" in found.evidence[0]
    assert run.share("data") == pytest.approx(0.49, abs=0.03)


def test_a_short_stall_is_information_and_a_run_with_one_is_healthy() -> None:
    times = {"forward": noisy(2_000, STEPS, 1), "host": np.zeros(STEPS)}
    times["host"][77] = 300_000
    verdict = examine(run_of(rank(times, steps=STEPS)))
    assert [(one.code, one.severity) for one in verdict.findings] == [("STALL001", "info")]
    times["host"][77] = 100_000_000
    verdict = examine(run_of(rank(times, steps=STEPS)))
    assert [(one.code, one.severity) for one in verdict.findings] == [("STALL001", "warning")]
    assert (verdict.outcome, verdict.primary) == ("healthy", None)


def test_a_stall_takes_the_device_s_marks_of_its_step_with_it() -> None:
    times = {"data": noisy(5_000, STEPS, 1), "forward": noisy(5_000, STEPS, 2)}
    plain = facts(times, steps=STEPS, device=times)
    times["data"][50] += 25e6
    stalled = facts(times, steps=STEPS, device=times)
    assert stalled.step_us == pytest.approx(plain.step_us, rel=0.01)
    assert stalled.device_share("data") == pytest.approx(plain.device_share("data") or 0, rel=0.01)
