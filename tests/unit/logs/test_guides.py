"""The lines that the three guides print, as logs: the report from the log alone."""

import re
from pathlib import Path

import pytest

from pitstop.cli.doctor_logs import doctor_logs
from pitstop.doctor.logs.examine import examine_log
from pitstop.logs.read import read_logs


def test_the_timing_line_gives_rate_wait_and_what_is_left(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f"step {n}/8880 | epoch 1 | loss 0.02{n % 7} | 0.5 samples/s | data_time=0.1ms\n"
            for n in range(50, 1000, 50)
        )
    )
    summary = examine_log(read_logs([log])[0]).summary
    assert (summary.last_step, summary.total_steps) == (950, 8880)
    assert summary.rate is not None
    assert summary.rate.middle == pytest.approx(0.5)
    assert summary.data_wait is not None
    assert summary.data_wait.middle == pytest.approx(1e-4)


def bar(rate: float, batch: int) -> list[str]:
    return [
        f"Epoch 1: {n}%|##| {n}/4000 [{int(n / rate) // 60:02}:{int(n / rate) % 60:02}<09:00, "
        f"{rate:.2f}it/s, loss=0.4, batch_size={batch}]"
        for n in range(20, 4000, 20)
    ]


def test_two_rates_of_two_batch_sizes_differ_by_two_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "batch4.log", tmp_path / "batch8.log"]
    for path, rate, batch in zip(paths, (7.45, 3.64), (4, 8), strict=True):
        path.write_text("\n".join(bar(rate, batch)) + "\n")
    doctor_logs(paths, batch_sizes=[4, 8])
    said = " ".join(capsys.readouterr().out.split())
    assert "no difference beyond noise" in said
    slower = re.search(r"([\d.]+)% slower, within the usual difference", said)
    assert slower is not None, said
    assert float(slower[1]) == pytest.approx(2.3, abs=0.3)


def test_a_bar_that_stops_at_80_of_1863_is_reported(tmp_path: Path) -> None:
    lines = []
    for epoch in range(1, 9):
        lines += [
            f"Epoch {epoch}: {n // 18}%|#| {n}/1863 [00:{n // 2:02}<15:00,  2.00it/s]"
            for n in range(4, 81, 4)
        ]
    log = tmp_path / "reid.log"
    log.write_text("\n".join(lines) + "\n")
    findings = examine_log(read_logs([log])[0]).verdict.findings
    assert "BAR001" in [finding.code for finding in findings]
