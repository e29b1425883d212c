"""Two configurations verified, level by level; it stops as soon as a level has decided."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pitstop.config.dump import to_yaml
from pitstop.config.load import load_config
from pitstop.config.sections import RunConfig
from pitstop.errors import PitstopError, RecordError
from pitstop.records.verify.checklist import CheckRow, check_row
from pitstop.records.verify.trial import TrialResult
from pitstop.records.verify.verification import Verification
from pitstop.verify.checks import check_run, falls
from pitstop.verify.claims import changed_settings, claim_of
from pitstop.verify.engine_trial import RUN, EngineTrial
from pitstop.verify.judge import Findings, broken_trial, conclude, has_failed, needs_statistics
from pitstop.verify.margins import choose_question
from pitstop.verify.noninferiority import judge_noninferiority
from pitstop.verify.numbers import compare_exactly, compare_numerically, read_gradients
from pitstop.verify.study import Study
from pitstop.verify.time_to_quality import time_to_quality
from pitstop.workloads.catalogue import outside_kinds

GRADIENT_STEPS: Final = 3
"""First updates whose gradients are compared: later ones are of weights that have moved apart."""

_SEED, _OTHER_SEED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to verify, and how long."""

    base: Path
    candidate: Path
    overrides: tuple[str, ...] = ()
    """Settings laid over both."""
    seeds: int = 5
    steps: int | None = None
    """Length of a statistical run; None for what the configuration says."""
    check_steps: int = 30
    """Length of the runs of the exact and numerical levels."""
    metric: str | None = None
    margin: float | None = None
    limit_s: float | None = None
    numbers_only: bool = False
    """Whether to leave out the statistical level and the checklist, which take whole runs."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two configurations, as a trial with any seed."""

    name: str
    config: RunConfig
    trial: EngineTrial

    def seeded(self, seed: int, what: str, *overrides: str) -> EngineTrial:
        return replace(
            self.trial,
            label=f"{self.name}, seed {seed}, {what}",
            overrides=(f"run.seed={seed}", *overrides),
        )


class _Verifier:
    """Runs levels in order and keeps what they found."""

    def __init__(self, wanted: Wanted, study: Study) -> None:
        self._wanted = wanted
        self._study = study
        self._base = _side("base", wanted.base, wanted)
        self._candidate = _side("candidate", wanted.candidate, wanted)
        changes = changed_settings(self._base.config, self._candidate.config)
        self.findings = Findings(
            base=str(wanted.base),
            candidate=str(wanted.candidate),
            claim=claim_of(changes),
            changes=changes,
            study=str(study.folder),
        )

    def check_numbers(self) -> None:
        """Run the exact and the numerical level, on short runs in deterministic mode."""
        base = self._run(self._short(self._base))
        if self.findings.claim != "exact" and _lacks_deterministic_kernels(base):
            self._found(trials=(), in_any_order=True)
            base = self._run(self._short(self._base))
        candidate = self._run(self._short(self._candidate))
        if self._is_broken:
            return
        exact = compare_exactly(base, candidate)
        self._found(exact=exact)
        if exact.is_equal:
            return
        if self.findings.claim == "exact":
            again = self._run(replace(self._short(self._base), label="base, again", repeat=1))
            self._found(repeats=compare_exactly(base, again).is_equal)
            if self.findings.repeats:
                return
        other = self._run(self._short(self._base, _OTHER_SEED))
        if not self._is_broken:
            trials = (
                self._short(self._base),
                self._short(self._candidate),
                self._short(self._base, _OTHER_SEED),
            )
            kept = [
                read_gradients(self._study.folder_of(trial), self._run(trial).gradient_steps)
                for trial in trials
            ]
            compared = compare_numerically(base, candidate, other, (kept[0], kept[1], kept[2]))
            self._found(numerical=compared)

    def check_quality(self) -> None:
        """Run the statistical level: seed after seed, both sides."""
        sides: tuple[list[TrialResult], list[TrialResult]] = ([], [])
        for seed in range(self._wanted.seeds):
            for results, side in zip(sides, (self._base, self._candidate), strict=True):
                results.append(self._run(self._long(side, seed)))
                if self._is_broken:
                    return
        first, second = sides
        config = self._candidate.config
        question = choose_question(
            _directions(first[0]),
            metric=self._wanted.metric or config.checkpoint.best_of,
            margin=self._wanted.margin,
            is_full=self._wanted.steps is None,
        )
        values = [[_value(run, question.metric) for run in side] for side in sides]
        test = judge_noninferiority(question, *values)
        self._found(
            statistical=test,
            learns=any(falls(run.losses.values()) for run in first),
            time_to_quality=time_to_quality(test, first, second),
        )

    def check_rows(self) -> None:
        """Hold the candidate's checklist against the baseline's, and resume the candidate."""
        trials = [self._short(self._base), self._short(self._candidate)]
        if self.findings.statistical is not None:
            trials = [self._long(self._base, _SEED), self._long(self._candidate, _SEED)]
        base, candidate = (self._rows(trial) for trial in trials)
        worse = [
            row
            for name, row in candidate.items()
            if row.standing == "fail" and name in base and base[name].standing != "fail"
        ]
        resumed = self._resumed()
        worse += [] if resumed is None or resumed.standing != "fail" else [resumed]
        self._found(worse_checks=tuple(worse))

    def _rows(self, trial: EngineTrial) -> dict[str, CheckRow]:
        try:
            rows = check_run(self._study.folder_of(trial) / RUN, {}).rows
        except RecordError:
            return {}
        return {row.name: row for row in rows}

    def _resumed(self) -> CheckRow | None:
        """Resume the candidate from the middle of its short run; its losses must be the same."""
        if self.findings.in_any_order:
            return None  # what is made again differs anyway
        whole = self._short(self._candidate)
        saves = sorted((self._study.folder_of(whole) / RUN / "checkpoints").glob("save-*"))
        if len(saves) < 2:
            return None
        trial = replace(whole, label="candidate, resumed", resume=str(saves[0]), gradient_steps=0)
        before, after = self._run(whole), self._run(trial)
        different = sum(before.losses.get(step) != loss for step, loss in after.losses.items())
        return check_row(
            "resumes",
            float(different) if after.losses else None,
            "steps",
            target=0,
            at_most=True,
            evidence=f"{len(after.losses)} steps after {saves[0].name} were made again; "
            f"the losses of {different} differ",
        )

    def _short(self, side: _Side, seed: int = _SEED) -> EngineTrial:
        steps = self._wanted.check_steps
        settings = (
            f"run.deterministic={str(not self.findings.in_any_order).lower()}",
            *_steps(steps),
            "log.every_steps=1",
            f"checkpoint.every_steps={max(1, steps // 2)}",
        )
        trial = side.seeded(seed, f"{steps} steps", *settings)
        return replace(trial, gradient_steps=GRADIENT_STEPS)

    def _long(self, side: _Side, seed: int) -> EngineTrial:
        steps = self._wanted.steps
        return side.seeded(seed, "whole run", *(() if steps is None else _steps(steps)))

    def _run(self, trial: EngineTrial) -> TrialResult:
        """Run a trial, unless this verification already has: labels tell them apart."""
        known = next((one for one in self.findings.trials if one.label == trial.label), None)
        if known is not None:
            return known
        result = self._study.result(trial)
        self._found(trials=(*self.findings.trials, result))
        return result

    @property
    def _is_broken(self) -> bool:
        return broken_trial(self.findings) is not None

    def _found(self, **found: object) -> None:
        self.findings = replace(self.findings, **found)


def verify_configs(wanted: Wanted, study: Study) -> Verification:
    """Hold a candidate configuration against a baseline.

    Raises:
        PitstopError: A configuration cannot be used, or nothing says which metric decides.
    """
    verifier = _Verifier(wanted, study)
    verifier.check_numbers()
    if wanted.numbers_only:
        return conclude(verifier.findings)
    if broken_trial(verifier.findings) is None and needs_statistics(verifier.findings):
        verifier.check_quality()
    if broken_trial(verifier.findings) is None and not has_failed(verifier.findings):
        verifier.check_rows()
    return conclude(verifier.findings)


def _side(name: str, path: Path, wanted: Wanted) -> _Side:
    kinds = outside_kinds()
    config = load_config(path, wanted.overrides, kinds=kinds).config
    text = to_yaml(config, kinds=kinds)
    return _Side(name, config, EngineTrial(label=name, config_yaml=text, limit_s=wanted.limit_s))


def _lacks_deterministic_kernels(result: TrialResult) -> bool:
    """Whether torch refused an operation that has no deterministic form on this device."""
    return result.status == "crashed" and "deterministic" in result.reason


def _steps(steps: int) -> Sequence[str]:
    return (f"train.steps={steps}", "train.epochs=null")


def _value(run: TrialResult, metric: str) -> float:
    value = run.final(metric)
    if value is None:
        raise PitstopError(f"{run.label} has no {metric}, though others of its kind have it")
    return value


def _directions(result: TrialResult) -> dict[str, bool]:
    """Metrics that a run has, and which way each improves."""
    return {
        name: result.higher_is_better[name]
        for name, points in result.metrics.items()
        if points and name in result.higher_is_better
    }
