"""What a run that tests a bound leaves out."""

import csv
import importlib
import importlib.abc
import importlib.machinery
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pitstop_probe.hooks.ablation import leave_out

NAME = "torch.utils.tensorboard"


class Tensorboard(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for TensorBoard, whether it is installed or not."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == NAME else None

    def exec_module(self, module: ModuleType) -> None:
        class SummaryWriter:
            def __init__(self) -> None:
                self.written: list[float] = []

            def add_scalar(self, value: float) -> None:
                self.written.append(value)

        module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]


def test_tensorboard_is_left_out_though_it_is_imported_after_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", [Tensorboard(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    warm: list[bool] = []
    patches = leave_out("log", torch, lambda: bool(warm))
    try:
        writer = importlib.import_module(NAME).SummaryWriter()
        writer.add_scalar(1.0)
        warm.append(True)
        writer.add_scalar(2.0)
        assert writer.written == [1.0]
    finally:
        for patch in patches:
            patch.off()
        monkeypatch.delitem(sys.modules, NAME, raising=False)
    writer.add_scalar(3.0)
    assert writer.written == [1.0, 3.0]


def test_text_files_of_the_scripts_own_take_nothing_once_it_is_warm(tmp_path: Path) -> None:
    warm: list[bool] = []
    patches = leave_out("log", torch, lambda: bool(warm))
    try:
        rows, text, data = tmp_path / "a.csv", tmp_path / "b.txt", tmp_path / "c.bin"
        with rows.open("w", newline="") as table, text.open("a") as words, data.open("wb") as raw:
            writer = csv.writer(table)
            for step in range(2):
                writer.writerow([step])
                words.write(f"{step}\n")
                words.flush()
                raw.write(bytes([step]))
                warm.append(True)
    finally:
        for patch in patches:
            patch.off()
    assert (rows.read_text(), text.read_text()) == ("0\n", "0\n")
    assert data.read_bytes() == b"\0\1", "a checkpoint is no log"
    with open(text, "a") as words:  # noqa: PTH123 - what was replaced
        words.write("2\n")
    assert text.read_text() == "0\n2\n"


def test_files_that_libraries_open_are_left_alone(tmp_path: Path) -> None:
    patches = leave_out("log", torch, lambda: True)
    try:
        library = sysconfig.get_paths()["purelib"] + "/compiler.py"
        space: dict[str, str] = {"path": str(tmp_path / "kernel.py")}
        source = "with open(path, 'w') as file: file.write('code')"
        exec(compile(source, library, "exec"), space)
    finally:
        for patch in patches:
            patch.off()
    assert (tmp_path / "kernel.py").read_text() == "code"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_file_that_is_let_go_is_closed_at_once(tmp_path: Path) -> None:
    patches = leave_out("log", torch, lambda: False)
    try:
        (tmp_path / "a").open("w").write("words")
    finally:
        for patch in patches:
            patch.off()
    assert (tmp_path / "a").read_text() == "words"
