"""Bases, classes and the bounds on what is read."""

from pathlib import Path

import pytest

from pitstop.config.legacy.convert import import_legacy
from pitstop.config.legacy.sources import read_old
from pitstop.config.load import load_config
from pitstop.errors import ConfigError

CLASSES = """
from dataclasses import dataclass, field
import torchvision.transforms as T

@dataclass
class Rates:
    base_learning_rate: float = 4e-6
    mer_learning_rate: float = 8e-6

@dataclass
class Settings:
    data_root: str = "./made/train"
    clip_model_name: str = "openai/clip-vit-base-patch16"
    image_size: int = 224
    batch_size: int = 12  # four people
    num_instances: int = 3
    sampler_seed: int = 7
    num_epochs: int = 9
    rates: Rates = field(default_factory=Rates)
    modalities: list = field(default_factory=lambda: ["rgb", "ir"])
    transform: object = T.Compose([])

    def __post_init__(self):
        open("ran", "w")
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder / "top.py"


def test_bases_are_laid_under_a_file_as_mmcv_does(tmp_path: Path) -> None:
    top = write(
        tmp_path,
        low="optimizer = dict(type='SGD', lr=1, momentum=0.9)\nseed = 4\n",
        other="data = dict(samples_per_gpu=2, workers_per_gpu=3)\n",
        middle="_base_ = 'low.py'\nrunner = dict(max_iters=5)\n",
        top="_base_ = ['./middle.py', 'other.py']\n"
        "data = dict(samples_per_gpu=8)\n"
        "optimizer = dict(_delete_=True, type='AdamW', lr={{_base_.seed}})\n"
        "data['workers_per_gpu'] = _base_.runner.max_iters\n",
    )
    read = read_old(top)
    assert read.values == {
        "optimizer.type": "AdamW",
        "optimizer.lr": 4,
        "seed": 4,
        "runner.max_iters": 5,
        "data.samples_per_gpu": 8,
        "data.workers_per_gpu": 5,
    }
    assert [Path(base).name for base in read.bases] == ["middle.py", "low.py", "other.py"]
    assert read.place("data.samples_per_gpu") == f"{top}:2"
    assert read.place("runner.max_iters").endswith("middle.py:2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n_base_ = 'gone.py'", "top.py:2: its base cannot be read: there is no file"),
        ("_base_ = 'top.py'", "top.py:1: its bases lead back to top.py"),
        ("_base_ = ['one.py', 'two.py']", "two of its bases set seed"),
        ("_base_ = [open('x')]", "must be a path or a list of paths"),
        ("_base_ = 'one.yaml'", "no Python file"),
        ("x = 1\ny = = 2", "top.py:2: is not readable as Python"),
    ],
)
def test_bases_that_cannot_be_used_are_told_with_their_line(
    tmp_path: Path, text: str, words: str
) -> None:
    top = write(tmp_path, one="seed = 1\n", two="seed = 2\n", top=text)
    with pytest.raises(ConfigError, match=words) as refused:
        read_old(top)
    assert "\n" not in str(refused.value)


def test_classes_are_read_and_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = import_legacy(write(tmp_path, top=CLASSES))
    (tmp_path / "new.yaml").write_text(result.yaml)
    new = load_config(tmp_path / "new.yaml").config
    data, model = new.data.model_dump(), new.model.model_dump()
    assert (new.data.root, data["image_size"], data["records_per_id"]) == (
        Path("made"), (224, 224), 3,
    )  # fmt: skip
    assert (new.train.batch_size, new.train.epochs) == (12, 9)
    assert (model["backbone"], new.optimizer.lr) == ("vit_b_16", 4e-6)
    assert dict(new.optimizer.lr_multipliers)["classifier"] == 750
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["resnet50", "openai/clip-rn101"])
def test_a_backbone_that_is_not_built_is_refused(tmp_path: Path, name: str) -> None:
    text = CLASSES.replace("openai/clip-vit-base-patch16", name)
    with pytest.raises(ConfigError, match=f"clip_model_name is {name}"):
        import_legacy(write(tmp_path, top=text))


def test_a_file_of_more_than_4_mib_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        read_old(write(tmp_path, top="#" * (4 * 2**20 + 1)))


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_old(write(tmp_path, top=f"x = {'[' * 70}{']' * 70}"))
