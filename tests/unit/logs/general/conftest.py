"""What tests of the general reader share."""

from pathlib import Path

import pytest


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a test writes its lines."""
    return tmp_path / "own.log"
