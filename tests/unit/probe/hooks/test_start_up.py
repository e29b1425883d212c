"""Start-up is split: imports are timed from outermost to innermost, once."""

# pyright: reportPrivateUsage=false

import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pitstop_probe.hooks.start_up import ImportClock, StartUp


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("startup_probe_")]:
        del sys.modules[name]


def test_modules_inside_modules_count_once_and_the_script_between_them_not(folder: Path) -> None:
    now = [0]
    for name, inner in (("a", "b"), ("b", "c"), ("c", ""), ("d", "e"), ("e", "")):
        imports = f"import startup_probe_{inner}\n" if inner else ""
        text = f"import sys\nsys.startup_clock[0] += 10\n{imports}"
        (folder / f"startup_probe_{name}.py").write_text(text)
    sys.startup_clock = now  # type: ignore[attr-defined]
    clock = ImportClock(lambda: now[0])
    try:
        importlib.import_module("startup_probe_a")
        assert clock.total_ns == 20, "seen from the first module to the last"
        now[0] += 1000
        exec("import startup_probe_d")
        assert clock.total_ns == 30
        importlib.import_module("startup_probe_a")
        assert clock.total_ns == 30, "what is there already takes no time"
    finally:
        clock.stop()
        del sys.startup_clock  # type: ignore[attr-defined]
    assert clock not in sys.meta_path


def test_an_import_that_fails_shows_no_frame_of_ours(folder: Path) -> None:
    (folder / "startup_probe_bad.py").write_text("import startup_probe_not_there\n")
    clock = ImportClock()
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("startup_probe_bad")
    clock.stop()
    shown = "".join(traceback.format_exception(caught.value))
    assert "pitstop_probe" not in shown


def test_first_batches_are_timed_and_the_loader_is_left_as_it_was() -> None:
    before = vars(DataLoader)["__iter__"]
    start_up = StartUp(torch, None)
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
    assert len(list(loader)) == 2
    known = start_up.end(compile_us=7)
    assert known["compile_us"] == 7
    assert known["data_us"] > 0
    assert "imports_us" not in known
    assert vars(DataLoader)["__iter__"] is before
