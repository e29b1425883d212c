"""From a record to a verdict: run every rule, order what they found, bound the gain."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pitstop.doctor.doubts import is_unsampled, open_parts, uneven_part, with_doubts
from pitstop.doctor.estimate.combine import combined_bound, cumulative_gains
from pitstop.doctor.estimate.cpu_headroom import cpu_headroom
from pitstop.doctor.estimate.headroom import headroom_of
from pitstop.doctor.estimate.module_table import module_table
from pitstop.doctor.estimate.unsampled import not_sampled, why_not
from pitstop.doctor.facts import Facts
from pitstop.doctor.message import message_of
from pitstop.doctor.order import ordered, outcome_of, primary_of
from pitstop.doctor.outside_steps import start_up_parts_s, steps_in_start_up
from pitstop.doctor.ranks.times import host_of
from pitstop.doctor.ranks.together import MOST_WHOLE, Ranks, ranks_of
from pitstop.doctor.rules.catalogue import ENTRIES, RANK_RULES, RULES
from pitstop.doctor.rules.device_holders import device_holders
from pitstop.doctor.rules.machine import contention
from pitstop.doctor.rules.memory import full_host, unsettled_growth
from pitstop.records.run import RankRecord, Reading, RunRecord
from pitstop.records.script import Kernels
from pitstop.records.units import count_text
from pitstop.records.verdict import Finding, Verdict

__all__ = ["combined_bound", "examine"]

# Below it one slow step is a twentieth of all, which is what the smallest findings are.
_FEWEST_STEPS: Final = 20

_OF_THE_HOST: Final = ("memory", "load", "machine")


def examine(record: RunRecord) -> Verdict:
    """Judge a run, all ranks together: by the one that the others wait for."""
    return examine_ranks(record, ranks_together(record))


def ranks_together(record: RunRecord) -> Ranks:
    """Lay the ranks of a run side by side, each with what was read of its host."""
    return ranks_of(with_host_readings(record.ranks))


def examine_ranks(record: RunRecord, ranks: Ranks) -> Verdict:
    """Judge a run whose ranks are laid side by side already."""
    facts = ranks.judged
    if facts.steps < _FEWEST_STEPS or not facts.parts_us:
        return Verdict(
            outcome="not enough evidence",
            verdict="not enough evidence",
            message=_too_little(facts),
            findings=(),
            steps=facts.steps,
            rank=facts.summary.rank,
            notes=_notes(record, ranks),
        )
    headroom = cpu_headroom(facts)
    found = [headroom.counted_in(finding) for rule in RULES if (finding := rule(facts)) is not None]
    # What holds up other ranks is left as it is: without it all compute at the same time.
    found += [finding for rule in RANK_RULES if (finding := rule(ranks)) is not None]
    found = [with_doubts(finding, facts) for finding in found]
    primary = primary_of(found)
    findings = ordered(found, primary)
    # What is only information is not to be fixed, so no gain is promised for it.
    to_fix = [finding for finding in findings if finding.severity != "info"]
    doubt = _doubt(found, facts)
    outcome = outcome_of(primary, enough=doubt is None)
    hours = _whole_run_hours(facts)
    return Verdict(
        outcome=outcome,
        verdict=ENTRIES[primary.code].name
        if primary is not None and outcome == "bottleneck"
        else outcome,
        primary=None if primary is None else primary.code,
        message=message_of(primary, findings, facts)
        if primary is not None or doubt is None
        else doubt,
        findings=findings,
        shares=facts.shares(),
        combined_bound=combined_bound(to_fix),
        cumulative_gains=cumulative_gains(to_fix, whole_run_hours=hours),
        whole_run_hours=hours,
        steps=facts.steps,
        rank=facts.summary.rank,
        start_up_s=None if facts.start_up_us is None else facts.start_up_us / 1e6,
        start_up_parts_s=start_up_parts_s(facts.record),
        headroom=headroom_of(facts),
        modules=module_table(facts),
        not_sampled=not_sampled(facts),
        notes=_notes(record, ranks),
    )


def with_host_readings(ranks: Sequence[RankRecord]) -> list[RankRecord]:
    """Let ranks of one host share what was read of that host, which one file alone holds."""
    by_host: dict[str | None, tuple[Reading, ...]] = {}
    for rank in ranks:
        found = tuple(reading for reading in rank.readings if reading.kind in _OF_THE_HOST)
        if found:
            by_host.setdefault(host_of(rank), found)
    return [
        rank
        if any(reading.kind in _OF_THE_HOST for reading in rank.readings)
        else replace(rank, readings=(*rank.readings, *by_host.get(host_of(rank), ())))
        for rank in ranks
    ]


def _doubt(found: Sequence[Finding], facts: Facts) -> str | None:
    """Say why a run without a bottleneck is not called healthy."""
    if is_unsampled(facts, Kernels):
        return (
            "kernels were not sampled, so it is not known whether the GPU is busy or idle; "
            f"{why_not(facts, 'kernels')}"
        )
    uneven = uneven_part(facts)
    if uneven is not None:
        return uneven
    for _, _, why in open_parts(facts, found):
        return f"{why}; measure more steps"
    others = contention(facts)
    # A wait of a tenth or more is info only where other processes keep the cores busy.
    if others is None or not any(f.code == "DATA001" and f.severity == "info" for f in found):
        return None
    return (
        f"the host is shared: {others}; the loop may wait for data or for a CPU core; "
        "measure again when the host is idle"
    )


def _too_little(facts: Facts) -> str:
    if facts.steps >= _FEWEST_STEPS:
        return "the record holds no measured parts of the step"
    return f"{facts.steps} steps after warm-up are too few to judge; {_FEWEST_STEPS} are needed"


def _whole_run_hours(facts: Facts) -> float | None:
    total = _total_steps(facts)
    return None if total is None else total * facts.total_us / facts.steps / 3.6e9


def _total_steps(facts: Facts) -> int | None:
    setup = facts.setup
    if setup is not None:
        return setup.total_steps
    about = facts.about
    config = about.get("config")
    train = config.get("train") if isinstance(config, Mapping) else None
    steps = about.get("total_steps") or (train.get("steps") if isinstance(train, Mapping) else None)
    return steps if isinstance(steps, int) and steps > 0 else None


def _notes(record: RunRecord, ranks: Ranks) -> tuple[str, ...]:
    notes = [*record.notes, *_notes_of_ranks(record.ranks)]
    rules = (unsettled_growth, full_host, device_holders, _steps_in_start_up)
    notes += [note for rule in rules if (note := rule(ranks.facts[0])) is not None]
    damaged = sum(facts.readings.damaged for facts in ranks.facts)
    if damaged:
        notes.append(f"{damaged} readings could not be parsed and were skipped")
    return (*notes, *_ending_notes(record))


def _notes_of_ranks(ranks: Sequence[RankRecord]) -> list[str]:
    """What was noted while ranks were read; once where many say the same."""
    counts = Counter(note for rank in ranks for note in rank.notes)
    if len(ranks) <= MOST_WHOLE:
        return list(counts.elements())
    return [f"{note} ({count_text(count, 'rank')})" for note, count in counts.items()]


def _steps_in_start_up(facts: Facts) -> str | None:
    """Say how many steps had passed before updates without an optimizer were recognised."""
    steps = steps_in_start_up(facts.record)
    if not steps:
        return None
    return (
        f"no optimizer of torch updates the weights; {count_text(steps, 'step')} passed before "
        "the updates were recognised, and count as start-up"
    )


def _ending_notes(record: RunRecord) -> tuple[str, ...]:
    if not record.is_finished:
        return ("the run did not end: it was killed, or is still running",)
    endings = [rank.ending for rank in record.ranks if rank.ending is not None]
    bad = next((ending for ending in endings if ending.status != "finished"), None)
    return () if bad is None else (f"the run {bad.status}: {bad.reason}",)
