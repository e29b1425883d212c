"""What the first trial on public logs misread, on lines of our own in the same shapes.

Three more stand beside the general reader: a restart called a slow step, bars that are not the
training's, and checkpoint lines taken for records.
"""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from pitstop.cli.doctor_logs import doctor_logs
from pitstop.doctor.logs.examine import examine_log
from pitstop.logs.formats import tensorboard
from pitstop.logs.read import read_logs
from pitstop.records.run import RunRecord


def read(path: Path, lines: list[str]) -> RunRecord:
    path.write_text("\n".join(lines) + "\n")
    [run] = read_logs([path])
    return run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "own.log"


def test_an_evaluation_in_a_printed_step_is_as_long_as_that_step_was_longer(log: Path) -> None:
    lines = []
    for n in range(0, 2001, 10):
        is_evaluated = n % 250 == 0 and n
        if is_evaluated:
            lines.append(f"step {n}: train loss 2.1, val loss 2.2")
        took = 4050.0 if is_evaluated else 50.0
        lines.append(f"iter {n}: loss 2.1000, time {took:.2f}ms, mfu 30.00%")
    run = read(log, lines)
    walls = [e.wall_us / 1e6 for e in run.first.events if e.name == "evaluation"]
    assert len(walls) == 8
    assert walls == pytest.approx([4.0] * 8)


def console_of_yolo() -> list[str]:
    lines = []
    for epoch in range(30):
        lines.append("      Epoch   gpu_mem       box       obj       cls    labels  img_size")
        lines += [
            f"   {epoch}/29     3.62G    0.0{n}    0.0632    0.0279       32       640: "
            f"{n}%|###| {n}/40 [00:{n:02}<00:40,  1.00it/s]"
            for n in range(1, 41)
        ]
        lines += [
            f"   Class     Images     Labels      P      R   mAP@.5: {n}%|##| {n}/20 "
            f"[00:{n:02}<00:00,  1.00it/s]"
            for n in range(1, 21)
        ]
    return lines


def test_a_console_that_validates_a_third_of_the_time_is_not_called_healthy(log: Path) -> None:
    examined = examine_log(read(log, console_of_yolo()))
    assert examined.summary.last_step is None  # nothing says that the bars are of one run
    assert examined.verdict.outcome != "healthy"


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    crcs = [struct.pack("<I", tensorboard.masked_crc(part)) for part in (length, record)]
    return length + crcs[0] + record + crcs[1]


def event(tag: bytes, value: float, step: int, wall: float) -> bytes:
    inner = b"\x0a" + bytes((len(tag),)) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes((len(inner),)) + inner
    head = b"\x09" + struct.pack("<d", wall) + b"\x10" + bytes((step,))
    return framed(head + b"\x2a" + bytes((len(summary),)) + summary)


def test_an_index_of_epochs_in_an_event_file_gives_no_step(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1700000000.host.1.0"
    version = framed(b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a\x0dbrain.Event:2")
    events = [event(b"loss", 1 / n, n, 1.7e9 + 61.5 * n) for n in range(1, 60)]
    path.write_bytes(version + b"".join(events))
    [run] = read_logs([path])
    table = run.first.windows
    assert table is not None
    assert set(table.kind.tolist()) == {"epoch"}
    assert np.isnan(table.step_s).all()


def two_files(folder: Path) -> list[Path]:
    """The bar of a Trainer, which times steps, and its state, which times evaluations."""
    console, state = folder / "train.log", folder / "trainer_state.json"
    drawn = [f"{n}%|#| {n}/300 [{n * 2 // 60:02}:{n * 2 % 60:02}<05:00,  2.00s/it]" for n in
             range(1, 301)]  # fmt: skip
    console.write_text("\n".join(drawn) + "\n")
    history: list[dict[str, float]] = []
    for n in range(50, 301, 50):
        history.append({"epoch": n / 100, "loss": 2.5, "learning_rate": 1e-5, "step": n})
        history.append({"epoch": n / 100, "eval_loss": 2.0, "eval_runtime": 15.0, "step": n})
    about = {"global_step": 300, "max_steps": 300, "train_batch_size": 4}
    state.write_text(json.dumps({**about, "log_history": history}, indent=2) + "\n")
    return [console, state]


def test_joined_files_keep_the_facts_of_each(tmp_path: Path) -> None:
    [run] = read_logs(two_files(tmp_path))
    summary = examine_log(run).summary
    assert summary.step is not None
    assert summary.step.middle == pytest.approx(2.0, rel=0.02)
    assert summary.batch_size == 4
    evaluations = [e for e in run.first.events if e.name == "evaluation"]
    assert [e.wall_us for e in evaluations] == [15_000_000] * 6
    assert "learning rate" not in summary.gaps


def test_a_known_time_of_evaluations_is_in_the_verdict(tmp_path: Path) -> None:
    [run] = read_logs(two_files(tmp_path))
    assert examine_log(run).summary.events["evaluation"].total_s == pytest.approx(90.0)


def test_the_next_command_can_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"2031-03-04 00:{n:02}:00 step {n} loss 0.5" for n in range(1, 60)]
    (tmp_path / "my run.log").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    doctor_logs([Path("my run.log")])
    assert "pitstop doctor 'my run.log' --batch-size N" in capsys.readouterr().out
    with Path("my run.log").open() as piped:
        monkeypatch.setattr("sys.stdin", piped)
        doctor_logs([Path("-")])
    assert "pitstop doctor - --batch-size N" in capsys.readouterr().out


def test_the_next_command_for_joined_files_names_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = two_files(tmp_path)[1]
    state.write_text(state.read_text().replace('"train_batch_size": 4,', ""))
    monkeypatch.chdir(tmp_path)
    doctor_logs([Path("train.log"), Path("trainer_state.json")])
    assert "pitstop doctor train.log trainer_state.json --batch-size N" in capsys.readouterr().out
