"""The closing checklist: each check passes on a sound run and fails on the fault it is for."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.records.verify.checklist import CheckRow
from pitstop.train.run import TrainingRun
from pitstop.verify.checks import check_run, loss_fall
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock
from tests.unit.train.runs import LineTask, line_config


def recorded(
    folder: Path,
    *,
    loss: list[float],
    about: Mapping[str, object] | None = None,
    status: str | None = "finished",
) -> Path:
    """A run of 40 steps, with these losses at its first ones."""
    time = FakeClock()
    about = {"name": "run", "total_steps": 40} if about is None else about
    writer = RecordWriter(str(folder / "rank-0.jsonl"), dict(about), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for step in range(40):
        clock.begin_step(step)
        with clock.span("data"):
            time.advance(1_000)
        clock.count(samples=4)
        if step < len(loss):
            writer.scalars(step, {"loss": loss[step]})
    clock.close()
    writer.close(status or "finished")
    if status is None:  # killed: its last line is missing
        path = folder / "rank-0.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    return folder


FALLING = [math.exp(-step / 10) for step in range(40)]


def rows_of(run: Path, **targets: float) -> dict[str, CheckRow]:
    return {row.name: row for row in check_run(run, targets).rows}


def test_a_loss_that_falls_passes_and_one_that_stays_fails(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal(40)
    falling = rows_of(recorded(tmp_path / "a", loss=FALLING))["loss falls"]
    flat = rows_of(recorded(tmp_path / "b", loss=(1 + 0.1 * noise).tolist()))["loss falls"]
    rising = rows_of(recorded(tmp_path / "c", loss=FALLING[::-1]))["loss falls"]
    assert (falling.standing, flat.standing, rising.standing) == ("pass", "fail", "fail")


@pytest.mark.parametrize("values", [10, 12, 25, 60])
def test_a_loss_that_falls_at_once_and_then_stays_low_has_fallen(values: int) -> None:
    losses = 1.18 + 2.8 * np.exp(-2.0 * np.arange(values)) + 0.01 * np.arange(values, 0, -1)
    change, p_value = loss_fall(losses)
    assert change is not None
    assert change < -0.2
    assert p_value is not None
    assert p_value < 0.05
    _, rising = loss_fall(losses[::-1].copy())
    assert rising is not None
    assert rising > 0.95


def test_noise_is_taken_for_a_fall_as_often_as_the_test_says() -> None:
    draws = np.random.default_rng(0).standard_normal((2_000, 20))
    found = [loss_fall(row)[1] for row in draws]
    assert 0.02 < np.mean([p is not None and p < 0.05 for p in found]) < 0.06


def test_too_few_losses_are_not_recorded_rather_than_passed(tmp_path: Path) -> None:
    found = check_run(recorded(tmp_path, loss=FALLING[:9]), {})
    row = next(row for row in found.rows if row.name == "loss falls")
    assert (row.standing, row.value) == ("not recorded", None)
    assert found.outcome == "incomplete"


def test_a_value_that_is_not_finite_fails(tmp_path: Path) -> None:
    row = rows_of(recorded(tmp_path, loss=[*FALLING[:-1], math.nan]))["every value is finite"]
    assert (row.standing, row.value) == ("fail", 1)


@pytest.mark.parametrize("status", [None, "failed", "interrupted"])
def test_a_run_that_did_not_end_in_order_fails(tmp_path: Path, status: str | None) -> None:
    row = rows_of(recorded(tmp_path, loss=FALLING, status=status))["runs to its end"]
    assert row.standing == "fail"


def test_a_run_that_finished_early_fails(tmp_path: Path) -> None:
    about = {"name": "run", "total_steps": 41}
    row = rows_of(recorded(tmp_path, loss=FALLING, about=about))["runs to its end"]
    assert (row.standing, row.value, row.target) == ("fail", 40, 41)


def test_targets_come_from_the_run_and_from_the_caller(tmp_path: Path) -> None:
    about = {"name": "run", "total_steps": 40, "targets": {"data_wait_ms": 0.5}}
    run = recorded(tmp_path, loss=FALLING, about=about)
    own = rows_of(run)
    assert (own["data wait"].standing, own["data wait"].value) == ("fail", 1.0)
    assert own["device busy"].standing == "no target"
    given = rows_of(run, data_wait_ms=2.0, gpu_busy=0.9, samples_per_s=3_999.0)
    assert given["data wait"].standing == "pass"
    assert given["device busy"].standing == "not recorded"
    assert given["samples/s"].standing == "pass"


def test_a_run_of_the_engine_has_its_targets_and_its_checkpoint(tmp_path: Path) -> None:
    config = line_config(tmp_path, targets__data_wait_ms=1e6)
    TrainingRun(config=config, config_yaml="", task=LineTask()).run()
    rows = rows_of(tmp_path / "run")
    assert rows["data wait"].standing == "pass"
    assert rows["checkpoint reads back"].standing == "pass"
    assert rows["resumes"].standing == "not recorded"
    newest = max((tmp_path / "run" / "checkpoints").glob("save-*"))
    (newest / "common.pt").write_bytes(b"x" + (newest / "common.pt").read_bytes()[1:])
    assert rows_of(tmp_path / "run")["checkpoint reads back"].standing == "fail"


def test_a_resumed_run_has_lost_no_step(tmp_path: Path) -> None:
    for steps, resume in ((5, None), (9, "auto")):
        config = line_config(tmp_path, train__steps=steps)
        TrainingRun(config=config, config_yaml="", task=LineTask(), resume=resume).run()
    assert rows_of(tmp_path / "run")["resumes"].standing == "pass"


@settings(max_examples=50)
@given(values=st.lists(st.floats(-1e3, 1e3), min_size=10, max_size=60), scale=st.floats(0.01, 100))
def test_whether_a_loss_falls_does_not_depend_on_its_unit(
    values: list[float], scale: float
) -> None:
    _, one = loss_fall(np.array(values))
    _, other = loss_fall(scale * np.array(values))
    assert one is not None
    assert other is not None
    assert one == pytest.approx(other, abs=1e-6)
