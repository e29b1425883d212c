"""What each way of training a deblurring network gains or loses, on a CPU, seed by seed.

    python benchmarks/deblur_techniques.py GROUP ... --output FILE.json [--jobs 1]

| group | what is compared |
|---|---|
| start | the preset `small`: the last layer random, or empty, so that the input is given back |
| order | all samples shuffled, or those of a clip together; a cache of a quarter of the frames |
| crops | crops of 64 pixels, or of 32 in the first half of the epochs |
| distill | a network of 8 channels alone, or beside a teacher of 24 that was trained before |
| perceptual | a distance of features never, at every step, or at every fourth |

Clips are generated. All runs of a group take the same number of steps with the same seeds; the
first variant is what the others are compared with, seed by seed. Written down: PSNR over steps of
restored test frames, that of the blurred ones, and the processor time of the training (other
processes share the cores, so the wall says little). A run that is in `--data` already is read, not
made again; its processor time is not known then. A feature network has no trained weights here,
which is said: they cannot be had without a download.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import load_config
from pitstop.config.sections import RunConfig
from pitstop.records.store import read_run
from pitstop.train.run import TrainingRun
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.model.features import Features
from pitstop.workloads.deblur.synthetic import make_clips
from progress import say, write
from quality_runs import Row, data_folder, run_beside

CONFIGS: Final = Path(__file__).parents[1] / "configs" / "deblur"
SEEDS: Final = (0, 1, 2)
EPOCH_STEPS: Final = 44  # four clips of twelve frames, segments of two, one a step
CACHED: Final = "900KiB"  # of 3.4 MiB of decoded frames
NARROW: Final = (
    "model.start=identity",
    "train.clip.norm=0.1",
    "optimizer.lr=1e-3",
    "schedule.warmup_steps=10",
    f"train.steps={2 * EPOCH_STEPS}",
    f"eval.every_steps={2 * EPOCH_STEPS}",
    "data.eval_crop=64",
)
_FEATURES: Final = ("loss.perceptual.network=alexnet", 'loss.perceptual.layers=["relu2"]')


def variants(group: str, root: Path) -> Mapping[str, tuple[str, ...]]:
    """Name the ways of a group with what each changes; the first is the plain one."""
    half = "train.crop_schedule={1: 64}"
    perceptual = (*_FEATURES, f"loss.perceptual.weights={root / 'features.pt'}")
    known: dict[str, dict[str, tuple[str, ...]]] = {
        "start": {"random": ("model.start=random",), "identity": ("model.start=identity",)},
        "order": {
            "shuffle": (f"cache.budget={CACHED}", "cache.policy=lru"),
            "sequence": (f"cache.budget={CACHED}", "cache.policy=lru", "data.order=sequence"),
        },
        "crops": {"64": ("data.crop=64",), "32, then 64": (half,)},
        "distill": {
            "alone": (),
            "with a teacher": tuple(
                f"train.distill.teacher={path}"
                for path in sorted((root / "runs" / "teacher" / "checkpoints").glob("save-*"))[-1:]
            ),
        },
        "perceptual": {
            "never": (),
            "every step": (*perceptual, "loss.perceptual.weight=0.02"),
            "every fourth": (
                *perceptual,
                "loss.perceptual.weight=0.02",
                "loss.perceptual.every_steps=4",
            ),
        },
    }
    return known[group]


def configuration(group: str, root: Path, changes: tuple[str, ...], name: str) -> RunConfig:
    """Make the configuration of one run."""
    if group == "start":
        preset, own = "small", ("train.steps=100", "eval.every_steps=10")
    else:
        preset, own = "demo", NARROW
    settings = (
        f"data.root={root / 'clips'}",
        f"run.name={name}",
        f"run.work_dir={root / 'runs'}",
        "checkpoint.every_steps=null",
    )
    return load_config(CONFIGS / f"{preset}.yaml", [*settings, *own, *changes]).config


def run(group: str, root: Path, name: str, changes: tuple[str, ...], seed: int) -> Row:
    """Train one network to the end; give its PSNR over steps."""
    torch.set_num_threads(1)
    label = f"{group}-{name}-{seed}".replace(" ", "-").replace(",", "")
    config = configuration(group, root, (*changes, f"run.seed={seed}"), label)
    taken = None
    if not (config.run.work_dir / config.run.name).exists():
        began = time.process_time()
        TrainingRun(config=config, config_yaml=to_yaml(config), task=build_task(config)).run()
        taken = round(time.process_time() - began, 2)
    record = read_run(config.run.work_dir / config.run.name)
    series = record.first.scalars
    psnr, blurred = series["eval/psnr"], series["eval/psnr_input"]
    return {
        "group": group,
        "variant": name,
        "seed": seed,
        "steps": [int(step) for step in psnr.step],
        "psnr": [round(float(value), 4) for value in psnr.value],
        "psnr_input": round(float(blurred.value[-1]), 4),
        "processor_s": taken,
        "cache": _cache_facts(record.first.readings),
    }


def _cache_facts(readings: Any) -> Row | None:
    found = [reading for reading in readings if reading.kind == "cache"]
    return dict(found[-1].values) if found else None


def prepare(group: str, root: Path) -> None:
    """Make what the runs of a group need."""
    if not (root / "clips").exists():
        made = {"train": 4, "test": 2}
        make_clips(root / "clips", clips=made, frames=12, size=(96, 128), seed=0)
    if group == "perceptual" and not (root / "features.pt").exists():
        torch.manual_seed(0)
        torch.save(Features("alexnet", ["relu2"]).state_dict(), root / "features.pt")
    if group == "distill" and not (root / "runs" / "teacher").exists():
        wide = ("model.embed_dims=[24,24,24,24,24,24,24,24]", f"train.steps={4 * EPOCH_STEPS}")
        config = configuration(group, root, wide, "teacher")
        torch.set_num_threads(1)
        TrainingRun(config=config, config_yaml=to_yaml(config), task=build_task(config)).run()
        say("teacher trained")


def sum_up(rows: list[Row], first: str) -> dict[str, Any]:
    """Compare every variant with the first, seed by seed."""
    by_seed = {(row["variant"], row["seed"]): row for row in rows}
    found: dict[str, Any] = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        pairs = [
            (row, by_seed[first, row["seed"]]) for row in own if (first, row["seed"]) in by_seed
        ]
        found[variant] = {
            "gain_db": [round(row["psnr"][-1] - row["psnr_input"], 3) for row in own],
            "gain_db_mean": statistics.mean(row["psnr"][-1] - row["psnr_input"] for row in own),
            "above_input_at": [_first_above(row) for row in own],
            "over_first_db": [round(a["psnr"][-1] - b["psnr"][-1], 3) for a, b in pairs],
            "processor_ratio": [
                round(a["processor_s"] / b["processor_s"], 3)
                for a, b in pairs
                if a["processor_s"] and b["processor_s"]
            ],
        }
    return found


def _first_above(row: Row) -> int | None:
    """Give the first evaluation from which on the restored frames stay above the blurred ones."""
    stays = None
    for step, value in zip(row["steps"], row["psnr"], strict=True):
        if value <= row["psnr_input"]:
            stays = None
        elif stays is None:
            stays = step
    return stays


def measure(options: argparse.Namespace, root: Path) -> None:
    """Train everything of the chosen groups; results of others in the file stay."""
    report: dict[str, Any] = {"groups": {}}
    if options.output is not None and options.output.exists():
        report = json.loads(options.output.read_text())
    report |= {
        "what": "PSNR of restored test frames over steps, generated clips of 96x128",
        "hardware": options.hardware,
        "torch": torch.__version__,
    }
    for group in options.groups:
        prepare(group, root)
        named = variants(group, root)
        calls = [
            (group, root, name, changes, seed)
            for seed in options.seeds
            for name, changes in named.items()
        ]
        rows: list[Row] = []
        beside = run_beside(run, calls, options.jobs) if options.jobs > 1 else starmap(run, calls)
        for row in beside:
            rows = sorted([*rows, row], key=lambda each: (each["seed"], each["variant"]))
            settings = {name: [_portable(c, root) for c in own] for name, own in named.items()}
            report["groups"][group] = {
                "settings": settings,
                "rows": rows,
                "summary": sum_up(rows, next(iter(named))),
            }
            write(report, options.output)
        print(json.dumps({group: report["groups"][group]["summary"]}, indent=1))


def _portable(change: str, root: Path) -> str:
    return change.replace(str(root), "GENERATED")


def plot_starts(rows: list[Row]) -> str:
    """Draw PSNR over steps of the group `start` as SVG: a line a seed, the blurred input dashed."""
    width, height, left, bottom = 640, 360, 56, 44
    most_step = max(step for row in rows for step in row["steps"])
    low, high = 14.0, 25.0

    def place(step: float, psnr: float) -> tuple[float, float]:
        x = left + (width - left - 130) * step / most_step
        return x, (height - bottom) - (height - bottom - 16) * (psnr - low) / (high - low)

    def line(points: list[tuple[float, float]], style: str) -> str:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polyline points="{text}" fill="none" {style}/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for level in range(int(low), int(high) + 1, 2):
        (x0, y), (x1, _) = place(0, level), place(most_step, level)
        parts.append(line([(x0, y), (x1, y)], 'stroke="#e2e2de"'))
        parts.append(f'<text x="{x0 - 8}" y="{y + 4:.1f}" text-anchor="end">{level}</text>')
    for step in range(0, most_step + 1, 20):
        x, y = place(step, low)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{step}</text>')
    blurred = rows[0]["psnr_input"]
    ends = [place(0, blurred), place(most_step, blurred)]
    parts.append(line(ends, 'stroke="#444444" stroke-dasharray="5 4"'))
    for row in rows:
        colour = "#2563eb" if row["variant"] == "identity" else "#dc2626"
        points = [place(s, v) for s, v in zip(row["steps"], row["psnr"], strict=True)]
        parts.append(line(points, f'stroke="{colour}" stroke-width="1.6"'))
    x = place(most_step, low)[0] + 10
    labels = {"identity": ("#2563eb", high - 0.2), "blurred input": ("#444444", blurred - 0.2)}
    labels["random"] = ("#dc2626", 22.2)
    for text, (colour, psnr) in labels.items():
        y = place(0, psnr)[1]
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{text}</text>')
    middle = place(most_step / 2, low)
    parts.append(f'<text x="{middle[0]:.1f}" y="{height - 6}" text-anchor="middle">steps</text>')
    parts.append('<text x="10" y="12">PSNR of test frames, dB</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> None:
    """Train, and write down what was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups", nargs="+", choices=["start", "order", "crops", "distill", "perceptual"]
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--data", type=Path, help="Folder to keep clips and runs in.")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1, help="Runs at the same time.")
    parser.add_argument("--hardware", default="CPU")
    parser.add_argument("--plot", type=Path, help="SVG of the group start, from --output.")
    options = parser.parse_args()
    with data_folder(options.data) as root:
        measure(options, root)
    if options.plot is not None:
        rows = json.loads(options.output.read_text())["groups"]["start"]["rows"]
        options.plot.write_text(plot_starts(rows))


if __name__ == "__main__":
    main()
