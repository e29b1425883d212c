"""A trial of the engine: one configuration with one seed, trained in a process of its own."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final

from pitstop.errors import RecordError
from pitstop.records.run import RankRecord
from pitstop.records.store import read_run
from pitstop.records.verify.quality import QualityPoint
from pitstop.records.verify.trial import TrialEnd, TrialResult
from pitstop.verify.runner import Program

CHILD: Final = "pitstop.verify.engine_child"
CONFIG: Final = "config.yaml"
SETTINGS: Final = "settings.json"
RUN: Final = "run"
METRICS: Final = "metrics.json"
"""Which way each metric improves, as the workload says."""
_EVALUATED: Final = "eval/"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTrial:
    """Trains a configuration."""

    label: str
    config_yaml: str
    """Whole, as loaded: the files it came from may change."""
    overrides: tuple[str, ...] = ()
    gradient_steps: int = 0
    """First steps whose gradients are kept."""
    resume: str | None = None
    """Checkpoint to go on from."""
    repeat: int = 0
    """Counts trials that are alike in everything, such as one to see whether a run repeats."""
    limit_s: float | None = None

    def identity(self) -> dict[str, object]:
        """Give all that decides the result; the limit decides only whether there is one."""
        return {
            "config": self.config_yaml,
            "overrides": list(self.overrides),
            "gradient_steps": self.gradient_steps,
            "resume": self.resume,
            "repeat": self.repeat,
        }

    def program(self, folder: Path) -> Program:
        """Write the configuration, and say how to train it."""
        (folder / CONFIG).write_text(self.config_yaml, encoding="utf-8")
        own = [f"run.work_dir={json.dumps(str(folder))}", f"run.name={RUN}", "checkpoint.dir=null"]
        settings = {
            "overrides": [*self.overrides, *own],
            "gradient_steps": self.gradient_steps,
            "resume": self.resume,
        }
        (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
        return Program(
            arguments=(sys.executable, "-m", CHILD, str(folder)),
            folder=folder,
            limit_s=self.limit_s,
        )

    def read(self, folder: Path, ended: TrialEnd) -> TrialResult:
        """Read the record that the engine wrote, as far as it got."""
        rank: RankRecord | None = None
        notes: tuple[str, ...] = ()
        try:
            rank = read_run(folder / RUN).first
        except RecordError as error:
            notes = (str(error),)
        kept = len(list(folder.glob("gradients-*.npz")))
        status, reason = ended.status, ended.reason
        if status == "finished" and rank is not None and (what := _not_finite(rank)):
            status, reason = "not finite", what
        return TrialResult(
            label=self.label,
            status=status,
            reason=reason,
            wall_s=ended.wall_s,
            effective_batch=None if rank is None else _samples_of_a_step(rank),
            losses={} if rank is None else rank.losses,
            metrics={} if rank is None else _metrics(rank),
            higher_is_better=_directions(folder / METRICS),
            gradient_steps=kept,
            notes=notes,
        )


def _not_finite(rank: RankRecord) -> str:
    """Name a loss or metric whose last value is not finite; empty where there is none."""
    bad = [
        name
        for name, series in rank.scalars.items()
        if name == "loss" or name.startswith(_EVALUATED)
        if len(series.value) and not isfinite(series.value[-1])
    ]
    return f"the last {bad[0].removeprefix(_EVALUATED)} is not a finite number" if bad else ""


def _directions(path: Path) -> dict[str, bool]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it ended before it came so far
        return {}


def _samples_of_a_step(rank: RankRecord) -> int | None:
    found = [block for block in rank.blocks if block.samples is not None]
    if not found or not found[0].wall.count:
        return None
    return round((found[0].samples or 0) / found[0].wall.count) * rank.attempts[-1].world_size


def _metrics(rank: RankRecord) -> Mapping[str, tuple[QualityPoint, ...]]:
    """Give every metric at every evaluation, with the time that had gone by when it began."""
    table = rank.steps
    first_us = int(table.start_us[0]) if table is not None and len(table) else 0
    at_us = [event.start_us - first_us for event in rank.events if event.name == "evaluation"]
    batch = _samples_of_a_step(rank)
    found: dict[str, tuple[QualityPoint, ...]] = {}
    for name, series in rank.scalars.items():
        if not name.startswith(_EVALUATED):
            continue
        pairs = zip(series.step.tolist(), series.value.tolist(), at_us, strict=False)
        found[name.removeprefix(_EVALUATED)] = tuple(
            QualityPoint(
                step=int(step),
                samples=None if batch is None else int(step) * batch,
                wall_s=us / 1e6,
                value=value,
            )
            for step, value, us in pairs
            if isfinite(value)
        )
    return found
