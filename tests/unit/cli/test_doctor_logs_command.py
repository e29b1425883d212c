"""``pitstop doctor LOG ...`` as typed: options, exit codes, and one clear line for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run, command_line

CORPUS = Path(__file__).parents[2] / "data" / "logs"
BROKEN = sorted(
    path for path in CORPUS.glob("broken_*") if not path.name.endswith(".facts.json")
)  # fmt: skip


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Type the command; give its exit code, output and errors."""
    return command_line(capsys, monkeypatch, "doctor")


def bar(path: Path, rate: float, *, unit: str = "iter/s") -> Path:
    """A bar as tqdm draws it, with elapsed time in whole seconds."""
    drawn = []
    for step in range(0, 20_000, 50):
        seconds = int(step / rate)
        elapsed = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        drawn.append(f"\rTraining: 0%| | {step}/200000 [{elapsed}<7:27:00, {rate}{unit}]")
    path.write_text("".join(drawn), encoding="utf-8")
    return path


def pairs(path: Path, *, step_s: float = 0.5, steps: int = 100) -> Path:
    lines = [f"step={step} step_time_s={step_s} loss={9 / step:.4f}\n" for step in range(1, steps)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def record(out: str) -> dict[str, Any]:
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_the_guides_bars_typed_with_a_batch_size_each_differ_by_2_3_percent(
    doctor: Run, tmp_path: Path
) -> None:
    first, other = bar(tmp_path / "b4.log", 7.45), bar(tmp_path / "b8.log", 3.64)
    code, out, _ = doctor(first, other, "--batch-size", 4, "--batch-size", 8)
    assert code == 0
    assert "29.1 samples/s against 29.8 samples/s: 2.3% slower" in out
    assert "in steps/s it would seem 51.1% slower" in out


def test_two_logs_are_compared_at_steady_state_without_warm_up_and_evaluations(
    doctor: Run, tmp_path: Path
) -> None:
    def log(name: str, step_s: float) -> Path:
        lines: list[str] = []
        for step in range(50, 3001, 50):
            hiccup = 20.0 if step == 50 else 0.0
            if step % 500 == 0:
                lines.append(
                    f"2024-03-05 10:00:00,000 - mmseg - INFO - Iter(val) [50]\tmIoU: 0.5{step}"
                )
            after = 40.0 if step % 500 == 50 and step > 50 else 0.0
            lines.append(
                f"2024-03-05 10:00:00,000 - mmseg - INFO - Iter [{step}/9000]\tlr: 1.000e-03, "
                f"eta: 0:10:00, time: {step_s + hiccup + after:.3f}, data_time: {after:.3f}, "
                f"memory: 4100, loss: {1 + step_s:.4f}"
            )
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    first, other = log("a.log", 0.4), log("b.log", 0.2)
    code, out, _ = doctor(first, other, "--batch-size", 8)
    assert code == 0
    assert out.startswith("faster: ")
    assert "40.0 samples/s against 20.0 samples/s" in out
    assert doctor(other, first, "--batch-size", 8)[0] == 1


def test_unlike_units_are_refused_with_the_option_that_would_help(
    doctor: Run, tmp_path: Path
) -> None:
    first, other = bar(tmp_path / "a.log", 7.45), pairs(tmp_path / "b.log")
    code, out, _ = doctor(first, other)
    assert code == 2
    assert out.startswith("not comparable: ")
    assert "--batch-size" in out
    assert doctor(first, other, "--batch-size", 4)[0] in (0, 1)


def test_sizes_are_given_once_for_all_or_once_a_file_in_order(doctor: Run, tmp_path: Path) -> None:
    logs = pairs(tmp_path / "a.log"), pairs(tmp_path / "b.log", step_s=0.25)
    sizes = ("--batch-size", 4, "--batch-size", 2)
    _, out, _ = doctor(*logs, *sizes, "--world-size", 2, "--json", "-")
    rates = [log["summary"]["rate"]["middle"] for log in record(out)["logs"]]
    assert rates == [4 * 2 / 0.5, 2 * 2 / 0.25]
    code, _, err = doctor(*logs, *sizes, "--batch-size", 1)
    assert code == 2
    assert "3 batch sizes for 2" in err
    code, _, err = doctor(logs[0], "--batch-size", 0)
    assert code == 2
    assert "1 or more" in err


def test_without_a_batch_size_samples_per_second_are_not_known(doctor: Run, tmp_path: Path) -> None:
    code, out, _ = doctor(pairs(tmp_path / "a.log"))
    assert code == 0
    assert "not known: give --batch-size" in out
    _, out, _ = doctor(pairs(tmp_path / "a.log"), "--json", "-")
    assert record(out)["summary"]["rate"] is None


def test_a_format_can_be_forced_and_the_known_ones_are_named(doctor: Run, tmp_path: Path) -> None:
    log = pairs(tmp_path / "a.log")
    code, out, _ = doctor(log, "--format", "general", "--json", "-")
    assert code == 0
    assert record(out)["summary"]["format"] == "general"
    code, _, err = doctor(log, "--format", "mmcv")
    assert code == 2
    assert "there is no log format 'mmcv'; known formats: mmcv text" in err
    code, _, err = doctor(log, "--format", "KAIR")
    assert code == 2
    assert "holds no record of the format KAIR" in err


def test_the_text_and_the_json_of_one_run_are_not_compared_with_each_other(doctor: Run) -> None:
    files = CORPUS / "mmcv_iter.log", CORPUS / "mmcv_iter.log.json"
    _, out, _ = doctor(*files, "--json", "-")
    assert record(out)["kind"] == "LogExamination"


def test_a_bottleneck_leaves_with_one(doctor: Run, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines = [f"step={step} step_time_s=0.5 data_time_s=0.4\n" for step in range(1, 100)]
    log.write_text("".join(lines), encoding="utf-8")
    code, out, _ = doctor(log)
    assert code == 1
    assert out.startswith("bottleneck: ")


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.name)
def test_a_broken_log_is_judged_or_refused_in_one_paragraph(doctor: Run, path: Path) -> None:
    code, out, err = doctor(path)
    assert "Traceback" not in out + err
    facts = json.loads((path.parent / f"{path.name}.facts.json").read_text(encoding="utf-8"))
    if "error" not in facts:
        assert code in (0, 1)
        assert out
        return
    assert code == 2
    assert not out
    assert path.name in err.replace("\n", "")
    assert "\n\n" not in err.strip()


def test_a_path_that_is_not_there_is_named(doctor: Run, tmp_path: Path) -> None:
    code, _, err = doctor(tmp_path / "none.log")
    assert code == 2
    assert "none.log" in err.replace("\n", "")


def test_options_of_scripts_are_refused_with_a_log(doctor: Run, tmp_path: Path) -> None:
    code, _, err = doctor(pairs(tmp_path / "a.log"), "--steps", 5)
    assert code == 2
    assert "--steps is for a command after --" in err
