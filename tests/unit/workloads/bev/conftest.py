"""One small generated set for all tests that only read."""

import shutil
from pathlib import Path

import pytest

from pitstop.workloads.bev.synthetic.make import make_bev


@pytest.fixture(scope="session")
def world_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the root of a set of two scenes; do not write into it."""
    root = tmp_path_factory.mktemp("bev") / "set"
    make_bev(root, scenes=2, samples=2, size=(225, 400), seed=9)
    return root


@pytest.fixture
def own_root(world_root: Path, tmp_path: Path) -> Path:
    """Give the same set once more, to be broken."""
    shutil.copytree(world_root, tmp_path / "set", ignore=shutil.ignore_patterns(".pitstop"))
    return tmp_path / "set"
