"""Rules over several ranks: who is waited for, and what exchanging gradients costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.host_lines import lines_of_part, logging_lines
from pitstop.doctor.readings import Exchange
from pitstop.doctor.rules.machine import host_is_full, ranks_fill_host
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.thresholds import WORTH_A_WARNING, severity_of
from pitstop.records.units import share_text, us_text
from pitstop.records.verdict import Bound, Finding, Severity

# More waiting than this is not explained by taking turns on the processors.
_BEYOND_CROWDING: Final = 0.3

# Where a rank that is ahead waits for the others: the exchange is in there.
_WAITING_PARTS: Final = ("backward", "sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The rank that the others wait for."""

    facts: Facts
    excess_us: float
    """Own work of a step beyond that of the median rank."""
    part: str
    """Where it exceeds the median rank most."""
    part_excess_us: float


def own_parts_us(facts: Facts) -> dict[str, float]:
    """Mean time of a step by part, less those in which a rank waits for others.

    On the device's clock where there is one: there the host's parts overlap with computing.
    """
    if facts.device is not None:
        scale = 1 / facts.device.steps
        found = {name: us * scale for name, us in facts.device.parts_us.items()}
    else:
        found = {name: facts.mean_us(us) for name, us in facts.parts_us.items()}
    return {name: us for name, us in found.items() if name not in _WAITING_PARTS}


def find_straggler(ranks: Sequence[Facts]) -> Straggler | None:
    """Find the rank with most work of its own; None with one rank alone."""
    settled = [facts for facts in ranks if facts.steps]
    if len(settled) < 2:
        return None
    parts = [own_parts_us(facts) for facts in settled]
    own = [sum(found.values()) for found in parts]
    slowest = int(np.argmax(own))
    others = [found for number, found in enumerate(parts) if number != slowest]
    excess = _excess(parts[slowest], others)
    part = max(excess, key=excess.__getitem__, default=None)
    if part is None:
        return None
    middle = float(np.median([sum(found.values()) for found in others]))
    return Straggler(
        facts=settled[slowest],
        excess_us=max(0.0, own[slowest] - middle),
        part=part,
        part_excess_us=excess[part],
    )


def _excess(slow: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        name: us - float(np.median([other.get(name, 0.0) for other in others]))
        for name, us in slow.items()
    }


def straggler(ranks: Sequence[Facts]) -> Finding | None:
    """Report a rank that does more than the others, who wait for it in every exchange."""
    found = find_straggler(ranks)
    if found is None:
        return None
    facts = found.facts
    share = min(1.0, found.excess_us * facts.steps / facts.total_us) if facts.total_us else 0.0
    if share < WORTH_A_WARNING:
        return None
    own = [sum(own_parts_us(other).values()) for other in ranks if other.steps]
    rank = facts.summary.rank
    return Finding(
        code="COMM002",
        severity=_severity(facts, share),
        summary=f"rank {rank} is slower than the others, which wait for it: {found.part}",
        evidence=(
            f"rank {rank} works {us_text(max(own))} per step, the others "
            f"{us_text(min(own))} to {us_text(float(np.sort(own)[-2]))}",
            f"{found.part} takes {us_text(found.part_excess_us)} longer than on the median rank",
        ),
        bound=Bound(part=_part_that_goes(found), share=share),
        remedy=_straggler_remedy(found),
    )


def _part_that_goes(found: Straggler) -> str:
    """Name the part as the rule on it does, so that no time counts twice: logging has its own."""
    host = lines_of_part(found.facts, "host") if found.part == "host" else None
    if host is None or host.share_of(logging_lines(found.facts, host)) < 1 / 2:
        return found.part
    return "logging"


def _straggler_remedy(found: Straggler) -> tuple[str, ...]:
    host = found.facts.record.attempts[-1].host if found.facts.record.attempts else None
    place = "" if host is None else f" (host {host})"
    if found.part == "data":
        return (
            f"check why its samples come later{place}: its volume, its workers, another job there",
            "give every rank the same number of samples, and spread long ones over all ranks",
        )
    return (
        f"check what differs there{place}: another job, throttled clocks, longer samples",
        "keep work of one rank alone (logging, saving) short, or do it outside the step",
    )


def communication(ranks: Sequence[Facts]) -> Finding | None:
    """Report an exchange of gradients that computing does not hide.

    The rank that waits least shows the exchange itself; the others also wait for slower ranks.
    """
    exposed = [(share, facts) for facts in ranks if (share := _exposed_share(facts)) is not None]
    if len(ranks) < 2 and not any(facts.summary.world_size > 1 for facts in ranks):
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
        exposed = min(exposed, backward)
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
    if reading is not None:
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
