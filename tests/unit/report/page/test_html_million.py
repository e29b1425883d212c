"""A page about a million steps: written in seconds and little memory, small, extremes kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pitstop.report.page.html import MOST_BYTES
from tests.integration.test_million_steps import STEPS, write_million

# In a process of its own, so that the peak is the page's alone; from /proc, since what rusage gives
# begins with the size of whoever started it. Processor time, since other work on the machine says
# nothing about the page.
REPORT = """
import json, sys, time
from pathlib import Path
from pitstop.cli.report import page_of
written = page_of([Path(sys.argv[1])], Path(sys.argv[2]))
status = Path("/proc/self/status").read_text()
json.dump({
    "took_s": time.process_time(),
    "peak_bytes": int(status.partition("VmHWM:")[2].split()[0]) * 1024,
    "size_bytes": written.size_bytes,
    "sections": written.sections,
}, sys.stdout)
"""
ODD_STEP = 654_321
EXTRA_US = 9_000_000


def make_one_step_odd(path: Path) -> None:
    """Let one step of the million wait nine seconds longer for its data."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines):
        if line.startswith(b"[") and line.split(b",", 2)[1] == b"%d" % ODD_STEP:
            row = json.loads(line)
            row[4] += EXTRA_US
            row[7] += EXTRA_US
            lines[number] = json.dumps(row, separators=(",", ":")).encode()
            break
    path.write_bytes(b"\n".join(lines))


@pytest.mark.slow
def test_a_million_steps_become_a_small_page_with_their_extremes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, output = tmp_path / "run" / "rank-0.jsonl", tmp_path / "report.html"
    record.parent.mkdir()
    write_million(record)
    make_one_step_odd(record)
    done = subprocess.run(
        [sys.executable, "-c", REPORT, str(record.parent), str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{STEPS:,} steps: a page of {got['size_bytes'] / 1e3:.0f} kB in {got['took_s']:.1f} "
            f"s of processor time, peak {got['peak_bytes'] / 2**20:.0f} MiB\n"
        )
    assert got["took_s"] < 30
    assert got["peak_bytes"] < 1e9
    assert got["size_bytes"] < MOST_BYTES
    assert "Over time" in got["sections"]
    text = output.read_text(encoding="utf-8")
    description = text[text.index('id="over-time-step-desc"') :].split("</desc>")[0]
    assert "highest 9." in description, description
