"""One short run tightens a plan; records are generated."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pitstop.errors import PitstopError
from pitstop.plan.calibration import (
    STEADY,
    STEP_HIGH,
    STEP_LOW,
    MeasuredRun,
    calibrate,
    measured_pace,
    pace_factors,
    steady_share,
)
from pitstop.plan.gpus import find_gpu
from pitstop.plan.memory import WORKSPACE_BYTES, Gpu, plan_memory
from pitstop.plan.speed import AS_PLANNED, plan_speed
from pitstop.records.engine import EngineSetup
from pitstop.records.host.memory import DeviceMemory, GpuLoad, HostLoad, MemoryReading
from pitstop.records.plans.plan import OperationRow, StepTrace
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock

GIB, MIB = 2**30, 2**20
GPU = Gpu(name="gpu", num_bytes=80 * GIB)
SETTINGS = {"train.batch_size": 2, "model.depth": 4, "data.crop": [64, 64]}


def trace(*, batch_size: int, activations: int, weights: int = GIB) -> StepTrace:
    return StepTrace(
        model="Net",
        parameters=1000,
        batch_size=batch_size,
        precision="bf16",
        recompute="none",
        kernels="auto",
        optimizer="adamw",
        owners={
            "parameters": weights,
            "optimizer state": 2 * weights,
            "activations": activations,
        },
        peak_bytes=3 * weights + activations,
        peak_place=("backward",),
        peak_operation="mm",
        saved_bytes=activations,
        gradient_bytes=weights,
        reserved_bytes=3 * weights + activations,
        optimizer_bytes={"adamw": 2 * weights},
        operations=(),
    )


def reading(peak_bytes: int) -> MemoryReading:
    device = DeviceMemory(
        device="cuda:0",
        total_bytes=80 * GIB,
        allocated_bytes=3 * GIB,
        reserved_bytes=peak_bytes,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=peak_bytes,
        alloc_retries=0,
        ooms=0,
    )
    return MemoryReading(
        at_s=0.0,
        devices=(device,) if peak_bytes else (),
        tree=None,
        host_total_bytes=None,
        host_available_bytes=None,
        cgroup_limit_bytes=None,
        cgroup_usage_bytes=None,
        cgroup_working_bytes=None,
        pinned_bytes=None,
        shm_used_bytes=None,
        shm_total_bytes=None,
        cost_s=0.0,
        notes=(),
    )


STEPS_US = (300_000,) * 20


def load(busy_share: float) -> HostLoad:
    """A GPU that computes this much of the time."""
    unknown = dict.fromkeys(field.name for field in fields(GpuLoad))
    gpu = GpuLoad(**{**unknown, "index": 0, "busy_share": busy_share})
    unknown = dict.fromkeys(field.name for field in fields(HostLoad))
    return HostLoad(**{**unknown, "at_s": 0.0, "gpus": (gpu,), "cost_s": 0.0, "notes": ()})


def written(
    folder: Path,
    *peaks: int,
    evaluated_after: int | None = None,
    steps_us: tuple[int, ...] = (),
    loads: int = 0,
    busy_share: float = 0.4,
    busy_shares: Sequence[float] = (),
    data_us: int = 0,
    shards: Mapping[str, object] | None = None,
) -> Path:
    """A run of the engine: readings, an evaluation where asked for, and steps."""
    time = FakeClock()
    folder.mkdir()
    writer = RecordWriter(str(folder / "rank-0.jsonl"), now_us=time.now_us)
    setup = EngineSetup(
        model="Net", parameters=1000, number_format="bfloat16", device="H200", settings=SETTINGS
    )
    writer.reading("engine", asdict(setup))
    writer.reading("applied", {"setting": "train.recompute", "proof": {"policy": "full"}})
    if shards:
        writer.reading("applied", {"setting": "train.shard", "proof": dict(shards)})
    for step, peak in enumerate(peaks):
        time.advance(1_000_000)
        writer.reading("memory", {"step": step, **asdict(reading(peak))})
        if step == evaluated_after:
            writer.event("evaluation", step=step, start_us=time.now_us(), wall_us=10)
    clock = Clock(writer, now_us=time.now_us)
    for step_us in steps_us:
        clock.begin_step()
        with clock.span("data"):
            time.advance(data_us)
        time.advance(step_us)
    clock.end_step()
    for step, share in enumerate(busy_shares or (busy_share,) * loads):
        writer.reading("load", {"step": step, **asdict(load(share))})
    writer.close("finished", "")
    return folder


def test_a_run_is_read_with_the_settings_that_it_had(tmp_path: Path) -> None:
    run = MeasuredRun(written(tmp_path / "run", 9 * GIB, 10 * GIB))
    assert run.ranks == 1
    assert run.peak_bytes == 10 * GIB
    assert run.overrides() == (
        "train.batch_size=2",
        "train.precision=bf16",
        "train.recompute=full",
    )


@pytest.mark.parametrize(
    ("facts", "settings"),
    [
        ({}, ("train.shard=none", "train.shard_ranks=null")),
        ({"kind": "full", "ranks": 4}, ("train.shard=full", "train.shard_ranks=null")),
        ({"kind": "hybrid", "ranks": 2}, ("train.shard=hybrid", "train.shard_ranks=2")),
    ],
)
def test_a_run_of_several_ranks_is_planned_as_divided_as_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, object],
    settings: tuple[str, ...],
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    run = MeasuredRun(written(tmp_path / "run", GIB, shards=facts))
    assert run.ranks == 4
    assert run.overrides()[-2:] == settings


def test_the_peak_of_an_evaluation_is_not_that_of_a_step(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", 10 * GIB, 10 * GIB, 60 * GIB, evaluated_after=1)
    assert MeasuredRun(folder).peak_bytes == 10 * GIB


@pytest.mark.parametrize("share", [0.9, 1.0, 1.04])
def test_what_a_run_measured_is_what_its_own_settings_are_planned_as(
    tmp_path: Path, share: float
) -> None:
    of_run = trace(batch_size=2, activations=20 * GIB)
    measured = 3 * GIB + round(share * 20 * GIB) + WORKSPACE_BYTES
    run = MeasuredRun(written(tmp_path / "run", measured))
    blind = plan_memory("run.yaml", of_run, GPU)
    plan = calibrate(blind, run, of_run)
    assert plan.peak_bytes == pytest.approx(measured, rel=1e-9)
    assert plan.high_bytes - plan.low_bytes < blind.high_bytes - blind.low_bytes
    assert sum(row.num_bytes for row in plan.ledger) == plan.peak_bytes


def test_weights_are_not_multiplied(tmp_path: Path) -> None:
    of_run = trace(batch_size=2, activations=20 * GIB)
    planned = trace(batch_size=4, activations=40 * GIB)
    run = MeasuredRun(written(tmp_path / "run", 3 * GIB + 22 * GIB))
    plan = calibrate(plan_memory("run.yaml", planned, GPU), run, of_run)
    # 10 % more of what belongs to samples, and of the 3 GiB of weights and state nothing.
    assert plan.peak_bytes == pytest.approx(3 * GIB + 44 * GIB, rel=0.005)
    assert plan.calibration is not None
    assert plan.calibration.factor == pytest.approx(1.1, rel=0.01)


@given(batch=st.integers(1, 64), overhead=st.floats(0.8, 1.3))
def test_a_device_that_takes_a_constant_factor_more_is_planned_exactly(
    tmp_path_factory: pytest.TempPathFactory, batch: int, overhead: float
) -> None:
    """The oracle: a device whose samples take `overhead` times what the dry run says."""

    def device(size: int) -> int:
        return 3 * GIB + round(overhead * size * 20 * GIB) + WORKSPACE_BYTES

    run = MeasuredRun(written(tmp_path_factory.mktemp("runs") / "run", device(2)))
    of_run = trace(batch_size=2, activations=40 * GIB)
    planned = plan_memory("x", trace(batch_size=batch, activations=batch * 20 * GIB), GPU)
    assert calibrate(planned, run, of_run).peak_bytes == pytest.approx(device(batch), rel=1e-3)


def test_what_libraries_take_does_not_grow_with_the_batch(tmp_path: Path) -> None:
    """As `configs/reid/demo.yaml` was on an H200: 110 MiB at batch 16, and 144 at 32."""
    of_run = trace(batch_size=16, activations=42 * MIB, weights=14 * MIB)
    twice = trace(batch_size=32, activations=69 * MIB, weights=14 * MIB)
    run = MeasuredRun(written(tmp_path / "run", 110 * MIB))
    plan = calibrate(plan_memory("x", twice, GPU), run, of_run)
    # The dry run has 84 MiB, so libraries take 26, and samples what they were planned to.
    assert plan.peak_bytes == pytest.approx((3 * 14 + 69 + 26) * MIB, rel=0.01)
    assert plan.low_bytes < 144 * MIB < plan.high_bytes
    assert plan.calibration is not None
    assert plan.calibration.factor == pytest.approx(1, abs=0.01)
    assert plan.calibration.workspace_bytes == pytest.approx(26 * MIB, rel=0.02)
    assert sum(row.num_bytes for row in plan.ledger) == plan.peak_bytes


@given(
    samples_mib=st.floats(1, 40_000),
    times=st.floats(0.1, 32),
    of_run_mib=st.floats(28, 212),
    change_mib=st.floats(-111, 52),
)
# A run whose samples hide what libraries take, and a plan with few samples.
@example(samples_mib=21911.0, times=0.1015625, of_run_mib=28.0, change_mib=-23.0)
@example(samples_mib=21911.0, times=0.1, of_run_mib=212.0, change_mib=52.0)
def test_an_interval_holds_whatever_libraries_were_seen_to_take(
    tmp_path_factory: pytest.TempPathFactory,
    samples_mib: float,
    times: float,
    of_run_mib: float,
    change_mib: float,
) -> None:
    """The oracle: a dry run that is right, and libraries as in the runs that were compared."""
    samples, other = round(samples_mib * MIB), round(times * samples_mib * MIB)
    libraries = round(of_run_mib * MIB)
    of_run = trace(batch_size=10, activations=samples, weights=14 * MIB)
    planned = trace(batch_size=20, activations=other, weights=14 * MIB)
    folder = tmp_path_factory.mktemp("runs") / "run"
    run = MeasuredRun(written(folder, of_run.peak_bytes + libraries))
    own = calibrate(plan_memory("x", of_run, GPU), run, of_run)
    assert own.peak_bytes == pytest.approx(run.peak_bytes, rel=1e-6)
    plan = calibrate(plan_memory("x", planned, GPU), run, of_run)
    measured = planned.peak_bytes + max(0, libraries + round(change_mib * MIB))
    assert plan.low_bytes <= measured <= plan.high_bytes


def test_a_run_without_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PitstopError, match="no device memory was read before its first evaluation"):
        MeasuredRun(written(tmp_path / "run", 0, 0))


def test_a_run_of_another_model_or_other_samples_is_refused(tmp_path: Path) -> None:
    run = MeasuredRun(written(tmp_path / "run", 10 * GIB))
    own = trace(batch_size=2, activations=GIB)
    run.require_same_model(own, {"model.depth": 4, "data.crop": (64, 64), "train.batch_size": 9})
    with pytest.raises(PitstopError, match=r"data\.crop differ from the planned"):
        run.require_same_model(own, {"model.depth": 4, "data.crop": (128, 128)})
    other = StepTrace(**{**{f: getattr(own, f) for f in own.__slots__}, "parameters": 7})
    with pytest.raises(PitstopError, match="a Net of 1,000 parameters, and the plan is of a Net"):
        run.require_same_model(other, {})


H200 = find_gpu("H200")
WORK = OperationRow(
    part="forward", name="mm", flops=10**12, num_bytes=10**9, dtype="bfloat16", count=100
)


def timed(count: int) -> StepTrace:
    return replace(
        trace(batch_size=2, activations=20 * GIB), operations=(replace(WORK, count=count),)
    )


def test_steps_are_planned_at_the_pace_of_a_run(tmp_path: Path) -> None:
    # Steps of 0.3 s; the first ones are slow and do not count.
    folder = written(tmp_path / "run", 20 * GIB, steps_us=(9_000_000,) * 5 + (300_000,) * 12)
    pace, notes = measured_pace(MeasuredRun(folder), timed(100), H200)
    speed = plan_speed(timed(200), replace(H200, pace=pace), samples=1000)
    # Twice the operations of the run take twice its time, not what the data sheet says.
    assert notes == ()
    assert speed.step_s == pytest.approx(0.6)
    assert speed.samples_per_s == pytest.approx(2 / 0.6)
    assert speed.epoch_s == pytest.approx(1000 / 2 * 0.6)
    assert speed.low_s == pytest.approx(STEP_LOW * speed.step_s)
    assert speed.high_s == pytest.approx(STEP_HIGH * speed.step_s)
    assert f"corrected by {folder}" in speed.basis


def test_a_run_on_another_gpu_or_of_few_steps_gives_no_pace(tmp_path: Path) -> None:
    short = MeasuredRun(written(tmp_path / "short", 20 * GIB, steps_us=(300_000,) * 8))
    elsewhere = MeasuredRun(written(tmp_path / "run", 20 * GIB, steps_us=(300_000,) * 30))
    for (pace, notes), reason in (
        (measured_pace(short, timed(100), H200), "it took fewer than 10 steps"),
        (measured_pace(elsewhere, timed(100), find_gpu("L4")), "it ran on H200"),
    ):
        assert pace == AS_PLANNED
        assert reason in notes[-1]


def test_a_gpu_that_was_seen_waiting_says_that_the_host_took_the_time(tmp_path: Path) -> None:
    # A step of 0.3 s whose kernels are planned as the longer side, with the device at 40 %.
    seen = [written(tmp_path / f"{loads}", GIB, steps_us=STEPS_US, loads=loads) for loads in (2, 3)]
    few, enough = (MeasuredRun(folder) for folder in seen)
    assert few.busy_share is None
    assert enough.busy_share == pytest.approx(0.4)
    planned = plan_speed(timed(100), H200)
    pace, _ = measured_pace(enough, timed(100), H200)
    assert pace.host == pytest.approx(0.3 / planned.launch_s)
    assert pace.device == pytest.approx(0.4 * 0.3 / planned.device_s)


def test_a_gpu_that_waits_a_little_is_planned_by_what_it_computed(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", GIB, steps_us=STEPS_US, loads=3, busy_share=0.8)
    pace, _ = measured_pace(MeasuredRun(folder), timed(100), H200)
    planned = plan_speed(timed(100), H200)
    assert pace.device == pytest.approx(0.8 * 0.3 / planned.device_s)
    assert pace.idle_s == pytest.approx(0.2 * 0.3)
    own, twice = (plan_speed(timed(n), replace(H200, pace=pace)) for n in (100, 200))
    assert own.step_s == pytest.approx(0.3)
    assert twice.step_s == pytest.approx(2 * 0.8 * 0.3 + 0.2 * 0.3)
    assert "60 ms idle" in own.basis


def test_readings_of_a_gpu_that_disagree_say_nothing(tmp_path: Path) -> None:
    # What the driver said of two steps on an H200: the first is a network that fills the GPU, the
    # second one whose host was late, of which a profile saw the GPU compute for 0.61.
    steady = (0.81, 0.97, 0.86, 0.8, 0.94, 0.81, 0.83)
    scattered = (0.34, 1.0, 0.72, 0.6, 0.96, 0.4, 0.87, 0.77)
    assert steady_share(steady) == 0.83
    assert steady_share(scattered) is None
    folder = written(tmp_path / "run", GIB, steps_us=STEPS_US, busy_shares=scattered)
    unseen = written(tmp_path / "unseen", GIB, steps_us=STEPS_US)
    pace, same = (measured_pace(MeasuredRun(each), timed(100), H200) for each in (folder, unseen))
    assert replace(pace[0], run="") == replace(same[0], run="")


@given(st.lists(st.floats(0, 1), min_size=3, max_size=40), st.floats(0, 0.5))
def test_where_readings_agree_their_median_is_taken(shares: list[float], width: float) -> None:
    close = [0.5 + width * (share - 0.5) for share in shares]
    spread = max(close) - min(close)
    if spread < STEADY:
        assert steady_share(close) == median(close)
    assert steady_share(close[:2]) is None


def test_waits_for_data_are_no_part_of_a_run_s_pace(tmp_path: Path) -> None:
    # As long again is waited for data, so 40 % of the time is 80 % of the time with a batch.
    folder = written(tmp_path / "run", GIB, steps_us=STEPS_US, loads=3, data_us=300_000)
    run = MeasuredRun(folder)
    assert run.step_s == pytest.approx(0.3)
    assert run.busy_share == pytest.approx(0.8)


SECONDS = st.floats(1e-3, 10)


@given(step_s=SECONDS, launch_s=SECONDS, device_s=SECONDS)
def test_a_run_is_planned_as_it_was_measured(
    step_s: float, launch_s: float, device_s: float
) -> None:
    host, device, idle_s = pace_factors(step_s, launch_s=launch_s, device_s=device_s)
    assert max(host * launch_s, device * device_s) == pytest.approx(step_s)
    assert idle_s == 0
    # What did not take the time is left as planned unless the step was shorter.
    slack = min(host * launch_s, device * device_s)
    assert slack == pytest.approx(min(launch_s, device_s, step_s))


@given(step_s=SECONDS, launch_s=SECONDS, device_s=SECONDS, busy_share=st.floats(0.01, 1))
def test_however_busy_a_device_was_its_run_is_planned_as_it_was_measured(
    step_s: float, launch_s: float, device_s: float, busy_share: float
) -> None:
    host, device, idle_s = pace_factors(
        step_s, launch_s=launch_s, device_s=device_s, busy_share=busy_share
    )
    assert max(host * launch_s, device * device_s) + idle_s == pytest.approx(step_s)
    # A device that was watched took as long as it was seen to.
    assert device * device_s == pytest.approx(busy_share * step_s)
    assert idle_s >= 0


def test_what_a_device_waited_does_not_grow_with_the_batch() -> None:
    """A BEV network in fp32 on an H200: steps in ms, and what a profile says of their kernels."""
    kernels = {4: 98.8, 8: 170.4, 32: 573.2}
    steps = {4: 119.9, 8: 180.3, 32: 581.1}
    host, device, idle_ms = pace_factors(
        steps[4], launch_s=64, device_s=95, busy_share=kernels[4] / steps[4]
    )
    assert device * 95 == pytest.approx(kernels[4])
    for batch in (8, 32):
        grown = 95 * kernels[batch] / kernels[4]
        assert max(host * 64, device * grown) + idle_ms == pytest.approx(steps[batch], rel=0.07)
        # The whole step as its kernels' time is a fifth too much.
        assert steps[4] / 95 * grown > 1.1 * steps[batch]
