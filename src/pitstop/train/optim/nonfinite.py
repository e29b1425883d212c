"""What to do when a loss or a gradient is not finite.

The update of such a step never happens: the device leaves it out by itself. This decides what the
run does about it once the host hears of it, two steps later.
"""

from dataclasses import dataclass
from typing import Literal

from pitstop.errors import PitstopError

Policy = Literal["skip", "rollback", "stop"]
Action = Literal["nothing", "warn", "rollback", "stop"]

MOST_IN_A_ROW = 20
"""Skipped updates after which a run stops whatever its policy: a scaler that starts at 2**16 finds
its scale in fewer, and a model whose weights are NaN never recovers."""


class NotFiniteError(PitstopError):
    """Training cannot go on: the loss or the gradients stay NaN or infinite."""


@dataclass(slots=True, kw_only=True)
class NonFinitePolicy:
    """Judges steps whose loss or gradients were not finite.

    Under fp16 an infinite gradient of a finite loss is the loss scale finding its place, not
    trouble; only a long row of them is.
    """

    policy: Policy
    scaled: bool
    """Whether a dynamic loss scale is at work (fp16)."""
    in_a_row: int = 0
    left_out: int = 0

    def judge(self, *, found_inf: bool, bad_loss: bool) -> Action:
        """Say what to do about a step."""
        if not found_inf:
            self.in_a_row = 0
            return "nothing"
        self.in_a_row += 1
        self.left_out += 1
        if self.in_a_row >= MOST_IN_A_ROW:
            return "stop"
        if self.scaled and not bad_loss:
            return "nothing"
        if self.policy == "skip":
            return "warn"
        return self.policy

    def error(self, step: int, *, bad_loss: bool) -> NotFiniteError:
        """Say why the run stops."""
        what = "the loss" if bad_loss else "a gradient"
        if self.in_a_row >= MOST_IN_A_ROW:
            return NotFiniteError(
                f"{what} was not finite in {self.in_a_row} steps in a row, the last of them step "
                f"{step}; lower optimizer.lr, or train in bf16 (train.precision)"
            )
        return NotFiniteError(
            f"{what} was not finite at step {step}; its update was left out. Look at that batch, "
            "lower optimizer.lr, or go on past such steps with train.on_nan: skip"
        )
