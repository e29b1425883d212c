"""Set-up runs before anything is installed, and fails in one message that names the cause."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import set_up

SCRIPT = Path(set_up.__file__)

CONFLICT = """\
INFO: pip is looking at multiple versions of torch to determine which version is compatible.
ERROR: Cannot install torch==2.13.0 because these package versions have conflicting dependencies.

The conflict is caused by:
    torch 2.13.0 depends on triton==3.7.1; platform_system == "Linux"
    The user requested (constraint) triton==3.6.0

To fix this you could try to:
1. loosen the range of package versions you've specified

ERROR: ResolutionImpossible: for help visit the documentation
"""
NO_NETWORK = """\
WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after
connection broken by 'NewConnectionError(...: [Errno -3] Temporary failure in name resolution')'
ERROR: Could not find a version that satisfies the requirement typer (from versions: none)
ERROR: No matching distribution found for typer
"""
NOTHING_THERE = """\
ERROR: Could not find a version that satisfies the requirement typer>=0.15 (from versions: none)
ERROR: No matching distribution found for typer>=0.15
"""
TOO_OLD = """\
ERROR: Could not find a version that satisfies the requirement typer==99 (from versions: 0.1, 0.2)
ERROR: No matching distribution found for typer==99
"""
DISK_FULL = """\
ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device
"""


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (CONFLICT, "the pinned versions exclude each other: torch 2.13.0 depends on triton==3.7.1"),
        (NO_NETWORK, "the package index cannot be reached"),
        (NOTHING_THERE, "the package index cannot be reached, or has no typer>=0.15"),
        (TOO_OLD, "No matching distribution found for typer==99"),
        (DISK_FULL, "the disk is full"),
        ("ERROR: Invalid requirement: 'x y'\n", "Invalid requirement: 'x y'"),
        ("", "pip failed without a reason"),
    ],
)
def test_the_cause_is_one_sentence(output: str, cause: str) -> None:
    said = set_up.cause_of(output)
    assert said.startswith(cause)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("wheel", "has_cuda"),
    [
        ("torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl", True),
        ("torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("torch-2.13.0%2Bcu130-cp311-cp311-linux_x86_64.whl", True),
        ("torch-2.13.0-cp311-none-macosx_11_0_arm64.whl", False),
    ],
)
def test_a_build_with_cuda_is_told_by_its_wheel(wheel: str, has_cuda: bool) -> None:
    assert set_up.is_cuda_build(wheel) is has_cuda


TORCH = "torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"  Downloading {TORCH} (526.6 MB)", "torch comes with CUDA"),
        (f"  Downloading {TORCH}.metadata (31 kB)", "torch comes with CUDA"),
        (f"  Downloading https://host/packages/ab/{TORCH} (526.6 MB)", "torch comes with CUDA"),
        ("Downloading nvidia_cublas-13.1-py3-none-manylinux_x86_64.whl (423.1 MB)", "fetching nvi"),
        ("Downloading big-1-py3-none-any.whl (1.2 GB)", "fetching big, 1200 MB"),
    ],
)
def test_what_is_large_is_said(line: str, said: str) -> None:
    assert (set_up.announcement(line) or "").startswith(said)


@pytest.mark.parametrize(
    "line",
    [
        "Collecting torch",
        "  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (16.9 MB)",
        "  Downloading typer-0.29.0-py3-none-any.whl.metadata (16 kB)",
        "  Using cached torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl (190 MB)",
    ],
)
def test_what_is_small_or_at_hand_is_not(line: str) -> None:
    assert set_up.announcement(line) is None


def test_a_python_that_is_too_old_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(set_up, "OLDEST_PYTHON", (99, 0))
    with pytest.raises(set_up.SetUpError, match=r"needs Python 3\.11 or newer, this is 3\."):
        set_up.set_up(tmp_path / "venv", "train")
    assert not (tmp_path / "venv").exists()


@pytest.mark.slow
def test_an_index_that_is_not_there_ends_set_up_in_one_sentence(tmp_path: Path) -> None:
    clean = {name: os.environ[name] for name in os.environ if not name.startswith("PIP_")}
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": (tmp_path / "none").as_uri()}
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "venv", "train"],
        env={**clean, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("set-up failed: the package index cannot be reached, or has no")
    assert done.stderr.count("\n") == 1
    assert "setup.log" in done.stderr
