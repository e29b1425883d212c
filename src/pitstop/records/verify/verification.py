"""Two ways to train held side by side, level by level."""

from dataclasses import dataclass
from typing import Literal

from pitstop.records.verify.checklist import CheckRow
from pitstop.records.verify.quality import NonInferiority, Outcome, TimeToQuality
from pitstop.records.verify.trial import TrialResult

Claim = Literal["exact", "rounding", "training"]
"""What a change says of itself: every bit stays; only rounding differs; it trains differently."""

LevelName = Literal["exact", "numerical", "statistical", "checklist"]
LevelOutcome = Literal["passes", "fails", "undecided", "not judged", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    """One level's answer."""

    level: LevelName
    outcome: LevelOutcome
    """``not judged`` where the change does not claim what the level asks for."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactComparison:
    """Losses and metrics of the same seed, bit by bit."""

    values: int
    """Losses and metrics that both sides have."""
    equal: int
    first_difference: str | None
    """Which value differs first, and what it is on both sides; None where all agree."""

    @property
    def is_equal(self) -> bool:
        """Whether there was something to compare, and all of it agrees."""
        return self.values > 0 and self.equal == self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericalComparison:
    """How far a candidate is from its baseline, over how far another seed is."""

    loss_ratio: float | None
    """Mean distance of the losses, over that between two baseline seeds; None without losses."""
    gradient_ratios: tuple[float, ...]
    """The same of the gradients as the optimizer gets them, step by step."""
    gradient_scale: float | None
    """Norm of the first gradient, over the baseline's."""
    most: float
    """The largest ratio that counts as rounding."""

    @property
    def largest(self) -> float | None:
        """The largest of all ratios; None where nothing could be compared."""
        known = [*self.gradient_ratios, *(() if self.loss_ratio is None else (self.loss_ratio,))]
        return max(known, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """One setting in which the two configurations differ."""

    key: str
    base: str
    candidate: str
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A change, verified."""

    base: str
    """File or command of the baseline."""
    candidate: str
    outcome: Outcome
    message: str
    claim: Claim
    changes: tuple[ChangedSetting, ...]
    levels: tuple[LevelResult, ...]
    exact: ExactComparison | None
    numerical: NumericalComparison | None
    statistical: NonInferiority | None
    time_to_quality: TimeToQuality | None
    worse_checks: tuple[CheckRow, ...]
    """Checks that the candidate fails and the baseline passes."""
    trials: tuple[TrialResult, ...]
    study: str
    """Folder of the journal."""
