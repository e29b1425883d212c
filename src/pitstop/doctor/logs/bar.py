"""The rule about progress bars: does an epoch have as many steps as its bar announces."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from pitstop.doctor.logs.case import LogCase
from pitstop.doctor.logs.numbers import repeated
from pitstop.records.logs.windows import Disagreement
from pitstop.records.verdict import Finding

_DIFFERS = 0.02
_WORTH_A_WARNING = 0.10
_MOST_EPOCHS = 0.8


def bar_disagrees(case: LogCase) -> Finding | None:
    """Report epochs that end before their announced length, or go on after it."""
    found = [
        one
        for one in case.facts.windows.log.disagreements
        if one.code == "fewer steps than announced"
    ]
    evidence = [repeated(one.message, one.times) for one in found]
    ratios = [_ratio(one) for one in found]
    # A reader that found it counted steps by one length and says the other: not a second finding.
    counted = _counted(case) if not found else None
    if counted is not None:
        ratio, message = counted
        ratios.append(ratio)
        evidence.append(message)
    if not evidence:
        return None
    worst = max(abs(ratio - 1) for ratio in ratios)
    ends = "end before" if min(ratios) < 1 else "go on after"
    return Finding(
        code="BAR001",
        severity="warning" if worst >= _WORTH_A_WARNING else "info",
        summary=f"epochs {ends} the announced number of steps",
        evidence=tuple(evidence),
        bound=None,
        remedy=(
            "make len() of the batch sampler the number of batches it yields: progress bars, "
            "schedules and ETAs use it",
            "check which part of the dataset an epoch really samples",
        ),
    )


def _ratio(one: Disagreement) -> float:
    return one.rebuilt / one.printed if one.printed and one.rebuilt is not None else 1.0


def _counted(case: LogCase) -> tuple[float, str] | None:
    """Hold the steps of finished epochs against what was announced, whatever the records cover."""
    table = case.facts.windows
    announced = table.log.steps_per_epoch
    lengths = np.array(list(_epoch_lengths(case)))
    if announced is None or not len(lengths):
        return None
    if (np.abs(lengths / announced - 1) > _DIFFERS).mean() < _MOST_EPOCHS:
        return None
    usual = float(np.median(lengths))
    epochs = "one epoch" if len(lengths) == 1 else f"median of {len(lengths)} epochs"
    message = (
        f"{usual:,.0f} steps per epoch ({epochs}; first step of the next - its own), announced: "
        f"{announced:,}"
    )
    return usual / announced, message


def _epoch_lengths(case: LogCase) -> Iterator[float]:
    """Steps from the first of an epoch to the first of the next, in one attempt.

    Where a log counts steps by the announced length this is that length: no difference shows.
    """
    table = case.facts.windows
    rows = case.facts.training & np.isfinite(table.epoch) & np.isfinite(table.first_step)
    attempt, epoch, first = table.attempt[rows], table.epoch[rows], table.first_step[rows]
    turns = np.flatnonzero(np.diff(epoch) != 0) + 1
    # A resume goes on in the middle of an epoch, so only epochs that began are counted.
    begins = [0, *turns.tolist()] if len(first) and first[0] <= 1 else turns.tolist()
    for begin, end in pairwise(begins):
        if attempt[begin] == attempt[end] and epoch[end] == epoch[begin] + 1:
            yield float(first[end] - first[begin])
