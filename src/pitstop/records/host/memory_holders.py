"""Who holds the memory of a full host: the job or others, and which of their processes."""

from collections.abc import Sequence
from typing import Final

from pitstop.records.host.memory import MemoryHolder, MemoryReading
from pitstop.records.units import bytes_text

NEARLY_FULL: Final = 0.9
"""Share of the memory from which on it is asked who holds it."""
MOST_HOLDERS: Final = 3
"""Processes named, of the job and of the others."""

# A process below this share of what is used explains nothing.
_WORTH_NAMING: Final = 0.01


def held_by_others(reading: MemoryReading) -> int | None:
    """Bytes that are used and not the job's; None where either is not known."""
    if reading.used_bytes is None or reading.tree is None:
        return None
    return max(0, reading.used_bytes - reading.tree.tree_bytes)


def holders_text(reading: MemoryReading) -> str | None:
    """Say what is used, and how much of it the job and others hold; None where it is not known."""
    others = held_by_others(reading)
    if others is None or reading.tree is None or reading.limit_bytes is None:
        return None
    used = reading.used_bytes or 0
    named = [
        holder for holder in reading.holders or () if holder.resident_bytes >= _WORTH_NAMING * used
    ]
    ours = [holder for holder in named if holder.role in ("main process", "child process")]
    rest = [holder for holder in named if holder not in ours]
    job = f"{_processes(reading.tree.processes)} {bytes_text(reading.tree.tree_bytes)}"
    return (
        f"{bytes_text(used)} of {bytes_text(reading.limit_bytes)} used; this job's {job}"
        f"{_largest(ours[:1])}, everything else {bytes_text(others)}{_largest(rest)}"
    )


def _processes(count: int) -> str:
    return "process holds" if count == 1 else f"{count} processes hold"


def _largest(holders: Sequence[MemoryHolder]) -> str:
    text = ", ".join(
        f"{holder.name}{'' if holder.role == 'other' else f', {holder.role},'} "
        f"{bytes_text(holder.resident_bytes)}"
        for holder in holders
    )
    return f" (largest: {text})" if text else ""
