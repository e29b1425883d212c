"""What a dataset of people costs before the first step, and what a record costs in each.

    python benchmarks/reid_data.py [--repeats 5] [--output FILE.json]

On one core, on files made for it:

- index: 18,420 colour images of 400 people and their other modalities (43,220 files of one byte),
  in the challenge's layout. Cold is without a saved index, warm with one; the system's own cache
  of folders is warm in both. Against it, nine globs for each row, on every 40th row.
- journey: bytes of the training records by pickle, and seconds to take them in at the other side.
- record: four images of 256x128 as JPEG to 224x224, cut, mirrored, lit and erased; the same
  without a change; and images of 1024x512, decoded at a reduced size and whole.

Others share the machine: the best of the repeats is reported, and all of them; times of the
processor are beside those of the clock.
"""

import argparse
import json
import os
import pickle
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pitstop.config.workloads.reid import ReidData
from pitstop.workloads.reid.data.dataset import ReidSamples, load_people, train_records
from pitstop.workloads.reid.data.decode import ImageReader
from pitstop.workloads.reid.data.index import load_index
from pitstop.workloads.reid.data.layout import find_layout
from pitstop.workloads.reid.synthetic.make import make_reid
from progress import processor

PEOPLE = 400
RGB_ROWS = 18_420
OTHERS = {"nir": 26, "cp": 18, "sk": 18}
SIDES = ("front_", "back_", "side_")
EVERY = 40


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Wall and processor seconds of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - processor}


def best(turns: list[dict[str, float]]) -> dict[str, Any]:
    """The fastest of several turns, and all of them."""
    return {
        **{name: min(turn[name] for turn in turns) for name in turns[0]},
        "all_wall_s": [turn["wall_s"] for turn in turns],
    }


def write_names(root: Path) -> None:
    """Files with the names and numbers of the challenge, and captions of 45 words."""
    random = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(1500)])
    rows = np.bincount(random.integers(0, PEOPLE, RGB_ROWS), minlength=PEOPLE)
    notes = []
    for person in range(PEOPLE):
        name = f"{2 * person + 1:04d}"
        for modality, count in ({"vis": int(rows[person])} | OTHERS).items():
            folder = root / "train" / modality / name
            folder.mkdir(parents=True)
            for number in range(count):
                side = SIDES[number % 3] if modality in ("cp", "sk") else ""
                file = f"{name}_sysu_0470_cam{number % 6 + 1}_{side}{number:04d}_{modality}.jpg"
                (folder / file).write_bytes(b"x")
                if modality == "vis":
                    caption = " ".join(words[random.integers(0, len(words), 45)])
                    path = f"vis/{name}/{file}"
                    notes.append({"id": person + 1, "file_path": path, "caption": caption})
    (root / "train" / "text_annos.json").write_text(json.dumps(notes))


def nine_globs(root: Path) -> int:
    """Ask the file system for the other modalities of every 40th row, nine times each."""
    notes = json.loads((root / "train" / "text_annos.json").read_text())[::EVERY]
    found = 0
    for note in notes:
        person = note["file_path"].split("/")[1]
        for modality in ("nir", "sk", "cp"):
            for ending in ("*.jpg", "*.jpeg", "*.png"):
                found += len([*(root / "train" / modality / person).glob(ending)])
    return found


def measure_index(root: Path, repeats: int) -> dict[str, Any]:
    """Cold and warm, in turn."""
    write_names(root)
    layout = find_layout(root)
    turns: dict[str, list[dict[str, float]]] = {"cold": [], "warm": [], "nine_globs": []}
    for _ in range(repeats):
        shutil.rmtree(root / "train" / ".pitstop-index", ignore_errors=True)
        turns["cold"].append(timed(lambda: load_index(layout)))
        turns["warm"].append(timed(lambda: load_index(layout)))
        turns["nine_globs"].append(timed(lambda: nine_globs(root)))
    found: dict[str, Any] = {name: best(turn) for name, turn in turns.items()}
    found["nine_globs"]["rows"] = len(range(0, RGB_ROWS, EVERY))
    return found


def measure_journey(root: Path) -> dict[str, Any]:
    """What a worker is sent where processes are spawned."""
    found: dict[str, Any] = {}
    for kind in ("anchored", "single"):
        data = ReidData(root=root, holdout=0.0, records=kind)
        samples = train_records(load_people(data), data, seed=0, text_len=77)
        packed = pickle.dumps(samples)
        load = timed(lambda sent=packed: pickle.loads(sent))
        found[kind] = {"rows": len(samples), "pickle_bytes": len(packed), "load_s": load["wall_s"]}
    return found


def measure_records(root: Path, repeats: int) -> dict[str, Any]:
    """Seconds a record, by what is done to it."""
    found: dict[str, Any] = {}
    for name, size in (("256x128", (256, 128)), ("1024x512", (1024, 512))):
        make_reid(root / name, people=5, images=12, size=size)
        data = ReidData(root=root / name, holdout=0.0, modality_dropout=0.0)
        samples = train_records(load_people(data), data, seed=0, text_len=77)
        whole = (1 << 16, 1 << 16)
        ways = {
            "augmented": samples,
            "unchanged": replace(samples, augment=None),
            "decoded_whole": replace(samples, reader=ImageReader(whole)),
        }
        turns: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for turn in range(repeats):
            for way, one in ways.items():
                turns[way].append(timed(lambda one=one, turn=turn: read(one, turn)))
        rows = len(full_rows(samples))
        found[name] = {
            way: {key: np.divide(value, rows).tolist() for key, value in best(own).items()}
            for way, own in turns.items()
        }
    return found


def full_rows(samples: ReidSamples) -> list[int]:
    """Records with all four images."""
    return np.flatnonzero((samples.modality_masks & 15) == 15).tolist()


def read(samples: ReidSamples, epoch: int) -> None:
    """Read every record that has four images."""
    for row in full_rows(samples):
        samples.sample(epoch, row)


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        result = {
            "benchmark": "reid_data",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "processor": f"{processor()}, {os.cpu_count()} seen",
            "load_before": os.getloadavg()[0],
            "index_of_18420_rows": measure_index(folder / "names", arguments.repeats),
            "journey": measure_journey(folder / "names"),
            "seconds_a_record": measure_records(folder, arguments.repeats),
        }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
