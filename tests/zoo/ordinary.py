"""Parts of the steps that held nothing but a step, by what the doctor recorded.

A stopwatch gives the parts of ordinary steps. In a step that an evaluation fell into, all weights
may be copied to the host as well: those belong on neither side, or on both.
"""

import numpy as np

from pitstop.doctor.facts import facts_of
from pitstop.doctor.sampled import Sample, estimate, window_weights
from pitstop.records.run import RankRecord

FEWEST = 4
"""Where ordinary steps are fewer than one in so many, all count: the rule of the stopwatch."""


def ordinary_shares(rank: RankRecord) -> dict[str, float]:
    """Share of each part in the wall clock of ordinary steps."""
    if rank.steps is None:
        return {}
    facts = facts_of(rank)
    keeps = facts.kinds_outside == 0
    if keeps.sum() * FEWEST < len(keeps):
        keeps[:] = True
    seen = keeps[facts.sampled]
    rows = (np.cumsum(keeps) - 1)[facts.sampled[seen]]
    if not len(rows):
        return {}
    sample = Sample(
        rows=rows,
        weights=window_weights(rows, int(keeps.sum())),
        in_proportion=facts.sample.in_proportion,
    )
    wall_us = facts.wall_us[keeps]
    return {
        part: estimate(times_us[seen], sample, wall_us).total_us / float(wall_us.sum())
        for part, times_us in facts.parts_us.items()
    }
