"""Rules on what happens every so often: evaluation, checkpoints, logging, and what has no name."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.host_lines import (
    HostTime,
    is_sync,
    line_text,
    lines_of_part,
    logging_lines,
    may_load,
)
from pitstop.doctor.numbers import spill, spread_ms
from pitstop.doctor.outside_steps import total_us
from pitstop.doctor.rules.bounded import bounded_finding
from pitstop.doctor.rules.device import hidden_sync_share
from pitstop.doctor.rules.fitting import EVALUATION_WORKERS
from pitstop.doctor.rules.loader_advice import VECTORISE, cores_taken, if_it_loads
from pitstop.doctor.rules.places import (
    acts_between_updates,
    places_of,
    steps_environments,
    works_on_gradients,
)
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.doctor.thresholds import HOST_WORTH, WORTH_A_WARNING, is_sure, severity_of
from pitstop.records.script import HostLines
from pitstop.records.units import count_text, share_text, us_text
from pitstop.records.verdict import Bound, Finding

# From here on the shares of all named parts are off by more than the findings they decide.
_UNACCOUNTED: Final = 0.10

# Names under which engines and scripts keep what they write down.
_LOG_NAMES: Final = ("log", "logging", "progress", "memory")

_LONGER: Final = (
    "measure more steps, `pitstop doctor --steps 1000 -- CMD`: too few stack samples "
    "to name the lines"
)
_CLIP: Final = (
    "gradients by one call: torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT), which "
    "gives their norm as well"
)

_ACTING: Final = "acting in environments takes much of the run"

# Names that have a rule of their own.
_NAMED: Final = ("evaluation", "checkpoint", "epoch boundary", "compile", *_LOG_NAMES)

# What measuring itself adds between the parts of a sampled step: 40 to 48 us were measured
# in steps of 0.2 ms that do nothing there.
_WATCHING_US: Final = 50.0

# What has no name is not known to be useless, so it takes a fifth to report it.
_OUTSIDE: Final = 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Share of the run on some lines, from stack samples of the training thread."""

    share: float
    error: float
    """One standard error."""
    most: float
    """Two standard errors more, and never more than the parts that hold the lines."""
    text: tuple[str, ...] = ()
    """Lines that cost most."""


def evaluation(facts: Facts) -> Finding | None:
    """Report a run that spends a tenth of its time or more on evaluations."""
    if acts_between_updates(facts):
        return None
    found = _cadence(facts, "evaluation", "EVAL001", "evaluating takes much of the run")
    if found is None or cores_taken(facts) is None:
        return found
    return replace(found, remedy=tuple(fix for fix in found.remedy if fix != EVALUATION_WORKERS))


def checkpoint(facts: Facts) -> Finding | None:
    """Report a run that spends a tenth of its time or more on saving checkpoints."""
    return _cadence(facts, "checkpoint", "CKPT001", "saving checkpoints takes much of the run")


def _cadence(facts: Facts, name: str, code: str, summary: str) -> Finding | None:
    share, most, outside = facts.whole_share(name), facts.most_share(name), facts.outside.get(name)
    # One that takes longer, as the first does where it compiles or starts workers, is no cadence.
    once_us = 0.0 if outside is None else outside.once_us
    if share is None or most is None or share - once_us / facts.total_us < WORTH_A_WARNING:
        return None
    evidence = [f"{share_text(share)} of the time after warm-up, in {facts.steps} steps"]
    if outside is not None:
        every = facts.steps / outside.count
        evidence.append(f"{count_text(outside.count, 'time')}, one per {every:.0f} steps")
        evidence.append(spread_ms(np.array(outside.times_us)))
        evidence += spill(facts, name)
        evidence += places_of(facts, name)
    # Of one alone the distance to the next is not known, nor, so, the share of a longer run.
    is_rhythm = outside is None or outside.count > 1
    if not is_rhythm:
        evidence.append("it happened once: the interval is not known")
    return Finding(
        code=code,
        severity=severity_of(share) if is_rhythm else "info",
        summary=summary,
        evidence=tuple(evidence),
        bound=Bound(part=name, share=most, error=cadence_error(facts, name)),
        remedy=remedy_for(facts, code),
    )


def cadence_error(facts: Facts, name: str) -> float:
    """Standard error of the share of what comes now and then.

    A run of the same length may meet one more of them or one fewer, evenly likely in between; the
    jackknife would take each for chance, though they come at even distances.
    """
    outside = facts.outside.get(name)
    if outside is None or not outside.count or not facts.total_us:
        return facts.share_error(name)
    return outside.total_us / outside.count / facts.total_us / float(np.sqrt(12))


def logging(facts: Facts) -> Finding | None:
    """Report a run that spends a tenth of its time or more on logging."""
    outside_share = total_us(facts.outside, _LOG_NAMES) / facts.total_us if facts.total_us else 0.0
    spans = [name for name in _LOG_NAMES if name in facts.parts_us]
    inside_us = sum(facts.inside_us(facts.parts_us[name]) for name in spans)
    span_share = inside_us / max(1, facts.total_us)
    found = [host for part in _sampled_parts(facts) if (host := lines_of_part(facts, part))]
    lines = _logging_lines(facts, found)
    inside = _of_host(facts, span_share + lines.share)
    bound = _of_host(facts, span_share + lines.most)
    if inside is None or bound is None:
        return None
    share = min(1.0, outside_share + inside.share)
    errors = [2 * facts.share_error(name) for name in spans]
    if share - 2 * lines.error - sum(errors) < WORTH_A_WARNING:
        return None
    evidence = [*lines.text]
    if outside_share or span_share:
        evidence.insert(
            0,
            f"{share_text(outside_share + span_share)} of the time in: "
            + ", ".join((*spans, *(n for n in _LOG_NAMES if n in facts.outside))),
        )
    bound = replace(bound, error=float(np.hypot(lines.error, sum(errors) / 2)))
    if outside_share:
        share_of_all = min(1.0, outside_share + bound.share)
        bound = Bound(part="logging", share=share_of_all, error=bound.error)
    return Finding(
        code="LOG001",
        severity=severity_of(share),
        summary="logging takes much of the step",
        evidence=(f"{share_text(share, lines.error)} of {facts.steps} steps", *evidence),
        bound=bound,
        remedy=remedy_for(facts, "LOG001"),
    )


def _of_host(facts: Facts, share: float) -> Bound | None:
    if not facts.on_gpu:
        return Bound(part="logging", share=min(1.0, share))
    if facts.idle_share() is not None:
        return facts.of_idle("logging", share)
    waste = facts.waste("host")
    if waste is None:
        return None if share else Bound(part="logging", share=0.0)
    return Bound(part="logging", share=min(share, waste.share))


def _sampled_parts(facts: Facts) -> list[str]:
    found = facts.readings.last(HostLines)
    if found is None:
        return []
    # What lies in a span named after logging counts whole; a part without a share has no scale.
    parts = {line.part for line in found.lines}
    return sorted(part for part in parts if part in facts.parts_us and part not in _LOG_NAMES)


def _logging_lines(facts: Facts, found: list[HostTime]) -> Sampled:
    """Share of the run on lines that log."""
    total, sampling, scales, parts, costly = 0.0, 0.0, 0.0, 0.0, []
    for host in found:
        lines = [line for line in logging_lines(facts, host) if not is_sync(facts, line)]
        if not lines:
            continue
        scale = facts.share(host.part) or 0.0
        share = host.share_of(lines)
        total += scale * share
        parts += scale
        sampling += (scale * host.error_of(share)) ** 2
        scales += (share * facts.share_error(host.part)) ** 2
        for line in lines[:3]:
            cost = scale * line.samples / host.samples
            costly.append((cost, f"{share_text(cost)} at {line_text(line)}"))
    costly.sort(reverse=True)
    return Sampled(
        share=total,
        error=float(np.sqrt(sampling + scales)),
        most=min(parts, total + 2 * float(np.sqrt(sampling))),
        text=tuple(text for _, text in costly[:3]),
    )


def host_work(facts: Facts) -> Finding | None:
    """Report Python between the parts of the step, naming the lines that cost most.

    A policy that acts between updates counts here, as one does that acts within its steps.
    """
    whole = facts.share("host") or 0.0
    acting = (facts.whole_share("evaluation") or 0.0) if acts_between_updates(facts) else 0.0
    host = lines_of_part(facts, "host")
    share, error, evidence, loads = whole, 0.0, [], not facts.is_engine_run
    if host is not None:
        logs = logging_lines(facts, host)
        own = [line for line in host.lines if line not in logs and not is_sync(facts, line)]
        part = host.share_of(own)
        share, error = whole * part, whole * host.error_of(part)
        evidence = [
            f"{share_text(whole * line.samples / host.samples)} at {line_text(line)}"
            for line in own[:4]
        ]
        loads = loads and any(may_load(facts, line) for line in own[:1])
    elif (hidden := hidden_sync_share(facts)) is not None:
        share = max(0.0, whole - hidden)
    elif not acting:
        return None
    bound = facts.waste("host", share)
    most = facts.waste("host", min(whole, share + 2 * error))
    if bound is None or most is None:
        return None
    sure = bound.share + acting - 2 * error - _watching_share(facts)
    if not is_sure(facts, "host", sure, least=HOST_WORTH):
        return None
    fix = remedy_for(facts, "HOST001")
    fix = fix if evidence else (_LONGER, *fix[1:])
    if acting or steps_environments(facts, "host"):
        fix, loads = (VECTORISE, *fix), False
    elif works_on_gradients(facts, "host"):
        fix, loads = (_CLIP, *fix), False
    both = float(np.hypot(error, facts.share_error("host")))
    first = f"Python outside the parts of the step took {share_text(share, both)} of {facts.steps}"
    return Finding(
        code="HOST001",
        severity=severity_of(bound.share + acting),
        summary=_ACTING if acting > share else "other Python code takes much of the step",
        evidence=(*_acted(facts, acting), f"{first} steps", *evidence),
        bound=replace(most, share=min(1.0, most.share + acting), error=both),
        remedy=_with_loading(facts, fix) if loads else fix,
    )


def _acted(facts: Facts, share: float) -> tuple[str, ...]:
    if not share:
        return ()
    said = f"{share_text(share)} in passes of a model set to evaluate, which step environments"
    return said, *places_of(facts, "evaluation")


def _with_loading(facts: Facts, fix: tuple[str, ...]) -> tuple[str, ...]:
    """Add what to do with lines that make batches: last where a loader makes those of training."""
    loaders = () if facts.setup is None else facts.setup.loaders
    loading = (if_it_loads(facts),)
    return fix + loading if any(loader.trains for loader in loaders) else loading + fix


def _watching_share(facts: Facts) -> float:
    """Share of the run that lies between the parts of a step only because it is watched."""
    return _WATCHING_US * facts.steps / facts.total_us if facts.setup is not None else 0.0


def unaccounted_time(facts: Facts) -> Finding | None:
    """Report a run with a tenth of its time or more in no span: the verdict may miss it."""
    share = facts.shares().get("unaccounted")
    if share is None or share < _UNACCOUNTED:
        return None
    return Finding(
        code="TIME001",
        severity="warning",
        summary="part of the step was not measured",
        evidence=(f"{share_text(share)} of the wall clock of {facts.steps} steps is in no span",),
        # Naming what was not measured makes nothing faster; what it holds is not known.
        bound=None,
        remedy=remedy_for(facts, "TIME001"),
    )


def time_outside_steps(facts: Facts) -> Finding | None:
    """Report a fifth of the run or more outside steps, under names that no other rule has."""
    others = [name for name in facts.outside if name not in _NAMED]
    share = total_us(facts.outside, others) / facts.total_us if facts.total_us else 0.0
    if share < _OUTSIDE:
        return None
    others.sort(key=lambda name: -facts.outside[name].total_us)
    evidence = tuple(
        f"{name}: {count_text(facts.outside[name].count, 'time')}, "
        f"{us_text(facts.outside[name].total_us)}"
        for name in others[:3]
    )
    return bounded_finding(
        facts,
        "OUTSIDE001",
        "much of the run is spent outside steps",
        bound=Bound(part="outside steps", share=share),
        evidence=(f"{share_text(share)} of the run was outside training steps", *evidence),
    )
