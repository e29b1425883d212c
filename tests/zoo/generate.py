"""Generated stand-ins for data that cannot be had: random, small, the same every time.

    python generate.py words data/wikitext-2

Runs with the interpreter of the scripts, for some kinds need packages that only they have.
"""

import gzip
import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def generate(wanted: Sequence[str], folder: Path, *, python: str) -> None:
    """Make what is missing; each entry is a kind, a path from the folder, and numbers."""
    for entry in wanted:
        kind, path, *numbers = entry.split()
        mark = folder / f"{path.rstrip('/.')}.zoo"
        if not mark.exists():
            subprocess.run([python, __file__, kind, str(folder / path), *numbers], check=True)
            mark.touch()


def words(path: Path) -> None:
    """Three files of words."""
    rng = np.random.default_rng(0)
    vocabulary = np.array([f"w{number}" for number in range(2000)])
    path.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 1200), ("valid", 60), ("test", 60)):
        text = [" ".join(rng.choice(vocabulary, 20)) for _ in range(count)]
        (path / f"{name}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")


def text(path: Path, count: int = 20000) -> None:
    """One file of letters and spaces."""
    rng = np.random.default_rng(0)
    letters = rng.choice(list("abcdefghij klmnop\n"), count)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(letters), encoding="utf-8")


def tokens(path: Path) -> None:
    """Token files with a vocabulary of 65."""
    rng = np.random.default_rng(0)
    path.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 1_000_000), ("val", 100_000)):
        rng.integers(0, 65, count, dtype=np.uint16).tofile(path / f"{name}.bin")
    (path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def stories(path: Path) -> None:
    """Shards of tokens with a vocabulary of 512, each text beginning with token 1."""
    rng = np.random.default_rng(0)
    path.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        rng.integers(1, 512, 200_000, dtype=np.uint16).tofile(path / f"data{number:02d}.bin")


def bytes_gz(path: Path) -> None:
    """95 million bytes, compressed."""
    rng = np.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = rng.integers(32, 127, 1_000_000, dtype=np.uint8).tobytes()
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(95):
            file.write(part)


def sines(path: Path, rows: int = 40, length: int = 200) -> None:
    """Noisy waves of different phase, as an array that torch saved."""
    import torch

    rng = np.random.default_rng(0)
    phase = rng.integers(-80, 80, (rows, 1))
    noise = rng.normal(0.0, 0.1, (rows, length))
    torch.save(np.sin((np.arange(length) + phase) / 20.0) + noise, path)


def cora(path: Path) -> None:
    """Features and labels for the papers that a list of citations names."""
    rng = np.random.default_rng(0)
    lines = path.with_suffix(".cites").read_text(encoding="utf-8").split()
    papers = list(dict.fromkeys(lines))
    with path.open("w", encoding="utf-8") as file:
        for paper in papers:
            bits = " ".join(str(bit) for bit in (rng.random(200) < 0.05).astype(int))
            file.write(f"{paper} {bits} class{rng.integers(7)}\n")


def picture(rng: np.random.Generator, size: int) -> Any:
    """One soft picture."""
    from PIL import Image

    small = rng.integers(0, 255, (size // 8, size // 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC)


def pets(path: Path, count: int = 300, size: int = 256) -> None:
    """Pictures whose names hold their class."""
    rng = np.random.default_rng(0)
    path.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture(rng, size).save(path / f"kind_{number % 10}_{number}.jpg", quality=90)


def masks(path: Path, count: int = 100, size: int = 64) -> None:
    """Pictures, and a mask for each."""
    from PIL import Image

    rng = np.random.default_rng(0)
    (path / "imgs").mkdir(parents=True, exist_ok=True)
    (path / "masks").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture(rng, size).save(path / "imgs" / f"{number}.png")
        mask = (rng.random((size, size)) < 0.5).astype(np.uint8)
        Image.fromarray(mask).save(path / "masks" / f"{number}.png")


def people(path: Path, classes: int = 8, each: int = 24) -> None:
    """A folder of pictures for each person, for training and for validation."""
    rng = np.random.default_rng(0)
    for part in ("train", "train_all", "val"):
        for number in range(classes):
            folder = path / part / f"{number:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            for shot in range(each if part != "val" else 4):
                picture(rng, 128).save(folder / f"{number:04d}_c1s1_{shot:06d}_00.jpg")


def patches(path: Path, count: int = 640) -> None:
    """Low and high resolution patches, for training and for evaluation."""
    h5py: Any = importlib.import_module("h5py")

    rng = np.random.default_rng(0)
    path.mkdir(parents=True, exist_ok=True)
    with h5py.File(path / "train.h5", "w") as file:
        for name in ("lr", "hr"):
            file.create_dataset(name, data=rng.random((count, 33, 33), np.float32) * 255)
    with h5py.File(path / "eval.h5", "w") as file:
        for name in ("lr", "hr"):
            group = file.create_group(name)
            for number in range(2):
                group.create_dataset(str(number), data=rng.random((64, 64), np.float32) * 255)


def characters(path: Path) -> None:
    """Twenty drawings of each of 1,300 characters, as one array."""
    rng = np.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, rng.random((1300, 20, 1, 28, 28), np.float32))


def spectra(path: Path, speakers: int = 8, each: int = 6) -> None:
    """Spectrograms of speakers, and a list of them."""
    rng = np.random.default_rng(0)
    listed = []
    for number in range(speakers):
        folder = path / f"p{number}"
        folder.mkdir(parents=True, exist_ok=True)
        files = [f"p{number}/{part}.npy" for part in range(each)]
        for file in files:
            np.save(path / file, rng.random((180, 80), np.float32))
        listed.append([f"p{number}", rng.random(256, np.float32), *files])
    (path / "train.pkl").write_bytes(pickle.dumps(listed))


def hours(path: Path) -> None:
    """Seven series by the hour."""
    rng = np.random.default_rng(0)
    pandas: Any = importlib.import_module("pandas")

    path.parent.mkdir(parents=True, exist_ok=True)
    dates = pandas.date_range("2016-07-01", periods=24 * 30 * 20, freq="h")
    names = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    table = pandas.DataFrame({"date": dates} | {name: rng.random(len(dates)) for name in names})
    table.to_csv(path, index=False)


def boxes(path: Path, count: int = 64) -> None:
    """Pictures with boxes, in lists as the tutorial keeps them."""
    rng = np.random.default_rng(0)
    (path / "pictures").mkdir(parents=True, exist_ok=True)
    files, objects = [], []
    for number in range(count):
        file = path / "pictures" / f"{number}.jpg"
        picture(rng, 320).save(file)
        files.append(str(file.resolve()))
        corners = [[int(v) for v in (20, 30, *rng.integers(120, 300, 2))] for _ in range(2)]
        objects.append({"boxes": corners, "labels": [1, 2], "difficulties": [0, 0]})
    for split in ("TRAIN", "TEST"):
        (path / f"{split}_images.json").write_text(json.dumps(files), encoding="utf-8")
        (path / f"{split}_objects.json").write_text(json.dumps(objects), encoding="utf-8")


def language_model(path: Path) -> None:
    """A small GPT-2 configuration with a tokenizer of words, and text for it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, PreTrainedTokenizerFast

    words(path)
    vocabulary = {f"w{number}": number for number in range(2000)} | {"<unk>": 2000}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<unk>"
    ).save_pretrained(path)
    GPT2Config(vocab_size=2001, n_layer=2, n_head=4, n_embd=128, n_positions=256).save_pretrained(
        path
    )


def alphabets(path: Path, characters_count: int = 30) -> None:
    """Drawings in a folder for each character, and lists of characters for each split."""
    from PIL import Image

    rng = np.random.default_rng(0)
    names = [f"Alpha/character{number:02d}" for number in range(characters_count)]
    for name in names:
        folder = path / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(20):
            drawing = (rng.random((105, 105)) < 0.5).astype(np.uint8) * 255
            Image.fromarray(drawing).save(folder / f"{number:04d}.png")
    splits = path / "splits" / "vinyals"
    splits.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test", "trainval"):
        turned = [f"{name}/rot{turn}" for name in names for turn in ("000", "090")]
        (splits / f"{split}.txt").write_text("\n".join(turned) + "\n", encoding="utf-8")
    (path / "raw").mkdir(exist_ok=True)


def no_weights(path: Path) -> None:
    """A checkpoint that changes nothing."""
    import torch

    torch.save({"net": {}}, path)


KINDS: Mapping[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        *(words, text, tokens, stories, bytes_gz, sines, cora, pets, masks, people, patches),
        *(characters, spectra, hours, boxes, language_model, alphabets, no_weights),
    )
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]), *(int(number) for number in sys.argv[3:]))
