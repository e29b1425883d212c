"""A real script, changed from outside and by its printed lines: the same losses, to the bit."""

import sys
from pathlib import Path

import pytest

from pitstop.records.store import from_json
from pitstop.records.tuning.script import ScriptSeen
from pitstop.records.tuning.study import Trial, Tuning
from pitstop.tune.script.edits import edit_sources
from pitstop.tune.script.losses import LossMeasure
from pitstop.tune.script.trial import ScriptTrials

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 3, 8, 8), torch.randint(0, 4, (512,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(3):
    for x, y in loader:
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
EXACT = ("loader.workers=1", "loader.persistent=true", "loader.prefetch=4")
ROUNDING = ("optimizer=fused", "autocast=bf16", "channels_last=true", "threads=2")
COMPILED = ("compile=models",)
VARIABLES = ("env.MALLOC_MMAP_MAX_=0",)


def trials(folder: Path, script: Path, loaders: tuple[str, ...] | None = None) -> ScriptTrials:
    folder.mkdir()
    return ScriptTrials(
        command=(sys.executable, str(script)),
        folder=folder / "trials",
        seen_path=folder / "seen.json",
        steps=8,
        limit_s=120.0,
        memory_limit_bytes=None,
        loaders=loaders,
    )


@pytest.mark.slow
def test_printed_lines_train_as_the_change_from_outside_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    runs = trials(tmp_path / "runs", script)
    bare = runs.run(())
    seen = from_json((tmp_path / "runs" / "seen.json").read_text(), ScriptSeen)
    runs.loaders = tuple(site.place for site in seen.train_loaders)
    changed = {words: runs.run(words) for words in ((*EXACT, *VARIABLES), ROUNDING, COMPILED)}
    ends = {words: (trial.end, trial.reason) for words, trial in changed.items()}
    assert set(ends.values()) == {("measured", "")}, ends
    measure = LossMeasure(base=bare.losses, repeat_distance=0.0, seed_distance=0.0, draws=False)
    assert {words: measure.judge(words, each.losses)[0] for words, each in changed.items()} == {
        (*EXACT, *VARIABLES): True,
        ROUNDING: True,
        COMPILED: True,
    }
    for words, trial in changed.items():
        edited = edited_run(tmp_path / words[0].partition("=")[0], script, seen, (bare, trial))
        assert edited.losses == trial.losses, words


def edited_run(folder: Path, script: Path, seen: ScriptSeen, run: tuple[Trial, Trial]) -> Trial:
    """Run a copy into which the changes of the second trial were written."""
    tuning = Tuning(source="x", rows=(), overrides=run[1].overrides, trials=run, stopped="")
    edits = edit_sources(tuning, seen, script)
    assert edits.left == ()
    copy = script.with_name(f"{folder.name}.py")
    copy.write_text(edits.after[script])
    variables = [word for word in run[1].overrides if word.startswith("env.")]
    return trials(folder, copy).run(variables)


SWITCHES = """\
import os
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
loader = DataLoader(data, 8, True, None, None, 0)
net = torch.nn.Linear(8, 1)
opt = torch.optim.AdamW(net.parameters(), lr=0.0)
state = (
    not torch.is_anomaly_enabled(),
    torch.get_num_threads() == 2,
    torch.backends.cudnn.benchmark,
    torch.get_float32_matmul_precision() == "high",
    loader.num_workers == 1,
    loader.persistent_workers,
    loader.prefetch_factor == 4,
    loader.pin_memory,
    opt.defaults["foreach"] is True,
    os.environ.get("MALLOC_MMAP_MAX_") == "0",
    os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
    os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == "expandable_segments:True",
)
code = float(sum(2**place for place, is_set in enumerate(state) if is_set))
for x, y in loader:
    loss = 0 * torch.nn.functional.mse_loss(net(x), y) + code
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
IN_ORDER = (
    "anomaly_detection=false",
    "threads=2",
    "cudnn_benchmark=true",
    "tf32=true",
    "loader.workers=1",
    "loader.persistent=true",
    "loader.prefetch=4",
    "loader.pin=true",
    "optimizer=foreach",
    "env.MALLOC_MMAP_MAX_=0",
    "env.THP_MEM_ALLOC_ENABLE=1",
    "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
"""Changes in the order of what the script tells of itself by its loss."""


@pytest.mark.slow
def test_every_switch_reaches_the_script_and_its_printed_line_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MALLOC_MMAP_MAX_", "THP_MEM_ALLOC_ENABLE", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "train.py"
    script.write_text(SWITCHES)
    runs = trials(tmp_path / "runs", script)
    bare = runs.run(())
    seen = from_json((tmp_path / "runs" / "seen.json").read_text(), ScriptSeen)
    changed = runs.run(IN_ORDER)
    assert (changed.end, changed.reason) == ("measured", "")
    assert set(bare.losses.values()) == {0.0}
    assert set(changed.losses.values()) == {2.0 ** len(IN_ORDER) - 1}
    assert edited_run(tmp_path / "edited", script, seen, (bare, changed)).losses == changed.losses
