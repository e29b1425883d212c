"""A view says where a run is; what was not measured is said to be so, and never guessed."""

from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from pitstop.doctor.examine import examine
from pitstop.records.host.memory import DeviceMemory
from pitstop.records.store import from_json, read_run, to_json
from pitstop.report.live.process import is_alive
from pitstop.report.live.tail import RunTail
from pitstop.report.live.view import LiveView, live_view, recent_run
from tests.browser.records import write_run
from tests.unit.doctor.records import GIB, SETUP, memory
from tests.unit.report.live_records import GrowingRun, lives, look, unknown

DEVICE = DeviceMemory(
    device="cuda:0", total_bytes=80 * GIB, allocated_bytes=GIB, reserved_bytes=2 * GIB,
    peak_allocated_bytes=3 * GIB, peak_reserved_bytes=4 * GIB, alloc_retries=0, ooms=0,
)  # fmt: skip


def test_nothing_there_is_waited_for(tmp_path: Path) -> None:
    view = look(RunTail(tmp_path / "later"))
    assert (view.state, view.step, view.ranks) == ("waiting", None, ())
    assert view.name == "later"


def test_before_the_first_step_nothing_is_made_up(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    view = look(RunTail(tmp_path))
    assert view.state == "running"
    assert view.first is not None
    for value in (
        view.step, view.total_steps, view.left, view.samples_per_s, view.steady_samples_per_s,
        view.memory, view.loss, view.evaluation, view.checkpoint, view.verdict, view.ran_s,
        view.first.step_s, view.first.data_share,
    ):  # fmt: skip
        assert value is None
    assert view.first.parts == ()
    assert run.path.exists()


def test_parts_add_up_to_the_step(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(50, wait_us=3_000, work_us=7_000)
    run.end_step()
    view = look(RunTail(tmp_path))
    assert view.first is not None
    shares = {part.name: part.share for part in view.first.parts}
    assert shares == pytest.approx({"forward": 0.7, "data": 0.3, "unaccounted": 0.0})
    assert sum(shares.values()) == pytest.approx(1.0)
    assert view.first.data_share == pytest.approx(0.3)
    assert view.first.step_s == pytest.approx(0.01)


def test_now_is_the_last_steps_and_steady_the_whole_attempt(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(1_024, wait_us=2_000, work_us=8_000)
    run.step(128, wait_us=12_000, work_us=8_000)
    run.end_step()
    view = look(RunTail(tmp_path))
    assert view.samples_per_s == pytest.approx(4 / 0.02)
    assert view.steady_samples_per_s == pytest.approx(4 / 0.01, rel=0.02)
    assert view.first is not None
    assert (view.first.now_steps, view.first.steady_steps) == (128, 1_152 - 256)


def test_pauses_count_for_the_rate_now_but_not_for_the_steady_one(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(40)
    run.step(outside_us=600_000)
    run.step(59)
    run.end_step()
    view = look(RunTail(tmp_path))
    assert view.samples_per_s == pytest.approx(400 / (1.0 + 0.6))
    assert view.steady_samples_per_s == pytest.approx(400.0, rel=0.02)
    assert view.ran_s == pytest.approx(1.6)


def test_uncounted_samples_give_no_rate(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(40)
    run.step(1, samples=None)
    run.end_step()
    view = look(RunTail(tmp_path))
    assert view.samples_per_s is None
    assert view.steady_samples_per_s is None
    assert view.first is not None
    assert view.first.step_s == pytest.approx(0.01)


@pytest.mark.parametrize("blocks", [0, 3])
def test_time_left_is_the_steps_left_at_their_pace(tmp_path: Path, blocks: int) -> None:
    run = GrowingRun(tmp_path, about={"total_steps": 10_000})
    run.step(50, outside_us=5_000_000)
    run.step(256 * blocks - 50 * bool(blocks) + 50)
    run.end_step()
    done = 256 * blocks + 50 * (2 - bool(blocks))
    view = look(RunTail(tmp_path))
    assert view.step == done
    assert view.left is not None
    apart_s = 0.0 if blocks else 49 * 5.0 / 99
    assert view.left.seconds == pytest.approx((10_000 - done) * (0.01 + apart_s))
    assert view.left.low_s == pytest.approx(view.left.seconds)


def test_an_estimate_says_how_far_off_it_may_be(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, about={"total_steps": 228})
    for _ in range(8):
        run.step(8, work_us=8_000)
        run.step(8, work_us=18_000)
    run.end_step()
    left = look(RunTail(tmp_path)).left
    assert left is not None
    assert left.seconds == pytest.approx(100 * 0.015)
    run.step(16, work_us=28_000)
    run.end_step()
    later = look(RunTail(tmp_path)).left
    assert later is not None
    assert later.low_s == pytest.approx(84 * 0.015)
    assert later.high_s == pytest.approx(84 * 0.03)
    assert later.low_s < later.seconds < later.high_s


def test_too_few_steps_or_no_total_give_no_estimate(tmp_path: Path) -> None:
    few = GrowingRun(tmp_path / "few", about={"total_steps": 100})
    few.step(15)
    few.end_step()
    assert look(RunTail(tmp_path / "few")).left is None
    few.step(1)
    few.end_step()
    assert look(RunTail(tmp_path / "few")).left is not None
    unsaid = GrowingRun(tmp_path / "unsaid", about={"total_steps": "many"})
    unsaid.step(50)
    unsaid.end_step()
    assert look(RunTail(tmp_path / "unsaid")).left is None


def test_a_script_that_was_looked_into_gives_the_total(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(20)
    run.writer.reading("setup", asdict(replace(SETUP, total_steps=500)))
    run.end_step()
    assert look(RunTail(tmp_path)).total_steps == 500


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_an_ending_decides_the_state(tmp_path: Path, status: str) -> None:
    run = GrowingRun(tmp_path, about={"total_steps": 100})
    run.step(50)
    run.end(status, "as it was said")
    view = look(RunTail(tmp_path))
    assert (view.state, view.reason) == (status, "as it was said")
    assert view.is_over
    assert view.left is None


def test_without_an_ending_the_process_decides_and_else_the_silence(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(50)
    run.end_step()
    tail = RunTail(tmp_path)
    tail.poll(100.0)

    def state(now_s: float, alive: bool | None) -> str:
        return live_view(tail, now_s=now_s, is_alive=lambda _: alive).state

    assert state(1_000.0, True) == "running"
    assert state(101.0, False) == "killed"
    assert state(120.0, None) == "running"
    assert state(1_000.0, None) == "silent"
    run.step(1)
    run.end_step()
    tail.poll(1_000.0)
    assert state(1_001.0, None) == "running"


def test_long_steps_are_given_the_time_they_need(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(5, work_us=30_000_000)
    run.end_step()
    tail = RunTail(tmp_path)
    tail.poll(100.0)
    for now_s, state in ((350.0, "running"), (450.0, "silent")):
        assert live_view(tail, now_s=now_s, is_alive=unknown).state == state


def test_a_run_is_over_when_every_rank_is_and_as_bad_as_the_worst(tmp_path: Path) -> None:
    ranks = [GrowingRun(tmp_path, rank=number, world=3) for number in range(3)]
    for rank in ranks:
        rank.step(30)
    ranks[0].end()
    ranks[1].end("failed", "out of memory")
    ranks[2].end_step()
    tail = RunTail(tmp_path)
    view = look(tail)
    assert view.state == "running"
    assert [rank.state for rank in view.ranks] == ["finished", "failed", "running"]
    ranks[2].end()
    assert look(tail).state == "failed"
    assert look(tail).reason == "out of memory"


def test_rates_of_all_ranks_add_up_and_one_unknown_makes_the_sum_unknown(tmp_path: Path) -> None:
    ranks = [GrowingRun(tmp_path, rank=number, world=2) for number in range(2)]
    for rank in ranks:
        rank.step(40)
        rank.end_step()
    tail = RunTail(tmp_path)
    assert look(tail).samples_per_s == pytest.approx(800.0)
    ranks[1].step(1, samples=None)
    ranks[1].end_step()
    assert look(tail).samples_per_s is None


def test_the_fullest_device_of_all_ranks_is_shown(tmp_path: Path) -> None:
    for number, peak in enumerate((4 * GIB, 9 * GIB)):
        rank = GrowingRun(tmp_path, rank=number, world=2)
        device = replace(DEVICE, peak_reserved_bytes=peak)
        rank.writer.reading("memory", asdict(memory(1.0, 6 * GIB, GIB, devices=(device,))))
        rank.end_step()
    view = look(RunTail(tmp_path))
    assert view.memory is not None
    assert view.memory.device == "cuda:0 of rank 1"
    assert view.memory.device_peak_bytes == 9 * GIB
    assert view.memory.tree_bytes == 6 * GIB


def test_a_damaged_reading_is_no_reading(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(20)
    run.writer.reading("memory", {"devices": "none"})
    run.writer.reading("setup", {"total_steps": "x"})
    run.writer.reading("saved", {"step": "x"})
    run.end_step()
    view = look(RunTail(tmp_path))
    assert (view.memory, view.total_steps, view.checkpoint) == (None, None, None)


def test_what_an_evaluation_and_a_checkpoint_gave_is_the_latest(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.writer.scalars(10, {"eval/psnr": 20.0, "eval/old": 1.0})
    run.writer.scalars(20, {"eval/psnr": 25.0, "eval/ssim": float("nan")})
    run.step(30, outside_us=250_000)
    run.end_step()
    view = look(RunTail(tmp_path))
    assert view.evaluation is not None
    assert view.evaluation.metrics == {"psnr": 25.0, "ssim": None}
    assert (view.evaluation.step, view.evaluation.took_s) == (20, 0.25)
    assert view.checkpoint is None


def test_a_loss_that_is_not_a_number_is_seen(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    for step, loss in enumerate((1.0, 0.5, float("nan"))):
        run.writer.scalars(step, {"loss": loss})
    run.end_step()
    loss = look(RunTail(tmp_path)).loss
    assert loss is not None
    assert (loss.value, loss.not_finite, loss.first_not_finite) == (None, 1, 2)
    assert (loss.means, loss.means_steps) == ((1.0, 0.5), (0, 1))


def test_the_doctor_is_asked_about_the_last_steps(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(2_000, wait_us=100, work_us=9_900)
    run.step(512, wait_us=9_000, work_us=1_000)
    run.end_step()
    tail = RunTail(tmp_path)
    view = look(tail)
    recent = recent_run(tail)
    assert recent is not None
    verdict = examine(recent)
    assert verdict.primary == "DATA001"
    assert verdict.steps <= 512
    whole = examine(read_run(tmp_path))
    assert whole.shares["data"] < 0.3 < 0.8 < verdict.shares["data"]
    assert view.verdict is None


def test_a_short_run_is_judged_as_a_full_reading_is(tmp_path: Path) -> None:
    write_run(tmp_path, steps=300)
    tail = RunTail(tmp_path)
    tail.poll(0.0)
    recent = recent_run(tail)
    assert recent is not None
    verdict, expected = examine(recent), examine(read_run(tmp_path))
    assert verdict.primary == expected.primary
    assert verdict.shares == expected.shares
    assert {one.code for one in verdict.findings} == {one.code for one in expected.findings}


def test_a_view_goes_through_json_and_back(tmp_path: Path) -> None:
    write_run(tmp_path, steps=60)
    view = look(RunTail(tmp_path), is_alive=lives)
    assert from_json(to_json(view), LiveView) == view


def test_a_process_is_known_by_number_host_and_begin(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    tail = RunTail(tmp_path)
    tail.poll(0.0)
    attempt = tail.ranks[0].tail.attempt
    assert attempt is not None
    assert is_alive(attempt) is True, "this very process wrote it"
    assert is_alive(replace(attempt, host="elsewhere")) is None
    assert is_alive(replace(attempt, pid=None)) is None
    began_s = psutil.Process().create_time()
    assert is_alive(replace(attempt, started_unix_s=began_s - 60.0)) is False, "number taken over"
    free = max(psutil.pids()) + 100_000
    assert is_alive(replace(attempt, pid=free)) is False
    assert run.path.exists()
