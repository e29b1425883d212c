"""The facts that rules for logs judge: records at steady state, time outside steps, gaps.

A log has no single steps, only records over some of them. Steady state are the records that cover
training steps and nothing else; each counts as often as it covers steps.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from pitstop.doctor.logs.admit import LEAST, admit, is_one_run
from pitstop.doctor.logs.statistics import is_coarse, middle_of, quartiles
from pitstop.logs.general.read import NAME as GENERAL
from pitstop.records.logs.summary import Steady
from pitstop.records.logs.windows import TRAINING, ColumnNote, Meaning, WindowTable
from pitstop.records.run import Array, RankRecord

Mask = npt.NDArray[np.bool_]

Basis = Literal["windows", "epochs"]
"""What steady state was taken of; a mean over an epoch holds the loader's start as well."""

# Means over a window with more than steady steps: its start-up, or all of its past.
LONG_MEANS: Final[frozenset[Meaning]] = frozenset(
    {"running mean of the epoch", "running mean of the run", "per epoch", "total"}
)

_FEWEST_WINDOWS = 3
_RATE_NAMES = ("lr", "learning_rate", "base_lr", "base lr", "train/lr", "train/learning_rate")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogFacts:
    """One log, settled: what the rules look at."""

    source: str
    rank: RankRecord
    windows: WindowTable
    steady: Mask
    """Rows at steady state; none where the log does not time its steps."""
    basis: Basis | None
    """None where the log does not time its steps."""

    @property
    def is_defined(self) -> bool:
        """Whether a tool, or the user, says what the log counts: else its lines are quoted."""
        return self.windows.log.is_count_defined

    @property
    def is_one_run(self) -> bool:
        """Whether a tool wrote the log, and of one run."""
        return self.is_defined and is_one_run(self.windows)

    @property
    def has_run(self) -> bool:
        """Whether the time of the whole run is known; else the least of it, and no shares."""
        return self.is_one_run and self.windows.log.format != GENERAL

    @property
    def announced(self) -> int:
        """Steps that the log announces; 0 where it does not."""
        log = self.windows.log
        return log.total_steps or (log.steps_per_epoch or 0) * (log.total_epochs or 1)

    @property
    def weights(self) -> Array:
        """Steps that each steady row covers; one where the log does not count them."""
        return row_weights(self.windows)[self.steady]

    @property
    def step(self) -> Steady | None:
        """Wall clock of a step."""
        return self.steady_of("step_s", "s")

    @property
    def data_wait(self) -> Steady | None:
        """Wait for data in a step."""
        return self.steady_of("data_s", "s")

    @property
    def data_share(self) -> float | None:
        """Wait for data over step time, both summed over the steady rows that know both.

        None where the log does not tell, and where the wait is longer than the step: then the
        step's clock starts after the wait, and its share of the whole is another one.
        """
        both = self.steady & np.isfinite(self.windows.data_s)
        weights = row_weights(self.windows)[both]
        step_s = float(np.sum(self.windows.step_s[both] * weights))
        data_s = float(np.sum(self.windows.data_s[both] * weights))
        # Without a row both sums are zero.
        return data_s / step_s if step_s > 0 and 0 <= data_s <= step_s else None

    @property
    def training(self) -> Mask:
        """Rows that cover training steps, no step twice as far as the log tells."""
        rows = self.windows.of_kind(*TRAINING)
        return rows if rows.any() else self.windows.of_kind("epoch")

    @property
    def end_step(self) -> int | None:
        """Last step of the whole training, or of the only bar there is; None when not known.

        A bar beside which an epoch is printed is one of several, however few the log holds.
        """
        log, epochs = self.windows.log, self.windows.epoch[self.training]
        end = log.total_steps
        if end is None and log.steps_per_epoch is not None:
            is_one_bar = not np.isfinite(epochs).any() and not self.windows.attempt.any()
            end = log.steps_per_epoch * (log.total_epochs or int(is_one_bar))
        last = self.last_step
        # A total that the steps have passed is that of an epoch, or of another bar.
        return end if end and (last is None or last <= end) else None

    @property
    def first_step(self) -> int | None:
        """First training step that the log covers."""
        steps = self.windows.first_step[self.training]
        return int(np.nanmin(steps)) if np.isfinite(steps).any() else None

    @property
    def last_step(self) -> int | None:
        """Last training step that the log covers."""
        steps = self.windows.last_step[self.training]
        return int(np.nanmax(steps)) if np.isfinite(steps).any() else None

    @property
    def steps_left(self) -> int | None:
        """Steps from the last one of the log to the end; a count from zero ends one before it."""
        end, last = self.end_step, self.last_step
        if end is None or last is None:
            return None
        return end - last - (self.first_step == 0 and last < end)

    @property
    def counts_the_least(self) -> bool:
        """Whether more steps may have been done than are counted: then no share is known."""
        return any(LEAST in note for note in self.windows.log.notes)

    @property
    def is_done(self) -> bool:
        """Whether the log reaches the end: the last steps of a run are often in no record."""
        left, covered = self.steps_left, self.windows.steps[self.training]
        known = covered[np.isfinite(covered)]
        return left is not None and bool(len(known)) and left < max(1.0, float(np.median(known)))

    @property
    def learning_rates(self) -> tuple[Array, Array]:
        """Steps and rates, as the log prints them; empty where it does not."""
        rows = self.training & np.isfinite(self.windows.lr)
        if rows.any():
            return self.windows.last_step[rows], self.windows.lr[rows]
        name = next((name for name in self.rank.scalars if name.lower() in _RATE_NAMES), None)
        if name is None:
            return np.empty(0), np.empty(0)
        return self.rank.scalars[name].step, self.rank.scalars[name].value

    def steady_of(self, column: str, unit: str) -> Steady | None:
        """Give median and IQR of a column over the steady rows; None without any.

        In a log that does not time its steps, what else it prints stands in plain records.
        """
        steady = self.steady
        if self.basis is None and column != "step_s":
            steady = self.windows.of_kind("train")
        rows = steady & np.isfinite(getattr(self.windows, column))
        if not rows.any():
            return None
        values: Array = getattr(self.windows, column)[rows]
        weights = row_weights(self.windows)[rows]
        low, middle, high = quartiles(values, weights)
        origin_text = self.count_text(len(values))
        if column == "step_s" and is_coarse(values):
            middle, usual = middle_of(values, weights)
            origin_text = f"mean of the {usual} windows near the median, because times are rounded"
        return Steady(
            low=min(low, middle),
            middle=middle,
            high=max(high, middle),
            unit=unit,
            windows=int(rows.sum()),
            steps=covered_steps(self.windows, rows),
            formula=f"{origin_text}; {origin(self.windows.note(column))}",
        )

    def count_text(self, rows: int) -> str:
        """Say what a median was taken of: ``median of 40 windows``."""
        if self.basis == "epochs":
            return "mean of the whole log" if rows == 1 else f"median of {rows} means of epochs"
        return "one window" if rows == 1 else f"median of {rows} windows"


def facts_of_log(rank: RankRecord, source: str) -> LogFacts:
    """Choose the rows of steady state: those of training steps alone, else whole epochs."""
    assert rank.windows is not None, "rules for logs need the records of a log"
    rank = admit(rank)
    table = rank.windows
    assert table is not None, "admission leaves the table"
    steady = table.is_steady
    epochs = table.of_kind("epoch") & np.isfinite(table.step_s)
    basis: Basis | None = "windows" if steady.any() else None
    if int(steady.sum()) < _FEWEST_WINDOWS and int(epochs.sum()) > int(steady.sum()):
        steady, basis = epochs, "epochs"
    return LogFacts(
        source=source,
        rank=rank,
        windows=table,
        steady=steady,
        basis=basis,
    )


def row_weights(table: WindowTable) -> Array:
    """Steps that each row covers; one where the log does not count them."""
    steps = table.steps
    return np.where(np.isfinite(steps) & (steps >= 1), steps, 1.0)


def covered_steps(table: WindowTable, rows: Mask) -> int | None:
    """Steps that some rows cover together; None when one of them does not say."""
    steps = table.steps[rows]
    return int(steps.sum()) if np.isfinite(steps).all() and (steps >= 1).all() else None


def origin(note: ColumnNote) -> str:
    """Say where a column's numbers come from, for the brackets behind a number."""
    if note.source == "rebuilt":
        return f"rebuilt: {note.formula}" if note.formula else "rebuilt from the log"
    meaning = "" if note.meaning == "not known" else f" as {note.meaning}"
    return f"printed{meaning}: {note.formula}" if note.formula else f"printed{meaning}"


def is_loss(name: str) -> bool:
    """Whether a named value is a training loss, by its name.

    Names of evaluations begin with ``eval`` or ``val``; what is left counts when one of its words
    begins with "loss" or ends with it: ``loss``, ``decode.loss_ce``, ``total_loss``, ``SDMLoss``.
    """
    if name.startswith("l_"):
        return True  # BasicSR and its children: l_pix, l_g_gan
    words = re.split(r"[^a-z]+", name.lower())
    if words[0] in ("eval", "val", "test", "valid", "validation"):
        return False
    return any(word.startswith("loss") or word.endswith("loss") for word in words)
