"""The engine in the demo: clips, a slow run, runs in turns, a model, pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pitstop.cli.demo.folder import CLIPS, FIXED, TURNS
from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.doctor.pairs import PairedRuns, judge_pairs
from pitstop.records.run import RunRecord
from pitstop.records.store import read_run
from pitstop.train.evaluation.pictures import draw_pictures
from pitstop.train.run import TrainingRun
from pitstop.train.state.weights import read_weights
from pitstop.workloads.catalogue import build_task
from pitstop.workloads.deblur.synthetic import MadeClips, make_clips

_CLIPS: Final = {"train": 2, "test": 1}
_SHOWN_FRAMES: Final = 3

Settings = Mapping[str, Any]

_BASE: Final[Settings] = {
    "data": {"crop": 32, "eval_crop": 64, "clip_len": 2, "augment": "none", "voxel_bins": 8},
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
    learning_steps: int = 160
    """Steps of the run whose frames are shown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineTurns:
    """Slow and fixed settings, measured in turns."""

    pairs: PairedRuns
    largest_difference: float
    """Between weights at the end of two turns of a pair, over all pairs; 0 where bits agree."""


def generate_clips(demo: Path, scale: Scale) -> MadeClips:
    """Generate what the engine trains on."""
    return make_clips(demo / CLIPS, clips=_CLIPS, frames=scale.frames, size=scale.size, seed=0)


def slow_run(clips: MadeClips, slow: Sequence[str], scale: Scale) -> RunConfig:
    """Give the configuration of the run that is judged: the first of those in turns."""
    place = Path(clips.root).with_name(TURNS) / "before-1"
    return configure(place, slow, clips, steps=scale.steps)


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
) -> EngineTurns:
    """Train with slow and with fixed settings in turns, from the same weights on the same data.

    Whoever goes first in one pair goes last in the next, so that a host that becomes slower or
    faster while this runs favours neither. The run that was judged is the first of them.
    """
    folder = Path(clips.root).with_name(TURNS)
    pairs = [(folder / f"before-{n}", folder / f"after-{n}") for n in range(1, scale.pairs + 1)]
    for place, (before, after) in enumerate(pairs):
        sides = [(before, slow), (after, fixed)]
        for turn, overrides in reversed(sides) if place % 2 else sides:
            if not turn.is_dir():
                train(configure(turn, overrides, clips, steps=scale.steps))
    largest = max(largest_difference(before, after) for before, after in pairs)
    return EngineTurns(
        pairs=judge_pairs([(read_run(before), read_run(after)) for before, after in pairs]),
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
