"""What a run should reach, and what it did."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """One target, judged."""

    key: str
    """The setting that asked for it, such as ``targets.data_wait_ms``."""
    target: float
    value: float | None
    """What was measured; None where nothing was."""
    at_most: bool
    """Whether the target is an upper limit; else it is a lower one."""

    @property
    def passed(self) -> bool | None:
        """None where it was not measured: that is neither reached nor missed."""
        if self.value is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target
