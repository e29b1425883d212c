"""The verdict in one message: what decides, what is not known, what came once."""

from collections.abc import Mapping, Sequence
from typing import Final

from pitstop.doctor.doubts import modules_disagree, open_parts, parts_near_limit
from pitstop.doctor.estimate.unsampled import deciding_unsampled
from pitstop.doctor.facts import Facts
from pitstop.doctor.order import equals_of
from pitstop.doctor.rules.compute import slowest_modules
from pitstop.doctor.rules.stall import WORTH_A_LINE_US
from pitstop.records.units import listing, share_text, speedup_text, us_text
from pitstop.records.verdict import Finding

# A shorter stall is reported by its finding alone.
_WORTH_A_CLAUSE: Final = 0.10


def message_of(primary: Finding | None, findings: Sequence[Finding], facts: Facts) -> str:
    """Name the bottleneck, or say that there is none and where the time goes."""
    said = _nothing(facts) if primary is None else _bottleneck(primary, findings, facts)
    return said + _stalled(facts)


def largest_part(shares: Mapping[str, float]) -> str | None:
    """Name the largest part of the wall clock and its share."""
    name = max(shares, key=shares.__getitem__, default=None)
    if name is None:
        return None
    shown = "unaccounted for" if name == "unaccounted" else name
    lead = "most of the time is" if shares[name] > 1 / 2 else "the largest part is"
    return f"{lead} {shown} ({share_text(shares[name])})"


def _nothing(facts: Facts) -> str:
    on_device = _device_shares(facts)
    largest = largest_part(on_device or facts.shares()) or "no time was seen"
    near = listing(list(parts_near_limit(facts)))
    first = f"no bottleneck of 10% or more in {facts.steps} steps"
    if near:
        first = f"no certain bottleneck in {facts.steps} steps, but another run may report {near}"
    of_device = _of_device(facts, clock="device" if on_device else "host")
    return f"{first}; {largest}{_of_modules(facts)}{of_device}"


def _device_shares(facts: Facts) -> Mapping[str, float]:
    """Parts on the device's clock where the host mostly waits for it: a wait names no work."""
    shares = facts.shares()
    if facts.device is None or max(shares, key=shares.__getitem__, default="") != "wait":
        return {}
    return {part: share for part in facts.device.parts_us if (share := facts.device_share(part))}


def _of_modules(facts: Facts) -> str:
    modules, doubt = slowest_modules(facts), modules_disagree(facts)
    if not modules:
        return ""
    return f", mostly {modules[0]}" + ("" if doubt is None else f", uncertain: {doubt}")


def _of_device(facts: Facts, *, clock: str) -> str:
    """Say on whose clock a part is, for a host runs ahead of its device, and how busy that is."""
    busy = facts.busy_share() if facts.on_gpu else None
    if busy is None:
        return " on the device" if clock == "device" else ""
    return f" on the {clock}; the device is busy {share_text(busy)} of the time"


def _bottleneck(primary: Finding, findings: Sequence[Finding], facts: Facts) -> str:
    missing = deciding_unsampled(facts)
    were = "was" if missing == ("arithmetic",) else "were"
    before = f"{' and '.join(missing)} {were} not sampled; from the rest: " if missing else ""
    said = before + primary.summary
    if primary.bound is None or primary.bound.speedup is None:
        return said
    said += f"; fixing it makes the run up to {speedup_text(primary.bound.speedup)} faster"
    equals = equals_of(primary, findings)
    if equals:
        said += f"; {listing(equals, most=2)} {'is' if len(equals) == 1 else 'are'} about equal"
    doubts = [doubt for doubt in primary.doubts if not doubt.startswith("kernels were not")]
    # A part without a finding may be the larger one.
    larger = [why for _, most, why in open_parts(facts, findings) if most > primary.bound.share]
    doubts = [*doubts[:1], *larger]
    return said + (f"; uncertain: {listing(doubts)}" if doubts else "")


def _stalled(facts: Facts) -> str:
    lost_us = facts.stalled_us
    share = _WORTH_A_CLAUSE * (facts.total_us + lost_us)
    if lost_us < max(WORTH_A_LINE_US, share):
        return ""
    steps = list(dict.fromkeys(stall.step for stall in facts.stalls))  # one may stall in two parts
    said = f"step{'s' if len(steps) > 1 else ''} "
    said += listing(steps)
    return f"; also, {said} stalled for {us_text(lost_us)} (not included above)"
