"""Rules on the computing parts: optimizer, loss, recomputation, and what torch.compile did."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.numbers import spill, spread_ms
from pitstop.doctor.rules.bounded import bounded_finding
from pitstop.doctor.rules.places import places_of
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.sampled import estimate
from pitstop.doctor.thresholds import (
    LOSS_WORTH,
    OPTIMIZER_WORTH,
    WORTH_A_WARNING,
    is_sure,
    severity_of,
)
from pitstop.records.host.memory import MemoryReading
from pitstop.records.script import Compiled, Modules, ModuleTime, Owners
from pitstop.records.units import bytes_text, count_text, share_text, us_text
from pitstop.records.verdict import Bound, Finding, Severity

_UPDATE: Final = ("optimizer", "zero_grad", "clip")

# Above this share of the device's memory, recomputing is what makes the run fit.
_MEMORY_IS_TIGHT: Final = 0.8

# Single compiles after warm-up are usual (a last batch of another size); a series is not.
_MANY_RECOMPILES: Final = 3
# Modules took this much of forward and left as much of backward: the rest of it is not theirs.
_CLEAR_OF_MODULES: Final = 0.75
# One break may lie around a harmless line; several split the model.
_MANY_BREAKS: Final = 3


def optimizer_bound(facts: Facts) -> Finding | None:
    """Report a step whose update takes a quarter of it or more."""
    costs = {name: bound for name in _UPDATE if (bound := facts.cost(name)) is not None}
    if "optimizer" not in costs:
        return None
    share = min(1.0, sum(bound.share for bound in costs.values()))
    error = _error_of_sum(facts, tuple(costs))
    if share - 2 * error < OPTIMIZER_WORTH:
        return None
    parts = ", ".join(f"{name} {share_text(bound.share)}" for name, bound in costs.items())
    evidence = [
        f"{parts} of {facts.steps} steps",
        spread_ms(facts.parts_us["optimizer"]).replace("median", "optimizer: median", 1),
    ]
    setup = facts.setup
    kinds = () if setup is None else setup.optimizers
    if kinds:
        evidence.append(f"updated by {', '.join(kinds)}")
    evidence += places_of(facts, "optimizer")
    fused = any("fused" in kind for kind in kinds) or _is_fused(facts)
    whole = costs["optimizer"]
    return Finding(
        code="OPT001",
        # A fused update is as fast as it gets: what is left is to update less often.
        severity="info" if fused else severity_of(share),
        summary="updating the weights takes much of the step",
        evidence=tuple(evidence),
        bound=Bound(
            part="optimizer",
            share=share,
            error=error,
            pool=whole.pool,
            pool_share=max(whole.pool_share, share),
        ),
        remedy=remedy_for(facts, "OPT001"),
    )


def _error_of_sum(facts: Facts, parts: tuple[str, ...]) -> float:
    """Standard error of the share of several parts together."""
    times_us = np.sum([facts.parts_us[part] for part in parts], axis=0)
    return estimate(times_us, facts.sample, facts.wall_us).error_us / facts.total_us


def _is_fused(facts: Facts) -> bool:
    proof = facts.readings.proof("optimizer.kind")
    return proof is not None and bool(proof.get("fused"))


def loss_bound(facts: Facts) -> Finding | None:
    """Report a loss that takes a third of the step or more, its backward pass included."""
    bound = facts.cost("loss")
    if bound is None:
        return None
    back = _backward_of_loss(facts) if is_sure(facts, "loss", bound.share) else 0.0
    if not is_sure(facts, "loss", bound.share + back, least=LOSS_WORTH):
        return None
    evidence = [
        f"the loss took {share_text(bound.share, facts.share_error('loss'))} of {facts.steps} "
        "steps",
        spread_ms(facts.parts_us["loss"]),
    ]
    if back:
        evidence.append(
            f"its backward pass {share_text(back)}: what no module of the model took of backward"
        )
        share = min(1.0, bound.share + back)
        bound = replace(bound, share=share, pool_share=max(bound.pool_share, share))
    inner = {path[1]: us for path, us in facts.inner_us.items() if path[0] == "loss"}
    if inner:
        name = max(inner, key=inner.__getitem__)
        evidence.append(f"most of it in {name}: {share_text(inner[name] / facts.total_us)}")
    evidence += places_of(facts, "loss")
    summary = "computing the loss takes a third of the step or more"
    return bounded_finding(facts, "LOSS001", summary, bound=bound, evidence=evidence)


def _backward_of_loss(facts: Facts) -> float:
    """Share of the wall clock that a loss takes in backward; 0 where it may be the model's.

    A loop over samples makes as many operations for backward as it runs itself. They are in no
    module: where modules took most of forward and little of backward, the rest is the loss's.
    """
    found, whole = facts.readings.last(Modules), facts.cost("backward")
    if found is None or whole is None or not (found.forward_us and found.backward_us):
        return 0.0
    parts = _outermost(found)
    ahead = sum(part.forward_us for part in parts) / found.forward_us
    rest = 1 - sum(part.backward_us or 0 for part in parts) / found.backward_us
    return whole.share * rest if min(ahead, rest) >= _CLEAR_OF_MODULES else 0.0


def recompute_cost(facts: Facts) -> Finding | None:
    """Report activations that are computed a second time where memory would hold them."""
    share = _own_share(facts) if facts.is_engine_run else _script_share(facts)
    if share is None or share < WORTH_A_WARNING:
        return None
    used = _memory_used(facts)
    evidence = [
        f"recomputing the forward pass in backward takes {share_text(share)} of {facts.steps} steps"
    ]
    evidence += [] if used is None else [f"{share_text(used)} of the device's memory is used"]
    if (facts.readings.proof("train.recompute") or {}).get("policy") == "selective":
        evidence.append(
            "selective recomputation also slows the first forward pass (not included): "
            "train.recompute: none may gain more"
        )
    tight = used is not None and used >= _MEMORY_IS_TIGHT
    return Finding(
        code="RECOMP001",
        severity="info" if tight else severity_of(share),
        summary="activations are computed a second time in backward",
        evidence=tuple(evidence),
        # Of the wall clock, on a GPU too: gaps in what runs again go with it.
        bound=Bound(part="backward: recompute", share=share),
        remedy=tuple(_recompute_remedy(facts, tight=tight)),
    )


def _recompute_remedy(facts: Facts, *, tight: bool) -> Iterator[str]:
    """Advise to keep activations, with the memory there is for them.

    How much they take is not recorded, so whether they fit can only be tried.
    """
    first, *rest = remedy_for(facts, "RECOMP001")
    free = _free_memory(facts)
    known = "free memory was not measured" if free is None else f"{free} is free"
    yield f"{first}: {'it may well not fit' if tight else 'try it, it may not fit'}, {known}"
    yield from rest


def _free_memory(facts: Facts) -> str | None:
    """Say how much memory activations could take, beside the peak of the steps."""
    owners = facts.readings.last(Owners)
    if owners is not None and owners.peak_bytes is not None and owners.total_bytes:
        free = owners.total_bytes - owners.peak_bytes
        return f"{bytes_text(free)} of the device's {bytes_text(owners.total_bytes)}"
    memory = facts.readings.last(MemoryReading)
    if memory is None:
        return None
    known = [device for device in memory.devices if device.total_bytes]
    if known:
        least = min(known, key=lambda each: (each.total_bytes or 0) - each.peak_allocated_bytes)
        total = least.total_bytes or 0
        return (
            f"{bytes_text(total - least.peak_allocated_bytes)} of the device's {bytes_text(total)}"
        )
    limit, used = memory.limit_bytes, memory.used_bytes
    if facts.on_gpu or limit is None or used is None:
        return None
    return f"{bytes_text(limit - used)} of the host's {bytes_text(limit)}"


def _own_share(facts: Facts) -> float | None:
    """Share that the engine recomputed, by its spans; on a GPU the host's time says nothing."""
    again = facts.recomputed
    if again is None or not facts.total_us:
        return None
    if not facts.on_gpu:
        return min(1.0, again.host_us / facts.total_us)
    return None if again.device_share is None else again.device_share * facts.steps_share


def _script_share(facts: Facts) -> float | None:
    """Share that somebody's script recomputed: parts named so, or like parts of forward."""
    inner = facts.inner_us
    again = [
        us
        for path, us in inner.items()
        if path[0] == "backward" and (path[1] == "recompute" or ("forward", path[1]) in inner)
    ]
    return sum(again) / facts.total_us if again and facts.total_us else None


def _memory_used(facts: Facts) -> float | None:
    """Share of the device's memory that tensors held at the peak."""
    owners = facts.readings.last(Owners)
    if owners is not None and owners.peak_bytes is not None and owners.total_bytes:
        return owners.peak_bytes / owners.total_bytes
    memory = facts.readings.last(MemoryReading)
    devices = () if memory is None else memory.devices
    shares = [each.peak_allocated_bytes / each.total_bytes for each in devices if each.total_bytes]
    return max(shares, default=None)


def recompilation(facts: Facts) -> Finding | None:
    """Report a model that is recompiled after warm-up."""
    compiled = facts.readings.last(Compiled)
    if compiled is None or not compiled.recompiles_after_warm_up:
        return None
    spent_us = compiled.compile_after_warm_up_us
    share = max(spent_us / facts.total_us if facts.total_us else 0.0, facts.share("compile") or 0.0)
    spill_share = facts.spill("compile").most_us / max(1.0, facts.total_us)
    share = min(1.0, share + spill_share)
    many = compiled.recompiles_after_warm_up >= _MANY_RECOMPILES
    if share < WORTH_A_WARNING and not many:
        return None
    severity: Severity = severity_of(share)
    if many and severity == "info":
        severity = "warning"
    # Where its time is known, so are the steps that it fell in; in evaluations it is their time.
    outside = facts.outside.get("compile")
    once = bool(spent_us) and (outside is None or outside.count == 1)
    return Finding(
        code="COMPILE001",
        severity="info" if once else severity,
        summary="the model is recompiled after warm-up",
        evidence=(
            f"{count_text(compiled.recompiles_after_warm_up, 'recompile')} after warm-up, "
            f"{us_text(spent_us)} of {us_text(facts.total_us)}",
            *spill(facts, "compile"),
            *(("in one training step only: whether it recurs is not known",) if once else ()),
            *compiled.reasons[:3],
        ),
        bound=Bound(part="compile", share=share),
        remedy=remedy_for(facts, "COMPILE001"),
    )


def graph_breaks(facts: Facts) -> Finding | None:
    """Report a compiled model that graph breaks split."""
    counts = _breaks(facts)
    if counts is None:
        return None
    breaks, graphs, reasons = counts
    if not breaks:
        return None
    return Finding(
        code="COMPILE002",
        severity="warning" if breaks >= _MANY_BREAKS else "info",
        summary="graph breaks split the compiled model",
        evidence=(f"{count_text(breaks, 'break')}, {count_text(graphs, 'graph')}", *reasons[:3]),
        # What a break costs does not follow from the count.
        bound=None,
        remedy=remedy_for(facts, "COMPILE002"),
    )


def _breaks(facts: Facts) -> tuple[int, int, tuple[str, ...]] | None:
    compiled = facts.readings.last(Compiled)
    if compiled is not None:
        return compiled.graph_breaks, compiled.graphs, compiled.reasons
    proof = facts.readings.proof("train.compile.scope")
    found: Any = None if proof is None else proof.get("breaks")
    if proof is None or not isinstance(found, Mapping):
        return None
    counts = [count for count in found.values() if isinstance(count, int)]
    return sum(counts), int(proof.get("graphs") or 0), tuple(map(str, found))


def slowest_modules(facts: Facts) -> tuple[str, ...]:
    """Name the parts of the model that take most of a sampled step, for the healthy verdict."""
    found = facts.readings.last(Modules)
    if found is None:
        return ()
    outermost = _outermost(found)
    whole = sum(module.both_us for module in outermost)
    ordered = sorted(outermost, key=lambda module: module.both_us, reverse=True)
    return tuple(
        f"{module.name} ({module.kind}) {share_text(module.both_us / max(1, whole))}"
        for module in ordered[:3]
    )


def _outermost(found: Modules) -> list[ModuleTime]:
    """Parts side by side: of one that holds all others, those inside it."""
    parts = [one for one in found.modules if one.parent is None]
    while len(parts) == 1:
        around = found.modules.index(parts[0])
        inside = [one for one in found.modules if one.parent == around]
        if not inside:
            break
        parts = inside
    return parts
