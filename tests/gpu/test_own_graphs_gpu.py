"""A script that plays back a CUDA graph of its own, watched on a real GPU."""

import subprocess

import pytest

from tests.scripts.corpus import command
from tests.scripts.run_corpus import doctor

pytestmark = pytest.mark.gpu


def test_replays_of_a_graph_are_steps_and_end_with_the_same_loss() -> None:
    line = command("gpu/own_graph.py")
    bare = subprocess.run(line, capture_output=True, text=True, check=True)
    said = doctor(line, steps=1_000)
    assert said.exit_code == 0, said.stderr
    assert bare.stdout.strip() in said.stdout
    # Three come before it; a tenth is warm-up, and ten at most are slowed down to see more.
    assert 0.9 * 400 - 10 <= said.verdict["steps"] <= 0.9 * 403
