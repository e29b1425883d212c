"""The demo as a newcomer runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pitstop.doctor.examine import examine
from pitstop.records.store import read_run

STEPS = 40


def run_demo(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pitstop", "demo", "--steps", str(STEPS), "--output", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_the_demo_names_the_bottleneck_mends_it_and_proves_it(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    for _ in range(2):  # a second demo in the same folder is a run of its own
        out = run_demo(folder)
        assert "bottleneck: the training loop waits for data" in out
        assert "DATA001" in out
        assert f"losses of all {STEPS} steps: equal to the bit" in out
        assert f"look closer: pitstop doctor {folder / 'after'}" in out
        assert float(re.findall(r": ([\d.]+)x as fast \(middle half", out)[0]) > 1

        before, after = read_run(folder / "before"), read_run(folder / "after")
        for record in (before, after):
            assert record.is_finished
            assert record.notes == record.first.notes == ()
            assert len(record.first.attempts) == 1
            assert record.first.steps is not None
            assert len(record.first.steps) == STEPS
        first, second = examine(before), examine(after)
        assert first.findings[0].code == "DATA001"
        assert second.shares["data"] < first.shares["data"] / 2
        assert [r.first.scalars["loss"].value.tolist() for r in (before, before)] == [
            r.first.scalars["loss"].value.tolist() for r in (before, after)
        ]
