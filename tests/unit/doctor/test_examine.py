"""Verdicts over whole runs: bounds that add, evidence that suffices, gaps that are said."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.doctor.estimate.combine import combined_bound, cumulative_gains
from pitstop.doctor.examine import examine
from pitstop.doctor.facts import IDLE, facts_of
from pitstop.doctor.rules.catalogue import CATALOGUE, ENTRIES
from pitstop.records.run import Event
from pitstop.records.script import NotSampled
from pitstop.records.store import from_json, read_run, to_json
from pitstop.records.verdict import Bound, Finding, Verdict
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock
from tests.unit.doctor.records import (
    GIB,
    KERNELS,
    LOADER,
    ON_CPU,
    OWNERS,
    SETUP,
    WORK,
    WORKER,
    host_line,
    host_lines,
    load,
    memory,
    noisy,
    rank,
    raw,
    run_of,
)


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
    assert verdict.message.endswith("up to 1.43x faster")
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
    assert verdict.message == "part of the step was not measured"
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
        assert verdict.message == "19 steps after warm-up are too few to judge; 20 are needed"


def test_a_run_without_spans_is_not_enough(tmp_path: Path) -> None:
    write_rank(tmp_path, 100, {}, unaccounted_us=10)
    verdict = examine(read_run(tmp_path))
    assert (verdict.outcome, verdict.shares) == ("not enough evidence", {})
    assert verdict.message == "the record holds no measured parts of the step"


def test_a_killed_run_is_judged_and_the_kill_is_noted(tmp_path: Path) -> None:
    path = write_rank(tmp_path, 300, {"data": 50, "forward": 50})
    path.write_bytes(path.read_bytes()[:-200])
    verdict = examine(read_run(tmp_path))
    assert verdict.outcome == "bottleneck"
    assert any("killed, or is still running" in note for note in verdict.notes)
    assert any("last line is incomplete" in note for note in verdict.notes)


def test_the_slowest_rank_is_judged_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    for number, data_us in enumerate((0, 100, 1)):
        monkeypatch.setenv("RANK", str(number))
        write_rank(tmp_path, 100, {"data": data_us, "forward": 100}, rank=number)
    verdict = examine(read_run(tmp_path))
    assert (verdict.rank, verdict.shares["data"]) == (1, 0.5)
    assert verdict.notes == ("1 of 4 ranks left no record: 3",)


def test_steps_whose_rows_had_no_room_for_spans_count_with_their_wall_clock_alone(
    tmp_path: Path,
) -> None:
    parts = {f"part {number}": 10 for number in range(40)} | {"data": 400}
    write_rank(tmp_path, 400, parts, bytes_per_step=60)
    first = read_run(tmp_path).first
    assert first.steps is not None
    data = first.paths.index(("data",))
    with_spans = int((first.steps.host_us[:, data] == 400).sum())
    assert 30 < with_spans < 400, "the budget should leave spans to some rows only"
    facts = facts_of(first)
    assert facts.steps == 360
    assert 0 < len(facts.sampled) <= with_spans
    assert facts.shares()["data"] == pytest.approx(0.5)
    assert facts.shares()["unaccounted"] == pytest.approx(0)


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


pooled = st.tuples(
    st.sampled_from("abcdef"), st.floats(0, 1), st.sampled_from(["wall clock", IDLE])
)


def pooled_finding(part: str, share: float, pool: str) -> Finding:
    most = 1.0 if pool == "wall clock" else 0.3
    bound = Bound(part=part, share=min(share, most), pool=pool, pool_share=most)
    return replace(finding(part, 0.0), bound=bound)


@given(st.lists(pooled, max_size=8))
def test_each_further_cure_adds_something_and_never_more_than_its_own(
    triples: list[tuple[str, float, str]],
) -> None:
    findings = tuple(pooled_finding(*triple) for triple in triples)
    gains = cumulative_gains(findings, whole_run_hours=100.0)
    before = 0.0
    for gain, found in zip(gains, findings, strict=True):
        assert found.bound is not None
        assert before - 1e-12 <= gain.bound.share <= min(1.0, before + found.bound.share) + 1e-12
        assert gain.hours_saved == pytest.approx(100 * gain.bound.share)
        before = gain.bound.share
    idle = [found for found in findings if found.bound is not None and found.bound.pool == IDLE]
    together = combined_bound(idle)
    assert together is None or together.share <= 0.3


def test_bounds_of_one_pool_share_its_time() -> None:
    got = combined_bound((pooled_finding("a", 0.25, IDLE), pooled_finding("b", 0.25, IDLE)))
    assert got is not None
    assert got.share == pytest.approx(0.3)


def test_hours_are_saved_of_the_whole_training() -> None:
    setup = replace(ON_CPU, total_steps=360_000)
    parts = {"data": 4_000, "forward": 6_000}
    verdict = examine(run_of(rank(parts, readings=[setup])))
    assert verdict.whole_run_hours == pytest.approx(1.0)
    [gain] = verdict.cumulative_gains
    assert gain.hours_saved == pytest.approx(0.4)
    ours = rank(parts, about={"config": {"train": {"steps": 720_000}}})
    assert examine(run_of(ours)).whole_run_hours == pytest.approx(2.0)
    unknown = examine(run_of(rank(parts)))
    assert (unknown.whole_run_hours, unknown.cumulative_gains[0].hours_saved) == (None, None)


def test_the_json_holds_what_a_machine_needs() -> None:
    verdict = examine(run_of(rank({"data": 4_000, "forward": 6_000})))
    values = json.loads(to_json(verdict))
    assert (values["outcome"], values["verdict"]) == ("bottleneck", "input-bound")
    assert values["primary"] == "DATA001"
    [found] = values["findings"]
    assert found.keys() >= {"code", "severity", "summary", "evidence", "bound", "remedy"}
    assert found["bound"]["part"] == "data"
    assert found["bound"]["share"] == pytest.approx(0.4)
    assert found["bound"]["speedup"] == pytest.approx(1 / 0.6)
    assert values["shares"] == pytest.approx({"data": 0.4, "forward": 0.6, "unaccounted": 0.0})


COPYING = {"copy": 8_000.0, "forward": 1_000.0, "backward": 1_000.0}


def copying(*readings: object, steps: int = 200, **rest: Any) -> Verdict:
    return examine(run_of(rank(COPYING, steps=steps, readings=readings, **rest)))


def test_a_script_on_a_gpu_is_not_called_healthy_before_its_kernels_were_seen() -> None:
    unseen = copying(SETUP)
    assert (unseen.outcome, unseen.verdict) == ("not enough evidence", "not enough evidence")
    assert unseen.findings == ()
    assert copying(SETUP, replace(KERNELS, busy_us=2_000.0)).outcome == "bottleneck"
    assert copying(SETUP, replace(KERNELS, busy_us=9_900.0)).outcome == "healthy"


def test_nor_is_one_that_was_killed_before_it_could_say_what_it_uses() -> None:
    on_device = {"forward": 1_000.0, "backward": 1_000.0}
    killed = copying(device=on_device, about={"attached": True, "steps_asked": 200})
    assert killed.outcome == "not enough evidence"


def test_why_kernels_were_not_sampled_is_told() -> None:
    refused = NotSampled(what="kernels", why="the script profiles itself")
    verdict = copying(SETUP, refused, about={"steps_asked": 200})
    assert verdict.message.endswith("the script profiles itself")
    assert "kernels (the script profiles itself)" in verdict.not_sampled
    attached = copying(SETUP, about={"attached": True, "steps_asked": None}).message
    assert "only `pitstop doctor -- CMD`" in attached


def test_a_healthy_run_is_called_so_in_every_field() -> None:
    verdict = examine(run_of(rank({"data": 100, "forward": 4_000, "backward": 5_900})))
    assert (verdict.outcome, verdict.verdict, verdict.primary) == ("healthy", "healthy", None)
    assert verdict.message.endswith("most of the time is backward (59.0%)")


def test_the_specific_finding_decides_over_the_general_one_it_explains() -> None:
    waits = noisy(3_000, 400, 5)
    waits[39::40] += 400_000
    verdict = examine(run_of(rank({"data": waits, "forward": 7_000}, steps=400)))
    codes = [found.code for found in verdict.findings]
    assert codes == ["DATA002", "DATA001"]
    assert verdict.primary == "DATA002"
    assert verdict.combined_bound is not None
    assert verdict.combined_bound.share == pytest.approx(verdict.shares["data"]), "the same part"


def test_readings_that_could_not_be_understood_are_noted() -> None:
    verdict = examine(run_of(rank({"forward": 100}, readings=[raw("setup", device=5)])))
    assert "1 readings could not be parsed and were skipped" in verdict.notes


def test_only_an_unbounded_warning_is_still_the_verdict() -> None:
    verdict = examine(run_of(rank({"forward": 100}, scalars={"loss": [1.0, math.nan]})))
    assert (verdict.outcome, verdict.primary) == ("bottleneck", "NAN001")
    assert verdict.combined_bound is None


STARVED = {"data": 3_200, "forward": 6_800}


def test_a_run_that_ended_without_a_finite_loss_is_judged_by_that() -> None:
    """However fast it could be made, it trains nothing."""
    lost = {"loss": [1.0, math.nan, math.nan]}
    verdict = examine(run_of(rank(STARVED, scalars=lost, readings=[ON_CPU])))
    assert [found.code for found in verdict.findings][:2] == ["NAN001", "DATA001"]
    assert (verdict.verdict, verdict.primary) == ("loss not finite", "NAN001")
    recovered = {"loss": [1.0, math.nan, 1.0]}
    verdict = examine(run_of(rank(STARVED, scalars=recovered, readings=[ON_CPU])))
    assert [found.code for found in verdict.findings][:2] == ["DATA001", "NAN001"]


@pytest.mark.parametrize(("data_us", "primary"), [(2_000, "MEM001"), (4_000, "DATA001")])
def test_memory_that_is_soon_full_goes_before_a_warning_but_not_before_a_critical_wait(
    data_us: int, primary: str
) -> None:
    filling = [memory(60.0 * n, (2 + n) * GIB, (2 + n) * GIB) for n in range(30)]
    parts = {"data": data_us, "forward": 10_000 - data_us}
    verdict = examine(run_of(rank(parts, readings=[ON_CPU, *filling])))
    assert verdict.primary == primary
    assert {found.code for found in verdict.findings[:2]} == {"MEM001", "DATA001"}


def test_too_few_steps_are_called_so_though_their_parts_were_measured() -> None:
    verdict = examine(run_of(rank(STARVED, steps=12, about={"warm_up_steps": 20})))
    assert verdict.outcome == "not enough evidence"
    assert verdict.message.startswith("0 steps after warm-up are too few")


def test_every_code_has_one_entry() -> None:
    assert len(ENTRIES) == len(CATALOGUE) == 34
    assert len({entry.name for entry in CATALOGUE}) == 34


def faulty(kind: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A noisy run with one planted fault; the last is sound."""
    mean: dict[str, float] = {"data": 200, "forward": 3_000, "backward": 6_000}
    extra: dict[str, dict[str, Any]] = {
        "DATA001": {"parts": {"data": 4_000}},
        "HOST001": {"parts": {"host": 4_000}},
        "LOG001": {
            "parts": {"host": 4_000},
            "readings": [ON_CPU, host_lines(host_line("print(x)", 400))],
        },
        "OPT001": {"parts": {"optimizer": 6_000}},
        "LOSS001": {"parts": {"loss": 8_000}},
        "EVAL001": {"apart": {"evaluation": dict.fromkeys(range(9, 200, 10), 50_000)}},
        "SYNC001": {
            "parts": {"host": 5_000},
            "readings": [SETUP, replace(KERNELS, busy_us=9_000.0, sync_us=4_500.0), WORK, OWNERS],
        },
        "": {"parts": {"optimizer": 800}, "readings": [ON_CPU]},
    }
    planted = extra[kind]
    parts = {**mean, **planted.get("parts", {})}
    noise = {name: noisy(us, 200, seed + place) for place, (name, us) in enumerate(parts.items())}
    return noise, {key: value for key, value in planted.items() if key != "parts"}


KINDS = ["DATA001", "HOST001", "LOG001", "OPT001", "LOSS001", "EVAL001", "SYNC001", ""]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_repeated_runs_agree_on_the_verdict(kind: str, seed: int) -> None:
    parts, rest = faulty(kind, seed)
    verdict = examine(run_of(rank(parts, steps=200, **rest)))
    assert (verdict.primary or "") == kind


@given(st.integers(0, 10**6), st.floats(0, 0.08))
@settings(max_examples=30, deadline=None)
def test_a_sound_loop_is_accused_of_nothing(seed: int, share: float) -> None:
    """Every part that a rule looks at takes less than a tenth, with the noise of a busy host."""
    small = {name: max(1.0, 10_000 * share) for name in ("data", "host", "loss", "optimizer")}
    parts = {**small, "forward": 3_000, "backward": 7_000}
    noise = {
        name: noisy(us, 120, seed + place, spread=0.5)
        for place, (name, us) in enumerate(parts.items())
    }
    setup = replace(ON_CPU, loaders=(replace(LOADER, pinned=False),))
    verdict = examine(run_of(rank(noise, steps=120, readings=[setup])))
    assert (verdict.outcome, verdict.findings) == ("healthy", ())


def test_nothing_is_promised_for_mere_information() -> None:
    fused = replace(ON_CPU, optimizers=("AdamW(fused)",))
    parts = {"forward": 3_000, "backward": 3_000, "optimizer": 4_000}
    verdict = examine(run_of(rank(parts, readings=[fused])))
    assert [found.severity for found in verdict.findings] == ["info"]
    assert (verdict.outcome, verdict.combined_bound, verdict.cumulative_gains) == (
        "healthy",
        None,
        (),
    )


def test_a_wait_among_others_on_the_host_is_neither_blamed_nor_called_healthy() -> None:
    quick = replace(WORKER, read_us=20_000, collate_us=5_000, cpu_us=25_000)
    crowded = [load(usable_cores=2.0, host_cpu_cores=2.0, tree_cpu_cores=0.5)] * 5
    parts = {"data": 4_000, "forward": 2_000, "backward": 4_000}
    verdict = examine(run_of(rank(parts, readings=[ON_CPU, quick, *crowded])))
    assert {found.severity for found in verdict.findings} == {"info"}
    assert (verdict.outcome, verdict.verdict) == ("not enough evidence",) * 2
    assert verdict.message.startswith("the host is shared")
    assert "other processes use 1.5 of 2 cores" in verdict.message
    # Others on the host do not matter to a loop that waits for nothing.
    busy = examine(run_of(rank({"forward": 5_000, "backward": 5_000}, readings=[ON_CPU, *crowded])))
    assert busy.outcome == "healthy"


def test_steps_that_passed_before_updates_were_recognised_are_noted() -> None:
    started = Event(attempt=0, name="start-up", step=0, start_us=0, wall_us=9, detail={"steps": 10})
    record = replace(rank({"forward": 3_000.0, "backward": 6_000.0}), events=(started,))
    (note,) = examine(run_of(record)).notes
    assert "10 steps passed before the updates were recognised" in note
    assert not examine(run_of(replace(record, events=()))).notes
