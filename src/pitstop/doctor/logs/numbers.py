"""Numbers in evidence: short, with spread and formula, and close enough to be found in the log."""

import numpy as np

from pitstop.doctor.logs.facts import LogFacts
from pitstop.records.logs.summary import LogSummary, Steady


def number(value: float) -> str:
    """Four significant digits at most, never in exponent form."""
    text = f"{value:.4g}"
    if "e" not in text:
        return text
    return f"{value:,.0f}" if abs(value) >= 1 else f"{value:.9f}".rstrip("0").rstrip(".")


def duration(seconds: float) -> str:
    """A duration: ``0.361 s``, ``42 s``, ``12 min 06 s``, ``7 h 27 min``."""
    if abs(seconds) < 119.5:
        return f"{seconds:.3g} s" if abs(seconds) >= 1e-3 else f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def spread_words(steady: Steady) -> str:
    """Say a steady number with its spread and where it comes from."""
    middle = f"{number(steady.middle)} {steady.unit}"
    if steady.windows == 1:
        return f"{middle} ({steady.formula})"
    half = f"middle half {number(steady.low)} to {number(steady.high)} {steady.unit}"
    return f"{middle}, {half} ({steady.formula})"


def covered_words(steady: Steady) -> str:
    """Say what a steady number rests on: ``2,000 steps in 40 windows``."""
    windows = f"{steady.windows} window" if steady.windows == 1 else f"{steady.windows} windows"
    return windows if steady.steps is None else f"{steady.steps:,} steps in {windows}"


def work_words(log: LogSummary) -> str:
    """Say how long the run took without its start-up, and how that is known."""
    without = f" - start-up {duration(log.start_up_s)}" if log.start_up_s else ""
    work_s = (log.run_s or 0.0) - log.start_up_s
    return f"the run's {duration(work_s)} ({log.run_formula}{without})"


def at_row(facts: LogFacts, row: int) -> str:
    """Say where a steady row begins, as the log counts."""
    step = facts.windows.first_step[facts.steady][row]
    epoch = facts.windows.epoch[facts.steady][row]
    if np.isfinite(step):
        return f"step {int(step):,}"
    return f"epoch {int(epoch)}" if np.isfinite(epoch) else f"record {row + 1}"


def repeated(message: str, times: int) -> str:
    """A message about a record, and in how many it holds."""
    return message if times == 1 else f"{message} (in {times:,} records; the first is given)"
