"""Fifty steps of the deblur demo give the very losses they gave when the file was written.

Whatever changes the arithmetic of a step, the order of data or the generated clips changes a bit
here. Where that is meant, ``pytest -m slow tests/golden --update-golden`` writes the file anew.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "configs" / "deblur" / "demo.yaml"
GOLDEN = HERE / "deblur_demo_losses.txt"

# One thread and the plainest kernels, so that bits do not depend on the processor.
SAME_EVERYWHERE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
}


@pytest.mark.slow
def test_fifty_steps_of_the_deblur_demo_give_the_golden_losses(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "deblur_losses.py"), str(DEMO), str(tmp_path)],
        env={**os.environ, **SAME_EVERYWHERE},  # noqa: TID251 - handed on
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(done.stdout, encoding="utf-8")
    now = [float.fromhex(line) for line in done.stdout.split()]
    golden = [float.fromhex(line) for line in GOLDEN.read_text(encoding="utf-8").split()]
    assert len(golden) == 50
    assert golden[-1] < golden[0] / 2, "golden losses of a run that does not learn prove little"
    assert now == golden
