import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("model_fused_cases.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_a_network_with_the_fused_splat_keeps_its_claims_under_the_interpreter() -> None:
    # A process of its own: whoever imports Triton first decides for the whole process.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)],
        cwd=Path(__file__).parents[4],
        env={**os.environ, "TRITON_INTERPRET": "1"},  # noqa: TID251 - handed on
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
