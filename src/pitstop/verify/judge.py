"""From what was measured of two sides to a verdict: which level decides, and what it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pitstop.records.units import count_text, digits
from pitstop.records.verify.checklist import CheckRow
from pitstop.records.verify.quality import NonInferiority, Outcome, TimeToQuality
from pitstop.records.verify.trial import TrialResult
from pitstop.records.verify.verification import (
    ChangedSetting,
    Claim,
    ExactComparison,
    LevelName,
    LevelOutcome,
    LevelResult,
    NumericalComparison,
    Verification,
)

# Of the distance between two seeds: what is below is the same for any purpose.
_LEAST_RATIO: Final = 0.001
_ANY_ORDER: Final = "sums in any order, for a kernel has no deterministic form here"
_NO_CLAIM: Final = "the change does not claim it"
_NOT_LEARNING: Final = (
    "the baseline's own loss does not fall beyond its noise, and two sides that both learn nothing "
    "are equal: train longer"
)
_TRAINING_LOSS: Final = (
    "it is the training loss, for no held-out number was read: a lost augmentation or less "
    "regularisation makes it better"
)
_SAME_RUNS: Final = "every run of both sides prints the same numbers; all of them are one seed"
_ONE_SEED: Final = (
    "every run of a side repeats its first, so all of them are one seed: give each its own by "
    "{seed} in both commands, or do not fix it in the scripts"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that was measured; None where a level was not run."""

    base: str
    candidate: str
    claim: Claim
    changes: tuple[ChangedSetting, ...] = ()
    exact: ExactComparison | None = None
    repeats: bool = True
    """Whether the baseline gives the same bits when it is run again, as far as that was tried."""
    numerical: NumericalComparison | None = None
    in_any_order: bool = False
    """Whether the short runs added up in any order: a kernel has no deterministic form."""
    statistical: NonInferiority | None = None
    learns: bool = True
    """Whether the baseline's own loss falls, as far as it was recorded."""
    one_seed: bool = False
    """Whether all runs of one side repeat its first: so many say no more than one."""
    is_held_out: bool = True
    """Whether the metric is of samples that were not trained on, as far as its name tells."""
    time_to_quality: TimeToQuality | None = None
    worse_checks: tuple[CheckRow, ...] | None = None
    trials: tuple[TrialResult, ...] = ()
    study: str = ""


def has_failed(findings: Findings) -> bool:
    """Whether a level that was run has decided against the candidate."""
    return any(level.outcome == "fails" for level in _levels(findings))


def needs_statistics(findings: Findings) -> bool:
    """Whether the levels so far leave it to the metric: not where bits are equal as claimed."""
    is_same = findings.claim == "exact" and findings.exact is not None and findings.exact.is_equal
    return not is_same and not has_failed(findings)


def broken_trial(findings: Findings) -> TrialResult | None:
    """Give the first trial that did not finish."""
    return next((trial for trial in findings.trials if trial.status != "finished"), None)


def conclude(findings: Findings) -> Verification:
    """Sum up all levels."""
    levels = _levels(findings)
    outcome, message = _conclusion(findings, levels)
    return Verification(
        base=findings.base,
        candidate=findings.candidate,
        outcome=outcome,
        message=message,
        claim=findings.claim,
        changes=findings.changes,
        levels=levels,
        exact=findings.exact,
        numerical=findings.numerical,
        statistical=findings.statistical,
        time_to_quality=findings.time_to_quality,
        worse_checks=findings.worse_checks or (),
        trials=findings.trials,
        study=findings.study,
    )


def _conclusion(findings: Findings, levels: Sequence[LevelResult]) -> tuple[Outcome, str]:
    broken = broken_trial(findings)
    if broken is not None:
        text = f"{broken.label}: {broken.status}: {broken.reason}"
        # A baseline that does not run says nothing of the candidate.
        return ("undecided" if broken.label.startswith("base") else "fails"), text
    failing = next((level for level in levels if level.outcome == "fails"), None)
    if failing is not None:
        return "fails", f"at the {failing.level} level: {failing.message}"
    *before, statistical, _ = levels
    if statistical.outcome == "undecided":
        return "undecided", statistical.message
    passing = [level for level in (*before, statistical) if level.outcome == "passes"]
    if not passing:
        return "undecided", "no level could decide"
    return "passes", f"at the {passing[-1].level} level: {passing[-1].message}"


def _levels(findings: Findings) -> tuple[LevelResult, ...]:
    return (
        _exact_level(findings),
        _numerical_level(findings),
        _statistical_level(findings),
        _checklist_level(findings),
    )


def _exact_level(findings: Findings) -> LevelResult:
    found = findings.exact
    if found is None:
        return _level("exact", "not run", "")
    same = count_text(found.values, "loss and metric value")
    message = f"{found.equal} of {same} are equal to the bit"
    if found.first_difference is not None:
        message += f"; the first that is not: {found.first_difference}"
    if findings.claim != "exact":
        return _level("exact", "not judged", f"{message}; {_NO_CLAIM}")
    if not findings.repeats:
        return _level("exact", "undecided", f"{message}; the baseline does not repeat itself")
    return _level("exact", "passes" if found.is_equal else "fails", message)


def _numerical_level(findings: Findings) -> LevelResult:
    found = findings.numerical
    if found is None:
        return _level("numerical", "not run", "")
    if found.largest is None:
        return _level("numerical", "undecided", "neither losses nor gradients were recorded")
    pieces = []
    if found.gradient_ratios:
        pieces.append(f"gradients {_ratio_text(max(found.gradient_ratios))}")
    if found.loss_ratio is not None:
        pieces.append(f"losses {_ratio_text(found.loss_ratio)}")
    message = f"{', '.join(pieces)} of the distance between two seeds, limit {digits(found.most)}"
    if found.gradient_scale is not None:
        message += f"; the first gradient has {digits(found.gradient_scale)} times the norm"
    if findings.in_any_order:
        message += f"; {_ANY_ORDER}"
    if findings.claim == "training":
        return _level("numerical", "not judged", f"{message}; {_NO_CLAIM}")
    return _level("numerical", "passes" if found.largest <= found.most else "fails", message)


def _ratio_text(ratio: float) -> str:
    return f"below {_LEAST_RATIO}" if ratio < _LEAST_RATIO else digits(ratio)


def _statistical_level(findings: Findings) -> LevelResult:
    found = findings.statistical
    if found is None:
        return _level("statistical", "not run", "")
    message = _SAME_RUNS if findings.one_seed else statistical_message(found)
    is_same = findings.exact is not None and findings.exact.is_equal
    if not findings.is_held_out and not is_same:
        message += f"; {_TRAINING_LOSS}"
    if findings.one_seed and not is_same:
        seen = f"{found.metric} {_gain_text(found, found.gain)}, margin {digits(found.margin)}"
        return _level("statistical", "undecided", f"{_ONE_SEED}; {seen}")
    if found.outcome == "passes" and not findings.learns:
        return _level("statistical", "undecided", f"{_NOT_LEARNING}; {message}")
    return _level("statistical", found.outcome, message)


def statistical_message(found: NonInferiority) -> str:
    """Say gain, margin, certainty, power, and what is missing."""
    seeds = count_text(min(len(found.base), len(found.candidate)), "seed")
    pieces = [
        f"{found.metric} {_gain_text(found, found.gain)} over {seeds} each",
        f"margin {digits(found.margin)} ({found.margin_from})",
    ]
    if found.p_value is not None and found.low is not None:
        bound = "at least" if found.low > 0 else "at most"
        pieces.append(f"with 95 % confidence {bound} {_gain_text(found, found.low)}")
        pieces.append(f"p = {found.p_value:.2g}")
    if found.power is not None:
        pieces.append(f"power {found.power:.0%} (estimated)")
    if found.outcome == "undecided":
        more = "no number of seeds that can be run decides it; widen --margin"
        if len(found.base) < 2:
            more = "one seed decides nothing; give --seeds"
        elif found.more_seeds is not None:
            more = f"about {found.more_seeds} more seeds decide it (estimated)"
        pieces.append(more)
    return "; ".join(pieces)


def _gain_text(found: NonInferiority, gain: float) -> str:
    """Show a gain as far as it matters beside the margin: to a thousandth of it."""
    if abs(gain) < found.margin / 1_000:
        return f"{digits(0)} {'better' if gain > 0 else 'worse'}"
    return f"{digits(abs(gain))} {'better' if gain > 0 else 'worse'}"


def _checklist_level(findings: Findings) -> LevelResult:
    found = findings.worse_checks
    if found is None:
        return _level("checklist", "not run", "")
    if not found:
        return _level(
            "checklist", "passes", "the candidate fails no check that the baseline passes"
        )
    names = ", ".join(f"{row.name} ({row.evidence})" for row in found)
    return _level("checklist", "fails", f"the candidate alone fails: {names}")


def _level(level: LevelName, outcome: LevelOutcome, message: str) -> LevelResult:
    return LevelResult(level=level, outcome=outcome, message=message)
