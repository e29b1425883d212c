"""Numbers in evidence: short, with spread and formula, and close enough to be found in the log."""

import numpy as np

from pitstop.doctor.logs.facts import LogFacts
from pitstop.records.logs.summary import LogSummary, Steady
from pitstop.records.units import count_text, rate_text, seconds_text


def in_unit(value: float, unit: str) -> str:
    """A steady number in its unit: ``361 ms``, ``41.2 samples/s``."""
    return seconds_text(value) if unit == "s" else rate_text(value, unit)


def spread_text(steady: Steady) -> str:
    """Say a steady number with its spread and where it comes from."""
    low, middle, high = (in_unit(v, steady.unit) for v in (steady.low, steady.middle, steady.high))
    if steady.windows == 1:
        return f"{middle} ({steady.formula})"
    return f"{middle}, IQR {low} to {high} ({steady.formula})"


def covered_text(steady: Steady) -> str:
    """Say what a steady number rests on: ``2,000 steps in 40 windows``."""
    windows = count_text(steady.windows, "window")
    return windows if steady.steps is None else f"{steady.steps:,} steps in {windows}"


def work_text(log: LogSummary) -> str:
    """Say how long the run took without its start-up, and how that is known."""
    without = f" - start-up {seconds_text(log.start_up_s)}" if log.start_up_s else ""
    work_s = (log.run_s or 0.0) - log.start_up_s
    return f"the run's {seconds_text(work_s)} ({log.run_formula}{without})"


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
