"""From which share on a finding is worth a reader's time, and why there."""

from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.records.verdict import Severity

# Below a tenth a fix gives less than 1.11x, which the noise between two runs can hide.
WORTH_A_WARNING: Final = 0.10

# From here on one fix gives more than 1.4x: nothing else should come first.
CRITICAL: Final = 0.30

# Some Python between the parts is in every loop and cannot go, so a little more is asked for.
HOST_WORTH: Final = 0.15

# An update reads and writes every weight, so it is a visible part of any small model's step.
OPTIMIZER_WORTH: Final = 0.25

# A loss is a few operations on the output. At a third it computes more than a loss.
LOSS_WORTH: Final = 1 / 3

# A device that works less than this share of the time it is given is waiting for launches.
BUSY_ENOUGH: Final = 0.70

# Shorter kernels help only a device that is busy at least half of the time.
DEVICE_DECIDES: Final = 0.50


def severity_of(share: float) -> Severity:
    """Severity of a share of the wall clock."""
    if share >= CRITICAL:
        return "critical"
    return "warning" if share >= WORTH_A_WARNING else "info"


def is_sure(facts: Facts, part: str, share: float, *, least: float = WORTH_A_WARNING) -> bool:
    """Whether a share is above a limit by more than two standard errors of its part's steps.

    What few stack samples leave open is added to the finding as a doubt: a part that is likely to
    be too long is reported, and not left out.
    """
    return share >= least and share - 2 * facts.steps_error(part) >= least


LEAST_CHANGE: Final = 0.05
"""Two runs of one program on one machine may differ by this without a cause in the program."""


def may_differ(share: float, error: float, least: float) -> bool:
    """Whether another run may judge otherwise: about the limit, a share is reported by chance.

    It is reported where it exceeds its limit by two standard errors. The shares of two runs differ
    by both their errors, and by what either differs from the program's usual.
    """
    over = share - 2 * error - least
    return abs(over) <= _ERRORS_OF_TWO * error + 2 * LEAST_CHANGE * share


# Two standard errors of a difference.
_ERRORS_OF_TWO: Final = 2 * 2**0.5
