"""Samples a second from folders, from a pack of files and from a pack of decoded images.

    python benchmarks/packs.py --output FILE.json [--rounds 5]

Re-identification: images of 256x128 as ORBench has them, records of four images for 224x224.
Bird's-eye view: six images of 900x1600 as nuScenes has them, for 256x704 from six cameras and for
one camera as the preset `mono_baseline` reads it. All are generated. The three take turns, sample
by sample in one process, files in memory; every sample of a pack is compared with the folder's
first. What is written down: milliseconds a sample of every round, their ratio by round, the sizes.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pitstop.config.load import load_config
from pitstop.workloads.bev.synthetic.make import make_bev
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.reid.synthetic.make import make_reid
from progress import say, write

CONFIGS = Path(__file__).parents[1] / "configs"
MINI = ["data.version=v1.0-mini", "data.split=mini_train", "data.eval_split=mini_val"]
PRESETS: dict[str, tuple[str, list[str]]] = {
    "reid": ("reid/fast.yaml", ["model.weights=null", "data.tokenizer=null", "data.holdout=0"]),
    "bev, six cameras": ("bev/surround.yaml", ["model.weights=null", *MINI]),
    "bev, one camera": (
        "bev/mono_baseline.yaml",
        ["model.weights=null", "data.labels=null", "data.frequencies_from=1", *MINI],
    ),
}


def samples_of(preset: str, root: Path) -> Any:
    """Give the training samples of a preset."""
    file, settings = PRESETS[preset]
    config = load_config(CONFIGS / file, [*settings, f"data.root={root}"]).config
    return build_task(config)


def differing(found: Any, wanted: Any) -> int:
    """Count the parts of two samples that are not the same."""
    pairs = [
        (getattr(found, field.name), getattr(wanted, field.name))
        for field in dataclasses.fields(wanted)
    ]
    return sum(not (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b) for a, b in pairs)


def measure(preset: str, root: Path, folder: Path, *, rounds: int, most: int) -> dict[str, Any]:
    """Pack a dataset both ways and let the three take turns."""
    plain = samples_of(preset, root)
    kinds = {"folders": plain}
    sizes = {}
    for frames in ("encoded", "decoded"):
        pack = folder / f"{preset.replace(', ', '-').replace(' ', '-')}-{frames}.pack"
        made = plain.pack_data(pack, frames=frames)
        sizes[frames] = made.size_bytes
        sizes["folders"] = made.source_bytes
        kinds[frames] = samples_of(preset, pack)
    read = {name: task.train_samples() for name, task in kinds.items()}
    count = min(most, len(read["folders"]))
    differ = sum(
        differing(read[name].sample(1, place), read["folders"].sample(1, place))
        for name in ("encoded", "decoded")
        for place in range(count)
    )
    taken: dict[str, list[float]] = {name: [] for name in read}
    for turn in range(rounds):
        for name, samples in read.items():
            began = time.perf_counter()
            for place in range(count):
                samples.sample(turn, place)
            taken[name].append((time.perf_counter() - began) / count * 1e3)
    ratios = {
        name: [before / after for before, after in zip(taken["folders"], taken[name], strict=True)]
        for name in ("encoded", "decoded")
    }
    return {
        "samples": count,
        "parts_that_differ": differ,
        "ms_a_sample": {name: statistics.median(rows) for name, rows in taken.items()},
        "ratio": {
            name: {"median": statistics.median(rows), "low": min(rows), "high": max(rows)}
            for name, rows in ratios.items()
        },
        "bytes": sizes,
    }


def main() -> None:
    """Generate, pack, read, and write down what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hardware", default="CPU")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "what": "samples read in one process, files in the page cache",
        "hardware": options.hardware,
        "torch": torch.__version__,
        "rounds": options.rounds,
        "presets": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_reid(folder / "people", people=20, images=20, size=(256, 128), seed=0, corrupt=0)
        make_bev(folder / "world", scenes=2, samples=3, size=(900, 1600), seed=0)
        say("data made")
        for preset in PRESETS:
            root = folder / ("people" if preset == "reid" else "world")
            report["presets"][preset] = measure(
                preset, root, folder, rounds=options.rounds, most=60
            )
            say(json.dumps({preset: report["presets"][preset]}))
            write(report, options.output)


if __name__ == "__main__":
    main()
