"""Rules over several ranks: who is waited for, and what exchanging gradients costs."""

from collections.abc import Iterable
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.doctor.host_lines import lines_of_part, logging_lines
from pitstop.doctor.ranks.slow import SlowGroup
from pitstop.doctor.ranks.together import Ranks
from pitstop.doctor.ranks.words import group_text, moments_text, steps_text
from pitstop.doctor.readings import Exchange
from pitstop.doctor.rules.machine import host_is_full, ranks_fill_host
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.thresholds import WORTH_A_WARNING, severity_of
from pitstop.records.units import share_text, us_text
from pitstop.records.verdict import Bound, Finding, Severity

# More waiting than this is not explained by taking turns on the processors.
_BEYOND_CROWDING: Final = 0.3


def straggler(ranks: Ranks) -> Finding | None:
    """Report a rank or a host that does more than the others, who wait for it in every exchange."""
    # Of a run that is being written another rank may be the slowest than when steps were chosen.
    known = ((group, ranks.of(group.slowest.rank)) for group in ranks.slow)
    found, facts = next(((group, facts) for group, facts in known if facts), (None, None))
    if found is None or facts is None:
        return None
    several = len({one.host for one in ranks.times}) > 1
    return Finding(
        code="COMM002",
        severity=_severity(facts, found.share_now),
        summary=_straggler_summary(found, with_host=several),
        evidence=tuple(_straggler_evidence(found, ranks, with_host=several)),
        bound=Bound(part=_part_that_goes(found.part, facts), share=found.share),
        remedy=_straggler_remedy(found),
    )


def _straggler_summary(found: SlowGroup, *, with_host: bool) -> str:
    who = group_text(found, with_host=with_host)
    said = f"{who} is slower than the others, which wait for it: {found.part}"
    if found.is_host:
        said = f"{who} are slower than the others, which wait for them: {found.part}"
    when = steps_text(found.when)
    return said if when is None else f"{when}, {said}"


def _straggler_evidence(found: SlowGroup, ranks: Ranks, *, with_host: bool) -> Iterable[str]:
    group = [one.whole_own_us for one in found.ranks]
    numbers = {one.rank for one in found.ranks}
    others = [one.whole_own_us for one in ranks.times if one.steps and one.rank not in numbers]
    slowest, most, low, high = found.slowest, us_text(group[0]), min(others), max(others)
    longer = us_text(found.part_excess_us)
    if found.is_host:
        least = us_text(group[-1])
        yield (
            f"ranks of {slowest.host} work {least} to {most} per step, "
            f"the others {us_text(low)} to {us_text(high)}"
        )
        yield f"{found.part} takes {longer} longer on rank {slowest.rank} than on the median rank"
    else:
        yield (
            f"rank {slowest.rank} works {most} per step, "
            f"the others {us_text(low)} to {us_text(high)}"
        )
        yield f"{found.part} takes {longer} longer than on the median rank"
    moment = moments_text(found.when)
    if moment is not None:
        yield f"{moment}; while it lasts, {share_text(found.when.share)} of a step"
    for other in (group for group in ranks.slow if group is not found):
        who, when = group_text(other, with_host=with_host), steps_text(other.when)
        who = who if when is None else f"{when}, {who}"
        yield f"also {who}: {other.part}, {share_text(other.when.share)} of a step"


def _part_that_goes(part: str, facts: Facts) -> str:
    """Name the part as the rule on it does, so that no time counts twice: logging has its own."""
    host = lines_of_part(facts, "host") if part == "host" else None
    if host is None or host.share_of(logging_lines(facts, host)) < 1 / 2:
        return part
    return "logging"


def _straggler_remedy(found: SlowGroup) -> tuple[str, ...]:
    host = found.slowest.host
    place = "" if host is None else f" (host {host})"
    if found.is_host:
        return (
            f"check what differs on host {host}: another job, throttled clocks, its disk and "
            "network; run pitstop machine there and on another host",
            "leave the host out until it is as fast as the others",
        )
    if found.part == "data":
        return (
            f"check why its samples come later{place}: its volume, its workers, another job there",
            "give every rank the same number of samples, and spread long ones over all ranks",
        )
    return (
        f"check what differs there{place}: another job, throttled clocks, longer samples",
        "keep work of one rank alone (logging, saving) short, or do it outside the step",
    )


def communication(ranks: Ranks) -> Finding | None:
    """Report an exchange of gradients that computing does not hide.

    The rank that waits least shows the exchange itself; the others also wait for slower ranks.
    """
    facts_of_ranks = ranks.facts
    exposed = [(share, one) for one in facts_of_ranks if (share := _exposed_share(one)) is not None]
    if len(ranks.times) < 2 and not any(one.summary.world_size > 1 for one in facts_of_ranks):
        return None
    if not exposed:
        return None
    share, facts = min(exposed, key=lambda pair: pair[0])
    if share < WORTH_A_WARNING:
        return None
    return Finding(
        code="COMM001",
        severity=_severity(facts, share),
        summary="the step waits for gradient synchronization",
        evidence=tuple(_exchange_evidence(facts, share)),
        bound=Bound(part="exchange", share=max(share, _most_share(facts) or 0.0)),
        remedy=remedy_for(facts, "COMM001"),
    )


def _severity(facts: Facts, share: float) -> Severity:
    """Grade a wait between ranks; on a host without a spare core a short one is no rank's fault.

    Ranks that take turns on the processors, with other jobs or whatever else runs there, wait for
    each other all the time.
    """
    return "info" if _is_crowded(facts) and share < _BEYOND_CROWDING else severity_of(share)


def _is_crowded(facts: Facts) -> bool:
    return host_is_full(facts) or ranks_fill_host(facts)


def _exposed_share(facts: Facts) -> float | None:
    reading = facts.readings.last(Exchange)
    sync = facts.share("sync")
    if (reading is None and sync is None) or not facts.total_us:
        return None
    exposed = 0.0 if reading is None else reading.exposed_us * facts.steps / facts.total_us
    # It is timed in some backward passes, perhaps long ones; it cannot exceed what all of them
    # took. On a device the host's share of them says nothing.
    backward = None if facts.on_gpu else facts.share("backward")
    if backward is not None:
        # A divided model is gathered in the forward pass as well.
        forward = facts.share("forward") if reading is not None and reading.gather_us else None
        exposed = min(exposed, backward + (forward or 0.0))
    return min(1.0, exposed + (sync or 0.0))


def _most_share(facts: Facts) -> float | None:
    """Share that exchanging costs at most, where it runs on processors that computing needs.

    What overlaps with computing is then not free: computing waits for a core meanwhile. Gradients
    that are copied into the exchange and out of it take their time, too, and nobody times it. All
    of that lies in the backward pass, of which as much as a forward pass is surely computing. None
    where there are cores to spare, or no exchange was timed.
    """
    reading, backward = facts.readings.last(Exchange), facts.share("backward")
    if reading is None or backward is None or facts.on_gpu or not _is_crowded(facts):
        return None
    beside = min(backward, reading.whole_us * facts.steps / facts.total_us)
    forward = facts.share("forward")
    most = beside if forward is None else max(beside, backward - forward)
    return min(1.0, most + (facts.share("sync") or 0.0))


def _exchange_evidence(facts: Facts, share: float) -> list[str]:
    ranks = f"{facts.summary.world_size} ranks"
    evidence = [
        f"{share_text(share)} of {facts.steps} steps on the rank that waits least of {ranks}"
    ]
    reading = facts.readings.last(Exchange)
    if reading is not None and reading.gather_us is not None and reading.reduce_us is not None:
        evidence.append(
            f"gathering weights takes {us_text(reading.gather_us)} a step and dividing gradients "
            f"{us_text(reading.reduce_us)}, of which {us_text(reading.overlapped_us)} overlaps "
            "with computing"
        )
    elif reading is not None:
        evidence.append(
            f"one gradient sync takes {us_text(reading.exchange_us)}, of which "
            f"{us_text(reading.overlapped_us)} overlaps with computing"
        )
        count = reading.exchanges_per_step
        if count is not None and count > 1:
            evidence.append(f"{count:.1f} syncs per update; one is enough")
    sync = facts.share("sync")
    if sync:
        evidence.append(f"{share_text(sync)} in collectives outside the backward pass")
    if facts.micro_steps is not None and facts.micro_steps > 1:
        evidence.append(f"{facts.micro_steps:g} micro-batches make one update")
    return evidence
