"""Does the model learn who is who: a small one trained on generated people, judged on others.

    python benchmarks/reid_quality.py --output FILE.json [--steps 1000] [--jobs 3]

People are generated first; two in five are for the test and are never trained on. The model is
`vit_ti_8` (192 wide, six blocks, patches of 8 pixels; random weights) on images of 128x64, batches
of 16 people with four records each. Three seeds, as many at a time as `--jobs` says. Judged are the
32 query tasks of the generated test lists: mean average precision by number of modalities, against
random features and against colour histograms of the same images, ranked by the same code. Colour
histograms of captions do not exist, so beside the mean over all single modalities there is one over
images alone. Results are written after every run. `--smoke` does it all on a CPU in a minute or
two, where the numbers mean nothing.
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.reid_histogram import histogram_tokens, mean_of_present, random_tokens
from torch import Tensor

from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.config.workloads.reid import ReidData
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.reid.data.dataset import load_people
from pitstop.workloads.reid.data.queries import EvalSet, eval_set
from pitstop.workloads.reid.protocol import (
    SIZES,
    Fuse,
    Gallery,
    ProtocolScores,
    evaluate_protocol,
)
from pitstop.workloads.reid.synthetic.make import make_reid
from progress import say, write
from quality_runs import Row, data_folder, run_beside, settings_of, trained

SEEDS = (0, 1, 2)
IMAGES_ALONE = ("NIR", "CP", "SK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large everything is."""

    people: int
    images: int
    stored: tuple[int, int]
    """Height and width of the files."""
    image_size: tuple[int, int]
    backbone: str
    embed_dim: int
    batch_size: int
    workers: int
    steps: int


FULL = Size(
    people=300,
    images=30,
    stored=(128, 64),
    image_size=(128, 64),
    backbone="vit_ti_8",
    embed_dim=256,
    batch_size=64,
    workers=12,
    steps=1000,
)
SMOKE = Size(
    people=15,
    images=10,
    stored=(48, 32),
    image_size=(32, 16),
    backbone="tiny",
    embed_dim=32,
    batch_size=8,
    workers=0,
    steps=3,
)


def configuration(
    size: Size, root: Path, changes: list[str], *, seed: int, steps: int
) -> RunConfig:
    """Make the configuration of one run."""
    on_gpu = torch.cuda.is_available()
    settings: dict[str, Any] = {
        "run": {"name": f"seed-{seed}", "work_dir": str(root / "runs"), "seed": seed},
        "data": {
            "root": str(root / "people"),
            "image_size": list(size.image_size),
            "holdout": 0,
            "erase": 0,
        },
        "model": {
            "kind": "clip_reid",
            "backbone": size.backbone,
            "embed_dim": size.embed_dim,
            "text_len": 32,
        },
        "loader": {"workers": size.workers} | ({"prefetch": 4} if size.workers else {}),
        "train": {
            "batch_size": size.batch_size,
            "steps": steps,
            "precision": "bf16" if on_gpu else "fp32",
            "clip": {"kind": "adaptive"},
        },
        "optimizer": {"lr": 6e-4, "weight_decay": 0.05},
        "schedule": {"warmup_steps": min(200, steps // 10)},
        "loss": {"sdm": {"kind": "irra", "temperature": 0.05, "weight": 1}},
        "eval": {"batch_size": 128},
        "checkpoint": {"every_steps": None},
        "log": {"every_steps": max(1, min(50, steps))},
    }
    return config_from(settings, changes).config


def queries_of(config: RunConfig) -> EvalSet:
    """Give what is judged."""
    assert isinstance(config.data, ReidData)
    return eval_set(load_people(config.data), config.data, text_len=32)


def judged(evaluation: EvalSet, tokens: Tensor, fuse: Fuse) -> ProtocolScores:
    """Rank the gallery for all queries."""
    images = evaluation.images
    gallery = Gallery(items=images.gallery, persons=images.persons[images.gallery])
    return evaluate_protocol(tokens, gallery, evaluation.tasks, fuse)


def scores(found: ProtocolScores) -> dict[str, float]:
    """Give mAP by number of modalities, for each single one, and over images alone."""
    by_task, sizes = found.by_task(), found.by_size()
    told = {f"mAP_{size}": sizes[size]["mAP"] for size in SIZES if size in sizes}
    told |= {f"mAP/{name}": by_task[f"mAP/{name}"] for name in (*IMAGES_ALONE, "TEXT")}
    told["mAP_one_image"] = statistics.mean(told[f"mAP/{name}"] for name in IMAGES_ALONE)
    if found.score is not None:
        told["score"] = found.score
    return told


def sum_up(report: dict[str, Any]) -> None:
    """Put means and ratios of the runs so far into the report."""
    rows = report["rows"]
    means = {name: statistics.mean(row[name] for row in rows) for name in report["random"]}
    report["mean"] = means
    report["spread"] = {
        name: [min(row[name] for row in rows), max(row[name] for row in rows)] for name in means
    }
    report["ratio_to_random"] = means["mAP_one"] / report["random"]["mAP_one"]
    report["ratio_to_histogram"] = means["mAP_one"] / report["histogram"]["mAP_one"]
    report["image_ratio_to_histogram"] = (
        means["mAP_one_image"] / report["histogram"]["mAP_one_image"]
    )
    report["rises_with_modalities"] = all(
        [row[f"mAP_{size}"] for size in SIZES] == sorted(row[f"mAP_{size}"] for size in SIZES)
        for row in rows
    )


def run(size: Size, root: Path, changes: list[str], steps: int, seed: int) -> Row:
    """Train once and judge."""
    config = configuration(size, root, changes, seed=seed, steps=steps)
    row = trained(config, build_task(config))
    images = statistics.mean(row[f"mAP/{name}"] for name in IMAGES_ALONE)
    return {"seed": seed, "mAP_one_image": images, **row}


def measure(options: argparse.Namespace, root: Path) -> None:
    """Make people, judge what has learned nothing, then train and judge for every seed."""
    size = SMOKE if options.smoke else FULL
    if not (root / "people").exists():
        make_reid(root / "people", people=size.people, images=size.images, size=size.stored, seed=0)
        say("people made")
    steps = options.steps or size.steps
    plain = configuration(size, root, options.set, seed=0, steps=steps)
    evaluation = queries_of(plain)
    report: dict[str, Any] = {
        "what": "mAP of a small model on generated people it never saw, three seeds",
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "people": {"all": size.people, "images_each": size.images},
        "runs_at_the_same_time": options.jobs,
        "configuration": settings_of(plain, root),
        "histogram": scores(
            judged(evaluation, histogram_tokens(evaluation.images), mean_of_present)
        ),
        "random": scores(
            judged(evaluation, random_tokens(len(evaluation.images)), mean_of_present)
        ),
        "rows": [],
    }
    say(f"histogram {report['histogram']}")
    calls = [(size, root, options.set, steps, seed) for seed in options.seeds]
    for row in run_beside(run, calls, options.jobs):
        report["rows"].append(row)
        sum_up(report)
        write(report, options.output)
    print(json.dumps(report, indent=2))


def main() -> None:
    """Train all models and write down what they find."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--data", type=Path, help="Folder to keep people and runs in.")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--steps", type=int, help="Of each run.")
    parser.add_argument("--jobs", type=int, default=1, help="Runs at the same time.")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="Other settings.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    with data_folder(options.data) as root:
        measure(options, root)


if __name__ == "__main__":
    main()
