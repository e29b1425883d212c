"""Runs measured in turns: one gain over all pairs, and the pair in the middle to show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pitstop.doctor.facts import facts_of
from pitstop.doctor.judge import JudgedRuns, judge_records
from pitstop.errors import RecordError
from pitstop.records.comparison import PairedGain
from pitstop.records.run import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedRuns:
    """What pairs of runs gave."""

    gain: PairedGain
    judged: JudgedRuns
    """The pair with the median gain; what is said of it is said of all pairs."""


def judge_pairs(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> PairedRuns:
    """Judge pairs of runs of the same work, before and after, together.

    Raises:
        RecordError: There is no pair, or a run holds no step after warm-up.
    """
    if not pairs:
        raise RecordError("name at least one pair of runs")
    gain = PairedGain(
        before_s=tuple(_period_s(before) for before, _ in pairs),
        after_s=tuple(_period_s(after) for _, after in pairs),
        steps=min(facts_of(record.first).steps for pair in pairs for record in pair),
    )
    judged = judge_records(pairs[gain.middle])
    said = judged.pairs[0]
    if said.comparison is not None:
        said = replace(said, result=gain.change, message=gain.message)
    return PairedRuns(gain=gain, judged=replace(judged, pairs=(said,)))


def _period_s(record: RunRecord) -> float:
    """Mean time from step to step after warm-up, evaluating and saving included."""
    facts = facts_of(record.first)
    if not facts.steps:
        raise RecordError(f"{record.source} holds no step after warm-up to compare")
    return facts.total_us / facts.steps / 1e6
