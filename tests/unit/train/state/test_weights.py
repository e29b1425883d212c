"""Trained weights: found where a user points, never run, and refused where they do not fit."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pitstop.config.dump import to_yaml
from pitstop.errors import CheckpointError
from pitstop.train.run import TrainingRun
from pitstop.train.state.checkpoint import find_newest_whole
from pitstop.train.state.weights import load_weights, read_weights
from tests.unit.train.runs import LINE, LineTask, line_config

torch.set_num_threads(1)


def trained(folder: Path, **settings: object) -> Path:
    """Train a run of two checkpoints and give its folder."""
    config = line_config(folder, train__steps=8, checkpoint__keep_last=2, **settings)
    yaml = to_yaml(config, kinds={"line": LINE})
    TrainingRun(config=config, config_yaml=yaml, task=LineTask()).run()
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain"))


def saves_of(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("save-*"))


def assert_same_weights(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_is_read_with_its_step(run: Path) -> None:
    first, last = saves_of(run)
    for path, step in ((first, 4), (last, 8), (last / "common.pt", 8)):
        weights = read_weights(path)
        assert (weights.step, weights.averaged, weights.notes) == (step, False, ())
        file = path / "common.pt" if path.is_dir() else path
        assert_same_weights(weights.tensors, torch.load(file)["model"])


@pytest.mark.parametrize("inner", ["", "checkpoints"])
def test_a_run_stands_for_its_newest_checkpoint(run: Path, inner: str) -> None:
    weights = read_weights(run / inner)
    assert (weights.path, weights.step) == (saves_of(run)[-1], 8)


def test_a_damaged_checkpoint_is_passed_over_aloud_and_refused_by_name(
    run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    newest = saves_of(copy)[-1]
    content = bytearray((newest / "common.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "common.pt").write_bytes(content)

    weights = read_weights(copy)
    assert weights.step == 4
    [note] = weights.notes
    assert note.startswith(f"skipped {newest}")
    assert "damaged" in note
    with pytest.raises(CheckpointError, match=r"common\.pt is damaged"):
        read_weights(newest)


def test_averaged_weights_are_taken_where_there_are_any(tmp_path: Path) -> None:
    checkpoint, _ = find_newest_whole(trained(tmp_path, train__ema=0.9) / "checkpoints")
    assert checkpoint is not None
    common = checkpoint.common()
    weights = read_weights(checkpoint.path)
    assert weights.averaged
    assert_same_weights(weights.tensors, common["average"])
    assert not torch.equal(weights.tensors["0.weight"], common["model"]["0.weight"])


def test_buffers_come_along_with_averaged_weights(tmp_path: Path) -> None:
    class NormTask(LineTask):
        def build_model(self) -> nn.Module:
            return nn.Sequential(
                nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1)
            )

    config = line_config(tmp_path, train__ema=0.9)
    TrainingRun(config=config, config_yaml="", task=NormTask()).run()
    model = NormTask().build_model()
    load_weights(model, read_weights(tmp_path / "run"))
    norm = model[1]  # type: ignore[index]
    assert int(norm.num_batches_tracked) == 12


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"params": state}])
def test_a_bare_file_is_read_plain_or_under_params(tmp_path: Path, wrap: Any) -> None:
    torch.manual_seed(1)
    source, target = LineTask().build_model(), LineTask().build_model()
    path = tmp_path / "model.pth"
    torch.save(wrap(source.state_dict()), path)
    weights = read_weights(path)
    assert (weights.path, weights.step, weights.averaged) == (path, None, False)
    load_weights(target, weights)
    assert_same_weights(target.state_dict(), source.state_dict())


class Trap:
    """Pickled as an instruction to touch a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    for name, save in (("zip.pth", torch.save), ("plain.pth", dump)):
        save({"weight": Trap(touched)}, tmp_path / name)
        with pytest.raises(CheckpointError, match=r"holds no weights|that could run code"):
            read_weights(tmp_path / name)
    assert not touched.exists()


def dump(value: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, protocol=2))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "holds no weights"),
        ({"params": 3}, "holds no weights"),
        ({"weights": {"weight": torch.ones(1)}, "step": 3}, "holds no weights"),
        ({"model": {"weight": torch.ones(1), "name": "a"}}, "holds no weights"),
        ([torch.ones(1)], "holds a list"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=words):
        read_weights(tmp_path / "other.pth")


@pytest.mark.parametrize("content", [b"hello\n", b""], ids=["text", "empty"])
def test_a_file_that_torch_did_not_write_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weights\.pth is no file that torch\.save"):
        read_weights(path)


def test_a_path_without_checkpoints_is_refused_with_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*nowhere; a run keeps"):
        read_weights(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint in .*; name a folder such as"):
        read_weights(tmp_path)
    (tmp_path / "torn").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CheckpointError, match="cannot read"):
        read_weights(tmp_path / "torn")


def weights_of(path: Path, tensors: dict[str, Tensor]) -> Any:
    torch.save(tensors, path)
    return read_weights(path)


def test_weights_of_another_model_are_refused_and_the_model_stays_as_it_was(
    tmp_path: Path,
) -> None:
    model = LineTask().build_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    other["0.weight"] = torch.zeros(8, 3)
    del other["4.bias"], other["3.bias"]
    other["spare"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, weights_of(tmp_path / "other.pth", other))
    text = str(caught.value)
    assert "2 weights are missing there (3.bias, 4.bias)" in text
    assert "spare is not known here" in text
    assert "1 differ in shape (such as 0.weight: 8x3 there, 16x3 here)" in text
    assert text.endswith("Use the configuration it was trained with")
    assert_same_weights(model.state_dict(), before)
