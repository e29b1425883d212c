"""What must hold before a number is stated, on lines of our own in shapes that were misread."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pitstop.doctor.logs.examine import examine_log
from pitstop.errors import RecordError
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


def test_a_total_beside_an_epoch_with_decimals_is_whose_the_decimals_say(log: Path) -> None:
    of_run = [f"Epoch {1 + n / 1000:.2f} / 50, i = {n} / 50000, loss = 0.5" for n in range(1, 700)]
    assert reading(log, of_run).total_steps == 50_000
    of_epoch = [f"Epoch {n / 1000:.3f} / 50, i = {n} / 1000, loss = 0.5" for n in range(1, 700)]
    assert reading(log, of_epoch).total_steps in (None, 50_000)


@pytest.mark.parametrize("head", ["[epoch 0], [iter {n} / 1487]", "Epoch 1/40 iter {n}/90000"])
def test_a_total_that_may_be_the_epochs_or_the_runs_is_not_stated(log: Path, head: str) -> None:
    found = reading(log, [head.format(n=n) + ", [train loss 0.5]" for n in range(1, 149)])
    assert found.last_step == 148
    assert found.total_steps is None
    assert found.eta is None


def test_a_count_past_its_share_of_the_run_is_the_epochs(log: Path) -> None:
    lines = [f"Epoch 1/40 iter {n}/500 loss 0.5" for n in range(1, 149)]
    assert reading(log, lines).total_steps == 40 * 500  # a fortieth of 500 has long passed


def test_a_total_beside_lines_of_epochs_is_not_taken_for_the_runs(log: Path) -> None:
    lines = ["Epoch 1/30", *(f"iter {n}/900 loss 0.5" for n in range(1, 200))]
    assert reading(log, lines).total_steps is None
    assert reading(log, lines[1:]).total_steps == 900


@pytest.mark.parametrize(
    "line",
    [
        "Train Epoch: {epoch} [{samples}/60000 ({share}%)]\tLoss: 0.5",
        "epoch {epoch} loss: 0.5  [{first}/60000]",
    ],
)
def test_a_count_of_samples_is_no_count_of_steps(log: Path, line: str) -> None:
    lines = [
        line.format(epoch=epoch, samples=640 * n, first=640 * n + 64, share=n * 640 // 600)
        for epoch in (1, 2, 3)
        for n in range(93)
    ]
    found = summary(log, lines)
    assert (found.records, found.first_step, found.last_step) == (279, None, None)
    assert found.step is None
    assert any("a count without a name" in note for note in found.notes)


@pytest.mark.parametrize("every", [10, 20, 50, 100])
def test_a_count_of_steps_in_usual_intervals_is_one_of_steps(log: Path, every: int) -> None:
    lines = [
        f"Epoch: [{epoch}][{n}/5005] Loss 0.5" for epoch in (0, 1) for n in range(0, 5005, every)
    ]
    assert summary(log, lines).last_step == 5005 + len(lines) // 2 * every - every + 1


def test_the_time_of_a_part_is_not_the_time_of_the_step(log: Path) -> None:
    line = "[TRAIN] Epoch[{e}]({n}/75); Loss: 0.5; Backpropagation: 0.32 sec; Batch: 2.20 sec"
    lines = [line.format(e=epoch, n=n) for epoch in (1, 2) for n in range(1, 76)]
    found = summary(log, lines)
    assert found.step is not None
    assert found.step.middle == pytest.approx(2.2)
    unnamed = [one.replace("; Batch: 2.20 sec", "") for one in lines]
    assert summary(log, unnamed).step is None
    longer = [one + "; Total: 9.1 sec" for one in lines]
    assert summary(log, longer).step is None  # a longer one stands beside it


def test_one_number_in_two_units_is_one_series(log: Path) -> None:
    lines = [
        f"step {n} loss 0.5 iter_time {'950ms' if n % 2 else '1.05s'} eta "
        + (f"{300 - n}s" if n > 200 else f"{(300 - n) // 60}:{(300 - n) % 60:02}")
        for n in range(1, 300)
    ]
    windows = table(log, lines)
    assert len(windows) == 299
    assert set(np.round(windows.printed_step_s, 3)) == {0.95, 1.05}


def test_lines_that_count_the_same_and_do_not_fit_in_are_not_left_out(log: Path) -> None:
    lines = []
    for run in range(6):
        for n in range(1, 31):
            lines.append(f"Average Training accuracy 0.5 - epoch {n}/30")
            lines += [f"Average Training loss 0.5 - epoch {n}/30"] * (run > 3)
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match="180 lines that count the same do not fit in"):
        read_logs([log])


def test_records_that_a_coarse_clock_joins_are_counted_in_a_note(log: Path) -> None:
    lines = [
        f"2031-03-04 10:{n // 600:02}:{n // 10 % 60:02} step {n} loss 0.5" for n in range(1, 4000)
    ]
    found = summary(log, lines)
    assert found.records is not None
    assert found.records < 3999
    assert any(f"3999 records: they are joined to {found.records}" in one for one in found.notes)


def test_an_epoch_that_comes_twice_leaves_the_number_of_attempts_open(log: Path) -> None:
    epochs = [*range(30), *range(20, 40), 35, 35, *range(36, 50)]
    lines = [f"Epoch: {n} | Train_loss: 0.{at + 10}" for at, n in enumerate(epochs)]
    found = summary(log, lines)
    assert found.attempts is None
    assert any("several runs seem to write into one file" in note for note in found.notes)


def test_a_script_called_test_prints_lines_of_the_training(log: Path) -> None:
    lines = [f"test.py:108 - [Prompt]Epoch:0, Current step: {n}, Loss: 0.5" for n in range(90)]
    assert summary(log, lines).last_step == 89


def test_what_stands_on_other_lines_is_not_called_absent(log: Path) -> None:
    lines = []
    for n in range(20):
        lines += [f"Epoch {n}", "Current learning rate: 0.005", f"train_loss 0.{n + 10}"]
    found = summary(log, lines)
    assert found.records == 20
    assert not {"losses", "learning rate"} & set(found.gaps)
    assert any("a loss on a line of its own" in note for note in found.notes)


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


def test_a_full_bar_after_other_lines_is_the_next_epochs(log: Path) -> None:
    lines = []
    for n in range(30):
        lines.append("100%|##########| 3506/3506 [06:16<00:00,  9.32it/s]")
        lines.append(f"#####Train##### Epoch: {n}, UNetR_Loss: 4.{n}")
    found = reading(log, lines)
    assert (found.records, found.last_step) == (30, 30 * 3506)
    assert "losses" not in found.gaps


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


def test_processes_long_before_the_first_record_are_not_the_runs(log: Path) -> None:
    lines = ["2031-03-04 10:00:00 - INFO - 3 GPUs", "2031-03-07 10:00:00 - INFO - 3 GPUs"]
    lines += [
        f"2031-03-07 10:{n:02}:30 - INFO - Step {50 * n} | Loss: 0.{n + 10}" for n in range(50)
    ]
    found = summary(log, lines)
    assert found.run_s == pytest.approx(49 * 60)
    assert found.run_formula.startswith("at least: from the first record")


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


def test_a_time_that_rises_on_every_line_is_no_steps_even_where_lines_lack_it(log: Path) -> None:
    lines = []
    for n in range(1, 60):
        lines.append(f"step {10 * n}/600 | loss {3 / n:.4f} | took: {20 + 3 * n}.4 | lr 0.1")
        lines += [f"step {10 * n}/600 | Average PSNR : 28.{n}dB"] * (n % 5 == 0)
    found = summary(log, lines)
    assert found.step is None
    assert any("not understood: took" in note for note in found.notes)


def test_what_is_left_of_a_run_without_a_clock_is_the_least(log: Path) -> None:
    lines = [f"step {n}/400 loss {3 / n:.4f} step_time: 0.5s" for n in range(1, 101)]
    found = reading(log, lines)
    assert found.eta is not None
    assert found.eta.is_least
    stamped = [f"2031-03-04 10:{n // 60:02}:{n % 60:02} {line}" for n, line in enumerate(lines)]
    found = reading(log, stamped)
    assert found.eta is not None
    assert not found.eta.is_least


def test_a_run_from_zero_that_prints_its_last_interval_is_done(log: Path) -> None:
    lines = [f"2031-03-04 10:{n:02}:00 it {10 * n}/480 train_loss 0.{n + 10}" for n in range(48)]
    assert summary(log, lines).eta is None


def test_a_rate_behind_a_learning_rate_does_not_name_it(log: Path) -> None:
    lines = [f"step:{n}/192  loss:{3 / n:.4f}  LR:1.00e-03  steps/sec:0.15" for n in range(1, 99)]
    assert "learning rate" not in summary(log, lines).gaps


def test_lines_that_count_to_the_same_under_another_name_are_attempts_too(log: Path) -> None:
    lines = [
        f"Elapsed [0:{n:02}:50], Iteration [{500 * n}/9000], loss: 0.{n}" for n in range(1, 17)
    ]
    lines += [f"Elapsed [0:00:{n:02}], Iter [{n}/9000], loss: 0.{n}, avg: 1" for n in range(1, 15)]
    assert reading(log, lines).attempts == 2


def test_bars_drawn_full_do_not_hide_the_epochs(log: Path) -> None:
    lines = []
    for n in range(1, 30):
        lines += [f"Epoch [{n}/300]", "100%|####| 30/30 [09:37<00:00, 19.26s/it, loss=0.2]"]
        lines += ["100%|####| 8/8 [00:37<00:00, 4.26s/it, loss=0.3]", f"loss 0.2 - val_loss 0.{n}"]
    found = summary(log, lines)
    assert (found.records, found.last_step, found.step) == (29, None, None)


def test_one_interval_across_a_night_is_no_time_of_a_step(log: Path) -> None:
    lines = [f"2031-03-04 08:00:50 step {n}/300 loss 0.{n + 100}" for n in range(1, 100)]
    lines += [f"2031-03-04 09:07:50 step {n}/300 loss 0.{n + 100}" for n in range(100, 220)]
    found = summary(log, lines)
    assert found.step is None
    assert found.rate_gap == "fewer than three windows of the log time steps alone"


def test_records_that_all_follow_an_evaluation_begin_at_the_first_step(log: Path) -> None:
    lines = []
    for n in range(1, 9):
        lines += [f"step {500 * n}/4000 loss 0.{n}", f"Saved checkpoint at step {500 * n} to x.pt"]
    assert reading(log, lines).first_step == 1


def test_what_a_known_format_does_not_read_is_not_called_absent(log: Path) -> None:
    lines = [f"iter {n}: loss {3 / n:.4f}, time {50 + n % 3}.95ms, mfu 7.05%" for n in range(1, 90)]
    assert "memory" in summary(log, lines).gaps
    found = summary(log, [*lines, "peak memory 8123 MB", "began at 10:11:12"])
    assert not {"memory", "timestamps"} & set(found.gaps)


def test_an_evaluation_that_counts_under_the_same_name_is_not_the_training(log: Path) -> None:
    lines = []
    for epoch in range(1, 6):
        lines.append(f"Epoch {epoch}/10")
        lines += [f"step {n}/600 - loss: 0.{n} - 3s/step" for n in range(10, 601, 10)]
        lines += [f"step {n}/80 - loss: 0.{n} - 3s/step" for n in range(10, 81, 10)]
    found = summary(log, lines)
    assert found.last_step == 5 * 600
    assert found.step is None  # 3 s in whole numbers may be 2.5


def test_a_count_around_one_that_runs_to_its_total_is_no_step(log: Path) -> None:
    at = [100 * n for n in range(1, 40)]
    lines = [
        f"2031-03-04 10:{n // 290:02}:00 iteration:{n // 29 + 1} step:{n % 29}/29, loss: 2.{n}"
        for n in at
    ]
    found = summary(log, lines)
    assert (found.records, found.last_step, found.attempts) == (39, None, 1)


def test_two_trainings_that_take_turns_are_not_one(log: Path) -> None:
    lines = []
    for _ in range(2):
        lines += [f"[Train] Epoch: {n}, Loss:0.0{n + 10}" for n in range(80)]
        lines += [f"[Train Classifier] Epoch: {n}, Accuracy:9{n % 7}.1" for n in range(20)]
    found = reading(log, lines)
    assert (found.records, found.attempts) == (160, 2)


def test_a_loss_at_a_step_counts_steps(log: Path) -> None:
    lines = [f"2031-03-04 10:00:{n % 60:02},1{n}0: Loss at step {n}: 8.{n}" for n in range(1, 60)]
    assert summary(log, lines).last_step == 59


def test_a_rate_below_a_sample_a_step_is_not_stated(log: Path) -> None:
    lines = [
        f"2031-03-04 10:{n:02}:00 [Epoch 0][Batch {50 * n}], Speed: 0.7 samples/sec, loss=2.{n}"
        for n in range(50)
    ]
    found = summary(log, lines)
    assert found.step is not None
    assert found.rate is None


def test_runs_begun_anew_are_not_one_that_gets_slower(log: Path) -> None:
    lines = []
    for run, seconds in enumerate((1, 1, 2, 3)):
        at = 3600 * run
        for n in range(1, 40):
            at += seconds
            clock = f"{10 + at // 3600}:{at // 60 % 60:02}:{at % 60:02}"
            lines.append(f"2031-03-04 {clock} step {n} loss 0.{n + 10}")
    found = examine(log, lines)
    assert found.summary.attempts == 4
    assert not [one.code for one in found.verdict.findings if one.code.startswith("DRIFT")]


def test_a_time_that_only_the_user_can_tell_is_named_with_its_option(log: Path) -> None:
    lines = [f"iter {10 * n}: loss {3 / n:.4f}, took 2.{n % 3}5s" for n in range(1, 60)]
    found = summary(log, lines)
    assert found.step is None
    assert found.rate_gap is not None
    assert found.rate_gap.endswith("if took is one: --time took")
