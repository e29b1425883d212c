"""``pitstop plan -- CMD`` on whole scripts, and what is left of a plan that is ended."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pitstop.records.plans.plan import MemoryPlan
from pitstop.records.store import from_json

ROOT = Path(__file__).parents[2]
SCRIPT = """
    import sys, torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).to(sys.argv[1])
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(320, 64), torch.randn(320, 8))
    model = torch.compile(model) if "compile" in sys.argv else model
    for x, y in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=300
    )


def plan(*words: str) -> "subprocess.CompletedProcess[str]":
    return run("-m", "pitstop", "plan", "--gpu-memory", "24GiB", *words)


@pytest.mark.slow
def test_a_script_is_planned_and_its_losses_stay_bit_equal(script: Path, tmp_path: Path) -> None:
    bare = run(str(script), "cpu")
    out = tmp_path / "plan.json"
    done = plan("--json", str(out), "--", sys.executable, str(script), "cpu", "compile")
    assert done.returncode == 0, done.stderr
    losses = done.stdout.split()
    assert len(losses) >= 3
    assert losses == bare.stdout.split()[: len(losses)]
    made = from_json(out.read_text(), MemoryPlan)
    assert made.trace.batch_size == 16
    # What GELU and the second product keep, the batch, and the loss's two operands.
    assert made.trace.saved_bytes == 16 * 4 * (64 + 256 + 256 + 8 + 8)
    assert "estimated" in done.stderr


@pytest.mark.slow
def test_a_script_that_asks_for_a_gpu_is_answered_in_one_sentence(script: Path) -> None:
    done = plan("--", "env", "CUDA_VISIBLE_DEVICES=", sys.executable, str(script), "cuda")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2
    assert "asks for a GPU, and there is none here" in last
    assert "build() -> (model, batch)" in last


def has_started(process: psutil.Process) -> bool:
    """Whether a dry run is under way."""
    return any("pitstop.plan" in " ".join(_words(one)) for one in process.children(recursive=True))


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    while not condition():
        assert process.poll() is None, "it ended before it could be ended"
        os.sched_yield()


@pytest.mark.slow
@pytest.mark.usefixtures("with_signal_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_plan_that_is_ended_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    config = ROOT / "configs" / "deblur" / "baseline.yaml"
    process = subprocess.Popen(
        [sys.executable, "-m", "pitstop", "plan", str(config), "--gpu-memory", "24GiB"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # noqa: TID251 - handed on
    )
    top = psutil.Process(process.pid)
    _until(lambda: has_started(top), process)
    below = top.children(recursive=True)
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == []
    assert list(tmp_path.glob("pitstop-plan-*")) == []
