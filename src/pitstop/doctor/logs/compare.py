"""Logs compared on samples per second at steady state; unlike numbers are refused."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pitstop.doctor.logs.case import LogCase
from pitstop.doctor.logs.examine import case_of_log, examine_case
from pitstop.doctor.logs.facts import LONG_MEANS
from pitstop.doctor.logs.summary import computed_rate, printed_rate, untimed_text
from pitstop.doctor.thresholds import LEAST_CHANGE
from pitstop.records.logs.comparison import LogComparison, LogPair, Result
from pitstop.records.logs.summary import Steady
from pitstop.records.run import RunRecord
from pitstop.records.units import listing, rate_text, share_text

_MOST_SETTINGS = 5
# Some tools print results among their settings.
_RESULT = re.compile("runtime|per_second|loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Two numbers that may be divided: same unit, same meaning, same scope."""

    basis: str
    first: Steady
    other: Steady


def compare_logs(records: Sequence[RunRecord]) -> LogComparison:
    """Judge every log, and compare each but the first with the first.

    Raises:
        RecordError: A record was not read from a foreign log.
    """
    cases = [case_of_log(record) for record in records]
    return LogComparison(
        logs=tuple(examine_case(case) for case in cases),
        pairs=tuple(_pair(cases[0], other) for other in cases[1:]),
    )


def _pair(first: LogCase, other: LogCase) -> LogPair:
    step_ratio = _step_ratio(first, other)
    found = _comparable(first, other)
    if isinstance(found, str):
        return LogPair(
            source=other.log.source,
            result="not comparable",
            message=found,
            basis="",
            reference=None,
            rate=None,
            ratio=None,
            low=None,
            high=None,
            step_ratio=step_ratio,
            notes=_differences(first, other),
        )
    ratio = found.other.middle / found.first.middle
    low, high = found.other.low / found.first.high, found.other.high / found.first.low
    result = _result(ratio, low, high)
    return LogPair(
        source=other.log.source,
        result=result,
        message=_message(found, ratio, result),
        basis=found.basis,
        reference=found.first,
        rate=found.other,
        ratio=ratio,
        low=low,
        high=high,
        step_ratio=step_ratio,
        notes=(*_step_note(first, other, ratio, step_ratio), *_differences(first, other)),
    )


def _comparable(first: LogCase, other: LogCase) -> _Rates | str:
    """Find a number that both logs have in one meaning, or say why there is none."""
    worlds = [case.log.world_size for case in (first, other)]
    known = all(world is not None for world in worlds)
    computed = [_steady_rate(case, ranks=None if known else 1) for case in (first, other)]
    if computed[0] is not None and computed[1] is not None:
        scope = "of all ranks" if known else "of one rank; not every log gives the number of ranks"
        return _Rates(basis=f"samples/s {scope}", first=computed[0], other=computed[1])
    printed = [printed_rate(case.facts) for case in (first, other)]
    if printed[0] is None or printed[1] is None:
        return _why_not(first, other)
    meanings = [case.facts.windows.note("samples_per_s").meaning for case in (first, other)]
    formats = [case.log.format for case in (first, other)]
    alike = formats[0] == formats[1] and "not known" not in meanings
    if not alike or (meanings[0] in LONG_MEANS) != (meanings[1] in LONG_MEANS):
        named = " and ".join(
            f"{case.log.source} ({case.log.format}, {meaning})"
            for case, meaning in zip((first, other), meanings, strict=True)
        )
        return (
            f"the printed samples/s may not mean the same: {named}; give --batch-size for both, "
            "so that they can be computed from step times"
        )
    basis = f"samples/s as printed ({meanings[0]}, {meanings[1]})"
    return _Rates(basis=basis, first=printed[0], other=printed[1])


def _steady_rate(case: LogCase, *, ranks: int | None) -> Steady | None:
    return computed_rate(case.facts, ranks=ranks) if case.facts.basis == "windows" else None


def _why_not(first: LogCase, other: LogCase) -> str:
    reasons = []
    for case in (first, other):
        if case.log.step is None and printed_rate(case.facts) is None:
            reasons.append(f"{case.log.source}: {untimed_text(case.facts)}")
        elif case.facts.basis == "epochs":
            reasons.append(f"{case.log.source} times whole epochs only, loader start-up included")
        elif case.log.batch_size is None:
            reasons.append(f"the batch size of {case.log.source} is not known: give --batch-size")
        elif _steady_rate(case, ranks=1) is None:
            reasons.append(f"{case.log.source} has steps of 0 s")
    return f"{'; '.join(reasons)} (steps/s cannot be compared while batch sizes may differ)"


def _result(ratio: float, low: float, high: float) -> Result:
    if low <= 1 <= high or abs(ratio - 1) < LEAST_CHANGE:
        return "no difference beyond noise"
    return "faster" if low > 1 else "slower"


def _message(rates: _Rates, ratio: float, result: Result) -> str:
    numbers = " against ".join(
        rate_text(one.middle, "samples/s") for one in (rates.other, rates.first)
    )
    change = f"{share_text(abs(ratio - 1))} {'faster' if ratio >= 1 else 'slower'}"
    if result != "no difference beyond noise":
        return f"{numbers}: {change}"
    return f"{numbers}: {change}, within the usual difference of two runs of one program"


def _step_ratio(first: LogCase, other: LogCase) -> float | None:
    if first.log.step is None or other.log.step is None or not other.log.step.middle > 0:
        return None
    return first.log.step.middle / other.log.step.middle


def _step_note(
    first: LogCase, other: LogCase, ratio: float, step_ratio: float | None
) -> tuple[str, ...]:
    """Say what steps per second would have claimed, where that is something else."""
    if step_ratio is None or abs(step_ratio - ratio) < 0.05 * ratio:
        return ()
    claimed = f"{share_text(abs(step_ratio - 1))} {'faster' if step_ratio >= 1 else 'slower'}"
    sizes = f"{_samples(other)} samples here, {_samples(first)} in {first.log.source}"
    return (f"in steps/s it would seem {claimed}: a step has {sizes}",)


def _samples(case: LogCase) -> str:
    batch, world = case.log.batch_size, case.log.world_size
    if batch is None:
        return "an unknown number of"
    return str(batch) if world is None or world == 1 else f"{batch} x {world} ranks"


def _differences(first: LogCase, other: LogCase) -> tuple[str, ...]:
    """Name what else is known to differ: then the cause of a difference is not known."""
    mine, theirs = first.facts.windows.log, other.facts.windows.log
    notes = [
        f"{name}: {a} in {first.log.source}, {b} in {other.log.source}"
        for name, a, b in (
            ("batch size", mine.batch_size, theirs.batch_size),
            ("ranks", mine.world_size, theirs.world_size),
            ("workers", mine.workers, theirs.workers),
        )
        if a is not None and b is not None and a != b
    ]
    shared = {
        key for key in mine.settings.keys() & theirs.settings.keys() if not _RESULT.search(key)
    }
    differ = sorted(key for key in shared if mine.settings[key] != theirs.settings[key])
    if differ:
        shown = [f"{key} {mine.settings[key]} / {theirs.settings[key]}" for key in differ]
        notes.append(f"settings that differ: {listing(shown, most=_MOST_SETTINGS)}")
    return tuple(notes)
