"""Rules on the run as a whole: losses that are no numbers, settings that did nothing or harm."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.numbers import place_text
from pitstop.doctor.readings import EngineWarning
from pitstop.doctor.rules.remedies import remedy_for
from pitstop.records.script import Compiled, Setup, Work
from pitstop.records.units import count_text, listing, share_text
from pitstop.records.verdict import Finding

# A dynamic loss scale leaves a step out now and then; more than this is not its normal behaviour.
_USUAL_SKIPS: Final = 0.02

_SLOWED_BY_ANOMALIES: Final = ("forward", "loss", "backward")

_NARROW: Final = ("bfloat16", "float16", "bf16", "fp16", "half")


def non_finite(facts: Facts) -> Finding | None:
    """Report losses that are not finite, and updates that were skipped for that."""
    evidence: list[str] = []
    ended_bad = False
    for name, series in facts.record.scalars.items():
        if "loss" not in name.lower() or name.startswith("eval/") or not len(series.value):
            continue
        bad = ~np.isfinite(series.value)
        if bad.any():
            first = int(series.step[bad][0])
            count = f"{int(bad.sum())} of {count_text(len(bad), 'value')}"
            evidence.append(f"{name}: {count} not finite, the first at step {first}")
            ended_bad = ended_bad or bool(bad[-1])
    skipped = [r for r in facts.readings.all(EngineWarning) if r.about == "nonfinite"]
    share = len(skipped) / max(1, facts.summary.steps)
    if share > _USUAL_SKIPS:
        evidence.append(
            f"{count_text(len(skipped), 'update')} skipped ({share_text(share)} of all)"
        )
    if not evidence:
        return None
    return Finding(
        code="NAN001",
        severity="critical" if ended_bad else "warning",
        summary="the loss is not a finite number",
        evidence=tuple(evidence),
        bound=None,
        remedy=remedy_for(facts, "NAN001"),
    )


def without_effect(facts: Facts) -> Finding | None:
    """Report settings of a script that did nothing."""
    setup = facts.setup
    if setup is None:
        return None
    found = [*_arithmetic(facts, setup), *_loading(setup), *_compiling(facts)]
    if not found:
        return None
    return Finding(
        code="SETTING001",
        severity="warning" if any(expected for _, _, expected in found) else "info",
        summary=f"a setting has no effect: {listing([what for what, _, _ in found], most=2)}",
        evidence=tuple(what for what, _, _ in found),
        bound=None,
        remedy=tuple(fix for _, fix, _ in found),
    )


def debugging_left_on(facts: Facts) -> Finding | None:
    """Report anomaly detection that is on while the steps are measured.

    What it costs is not known before it is off, so no gain is promised; the parts that it slows are
    named with their share.
    """
    setup = facts.setup
    if setup is None or not setup.anomaly_detection:
        return None
    shares = facts.shares()
    slowed = sum(shares.get(part, 0.0) for part in _SLOWED_BY_ANOMALIES)
    evidence = ["it keeps a stack for every operation and looks for NaN in every gradient"]
    if slowed:
        evidence.append(f"forward and backward, which it slows, took {share_text(slowed)}")
    return Finding(
        code="DEBUG001",
        severity="warning",
        summary="anomaly detection is on in every step",
        evidence=tuple(evidence),
        bound=None,
        remedy=remedy_for(facts, "DEBUG001"),
    )


# What does nothing, what to do, and whether something was expected of it.
_Idle = tuple[str, str, bool]


def _arithmetic(facts: Facts, setup: Setup) -> Iterator[_Idle]:
    work = facts.readings.last(Work)
    if setup.autocast in _NARROW and work is not None and work.flops:
        narrow = sum(n for name, n in work.flops_by_dtype.items() if "16" in name)
        if narrow < work.flops / 2:
            yield (
                f"autocast to {setup.autocast} covers {share_text(narrow / work.flops)} of the "
                "FLOPs",
                "put forward and loss inside torch.autocast, and remove .float() in the model",
                True,
            )
    if setup.scaler and setup.autocast not in ("float16", "fp16", "half"):
        yield (
            f"a GradScaler without float16 (autocast: {setup.autocast or 'off'})",
            "remove the GradScaler: only float16 needs it",
            False,
        )


def _loading(setup: Setup) -> Iterator[_Idle]:
    on_cpu = setup.device is not None and setup.device.startswith("cpu")
    if on_cpu and any(loader.pinned for loader in setup.loaders if loader.trains):
        yield ("pin_memory=True without a GPU", "remove pin_memory", False)


def _compiling(facts: Facts) -> Iterator[_Idle]:
    """Find calls of torch.compile whose results no step called: only calling them compiles."""
    compiled = facts.readings.last(Compiled)
    if compiled is not None and compiled.calls and not compiled.graphs:
        at = "" if compiled.place is None else f" (last at {place_text(compiled.place)})"
        yield (
            f"torch.compile was called {count_text(compiled.calls, 'time')}{at} and compiled "
            "nothing: "
            "no step calls what it returned",
            "use what it returns: model = torch.compile(model); or model.compile()",
            True,
        )
