"""The vocabulary of the tables that say what became of an old key."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """What became of a key."""

    APPLIED = "applied"
    RENAMED = "renamed"
    CHANGED = "changed"
    NO_EFFECT = "no effect"
    NO_COUNTERPART = "no counterpart"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class OldKey:
    """One key of the old configuration, with the whole of it at hand."""

    name: str
    value: Any
    values: Mapping[str, Any]

    def other(self, name: str, default: Any = None) -> Any:
        """Look at another key of the same configuration."""
        return self.values.get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of one old key; `key` and `value` are ours, where there are any."""

    status: Status
    key: str | None = None
    value: Any = None
    reason: str = ""


Judge = Callable[[OldKey], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """All that is known of one guide's configuration.

    Attributes:
        name: The guide's workload.
        find: Gives the judge of a key; None for a key that is not known.
        fixed: Settings the original's code decided: our key to value and reason.
    """

    name: str
    find: Callable[[str], Judge | None]
    fixed: Mapping[str, tuple[Any, str]]


def keep(key: str, reason: str = "") -> Judge:
    """Take the value over as it is."""

    def judge(old: OldKey) -> Verdict:
        same_name = old.name.rpartition(".")[2].lower() == key.rpartition(".")[2]
        status = Status.APPLIED if same_name else Status.RENAMED
        return Verdict(status=status, key=key, value=old.value, reason=reason)

    return judge


def change(
    key: str, convert: Callable[[OldKey], Any], reason: str | Callable[[OldKey], str]
) -> Judge:
    """Take the value over with a correction."""

    def judge(old: OldKey) -> Verdict:
        why = reason if isinstance(reason, str) else reason(old)
        return Verdict(status=Status.CHANGED, key=key, value=convert(old), reason=why)

    return judge


def no_effect(reason: str | Callable[[OldKey], str]) -> Judge:
    """State that the original never acted on the key."""

    def judge(old: OldKey) -> Verdict:
        return Verdict(
            status=Status.NO_EFFECT, reason=reason if isinstance(reason, str) else reason(old)
        )

    return judge


def no_counterpart(reason: str) -> Judge:
    """State that the key has nothing to stand for it here."""
    return lambda _: Verdict(status=Status.NO_COUNTERPART, reason=reason)


def is_true(value: Any) -> bool:
    """Read a switch the way YAML does."""
    return str(value).strip().lower() in {"true", "yes", "on", "1"}


def number(value: Any) -> float | None:
    """Read a number; None where it is none."""
    try:
        return float(str(value))
    except ValueError:
        return None
