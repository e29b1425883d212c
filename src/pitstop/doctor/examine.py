"""From a record to a verdict: run every rule, order what they found, bound the gain."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from pitstop.doctor.combine import combined_bound, ladder
from pitstop.doctor.compute_rules import slowest_modules
from pitstop.doctor.facts import Facts, facts_of
from pitstop.doctor.machine_rules import contention
from pitstop.doctor.memory_rules import unsettled_growth
from pitstop.doctor.quicker import quicker_rest
from pitstop.doctor.rank_rules import own_parts_us
from pitstop.doctor.rules import ENTRIES, RANK_RULES, RULES
from pitstop.records.run import RankRecord, Reading, RunRecord
from pitstop.records.script import Kernels
from pitstop.records.verdict import Finding, Outcome, Verdict

__all__ = ["combined_bound", "examine"]

_FEWEST_STEPS: Final = 20

_OF_THE_HOST: Final = ("memory", "load", "machine")

# Ranks that wait for each other have steps of one length, up to this.
_SAME_LENGTH: Final = 0.98
# What makes every further step useless.
_IN_VAIN: Final = ("NAN001",)
# A specific finding comes before the general one that it explains at least half of.
_EXPLAINS: Final = 0.5


def examine(record: RunRecord) -> Verdict:
    """Judge a run, all ranks together: by the one that the others wait for."""
    ranks = [facts_of(rank) for rank in with_host_readings(record.ranks)]
    facts = judged_rank(ranks)
    if facts.steps < _FEWEST_STEPS or not facts.parts_us:
        return Verdict(
            outcome="not enough evidence",
            verdict="not enough evidence",
            sentence=_too_little(facts),
            findings=(),
            steps=facts.steps,
            rank=facts.summary.rank,
            notes=_notes(record, ranks),
        )
    quicker = quicker_rest(facts)
    found = [quicker.counted_in(finding) for rule in RULES if (finding := rule(facts)) is not None]
    # What holds up other ranks is left as it is: without it all compute at the same time.
    found += [finding for rule in RANK_RULES if (finding := rule(ranks)) is not None]
    principal = _principal(found)
    findings = _ordered(found, principal)
    # What is told as information is not to be mended, so nothing is promised for it.
    to_mend = [finding for finding in findings if finding.severity != "info"]
    doubt = _doubt(found, facts)
    outcome = _outcome(principal, doubt)
    hours = _whole_run_hours(facts)
    return Verdict(
        outcome=outcome,
        verdict=ENTRIES[principal.code].name
        if principal is not None and outcome == "bottleneck"
        else outcome,
        principal=None if principal is None else principal.code,
        sentence=_sentence(principal, facts) if principal is not None or doubt is None else doubt,
        findings=findings,
        shares=facts.shares(),
        combined_bound=combined_bound(to_mend),
        ladder=ladder(to_mend, whole_run_hours=hours),
        whole_run_hours=hours,
        steps=facts.steps,
        rank=facts.summary.rank,
        start_up_s=None if facts.start_up_us is None else facts.start_up_us / 1e6,
        notes=_notes(record, ranks),
    )


def with_host_readings(ranks: Sequence[RankRecord]) -> list[RankRecord]:
    """Let ranks of one host share what was read of that host, which one file alone holds."""
    by_host: dict[str | None, tuple[Reading, ...]] = {}
    for rank in ranks:
        found = tuple(reading for reading in rank.readings if reading.kind in _OF_THE_HOST)
        if found:
            by_host.setdefault(_host(rank), found)
    return [
        rank
        if any(reading.kind in _OF_THE_HOST for reading in rank.readings)
        else replace(rank, readings=(*rank.readings, *by_host.get(_host(rank), ())))
        for rank in ranks
    ]


def _host(rank: RankRecord) -> str | None:
    return rank.attempts[-1].host if rank.attempts else None


def judged_rank(ranks: Sequence[Facts]) -> Facts:
    """Choose the rank that the others wait for.

    Where all steps take equally long, because ranks wait for each other, it is the one with most
    work of its own; where that is equal, too, the first.
    """
    pace = [facts.step_us for facts in ranks]
    slow = [facts for facts, us in zip(ranks, pace, strict=True) if us >= _SAME_LENGTH * max(pace)]
    own = [sum(own_parts_us(facts).values()) for facts in slow]
    most = int(np.argmax(own))
    return slow[most] if own[0] < _SAME_LENGTH * own[most] else slow[0]


def _principal(found: Sequence[Finding]) -> Finding | None:
    """Choose the finding that decides: the largest bound, unless another one explains it."""
    grave = [finding for finding in found if finding.severity != "info"]
    bounded = [finding for finding in grave if finding.bound is not None]
    largest = max(bounded, key=_share, default=None)
    fatal = max(filter(_is_fatal, grave), key=lambda f: f.code in _IN_VAIN, default=None)
    if fatal is not None and (largest is None or _goes_before(fatal, largest)):
        return fatal
    if largest is None:
        # What was not measured is the last thing to blame.
        return max(grave, key=lambda f: f.code != "TIME001", default=None)
    for finding in bounded:
        assert finding.bound is not None
        assert largest.bound is not None
        same = finding.bound.part == largest.bound.part
        explains = _share(finding) >= _EXPLAINS * _share(largest)
        if same and explains and ENTRIES[finding.code].is_specific:
            return finding
    return largest


def _is_fatal(finding: Finding) -> bool:
    """Whether a finding is critical though no time is won by mending it: the run itself is lost."""
    return finding.severity == "critical" and finding.bound is None


def _goes_before(fatal: Finding, bounded: Finding) -> bool:
    """Steps that train nothing need not be fast; else what is critical goes before what is not."""
    return fatal.code in _IN_VAIN or bounded.severity != "critical"


def _ordered(found: Sequence[Finding], principal: Finding | None) -> tuple[Finding, ...]:
    return tuple(
        sorted(found, key=lambda f: (f is principal, _is_fatal(f), _share(f)), reverse=True)
    )


def _doubt(found: Sequence[Finding], facts: Facts) -> str | None:
    """Say why a run in which nothing is to mend is not called healthy all the same."""
    if _kernels_unseen(facts):
        return (
            "kernels were not looked at, so nothing tells whether the GPU works or idles; "
            f"{_what_shows_kernels(facts)}"
        )
    others = contention(facts)
    # A wait of a tenth or more is mere information only where others keep the processors busy.
    if others is None or not any(f.code == "DATA001" and f.severity == "info" for f in found):
        return None
    return (
        f"the host is shared, and whether the loop waits for data or for a processor cannot be "
        f"told: {others}; measure again when they are gone"
    )


def _outcome(principal: Finding | None, doubt: str | None) -> Outcome:
    if principal is None:
        return "healthy" if doubt is None else "not enough evidence"
    # What was not measured may hide anything: that is no verdict on what was.
    return "not enough evidence" if principal.code == "TIME001" else "bottleneck"


def _kernels_unseen(facts: Facts) -> bool:
    """Whether somebody's script runs on a GPU and its kernels were not looked at.

    What the host does then says nothing of whether the device idles, waits or computes slowly.
    """
    watched = facts.setup is not None or bool(_about(facts).get("attached"))
    return watched and facts.on_gpu and not facts.readings.all(Kernels)


def _what_shows_kernels(facts: Facts) -> str:
    """Say how kernels come to be looked at: behind the last of the steps that were asked for."""
    if _about(facts).get("steps_asked", 0) is None:
        return "only `pitstop doctor -- CMD` looks at them"
    fewer = facts.steps // 2
    # Of the steps asked for a few more are left out than warm-up: twice as many are surely enough.
    sooner = f", or give `--steps {fewer}`" if fewer >= 2 * _FEWEST_STEPS else ""
    return f"that comes behind the last of `--steps`: let it run longer{sooner}"


def _share(finding: Finding) -> float:
    return finding.bound.share if finding.bound is not None else 0.0


def _too_little(facts: Facts) -> str:
    if facts.steps >= _FEWEST_STEPS:
        return "the record holds no measured parts of the step"
    return f"{facts.steps} steps after warm-up are too few to judge; {_FEWEST_STEPS} are needed"


def _sentence(principal: Finding | None, facts: Facts) -> str:
    if principal is None:
        shares = {name: share for name, share in facts.shares().items() if name != "unaccounted"}
        surely = {name: share - 2 * facts.share_error(name) for name, share in shares.items()}
        name = max(surely, key=surely.__getitem__, default=None)
        most = f"most of the time is {name} ({shares[name]:.0%})" if name else "no time was seen"
        modules = slowest_modules(facts)
        inside = f", above all {modules[0]}" if modules else ""
        return (
            f"nothing holds this run back by a tenth or more, in {facts.steps} steps; "
            f"{most}{inside}"
        )
    if principal.bound is None or principal.bound.speedup is None:
        return principal.summary
    gain = f"{principal.bound.speedup:.2f}x"
    return f"{principal.summary}; mending it makes the run at most {gain} as fast"


def _whole_run_hours(facts: Facts) -> float | None:
    total = _total_steps(facts)
    return None if total is None else total * facts.total_us / facts.steps / 3.6e9


def _total_steps(facts: Facts) -> int | None:
    setup = facts.setup
    if setup is not None:
        return setup.total_steps
    about = _about(facts)
    config = about.get("config")
    train = config.get("train") if isinstance(config, Mapping) else None
    steps = about.get("total_steps") or (train.get("steps") if isinstance(train, Mapping) else None)
    return steps if isinstance(steps, int) and steps > 0 else None


def _about(facts: Facts) -> Mapping[str, Any]:
    """What the last attempt said of itself."""
    return facts.record.attempts[-1].about if facts.record.attempts else {}


def _notes(record: RunRecord, ranks: Sequence[Facts]) -> tuple[str, ...]:
    notes = [*record.notes, *(note for rank in record.ranks for note in rank.notes)]
    notes += [note for facts in ranks[:1] if (note := unsettled_growth(facts)) is not None]
    damaged = sum(facts.readings.damaged for facts in ranks)
    if damaged:
        notes.append(f"{damaged} readings could not be understood and were left out")
    return (*notes, *_ending_notes(record))


def _ending_notes(record: RunRecord) -> tuple[str, ...]:
    if not record.is_finished:
        return ("the run has no ending: it was killed, or it is still running",)
    endings = [rank.ending for rank in record.ranks if rank.ending is not None]
    bad = next((ending for ending in endings if ending.status != "finished"), None)
    return () if bad is None else (f"the run {bad.status}: {bad.reason}",)
