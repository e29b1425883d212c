"""What findings advise, as settings: the configuration of the next run follows from the verdict.

`remedies` gives it as text, to people; here is the part of it that a setting alone can do, as data.
A finding that is not listed, or whose fix is in place already, changes nothing.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pitstop.records.verdict import Finding, Verdict

# What a cadence should cost at most once it is fixed.
_CADENCE_SHARE: Final = 0.02
# Steps between records that cost nothing worth speaking of, as `remedies` has it.
_SELDOM_STEPS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that a finding asks to be another."""

    code: str
    """The finding that asks for it."""
    key: str
    """The setting's whole name, such as ``loader.workers``."""
    before: object
    after: object

    @property
    def override(self) -> str:
        """The change as one writes it on a command line; JSON, which is YAML as well."""
        return f"{self.key}={json.dumps(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A finding, and what its fix depends on."""

    finding: Finding
    now: object
    """The setting as the run had it."""
    cores: int
    """Cores that the run may use."""


Value = Callable[[Case], object]
"""Gives the setting's new value; the present one where it should stay."""


def more_workers(case: Case) -> object:
    """Leave one core to the training process; a fraction or `auto` decides by itself already."""
    return max(case.now, _spare(case)) if isinstance(case.now, int) else case.now


def fewer_workers(case: Case) -> object:
    """Keep no more workers than there are cores beside the training process."""
    return min(case.now, _spare(case)) if isinstance(case.now, int) else case.now


def less_often(case: Case) -> object:
    """Lengthen an interval until it costs a fiftieth of the run, to a round number of steps."""
    bound = case.finding.bound
    if not isinstance(case.now, int) or bound is None or bound.share >= 1:
        return case.now
    paid = bound.share / (1 - bound.share)
    wanted = case.now * paid * (1 - _CADENCE_SHARE) / _CADENCE_SHARE
    return max(case.now, round_up(wanted))


def seldom(case: Case) -> object:
    """Write down every fiftieth step; what is written less often or never stays so."""
    return max(case.now, _SELDOM_STEPS) if isinstance(case.now, int) else case.now


def always(value: object) -> Value:
    """Give the same value whatever the case."""
    return lambda _: value


ADVISED: Final[Mapping[str, Mapping[str, Value]]] = {
    "DATA001": {"loader.workers": more_workers},
    "DATA002": {"loader.persistent": always(value=True)},
    "DATA004": {"loader.workers": fewer_workers},
    "COPY001": {"loader.pin": always(value=True)},
    "RECOMP001": {"train.recompute": always("none")},
    "EVAL001": {"eval.every_steps": less_often},
    "CKPT001": {"checkpoint.every_steps": less_often},
    "LOG001": {
        "log.every_steps": seldom,
        "log.progress_every_steps": seldom,
        "log.memory_every_steps": seldom,
        "log.norm_every_steps": seldom,
        "log.tensorboard": always(value=False),
    },
}
"""Settings by finding. All of them change how fast a run is and none what it computes."""


def changes_for(verdict: Verdict, settings: Mapping[str, Any], *, cores: int) -> tuple[Change, ...]:
    """Turn the findings of a run into settings of the next one, the most severe finding first.

    Args:
        verdict: On a run of pitstop's own engine.
        settings: The run's configuration, sections within sections.
        cores: Cores that the run may use.
    """
    found: dict[str, Change] = {}
    for finding in verdict.findings:
        if finding.severity == "info":
            continue
        for key, value in ADVISED.get(finding.code, {}).items():
            now = _setting(settings, key)
            after = value(Case(finding=finding, now=now, cores=cores))
            if after != now and key not in found:
                found[key] = Change(code=finding.code, key=key, before=now, after=after)
    return tuple(found.values())


def round_up(value: float) -> int:
    """Give the next number of the row 1, 2, 5, 10, 20, 50, ..."""
    power = 10 ** max(0, math.floor(math.log10(max(1.0, value))))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _spare(case: Case) -> int:
    return max(1, case.cores - 1)


def _setting(settings: Mapping[str, Any], key: str) -> object:
    value: Any = settings
    for name in key.split("."):
        value = value[name]
    return value
