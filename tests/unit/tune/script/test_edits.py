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
    loss.backward()
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
    found = lines(edited(tmp_path, ("autocast=bf16", 15, "Net")))
    assert found[:2] == [
        'with torch.autocast("cpu", dtype=torch.bfloat16):',
        "out = net(x).float()",
    ]


def test_the_rest_of_a_statement_stays_outside_autocast(tmp_path: Path) -> None:
    assert lines(edited(tmp_path, ("autocast=bf16", 16, "Net")))[2:5] == [
        'with torch.autocast("cpu", dtype=torch.bfloat16):',
        "prediction = net(x).float()",
        "loss = criterion(prediction, y)",
    ]


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
        ("autocast=bf16", 16, "Net"),
    )
    assert found.left == ()
    assert "net.compile()" in lines(found)
    assert "out = net(x.contiguous(memory_format=torch.channels_last)).float()" in lines(found)


def test_the_diff_can_be_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = edited(tmp_path, ("loader.workers=4", 5, "DataLoader"), ("tf32=true", 2, "torch"))
    (tmp_path / "changes.diff").write_text(found.diff())
    subprocess.run(["git", "apply", "changes.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == found.after[tmp_path / "train.py"]


def test_variables_are_no_text(tmp_path: Path) -> None:
    assert edited(tmp_path, ("env.MALLOC_MMAP_MAX_=0", 1, "")).after == {}


def written(tmp_path: Path, source: str | bytes, *changes: tuple[str, int, str]) -> Edited:
    """Write changes into a source whose model `net` is trained by the optimizer of its line 2."""
    script = tmp_path / "train.py"
    script.write_bytes(source.encode() if isinstance(source, str) else source)
    places = [CodePlace(change=w, place=f"{script}:{n}", name=name) for w, n, name in changes]
    overrides = tuple(dict.fromkeys(word for word, _, _ in changes))
    trial = Trial(overrides=overrides, end="measured", changed=tuple(places))
    tuning = Tuning(source="x", rows=(), overrides=overrides, trials=(trial,), stopped="")
    [model] = seen().models
    model = replace(model, place=f"{script}:2")
    return edit_sources(tuning, replace(seen(), models=(model,)), script)


LOADS = ("loader.workers=2", 2, "DataLoader")


@pytest.mark.parametrize(
    "source",
    [
        b"import torch\nloader = DataLoader(d)",
        b"import torch\nloader = DataLoader(d)\na = 1\nb = 2",
        b"import torch\r\nloader = DataLoader(d)\r\na = 1\r\n",
        b"import torch; s = 'a\x0cb\xe2\x80\xa8c\x1c'\nloader = DataLoader(d)\n\x0c\na = 1\n",
        b"\xef\xbb\xbfimport torch\nloader = DataLoader(d)\n",
    ],
    ids=["no newline at its end", "none after the change", "CRLF", "other separators", "BOM"],
)
def test_the_diff_of_any_file_can_be_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    found = written(tmp_path, source, LOADS)
    (tmp_path / "changes.diff").write_bytes(found.diff().encode())
    subprocess.run(["git", "apply", "changes.diff"], cwd=tmp_path, check=True)
    expected = source.replace(b"DataLoader(d)", b"DataLoader(d, num_workers=2)")
    assert (tmp_path / "train.py").read_bytes() == expected


def test_a_statement_keeps_the_tabs_before_it(tmp_path: Path) -> None:
    source = "import torch\ndef main():\n\tloader = DataLoader(d)\n\tif d:\n\t\tout = net(x)\n"
    loads = ("loader.workers=2", 3, "DataLoader")
    found = written(tmp_path, source, loads, ("autocast=bf16", 5, "Net"))
    [text] = found.after.values()
    ast.parse(text)
    assert "\n\tloader = DataLoader(d, num_workers=2)\n" in text
    assert '\n\t\twith torch.autocast("cpu", dtype=torch.bfloat16):\n\t\t    out = net' in text


def test_an_argument_without_its_name_is_exchanged_in_its_place(tmp_path: Path) -> None:
    source = "import torch\nloader = DataLoader(d, 8, True, None, None, 4, None, False)\n"
    pin = ("loader.pin=true", 2, "DataLoader")
    [line] = lines(written(tmp_path, source, LOADS, pin))
    assert line == "loader = DataLoader(d, 8, True, None, None, 2, None, True)"


@pytest.mark.parametrize(
    "imports",
    ["import torch as th", "from torch import nn", "import torchvision", "import torch.nn as nn"],
)
def test_torch_has_its_name_wherever_it_is_used(tmp_path: Path, imports: str) -> None:
    source = f"import os\n{imports}\nout = net(x)\n"
    cast, threads = ("autocast=bf16", 3, "Net"), ("threads=2", 1, "torch")
    for change in (cast, threads):
        [text] = written(tmp_path, source, change).after.values()
        assert text.startswith(f"import os\n{imports}\nimport torch\n")


def test_a_script_that_does_not_import_torch_itself_gets_its_import(tmp_path: Path) -> None:
    source = '"""Trains."""\nimport os\nos.environ["A"] = "1"\nfrom mine import net\nout = net(x)\n'
    [text] = written(tmp_path, source, ("threads=2", 1, "torch")).after.values()
    assert "from mine import net\nimport torch\ntorch.set_num_threads(2)\n" in text


def test_a_model_is_cast_in_every_call_that_its_script_makes(tmp_path: Path) -> None:
    source = (
        "import torch\nopt = AdamW(net)\ndef test(x):\n    return f(net(x))\n"
        "loss = f(net(a)) + f(net(b))\n"
    )
    # The first call is noted, which is that of an evaluation here.
    [text] = written(tmp_path, source, ("autocast=bf16", 4, "Net")).after.values()
    assert text.count("= net(") == text.count("with torch.autocast") + 1 == 3
    assert "loss = f(prediction) + f(prediction_2)" in text


def test_names_of_the_script_are_left_alone(tmp_path: Path) -> None:
    source = "import torch\nprediction = 3\nloss = f(net(x), prediction)\n"
    [text] = written(tmp_path, source, ("autocast=bf16", 3, "Net")).after.values()
    assert "loss = f(prediction_2, prediction)" in text


def test_every_name_of_a_result_is_given_it(tmp_path: Path) -> None:
    source = "import torch\na = b = net(x)\n"
    [text] = written(tmp_path, source, ("autocast=bf16", 2, "Net")).after.values()
    assert "a = b = net(x).float()" in text


def test_parts_of_a_result_that_are_no_short_floats_stay_as_they_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source = "import torch\na, b, c = net(x)\n"
    [text] = written(tmp_path, source, ("autocast=bf16", 2, "Net")).after.values()
    given = torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.long), None
    names = {"net": lambda _: given, "x": 0}
    exec(text, names)
    assert (names["a"].dtype, names["b"].dtype, names["c"]) == (torch.float32, torch.long, None)


@pytest.mark.parametrize(
    "statement",
    [
        "loss = net(x) if flag else other(x)",
        "losses = [f(net(x)) for x in xs]",
        "step = lambda x: net(x)",
        "loss = flag and net(x)",
        "loss = net(**batch).loss",
        "loss = net(x)['loss']",
        "given = net(x); loss = given.loss",
        "given = net(x); loss = given['loss']",
    ],
)
def test_a_call_that_cannot_stand_by_itself_is_left_to_the_person(
    tmp_path: Path, statement: str
) -> None:
    found = written(tmp_path, f"import torch\n{statement}\n", ("autocast=bf16", 2, "Net"))
    assert found.after == {}
    assert len(found.left) == 1


def test_what_shares_its_line_with_the_head_of_a_block_is_left_to_the_person(
    tmp_path: Path,
) -> None:
    source = "import torch\nloader = DataLoader(d)\nif loader: out = net(x)\n"
    found = written(tmp_path, source, ("autocast=bf16", 3, "Net"), LOADS)
    assert found.left == ("autocast=bf16: line 3 is the head of a block, too",)
    assert "num_workers" in found.diff()


@pytest.mark.parametrize("call", ["net(x=x)", "net(*xs)"])
def test_an_input_that_has_no_place_is_left_to_the_person(tmp_path: Path, call: str) -> None:
    source = f"import torch\nopt = torch.optim.AdamW(net)\nout = {call}\n"
    found = written(tmp_path, source, ("channels_last=true", 3, "Net"))
    assert found.after == {}
    assert found.left == ("channels_last=true: the input of net in line 3 has no place of its own",)


def test_a_model_that_only_a_comprehension_names_is_left_to_the_person(tmp_path: Path) -> None:
    source = "import torch\nopts = [torch.optim.AdamW(net) for net in nets]\n"
    found = written(tmp_path, source, ("compile=models", 2, "net"))
    assert found.after == {}
    assert found.left == ("compile=models: net has its name inside line 2 only",)


def test_anomaly_detection_by_name_is_switched_off(tmp_path: Path) -> None:
    source = "import torch\ntorch.autograd.set_detect_anomaly(mode=True, check_nan=True)\n"
    [line] = lines(written(tmp_path, source, ("anomaly_detection=false", 2, "anomaly detection")))
    assert line == "torch.autograd.set_detect_anomaly(check_nan=True, mode=False)"


def test_a_copy_by_cuda_does_not_wait(tmp_path: Path) -> None:
    source = "import torch\nx = x.cuda()\n"
    [line] = lines(written(tmp_path, source, ("non_blocking=true", 2, "copy")))
    assert line == "x = x.cuda(non_blocking=True)"


@pytest.mark.parametrize(
    ("call", "is_written"),
    [("model(x)", True), ("criterion(model(x))", False), ("fit(x)", False), ("t.fit(x)", False)],
)
def test_a_model_that_builds_its_own_optimizer_is_found_where_one_variable_is_called(
    tmp_path: Path, call: str, is_written: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\nmodel, criterion, t = make()\nout = {call}\n")
    [site] = seen().models
    known = replace(seen(), models=(replace(site, name="self"),))
    place = CodePlace(change="autocast=bf16", place=f"{script}:3", name="Net")
    trial = Trial(overrides=("autocast=bf16",), end="measured", changed=(place,))
    tuning = Tuning(source="x", rows=(), overrides=trial.overrides, trials=(trial,), stopped="")
    found = edit_sources(tuning, known, script)
    assert ("out = model(x).float()" in found.diff()) == is_written
    assert known.models_called("Net") == ("Net",)
