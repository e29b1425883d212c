"""Logs as text: result first, every number with its formula, every gap named."""

import io

import pytest
from rich.console import RenderableType

from pitstop.doctor.logs.compare import compare_logs
from pitstop.doctor.logs.examine import examine_log
from pitstop.records.run import RunRecord
from pitstop.report.logs import log_comparison_report, log_report
from pitstop.report.terminal import make_console
from tests.unit.doctor.log_tables import NAN, event, log_record

ESCAPE = "\x1b"


def rendered(what: RenderableType) -> list[str]:
    stream = io.StringIO()
    make_console(stream).print(what)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def report(record: RunRecord) -> list[str]:
    examined = examine_log(record)
    return rendered(log_report(examined.summary, examined.verdict))


def row(lines: list[str], name: str) -> str:
    [found] = [line for line in lines if line.startswith(f"{name}  ")]
    return found.removeprefix(name).strip()


def test_the_verdict_stands_first_and_the_next_command_last() -> None:
    lines = report(log_record(0.5, data_s=0.2))
    assert lines[0].startswith("bottleneck: the training loop waits for data")
    assert lines[-1] == "next: pitstop doctor train.log --batch-size N"
    assert report(log_record(0.5, batch_size=4))[-1].startswith("next: pitstop doctor -- COMMAND")


def test_the_format_is_named_with_how_sure_that_is() -> None:
    [line] = [line for line in report(log_record(0.5, total_steps=9000)) if "mmcv" in line]
    assert line == "train.log: mmcv text (97% sure), 40 records, steps 1 to 2,000 of 9,000"
    told = report(log_record(0.5, confidence=1.0, version="1.x"))
    assert any("mmcv text 1.x (as given)" in line for line in told)


def test_every_number_carries_its_formula() -> None:
    lines = report(log_record(0.5, data_s=0.01, batch_size=4, events=[event("evaluation", 60)]))
    assert row(lines, "step") == (
        "500 ms, IQR 500 ms to 500 ms (median of 40 windows; printed as window mean: time)"
    )
    assert row(lines, "samples/s").startswith("8.00, IQR 8.00 to 8.00 (4 samples / 500 ms")
    assert row(lines, "wait for data").endswith("printed as window mean: data_time)")
    assert row(lines, "run") == "17 min 40 s (at least: steps at their steady time + timed events)"
    assert row(lines, "evaluation") == "1 time, 60.0 s, 5.7% (printed as eval_runtime)"


def test_what_is_not_known_is_said_and_how_to_make_it_known() -> None:
    lines = report(log_record(NAN, events=[event("checkpoint", None)]))
    assert row(lines, "step") == "not known: not in the log"
    assert row(lines, "samples/s") == "not known: the log does not time its steps"
    assert row(lines, "batch") == "not known; number of ranks not known"
    assert row(lines, "checkpoint") == "1 time; how long is not known"
    assert row(lines, "not in the log") == (
        "timestamps, time of a step, wait for data, memory, learning rate, losses, forward, "
        "backward and optimizer separately, gradient sync, GPU use"
    )
    assert "give --batch-size" in row(report(log_record(0.5)), "samples/s")


def test_what_is_left_is_an_estimate_with_error_and_trend() -> None:
    steady = row(report(log_record(1.0, total_steps=4000)), "left")
    assert steady.startswith(
        "at least 33 min 20 s ± 20.0 s, estimated: 2,000 steps x 1.00 s (median of th"
    )
    assert steady.endswith("; the step time is steady")
    slower = row(report(log_record([1.0] * 20 + [1.5] * 10, total_steps=4000)), "left")
    assert slower.endswith("; the last third runs 50.0% slower than the first")


def test_a_comparison_says_who_is_faster_before_anything_else() -> None:
    records = [
        log_record(1 / 7.45, batch_size=4, source="a.log"),
        log_record(1 / 3.64, batch_size=8, source="b.log"),
    ]
    lines = rendered(log_comparison_report(compare_logs(records)))
    assert lines[0].startswith(
        "no difference beyond noise: b.log: 29.1 samples/s against 29.8 samples/s: 2.3% slower, w"
    )
    assert lines[1] == "  ratio 0.977, 0.977 to 0.977 by the IQRs"
    assert any("in steps/s it would seem 51.1% slower" in line for line in lines)
    cells = next(line for line in lines if line.startswith("b.log ")).split()
    assert cells[1] == "8"
    assert "29.1" in cells
    assert lines[-1] == "next: pitstop doctor b.log"


def test_a_refusal_shows_no_ratio() -> None:
    records = [log_record(0.1, source="a"), log_record(0.2, batch_size=8, source="b")]
    lines = rendered(log_comparison_report(compare_logs(records)))
    assert lines[0].startswith("not comparable: b: the batch size of a is not known: give --batch")
    assert not any(line.startswith("  ratio") for line in lines)


@pytest.mark.parametrize("name", [f"{ESCAPE}[31mred.log", "[red]x[/red].log", "two\nlines.log"])
def test_names_cannot_steer_the_terminal(name: str) -> None:
    record = log_record(0.5, source=name, batch_size=1, batch_size_from=name, format=name)
    lines = report(record) + rendered(log_comparison_report(compare_logs([record, record])))
    text = "\n".join(lines)
    assert ESCAPE not in text
    assert not any(line.startswith("lines.log") for line in lines)
    assert "[red]" in text or "[red]" not in name
