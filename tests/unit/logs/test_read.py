"""What `read_logs` promises beyond single formats: choosing, grouping, given numbers, bounds."""

import gzip
import io
import itertools
import json
import math
import os
import shutil
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pitstop.errors import RecordError
from pitstop.logs import builder as builder_module
from pitstop.logs.builder import LogBuilder
from pitstop.logs.clock import Clock
from pitstop.logs.finish import finish
from pitstop.logs.formats.llm import NANOGPT
from pitstop.logs.formats.tensorboard import masked_crc
from pitstop.logs.lines import LONGEST_LINE, sample
from pitstop.logs.numbers import number
from pitstop.logs.read import READERS, read_logs, recognise
from pitstop.logs.reader import Feed, Reader
from pitstop.records.logs.windows import WindowTable
from pitstop.records.run import RunRecord
from tests.browser.records import write_run

CORPUS = Path(__file__).parents[2] / "data" / "logs"


def table_of(run: RunRecord) -> WindowTable:
    assert run.first.windows is not None
    return run.first.windows


def mmcv_line(
    step: int, *, step_s: float = 0.3, loss: float = 1.0, second: int | None = None
) -> str:
    second = round(step * step_s) if second is None else second
    stamp = f"2024-03-05 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d},000"
    return (
        f"{stamp} - mmseg - INFO - Iter [{step}/9000]\tlr: 1.000e-03, eta: 0:10:00, "
        f"time: {step_s:.3f}, data_time: 0.004, memory: 4100, loss: {loss:.4f}\n"
    )


def test_every_reader_names_where_its_format_is_defined() -> None:
    assert len({reader.name for reader in READERS}) == len(READERS)
    for reader in READERS:
        assert ": " in reader.defined_by or "no " in reader.defined_by, reader.name


def test_each_format_is_recognised_by_no_other_reader_with_more_confidence() -> None:
    for facts_file in CORPUS.glob("*.facts.json"):
        facts = json.loads(facts_file.read_text(encoding="utf-8"))
        if facts.get("format", "general") == "general":
            continue
        found = recognise(sample(CORPUS / facts_file.name.removesuffix(".facts.json")))
        names = [reader.name for reader, confidence in found if confidence >= 0.5]
        expected = set(facts["format"].split(" + "))
        assert found[0][0].name in expected
        assert set(names) <= expected, facts_file.name


def test_text_and_json_of_one_run_are_one_record() -> None:
    [run] = read_logs([CORPUS / "mmcv_iter.log", CORPUS / "mmcv_iter.log.json"])
    log = table_of(run).log
    assert log.format == "mmcv text + mmcv JSON"
    assert len(log.files) == 2
    assert int(table_of(run).of_kind("train").sum()) == 12


def test_a_run_named_by_its_folder_is_one_record(tmp_path: Path) -> None:
    for name in ("mmengine_file.log", "mmengine_scalars.json"):
        shutil.copy(CORPUS / name, tmp_path / name)
    (tmp_path / "notes.txt").write_text("learning rate was too high\n", encoding="utf-8")
    [run] = read_logs([tmp_path])
    assert set(table_of(run).log.format.split(" + ")) == {"mmengine text", "mmengine JSON"}


def test_a_folder_of_everything_is_not_searched_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitstop.logs.read._MOST_SEEN", 40)
    entered: list[str] = []

    def counted(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for place in itertools.count():
            entered.append(str(place))
            yield f"{folder}/{place}", [], [f"{name}.bin" for name in range(10)]

    monkeypatch.setattr("pitstop.logs.read.os.walk", counted)
    with pytest.raises(RecordError, match="more than 40 files in all; name the logs"):
        read_logs([tmp_path])
    assert len(entered) == 5


def test_a_folder_of_too_many_logs_is_refused(tmp_path: Path) -> None:
    for place in range(257):
        (tmp_path / f"{place}.log").touch()
    with pytest.raises(RecordError, match="more than 256 files that may be logs"):
        read_logs([tmp_path])


def test_two_runs_with_the_same_losses_stay_two(tmp_path: Path) -> None:
    for name, step_s in (("fast", 0.3), ("slow", 0.6)):
        lines = [mmcv_line(step, step_s=step_s, loss=100 / step) for step in range(50, 1001, 50)]
        (tmp_path / f"{name}.log").write_text("".join(lines), encoding="utf-8")
    runs = read_logs([tmp_path / "fast.log", tmp_path / "slow.log"])
    medians = [float(np.median(table_of(run).step_s)) for run in runs]
    assert medians == [0.3, 0.6]


def test_files_of_different_runs_are_not_joined_by_their_names(tmp_path: Path) -> None:
    lines = [mmcv_line(step, loss=100 / step) for step in range(50, 1001, 50)]
    (tmp_path / "run.log").write_text("".join(lines), encoding="utf-8")
    other = [
        {"mode": "train", "epoch": 1, "iter": step, "lr": 1e-3, "loss": 7.0 + step, "time": 0.9}
        for step in range(50, 1001, 50)
    ]
    text = "\n".join(map(json.dumps, other)) + "\n"
    (tmp_path / "run.log.json").write_text(text, encoding="utf-8")
    assert len(read_logs([tmp_path / "run.log", tmp_path / "run.log.json"])) == 2


def test_batch_and_world_size_are_given_once_or_once_each() -> None:
    paths = [CORPUS / "kair_train.log", CORPUS / "nanogpt.log"]
    for sizes, expected in (((32,), [32, 32]), ((32, 12), [32, 12])):
        runs = read_logs(paths, batch_sizes=sizes, world_sizes=(4,))
        assert [table_of(run).log.batch_size for run in runs] == expected
        assert {table_of(run).log.batch_size_from for run in runs} == {"given"}
        assert all(run.first.attempts[-1].world_size == 4 for run in runs)
    with pytest.raises(RecordError, match="3 batch sizes for 2 paths"):
        read_logs(paths, batch_sizes=(1, 2, 3))
    with pytest.raises(RecordError, match="1 or more"):
        read_logs(paths, batch_sizes=(0,))


def test_what_was_not_said_is_not_known() -> None:
    [run] = read_logs([CORPUS / "nanogpt.log"])
    log = table_of(run).log
    assert (log.batch_size, log.world_size) == (None, None)
    assert not np.isfinite(table_of(run).samples_per_s).any()
    assert table_of(run).note("samples_per_s").source == "not in the log"


def test_a_format_can_be_forced_and_must_exist() -> None:
    [run] = read_logs([CORPUS / "nanogpt.log"], format="nanoGPT")
    assert table_of(run).log.confidence == 1.0
    path = CORPUS / "key_value.log"
    with pytest.raises(RecordError, match="no log format 'mmcv'; known formats: mmcv text"):
        read_logs([path], format="mmcv")
    with pytest.raises(RecordError, match="no record of the format KAIR"):
        read_logs([path], format="KAIR")


def test_paths_that_are_not_there_or_hold_nothing_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no file or folder"):
        read_logs([tmp_path / "none.log"])
    with pytest.raises(RecordError, match="holds no file that could be a training log"):
        read_logs([tmp_path])
    (tmp_path / "notes.log").write_text("nothing\n")
    with pytest.raises(RecordError, match=r"no file in .* is a training log"):
        read_logs([tmp_path])


def test_our_own_record_is_read_by_the_store(tmp_path: Path) -> None:
    head = {
        "kind": "run", "schema": 1, "started_unix_s": 1.0, "rank": 0, "local_rank": 0,
        "world_size": 1, "host": "h", "pid": 1, "python": "3.11", "torch": None, "command": [],
    }  # fmt: skip
    line = json.dumps(head, separators=(",", ":")) + "\n"
    (tmp_path / "rank-0.jsonl").write_text(line, encoding="utf-8")
    for path in (tmp_path, tmp_path / "rank-0.jsonl"):
        [run] = read_logs([path])
        assert run.first.windows is None
        assert run.first.attempts[0].host == "h"


def test_the_record_after_a_validation_carries_it_and_is_left_out() -> None:
    [run] = read_logs([CORPUS / "None.log.json"])
    table = table_of(run)
    after = table.kind == "after eval"
    assert float(table.data_s[after].min()) > 2.0
    assert float(table.step_s[table.is_steady].max()) < 0.7
    assert float(np.median(table.step_s[table.is_steady])) == pytest.approx(0.361, rel=0.02)


def test_a_printed_time_of_a_batch_is_told_from_steady_steps_and_start_up() -> None:
    [run] = read_logs([CORPUS / "topreid.txt"])
    found = {item.code: item for item in table_of(run).log.disagreements}
    item = found["start-up in the mean"]
    assert (item.printed, item.rebuilt) == (2.841, pytest.approx(0.761, abs=1e-3))
    assert item.extra_s == pytest.approx(41.6, abs=0.1)
    assert '"Time per batch: 2.841[s]" is 0.761 s a step plus 42 s' in item.message


def test_an_epoch_printed_as_a_batch_is_recognised_without_the_batch_size(tmp_path: Path) -> None:
    text = (CORPUS / "strong_baseline.log").read_text(encoding="utf-8")
    path = tmp_path / "run.log"
    path.write_text(text.replace("  IMS_PER_BATCH: 64\n", ""), encoding="utf-8")
    [run] = read_logs([path])
    found = {item.code: item for item in table_of(run).log.disagreements}
    assert found["epoch named batch"].rebuilt == pytest.approx(88.538 / 184)


def test_a_line_printed_twice_counts_once(tmp_path: Path) -> None:
    lines = [mmcv_line(step) * 2 for step in range(50, 1001, 50)]
    (tmp_path / "run.log").write_text("".join(lines), encoding="utf-8")
    [run] = read_logs([tmp_path / "run.log"])
    assert len(table_of(run)) == 20
    assert len(run.first.scalars["loss"].step) == 20
    assert not table_of(run).log.disagreements


def test_a_number_cut_off_in_its_exponent_is_no_other_number(tmp_path: Path) -> None:
    lines = [mmcv_line(step) for step in range(50, 501, 50)]
    lines[4] = lines[4].partition("e-03")[0] + "e\n"
    (tmp_path / "run.log").write_text("".join(lines), encoding="utf-8")
    [run] = read_logs([tmp_path / "run.log"])
    assert np.nanmax(table_of(run).lr) == 0.001
    assert np.isnan(table_of(run).lr).sum() == 1


def test_a_log_without_its_last_end_leaves_the_cut_number_out(tmp_path: Path) -> None:
    lines = "".join(mmcv_line(step) for step in range(50, 501, 50))
    (tmp_path / "run.log").write_text(lines + mmcv_line(550)[:-12], encoding="utf-8")
    [run] = read_logs([tmp_path / "run.log"])
    assert table_of(run).last_step[-1] == 500
    assert any("last line has no end" in note for note in run.first.notes)


def test_a_log_that_ends_with_a_bracket_is_whole(tmp_path: Path) -> None:
    entries = [{"epoch": n / 10, "loss": 3 / n, "step": 10 * n} for n in range(1, 40)]
    text = json.dumps({"log_history": entries}, indent=2)
    (tmp_path / "trainer_state.json").write_text(text, encoding="utf-8")
    [run] = read_logs([tmp_path / "trainer_state.json"])
    assert table_of(run).last_step[-1] == 390
    assert not any("has no end" in note for note in run.first.notes)


def test_a_resumed_run_is_one_run_with_two_attempts(tmp_path: Path) -> None:
    steps = [*range(50, 501, 50), *range(350, 801, 50)]
    lines = [mmcv_line(step, second=place * 15) for place, step in enumerate(steps)]
    (tmp_path / "run.log").write_text("".join(lines), encoding="utf-8")
    [run] = read_logs([tmp_path / "run.log"])
    table = table_of(run)
    assert [a.about["why"] for a in run.first.attempts] == [
        "the log begins",
        "the step went back from 500 to 350",
    ]
    assert table.attempt.tolist() == [0.0] * 10 + [1.0] * 10
    assert table.first_step[10] == 301
    assert not table.log.disagreements


def test_records_are_joined_when_there_are_too_many_and_totals_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "_MOST_ROWS", 100)
    monkeypatch.setattr(builder_module, "_MOST_POINTS", 100)
    times = [0.2 + step % 7 / 10 for step in range(1, 1001)]
    lines = [
        mmcv_line(step, step_s=step_s, second=step)
        for step, step_s in zip(range(1, 1001), times, strict=True)
    ]
    (tmp_path / "run.log").write_text("".join(lines), encoding="utf-8")
    [run] = read_logs([tmp_path / "run.log"])
    table = table_of(run)
    assert len(table) <= 101
    assert len(run.first.scalars["loss"].step) <= 101
    assert float((table.step_s * table.steps).sum()) == pytest.approx(sum(times), rel=1e-6)
    assert table.steps.sum() == 1000
    assert table.note("step_s").formula == "mean of joined records, weighted by steps"


def test_a_packed_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    plain = CORPUS / "topreid.txt"
    packed = tmp_path / "topreid.txt.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    [one], [two] = read_logs([plain]), read_logs([packed])
    assert np.array_equal(table_of(one).step_s, table_of(two).step_s, equal_nan=True)


def test_reading_does_not_depend_on_where_portions_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_logs([CORPUS / "hf_console_5.log"])[0]
    monkeypatch.setattr("pitstop.logs.lines._CHUNK_BYTES", 7)
    parts = read_logs([CORPUS / "hf_console_5.log"])[0]
    assert np.array_equal(table_of(whole).step_s, table_of(parts).step_s, equal_nan=True)
    events = "events.out.tfevents.1700000000.host.1.0"
    assert len(table_of(read_logs([CORPUS / events])[0])) == 41


def test_a_damaged_event_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    data = bytearray((CORPUS / "events.out.tfevents.1700000000.host.1.0").read_bytes())
    data[len(data) // 2 :] = b"\0" * (len(data) // 2)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(data)
    [run] = read_logs([path])
    assert 0 < len(table_of(run)) < 41
    assert any("after the damage" in note for note in run.first.notes)


def test_the_checksum_is_the_one_the_format_prescribes() -> None:
    crc = 0xE3069283  # published check value of CRC-32C for "123456789"
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert struct.calcsize("<Q") == 8


def test_a_clock_without_a_year_goes_on_over_new_year() -> None:
    clock = Clock()
    assert clock.seconds(b"12/31", b"23:59:50") == 0.0
    assert clock.seconds(b"01/01", b"00:00:20") == 30.0
    assert not clock.has_year
    assert clock.times_back == 0


def test_a_clock_counts_how_often_and_how_far_it_went_back() -> None:
    clock = Clock()
    clock.seconds(b"2024-03-05", b"10:00:00,500")
    assert clock.seconds(b"2024-03-05", b"09:00:00,500") == -3600.0
    assert (clock.times_back, clock.most_back_s) == (1, 3600.0)
    assert math.isnan(clock.seconds(b"2024-13-99", b"09:00:00"))
    assert math.isnan(clock.seconds(b"2024-03-05", b"xx:00:00"))


def test_numbers_are_converted_right_also_after_forgetting() -> None:
    for value in range(40000):
        assert number(b"%d" % value) == value
    for text in (b"1.2.3", b"1_0"):
        with pytest.raises(ValueError, match="could not convert"):
            number(text)


def peak_of_reading(path: Path) -> int:
    tracemalloc.start()
    try:
        read_logs([path])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_follow_the_size_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder_module, "_MOST_ROWS", 500)
    monkeypatch.setattr(builder_module, "_MOST_POINTS", 500)
    monkeypatch.setattr(builder_module, "_MOST_HELD", 100)
    monkeypatch.setattr("pitstop.logs.lines._CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr("pitstop.logs.lines._HEAD_BYTES", 1 << 14)
    small, large = tmp_path / "small.log", tmp_path / "large.log"
    small.write_text("".join(map(mmcv_line, range(1, 1001))), encoding="utf-8")
    large.write_text("".join(map(mmcv_line, range(1, 5001))), encoding="utf-8")
    peak_of_reading(large)  # what is remembered once for all
    assert peak_of_reading(large) < 1.5 * peak_of_reading(small)


def test_lines_of_no_interest_cost_a_fraction_of_records(tmp_path: Path) -> None:
    dense, sparse = tmp_path / "dense.log", tmp_path / "sparse.log"
    records = [mmcv_line(step) for step in range(1, 4001)]
    dense.write_text("".join(records), encoding="utf-8")
    noise = "| road | 81.21 | 90.02 | a row of the table of an evaluation, and some more text |\n"
    lines = [records[0], *[f"{place}{noise}" for place in range(8000)], *records[1:20]]
    sparse.write_text("".join(lines), encoding="utf-8")

    def cost(path: Path) -> float:
        times = []
        for _ in range(3):
            started = time.process_time()
            read_logs([path], format="mmcv text")
            times.append(time.process_time() - started)
        return min(times) / path.stat().st_size

    assert cost(dense) > 2 * cost(sparse)


def test_a_bar_drawn_often_is_timed_and_every_drawing_counted(tmp_path: Path) -> None:
    drawn = []
    for epoch in (1, 2, 3):
        for n in range(1, 1501):
            second = n // 5
            drawn.append(
                f"Epoch {epoch}:  10%|#         | {n}/1500 "
                f"[{second // 60:02d}:{second % 60:02d}<05:00,  5.00it/s]"
            )
        drawn += [
            f"Validating:  10%|#   | {n}/40 [00:{n // 4:02d}<00:10,  4.00it/s]" for n in range(41)
        ]
    path = tmp_path / "bars.log"
    path.write_text("\r".join(drawn) + "\n", encoding="utf-8")
    [run] = read_logs([path])
    table = table_of(run)
    assert float(np.median(table.step_s[table.is_steady])) == pytest.approx(0.2)
    bars = {kind.example.partition(":")[0]: kind for kind in table.log.quoted}
    assert bars["Epoch 1"].lines == 4500
    assert bars["Validating"].lines == 3 * 41


def test_a_validation_of_torchtitan_is_no_training_record(tmp_path: Path) -> None:
    def line(second: int, text: str) -> str:
        stamp = f"2025-01-09 03:{second // 60:02d}:{second % 60:02d},000"
        return f"[titan] {stamp} - root - INFO - {text}\n"

    memory = "memory: 47.52GiB(50.02%)  tps: 6,250"
    lines = [
        line(step * 2 + 20 * (step > 50), f"step: {step}  loss:  7.1000  grad_norm:  1.0  {memory}")
        for step in range(10, 101, 10)
    ]
    lines.insert(5, line(120, f"validate step: 50  loss:  6.5000  {memory}"))
    path = tmp_path / "titan.log"
    path.write_text("".join(lines), encoding="utf-8")
    [run] = read_logs([path])
    assert int((table_of(run).kind == "eval").sum()) == 1
    assert run.first.scalars["val/loss"].value.tolist() == [6.5]
    assert float(np.median(table_of(run).step_s[table_of(run).is_steady])) == 2.0


def pairs(path: Path, *, steps: int = 60, **values: object) -> Path:
    rest = " ".join(f"{name}={value}" for name, value in values.items())
    path.write_text("".join(f"step={step} {rest}\n" for step in range(1, steps)))
    return path


def test_a_packed_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    times = [f"0.{step * 7919 % 10_007 + 1}" for step in range(9999)]
    plain = "".join(f"step={step} step_time_s={time}\n" for step, time in enumerate(times))
    packed = gzip.compress(plain.encode())
    cut = tmp_path / "cut.log.gz"
    cut.write_bytes(packed[: len(packed) // 2])
    (run,) = read_logs([cut])
    assert 3_000 < len(table_of(run)) < 8_000
    assert any("cut off" in note for note in table_of(run).log.notes)
    cut.write_bytes(packed[:-8] + b"\1" * 8)
    (run,) = read_logs([cut])
    assert len(table_of(run)) == 9_999
    assert any("damaged" in note for note in table_of(run).log.notes)
    cut.write_bytes(packed[:5])
    with pytest.raises(RecordError, match="nothing in it can be unpacked"):
        read_logs([cut])


def test_packed_files_joined_into_one_are_read_without_a_complaint(tmp_path: Path) -> None:
    parts = [f"step={step} step_time_s=0.5\n".encode() for step in range(1, 60)]
    joined = tmp_path / "joined.log.gz"
    joined.write_bytes(b"".join(map(gzip.compress, parts)) + bytes(100))
    (run,) = read_logs([joined])
    assert len(table_of(run)) == 59
    assert not any("packed" in note for note in table_of(run).log.notes)


@pytest.mark.parametrize("time", [-0.5, 0.0, -1e-9, 1e308])
def test_step_times_that_cannot_be_are_left_out_with_a_note(time: float) -> None:
    builder = LogBuilder(is_rebuilt=False)
    for step in range(1, 60):
        builder.train(float(step), printed=time, data=-1.0)
    table = finish(builder, NANOGPT, confidence=1.0, file="a.log").windows
    assert table is not None
    assert not np.isfinite(table.step_s).any()
    assert not np.isfinite(table.data_s).any()
    notes = " ".join(table.log.notes)
    assert "59 step times of zero or less, or endless, cannot be and are left out" in notes
    assert "59 negative or endless waits for data cannot be and are left out" in notes


def test_a_number_beyond_all_floats_is_none(tmp_path: Path) -> None:
    huge = 10**400
    path = pairs(tmp_path / "a.log", step_time_s=0.5, lr=huge)
    with path.open("a") as file:
        file.write(f"step={huge} step_time_s=0.5\nstep={10**30} step_time_s=0.5\n")
    table = table_of(read_logs([path])[0])
    assert (len(table), np.nanmax(table.last_step)) == (59, 59)
    assert not np.isfinite(table.lr).any()


def test_an_announced_count_beyond_all_runs_is_left_out() -> None:
    builder = LogBuilder(is_rebuilt=False)
    builder.total_steps = 10**400
    builder.train(1.0, printed=0.5)
    rank = finish(builder, READERS[0], confidence=1.0, file="a.log")
    assert rank.windows is not None
    assert rank.windows.log.total_steps is None
    assert "total steps is too large a number and left out" in rank.windows.log.notes


def test_a_pipe_is_refused_without_being_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(RecordError, match="is a pipe or a device; give a file"):
            read_logs([path])


def test_a_cell_longer_than_the_csv_module_allows_is_a_damaged_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rows = [f"{step},{1 / step}" for step in range(1, 30)]
    rows.insert(9, f'10,"{"9" * 200_000}"')
    path.write_text("\n".join(["step,loss", *rows]) + "\n", encoding="utf-8")
    table = table_of(read_logs([path])[0])
    assert len(table) == 29
    assert "1 damaged lines left out" in table.log.notes


@pytest.mark.parametrize("reader", [one for one in READERS if not one.is_binary])
def test_no_pattern_sees_more_of_a_line_than_sixteen_kibibytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Reader
) -> None:
    lengths: list[int] = []

    def start(builder: LogBuilder) -> Feed:
        feed = reader.start(builder)

        def counted(line: bytes) -> None:
            lengths.append(len(line))
            feed(line)

        return counted

    path = tmp_path / "long.log"
    path.write_bytes(b"step 1 loss 0.5 " * 10_000 + b"\n" + b"9" * 150_000 + b"\n\n")
    watched = replace(reader, start=start)
    monkeypatch.setattr("pitstop.logs.read.READERS", (watched,))
    with suppress(RecordError):
        read_logs([path], format=reader.name)
    assert lengths
    assert reader.takes_long_lines or max(lengths) <= LONGEST_LINE


def test_standard_input_is_read_as_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"".join(b"step %d loss 0.5\n" % n for n in range(1, 30))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    [run] = read_logs(["-"])
    assert table_of(run).last_step[-1] == 29


def test_what_has_no_end_is_not_opened() -> None:
    with pytest.raises(RecordError, match="pipe or a device"):
        read_logs(["/dev/zero"])
    with pytest.raises(RecordError, match="empty"):
        read_logs(["/proc/self/status"])


def test_of_a_folder_around_a_run_the_run_is_named(tmp_path: Path) -> None:
    """`run.work_dir` holds the run in a folder of its name: the next folder down."""
    write_run(tmp_path / "mine")
    with pytest.raises(RecordError) as told:
        read_logs([tmp_path])
    assert str(told.value) == f"{tmp_path} is no run but holds 1 run: {tmp_path / 'mine'}"
