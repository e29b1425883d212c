"""The guides' configurations in, ours out, with an account of every key.

Nothing is executed. A key is applied, renamed, changed with the reason said, shown to have had no
effect in the original, or named as having no counterpart; a key nobody knows is listed too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pitstop.config.dump import to_yaml
from pitstop.config.legacy.bev import BEV_GUIDE
from pitstop.config.legacy.deblur import DEBLUR_GUIDE
from pitstop.config.legacy.python import read_python
from pitstop.config.legacy.reid import REID_GUIDE
from pitstop.config.legacy.verdicts import Guide, OldKey, Status, Verdict
from pitstop.config.load import LoadedConfig, config_from
from pitstop.config.problems import ConfigProblems, Problem, shorten
from pitstop.config.yaml.files import read_text
from pitstop.config.yaml.tree import read_tree
from pitstop.errors import ConfigError

GUIDES: Final = (DEBLUR_GUIDE, REID_GUIDE)
PYTHON_GUIDES: Final = (BEV_GUIDE,)
"""Guides whose configurations are Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAccount:
    """What became of one key of the old configuration.

    Attributes:
        old_key: The key as it was written.
        old_value: Its value as it was written.
        status: What became of it.
        key: Our setting; None where there is none.
        value: The value of our setting, as YAML would show it.
        reason: Why, where the status alone does not say it.
    """

    old_key: str
    old_value: str
    status: Status
    key: str | None
    value: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A setting the original had fixed in its code, written down so that it is not lost."""

    key: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyImport:
    """A converted configuration.

    Attributes:
        source: Where the old configuration came from.
        guide: Which guide's keys it uses.
        accounts: Every old key, in the order of the file.
        additions: What the original's code decided and its configuration did not say.
        warnings: What our loader has to say about the result.
        yaml: The new configuration; our loader accepts it as it stands.
    """

    source: str
    guide: str
    accounts: tuple[KeyAccount, ...]
    additions: tuple[Addition, ...]
    warnings: tuple[str, ...]
    yaml: str

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain lists, dicts and text."""
        return asdict(self)


def import_legacy(old: Path | str) -> LegacyImport:
    """Convert a configuration of one of the guides.

    Args:
        old: A path for a file, YAML or Python by its ending; a str for YAML text itself.

    Raises:
        ConfigError: If it cannot be read or uses no key of the guides.
    """
    source, text = (str(old), read_text(old)) if isinstance(old, Path) else ("text", old)
    if isinstance(old, Path) and old.suffix == ".py":
        values = dict(_flat(read_python(text, source), ""))
        guide = _recognise(values, source, PYTHON_GUIDES)
    else:
        values = _yaml_values(text, source)
        guide = _recognise(values, source, GUIDES)
    verdicts = {name: _judge(guide, name, values) for name in values}
    loaded, settled = _settle(verdicts, guide, source)
    added = {key: reason for key, (_, reason) in guide.fixed.items() if key in loaded.written}
    taken = {verdict.key for verdict in settled.values()}
    header = f"# Converted from {shorten(source, limit=200)} by `pitstop config import`.\n"
    return LegacyImport(
        source=source,
        guide=guide.name,
        accounts=tuple(_account(name, values[name], verdict) for name, verdict in settled.items()),
        additions=tuple(
            Addition(key=key, value=shorten(guide.fixed[key][0], limit=200), reason=reason)
            for key, reason in added.items()
            if key not in taken
        ),
        warnings=tuple(f"{risk.key} {risk.message}" for risk in loaded.warnings),
        yaml=header + to_yaml(loaded.config, only=loaded.written),
    )


def refuse_to_overwrite(path: Path) -> None:
    """Stand between a conversion and a file that is already there.

    Raises:
        ConfigError: If there is something at `path`.
    """
    if path.exists():
        raise ConfigError(f"{path} is already there; name another file, or remove it first")


def _yaml_values(text: str, source: str) -> dict[str, Any]:
    tree = read_tree(text, source)
    if tree.problems:
        raise ConfigProblems(source, tree.problems)
    values = dict(_flat(tree.values, ""))
    if "model.kind" in values:
        raise ConfigError(
            f"{source} is a pitstop configuration already; try `pitstop config check {source}`"
        )
    return values


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _recognise(values: Mapping[str, Any], source: str, guides: Sequence[Guide]) -> Guide:
    known = {guide.name: sum(guide.find(name) is not None for name in values) for guide in guides}
    best = max(guides, key=lambda guide: known[guide.name])
    if known[best.name] == 0:
        raise ConfigError(f"{source} has no key of the guides; nothing to convert")
    return best


def _judge(guide: Guide, name: str, values: Mapping[str, Any]) -> Verdict:
    judge = guide.find(name)
    if judge is None:
        return Verdict(status=Status.UNKNOWN, reason="no guide is known to have this key")
    if values[name] is None:
        return Verdict(status=Status.NO_EFFECT, reason="it has no value")
    return judge(OldKey(name=name, value=values[name], values=values))


def _settle(
    verdicts: Mapping[str, Verdict], guide: Guide, source: str
) -> tuple[LoadedConfig, dict[str, Verdict]]:
    """Find the largest part of the result our loader accepts, and say why the rest is out."""
    settled = _without_rivals(verdicts)
    fixed = {key: value for key, (value, _) in guide.fixed.items()}
    while True:
        settings = _settings(settled, fixed)
        try:
            return config_from(_nested(settings)), settled
        except ConfigProblems as error:
            culprits = {
                key: problem
                for problem in error.problems
                for key in settings
                if key == problem.key or key.startswith(f"{problem.key}.")
            }
            if not culprits:
                raise ConfigError(f"{source} cannot be converted: {error}") from error
            fixed = {key: value for key, value in fixed.items() if key not in culprits}
            settled = {
                name: _refuse(verdict, culprits.get(verdict.key or ""))
                for name, verdict in settled.items()
            }


def _without_rivals(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Keep one old key for each setting of ours; a second that disagrees is refused."""
    winners: dict[str, tuple[str, Verdict]] = {}
    kept: dict[str, Verdict] = {}
    for name, verdict in verdicts.items():
        first, winner = winners.setdefault(verdict.key or name, (name, verdict))
        if str(winner.value) == str(verdict.value):
            kept[name] = verdict
        else:
            reason = f"{verdict.key} is already {shorten(winner.value)} from {first}"
            kept[name] = replace(verdict, status=Status.REFUSED, key=None, reason=reason)
    return kept


def _settings(verdicts: Mapping[str, Verdict], fixed: Mapping[str, Any]) -> dict[str, Any]:
    taken = {verdict.key: verdict.value for verdict in verdicts.values() if verdict.key}
    unset = {"train.epochs"} if "train.steps" in taken else set()
    return {key: value for key, value in fixed.items() if key not in unset} | taken


def _refuse(verdict: Verdict, problem: Problem | None) -> Verdict:
    if problem is None:
        return verdict
    inert = problem.message.startswith("has no effect")
    status = Status.NO_EFFECT if inert else Status.REFUSED
    return Verdict(status=status, reason=f"{verdict.key} {problem.message}")


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *groups, leaf = key.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[leaf] = value
    return tree


def _account(name: str, value: Any, verdict: Verdict) -> KeyAccount:
    return KeyAccount(
        old_key=shorten(name, limit=120),
        old_value=shorten(value, limit=120),
        status=verdict.status,
        key=verdict.key,
        value=None if verdict.key is None else shorten(verdict.value, limit=120),
        reason=verdict.reason,
    )
