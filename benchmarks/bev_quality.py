"""Does the network learn what lies around a car: a small one, judged by scenes it never saw.

    python benchmarks/bev_quality.py --output FILE.json [--kind surround] [--steps 950] [--jobs 3]

Worlds are generated first, several at once, each with its own cities, cars and weather; the scenes
to judge by are in the same cities, but none of their images was trained on. Networks have the
backbone `swin_nano` (24 channels, windows of 4; random weights):

    surround   six cameras of 128x352, the map in six classes and vehicles, 20 m around the car in
               cells of 0.5 m; vehicles count of which the cameras see at least 40 % (five in six
               of their cells); images are scaled, cut and mirrored at random, the ground is not
    mono       one camera of 192x320, 14 classes where the camera and the lidar see, up to 31 m

Three seeds, as many at a time as `--jobs` says. Beside the overlaps of the networks stand those of
answers without looking: the best constant for each class (everywhere or nowhere), and the training
set's own frequency of a class in each cell, cut at the threshold that is best on the judged set
itself. The networks' own thresholds are 0.35 to 0.65, the best of each class (`iou_best`). Results
are written after every run. `--smoke` does it all on a CPU in a minute or two, where the numbers
mean nothing.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.data.cache.items import Key
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.fetch import Samples
from pitstop.workloads.bev.metrics import ON_MAP
from pitstop.workloads.bev.synthetic.make import make_bev
from pitstop.workloads.bev.task import BevTask, build_bev
from progress import say, write
from quality_runs import Row, data_folder, run_beside, settings_of, trained

SEEDS = (0, 1, 2)
CUTS = tuple(cut / 100 for cut in range(1, 100))
"""Thresholds that frequencies are cut at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large everything is."""

    worlds: int
    scenes: int
    """Of each world; one in five is judged by."""
    samples: int
    """Of each scene."""
    image: tuple[int, int]
    """Height and width of the generated images."""
    batch_size: int
    workers: int
    cache: str
    """Room for all pictures of the training scenes, 270 kB each."""
    steps: int
    prior_samples: int
    """Training samples that frequencies are counted in, at most."""


FULL = Size(
    worlds=14,
    scenes=10,
    samples=10,
    image=(225, 400),
    batch_size=16,
    workers=14,
    cache="2GiB",
    steps=950,
    prior_samples=560,
)
SMOKE = Size(
    worlds=2,
    scenes=2,
    samples=2,
    image=(225, 400),
    batch_size=2,
    workers=0,
    cache="32MiB",
    steps=3,
    prior_samples=4,
)

KINDS: dict[str, dict[str, Any]] = {
    "surround": {
        "model": {
            "kind": "lss_swin_surround",
            "backbone": "swin_nano",
            "drop_path": 0,
            "depth": [1, 29, 0.5],
            "channels": 48,
            "x_bound": [-20, 20, 0.5],
            "forward_bound": [-20, 20, 0.5],
            "head_width": 64,
            "encoder_channels": 96,
        },
        "data": {
            "image_size": [128, 352],
            "resize": [0.88, 1.0],
            "rotate_deg": 0,
            "photometric": False,
            "bev_augment": False,
            "min_visibility": 2,
            "target_forward": [-20, 20, 0.5],
            "target_across": [-20, 20, 0.5],
        },
    },
    "mono": {
        "model": {
            "kind": "lss_swin_mono",
            "backbone": "swin_nano",
            "out_stages": [1],
            "depth": [1, 31, 1],
            "channels": 48,
            "x_bound": [-15, 15, 1],
            "forward_bound": [1, 31, 1],
            "head_width": 64,
        },
        "data": {"image_size": [192, 320]},
    },
}
SMOKE_KINDS: dict[str, dict[str, Any]] = {
    "surround": {
        "model": {"x_bound": [-20, 20, 2], "forward_bound": [-20, 20, 2], "channels": 16},
        "data": {"image_size": [64, 176], "resize": [0.44, 0.5]},
    },
    "mono": {"model": {"channels": 16}, "data": {"image_size": [64, 96]}},
}


@dataclass(frozen=True, slots=True)
class Joined:
    """Several sets, one after the other."""

    sets: tuple[Any, ...]

    def __len__(self) -> int:
        return sum(map(len, self.sets))

    def sample(self, epoch: int, index: int) -> Any:
        """Read a sample of the set that it is in."""
        samples, own = self._place(index)
        return samples.sample(epoch, own)

    def with_cache(self, cache: SharedCache) -> "Joined":
        """Give the same sets, all in one cache."""
        return Joined(tuple(samples.with_cache(cache) for samples in self.sets))

    def cache_keys(self, index: int) -> Iterable[Key]:
        """List what a sample will ask the cache for."""
        samples, own = self._place(index)
        return samples.cache_keys(own)

    def name_of(self, index: int) -> str:
        """Name a sample for a person."""
        return f"sample {index} of all worlds"

    def _place(self, index: int) -> tuple[Any, int]:
        first = 0
        for samples, end in zip(self.sets, accumulate(map(len, self.sets)), strict=True):
            if index < end:
                return samples, index - first
            first = end
        raise IndexError(index)


class ManyWorlds(BevTask):
    """The task over several sets at once."""

    def __init__(self, config: RunConfig, roots: Sequence[Path]) -> None:
        single = build_bev(config)
        self.__dict__.update(single.__dict__)
        self._parts = [build_bev(_with_root(config, root)) for root in roots]

    def train_samples(self) -> Any:
        """Give the training splits of all worlds."""
        return Joined(tuple(part.train_samples() for part in self._parts))

    def eval_samples(self) -> Any:
        """Give the evaluation splits of all worlds."""
        return Joined(tuple(part.eval_samples() for part in self._parts))


def _with_root(config: RunConfig, root: Path) -> RunConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"root": root})})


def worlds_in(folder: Path, options: argparse.Namespace) -> list[Path]:
    """Name the folders of all worlds."""
    size: Size = SMOKE if options.smoke else FULL
    return [folder / f"world-{seed}" for seed in range(size.worlds)]


def make_worlds(roots: Sequence[Path], size: Size) -> None:
    """Generate all worlds, as many at once as there are workers."""
    jobs = [(root, size, seed) for seed, root in enumerate(roots)]
    with multiprocessing.get_context("fork").Pool(min(16, max(1, size.workers))) as pool:
        pool.starmap(_make_world, jobs)


def _make_world(root: Path, size: Size, seed: int) -> None:
    torch.set_num_threads(1)
    make_bev(root, scenes=size.scenes, samples=size.samples, size=size.image, seed=seed)


def configuration(options: argparse.Namespace, root: Path, *, seed: int) -> RunConfig:
    """Make the configuration of one run."""
    size: Size = SMOKE if options.smoke else FULL
    steps = options.steps or size.steps
    on_gpu = torch.cuda.is_available()
    kind = KINDS[options.kind]
    small = SMOKE_KINDS[options.kind] if options.smoke else {"model": {}, "data": {}}
    settings: dict[str, Any] = {
        "run": {"name": f"{options.kind}-{seed}", "work_dir": str(root / "runs"), "seed": seed},
        "data": {
            "root": str(root / "world-0"),
            "version": "v1.0-mini",
            "split": "mini_train",
            "eval_split": "mini_val",
            **kind["data"],
            **small["data"],
        },
        "model": {**kind["model"], **small["model"]},
        "loader": {"workers": size.workers} | ({"prefetch": 4} if size.workers else {}),
        "cache": {"budget": size.cache},
        "train": {
            "batch_size": size.batch_size,
            "steps": steps,
            "precision": "bf16" if on_gpu else "fp32",
            "clip": {"norm": 5},
        },
        "optimizer": {"lr": options.lr, "weight_decay": 0.01},
        "schedule": {"warmup_steps": min(50, steps // 10)},
        "eval": {"batch_size": size.batch_size},
        "checkpoint": {"every_steps": None},
        "log": {"every_steps": max(1, min(50, steps))},
    }
    return config_from(settings, options.set).config


def without_looking(config: RunConfig, roots: Sequence[Path], size: Size) -> dict[str, Any]:
    """Judge answers that do not depend on the images: constants, and frequencies by cell."""
    plain = config.model_copy(update={"data": _plain(config)})
    task = ManyWorlds(plain, roots)
    train_set, eval_set = task.train_samples(), task.eval_samples()
    stride = max(1, len(train_set) // size.prior_samples)
    parts = max(1, min(size.workers, len(eval_set)))
    # Forked, so that the sets travel by themselves.
    with multiprocessing.get_context("fork").Pool(parts) as pool:
        counts = pool.starmap(
            _count_cells,
            [(train_set, range(i * stride, len(train_set), parts * stride)) for i in range(parts)],
        )
        there, seen = (torch.stack(part).sum(dim=0) for part in zip(*counts, strict=True))
        rates = there / seen.clamp_min(1)
        found = pool.starmap(
            _count_overlaps,
            [(eval_set, range(i, len(eval_set), parts), rates) for i in range(parts)],
        )
    overlaps, constant = (torch.stack(part).sum(dim=0) for part in zip(*found, strict=True))
    by_cell = (overlaps[..., 0] / overlaps[..., 1].clamp_min(1)).amax(dim=0)
    everywhere = constant[:, 0] / constant[:, 1].clamp_min(1)
    return {
        "constant": _by_class(task, everywhere, constant[:, 0]),
        "cell_frequency": _by_class(task, by_cell, constant[:, 0]),
    }


def _count_cells(samples: Samples, chosen: range) -> tuple[Tensor, Tensor]:
    """Count how often each class is in each cell, and how often that is seen."""
    torch.set_num_threads(1)
    read = [samples.sample(0, index) for index in chosen]
    there = torch.stack([sample.targets * sample.mask for sample in read]).sum(dim=0)
    return there.double(), torch.stack([sample.mask for sample in read]).sum(dim=0).double()


def _count_overlaps(samples: Samples, chosen: range, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Count cells found and there, and cells found or there, for every cut and for "everywhere"."""
    torch.set_num_threads(1)
    found = rates[None] > torch.tensor(CUTS).view(-1, 1, 1, 1)
    overlaps = torch.zeros(len(CUTS), len(rates), 2, dtype=torch.float64)
    constant = torch.zeros(len(rates), 2, dtype=torch.float64)
    for index in chosen:
        sample = samples.sample(0, index)
        seen = sample.mask.bool()
        wanted, shown = sample.targets.bool() & seen, found & seen
        both, either = (shown & wanted).sum(dim=(2, 3)), (shown | wanted).sum(dim=(2, 3))
        overlaps += torch.stack((both, either), dim=-1)
        constant += torch.stack((wanted.sum(dim=(1, 2)), seen.sum().expand(len(rates))), dim=-1)
    return overlaps, constant


def _plain(config: RunConfig) -> Any:
    """Give the data settings without anything at random."""
    off = {"photometric": False, "bev_augment": False, "flip": False}
    known = type(config.data).model_fields
    return config.data.model_copy(update={k: v for k, v in off.items() if k in known})


def _by_class(task: BevTask, overlaps: Tensor, wanted: Tensor) -> dict[str, float]:
    """Name overlaps of the classes that occur, and give their mean over what is on the map."""
    told = {
        f"iou/{name}": float(value)
        for name, value, cells in zip(task.classes, overlaps, wanted, strict=True)
        if cells > 0
    }
    on_map = [value for name, value in told.items() if name.partition("/")[2] in ON_MAP]
    return {**told, "map_miou": statistics.mean(on_map)}


def sum_up(report: dict[str, Any], vehicle: str) -> None:
    """Put means and differences of the runs so far into the report."""
    rows = report["rows"]
    names = [name for name in rows[0] if isinstance(rows[0][name], float) and "iou" in name]
    report["mean"] = {
        name: statistics.mean(row[name] for row in rows)
        for name in names
        if all(name in r for r in rows)
    }
    report["spread"] = {
        name: [min(row[name] for row in rows), max(row[name] for row in rows)]
        for name in report["mean"]
    }
    for prior in ("constant", "cell_frequency"):
        other = report["without_looking"][prior]
        report[f"above_{prior}"] = {
            "vehicle_iou": report["mean"][f"iou_best/{vehicle}"] - other[f"iou/{vehicle}"],
            "map_miou": report["mean"]["map_miou_best"] - other["map_miou"],
        }


def run(options: argparse.Namespace, root: Path, seed: int) -> Row:
    """Train once and judge."""
    config = configuration(options, root, seed=seed)
    return {"seed": seed, **trained(config, ManyWorlds(config, worlds_in(root, options)))}


def measure(options: argparse.Namespace, root: Path) -> None:
    """Make worlds, judge what does not look, then train and judge for every seed."""
    size: Size = SMOKE if options.smoke else FULL
    roots = worlds_in(root, options)
    if not roots[0].exists():
        make_worlds(roots, size)
        say("worlds made")
    plain = configuration(options, root, seed=0)
    task = ManyWorlds(plain, roots)
    vehicle = "vehicle" if "vehicle" in task.classes else "car"
    report: dict[str, Any] = {
        "what": f"overlap of a small network on generated worlds, {options.kind}, three seeds",
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "data": {"train": len(task.train_samples()), "eval": len(task.eval_samples())},
        "runs_at_the_same_time": options.jobs,
        "configuration": settings_of(plain, root),
        "vehicle_class": vehicle,
        "without_looking": without_looking(plain, roots, size),
        "rows": [],
    }
    say(f"without looking {json.dumps(report['without_looking'])}")
    calls = [(options, root, seed) for seed in options.seeds]
    for row in run_beside(run, calls, options.jobs):
        report["rows"].append(row)
        sum_up(report, vehicle)
        write(report, options.output)
    print(json.dumps(report, indent=2))


def main() -> None:
    """Train all networks and write down what they find."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--data", type=Path, help="Folder to keep worlds and runs in.")
    parser.add_argument("--kind", choices=list(KINDS), default="surround")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--steps", type=int, help="Of each run.")
    parser.add_argument("--jobs", type=int, default=1, help="Runs at the same time.")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="Other settings.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    with data_folder(options.data) as root:
        measure(options, root)


if __name__ == "__main__":
    main()
