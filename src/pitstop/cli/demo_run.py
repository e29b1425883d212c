"""What the demo does, without its text: clips, a slow run, runs in turns, a model, pictures.

DEMO
├── clips                   generated video with spikes beside it
├── slow                    the run that the doctor judges
├── turns/before-1 ...      slow and fixed settings in turns, for the comparison
├── fixed                  trained on with the fixed settings; its pictures are in it
├── before-and-after.html   two turns side by side
└── report.html             the fixed run, with its pictures
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.doctor.facts import facts_of
from pitstop.errors import DataError
from pitstop.records.run import RunRecord
from pitstop.records.store import read_run
from pitstop.train.evaluation.pictures import draw_pictures
from pitstop.train.run import TrainingRun
from pitstop.train.state.weights import read_weights
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.synthetic import MadeClips, make_clips

CLIPS: Final = "clips"
SLOW: Final = "slow"
TURNS: Final = "turns"
FIXED: Final = "fixed"
COMPARED: Final = "before-and-after.html"
REPORT: Final = "report.html"

_OWN: Final = "made-by-pitstop-demo.txt"
_CLIPS: Final = {"train": 2, "test": 1}
_SHOWN_FRAMES: Final = 3

Settings = Mapping[str, Any]

_BASE: Final[Settings] = {
    "data": {
        "crop": 32,
        "eval_crop": 64,
        "clip_len": 2,
        "augment": "none",
        "voxel_bins": 8,
    },
    # The smallest VRT that still is one, with spikes as further channels of its input.
    "model": {
        "kind": "vrt_spike",
        "depths": [2] * 8,
        "embed_dims": [8] * 8,
        "heads": 2,
        "window": [2, 4, 4],
        "indep_reconsts": [],
        "drop_path": 0.0,
        "deformable_groups": 2,
        "fusion": {"kind": "early"},
    },
    "loader": {"workers": 1},
    "train": {"batch_size": 1},
    "optimizer": {"lr": 4e-3, "weight_decay": 1e-4, "lr_multipliers": {"spynet": 0.125}},
    "schedule": {"warmup_steps": 10},
    "eval": {"every_steps": None},
    "checkpoint": {"every_steps": None},
    "log": {"every_steps": 10},
}

_NO_WORKERS: Final = ("loader.workers=0",)
_LOGS: Final = tuple(
    f"log.{kind}=1"
    for kind in ("every_steps", "progress_every_steps", "norm_every_steps", "memory_every_steps")
)

BOTTLENECKS: Final[Mapping[str, tuple[str, ...]]] = {
    "several": (*_NO_WORKERS, "eval.every_steps=5", *_LOGS),
    "data": _NO_WORKERS,
    "evaluation": ("eval.every_steps=5",),
}
"""Slow settings to begin with, by name; the first is what the demo shows unless given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything; by default a few minutes for one core."""

    size: tuple[int, int] = (480, 704)
    """Height and width of a frame: decoding a whole one costs what a crop of it does not need."""
    frames: int = 4
    """Frames of each clip."""
    steps: int = 30
    """Steps of the slow run and of each turn."""
    pairs: int = 3
    learning_steps: int = 240
    """Steps of the run whose frames are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Slow and fixed settings, measured in turns. Seconds a step, what lies between included."""

    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    steps: int
    """Steps of each turn that were counted."""
    largest_difference: float
    """Between weights at the end of two turns of a pair, over all pairs; 0 where bits agree."""

    @property
    def ratios(self) -> tuple[float, ...]:
        """Speed of the fixed run over that of the slow one, pair by pair."""
        return tuple(old / new for old, new in zip(self.before_s, self.after_s, strict=True))


def prepare(folder: Path, scale: Scale) -> MadeClips:
    """Make the demo's folder anew and generate its clips.

    Raises:
        DataError: The folder holds something else, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / _OWN).is_file():
            raise DataError(
                f"{folder} holds files that are not the demo's; name another folder with --output"
            )
        (folder / _OWN).write_text(
            "`pitstop demo` made this folder and replaces what it made when it runs again.\n",
            encoding="utf-8",
        )
        for name in (CLIPS, SLOW, TURNS, FIXED):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in (COMPARED, REPORT):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror}") from error
    return make_clips(folder / CLIPS, clips=_CLIPS, frames=scale.frames, size=scale.size, seed=0)


def configure(place: Path, overrides: Sequence[str], clips: MadeClips, *, steps: int) -> RunConfig:
    """Give the checked configuration of a run in a folder of its own: the base, then overrides."""
    data = {
        "root": clips.root,
        "spike_height": clips.spike_height,
        "spike_width": clips.spike_width,
    }
    own = {
        "run": {"name": place.name, "work_dir": str(place.parent)},
        "data": {**_BASE["data"], **data},
        "train": {**_BASE["train"], "steps": steps},
    }
    return config_from({**_BASE, **own}, overrides).config


def train(config: RunConfig) -> RunRecord:
    """Train with the engine and read the record it left.

    Raises:
        KeyboardInterrupt: A signal ended it before its last step; the engine had saved by then.
    """
    # One thread computes, so that a core is left for the loader's worker where there are two.
    torch.set_num_threads(1)
    run = TrainingRun(config=config, config_yaml=to_yaml(config), task=build_task(config))
    if run.run().status == "interrupted":
        raise KeyboardInterrupt
    return read_run(run.folder)


def train_in_turns(
    clips: MadeClips, slow: Sequence[str], fixed: Sequence[str], scale: Scale
) -> Comparison:
    """Train with slow and with fixed settings in turns, from the same weights on the same data.

    Whoever goes first in one pair goes last in the next, so that a host that becomes slower or
    faster while this runs favours neither.
    """
    folder = Path(clips.root).with_name(TURNS)
    taken: dict[str, list[float]] = {"before": [], "after": []}
    counted, largest = 0, 0.0
    for pair in range(1, scale.pairs + 1):
        sides = [("before", slow), ("after", fixed)]
        for side, overrides in sides if pair % 2 else reversed(sides):
            config = configure(folder / f"{side}-{pair}", overrides, clips, steps=scale.steps)
            facts = facts_of(train(config).first)
            taken[side].append(facts.total_us / facts.steps / 1e6)
            counted = facts.steps
        ends = [folder / f"{side}-{pair}" for side, _ in sides]
        largest = max(largest, largest_difference(*ends))
    return Comparison(
        before_s=tuple(taken["before"]),
        after_s=tuple(taken["after"]),
        steps=counted,
        largest_difference=largest,
    )


def largest_difference(one: Path, other: Path) -> float:
    """Compare the last weights of two runs; 0 where every bit agrees."""
    first, second = (read_weights(folder).tensors for folder in (one, other))
    assert first.keys() == second.keys()
    return max(
        0.0 if torch.equal(first[name], second[name]) else _distance(first[name], second[name])
        for name in first
    )


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def learn(clips: MadeClips, fixed: Sequence[str], scale: Scale) -> RunRecord:
    """Train on with the fixed settings, and restore frames of the clip that was kept back."""
    place = Path(clips.root).with_name(FIXED)
    config = configure(place, fixed, clips, steps=scale.learning_steps)
    record = train(config)
    draw_pictures(config, build_task(config), place, place, count=_SHOWN_FRAMES)
    return record
