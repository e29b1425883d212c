"""On a GPU: kernels by class add up, lines are found, and 40 steps tell what 400 do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pitstop.doctor.examine import examine
from pitstop.measure.script.launch import run_script
from pitstop.records.run import RunRecord
from pitstop.records.script import Kernels, Modules, Rates, Work
from pitstop.records.store import decode, read_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PRODUCTS = ("matrix products", "attention", "convolutions")

SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

steps, shape = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
width, rows = (4096, 4096) if shape == "products" else (256, 65536)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.chain = 1 if shape == "products" else 12

    def forward(self, x):
        x = self.layer(x)
        for _ in range(self.chain):
            x = torch.sigmoid(x) * 1.01  # the long chain
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(Block(), Block()) for _ in range(3))

    def forward(self, x):
        for stage in self.stages:
            x = checkpoint(stage, x, use_reentrant=False)
        return x


model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(rows, width, device="cuda")
for _ in range(steps):
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


def record(script: Path, folder: Path, steps: int, shape: str) -> RunRecord:
    command = [sys.executable, str(script), str(steps), shape]
    run_script(command, folder, steps=1_000, detach=True)
    return read_run(folder)


def reading(run: RunRecord, kind: str, record_type: Any) -> Any:
    return next(decode(r, record_type) for r in run.first.readings if r.kind == kind)


@pytest.mark.parametrize("shape", ["products", "chains"])
def test_classes_add_up_and_name_what_the_device_does(
    script: Path, tmp_path: Path, shape: str
) -> None:
    run = record(script, tmp_path, 45, shape)
    kernels: Kernels = reading(run, "kernels", Kernels)
    whole = sum(kernels.classes.values())
    copies = kernels.copy_to_device_us + kernels.copy_to_host_us
    # One stream: kernels do not overlap, so their sum is the time in which one ran.
    assert whole == pytest.approx(kernels.busy_us + copies, rel=0.02)
    products = sum(kernels.classes.get(name, 0.0) for name in PRODUCTS) / whole
    assert products > 0.5 if shape == "products" else products < 0.5
    assert all(kernel.class_name for kernel in kernels.top)
    assert any(kernel.operation is not None for kernel in kernels.top)


def test_forty_steps_tell_what_four_hundred_do(script: Path, tmp_path: Path) -> None:
    verdicts = []
    for steps in (41, 400):
        run = record(script, tmp_path / str(steps), steps, "chains")
        assert reading(run, "rates", Rates).bytes_per_s > 0
        verdicts.append(examine(run))
    short, long = verdicts
    assert short.findings
    assert short.findings[0].code == long.findings[0].code
    assert short.not_sampled == long.not_sampled == ()
    assert short.headroom is not None
    assert long.headroom is not None
    assert short.headroom.flops == long.headroom.flops
    assert short.headroom.least_us is not None
    assert 0 < short.headroom.least_us < short.headroom.step_us
    named = [each for each in short.headroom.kernels if each.line is not None]
    assert named, "a kernel that takes long is led back to a line"
    assert "the long chain" in SCRIPT.splitlines()[(named[0].line or 1) - 1]


def test_modules_are_timed_on_the_device_and_nothing_is_changed(
    script: Path, tmp_path: Path
) -> None:
    command = [sys.executable, str(script), "45", "products"]
    bare = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    doctor = [sys.executable, "-m", "pitstop", "doctor", "--detach", "--record", str(tmp_path)]
    place = tmp_path / "verdict.json"
    seen = subprocess.run(
        [*doctor, "--json", str(place), "--", *command], capture_output=True, text=True, check=True
    )
    if bare[0].stdout == bare[1].stdout:
        assert seen.stdout == bare[0].stdout
    run = read_run(tmp_path)
    modules: Modules = reading(run, "modules", Modules)
    assert modules.clock == "device"
    found = {module.name: module for module in modules.modules}
    for name in ("stages.0", "stages.1", "stages.2"):
        # What is recomputed takes what it took the first time.
        assert found[name].recompute_us == pytest.approx(found[name].forward_us, rel=0.3)
        assert (found[name].backward_us or 0) > found[name].recompute_us
    table = json.loads(place.read_text())["modules"]
    assert table["covers_forward"] > 0.9
    assert table["covers_backward"] > 0.8
    assert reading(run, "work", Work).sources
