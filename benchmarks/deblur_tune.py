r"""Tunes the guides' deblurring run on a GPU, then holds what was found against what people know.

    python -m benchmarks.deblur_tune --folder FOLDER --seconds 525 --search-minutes 6
    python -m benchmarks.deblur_tune --folder FOLDER --seconds 525 --search-minutes 0.02

The run is `configs/deblur/baseline.yaml` as the guides began: float32, a batch of 1, everything
recomputed, plain kernels; six frames of 256x256 on generated clips. Three samples make an update
instead of six, so that the slowest trial is half as long. The VGG16 of the loss has random weights:
what it takes is the same.

Everything lies in FOLDER, and the same command goes on there: the study has its journal, so have
the turns. First fused kernels are compiled once. After `pitstop tune` come turns of the given
configuration, the tuned one, and the best one known by hand (bf16, fused kernels, nothing
recomputed, the largest batch that divides the update and fits); then `pitstop verify` at its
numerical level, which must end within its call. `--smoke` does all of it at the smallest size, on a
CPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import yaml
from torch import nn

from pitstop.records.store import to_dict
from pitstop.tune.trial import EngineTrials
from pitstop.workloads.deblur.model.features import Features

CONFIGS: Final = Path(__file__).parent.parent / "configs" / "deblur"
GUIDES: Final[dict[str, Any]] = {
    "base": str(CONFIGS / "baseline.yaml"),
    "run": {"name": "guides"},
    "data": {"root": "data", "clip_len": 6, "eval_crop": 256},
    "model": {"window": [6, 8, 8], "kernels": "reference"},
    "train": {"batch_size": 1, "accumulate": 3, "precision": "fp32", "recompute": "full"},
    "loss": {"perceptual": {"weights": "vgg16.pth"}},
    "eval": {"tile": None},
}
SMOKE: Final[dict[str, Any]] = {
    "base": str(CONFIGS / "demo.yaml"),
    "run": {"name": "guides"},
    "data": {"root": "data"},
    "model": {"kernels": "reference"},
    "train": {"batch_size": 1, "accumulate": 3, "precision": "fp32", "recompute": "full"},
    "eval": {"every_steps": 2000},
    "checkpoint": {"every_steps": 500},
}
HAND: Final = (
    "train.precision=bf16",
    "model.kernels=fused",
    "train.recompute=none",
    "train.batch_size=3",
    "train.accumulate=1",
)
SMOKE_HAND: Final = (
    "train.precision=bf16",
    "train.recompute=none",
    "train.batch_size=3",
    "train.accumulate=1",
)
SIZES: Final = {False: "256x320", True: "48x64"}
TURNS: Final = 3
BASE_TURNS: Final = 2
"""A turn of the given configuration is as long as several of the others."""
TURN_S: Final = 6.0
"""Of steps of a trial in the turns."""
TRIAL_S: Final = 8.0
"""Of steps of a trial of the study."""
CHECKED_STEPS: Final = 3
FIXED: Final = ("model.drop_path=0", "schedule.warmup_steps=0")
"""On both sides of the verification: other batches draw other branches, and its runs are short."""


def prepare(folder: Path, *, smoke: bool) -> None:
    """Write configuration, clips and weights, where they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "guides.yaml").write_text(yaml.safe_dump(SMOKE if smoke else GUIDES))
    if not (folder / "data").exists():
        words = ["data", "make", "deblur", "data", "--train-clips", "3", "--test-clips", "1"]
        run(folder, [*words, "--frames", "10", "--size", SIZES[smoke]], limit_s=200)
    torch.manual_seed(0)
    network = Features("vgg16", ("relu3_3",))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    torch.save(network.state_dict(), folder / "vgg16.pth")


def warm_up(folder: Path, *, smoke: bool) -> None:
    """Have fused kernels compiled before trials with a limit of time ask for them."""
    given = (*HAND[:3], *FIXED, "train.steps=2", "train.epochs=null", "run.name=warm")
    kept = Path(os.environ.get("TRITON_CACHE_DIR", "~/.triton/cache")).expanduser()
    if not smoke and not (kept.exists() and any(kept.iterdir())):
        run(folder, ["train", "guides.yaml", *given], limit_s=170)


def run(folder: Path, words: Sequence[str], *, limit_s: float) -> int | None:
    """Run a command of ours in the folder, its output beside ours; None where it took too long."""
    command = [sys.executable, "-m", "pitstop", *words]
    print("$ pitstop", *words, f"(at most {limit_s:.0f} s)", flush=True)
    with subprocess.Popen(command, cwd=folder, start_new_session=True) as started:
        try:
            return started.wait(max(1.0, limit_s))
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
    return None


def tune(folder: Path, options: argparse.Namespace, limit_s: float) -> bool:
    """Run or go on with the study; say whether it has ended."""
    words = ["tune", "guides.yaml", "-o", "tuned.yaml", "--json", "tuning.json"]
    words += ["--page", "tuning.html", "--work-dir", "study", "--trials", str(options.trials)]
    words += ["--minutes", str(options.search_minutes), "--trial-minutes", "2"]
    words += ["--seconds", str(options.trial_s), "--turns", str(options.table_turns)]
    return run(folder, words, limit_s=limit_s) == 0


def take_turns(
    folder: Path, options: argparse.Namespace, report: dict[str, Any], most: int
) -> None:
    """Measure the given configuration, the tuned one and that known by hand in turns."""
    tuned = tuple(report["tuning"]["overrides"])
    sides = {"given": (), "tuned": tuned, "by_hand": SMOKE_HAND if options.smoke else HAND}
    trials = EngineTrials(
        config=folder / "guides.yaml",
        given=(),
        folder=folder / "turns",
        steps=40,
        limit_s=150.0,
        enough_s=TURN_S,
    )
    turns = report.setdefault("turns", [])
    while len(turns) < most:
        names = [name for name in sides if name != "given" or len(turns) < BASE_TURNS]
        turn: dict[str, Any] = {}
        for name in names if len(turns) % 2 == 0 else reversed(names):
            if time.monotonic() > options.end_s:
                return
            trial = trials.run(sides[name])
            turn[name] = to_dict(trial)
            print(f"  turn {len(turns) + 1}, {name}: {trial.wall_s} s a sample {trial.reason}")
        turns.append(turn)
        keep(folder, report)


def sum_up(report: dict[str, Any]) -> None:
    """Say how fast the tuned configuration is, beside the given one and the one known by hand."""
    for name in ("given", "by_hand"):
        ratios = [
            turn[name]["wall_s"] / turn["tuned"]["wall_s"]
            for turn in report.get("turns", [])
            if name in turn and turn[name].get("wall_s") and turn["tuned"].get("wall_s")
        ]
        if ratios:
            report[f"times_as_fast_as_{name}"] = {
                "median": median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }


def verify(folder: Path, options: argparse.Namespace) -> None:
    """Hold the tuned configuration against the given one, by losses and gradients."""
    words = ["verify", "guides.yaml", "tuned.yaml", *FIXED, "--numbers-only"]
    words += ["--check-steps", str(CHECKED_STEPS), "--limit", "150"]
    words += ["--study", "verification", "--json", "verification.json"]
    run(folder, words, limit_s=options.end_s - time.monotonic())


def keep(folder: Path, report: dict[str, Any]) -> None:
    """Write what is known so far."""
    sum_up(report)
    part = folder / "report.part"
    part.write_text(f"{json.dumps(report, indent=1)}\n", encoding="utf-8")
    part.replace(folder / "report.json")


def read(path: Path) -> Any:
    """Read what a command wrote; None where it did not."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def main() -> None:
    """Go on wherever the study stands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560.0, help="For all of it.")
    parser.add_argument("--search-minutes", type=float, default=7.0)
    parser.add_argument("--trials", type=int, default=18)
    parser.add_argument("--trial-s", type=float, default=TRIAL_S)
    parser.add_argument("--table-turns", type=int, default=1)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    options.end_s = time.monotonic() + options.seconds
    folder = options.folder.absolute()
    prepare(folder, smoke=options.smoke)
    os.chdir(folder)  # paths of the configuration begin there
    report = read(folder / "report.json") or {}
    report |= {
        "what": "the guides' deblurring run, tuned by pitstop tune",
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
    }
    begun_s = time.monotonic()
    warm_up(folder, smoke=options.smoke)
    report.setdefault("compiled_kernels_s", round(time.monotonic() - begun_s, 1))
    begun_s = time.monotonic()
    done = (folder / "tuning.json").exists() or tune(
        folder, options, options.end_s - time.monotonic()
    )
    report["tuning_took_s"] = [
        *report.get("tuning_took_s", []),
        round(time.monotonic() - begun_s, 1),
    ]
    journal = (folder / "study" / "guides" / "journal.jsonl").read_text(encoding="utf-8")
    lines = journal[: journal.rfind("\n")].split("\n")
    report["journal"] = [json.loads(line) for line in lines[1:]]
    if done:
        report["tuning"] = read(folder / "tuning.json")
        keep(folder, report)
        take_turns(folder, options, report, BASE_TURNS)
        if (
            time.monotonic() < options.end_s - 150 * (not options.smoke)
            and (folder / "tuned.yaml").exists()
        ):
            verify(folder, options)
        report["verification"] = read(folder / "verification.json")
        take_turns(folder, options, report, TURNS)
    keep(folder, report)
    shown = {name: report[name] for name in report if name.startswith("times_as_fast")}
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
