"""Weights in files of other programs: found, chosen aloud, and nothing in them run."""

import importlib
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pitstop.errors import CheckpointError
from pitstop.train.state.foreign_archive import read_archive
from pitstop.train.state.weight_sets import describe_differences, read_weight_set

torch.set_num_threads(1)


def state(value: float = 1.0, prefix: str = "") -> dict[str, Tensor]:
    return {f"{prefix}0.weight": torch.full((2, 3), value), f"{prefix}0.bias": torch.zeros(2)}


class Options:
    """What a training program might save beside its weights; it touches a file when built."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,), {"depth": 3}


@pytest.mark.parametrize(
    ("content", "value", "averaged"),
    [
        (state(), 1.0, False),
        ({"params": state()}, 1.0, False),
        ({"model": state(), "epoch": 3}, 1.0, False),
        ({"state_dict": state(), "meta": {"CLASSES": ("a", "b")}}, 1.0, False),
        ({"params": state(), "params_ema": state(2.0)}, 2.0, True),
        ({"model": state(), "model_ema": state(2.0)}, 2.0, True),
        ({"params": state(prefix="module.")}, 1.0, False),
        (state(prefix="_orig_mod.module."), 1.0, False),
    ],
)
def test_the_usual_places_and_prefixes_are_known(
    tmp_path: Path, content: Any, value: float, averaged: bool
) -> None:
    torch.save(content, tmp_path / "file.pth")
    found = read_weight_set(tmp_path / "file.pth")
    assert list(found.tensors) == ["0.weight", "0.bias"]
    assert torch.equal(found.tensors["0.weight"], torch.full((2, 3), value))
    assert found.averaged == averaged


def test_a_choice_is_said_and_can_be_made_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "file.pth"
    torch.save({"params": state(), "params_ema": state(2.0)}, path)
    [note] = read_weight_set(path).notes
    assert "under params_ema and params: those under params_ema" in note
    plain = read_weight_set(path, key="params")
    assert (plain.tensors["0.weight"][0, 0], plain.averaged, plain.notes) == (1.0, False, ())
    with pytest.raises(CheckpointError, match="no weights under ema; it has params, params_ema"):
        read_weight_set(path, key="ema")


def test_objects_beside_the_weights_are_neither_built_nor_in_the_way(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    torch.save({"model": state(), "config": Options(touched)}, tmp_path / "file.pth")
    found = read_weight_set(tmp_path / "file.pth")
    assert torch.equal(found.tensors["0.weight"], torch.ones(2, 3))
    [note] = found.notes
    assert "objects that are not read" in note
    assert "pathlib." in note  # pathlib.Path, or where Python 3.13 keeps it
    assert not touched.exists()


class Nested(nn.Module):
    """Parameters, a buffer, half precision and submodules with numbers for names."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2).half().float())
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("grid", torch.arange(6).view(2, 3).T)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x) * self.scale


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_torchscript_archive_gives_the_state_of_its_module(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    module = Nested()
    traced: Any = torch.jit.trace(module, torch.rand(5, 3))
    module.to(dtype)
    traced.save(str(tmp_path / "model.pt"))
    found = read_weight_set(tmp_path / "model.pt").tensors
    wanted = module.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
        assert found[name].dtype == value.dtype


def archive(path: Path, entries: dict[str, bytes], *, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in entries.items():
            file.writestr(f"archive/{name}", content)
    return path


def pickled_tensor(*, numbers: int, offset: int = 0) -> bytes:
    """A pickle of a tensor whose bytes stand in the archive under `data/0`."""

    class Place:
        def __reduce__(self) -> tuple[Any, ...]:
            rebuild = importlib.import_module("torch._utils")._rebuild_tensor_v2
            return rebuild, (Storage(), offset, (numbers,), (1,), False, {})

    class Storage:
        pass

    class Writer(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, Storage):
                return ("storage", torch.FloatStorage, "0", "cpu", numbers)
            return None

    buffer = io.BytesIO()
    Writer(buffer, protocol=2).dump({"weight": Place()})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"data.pkl": pickled_tensor(numbers=4), "data/0": bytes(8)}, "out of bounds"),
        ({"data.pkl": pickled_tensor(numbers=2, offset=7), "data/0": bytes(8)}, "out of bounds"),
        ({"data.pkl": pickled_tensor(numbers=2)}, "no item named"),
        ({"data.pkl": b"\x80\x02."}, "cannot read"),
        ({"data.pkl": pickle.dumps(3), "byteorder": b"big"}, "highest byte first"),
        ({"notes.txt": b"hello"}, "not one that torch.save or TorchScript wrote"),
    ],
)
def test_a_damaged_archive_is_refused(
    tmp_path: Path, entries: dict[str, bytes], words: str
) -> None:
    path = archive(tmp_path / "file.pth", entries)
    with pytest.raises(CheckpointError, match=words):
        read_archive(path)


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    entries = {"data.pkl": pickled_tensor(numbers=2), "data/0": bytes(1 << 20)}
    path = archive(tmp_path / "bomb.pth", entries, method=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="is compressed"):
        read_archive(path)


def test_a_pickle_reaches_nothing_by_a_name(tmp_path: Path) -> None:
    """Names of torch's own functions and of builtins become objects that do nothing."""
    content = b"cbuiltins\neval\n(S'1/0'\ntR."
    path = archive(tmp_path / "file.pth", {"data.pkl": content})
    found = read_archive(path)
    assert found.foreign == ("builtins.eval",)


def test_differences_are_told_by_groups_of_names() -> None:
    own = {f"net.stage{s}.block.{i}.weight": torch.zeros(2) for s in range(3) for i in range(4)}
    own["net.last"] = torch.zeros(3)
    given = {n: v for n, v in own.items() if "stage1" not in n}
    given |= {"net.last": torch.zeros(4), "head.a.b": torch.zeros(1), "head.a.c": torch.zeros(1)}
    text = describe_differences(own, given)
    assert "4 weights are missing there (net.stage1.block.0.weight, " in text
    assert "2 weights are not known here (head.a.b, head.a.c)" in text
    assert "1 differ in shape (such as net.last: 4 there, 3 here)" in text
    assert describe_differences(own, own) == ""
