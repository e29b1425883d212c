"""One short run tightens a plan; records are generated."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.errors import PitstopError
from pitstop.plan.calibration import MeasuredRun, at_measured_pace, calibrate
from pitstop.plan.gpus import find_gpu
from pitstop.plan.memory import WORKSPACE_BYTES, Gpu, plan_memory
from pitstop.plan.speed import plan_speed
from pitstop.records.engine import EngineSetup
from pitstop.records.host.memory import DeviceMemory, MemoryReading
from pitstop.records.plans.plan import MemoryPlan, OperationRow, StepTrace
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock

GIB = 2**30
GPU = Gpu(name="gpu", num_bytes=80 * GIB)
SETTINGS = {"train.batch_size": 2, "model.depth": 4, "data.crop": [64, 64]}


def trace(*, batch_size: int, activations: int) -> StepTrace:
    return StepTrace(
        model="Net",
        parameters=1000,
        batch_size=batch_size,
        precision="bf16",
        recompute="none",
        kernels="auto",
        optimizer="adamw",
        owners={"parameters": GIB, "optimizer state": 2 * GIB, "activations": activations},
        peak_bytes=3 * GIB + activations,
        peak_place=("backward",),
        peak_operation="mm",
        saved_bytes=activations,
        gradient_bytes=GIB,
        reserved_bytes=3 * GIB + activations,
        optimizer_bytes={"adamw": 2 * GIB},
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


def written(
    folder: Path, *peaks: int, evaluated_after: int | None = None, steps_us: tuple[int, ...] = ()
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
    for step, peak in enumerate(peaks):
        time.advance(1_000_000)
        writer.reading("memory", {"step": step, **asdict(reading(peak))})
        if step == evaluated_after:
            writer.event("evaluation", step=step, start_us=time.now_us(), wall_us=10)
    clock = Clock(writer, now_us=time.now_us)
    for step_us in steps_us:
        clock.begin_step()
        time.advance(step_us)
    clock.end_step()
    writer.close("finished", "")
    return folder


def test_a_run_is_read_with_the_settings_that_it_had(tmp_path: Path) -> None:
    run = MeasuredRun(written(tmp_path / "run", 9 * GIB, 10 * GIB))
    assert run.peak_bytes == 10 * GIB
    assert run.overrides() == (
        "train.batch_size=2",
        "train.precision=bf16",
        "train.recompute=full",
    )


def test_the_peak_of_an_evaluation_is_not_that_of_a_step(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", 10 * GIB, 10 * GIB, 60 * GIB, evaluated_after=1)
    assert MeasuredRun(folder).peak_bytes == 10 * GIB


@pytest.mark.parametrize("share", [0.9, 1.0, 1.04])
def test_what_a_run_measured_is_what_its_own_settings_are_planned_as(
    tmp_path: Path, share: float
) -> None:
    of_run = trace(batch_size=2, activations=20 * GIB)
    measured = 3 * GIB + round(share * (20 * GIB + WORKSPACE_BYTES))
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
        return 3 * GIB + round(overhead * (size * GIB + WORKSPACE_BYTES))

    run = MeasuredRun(written(tmp_path_factory.mktemp("runs") / "run", device(2)))
    of_run = trace(batch_size=2, activations=2 * GIB)
    planned = plan_memory("x", trace(batch_size=batch, activations=batch * GIB), GPU)
    assert calibrate(planned, run, of_run).peak_bytes == pytest.approx(device(batch), rel=1e-6)


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


def planned_steps(count: int) -> MemoryPlan:
    plan = plan_memory("run.yaml", timed(count), GPU)
    return replace(plan, speed=plan_speed(timed(count), H200, samples=1000))


def test_steps_are_planned_at_the_pace_of_a_run(tmp_path: Path) -> None:
    # Steps of 0.3 s; the first ones are slow and do not count.
    folder = written(tmp_path / "run", 20 * GIB, steps_us=(9_000_000,) * 5 + (300_000,) * 12)
    plan = planned_steps(200)
    paced = at_measured_pace(plan, MeasuredRun(folder), timed(100), H200)
    assert plan.speed is not None
    assert paced.speed is not None
    # Twice the operations of the run take twice its time, not what the data sheet says.
    assert paced.speed.step_s == pytest.approx(0.6)
    assert paced.speed.samples_per_s == pytest.approx(2 / 0.6)
    assert paced.speed.epoch_s == pytest.approx(1000 / 2 * 0.6)
    assert paced.speed.low_s < paced.speed.step_s < paced.speed.high_s
    assert f"corrected by {folder}" in paced.speed.basis


def test_a_run_on_another_gpu_or_of_few_steps_gives_no_pace(tmp_path: Path) -> None:
    plan = planned_steps(200)
    short = MeasuredRun(written(tmp_path / "short", 20 * GIB, steps_us=(300_000,) * 8))
    elsewhere = MeasuredRun(written(tmp_path / "run", 20 * GIB, steps_us=(300_000,) * 30))
    for paced, reason in (
        (at_measured_pace(plan, short, timed(100), H200), "it took fewer than 10 steps"),
        (at_measured_pace(plan, elsewhere, timed(100), find_gpu("L4")), "it ran on H200"),
    ):
        assert paced.speed == plan.speed
        assert reason in paced.notes[-1]
