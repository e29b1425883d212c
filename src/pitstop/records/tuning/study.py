"""Trials of settings: what each took, how each ended, and what the chosen ones gained."""

import shlex
from dataclasses import dataclass, field
from typing import Final, Literal

from pitstop.records.verify.trial import TrialStatus
from pitstop.records.verify.verification import Claim

OTHER_SEEDS: Final = ("seed=1",)
"""Settings of a trial of an untouched script that draws other random numbers."""

TrialEnd = Literal["measured", "refused", "loss differs", "lost"] | TrialStatus
"""``lost``: the machine that ran it was lost, or the process there; the settings are not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlace:
    """A line of somebody's script where a change took hold."""

    change: str
    """As in the trial's settings."""
    place: str
    """File and line."""
    name: str
    """What was changed there: a class, a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One short run with some settings changed. Times are of one sample; of a script, of a step."""

    overrides: tuple[str, ...]
    """Changed settings, as one writes them on a command line; none for the configuration itself."""
    end: TrialEnd
    wall_s: float | None = None
    """On the wall clock, evaluation and saving within the trial included; None: not measured."""
    compute_s: float | None = None
    """Of these, within steps and not waiting for data."""
    samples: float | None = None
    """In one step."""
    promises: dict[str, float] = field(default_factory=dict)
    """Findings on this run, each with the share of the time that fixing it can save at most."""
    peak_device_bytes: int | None = None
    start_s: float | None = None
    """From the command to the first step that was counted: imports, compiling, warm-up."""
    took_s: float = 0.0
    """The whole trial."""
    reason: str = ""
    """Why it was not measured."""
    host: str | None = None
    """The machine that ran it, where that need not be the one that tunes."""
    losses: dict[int, float | None] = field(default_factory=dict)
    """By step, of somebody's script; None where it was not finite."""
    changed: tuple[CodePlace, ...] = ()
    """Where the changes took hold, in somebody's script."""
    loss_note: str = ""
    """What the losses beside those of the untouched script say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRow:
    """One change on the way to the tuned configuration, measured in turns with its neighbours."""

    knob: str
    """Empty for the configuration as it was given."""
    overrides: tuple[str, ...]
    """What this row changes against the row above."""
    claim: Claim
    """What this row's change claims of the arithmetic."""
    wall_s: float
    """Of one sample, on the wall clock; the median over the turns."""
    gain: float
    """Speed over that of the row above."""
    gain_low: float
    """Least of the turns."""
    gain_high: float
    cumulative_gain: float
    """Speed over that of the first row."""
    peak_device_bytes: int | None
    start_s: float | None
    break_even_steps: int | None = None
    """Steps after which a longer start is paid back; None where it is not longer."""
    step_s: float | None = None
    """A whole step, with all its samples; None where the samples are not known."""
    loss: str = ""
    """What the losses beside those of the first row say, where they were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What was tried, what was chosen and what it gained."""

    source: str
    """The configuration that was tuned."""
    rows: tuple[GainRow, ...]
    """Cumulative gains; the first row is the configuration as given."""
    overrides: tuple[str, ...]
    """All changes together."""
    trials: tuple[Trial, ...]
    stopped: str
    """Why no more was tried."""
    left_out: tuple[str, ...] = ()
    """Choices that were not tried, each with its reason."""
    notes: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    """Settings that the user laid over the configuration; they held for every trial."""

    def verify_command(self, tuned: str) -> str:
        """Give the command that holds the tuned configuration against the given one."""
        changed = {word.partition("=")[0] for word in self.overrides}
        kept = [word for word in self.given if word.partition("=")[0] not in changed]
        return shlex.join(["pitstop", "verify", self.source, tuned, *kept])
