"""The lines that the three guides print, as logs: the report from the log alone."""

import re
from pathlib import Path

import pytest

from pitstop.cli.doctor_logs import doctor_logs
from pitstop.doctor.logs.examine import examine_log
from pitstop.logs.read import read_logs


def test_the_timing_line_gives_its_rate_and_quotes_its_wait(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f"step {n}/8880 | epoch 1 | loss 0.02{n % 7} | 0.5 samples/s | data_time=0.1ms\n"
            for n in range(50, 1000, 50)
        )
    )
    summary = examine_log(read_logs([log])[0]).summary
    [kind] = summary.quoted
    fields = {one.name: one for one in kind.fields}
    assert (fields["step"].first, fields["step"].last, fields["step"].total) == (50, 950, 8880)
    assert (fields["data_time"].middle, fields["data_time"].unit) == (0.1, "ms")
    assert summary.rate is not None
    assert summary.rate.middle == pytest.approx(0.5)


def memory_lines(host_gb: list[float]) -> list[str]:
    start = "[After dataset creation] Memory - Process: 12345.6MB (4.8%), System: 48.3/256.0GB "
    lines = [start + "(18.9%), GPU: 2048.0MB allocated, 2560.0MB reserved"]
    for n, host in enumerate(host_gb, 1):
        lines.append(f"step {100 * n}/8880 | epoch 1 | loss 0.{n % 7 + 2} | 0.5 samples/s")
        lines.append(
            f"[Step {100 * n}] Memory - Process: {15000 + 900 * n}.0MB (6.1%), System: {host:.1f}/"
            f"256.0GB ({host / 2.56:.1f}%), GPU: 8192.0MB allocated, 9216.0MB reserved"
        )
    return [*lines, "  - Hit Rate: 82.45% (8245 hits / 1755 misses)"]


def test_the_memory_lines_give_growth_and_the_step_at_which_memory_is_full(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(memory_lines([60 + 9 * n for n in range(1, 21)])) + "\n")
    found = examine_log(read_logs([log])[0])
    [finding] = [one for one in found.verdict.findings if one.code == "MEM001"]
    assert finding.severity == "critical"  # full before the run's 8,880 steps are done
    assert "240 GiB of 256 GiB (93.8%) at step 2,000" in finding.evidence[0]
    assert "full at step 2,178 ± 0, estimated" in finding.evidence[1]  # 16 GiB at 9 a hundred
    assert "CACHE_SIZE_GB" in finding.remedy[0]
    [quoted] = [note for note in found.summary.notes if note.startswith("memory as printed")]
    assert "device 8192 MiB allocated, 9216 MiB reserved" in quoted
    assert "cache as printed: 82.45% hits (8245, 1755 misses)" in found.summary.notes
    assert "memory" not in found.summary.gaps


def test_memory_that_stays_is_no_finding(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(memory_lines([50.0 + n % 2 for n in range(30)])) + "\n")
    found = examine_log(read_logs([log])[0])
    assert "MEM001" not in [one.code for one in found.verdict.findings]
    log.write_text("\n".join(memory_lines([240.0 + n % 2 for n in range(30)])) + "\n")
    [finding] = [
        one for one in examine_log(read_logs([log])[0]).verdict.findings if one.code == "MEM001"
    ]
    assert finding.summary == "host memory is nearly full"


def test_memory_lines_alone_are_a_log(tmp_path: Path) -> None:
    lines = [line for line in memory_lines([60 + 9 * n for n in range(1, 21)]) if "Memory" in line]
    log = tmp_path / "memory.log"
    log.write_text("\n".join(lines) + "\n")
    found = examine_log(read_logs([log])[0])
    [step] = [one for one in found.summary.quoted[0].fields if one.role == "step"]
    assert (step.first, step.last) == (100, 2000)
    assert found.verdict.findings[0].code == "MEM001"


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


def test_a_bar_that_stops_at_80_of_1863_shows_in_its_count(tmp_path: Path) -> None:
    lines = []
    for epoch in range(1, 9):
        lines += [
            f"Epoch {epoch}: {n // 18}%|#| {n}/1863 [00:{n // 2:02}<15:00,  2.00it/s]"
            for n in range(4, 81, 4)
        ]
    log = tmp_path / "reid.log"
    log.write_text("\n".join(lines) + "\n")
    [kind] = examine_log(read_logs([log])[0]).summary.quoted
    [count] = [one for one in kind.fields if one.role == "count"]
    assert (count.most, count.total, count.falls) == (80, 1863, 7)
