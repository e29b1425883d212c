"""One short run of somebody's script with some things changed; whatever becomes of it is a result.

The command is run as it stands, in its own process group and environment, with the probe in it: the
probe changes what is wanted, times the steps, keeps every loss and ends the script after its steps.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.doctor.judge import JudgedRun, judge_run
from pitstop.errors import PitstopError
from pitstop.measure.script.launch import (
    Interventions,
    first_failure,
    probe_environment,
    seen_without_steps,
)
from pitstop.measure.script.record_folder import ENDED_BY_US
from pitstop.measure.script.sites import Sites, read_sites, with_training
from pitstop.records.script import Compiled, Owners, Setup
from pitstop.records.store import write_json
from pitstop.records.tuning.script import Advice, LoaderSite, ScriptSeen
from pitstop.records.tuning.study import Trial
from pitstop.records.verdict import Finding
from pitstop.tune.script.interventions import ENVIRONMENT, VARIABLES
from pitstop.tune.trial import folder_of_trial, promises_of
from pitstop.verify.runner import ChildRunner, Program, Runner

SEED: Final = "seed"
"""Setting of a trial that changes nothing but random numbers: what is added to every seed."""

_FEWEST_STEPS: Final = 8
"""After warm-up; with fewer a mean is the whim of one step."""
_BLOCK: Final = 8
"""Steps of a block."""
_LINE_OF_CODE: Final = re.compile(r"[\w./+-]+\.py:\d+")
_NOTED_WHEN_CALLED: Final = ("autocast", "channels_last")
_MOST_REASON: Final = 300
_NO_STEP: Final = "it ended, and no optimizer of torch's had made a step"
_NOT_LOADED: Final = (
    "it ended, and no Python process in it finished importing torch, or the probe was not loaded: "
    "-I, -E, -S or a PYTHONPATH of the command's own leaves it out"
)


@dataclass(slots=True, kw_only=True)
class ScriptTrials:
    """Trials of one command, one after the other on this machine."""

    command: tuple[str, ...]
    folder: Path
    """Where trials write; each removes what it wrote."""
    seen_path: Path
    """Where what the untouched script builds is kept."""
    steps: int
    """Measured steps of a trial, beside those of warm-up."""
    limit_s: float
    memory_limit_bytes: int | None
    loaders: tuple[str, ...] | None = None
    """Lines whose loaders feed the training; None while nobody knows."""
    runner: Runner = field(default_factory=ChildRunner)
    _count: int = field(default=0, init=False)

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try changes."""
        self._count += 1
        with folder_of_trial(self.folder.absolute(), self._count) as place:
            return self._run(tuple(overrides), place)

    def _run(self, overrides: tuple[str, ...], place: Path) -> Trial:
        record = place / "record"
        record.mkdir()
        variables, interventions = _divided(overrides, self.loaders)
        with probe_environment(
            self.command, record, steps=self.steps, loss_every=1, interventions=interventions
        ) as environment:
            program = Program(
                arguments=self.command,
                folder=place,
                limit_s=self.limit_s,
                environment={**environment, **variables},
                memory_limit_bytes=self.memory_limit_bytes,
            )
            ended = self.runner.run(program)
        if ended.status == "finished" or (record / ENDED_BY_US).exists():
            trial = self._read(record, overrides)
        else:
            reason = (first_failure(record) or ended.reason)[:_MOST_REASON]
            if ended.status == "timed out" and not any(record.glob("rank-*")):
                reason += ", before a step of an optimizer of torch's was seen"
            trial = Trial(overrides=overrides, end=ended.status, reason=reason)
        return replace(trial, took_s=ended.wall_s)

    def _read(self, record: Path, overrides: tuple[str, ...]) -> Trial:
        try:
            judged = judge_run(record)
        except PitstopError as error:
            reason = _NO_STEP if seen_without_steps(record) else _NOT_LOADED
            if any(record.glob("rank-*")):
                reason = f"no training seen: {error}"
            return Trial(overrides=overrides, end="refused", reason=reason)
        facts, sites = judged.facts, read_sites(record)
        if facts is None or facts.steps < _FEWEST_STEPS:
            steps = 0 if facts is None else facts.steps
            reason = (
                f"{steps} steps after warm-up are too few to measure; {_FEWEST_STEPS} are needed"
            )
            return Trial(overrides=overrides, end="refused", reason=reason)
        missing = _without_effect(overrides, sites, facts)
        if missing:
            reason = f"nothing in the script took {', '.join(missing)}"
            return Trial(overrides=overrides, end="refused", reason=reason)
        losses = judged.rank.losses
        bad = next((step for step, loss in losses.items() if loss is None), None)
        if bad is not None:
            reason = f"the loss of step {bad} is not finite"
            return Trial(overrides=overrides, end="not finite", reason=reason)
        if not overrides and not self.seen_path.exists():  # a study that goes on tries the same
            write_json(_seen(facts, sites, judged), self.seen_path)
        return replace(_measured(overrides, facts, judged), losses=losses, changed=sites.changed)


def _divided(
    overrides: Sequence[str], loaders: tuple[str, ...] | None
) -> tuple[dict[str, str], Interventions]:
    """Divide changes into variables of the environment and what the probe does."""
    words = [word.partition("=")[::2] for word in overrides]
    variables = {
        name.removeprefix(ENVIRONMENT): value
        for name, value in words
        if name.startswith(ENVIRONMENT)
    }
    inside = tuple(f"{name}={value}" for name, value in words if _is_inside(name))
    seed = next((int(value) for name, value in words if name == SEED), 0)
    # The order of sets is random otherwise, and the same in all trials of a user who chose one.
    variables.setdefault("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", "0"))  # noqa: TID251
    return variables, Interventions(changes=inside, loaders=loaders, seed=seed)


def _is_inside(name: str) -> bool:
    return name != SEED and not name.startswith(ENVIRONMENT)


def _without_effect(overrides: Sequence[str], sites: Sites, facts: Facts) -> list[str]:
    """Name changes that nothing in the script took, so that their time says nothing of them."""
    noted = {one.change for one in sites.changed}
    names = {word.partition("=")[0] for word in overrides}
    compiled = facts.readings.last(Compiled)
    was_compiled = compiled is not None and compiled.graphs > 0
    missing = [word for word in overrides if _is_inside(word.partition("=")[0])]
    missing = [word for word in missing if word not in noted]
    if "compile" in names:
        # A compiled call cannot note anything.
        missing = [w for w in missing if w.partition("=")[0] not in _NOTED_WHEN_CALLED]
        missing += [] if was_compiled else ["compile"]
    return missing


def usual_us(steps_us: Sequence[float]) -> float:
    """Give the usual time of a step: the median over blocks of a few.

    Whatever else the machine does comes in bursts, which a mean over all steps takes in. Workers
    bring a few batches at once, which a median over single steps would not see.
    """
    blocks = [steps_us[at : at + _BLOCK] for at in range(0, len(steps_us), _BLOCK)]
    whole = [block for block in blocks if len(block) == _BLOCK]
    return median(fmean(block) for block in whole or blocks)


def _measured(overrides: tuple[str, ...], facts: Facts, judged: JudgedRun) -> Trial:
    wait_us = facts.mean_part_us("data")
    step_us, mean_us = usual_us(facts.wall_us.tolist()), float(facts.wall_us.mean())
    outside_us = facts.total_us / facts.steps - mean_us
    owners = facts.readings.last(Owners)
    return Trial(
        overrides=overrides,
        end="measured",
        wall_s=(step_us + outside_us) / 1e6,
        compute_s=step_us * (1 - wait_us / mean_us) / 1e6,
        samples=1.0,
        promises=promises_of(judged.verdict.findings),
        peak_device_bytes=None if owners is None else owners.reserved_bytes,
        start_s=facts.first_us / 1e6,
    )


def _seen(facts: Facts, sites: Sites, judged: JudgedRun) -> ScriptSeen:
    setup = facts.setup
    given = [name for name in VARIABLES if name in os.environ]  # noqa: TID251 - of the user's
    findings = [each for each in judged.verdict.findings if each.severity != "info"]
    return ScriptSeen(
        device=None if setup is None else setup.device,
        threads=1 if setup is None else setup.threads,
        autocast=None if setup is None else setup.autocast,
        is_compiled=setup is not None and setup.compiled,
        loaders=_training(sites, setup),
        optimizers=sites.optimizers,
        models=sites.models,
        own_threads=sites.own_threads,
        anomaly_detection=sites.anomaly_detection,
        environment=tuple(given),
        findings=tuple(_advice(each) for each in findings),
    )


def _training(sites: Sites, setup: Setup | None) -> tuple[LoaderSite, ...]:
    return sites.loaders if setup is None else with_training(sites.loaders, setup)


def _advice(finding: Finding) -> Advice:
    text = " ".join((finding.summary, *finding.evidence, *finding.remedy))
    return Advice(
        code=finding.code,
        summary=finding.summary,
        remedy=finding.remedy[0] if finding.remedy else "",
        places=tuple(dict.fromkeys(_LINE_OF_CODE.findall(text))),
    )
