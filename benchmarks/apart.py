"""Rows of a benchmark that are measured in processes of their own: memory is then theirs alone."""

import json
import subprocess
import sys
from typing import Any


def in_a_process_of_its_own(
    file: str, row: dict[str, Any], *, smoke: bool, limit_s: float
) -> dict[str, Any]:
    """Measure one row by calling a benchmark again; its last line is the result.

    Args:
        file: The benchmark, which takes `--row` and `--smoke`.
        row: What to measure.
        smoke: Whether at the smallest size.
        limit_s: Longest run; one that takes longer is a result, too.
    """
    command = [sys.executable, file, "--row", json.dumps(row), *(["--smoke"] if smoke else [])]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=limit_s, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return {**row, "outcome": f"not finished within {limit_s:.0f} s"}
    if done.returncode:
        return {**row, "outcome": f"ended with {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])
