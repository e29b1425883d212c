"""Verdicts over whole runs: bounds that add, evidence that suffices, gaps that are said."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.examine import combined_bound, examine
from pitstop.doctor.facts import facts_of
from pitstop.records.store import from_json, read_run, to_json
from pitstop.records.verdict import Bound, Finding, Verdict
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock


def write_rank(
    folder: Path,
    steps: int,
    parts: dict[str, int],
    *,
    rank: int = 0,
    bytes_per_step: int = 195,
    unaccounted_us: int = 0,
) -> Path:
    """Write one rank whose every step has the same parts."""
    time = FakeClock()
    path = folder / f"rank-{rank}.jsonl"
    writer = RecordWriter(
        str(path),
        now_us=time.now_us,
        bytes_per_step=bytes_per_step,
    )
    clock = Clock(writer, now_us=time.now_us)
    for _ in range(steps):
        clock.begin_step()
        for name, us in parts.items():
            with clock.span(name):
                time.advance(us)
        time.advance(unaccounted_us)
    clock.close()
    writer.close()
    return path


def test_a_starved_run_is_a_bottleneck_with_its_bound(tmp_path: Path) -> None:
    write_rank(tmp_path, 100, {"data": 3_000, "forward": 5_000, "backward": 2_000})
    verdict = examine(read_run(tmp_path))
    assert verdict.outcome == "bottleneck"
    assert [finding.code for finding in verdict.findings] == ["DATA001"]
    assert verdict.combined_bound is not None
    assert verdict.combined_bound.speedup == pytest.approx(10_000 / 7_000)
    assert verdict.sentence.endswith("at most 1.43x as fast")
    assert verdict.shares == pytest.approx(
        {"data": 0.3, "forward": 0.5, "backward": 0.2, "unaccounted": 0.0}
    )
    assert (verdict.steps, verdict.notes) == (90, ())


def test_findings_are_ordered_by_what_they_can_give(tmp_path: Path) -> None:
    write_rank(tmp_path, 100, {"data": 2_000, "forward": 4_000}, unaccounted_us=4_000)
    verdict = examine(read_run(tmp_path))
    assert [finding.code for finding in verdict.findings] == ["DATA001", "TIME001"]
    assert verdict.outcome == "bottleneck"
    assert verdict.combined_bound is not None
    assert verdict.combined_bound.share == pytest.approx(0.2), "naming spans gains nothing"


def test_a_step_that_was_hardly_measured_is_not_judged(tmp_path: Path) -> None:
    write_rank(tmp_path, 100, {"forward": 1_000}, unaccounted_us=9_000)
    verdict = examine(read_run(tmp_path))
    assert verdict.outcome == "not enough evidence"
    assert verdict.sentence == "part of the step was not measured"
    assert verdict.combined_bound is None


def test_a_run_that_failed_is_said_to_have_failed(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"))
    writer.close("failed", "DataError: no frame 7")
    assert examine(read_run(tmp_path)).notes == ("the run failed: DataError: no frame 7",)


def test_just_under_a_tenth_is_healthy(tmp_path: Path) -> None:
    write_rank(tmp_path, 100, {"data": 999, "forward": 9_001})
    verdict = examine(read_run(tmp_path))
    assert (verdict.outcome, verdict.findings, verdict.combined_bound) == ("healthy", (), None)


@pytest.mark.parametrize(
    ("steps", "outcome"), [(0, "not enough evidence"), (21, "not enough evidence"), (22, "healthy")]
)
def test_fewer_than_twenty_settled_steps_are_not_enough(
    tmp_path: Path, steps: int, outcome: str
) -> None:
    write_rank(tmp_path, steps, {"data": 1, "forward": 99})
    verdict = examine(read_run(tmp_path))
    assert verdict.outcome == outcome
    assert verdict.steps == steps - steps // 10
    if steps == 21:
        assert verdict.sentence == "19 steps after warm-up are too few to judge; 20 are needed"


def test_a_run_without_spans_is_not_enough(tmp_path: Path) -> None:
    write_rank(tmp_path, 100, {}, unaccounted_us=10)
    verdict = examine(read_run(tmp_path))
    assert (verdict.outcome, verdict.shares) == ("not enough evidence", {})
    assert verdict.sentence == "the record holds no measured parts of the step"


def test_a_killed_run_is_judged_and_the_kill_is_noted(tmp_path: Path) -> None:
    path = write_rank(tmp_path, 300, {"data": 50, "forward": 50})
    path.write_bytes(path.read_bytes()[:-200])
    verdict = examine(read_run(tmp_path))
    assert verdict.outcome == "bottleneck"
    assert any("killed, or it is still running" in note for note in verdict.notes)
    assert any("last line is incomplete" in note for note in verdict.notes)


def test_the_slowest_rank_is_judged_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank, data_us in enumerate((0, 100, 1)):
        monkeypatch.setenv("RANK", str(rank))
        write_rank(tmp_path, 100, {"data": data_us, "forward": 100}, rank=rank)
    verdict = examine(read_run(tmp_path))
    assert (verdict.rank, verdict.shares["data"]) == (1, 0.5)
    assert verdict.notes == ("1 of 4 ranks left no record: 3",)


def test_steps_whose_rows_had_no_room_for_spans_are_left_out(tmp_path: Path) -> None:
    parts = {f"part {number}": 10 for number in range(40)} | {"data": 400}
    write_rank(tmp_path, 400, parts, bytes_per_step=60)
    rank = read_run(tmp_path).first
    assert rank.steps is not None
    data = rank.paths.index(("data",))
    with_spans = int((rank.steps.host_us[:, data] == 400).sum())
    assert 30 < with_spans < 400, "the budget should leave spans to some rows only"
    facts = facts_of(rank)
    assert facts.steps == with_spans - min(50, with_spans // 10)
    assert facts.shares()["data"] == 0.5
    assert facts.shares()["unaccounted"] == 0


@pytest.mark.parametrize("damage", [b"-5", b"900000000"], ids=["below zero", "longer than a step"])
def test_a_damaged_part_is_left_out_rather_than_judged(tmp_path: Path, damage: bytes) -> None:
    path = write_rank(tmp_path, 100, {"data": 250, "forward": 750})
    whole = path.read_bytes()
    assert whole.count(b"[0,60,0,0,1000,null,null,250,750]") == 1
    broken = b"[0,60,0,0,1000,null,null," + damage + b",750]"
    head, _, _ = whole.replace(b"[0,60,0,0,1000,null,null,250,750]", broken).rpartition(
        b'{"kind":"b'
    )
    path.write_bytes(head)
    verdict = examine(read_run(tmp_path))
    assert verdict.shares == {"data": 0.25, "forward": 0.75, "unaccounted": 0.0}
    assert "1 damaged line left out" in verdict.notes


def test_a_verdict_goes_through_json_and_back(tmp_path: Path) -> None:
    write_rank(tmp_path, 100, {"data": 50, "forward": 50})
    verdict = examine(read_run(tmp_path))
    assert from_json(to_json(verdict), Verdict) == verdict


def finding(part: str, share: float | None) -> Finding:
    return Finding(
        code="X001",
        severity="info",
        summary="",
        evidence=(),
        bound=None if share is None else Bound(part=part, share=share),
        remedy=(),
    )


bounded = st.tuples(st.sampled_from("abcdef"), st.none() | st.floats(0, 0.15))


@given(st.lists(bounded, max_size=10))
def test_bounds_of_different_parts_add_and_those_of_one_part_overlap(
    pairs: list[tuple[str, float | None]],
) -> None:
    got = combined_bound(tuple(finding(part, share) for part, share in pairs))
    shares = {part: [s for p, s in pairs if p == part and s is not None] for part, _ in pairs}
    largest = [max(found) for found in shares.values() if found]
    if not largest:
        assert got is None
        return
    assert got is not None
    assert got.share == pytest.approx(math.fsum(largest), abs=1e-12)
    assert got.speedup == pytest.approx(1 / (1 - math.fsum(largest)))
    product = math.prod(1 / (1 - share) for share in largest)
    if sum(share > 1e-3 for share in largest) > 1:
        assert got.speedup is not None
        assert got.speedup > product, "removing both parts gives more than the product of each"


def test_bounds_never_exceed_the_whole_step() -> None:
    got = combined_bound((finding("a", 0.7), finding("b", 0.7)))
    assert got is not None
    assert (got.share, got.speedup) == (1.0, None)


@pytest.mark.parametrize("share", [-0.01, 1.01, math.nan])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share lies between"):
        Bound(part="data", share=share)
