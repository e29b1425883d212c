"""Printed changes as changed source: the edited program is what the intervention made of it."""

import ast
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pitstop.records.tuning.script import ModelSite, OptimizerSite, ScriptSeen
from pitstop.records.tuning.study import CodePlace, Trial, Tuning
from pitstop.tune.script.edits import Edited, edit_sources
from pitstop.tune.script.interventions import line_for

SCRIPT = """\
\"\"\"Somebody's training.\"\"\"
import torch

kwargs = {"num_workers": 1}
loader = torch.utils.data.DataLoader(data, batch_size=8, **kwargs)  # theirs
other = torch.utils.data.DataLoader(
    data,
    num_workers=2,
)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
torch.set_num_threads(1)
for x, y in loader:
    x = x.to(device); y = y.to(device)
    out = net(x)
    loss = criterion(net(x), y)
    a, b = net(x)
    loss.backward()
if True: out = net(x)
"""


def seen(device: str = "cpu") -> ScriptSeen:
    model = ModelSite(
        place="{path}:11",
        name="net",
        class_name="Net",
        device=device,
        convolves=True,
        volumes=False,
        is_float32=True,
    )
    optimizer = OptimizerSite(
        place="{path}:11", name="AdamW", takes=("fused",), way=None, eight_bit="torchao"
    )
    return ScriptSeen(
        device=device,
        threads=1,
        autocast=None,
        is_compiled=False,
        models=(model,),
        optimizers=(optimizer,),
    )


def edited(
    tmp_path: Path, *changes: tuple[str, int, str], known: ScriptSeen | None = None
) -> Edited:
    """Write changes, each with its line and what was changed there."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    places = [CodePlace(change=w, place=f"{script}:{n}", name=name) for w, n, name in changes]
    overrides = tuple(dict.fromkeys(word for word, _, _ in changes))
    trial = Trial(overrides=overrides, end="measured", changed=tuple(places))
    tuning = Tuning(source="x", rows=(), overrides=overrides, trials=(trial,), stopped="")
    known = known or seen()
    models = tuple(replace(site, place=f"{script}:11") for site in known.models)
    return edit_sources(tuning, replace(known, models=models), script)


def lines(found: Edited) -> list[str]:
    """Give the added lines, without their indent."""
    [text] = found.after.values()
    ast.parse(text)
    return [line[1:].strip() for line in found.diff().splitlines() if line.startswith("+")][1:]


def test_arguments_of_a_loader_are_laid_over_a_dictionary_that_is_handed_on(tmp_path: Path) -> None:
    found = edited(
        tmp_path,
        ("loader.workers=4", 5, "DataLoader"),
        ("loader.persistent=true", 5, "DataLoader"),
    )
    [line] = lines(found)
    assert "**{**kwargs, 'num_workers': 4, 'persistent_workers': True}" in line


def test_an_argument_of_a_call_over_several_lines_is_exchanged(tmp_path: Path) -> None:
    [line] = lines(edited(tmp_path, ("loader.workers=4", 6, "DataLoader")))
    assert line == "other = torch.utils.data.DataLoader(data, num_workers=4)"


def test_a_model_is_called_in_autocast_and_gives_float32(tmp_path: Path) -> None:
    assert lines(edited(tmp_path, ("autocast=bf16", 15, "Net"))) == [
        'with torch.autocast("cpu", dtype=torch.bfloat16):',
        "out = net(x).float()",
    ]


def test_the_rest_of_a_statement_stays_outside_autocast(tmp_path: Path) -> None:
    assert lines(edited(tmp_path, ("autocast=bf16", 16, "Net"))) == [
        'with torch.autocast("cpu", dtype=torch.bfloat16):',
        "prediction = net(x).float()",
        "loss = criterion(prediction, y)",
    ]


def test_several_results_are_each_in_float32(tmp_path: Path) -> None:
    found = lines(edited(tmp_path, ("autocast=bf16", 17, "Net")))
    assert found[1] == "(a, b) = (each.float() for each in net(x))"


def test_channels_last_changes_weights_before_the_optimizer_and_the_input(tmp_path: Path) -> None:
    found = edited(tmp_path, ("channels_last=true", 15, "Net")).diff()
    assert "+net.to(memory_format=torch.channels_last)" in found
    assert "+    out = net(x.contiguous(memory_format=torch.channels_last))" in found


@pytest.mark.parametrize(
    ("change", "line", "name", "expected"),
    [
        ("optimizer=fused", 11, "AdamW", "lr=0.001, fused=True)"),
        (
            "optimizer=8bit",
            11,
            "AdamW",
            "opt = torchao.optim.AdamW8bit(net.parameters(), lr=0.001)",
        ),
        ("threads=4", 12, "torch.set_num_threads", "torch.set_num_threads(4)"),
        ("tf32=true", 2, "torch", 'torch.set_float32_matmul_precision("high")'),
        ("compile=models", 11, "net", "net.compile()"),
        ("non_blocking=true", 14, "copy", "x = x.to(device, non_blocking=True)"),
    ],
)
def test_one_line_each(tmp_path: Path, change: str, line: int, name: str, expected: str) -> None:
    found = lines(edited(tmp_path, (change, line, name)))
    assert any(each.endswith(expected) for each in found), found


def test_a_model_on_a_gpu_is_compiled_without_padded_strides(tmp_path: Path) -> None:
    known = seen("cuda:0")
    known = replace(known, models=tuple(replace(site, pads=True) for site in known.models))
    call = 'net.compile(options={"comprehensive_padding": False})'
    assert call in lines(edited(tmp_path, ("compile=models", 11, "net"), known=known))
    assert line_for(("compile=models",), known, name="net") == f"before this line: {call}"


def test_changes_of_one_line_come_together(tmp_path: Path) -> None:
    found = edited(
        tmp_path,
        ("compile=models", 11, "net"),
        ("optimizer=fused", 11, "AdamW"),
        ("channels_last=true", 15, "Net"),
        ("autocast=bf16", 15, "Net"),
    )
    assert found.left == ()
    assert "net.compile()" in lines(found)
    assert "out = net(x.contiguous(memory_format=torch.channels_last)).float()" in lines(found)


def test_what_shares_its_line_with_the_head_of_a_block_is_left_to_the_person(
    tmp_path: Path,
) -> None:
    found = edited(tmp_path, ("autocast=bf16", 19, "Net"), ("loader.workers=4", 5, "DataLoader"))
    assert found.left == ("autocast=bf16: line 19 is the head of a block, too",)
    assert "num_workers" in found.diff()


def test_the_diff_can_be_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = edited(tmp_path, ("loader.workers=4", 5, "DataLoader"), ("tf32=true", 2, "torch"))
    (tmp_path / "changes.diff").write_text(found.diff())
    subprocess.run(["git", "apply", "changes.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == found.after[tmp_path / "train.py"]


def test_variables_are_no_text(tmp_path: Path) -> None:
    assert edited(tmp_path, ("env.MALLOC_MMAP_MAX_=0", 1, "")).after == {}
