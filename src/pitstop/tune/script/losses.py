"""The losses of a changed script held against those of the untouched one.

What claims the same bits must have them. What changes rounding may move the loss by a quarter of
the distance between two seeds, as `pitstop verify` has it. Where nothing in the script is random, a
stated share of the loss stands for that distance. A dataset that draws random numbers draws others
in a worker: it may move the loss as another seed would.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, Literal

from pitstop.records.tuning.study import Trial
from pitstop.tune.journal import JournaledTrials
from pitstop.tune.script.interventions import claim_of_change
from pitstop.verify.numbers import MOST_RATIO, loss_distance

STATED_SHARE: Final = 0.01
"""Of the mean loss: most that rounding may move it where two seeds give the same losses."""
OTHER_DRAWS: Final = 1.5
"""Distances of two seeds that other random numbers of the dataset may move the loss by."""
_REPEATS: Final = 2.0
"""Distances of two runs of the untouched script that no claim is stricter than."""
_REDRAW: Final = ("loader.workers", "loader.persistent")

Kind = Literal["exact", "rounding", "draws"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMeasure:
    """Losses of the untouched script, and how far apart runs of it are."""

    base: Mapping[int, float | None]
    repeat_distance: float | None
    """Of two runs with the same seed."""
    seed_distance: float | None
    """Of two runs with other seeds."""
    draws: bool
    """Whether the dataset of the training draws random numbers."""

    def judge(self, changes: Sequence[str], losses: Mapping[int, float | None]) -> tuple[bool, str]:
        """Say whether losses are those of the untouched script as far as the changes claim it."""
        distance = loss_distance(self.base, losses)
        kind = self.kind_of(changes)
        if distance is None:
            return kind != "rounding", "the loss was not seen"
        if not distance:
            return True, "same bits"
        limit, said = self._limit(kind)
        share = distance / limit if limit else float("inf")
        if share <= 1:
            return True, f"{share:.2f} of the limit ({said})"
        first = next(step for step, loss in losses.items() if loss != self.base.get(step))
        return False, (
            f"its loss leaves that of the untouched script at step {first} and is "
            f"{distance:.3g} away on average; {said} is {limit:.3g}"
        )

    def kind_of(self, changes: Sequence[str]) -> Kind:
        """Say what changes may do to the loss."""
        names = {word.partition("=")[0] for word in changes}
        if self.draws and names & set(_REDRAW):
            return "draws"
        return "exact" if claim_of_change(changes) == "exact" else "rounding"

    def _limit(self, kind: Kind) -> tuple[float, str]:
        repeats = _REPEATS * (self.repeat_distance or 0.0)
        if kind == "exact":
            return repeats, "the distance of the same bits" if not repeats else "what repeats move"
        seeds = self.seed_distance or 0.0
        if not seeds:
            losses = [abs(loss) for loss in self.base.values() if loss is not None]
            limit, said = STATED_SHARE * fmean(losses), f"the stated {STATED_SHARE:.0%} of the loss"
        elif kind == "draws":
            limit, said = OTHER_DRAWS * seeds, f"{OTHER_DRAWS} distances between two seeds"
        else:
            limit, said = MOST_RATIO * seeds, f"{MOST_RATIO} of the distance between two seeds"
        return (repeats, "what repeats move") if repeats > limit else (limit, said)


@dataclass(slots=True, kw_only=True)
class CheckedTrials:
    """Trials whose losses are held against the untouched script's.

    What is not as claimed was not measured, however fast it is.
    """

    trials: JournaledTrials
    measure: LossMeasure
    untouched: list[Trial] = field(default_factory=list)
    """Trials of the untouched script that were made for the measure, and count as the first."""

    def run(self, overrides: Sequence[str]) -> Trial:
        """Try changes."""
        if not overrides and self.untouched:
            return self.untouched.pop(0)
        trial = self.trials.run(overrides)
        if trial.end != "measured":
            return trial
        is_alike, note = self.measure.judge(overrides, trial.losses)
        if is_alike:
            return replace(trial, loss_note=note)
        return Trial(
            overrides=trial.overrides, end="loss differs", reason=note, took_s=trial.took_s
        )
