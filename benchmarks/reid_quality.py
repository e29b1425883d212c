"""Does the model learn who is who: a small one trained on generated people, judged on others.

    python benchmarks/reid_quality.py --output FILE.json [--run-s 110] [--limit-s 560]

People are generated first; two in five are for the test and are never trained on. The model is
`vit_ti_8` (192 wide, six blocks, patches of 8 pixels; random weights) on images of 128x64, batches
of 16 people with four records each. Three seeds; each run takes as many steps as fit into its share
of the time, by a short run before. Judged are the 32 query tasks of the generated test lists: mean
average precision by number of modalities, against random features and against colour histograms of
the same images, ranked by the same code. Colour histograms of captions do not exist, so beside the
mean over all single modalities there is one over images alone. Results are written after every
run. `--smoke` does it all on a CPU in a minute or two, where the numbers mean nothing.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.config.reid import ReidData
from pitstop.config.sections import RunConfig
from pitstop.train.loading import load_weights, read_weights
from pitstop.train.precision import Precision
from pitstop.train.run import TrainingRun
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.reid.dataset import load_people
from pitstop.workloads.reid.histogram import histogram_tokens, mean_of_present, random_tokens
from pitstop.workloads.reid.model import ReidModel
from pitstop.workloads.reid.protocol import (
    SIZES,
    Fuse,
    Gallery,
    ProtocolScores,
    evaluate_protocol,
)
from pitstop.workloads.reid.queries import EvalSet, eval_set
from pitstop.workloads.reid.synthetic import make_reid

SEEDS = (0, 1, 2)
IMAGES_ALONE = ("NIR", "CP", "SK")
SHARE = 0.9
"""Of the time that is left: the rest is for evaluations and starting up."""


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
    calibration: tuple[int, int]
    """Steps of the two short runs."""


FULL = Size(
    people=300,
    images=30,
    stored=(128, 64),
    image_size=(128, 64),
    backbone="vit_ti_8",
    embed_dim=256,
    batch_size=64,
    workers=12,
    calibration=(10, 60),
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
    calibration=(1, 3),
)


def configuration(size: Size, root: Path, *, seed: int, steps: int, name: str) -> RunConfig:
    """Make the configuration of one run."""
    on_gpu = torch.cuda.is_available()
    settings: dict[str, Any] = {
        "run": {"name": name, "work_dir": str(root / "runs"), "seed": seed},
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
    return config_from(settings).config


def train(config: RunConfig) -> float:
    """Train to the end; give the seconds it took."""
    began = time.perf_counter()
    TrainingRun(config=config, config_yaml=to_yaml(config), task=build_task(config)).run()
    return time.perf_counter() - began


def count_steps(size: Size, root: Path, run_s: float) -> int:
    """Find how many steps fit into a run, from two runs of different length.

    A first run is thrown away: it loads kernels, which the others find loaded.
    """
    took_s = []
    for steps in (1, *size.calibration):
        config = configuration(size, root, seed=99, steps=steps, name=f"calibration-{len(took_s)}")
        took_s.append(train(config))
        say(f"calibration: {steps} steps in {took_s[-1]:.1f} s")
    few, many = size.calibration
    _, first_s, second_s = took_s
    # Never less than a third of the longer run's mean, so that noise cannot make steps free.
    step_s = max((second_s - first_s) / (many - few), second_s / many / 3)
    fixed_s = max(second_s - many * step_s, 0.0)
    return max(int((run_s - fixed_s) / step_s), many)


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


@torch.inference_mode()
def trained_scores(config: RunConfig, evaluation: EvalSet) -> dict[str, float]:
    """Encode all items with the last weights of a run, and search."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task = build_task(config)
    model = task.build_model()
    assert isinstance(model, ReidModel)
    load_weights(model, read_weights(config.run.work_dir / config.run.name))
    model.to(device).eval()
    precision = Precision(config.train.precision, device)
    images, tokens = evaluation.images, []
    for start in range(0, len(images), 256):
        rows = range(start, min(start + 256, len(images)))
        batch = task.to_device(task.collate([images.sample(0, row) for row in rows]), device)
        with precision.autocast():
            encoded = model.encode(batch.images, batch.present, batch.tokens)
        tokens.append(encoded.sum(dim=1))
    return scores(judged(evaluation, torch.cat(tokens), model.describe))


def sum_up(report: dict[str, Any]) -> None:
    """Put means and ratios of the runs so far into the report."""
    rows = [row for row in report["rows"] if row["outcome"] == "ran"]
    if not rows:
        return
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


def measure(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Make people, judge what has learned nothing, then train and judge three times."""
    began = time.perf_counter()
    size = SMOKE if options.smoke else FULL
    made = make_reid(
        root / "people", people=size.people, images=size.images, size=size.stored, seed=0
    )
    say(f"people made after {time.perf_counter() - began:.1f} s")
    plain = configuration(size, root, seed=0, steps=10, name="plain")
    evaluation = queries_of(plain)
    report: dict[str, Any] = {
        "what": "mAP of a small model on generated people it never saw, three seeds",
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "data": {"people": dict(made.people), "images": dict(made.images)},
        "configuration": yaml.safe_load(to_yaml(plain)),
        "histogram": scores(
            judged(evaluation, histogram_tokens(evaluation.images), mean_of_present)
        ),
        "random": scores(
            judged(evaluation, random_tokens(len(evaluation.images)), mean_of_present)
        ),
        "rows": [],
    }
    say(f"histogram {report['histogram']}")
    # What the short runs take is not known yet; a tenth of the time is set aside for them.
    most_s = SHARE * (options.limit_s - (time.perf_counter() - began)) / (len(SEEDS) + 0.5)
    steps = options.steps or count_steps(size, root, min(options.run_s, most_s))
    report["steps"] = steps = size.calibration[1] if options.smoke else steps
    longest_s = 0.0
    for seed in SEEDS:
        if options.limit_s - (time.perf_counter() - began) < longest_s:
            report["rows"].append({"seed": seed, "outcome": "left out: no time"})
            continue
        config = configuration(size, root, seed=seed, steps=steps, name=f"seed-{seed}")
        took_s = train(config)
        row = {"seed": seed, "outcome": "ran", "took_s": took_s}
        report["rows"].append(row | trained_scores(config, evaluation))
        longest_s = max(longest_s, took_s)
        say(json.dumps(report["rows"][-1]))
        sum_up(report)
        write(report, options.output)
    return report


def write(report: dict[str, Any], output: Path | None) -> None:
    """Write what is known so far."""
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n")


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Train all models and write down what they find."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--run-s", type=float, default=110.0, help="Most seconds of one run.")
    parser.add_argument("--limit-s", type=float, default=560.0, help="For everything together.")
    parser.add_argument("--steps", type=int, help="Of each run, instead of what fits.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.exit("there is no GPU; try --smoke")
    if options.smoke:
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(options, Path(folder))
    write(report, options.output)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
