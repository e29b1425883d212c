"""The choices that are open to a configuration, as the grid that the search walks on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pitstop.tune.knobs import OWN, At, Choice, Knob
from pitstop.tune.search import Axis, Point

Objection = Callable[[Choice], str | None]
"""Says why a choice cannot or may not be tried; None where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Knobs with their open choices."""

    knobs: tuple[Knob[Any], ...]
    choices: tuple[tuple[Choice, ...], ...]
    """For each knob; the configuration's own is among them."""
    left_out: tuple[str, ...]
    """Choices that cannot or may not be tried, each with its reason."""

    def axes(self, promises: Mapping[str, float]) -> list[Axis]:
        """Lay out the axes; `promises` are findings with the share that their fix can save."""
        return [
            Axis(
                name=knob.name,
                choices=len(choices),
                own=choices.index(OWN),
                ordered=knob.ordered,
                side=knob.side,
                promise=max((promises.get(code, 0.0) for code in knob.asked_by), default=0.0),
            )
            for knob, choices in zip(self.knobs, self.choices, strict=True)
        ]

    def overrides(self, point: Point) -> tuple[str, ...]:
        """Give the settings that a point changes."""
        chosen = (choices[at] for choices, at in zip(self.choices, point, strict=True))
        return tuple(override for choice in chosen for override in choice)

    @property
    def own(self) -> Point:
        """Where the given configuration stands."""
        return tuple(choices.index(OWN) for choices in self.choices)


def open_space(knobs: Sequence[Knob[At]], at: At, objection: Objection) -> Space:
    """Ask every knob for its choices, and leave out what cannot or may not be tried."""
    kept: list[Knob[At]] = []
    choices: list[tuple[Choice, ...]] = []
    left_out: list[str] = []
    for knob in knobs:
        offered = knob.choices(at)
        reasons = {one: objection(one) for one in offered if one != OWN}
        left_out += [f"{' '.join(one)}: {why}" for one, why in reasons.items() if why]
        tried = tuple(one for one in offered if not reasons.get(one))
        if len(tried) > 1:
            kept.append(knob)
            choices.append(tried)
    return Space(knobs=tuple(kept), choices=tuple(choices), left_out=tuple(left_out))
