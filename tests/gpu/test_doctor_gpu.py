"""On a GPU: launches are counted as the profiler counts them, and the right line is blamed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pitstop.measure.script.launch import run_script
from pitstop.records.run import RankRecord
from pitstop.records.script import Kernels, Setup, Syncs
from pitstop.records.store import decode, read_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCRIPT = """
import sys

import torch
from torch import nn

width = 2048
model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
x = torch.randn(4096, width, device="cuda")


def step(watch):
    seen = x[0, 0].cpu()  # cheap: nothing is queued before it
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    if watch:
        value = loss.item()  # dear: the whole step is queued before it
    return seen


if "--profile" in sys.argv:
    for _ in range(5):
        step(False)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        step(False)
        torch.cuda.synchronize()
    names = [e.name for e in profile.events() if "CUDA" in str(e.device_type)]
    print(len([n for n in names if not n.startswith(("Memcpy", "Memset"))]))
else:
    for number in range(400):
        step("--sync" in sys.argv)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


def watched(script: Path, folder: Path, *args: str) -> RankRecord:
    ended = run_script([sys.executable, str(script), *args], folder, steps=60)
    assert (ended.exit_code, ended.stopped_by_us) == (3, True)
    return read_run(folder).first


def test_launches_are_counted_as_the_profiler_counts_them(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script), "--profile"], capture_output=True, text=True, check=True
    )
    expected = int(done.stdout)
    rank = watched(script, tmp_path)
    kernels = next(decode(r, Kernels) for r in rank.readings if r.kind == "kernels")
    assert kernels.launches == pytest.approx(expected, rel=0.01)
    assert 0 < kernels.busy_us <= kernels.wall_us


def test_the_line_that_waits_longest_is_named_first(script: Path, tmp_path: Path) -> None:
    rank = watched(script, tmp_path, "--sync")
    syncs = next(decode(r, Syncs) for r in rank.readings if r.kind == "syncs")
    assert "loss.item()" in syncs.lines[0].text
    assert syncs.lines[0].line == 1 + SCRIPT.splitlines().index(
        "        value = loss.item()  # dear: the whole step is queued before it"
    )
    assert {line.operation for line in syncs.lines} == {"item", "cpu"}
    assert syncs.lines[0].calls == pytest.approx(syncs.steps, rel=0.1)


def test_every_part_has_device_time_on_marked_steps(script: Path, tmp_path: Path) -> None:
    rank = watched(script, tmp_path)
    assert rank.steps is not None
    marked = [step for step in rank.steps if step.device_us]
    assert len(marked) > 5
    for step in marked:
        assert step.device_wall_us is not None
        assert sum(step.device_us.values()) == pytest.approx(step.device_wall_us, rel=0.02)


CAPTURED = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
x = torch.randn(512, 256, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


beside = torch.cuda.Stream()
beside.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(beside):
    for _ in range(WARM):
        step()
torch.cuda.current_stream().wait_stream(beside)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(100):
    graph.replay()
print(loss.item())
"""


# Before, at and after the steps that are looked at closely.
@pytest.mark.parametrize("warm", [3, 5, 7, 11, 30])
def test_a_step_that_is_captured_in_a_graph_stays_what_it_was(tmp_path: Path, warm: int) -> None:
    script = tmp_path / "captured.py"
    script.write_text(CAPTURED.replace("WARM", str(warm)))
    command = [sys.executable, str(script)]
    bare = subprocess.run(command, capture_output=True, text=True, check=True)
    verdict = tmp_path / "verdict.json"
    doctor = [sys.executable, "-m", "pitstop", "doctor", "--json", str(verdict), "--"]
    seen = subprocess.run([*doctor, *command], capture_output=True, text=True, check=False)
    assert seen.returncode == 0, seen.stderr
    assert "measuring stopped" not in seen.stderr
    assert seen.stdout == bare.stdout


def test_products_in_tf32_by_the_newer_setting_are_seen_and_left_so(tmp_path: Path) -> None:
    script = tmp_path / "newer.py"
    script.write_text(
        SCRIPT.replace(
            "width = 2048", 'torch.backends.cuda.matmul.fp32_precision = "tf32"\nwidth = 512'
        )
    )
    rank = watched(script, tmp_path / "record")
    setup = next(decode(r, Setup) for r in rank.readings if r.kind == "setup")
    assert setup.tf32 is True
    assert any(r.kind == "rates" for r in rank.readings)
