"""CPU headroom: the rest of a step may run faster once a part is removed, which Amdahl leaves out.

Amdahl's law takes the rest of a step to last as long as it did. On processors it does not: a core
that rested during a wait computes more slowly for a while, and what else ran in between has
emptied its caches. Beside waits computing took up to an eighth longer (docs/lab-notes.md,
"Computing beside waits"), and where they come often no step shows how long it would take without
them. The fastest quarter of the steps comes nearest. A bound is an upper one, so it assumes that
all steps are as fast as those.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.records.units import us_text
from pitstop.records.verdict import WALL_CLOCK, Finding

_COMPUTING: Final = ("forward", "loss", "backward", "clip", "optimizer", "zero_grad")

# Without these the processor computes more of the time. Without a part that computes, or an
# exchange on the cores that compute, it does so for no longer at a time than before.
_BESIDE_COMPUTING: Final = (
    "data",
    "host",
    "logging",
    "evaluation",
    "checkpoint",
    "epoch boundary",
    "compile",
    "outside steps",
)

# A quarter of the steps were faster: what a step takes when nobody interrupts it. The minimum would
# be one lucky step.
_FASTEST: Final = 0.25
# Five steps below the quartile; fewer leave it to chance.
_FEWEST_STEPS: Final = 20

# Steps may be fast for having less to compute, too: no more than waits were seen to cost.
_MOST: Final = 1 / 8

# Less is within what two runs differ by, and not worth a line.
_WORTH_REPORTING: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHeadroom:
    """By how much the computing of all steps may get shorter."""

    share: float = 0.0
    """Of the wall clock."""
    usual_us: float = 0.0
    """Computing in a step, the mean."""
    fast_us: float = 0.0
    """Computing in a step, as the bound assumes it."""

    def counted_in(self, finding: Finding) -> Finding:
        """Widen a bound on something that lies beside the computing; leave others as they are."""
        bound = finding.bound
        if bound is None or bound.pool != WALL_CLOCK or bound.part not in _BESIDE_COMPUTING:
            return finding
        share = min(self.share, 1 - bound.share)
        if share < _WORTH_REPORTING:
            return finding
        text = (
            f"computing takes {us_text(self.usual_us)} per step next to it; the bound assumes "
            f"{us_text(self.fast_us)} without it, the 25th percentile of the steps"
        )
        return replace(
            finding,
            bound=replace(bound, cpu_headroom_share=share),
            evidence=(*finding.evidence, text),
        )


def cpu_headroom(facts: Facts) -> CpuHeadroom:
    """Find how fast computing is in the fastest quarter of the steps.

    Steps with time outside them are left out: what that adds to them is counted with its
    cause. Nothing on a GPU, whose device neither rests nor computes where the host's parts lie.
    """
    plain = facts.kinds_outside[facts.sampled] == 0
    found = [facts.parts_us[name] for name in _COMPUTING if name in facts.parts_us]
    if facts.on_gpu or not found or np.count_nonzero(plain) < _FEWEST_STEPS:
        return CpuHeadroom()
    computing_us = np.sum(found, axis=0)[plain]
    usual_us = float(computing_us.mean())
    fast_us = max(float(np.quantile(computing_us, _FASTEST)), (1 - _MOST) * usual_us)
    # Where a few steps are far shorter than all others, the mean may lie below the quartile.
    saved_us = max(0.0, usual_us - fast_us) * facts.steps
    share = saved_us / facts.total_us if facts.total_us else 0.0
    return CpuHeadroom(share=share, usual_us=usual_us, fast_us=fast_us)
