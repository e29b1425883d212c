"""What looking through a stored dataset found; the looking is a workload's own."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFound:
    """What one part of a dataset holds."""

    sequences: int
    files: Mapping[str, int]
    """Files by kind."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCheck:
    """A dataset that was read through."""

    root: str
    workload: str
    packed: bool
    splits: Mapping[str, SplitFound]
    problems: tuple[str, ...]
    """What is missing or cannot be read, each with its name; empty where all is well."""
    notes: tuple[str, ...]
    """What was not checked, and why."""
    took_s: float
