"""The vocabulary of the tables that say what became of an old key."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

Column = Literal["ran", "wanted"]
"""What the old code did with a key, or what its author wanted from it."""


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
class KeyVerdict:
    """What becomes of one old key; `key` and `value` are ours, where there are any.

    Attributes:
        status: What became of it.
        key: Our setting.
        value: Its value.
        reason: Why.
        also: Further settings that follow from the same key.
        wanted: What the author wanted from it, where the old code did something else.
    """

    status: Status
    key: str | None = None
    value: Any = None
    reason: str = ""
    also: Mapping[str, Any] = field(default_factory=dict)
    wanted: "KeyVerdict | None" = None

    def under(self, column: Column) -> "KeyVerdict":
        """Give what holds in one of the two columns."""
        return self.wanted if column == "wanted" and self.wanted is not None else self

    def settings(self) -> dict[str, Any]:
        """Give all settings that follow."""
        return ({} if self.key is None else {self.key: self.value}) | dict(self.also)


def changed(
    key: str, value: Any, reason: str = "", *, also: Mapping[str, Any] | None = None
) -> KeyVerdict:
    """Our setting, with another value than the old one."""
    return KeyVerdict(status=Status.CHANGED, key=key, value=value, reason=reason, also=also or {})


def renamed(
    key: str, value: Any, reason: str = "", *, also: Mapping[str, Any] | None = None
) -> KeyVerdict:
    """Our setting, with the same value under another name."""
    return replace(changed(key, value, reason, also=also), status=Status.RENAMED)


def refused(reason: str) -> KeyVerdict:
    """Nothing of ours: the value cannot be had here."""
    return KeyVerdict(status=Status.REFUSED, reason=reason)


def had_no_effect(reason: str, *, wanted: KeyVerdict | None = None) -> KeyVerdict:
    """Nothing of ours: the original never acted on it."""
    return KeyVerdict(status=Status.NO_EFFECT, reason=reason, wanted=wanted)


def has_no_counterpart(reason: str) -> KeyVerdict:
    """Nothing of ours stands for it."""
    return KeyVerdict(status=Status.NO_COUNTERPART, reason=reason)


Judge = Callable[[OldKey], KeyVerdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """All that is known of one guide's configuration.

    Attributes:
        name: The guide's workload.
        kind: The model whose settings a part without one is checked against.
        find: Gives the judge of a key; None for a key that is not known.
        fixed: Settings the original's code decided: our key to value and reason. A part of a
            configuration gets none of them.
        missing: Says what a configuration lacks to be a whole run.
        refusals: Says which keys ask for what is not built here, by key, with the reason.
    """

    name: str
    kind: str
    find: Callable[[str], Judge | None]
    fixed: Mapping[str, tuple[Any, str]]
    missing: Callable[[Mapping[str, Any]], tuple[str, ...]]
    refusals: Callable[[Mapping[str, Any]], dict[str, str]] = lambda _: {}


def keep(key: str, reason: str = "") -> Judge:
    """Take the value over as it is."""

    def judge(old: OldKey) -> KeyVerdict:
        same_name = old.name.rpartition(".")[2].lower() == key.rpartition(".")[2]
        status = Status.APPLIED if same_name else Status.RENAMED
        return KeyVerdict(status=status, key=key, value=old.value, reason=reason)

    return judge


def change(key: str, convert: Callable[[OldKey], Any], reason: str) -> Judge:
    """Take the value over with a correction."""
    return lambda old: changed(key, convert(old), reason)


def never_ran(wanted: Judge, reason: str) -> Judge:
    """State that the original never acted on the key, and what its author wanted from it."""
    return lambda old: had_no_effect(reason, wanted=wanted(old))


def in_lower_case(key: str) -> Judge:
    """Take a word over, in lower case."""
    return change(key, lambda old: str(old.value).lower(), "in lower case")


def share_of_peak(lowest: float, peak: float) -> KeyVerdict:
    """State the lowest rate of a schedule as a share of its highest one."""
    share = float(f"{lowest / peak:.12g}")
    return changed("schedule.end_factor", share, f"a share of the peak, {lowest:g} / {peak:g}")


def lacks(wanted: Mapping[str, tuple[str, ...]]) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    """Name the parts of a run of which no key is there; a key stands for all below it."""

    def missing(values: Mapping[str, Any]) -> tuple[str, ...]:
        def has(key: str) -> bool:
            return any(name == key or name.startswith(f"{key}.") for name in values)

        return tuple(part for part, keys in wanted.items() if not any(has(key) for key in keys))

    return missing


def other_values(
    values: Mapping[str, Any], known: Mapping[str, tuple[Any, ...]], *, here: str
) -> dict[str, str]:
    """Name the keys whose values are none of those that are known, by key, with the reason."""
    return {
        key: f"{key} is {values[key]}; {here} is {ours[0]}"
        for key, ours in known.items()
        if values.get(key) is not None and values[key] not in ours
    }


def no_effect(reason: str) -> Judge:
    """State that the original never acted on the key."""
    return lambda _: had_no_effect(reason)


def no_counterpart(reason: str) -> Judge:
    """State that the key has nothing to stand for it here."""
    return lambda _: has_no_counterpart(reason)


def find_judge(name: str, keys: Mapping[str, Judge], families: Mapping[str, Judge]) -> Judge | None:
    """Look a key up: by its whole name, else by the longest family that it belongs to."""
    parts = name.split(".")
    groups = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return keys.get(name) or next((families[one] for one in groups if one in families), None)


def is_true(value: Any) -> bool:
    """Read a switch the way YAML does."""
    return str(value).strip().lower() in {"true", "yes", "on", "1"}


def number(value: Any) -> float | None:
    """Read a number; None where it is none."""
    try:
        return float(str(value))
    except ValueError:
        return None
