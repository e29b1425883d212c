"""The general reader, on lines of our own invention in the shapes that public logs have."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.doctor.logs.examine import examine_log
from pitstop.errors import RecordError
from pitstop.logs.general.read import FieldHints, Understanding, read_general
from pitstop.logs.general.tokens import NUMBER, slots_of
from pitstop.logs.read import read_logs
from pitstop.records.logs.windows import WindowTable
from pitstop.records.run import RankRecord, RunRecord


def read(
    path: Path, lines: list[str], hints: FieldHints | None = None
) -> tuple[RankRecord, WindowTable]:
    path.write_text("\n".join(lines) + "\n")
    rank, _ = read_general(path, hints)
    assert rank.windows is not None
    return rank, rank.windows


def understood(path: Path, lines: list[str]) -> Understanding:
    path.write_text("\n".join(lines) + "\n")
    return read_general(path)[1]


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"2031-03-04 {whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02},000"


SLOTS = [
    ("loss: 0.3", "loss", ""),
    ("loss=0.3", "loss", ""),
    ("0.5 samples/s", "", "rate of samples"),
    ("dt: 52ms", "dt", "time"),
    ("3.1 it/s", "", "rate of steps"),
    ("eta 1:02:03", "eta", "duration"),
    ("time 0.31s", "time", "time"),
    ("step_ms=4", "step_ms", "time"),
    ("Time (ms): 4", "Time", "time"),
    ('{"loss": 0.3}', "loss", ""),
    ("1.5 s/it", "", "time of a step"),
    ("mem 9.8GB", "mem", "bytes"),
]


@pytest.mark.parametrize(("text", "name", "unit"), SLOTS)
def test_a_number_is_named_by_the_text_around_it(text: str, name: str, unit: str) -> None:
    parts = NUMBER.split(text.encode())
    [slot] = slots_of(parts[::2], parts[1::2])
    assert (slot.name, slot.unit) == (name, unit)


NAMES = st.text("bcdfghklmopqruvwxyz_", min_size=3, max_size=9).filter(
    lambda name: name.strip("_") == name and not name.endswith(("_s", "_ms", "_us", "_gb", "_mb"))
)


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(NAMES, min_size=1, max_size=5, unique=True),
    sep=st.sampled_from([": ", "=", ":", " = "]),
    between=st.sampled_from([", ", " | ", "  ", "; "]),
    value=st.floats(0.001, 999, allow_nan=False),
)
def test_names_and_numbers_come_back(
    names: list[str], sep: str, between: str, value: float
) -> None:
    line = between.join(f"{name}{sep}{value:.4f}" for name in names)
    parts = NUMBER.split(line.encode())
    assert [slot.name for slot in slots_of(parts[::2], parts[1::2])] == names
    assert [float(text) for text in parts[1::2]] == [float(f"{value:.4f}")] * len(names)


@settings(max_examples=30, deadline=None)
@given(
    every=st.integers(1, 50),
    word=st.sampled_from(["step", "iter", "Iteration", "global_step", "batch"]),
    sep=st.sampled_from([" ", ": ", "="]),
    rows=st.integers(5, 30),
)
def test_steps_and_clock_come_back(
    tmp_path_factory: pytest.TempPathFactory, every: int, word: str, sep: str, rows: int
) -> None:
    path = tmp_path_factory.mktemp("logs") / "own.log"
    lines = [f"{clock(60 * n)} {word}{sep}{every * n} loss{sep}{1 / n:.3f}" for n in range(1, rows)]
    _, table = read(path, lines)
    assert table.last_step.tolist() == [every * n for n in range(1, rows)]
    assert np.nanmedian(table.step_s) == pytest.approx(60 / every)


def test_the_line_of_the_guide_is_read(log: Path) -> None:
    lines = [
        f"step {n}/8880 | epoch 1 | loss 0.02{n % 7} | 0.5 samples/s | data_time=0.1ms"
        for n in range(50, 1000, 50)
    ]
    log.write_text("\n".join(lines) + "\n")
    [run] = read_logs([log])
    table = run.ranks[0].windows
    assert table is not None
    assert table.last_step[-1] == 950
    assert table.log.total_steps == 8880
    assert np.allclose(table.samples_per_s, 0.5)
    assert np.allclose(table.data_s, 1e-4)


def test_a_time_that_may_be_of_one_step_or_of_ten_is_not_understood(log: Path) -> None:
    lines = [f"at step {n}: loss 2.1, time 45.{n % 9}ms" for n in range(0, 500, 10)]
    _, table = read(log, lines)
    assert np.isnan(table.step_s).all()
    assert any(note.startswith("not understood: time, e.g.") for note in table.log.notes)


def test_the_user_says_which_field_is_the_time(log: Path) -> None:
    lines = [f"at step {n}: loss 2.1, took 45" for n in range(0, 500, 10)]
    _, table = read(log, lines, FieldHints(time="took", unit="ms"))
    assert np.nanmedian(table.step_s) == pytest.approx(0.045)


def test_the_time_of_one_step_gives_no_time_of_an_evaluation_of_ten(log: Path) -> None:
    lines = []
    for n in range(10, 400, 10):
        if n % 100 == 0:
            lines.append(f"validation loss {2 - n / 400:.3f} over 20 batches")
        lines.append(f"step {n} loss 2.1 step_time {9.0 if n % 100 == 0 else 0.5} s")
    rank, _ = read(log, lines)
    assert not any(event.name == "evaluation" for event in rank.events)


def test_a_gap_between_two_processes_is_no_slow_step(log: Path) -> None:
    first = [f"{clock(10 * n)} step {n} loss 0.5" for n in range(1, 40)]
    start = [f"loading part {n} of module {n * n}" for n in range(9)]
    second = [f"{clock(10_016 + 10 * n)} step {n} loss 0.4" for n in range(40, 80)]
    _, table = read(log, [*start, *first, *start, *second])
    assert np.nanmax(table.step_s) < 11
    assert table.attempt.max() == 1


def test_a_gap_without_other_lines_has_no_time(log: Path) -> None:
    lines = [f"{clock(10 * n + (9000 if n > 20 else 0))} step {n} loss 0.5" for n in range(1, 40)]
    _, table = read(log, lines)
    assert np.nanmax(table.step_s) < 11
    assert any("a break or other work" in note for note in table.log.notes)


def test_rows_of_epochs_are_no_steps(log: Path) -> None:
    lines = [f"Epoch {n}/30 - train loss 0.{n} - val loss 0.{n} - 61.2s" for n in range(1, 20)]
    _, table = read(log, lines)
    assert set(table.kind.tolist()) == {"epoch"}
    assert np.isnan(table.step_s).all()
    assert table.log.total_epochs == 30


def test_an_evaluations_bar_is_not_the_training(log: Path) -> None:
    lines = []
    for epoch in range(4):
        lines += [
            f"Train {epoch}: {n}%|##| {n}/100 [00:{n // 2:02}<00:09, 2.00it/s, loss=0.4]"
            for n in range(10, 101, 10)
        ]
        lines += [
            f"Valid: 9%|##| {n}/900 [00:{n // 100:02}<00:09, 99.00it/s]"
            for n in range(100, 901, 100)
        ]
    rank, table = read(log, lines)
    training = table.of_kind("train", "epoch start", "first", "after eval")
    assert table.last_step[training].max() == 400
    assert table.log.steps_per_epoch == 100
    # A full bar has a clock of its own; of evaluations without one not even the number is stated.
    assert [(event.name, event.wall_us) for event in rank.events] == [("evaluation", 9_000_000)] * 4


def test_bars_without_names_that_count_to_two_totals_are_not_guessed(log: Path) -> None:
    lines = []
    for _ in range(5):
        lines += [f"{n}%|##| {n}/100 [00:{n // 2:02}<00:09, 2.00it/s]" for n in range(10, 101, 10)]
        lines += [f"{n}%|##| {n}/40 [00:{n // 4:02}<00:09, 4.00it/s]" for n in range(4, 41, 4)]
    with pytest.raises(RecordError, match="no lines that count"):
        read(log, lines)


def test_checkpoint_lines_are_no_records(log: Path) -> None:
    lines = []
    for n in range(1, 60):
        lines.append(f"{clock(60 * n)} iter {n} loss 0.5")
        if n % 20 == 0:
            lines.append(f"{clock(60 * n)} Saving checkpoint at iter {n} with loss 0.5")
    rank, table = read(log, lines)
    assert table.of_kind("train", "first", "after eval").sum() == 59
    assert not rank.events


def test_of_ranks_that_write_into_one_file_one_is_read(log: Path) -> None:
    lines = [
        f"{clock(60 * n)} rank {rank} step {n} loss 0.{rank + 1}"
        for n in range(1, 30)
        for rank in range(4)
    ]
    _, table = read(log, lines)
    assert table.last_step.tolist() == list(range(1, 30))
    assert table.log.world_size == 4


def test_an_epoch_on_a_line_of_its_own_counts_steps_on(log: Path) -> None:
    lines = []
    for epoch in range(1, 5):
        lines.append(f"Epoch: {epoch:04}")
        lines += [f"iter:{n:04} train_loss: 0.5" for n in range(20, 101, 20)]
    _, table = read(log, lines)
    assert table.last_step[-1] == 400
    assert table.attempt.max() == 0


@pytest.mark.parametrize("separator", [",", "\t", "  "])
def test_a_tables_head_names_its_columns(log: Path, separator: str) -> None:
    lines = [separator.join(("step", "loss", "lr"))]
    lines += [separator.join((str(n), f"0.{n}", "0.001")) for n in range(1, 30)]
    rank, table = read(log, lines)
    assert table.last_step[-1] == 29
    assert "loss" in rank.scalars
    assert np.allclose(table.lr, 0.001)


def test_lines_of_json_are_read(log: Path) -> None:
    lines = [f'{{"iteration": {n}, "train_loss": 0.{n}, "lr": 1e-4}}' for n in range(100, 200)]
    _, table = read(log, lines)
    assert table.last_step[-1] == 199


def test_a_refusal_names_the_closest_line_and_what_to_try(log: Path) -> None:
    with pytest.raises(RecordError, match=r"closest, 9 times: 'weight 1 of loss 0\.1'.*--step"):
        read(log, [f"weight 1 of loss 0.{n}" for n in range(1, 10)])


def test_every_line_is_accounted_for(log: Path) -> None:
    lines = [f"step {n} loss 0.5" for n in range(1, 20)] + ["saving model"] * 1
    found = understood(log, lines)
    assert (19, "training records", "step 1 loss 0.5") in found.became
    assert (1, "checkpoint", "") in found.became


def test_what_is_not_understood_is_not_called_absent(log: Path) -> None:
    lines = [f"step {n} loss 0.5 Data 0.4{n % 9}" for n in range(10, 400, 10)]
    log.write_text("\n".join(lines) + "\n")
    rank, _ = read_general(log)
    summary = examine_log(RunRecord(source="own", ranks=(rank,))).summary
    assert "wait for data" not in summary.gaps
    assert any(note.startswith("not understood: Data, e.g.") for note in summary.notes)


def test_bars_of_an_evaluation_alone_are_no_training(log: Path) -> None:
    lines = [f"eval model: {n}%|##| {n}/72 [00:{n // 4:02}<00:09, 4.00it/s]" for n in range(1, 72)]
    log.write_text("\n".join(lines * 3) + "\n")
    with pytest.raises(RecordError, match="no lines that count"):
        read_logs([log])


def test_a_bar_that_prepares_the_training_data_is_no_training(log: Path) -> None:
    lines = [
        f"Tokenizing train dataset: {n}%|#| {n * 90}/9000 [00:{n % 60:02}<00:09, 90.0 examples/s]"
        for n in range(1, 99)
    ]
    with pytest.raises(RecordError, match="no lines that count"):
        read(log, [*lines, *(f"loss 0.{n}" for n in range(9))])


def test_of_a_row_before_a_bar_the_bar_counts_and_the_row_has_the_epoch(log: Path) -> None:
    lines = []
    for epoch in range(9):
        lines += [
            f"  {epoch}/8   3.62G   0.12{n}   0.0632   0.0279   32{n}   640:  {n}%|#| {n}/40 "
            f"[00:{n:02}<00:40,  1.27it/s]"
            for n in range(1, 40)
        ]
        lines.append("   Class  Images  Labels  P  R: 100%|####| 1/1 [00:00<00:00,  1.53it/s]")
    log.write_text("\n".join(lines) + "\n")
    [run] = read_logs([log])
    table = run.ranks[0].windows
    assert table is not None
    assert table.last_step[-1] == 8 * 40 + 39
    assert table.log.steps_per_epoch == 40


def test_lines_that_give_results_of_a_validation_are_no_records(log: Path) -> None:
    lines = [f"{clock(9 * n)} Step {n} - Validation score: 0.{n}" for n in range(500, 900, 50)]
    with pytest.raises(RecordError, match="no lines that count"):
        read(log, lines)


def test_rows_of_a_table_have_no_thousands(log: Path) -> None:
    lines = ["epoch,time,train/loss", *(f"{n},{n * 100 + 3}.5,0.4" for n in range(1, 60))]
    _, table = read(log, lines)
    assert table.epoch.tolist() == list(range(1, 60))


def test_a_count_may_stand_before_its_name(log: Path) -> None:
    _, table = read(log, [f"{n}/300 in 0 epoch finished, Loss is 0.5" for n in range(40)])
    assert table.log.steps_per_epoch == 300
    assert table.log.total_steps is None
    assert table.last_step[-1] == 39


def test_the_last_epoch_alone_is_not_the_first(log: Path) -> None:
    lines = [f"Epoch [6/6], Step [{n}/100], Loss: 0.5" for n in range(10, 101, 10)]
    _, table = read(log, lines)
    assert table.last_step.tolist() == list(range(510, 601, 10))


def test_lines_with_a_field_less_are_of_the_same_run(log: Path) -> None:
    lines = [f"iter: {n} eta: {'1 day, ' if n < 20 else ''}3:00:00 loss: 0.5" for n in range(1, 60)]
    _, table = read(log, lines)
    assert table.last_step.tolist() == list(range(1, 60))
    assert table.attempt.max() == 0


def test_a_name_is_no_unit_of_the_number_before_it(log: Path) -> None:
    lines = [f"step={n} loss=0.5 data_time_ms=3.1 samples/s=256" for n in range(1, 40)]
    _, table = read(log, lines)
    assert np.allclose(table.samples_per_s, 256)
    assert np.allclose(table.data_s, 0.0031)


def test_a_log_of_doubtful_lines_is_refused_until_asked_for(log: Path) -> None:
    log.write_text("\n".join(f"{n}/972 - 40s - loss: 0.7" for n in range(1, 300)) + "\n")
    with pytest.raises(RecordError, match="`--format general` judges by that"):
        read_logs([log])
    [run] = read_logs([log], format="general")
    assert run.first.windows is not None


def test_epochs_of_keras_are_counted_by_their_lines(log: Path) -> None:
    lines = []
    for epoch in range(1, 13):
        lines += [f"Epoch {epoch}/40", "313/313 [====] - 351s 1s/step - loss: 0.68 - val_loss: 0.6"]
    log.write_text("\n".join(lines) + "\n")
    [run] = read_logs([log])
    table = run.first.windows
    assert table is not None
    assert table.epoch.tolist() == list(range(1, 13))
    assert table.log.total_epochs == 40
    assert np.isnan(table.step_s).all()


def keras_bars(end: str) -> str:
    text = ""
    for epoch in range(1, 4):
        text += f"Epoch {epoch}/3\n"
        for n in range(1, 50):
            text += f"{n}/50 --- {50 - n}s 47ms/step - accuracy: 0.4 - loss: 1.{n}{end}"
        text += "50/50 --- 9s 75ms/step - accuracy: 0.4 - loss: 1.5 - val_loss: 0.3\n"
    return text


@pytest.mark.parametrize("end", ["\n", "\r", "\x08" * 60])
def test_bars_of_keras_count_steps_and_their_running_mean_is_no_step(log: Path, end: str) -> None:
    log.write_text(keras_bars(end))
    [run] = read_logs([log])
    table = run.first.windows
    assert table is not None
    assert table.last_step.max() == 150
    assert table.log.steps_per_epoch == 50
    assert np.isnan(table.step_s).all()


def test_a_count_that_never_moves_is_no_step_that_was_not_read(log: Path) -> None:
    lines = [f"[train] epoch:{n} iter:0/18 lr:0.001 loss:0.{n} ETA:0.0min" for n in range(30)]
    _, table = read(log, lines)
    assert table.epoch.tolist() == list(range(30))


def test_an_epoch_that_names_its_loss_is_an_epoch(log: Path) -> None:
    lines = [
        f"[{n}/40] running loss of epoch {epoch} is : 1.{n}"
        for epoch in range(5)
        for n in range(0, 40, 10)
    ]
    _, table = read(log, lines)
    assert table.epoch.max() == 4
    assert table.log.steps_per_epoch == 40


def test_a_learning_rate_beside_an_epochs_line_is_in_the_log(log: Path) -> None:
    lines = [f"Epoch {n}/9 | LR: 3.8e-06 | Train Loss: 2.7" for n in range(1, 9)]
    log.write_text("\n".join(lines) + "\n")
    rank, _ = read_general(log)
    summary = examine_log(RunRecord(source="own", ranks=(rank,))).summary
    assert "learning rate" not in summary.gaps


def test_epochs_from_zero_that_stop_early_have_no_total(log: Path) -> None:
    lines = [f"epoch {n}/299 loss 0.5" for n in range(40)]
    _, table = read(log, lines)
    assert table.log.total_epochs is None  # 299 or 300


def yolo(*, header: bool) -> list[str]:
    lines = []
    for epoch in range(1, 9):
        if header:
            lines.append("      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances  Size")
        lines += [
            f"  {epoch}/30   3.62G   0.12{n}   0.0632   0.0279   32{n}   640:  {n}%|#| {n}/40 "
            f"[00:{n:02}<00:40,  1.00it/s]"
            for n in range(1, 41)
        ]
        lines += [
            f"   Class  Images  Instances  P  R: {n}%|##| {n}/20 [00:{n:02}<00:00,  1.00it/s]"
            for n in range(1, 21)
        ]
    return lines


def test_rows_of_a_named_table_before_bars_are_read(log: Path) -> None:
    log.write_text("\n".join(yolo(header=True)) + "\n")
    [run] = read_logs([log])
    table = run.first.windows
    assert table is not None
    assert table.last_step.max() == 320
    assert table.log.total_epochs == 30
    assert table.log.steps_per_epoch == 40


@pytest.mark.parametrize(
    "line",
    [
        "epoch={e} step={n} lr=0.001 total=2.1",
        '{{"current_steps": {n}, "total_steps": 5000, "elapsed_time": "0:{s}"}}',
        "[train][1] step: {n}, time: 6.0, speed: 16.4 steps/s",
        "[epoch: {e}, iter: {n}, lr:(1e-04,)] l_g_pix: 0.13 l_d_real: 0.2",
        "[{n}/300000] Train loss: 0.3, Valid loss: 1.5, Elapsed_time: {n}.5",
    ],
)
def test_lines_that_leave_little_doubt_are_read_unasked(log: Path, line: str) -> None:
    steps = range(100, 4000, 100)
    clocks = {n: f"{n // 600:02}:{n // 10 % 60:02}" for n in steps}
    log.write_text("".join(line.format(n=n, e=n // 1000, s=clocks[n]) + "\n" for n in steps))
    [run] = read_logs([log])
    assert run.first.windows is not None
    assert run.first.windows.last_step.max() == 3900


def test_a_bar_behind_a_loggers_words_has_no_name(log: Path) -> None:
    lines = []
    for epoch in range(3):
        lines.append(f"INFO - Epoch {epoch}")
        lines += [
            f"INFO - {n}%|#| {n}/90 [00:{n // 2:02}<00:09, 2.0batch/s, loss=5.1]"
            for n in range(1, 91)
        ]
    _, table = read(log, lines)
    assert table.last_step.max() == 270


def test_a_line_about_the_best_epoch_is_no_epoch(log: Path) -> None:
    lines = [f"Epoch {n}/9 - loss: 0.5" for n in range(1, 10)]
    _, table = read(log, [*lines, "Restoring weights of the best Epoch 7/9 - loss: 0.4"])
    assert table.epoch.tolist() == list(range(1, 10))
    assert table.attempt.max() == 0


def test_a_bar_around_the_bars_is_not_counted_with_them(log: Path) -> None:
    lines = []
    for epoch in range(1, 9):
        lines += [
            f"{n}%|#| {n}/171 [00:{n // 3:02}<00:09, 3.00batch/s, loss=5.1]" for n in range(1, 172)
        ]
        lines.append(f"{epoch}%|#| {epoch}/10 [0{epoch}:00<04:01, 60.0s/epoch, loss=4.8]")
        lines.append(f"Epoch {epoch}: done")
    log.write_text("\n".join(lines) + "\n")
    [run] = read_logs([log])
    assert run.first.windows is not None
    assert run.first.windows.last_step.max() == 171 * 8


def test_a_count_of_two_lines_an_epoch_is_a_step(log: Path) -> None:
    lines = [
        f"Epoch[{e:03}/100], Step[{n:04}/0196], Avg Loss: 0.9"
        for e in range(1, 9)
        for n in (0, 100)
    ]
    _, table = read(log, lines)
    assert table.last_step.max() == 7 * 196 + 101
    assert table.log.steps_per_epoch == 196


def test_lines_with_other_losses_and_totals_are_of_the_same_log(log: Path) -> None:
    lines, at = [], 0
    for total, losses in ((223, "Off: 1.0"), (445, "Off: 1.0, Reg: 0.8")):
        for end in (80, 120, 220):  # each run ends early and begins anew
            for n in range(0, end + 1, 10):
                at += 10
                lines.append(f"{clock(at)} Epoch 0 [{n}/{total}] Loss: 3.1 (Cls: 0.1, {losses})")
    rank, table = read(log, lines)
    assert table.last_step.max() == 220
    assert len(rank.attempts) == 6


def test_two_processes_that_write_into_one_file_are_not_guessed_apart(log: Path) -> None:
    lines = [
        f"epoch{e}, iter{n}, loss: 0.5"
        for e in range(30)
        for _ in range(2)
        for n in range(0, 121, 10)
    ]
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match="begins anew 30 times where no epoch does"):
        read_logs([log])


def test_runs_that_write_epochs_into_one_file_are_not_counted(log: Path) -> None:
    lines = [f'{{"train_loss": 1.{n}, "epoch": {(n * 3) % 10}}}' for n in range(90)]
    rank, table = read(log, lines)
    assert len(rank.attempts) == 1
    assert any("several runs seem to write into one file" in note for note in table.log.notes)


def test_lines_written_into_one_another_give_no_step(log: Path) -> None:
    lines = [f"step {n}, loss: 0.5" for n in range(10, 400, 10)]
    _, table = read(log, [*lines, "step 1236117, loss: 0.5", "step 400, loss: 0.5"])
    assert table.last_step.max() == 400
    assert len(np.unique(table.attempt)) == 1


def test_steps_below_a_line_of_the_epoch_need_no_loss_of_their_own(log: Path) -> None:
    lines = []
    for epoch in range(1, 6):
        lines += [f"  step   {n} | G 3.2734 | D 0.1057" for n in range(100, 1001, 100)]
        lines.append(f"Epoch 0000{epoch} | G Loss: 2.5 | Time: 1588.82s")
    log.write_text("\n".join(lines) + "\n")
    [run] = read_logs([log])
    assert run.first.windows is not None
    assert run.first.windows.last_step.max() == 5000


def test_the_beginning_of_the_first_of_thirty_epochs_has_no_total(log: Path) -> None:
    lines = [f"[Epoch 0/30, Batch {n}/7329] [Losses: x 0.27, total 15.1]" for n in range(71)]
    rank, _ = read(log, lines)
    summary = examine_log(RunRecord(source="own", ranks=(rank,))).summary
    assert (summary.total_steps, summary.last_step) == (None, None)
    assert any("so no steps are stated" in note for note in summary.notes)


def test_one_line_an_epoch_of_a_shorter_run_behind_a_longer_one_is_no_restart(log: Path) -> None:
    lines = [f"epoch: {e}/9, iter: {n}/40, loss: 1.1" for e in range(1, 10) for n in (10, 20, 30)]
    lines += [f"epoch: {e}/9, iter: 10/14, loss: 1.1" for e in range(1, 10)]
    rank, _ = read(log, lines)
    assert len(rank.attempts) == 2


def test_steps_further_apart_than_epochs_are_steps(log: Path) -> None:
    lines = [f"Epoch {n // 150} Step: {n} Batch Loss: 0.9, Lr: 0.1" for n in range(200, 9000, 200)]
    _, table = read(log, lines)
    assert table.last_step.max() == 8800


def test_a_dict_behind_an_epoch_is_not_the_trainers(log: Path) -> None:
    lines = [f"INFO - Epoch {n % 12}: {{'loss': 10.{n}}}" for n in range(36)]
    log.write_text("\n".join(lines) + "\n")
    [run] = read_logs([log])
    assert len(run.first.attempts) == 3


def test_the_updates_of_fairseq_are_steps(log: Path) -> None:
    lines = [
        f'{{"epoch": {n // 800 + 1}, "update": {n / 800:.3f}, "loss": "0.2", "num_updates": "{n}"}}'
        for n in range(200, 9000, 200)
    ]
    _, table = read(log, lines)
    assert table.last_step.max() == 8800


def test_lines_within_epochs_that_count_nothing_are_named_as_not_understood(log: Path) -> None:
    lines = []
    for n in range(1, 30):
        lines += [f"epoch {n} part loss 0.{k}" for k in range(5)]
        lines.append(f"end of epoch {n}: mean loss 0.5, accuracy 0.7")
    _, table = read(log, lines)
    assert table.epoch.tolist() == list(range(1, 30))
    assert any("not understood: lines within epochs" in note for note in table.log.notes)


def test_a_last_line_whose_values_are_null_counts_as_the_others(log: Path) -> None:
    lines = [f'{{"current_steps": {n}, "loss": 1.{n}, "eval_loss": null}}' for n in range(5, 90, 5)]
    _, table = read(log, [*lines, '{"current_steps": 87, "loss": null, "eval_loss": null}'])
    assert table.last_step.max() == 87
