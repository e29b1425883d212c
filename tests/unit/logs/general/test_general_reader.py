"""The general reader, on lines of our own invention in the shapes that public logs have."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.doctor.logs.examine import examine_log
from pitstop.logs.general.read import FieldHints, read_general
from pitstop.logs.general.tokens import NUMBER, slots_of
from pitstop.records.logs.windows import WindowTable
from pitstop.records.run import RankRecord, RunRecord


def read(
    path: Path, lines: list[str], hints: FieldHints | None = None
) -> tuple[RankRecord, WindowTable]:
    path.write_text("\n".join(lines) + "\n")
    rank, _ = read_general(path, hints)
    assert rank.windows is not None
    return rank, rank.windows


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


def test_checkpoint_lines_are_no_records(log: Path) -> None:
    lines = []
    for n in range(1, 60):
        lines.append(f"{clock(60 * n)} iter {n} loss 0.5")
        if n % 20 == 0:
            lines.append(f"{clock(60 * n)} Saving checkpoint at iter {n} with loss 0.5")
    rank, table = read(log, lines)
    assert table.of_kind("train", "first", "after eval").sum() == 59
    assert not rank.events


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


def test_rows_of_a_table_have_no_thousands(log: Path) -> None:
    lines = ["epoch,time,train/loss", *(f"{n},{n * 100 + 3}.5,0.4" for n in range(1, 60))]
    _, table = read(log, lines)
    assert table.epoch.tolist() == list(range(1, 60))


def test_a_count_that_never_moves_is_no_step_that_was_not_read(log: Path) -> None:
    lines = [f"[train] epoch:{n} iter:0/18 lr:0.001 loss:0.{n} ETA:0.0min" for n in range(30)]
    _, table = read(log, lines)
    assert table.epoch.tolist() == list(range(30))


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


def test_a_line_about_the_best_epoch_is_no_epoch(log: Path) -> None:
    lines = [f"Epoch {n}/9 - loss: 0.5" for n in range(1, 10)]
    _, table = read(log, [*lines, "Restoring weights of the best Epoch 7/9 - loss: 0.4"])
    assert table.epoch.tolist() == list(range(1, 10))
    assert table.attempt.max() == 0


def test_steps_further_apart_than_epochs_are_steps(log: Path) -> None:
    lines = [f"Epoch {n // 150} Step: {n} Batch Loss: 0.9, Lr: 0.1" for n in range(200, 9000, 200)]
    _, table = read(log, lines)
    assert table.last_step.max() == 8800


def test_the_updates_of_fairseq_are_steps(log: Path) -> None:
    lines = [
        f'{{"epoch": {n // 800 + 1}, "update": {n / 800:.3f}, "loss": "0.2", "num_updates": "{n}"}}'
        for n in range(200, 9000, 200)
    ]
    _, table = read(log, lines)
    assert table.last_step.max() == 8800
