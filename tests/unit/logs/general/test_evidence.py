"""What must hold before a number is stated, on lines of our own in shapes that were misread."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pitstop.doctor.logs.examine import examine_log
from pitstop.logs.general.read import read_general
from pitstop.logs.read import read_logs
from pitstop.records.logs.summary import LogSummary
from pitstop.records.logs.windows import WindowTable
from tests.unit.logs.general.examined import examine


def summary(path: Path, lines: list[str]) -> LogSummary:
    return examine(path, lines).summary


def reading(path: Path, lines: list[str]) -> LogSummary:
    """What follows from the reader's lines before they are asked for a second support."""
    path.write_text("\n".join(lines) + "\n")
    (run,) = read_logs([path])
    windows = run.ranks[0].windows
    assert windows is not None
    trusted = replace(windows, log=replace(windows.log, is_count_defined=True))
    rank = replace(run.ranks[0], windows=trusted)
    return examine_log(replace(run, ranks=(rank,))).summary


def table(path: Path, lines: list[str]) -> WindowTable:
    path.write_text("\n".join(lines) + "\n")
    windows = read_general(path)[0].windows
    assert windows is not None
    return windows


@pytest.mark.parametrize("head", ["[epoch 0], [iter {n} / 1487]", "Epoch 1/40 iter {n}/90000"])
def test_a_total_that_may_be_the_epochs_or_the_runs_is_not_stated(log: Path, head: str) -> None:
    found = reading(log, [head.format(n=n) + ", [train loss 0.5]" for n in range(1, 149)])
    assert found.last_step == 148
    assert found.total_steps is None
    assert found.eta is None


def test_one_number_in_two_units_is_one_series(log: Path) -> None:
    lines = [
        f"step {n} loss 0.5 iter_time {'950ms' if n % 2 else '1.05s'} eta "
        + (f"{300 - n}s" if n > 200 else f"{(300 - n) // 60}:{(300 - n) % 60:02}")
        for n in range(1, 300)
    ]
    windows = table(log, lines)
    assert len(windows) == 299
    assert set(np.round(windows.printed_step_s, 3)) == {0.95, 1.05}


def test_no_step_takes_the_night_between_two_processes(log: Path) -> None:
    lines = [
        f"[11/{16 + (n > 50)} 0{1 + n // 60}:{n % 60:02}:00] d2.utils.events INFO:  eta: 1:00:00  "
        f"iter: {100 * n + 99}  total_loss: 0.5  time: 0.6  data_time: 0.06  lr: 1e-3"
        for n in range(100)
    ]
    found = examine(log, lines)
    assert "DRIFT002" not in [one.code for one in found.verdict.findings]
    assert found.summary.step is not None
    assert found.summary.step.middle == pytest.approx(0.6)
    assert any("86460 s without a record, first before step 5199" in n for n in found.summary.notes)


def test_evaluations_and_restarts_of_detectron2_are_those_of_fast_reid(log: Path) -> None:
    lines = []
    for n in range(60):
        lines.append(
            f"[11/16 01:{n:02}:00] d2.utils.events INFO:  eta: 1:00:00  iter: {100 * n + 99}  "
            "total_loss: 0.5  time: 0.3  data_time: 0.06  lr: 1e-3"
        )
        lines.append(
            f"[11/16 01:{n:02}:30] d2.evaluation.evaluator INFO: Total inference time: "
            "0:00:30.000000 (0.01 s / iter per device, on 1 devices)"
        )
        if n == 30:
            lines.append("[11/16 01:30:31] d2.engine.train_loop INFO: Starting training from 3100")
    found = examine(log, lines)
    assert found.summary.attempts == 2
    assert found.summary.events["evaluation"].count == 60
    assert "EVAL001" in [one.code for one in found.verdict.findings]


def test_a_value_that_some_lines_do_not_have_is_not_nan(log: Path) -> None:
    lines = []
    for n in range(20, 2000, 20):
        mask = f"loss_mask: 0.{n % 7 + 1}  " if n < 1000 else ""
        at = f"{n // 1200:02}:{n // 20 % 60:02}"
        lines.append(
            f"[12/30 01:{at}] iter: {n}  total_loss: 1.{n % 9}  {mask}time: 0.05  lr: 1e-3"
        )
    found = examine(log, lines)
    assert found.summary.last_step == 1980
    assert "NAN001" not in [one.code for one in found.verdict.findings]


def test_the_time_between_several_runs_is_nobodys(log: Path) -> None:
    lines = [
        f"2031-03-{3 + day:02} 10:{epoch:02}:00 - Epoch [{epoch}/50], Train Loss: 0.{day}{at}"
        for day in range(9)
        for at, epoch in enumerate((1, 1, *range(2, 20)))
    ]
    found = summary(log, lines)
    assert (found.attempts, found.run_s) == (None, None)
    assert "timestamps" not in found.gaps


def test_a_number_of_many_decimals_is_read_whole(log: Path) -> None:
    losses = [0.0077463057823479176 / n for n in range(1, 90)]
    lines = [f"[Train {10 * n}/1882] {{'train_loss': {x!r}}}" for n, x in enumerate(losses)]
    log.write_text("\n".join(lines) + "\n")
    [run] = read_logs([log])
    assert list(run.ranks[0].scalars["train_loss"].value) == losses
    assert max(len(repr(x)) for x in losses) > len("0.0077463057823479176")


def test_rates_of_steps_that_were_not_done_are_left_out(tmp_path: Path) -> None:
    history = [{"epoch": n / 100, "loss": 1 / n, "step": n} for n in range(25, 1501, 25)]
    last = {"epoch": 15.0, "step": 1500, "train_loss": 0.1, "train_runtime": 3000.0}
    history.append({**last, "train_samples_per_second": 64.0, "train_steps_per_second": 4.0})
    state = {
        "global_step": 1500,
        "log_history": history,
        "max_steps": 12000,
        "train_batch_size": 16,
    }
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state, indent=2))
    found = examine_log(read_logs([path])[0]).summary
    assert found.rate is not None
    assert found.rate.middle == pytest.approx(8.0)  # 16 samples in the 2 s that a step took
    assert any("announced but not done" in note for note in found.notes)


def test_a_run_from_zero_that_prints_its_last_interval_is_done(log: Path) -> None:
    lines = [f"2031-03-04 10:{n:02}:00 it {10 * n}/480 train_loss 0.{n + 10}" for n in range(48)]
    assert summary(log, lines).eta is None


def test_a_rate_behind_a_learning_rate_does_not_name_it(log: Path) -> None:
    lines = [f"step:{n}/192  loss:{3 / n:.4f}  LR:1.00e-03  steps/sec:0.15" for n in range(1, 99)]
    assert "learning rate" not in summary(log, lines).gaps


def test_what_a_known_format_does_not_read_is_not_called_absent(log: Path) -> None:
    lines = [f"iter {n}: loss {3 / n:.4f}, time {50 + n % 3}.95ms, mfu 7.05%" for n in range(1, 90)]
    assert "memory" in summary(log, lines).gaps
    found = summary(log, [*lines, "peak memory 8123 MB", "began at 10:11:12"])
    assert not {"memory", "timestamps"} & set(found.gaps)


def test_a_rate_below_a_sample_a_step_is_not_stated(log: Path) -> None:
    lines = [
        f"2031-03-04 10:{n:02}:00 [Epoch 0][Batch {50 * n}], Speed: 0.7 samples/sec, loss=2.{n}"
        for n in range(50)
    ]
    found = summary(log, lines)
    assert found.step is not None
    assert found.rate is None
