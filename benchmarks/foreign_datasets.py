"""PKSampler, a cache and DevicePrefetcher on datasets that others wrote.

    python benchmarks/foreign_datasets.py CLONES [--aside] [--output FILE.json]

CLONES holds a git clone of each repository that `tests/data/public_datasets.toml` names, as
OWNER+NAME or OWNER+NAME/repo. Each dataset is imported from there as it is, gets generated files in
the folders that it expects, and is used with at most five lines of ours, which stand in the
functions below. What is checked:

- sampler: every batch has P people with K samples of each, by the dataset's own labels.
- cache: all samples of two epochs are equal to those read without it, and the second epoch reads no
  file again.
- prefetcher: it hands on the same batches as the loader alone.

Where a dataset imports torchvision, a stand-in with the few names that it uses takes its place:
nothing here depends on what a transform does.
"""

import argparse
import importlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

import pitstop
from pitstop.errors import PitstopError

LIST = Path(__file__).parents[1] / "tests/data/public_datasets.toml"
PEOPLE, PICTURES, P, K = 6, 5, 3, 2
Result = dict[str, str]


def main() -> None:
    """Try every dataset of one half of the list."""
    parser = argparse.ArgumentParser(description="Use our parts with datasets that others wrote")
    parser.add_argument("clones", type=Path)
    parser.add_argument("--aside", action="store_true")
    parser.add_argument("--only", help="one repository, in this process")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for entry in tomllib.loads(LIST.read_text())["dataset"]:
        if options.only == entry["repository"]:
            print(json.dumps(try_dataset(entry, options.clones)))
        if options.only is None and entry["aside"] == options.aside:
            rows.append(entry | in_its_own_process(entry, options))
            print(json.dumps(rows[-1]), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


def in_its_own_process(entry: dict[str, Any], options: argparse.Namespace) -> Result:
    """Run one: their modules have names such as `data` and `utils`, two of which do not mix."""
    command = [sys.executable, __file__, str(options.clones), "--only", entry["repository"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def try_dataset(entry: dict[str, Any], clones: Path) -> Result:
    """Export one repository, make its files, use our parts."""
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp())
    name = entry["repository"].replace("/", "+")
    clone = clones / name / "repo" if (clones / name / "repo").exists() else clones / name
    code = work / "code"
    top = entry["path"].split("/")[0]
    wanted = [top] if top.endswith(".py") else [f"{top}/*.py", *(["utils/*.py"] * (top == "data"))]
    command = ("git", "-C", clone, "archive", entry["commit"], *wanted)
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(code, filter="data")
    stand_in_for_torchvision()
    sys.path.insert(0, str(code))
    os.chdir(work)
    return TRIALS[entry["repository"]](work)


# What each dataset needs -------------------------------------------------------------------------


def fast_reid(work: Path) -> Result:
    """People as tuples, read by a function of the module."""
    without_init("fastreid", "fastreid.data", "fastreid.utils")
    common = importlib.import_module("fastreid.data.common")
    items = [(path, person, 0) for path, person in market(work)]
    dataset = common.CommDataset(items, to_tensor)
    with pitstop.SharedCache(16 << 20) as cache:
        return judge(
            dataset,
            person_of=lambda sample: sample["targets"],
            sampler=lambda: pitstop.PKSampler.from_dataset(dataset, P * K, K),
            module=common,
            reader="read_image",
            cache=cache,
        )


def torchreid(work: Path) -> Result:
    """People as tuples, read by a function of the module."""
    without_init("torchreid", "torchreid.data", "torchreid.data.datasets")
    stub("torchreid.utils", read_image=read_rgb, download_url=None, mkdir_if_missing=None)
    module = importlib.import_module("torchreid.data.datasets.dataset")
    items = [(path, person, 0) for path, person in market(work)]
    dataset = module.ImageDataset(items, items, items, transform=to_tensor, verbose=False)
    with pitstop.SharedCache(16 << 20) as cache:
        return judge(
            dataset,
            person_of=lambda sample: sample["pid"],
            sampler=lambda: pitstop.PKSampler.from_dataset(dataset, P * K, K),
            module=module,
            reader="read_image",
            cache=cache,
        )


def transreid(work: Path) -> Result:
    """People as tuples, read by a function of the module."""
    without_init("datasets")
    module = importlib.import_module("datasets.bases")
    dataset = module.ImageDataset([(path, who, 0, 0) for path, who in market(work)], to_tensor)
    with pitstop.SharedCache(16 << 20) as cache:
        return judge(
            dataset,
            person_of=lambda sample: sample[1],
            sampler=lambda: pitstop.PKSampler.from_dataset(dataset, P * K, K),
            module=module,
            reader="read_image",
            cache=cache,
        )


def sysu(work: Path) -> Result:
    """Two kinds of pictures in two arrays; `describe` says who is on a pair."""
    module = importlib.import_module("data_loader")
    folder = work / "Datasets/SYSU-MM01"
    folder.mkdir(parents=True)
    (work / "run").mkdir()
    os.chdir(work / "run")
    labels = np.repeat(np.arange(PEOPLE), PICTURES)
    pictures = np.arange(labels.size * 16 * 8 * 3, dtype=np.uint8).reshape(-1, 16, 8, 3)
    for kind in ("rgb", "ir"):
        np.save(folder / f"train_{kind}_resized_img.npy", pictures)
        np.save(folder / f"train_{kind}_resized_label.npy", labels)
    order = np.arange(labels.size)
    dataset = module.SYSUData("", to_tensor, colorIndex=order, thermalIndex=order)

    def describe(index: int) -> tuple[int, str]:
        return int(dataset.train_color_label[index]), "vis+nir"

    return judge(
        dataset,
        person_of=lambda sample: sample[2],
        sampler=lambda: pitstop.PKSampler.from_dataset(dataset, P * K, K, describe=describe),
    )


def reds(work: Path) -> Result:
    """Frames decoded from the content of files."""
    without_init("basicsr", "basicsr.data", "basicsr.utils")
    stub_logger("basicsr.utils")
    module = importlib.import_module("basicsr.data.reds_dataset")
    dataset = module.REDSDataset(clip_options(work) | {"num_frame": 3, "dataroot_flow": None})
    with pitstop.SharedCache(64 << 20) as cache:
        return judge(dataset, module=module, reader="imfrombytes", cache=cache)


def kair(work: Path) -> Result:
    """Frames decoded from the content of files."""
    module = importlib.import_module("data.dataset_video_train")
    dataset = module.VideoRecurrentTrainDataset(clip_options(work, " 0") | {"num_frame": 4})
    with pitstop.SharedCache(64 << 20) as cache:
        return judge(dataset, module=module.utils_video, reader="imfrombytes", cache=cache)


def prcv(work: Path) -> Result:
    """Records with a mask of modalities; pictures are opened where they are needed."""
    module = importlib.import_module("datasets.dataset")
    config = people_of_four_kinds(work)
    dataset = module.MultiModalDataset(config, "train")
    with pitstop.SharedCache(64 << 20) as cache:
        return judge(
            dataset,
            person_of=lambda sample: int(sample["person_id"]),
            sampler=lambda: pitstop.PKSampler.from_dataset(dataset, P * K, K),
            module=module,
            reader="Image",
            cache=cache,
            wrap=opened_through_a_cache,
            collate=lambda samples: torch.stack([one["images"]["vis"] for one in samples]),
        )


def videos(work: Path) -> Result:
    """Tracks of pictures as tuples."""
    module = importlib.import_module("video_loader")
    pictures = market(work)
    tracks = [([path] * 3, person, 0) for path, person in pictures]
    dataset = module.VideoDataset(tracks, "made", seq_len=2, sample="random", transform=to_tensor)
    with pitstop.SharedCache(16 << 20) as cache:
        return judge(
            dataset,
            person_of=lambda sample: sample[1],
            sampler=lambda: pitstop.PKSampler.from_dataset(dataset, P * K, K),
            module=module,
            reader="read_image",
            cache=cache,
        )


def survey(work: Path) -> Result:
    """People as tuples, read by a function of the module."""
    without_init("data", "data.datasets")
    module = importlib.import_module("data.datasets.dataset_loader")
    dataset = module.ImageDataset([(path, who, 0) for path, who in market(work)], to_tensor)
    with pitstop.SharedCache(16 << 20) as cache:
        return judge(
            dataset,
            person_of=lambda sample: sample[1],
            sampler=lambda: pitstop.PKSampler.from_dataset(dataset, P * K, K),
            module=module,
            reader="read_image",
            cache=cache,
        )


def mprnet(work: Path) -> Result:
    """Pairs of pictures, opened where they are needed."""
    module = importlib.import_module("Deblurring.dataset_RGB")
    for kind in ("input", "target"):
        (work / kind).mkdir()
        for at in range(12):
            picture(at, (24, 32)).save(work / kind / f"{at:04d}.png")
    dataset = module.DataLoaderTrain(str(work), {"patch_size": 16})
    with pitstop.SharedCache(16 << 20) as cache:
        return judge(
            dataset, module=module, reader="Image", cache=cache, wrap=opened_through_a_cache
        )


def opened_through_a_cache(pictures: Any, cache: Any) -> Any:
    """Stand in for the module of pictures of a dataset that opens files itself."""
    read = pitstop.cached(lambda path: pictures.open(path).convert("RGB"), cache)
    return types.SimpleNamespace(open=read)


# What is checked ---------------------------------------------------------------------------------


def judge(
    dataset: Any,
    *,
    person_of: Callable[[Any], int] | None = None,
    sampler: Callable[[], Any] | None = None,
    module: Any = None,
    reader: str = "",
    cache: Any = None,
    wrap: Callable[[Any, Any], Any] = pitstop.cached,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Result:
    """Check each part, and say what it said where it refused."""
    result: Result = {}
    batches: Any = None
    if sampler is not None and person_of is not None:
        result["sampler"], batches = guarded(lambda: check_sampler(dataset, sampler(), person_of))
    else:
        result["sampler"] = "not meant for it"
    if cache is not None:
        result["cache"], _ = guarded(lambda: check_cache(dataset, module, reader, cache, wrap))
    else:
        result["cache"] = "nothing to read: all pictures are in memory"

    def loader() -> Any:
        order = batches or quarters(dataset)
        return DataLoader(dataset, batch_sampler=order, collate_fn=collate)

    result["prefetcher"], _ = guarded(lambda: check_prefetcher(loader))
    return result


def guarded(check: Callable[[], tuple[str, Any]]) -> tuple[str, Any]:
    """Give what a part says when it refuses."""
    try:
        return check()
    except PitstopError as error:
        return f"refused: {error}", None


def check_sampler(
    dataset: Any, sampler: Any, person_of: Callable[[Any], int]
) -> tuple[str, list[list[int]]]:
    """Count people and samples of every batch by what the dataset itself returns."""
    batches = [list(map(int, batch)) for batch in sampler]
    for batch in batches:
        counts = Counter(person_of(dataset[index]) for index in batch)
        if sorted(counts.values()) != [K] * P:
            return f"wrong: a batch of {dict(counts)}", batches
    return ("right" if batches else "wrong: no batch"), batches


def check_cache(
    dataset: Any, module: Any, reader: str, cache: Any, wrap: Callable[[Any, Any], Any]
) -> tuple[str, None]:
    """Compare samples with and without a cache; random numbers begin alike."""
    plain = [seeded(dataset, index) for index in range(len(dataset)) for _ in range(2)]
    setattr(module, reader, wrap(getattr(module, reader), cache))
    through = [seeded(dataset, index) for index in range(len(dataset)) for _ in range(2)]
    if not all(map(same, plain, through)):
        return "wrong: samples differ", None
    stats = cache.stats()
    return (f"right, hit rate {stats.hit_rate:.0%}" if stats.hits else "wrong: never hit"), None


def check_prefetcher(loader: Callable[[], Any]) -> tuple[str, None]:
    """Compare batches with and without it."""
    pairs = zip(seeded_list(loader()), seeded_list(loader(), prefetch=True), strict=True)
    return ("right" if all(same(one, other) for one, other in pairs) else "wrong"), None


def seeded_list(loader: Any, *, prefetch: bool = False) -> list[Any]:
    """Give all batches, random numbers begun anew."""
    start_random()
    return list(pitstop.DevicePrefetcher(loader, "cpu") if prefetch else loader)


def seeded(dataset: Any, index: int) -> Any:
    """Read one sample, random numbers begun anew."""
    start_random()
    return dataset[index]


def start_random() -> None:
    """Begin every generator anew."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - their code draws from it
    torch.manual_seed(0)


def same(one: Any, other: Any) -> bool:
    """Compare samples through and through."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def quarters(dataset: Any) -> list[list[int]]:
    """Give batches of four, in order."""
    return [list(range(at, at + 4)) for at in range(0, len(dataset) // 4 * 4, 4)]


# Files in their folders --------------------------------------------------------------------------


def picture(seed: int, size: tuple[int, int] = (16, 8)) -> Image.Image:
    """Draw noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def market(work: Path) -> list[tuple[str, int]]:
    """Write people as Market-1501 names them; give path and person."""
    folder = work / "market1501/bounding_box_train"
    folder.mkdir(parents=True)
    found = []
    for at in range(PEOPLE * PICTURES):
        person = at // PICTURES
        path = folder / f"{person:04d}_c1s1_{at:06d}_00.jpg"
        picture(at).save(path)
        found.append((str(path), person))
    return found


def clip_options(work: Path, more: str = "") -> dict[str, Any]:
    """Write clips as REDS has them; give the options that BasicSR and KAIR take."""
    for kind in ("sharp", "blur"):
        folder = work / kind / "001"
        folder.mkdir(parents=True)
        for frame in range(100):
            picture(frame, (24, 32)).save(folder / f"{frame:08d}.png")
    (work / "meta.txt").write_text(f"001 100 (24,32,3){more}\n")
    return {
        "dataroot_gt": str(work / "sharp"),
        "dataroot_lq": str(work / "blur"),
        "meta_info_file": str(work / "meta.txt"),
        "val_partition": "REDS4",
        "io_backend": {"type": "disk"},
        "gt_size": 16,
        "scale": 1,
        "interval_list": [1],
        "random_reverse": False,
        "use_hflip": True,
        "use_rot": True,
        "test_mode": False,
        "name": "REDS",
    }


def people_of_four_kinds(work: Path) -> Any:
    """Write people in four kinds of pictures with captions; give the settings that name them."""
    captions = []
    for person in range(1, PEOPLE + 1):
        for kind in ("vis", "nir", "sk", "cp"):
            folder = work / kind / f"{person:04d}"
            folder.mkdir(parents=True)
            for at in range(PICTURES):
                name = f"{person:04d}_made_front_{at:04d}_{kind}.jpg"
                picture(person * 100 + at).save(folder / name)
                if kind == "vis":
                    path = f"vis/{person:04d}/{name}"
                    captions.append({"file_path": path, "caption": f"person {person}"})
    (work / "text.json").write_text(json.dumps(captions))
    return types.SimpleNamespace(
        data_root=str(work), json_file=str(work / "text.json"), image_size=16, random_flip=False,
        random_crop=False, color_jitter=False, random_erase=0, modality_dropout=0,
    )  # fmt: skip


def read_rgb(path: str) -> Image.Image:
    """Read a picture."""
    return Image.open(path).convert("RGB")


def to_tensor(image: Any) -> torch.Tensor:
    """Stand for a transform."""
    return torch.from_numpy(np.array(image)).movedim(-1, 0)


def without_init(*packages: str) -> None:
    """Let modules of packages be imported without the packages' own start."""
    for name in packages:
        folder = Path(sys.path[0], *name.split("."))
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module


def stub(name: str, **names: Any) -> types.ModuleType:
    """Put a module in place that has these names."""
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def stub_logger(package: str) -> None:
    """Give a package that was not started the few names that its datasets take from it."""
    module = sys.modules[package]
    for part in ("file_client", "img_util", "logger"):
        inner = importlib.import_module(f"{package}.{part}")
        module.__dict__.update(
            {name: value for name, value in vars(inner).items() if not name.startswith("_")}
        )


class Steps(list[Any]):
    """Stands in for torchvision's Compose."""

    def __call__(self, image: Any) -> Any:
        """Take one step after another."""
        for step in self:
            image = step(image)
        return image


class Step:
    """Stands in for a transform that changes nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any settings."""

    def __call__(self, image: Any) -> Any:
        """Give what came in."""
        return image


class ToTensor(Step):
    """Stands in for torchvision's own."""

    def __call__(self, image: Any) -> Any:
        """Give a tensor from 0 to 1."""
        return to_tensor(image).float() / 255


class Transforms(types.ModuleType):
    """Stands in for a module of transforms."""

    def __getattr__(self, name: str) -> Any:
        """Give a step for every name, those of the import system left out."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name.islower():  # a function of a picture and settings
            return ToTensor() if name == "to_tensor" else lambda image, *_, **__: image
        return {"Compose": Steps, "ToTensor": ToTensor}.get(name, Step)


def stand_in_for_torchvision() -> None:
    """Stand in for the transforms that datasets name."""
    names = ("transforms", "transforms.functional", "utils")
    modules = {f"torchvision.{name}": Transforms(f"torchvision.{name}") for name in names}
    inner = modules["torchvision.transforms.functional"]
    modules["torchvision.transforms"].__dict__["functional"] = inner
    sys.modules |= modules
    stub("torchvision", transforms=modules["torchvision.transforms"])


TRIALS: dict[str, Callable[[Path], Result]] = {
    "JDAI-CV/fast-reid": fast_reid,
    "KaiyangZhou/deep-person-reid": torchreid,
    "damo-cv/TransReID": transreid,
    "mangye16/Cross-Modal-Re-ID-baseline": sysu,
    "XPixelGroup/BasicSR": reds,
    "cszn/KAIR": kair,
    "LingmaFuture/PRCV2025REID": prcv,
    "Allen-lz/Video-Person-ReID": videos,
    "mangye16/ReID-Survey": survey,
    "swz30/MPRNet": mprnet,
}


if __name__ == "__main__":
    main()
