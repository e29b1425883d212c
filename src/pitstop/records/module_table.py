"""The parts of a model as a table of chosen length, and how much of the passes it explains."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module with everything inside it, or some of its siblings together."""

    name: str
    kind: str
    depth: int
    """0 for those inside no other row; a deeper one is part of the last above it that is not."""
    forward_us: float
    backward_us: float | None
    recompute_us: float
    share: float
    """Of the forward and the backward pass together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """All modules of one class together."""

    kind: str
    places: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTable:
    """Parts of a model, largest first, those inside others below them."""

    rows: tuple[ModuleRow, ...]
    basis: str
    """Which steps and whose clock, as text."""
    covers_forward: float | None
    """Share of the forward pass that lies in rows; None where the whole was not measured."""
    covers_backward: float | None
    """The same of the backward pass; None where it was not split."""
    kinds: tuple[KindRow, ...] = ()
    """Classes with several modules; they overlap where one holds the other."""
