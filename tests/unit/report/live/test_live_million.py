"""A million steps are watched as cheaply as a few: once read, a look costs what is new."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_million_steps import STEPS, write_million

# In a process of its own, so that the peak is the watching's alone; from /proc, since what rusage
# gives begins with the size of whoever started the process.
WATCH = """
import json, sys, time
from pathlib import Path
from pitstop.doctor.examine import examine
from pitstop.report.live.watch import Judge, watch_of

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

watch = watch_of(Path(sys.argv[1]), examine)
bare_bytes = peak()
first = watch.look(settle=True)
read_s = time.process_time()
file = Path(sys.argv[1]) / "rank-0.jsonl"
with file.open("rb") as record:
    record.seek(-200_000, 2)
    row = [line for line in record.read().split(b"\\n") if line.startswith(b"[")][-1]
begin = time.process_time()
looks = 50
for number in range(looks):
    with file.open("ab") as record:
        record.write(row + b"\\n")
    last = watch.look()
look_s = (time.process_time() - begin) / looks
json.dump({
    "read_s": read_s, "look_s": look_s, "kept_bytes": peak() - bare_bytes,
    "step": first.step, "steady_steps": first.ranks[0].steady_steps,
    "verdict": first.verdict is not None,
}, sys.stdout)
"""


@pytest.mark.slow
def test_a_million_steps_are_watched_cheaply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "run" / "rank-0.jsonl"
    record.parent.mkdir()
    write_million(record)
    size_bytes = record.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(record.parent)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    with capsys.disabled():
        sys.stdout.write(f"\n{size_bytes / 1e6:.0f} MB of record: {got}\n")
    assert got["step"] >= STEPS
    assert got["steady_steps"] >= STEPS - 256
    assert got["verdict"]
    assert got["look_s"] < got["read_s"] / 20
    assert got["kept_bytes"] < size_bytes
