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


def sentences(path: Path, count: int = 2560, vocabulary_size: int = 500) -> None:
    """One file of sentences."""
    rng = np.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = rng.integers(0, vocabulary_size, (count, 20))
    lines = [" ".join(f"w{word}" for word in sentence) for sentence in drawn]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def molecules(path: Path, count: int = 188, atoms: int = 18) -> None:
    """Rings of atoms of seven kinds in two classes, in the files of a TU dataset."""
    rng = np.random.default_rng(0)
    path.mkdir(parents=True, exist_ok=True)
    first = np.arange(count).repeat(atoms) * atoms
    place = np.tile(np.arange(atoms), count)
    bonds = np.stack([first + place + 1, first + (place + 1) % atoms + 1], axis=1)
    columns = {
        "A": [f"{one}, {other}" for one, other in np.concatenate([bonds, bonds[:, ::-1]])],
        "graph_indicator": np.arange(1, count + 1).repeat(atoms),
        "graph_labels": rng.choice([-1, 1], count),
        "node_labels": rng.integers(0, 7, count * atoms),
    }
    for name, values in columns.items():
        written = "\n".join(str(value) for value in values)
        (path / f"MUTAG_{name}.txt").write_text(written + "\n", encoding="utf-8")


def ratings(path: Path, count: int = 40000) -> None:
    """Ratings of films by users."""
    rng = np.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = rng.integers(1, (2000, 1500, 6), (count, 3))
    lines = [f"{user}::{film}::{stars}::978300760" for user, film, stars in drawn]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def clips(path: Path, count: int = 64) -> None:
    """Ten seconds of noise each, packed, with 527 labels, and the lists that name them."""
    h5py: Any = importlib.import_module("h5py")

    rng = np.random.default_rng(0)
    (path / "indexes").mkdir(parents=True, exist_ok=True)
    names = [f"Y{number:05d}.wav".encode() for number in range(count)]
    packed = path / "clips.h5"
    targets = rng.random((count, 527)) < 0.5
    with h5py.File(packed, "w") as file:
        file["audio_name"], file["target"] = names, targets
        file["waveform"] = rng.integers(-3000, 3000, (count, 320_000), np.int16)
    for name, kept in (("balanced_train", count), ("eval", count // 4)):
        with h5py.File(path / "indexes" / f"{name}.h5", "w") as file:
            file["audio_name"], file["target"] = names[:kept], targets[:kept]
            file["hdf5_path"] = [str(packed.resolve()).encode()] * kept
            file["index_in_hdf5"] = np.arange(kept)


def rays(path: Path, count: int = 20, side: int = 100) -> None:
    """Rays and colours of pictures, each in a file that torch saved."""
    import torch

    torch.manual_seed(0)
    for part in ("train", "val"):
        (path / part).mkdir(parents=True, exist_ok=True)
        for number in range(count if part == "train" else 2):
            length = side if part == "train" else side // 3
            origins = torch.tensor([0.0, 0.0, 4.0]).expand(length, length, 3).contiguous()
            directions = torch.randn(length, length, 3)
            view = {
                "height": length,
                "width": length,
                "focal_length": 1.4 * length,
                "target": torch.rand(length, length, 4),
            }
            if part == "train":
                view["ray_bundle"] = torch.stack([origins, directions])
            else:
                view |= {"ray_origins": origins, "ray_directions": directions}
            torch.save(view, path / part / f"{number:04d}.data")


def radiance(path: Path) -> None:
    """Settings of a small radiance field, which reads the rays beside them."""
    network = {
        "type": "FlexibleNeRFModel",
        "num_encoding_fn_xyz": 10,
        "include_input_xyz": True,
        "log_sampling_xyz": True,
        "use_viewdirs": True,
        "num_encoding_fn_dir": 4,
        "include_input_dir": True,
        "log_sampling_dir": True,
    }
    sampling = {
        "num_random_rays": 128,
        "chunksize": 16384,
        "perturb": True,
        "num_coarse": 16,
        "num_fine": 16,
        "white_background": False,
        "radiance_field_noise_std": 0.2,
        "lindisp": False,
    }
    settings = {
        "experiment": {
            "id": "zoo",
            "logdir": "logs",
            "randomseed": 42,
            "train_iters": 120,
            "validate_every": 100,
            "save_every": 5000,
            "print_every": 10,
        },
        "dataset": {
            "type": "blender",
            "basedir": str(path.parent),
            "cachedir": str(path.parent),
            "no_ndc": True,
            "near": 2,
            "far": 6,
        },
        "models": {"coarse": network, "fine": network},
        "optimizer": {"type": "Adam", "lr": 5.0e-3},
        "scheduler": {"lr_decay": 250, "lr_decay_factor": 0.1},
        "nerf": {"use_viewdirs": True, "train": sampling, "validation": sampling},
    }
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")


def distilbert(path: Path) -> None:
    """A small DistilBERT with a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        DistilBertConfig,
        DistilBertForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    vocabulary = {"[PAD]": 0, "[UNK]": 1} | {f"w{number}": number + 2 for number in range(2000)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(path)
    torch.manual_seed(0)
    small = DistilBertConfig(vocab_size=2002, dim=64, hidden_dim=256, n_layers=1, n_heads=4)
    DistilBertForSequenceClassification(small).save_pretrained(path)


def reviews(path: Path, count: int = 640) -> None:
    """Texts with a label each: for training, validation and testing."""
    rng = np.random.default_rng(0)
    for name, rows in (("train", count), ("validation", count // 4), ("test", count // 4)):
        texts = [" ".join(f"w{word}" for word in rng.integers(0, 2000, 300)) for _ in range(rows)]
        lines = [f"{text},{rng.integers(2)}" for text in texts]
        written = "\n".join(["text,label", *lines]) + "\n"
        (path / f"{name}.csv").write_text(written, encoding="utf-8")


KINDS: Mapping[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        *(words, text, tokens, stories, bytes_gz, sines, cora, pets, masks, people, patches),
        *(characters, spectra, hours, boxes, language_model, alphabets, no_weights),
        *(sentences, molecules, ratings, clips, rays, radiance, distilbert, reviews),
    )
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]), *(int(number) for number in sys.argv[3:]))
