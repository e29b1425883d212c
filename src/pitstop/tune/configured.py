"""A study of a configuration: its space on this machine, its journal, and the file it ends in."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from pitstop.config.dump import to_yaml
from pitstop.config.load import load_config
from pitstop.config.problems import ConfigProblems
from pitstop.plan.dry_run.request import Request, trace_all
from pitstop.plan.memory import Gpu, plan_memory
from pitstop.records.store import write_text
from pitstop.records.tuning.study import GainRow, Trial, Tuning
from pitstop.records.units import bytes_text, count_text, seconds_text, speedup_text
from pitstop.records.verify.verification import Claim
from pitstop.tune.cluster import Cluster, ClusterTrials, RepeatedTrials, place_on
from pitstop.tune.journal import JournaledTrials, StudyHead, TrialJournal
from pitstop.tune.knobs import KNOBS, OWN, Choice, Situation
from pitstop.tune.node import NodeTrial, describe_place
from pitstop.tune.space import open_space
from pitstop.tune.trial import ENOUGH_S, EngineTrials, Trials
from pitstop.tune.tuning import TURNS, Budget, Tuner
from pitstop.verify.claims import changed_settings, claim_of
from pitstop.workloads.catalogue import outside_kinds

JOURNAL: Final = "journal.jsonl"
_MEMORY_KEYS: Final = (
    "train.batch_size",
    "train.recompute",
    "train.precision",
    "model.kernels",
    "optimizer.kind",
)
"""What decides how much a step takes."""
_TAKES_MORE: Final = ("train.batch_size", "train.recompute")
"""What may take more than the configuration does; without one of these nothing is planned."""
_ALIKE_IN_PORTIONS: Final = frozenset({"vrt", "vrt_spike"})
"""Models without batch normalisation, and without a loss over pairs of a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRequest:
    """What to tune, and how long."""

    config: Path
    overrides: tuple[str, ...]
    folder: Path
    """Where the journal lies and trials write."""
    allowed: frozenset[Claim]
    """What a change may claim of the arithmetic."""
    steps: int
    """Most of a trial."""
    trial_limit_s: float
    budget: Budget
    enough_s: float = ENOUGH_S
    """Of a trial's steps after the first; with so much it ends before it has all of them."""
    turns: int = TURNS
    """Trials of each row of the table of gains."""
    cluster: Cluster | None = None
    """Where trials run; None for this machine."""


def run_study(study: TuningRequest, progress: Callable[[Trial], None]) -> Tuning:
    """Tune a configuration; trials of an earlier start of the same study are not repeated.

    Raises:
        PitstopError: The configuration is wrong or cannot be measured, or the folder is another's.
    """
    kinds = outside_kinds()
    config = load_config(study.config, study.overrides, kinds=kinds).config
    place = describe_place() if study.cluster is None else place_on(study.cluster)
    situation = Situation(
        config=config, cores=place.cores, has_gpu=place.has_gpu, free_bytes=place.free_bytes
    )
    gpu = Gpu(name=place.gpu_name, num_bytes=place.gpu_bytes) if place.has_gpu else None
    text = to_yaml(config, kinds=kinds)
    head = StudyHead(config=text, steps=study.steps, enough_s=study.enough_s)
    journal = TrialJournal(study.folder / JOURNAL, head)
    trials = _trials(study)
    if gpu is not None:
        trials = FittingTrials(trials=trials, study=study, gpu=gpu)
    journaled = JournaledTrials(journal=journal, trials=trials)
    tuning = Tuner(
        source=str(study.config),
        space=open_space(KNOBS, situation, partial(objection_to, study)),
        claim_of=partial(claim_of_choice, study),
        trials=journaled
        if study.cluster is None
        else RepeatedTrials(trials=journaled, progress=progress),
        budget=study.budget,
        turns=study.turns,
        is_known=journal.has,
        progress=progress,
    ).run()
    return replace(tuning, given=study.overrides)


def _trials(study: TuningRequest) -> Trials:
    if study.cluster is None:
        return EngineTrials(
            config=study.config,
            given=study.overrides,
            folder=study.folder / "trials",
            steps=study.steps,
            enough_s=study.enough_s,
            limit_s=study.trial_limit_s,
        )
    return ClusterTrials(
        cluster=study.cluster,
        asked=NodeTrial(
            config=str(study.config.absolute()),
            given=study.overrides,
            overrides=(),
            steps=study.steps,
            enough_s=study.enough_s,
            limit_s=study.trial_limit_s,
            folder=str(Path.cwd()),
        ),
    )


def write_tuned(tuning: Tuning, study: TuningRequest, path: Path) -> None:
    """Write the tuned configuration, headed by what changed and what each change gained."""
    kinds = outside_kinds()
    loaded = load_config(study.config, (*study.overrides, *tuning.overrides), kinds=kinds)
    body = to_yaml(loaded.config, only=loaded.written, kinds=kinds)
    head = "".join(f"# {line}\n" for line in _head_lines(tuning, study, path))
    write_text(path, f"{head}{body}")


def _head_lines(tuning: Tuning, study: TuningRequest, path: Path) -> list[str]:
    first, *changes = tuning.rows
    lines = [f"{tuning.source}, tuned by measurement: {_pace(first)} at first{_memory(first)}"]
    lines.append(f"measured on {_machine(study)}, in {count_text(len(tuning.trials), 'trial')}")
    lines += [f"  {_change(row)}" for row in changes]
    last = tuning.rows[-1]
    lines.append(f"together {speedup_text(last.cumulative_gain)}, {_pace(last)}{_memory(last)}")
    lines.append("the effective batch is as it was, so the learning rate is too")
    lines.append(f"does it harm? {tuning.verify_command(str(path))}")
    return lines


def _change(row: GainRow) -> str:
    pays = (
        ""
        if row.break_even_steps is None
        else (f", its longer start is paid back after {count_text(row.break_even_steps, 'step')}")
    )
    return (
        f"{' '.join(row.overrides)}: {speedup_text(row.gain)} ({speedup_text(row.gain_low)} to "
        f"{speedup_text(row.gain_high)}), {row.claim}{_memory(row)}{pays}"
    )


def _memory(row: GainRow) -> str:
    held = row.peak_device_bytes
    return "" if held is None else f", {bytes_text(held)} on the device"


def _machine(study: TuningRequest) -> str:
    if study.cluster is not None:
        return "nodes of a cluster"
    place = describe_place()
    cores = count_text(place.cores, "core")
    return f"{place.gpu_name}, {cores}" if place.has_gpu else cores


def _pace(row: GainRow) -> str:
    return "not measured" if math.isnan(row.wall_s) else f"{seconds_text(row.wall_s)} a sample"


def objection_to(study: TuningRequest, choice: Choice) -> str | None:
    """Hold a choice against the configuration's rules and what it may claim."""
    try:
        claim = claim_of_choice(study, choice)
    except ConfigProblems as problems:
        return problems.problems[0].message
    return None if claim in study.allowed else f"changes the {claim}"


@dataclass(slots=True, kw_only=True)
class FittingTrials:
    """Trials of what fits into the GPU by its plan; the others are refused without being run.

    A point is planned as a whole and when it is wanted: what does not fit beside the given settings
    may fit beside better ones, and a plan of a large network takes as long as a short trial.
    """

    trials: Trials
    study: TuningRequest
    gpu: Gpu
    _reasons: dict[tuple[str, ...], str | None] = field(default_factory=dict, init=False)

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try settings, unless they are known not to fit."""
        reason = self._objection(tuple(overrides))
        if reason is not None:
            return Trial(overrides=tuple(overrides), end="out of memory", reason=reason)
        return self.trials.run(overrides)

    def _objection(self, overrides: tuple[str, ...]) -> str | None:
        if not any(one.startswith(_TAKES_MORE) for one in overrides):
            return None
        decisive = tuple(one for one in overrides if one.startswith(_MEMORY_KEYS))
        if decisive not in self._reasons:
            self._reasons[decisive] = _does_not_fit(self.study, self.gpu, overrides)
        return self._reasons[decisive]


def _does_not_fit(study: TuningRequest, gpu: Gpu, choice: Choice) -> str | None:
    overrides = (*study.overrides, *choice)
    [answer] = trace_all([Request(config=str(study.config), overrides=overrides)])
    if answer.trace is None:
        return None  # what cannot be planned is tried
    plan = plan_memory(str(study.config), answer.trace, gpu)
    if plan.fit != "does not fit":
        return None
    return (
        f"does not fit: {bytes_text(plan.peak_bytes)} of {bytes_text(plan.usable_bytes)} "
        "(estimated)"
    )


def claim_of_choice(study: TuningRequest, choice: Choice) -> Claim:
    """Say what a choice claims, as `verify` will hold it to.

    Raises:
        ConfigProblems: The choice does not go together with the configuration.
    """
    kinds = outside_kinds()
    base, changed = (
        load_config(study.config, (*study.overrides, *extra), kinds=kinds).config
        for extra in (OWN, choice)
    )
    sees_micro_batch = base.model.kind not in _ALIKE_IN_PORTIONS
    if base.train.batch_size != changed.train.batch_size and sees_micro_batch:
        return "training"
    return claim_of(changed_settings(base, changed))
