"""A run of a million steps is summarised in seconds and in little memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pitstop_probe import Clock, RecordWriter
from pitstop_probe.writer import BLOCK_STEPS
from tests.fakes import FakeClock

BLOCKS = 3907  # of 256 steps: 1,000,192
STEPS = BLOCKS * BLOCK_STEPS
PARTS = ("data", "copy", "forward", "loss", "backward", "clip", "optimizer", "log")

# In a process of its own, so that the peak is the reader's alone; from /proc, since what rusage
# gives begins with the size of whoever started the process.
SUMMARISE = """
import json, sys, time
from pathlib import Path
from pitstop.records.store import read_run
from pitstop.records.summary import summarise
started = time.perf_counter()
record = read_run(sys.argv[1], with_steps=sys.argv[2] == "steps").first
summary = summarise(record)
status = Path("/proc/self/status").read_text()
json.dump({
    "took_s": time.perf_counter() - started,
    "peak_bytes": int(status.partition("VmHWM:")[2].split()[0]) * 1024,
    "steps": summary.steps,
    "rows": None if record.steps is None else len(record.steps),
    "wall_us": summary.wall.total_us,
    "data_us": summary.span("data").host.total_us,
    "notes": record.notes,
}, sys.stdout)
"""


def write_million(path: Path) -> tuple[int, int]:
    """Write one real block of eight parts and repeat its lines; give total wall and data time."""
    time = FakeClock()
    writer = RecordWriter(str(path), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us, timeline_every=10**9)
    data_us = 0
    for number in range(BLOCK_STEPS):
        clock.begin_step()
        for place, name in enumerate(PARTS):
            took_us = 11_000 * place + 137 * (number % 53)
            data_us += took_us if name == "data" else 0
            with clock.span(name):
                time.advance(took_us)
        clock.count(samples=8)
    clock.close()
    writer.close()
    lines = path.read_bytes().splitlines(keepends=True)
    head = [line for line in lines if line.startswith(b"{") and b'"block"' not in line][:-1]
    rows = [line.split(b",", 2) for line in lines if line.startswith(b"[")]
    block = json.loads(next(line for line in lines if b'"block"' in line))
    with path.open("wb") as file:
        file.writelines(head)
        for number in range(BLOCKS):
            first = number * BLOCK_STEPS
            file.writelines(b"%b,%d,%b" % (r[0], first + n, r[2]) for n, r in enumerate(rows))
            moved = {**block, "first": first, "last": first + BLOCK_STEPS - 1}
            file.write(json.dumps(moved, separators=(",", ":")).encode() + b"\n")
        file.write(lines[-1])
    return time.now_us() * BLOCKS, data_us * BLOCKS


@pytest.mark.slow
def test_a_million_steps_are_summarised_in_seconds_and_little_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rank-0.jsonl"
    wall_us, data_us = write_million(path)
    assert path.stat().st_size <= 200 * STEPS
    for mode in ("blocks", "steps"):
        done = subprocess.run(
            [sys.executable, "-c", SUMMARISE, str(path), mode],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        got = json.loads(done.stdout)
        with capsys.disabled():
            sys.stdout.write(
                f"\n{STEPS:,} steps, {mode}: {path.stat().st_size / 1e6:.0f} MB read in "
                f"{got['took_s']:.1f} s, peak {got['peak_bytes'] / 2**20:.0f} MiB\n"
            )
        assert (got["steps"], got["wall_us"], got["data_us"]) == (STEPS, wall_us, data_us)
        assert got["rows"] == (STEPS if mode == "steps" else None)
        assert got["notes"] == []
        assert got["peak_bytes"] < 1e9
        if mode == "blocks":
            assert got["took_s"] < 30
