"""The guides' configurations in, ours out, with an account of every key.

Nothing is executed. A key is applied, renamed, changed with the reason said, shown to have had no
effect in the original, or named as having no counterpart; a key nobody knows is listed too.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pitstop.config.dump import to_yaml
from pitstop.config.legacy.bev import BEV_GUIDE
from pitstop.config.legacy.deblur import DEBLUR_GUIDE
from pitstop.config.legacy.kair import KAIR_GUIDE
from pitstop.config.legacy.presets import Nearest, nearest_preset
from pitstop.config.legacy.reid import REID_GUIDE
from pitstop.config.legacy.sources import Form, OldFile, read_old
from pitstop.config.legacy.verdicts import Column, Guide, KeyVerdict, OldKey, Status
from pitstop.config.load import LoadedConfig, config_from
from pitstop.config.problems import ConfigProblems, Problem, shorten
from pitstop.errors import ConfigError

GUIDES: Final[Mapping[Form, tuple[Guide, ...]]] = {
    "json": (KAIR_GUIDE,),
    "mmcv": (BEV_GUIDE,),
    "classes": (REID_GUIDE, DEBLUR_GUIDE),
    "yaml": (DEBLUR_GUIDE, REID_GUIDE),
}
"""Guides by the form of their configurations."""
_SECRET: Final = ("api_key", "token", "password", "secret")


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
        ran: Our settings for what the old code did with it; None where it did nothing.
        wanted: Our settings for what its author wanted from it; None where there is none.
    """

    old_key: str
    old_value: str
    status: Status
    key: str | None
    value: str | None
    reason: str
    ran: str | None
    wanted: str | None


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
        yaml: The new configuration; our loader accepts it as it stands, unless parts are missing.
        column: Whether it holds what ran or what was wanted.
        missing: What the old configuration lacks to be a whole run; then nothing is added.
        bases: Files the old configuration is laid over.
        nearest: The preset that differs least, and in which settings.
    """

    source: str
    guide: str
    accounts: tuple[KeyAccount, ...]
    additions: tuple[Addition, ...]
    warnings: tuple[str, ...]
    yaml: str
    column: Column
    missing: tuple[str, ...]
    bases: tuple[str, ...]
    nearest: Nearest | None

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain lists, dicts and text."""
        return asdict(self)


def import_legacy(old: Path | str, *, column: Column = "ran") -> LegacyImport:
    """Convert a configuration of one of the guides.

    Args:
        old: A path for a file, its form by its ending; a str for YAML text itself.
        column: Whether to write what the old code did, or what was wanted from it.

    Raises:
        ConfigError: If it cannot be read, uses no key of the guides, or asks for a network or
            data that is not built here.
    """
    file = read_old(old)
    guide = _recognise(file)
    _refuse_strangers(file, guide)
    missing = guide.missing(file.values)
    verdicts = {name: _judge(guide, name, file.values) for name in file.values}
    chosen = {name: verdict.under(column) for name, verdict in verdicts.items()}
    fixed = {} if missing else guide.fixed
    part_of = guide.kind if missing else None
    loaded, settled = _settle(chosen, fixed, file.source, part_of=part_of)
    taken = {key for verdict in settled.values() for key in verdict.settings()}
    added = {key: reason for key, (_, reason) in fixed.items() if key in loaded.written - taken}
    only = _with_groups(taken | added.keys(), loaded.written)
    return LegacyImport(
        source=file.source,
        guide=guide.name,
        accounts=tuple(
            _account(name, file.values[name], verdicts[name], {column: verdict})
            for name, verdict in settled.items()
        ),
        additions=tuple(
            Addition(key=key, value=shorten(fixed[key][0], limit=200), reason=reason)
            for key, reason in added.items()
        ),
        warnings=tuple(f"{risk.key} {risk.message}" for risk in loaded.warnings),
        yaml=_header(file.source, column, missing) + to_yaml(loaded.config, only=only),
        column=column,
        missing=missing,
        bases=file.bases,
        nearest=nearest_preset(loaded.config, only),
    )


def _header(source: str, column: Column, missing: tuple[str, ...]) -> str:
    kind = "what ran" if column == "ran" else "what was wanted"
    name = shorten(source, limit=200)
    header = f"# Converted from {name} by `pitstop config import`: {kind}.\n"
    if missing:
        header += (
            f"# A part: it lacks {', '.join(missing)}. Name it under `base:` of a whole one.\n"
        )
    return header


def _refuse_strangers(file: OldFile, guide: Guide) -> None:
    refusals = guide.refusals(file.values)
    if refusals:
        reasons = [f"{why} ({_short(file, key)})" for key, why in refusals.items()]
        first = file.place(next(iter(refusals)))
        raise ConfigError(f"{first}: is not converted: {'; '.join(reasons)}")


def refuse_to_overwrite(path: Path) -> None:
    """Stand between a conversion and a file that is already there.

    Raises:
        ConfigError: If there is something at `path`.
    """
    if path.exists():
        raise ConfigError(f"{path} is already there; name another file, or remove it first")


def _short(file: OldFile, key: str) -> str:
    return file.place(key).replace(f"{file.source}:", "line ")


def _recognise(file: OldFile) -> Guide:
    guides = GUIDES[file.form]
    known = {
        guide.name: sum(guide.find(name) is not None for name in file.values) for guide in guides
    }
    best = max(guides, key=lambda guide: known[guide.name])
    if known[best.name] == 0:
        raise ConfigError(f"{file.source} has no key of the guides; nothing to convert")
    return best


def _judge(guide: Guide, name: str, values: Mapping[str, Any]) -> KeyVerdict:
    judge = guide.find(name)
    if judge is None:
        return KeyVerdict(status=Status.UNKNOWN, reason="no guide is known to have this key")
    if values[name] is None:
        return KeyVerdict(status=Status.NO_EFFECT, reason="it has no value")
    return judge(OldKey(name=name, value=values[name], values=values))


_STAND_IN_STEPS: Final = 1_000_000_000


def _settle(
    verdicts: Mapping[str, KeyVerdict],
    fixed_by: Mapping[str, tuple[Any, str]],
    source: str,
    *,
    part_of: str | None,
) -> tuple[LoadedConfig, dict[str, KeyVerdict]]:
    """Find the largest part of the result our loader accepts, and say why the rest is out.

    `part_of` is the model whose settings a part of a configuration belongs to.
    """
    settled = _without_rivals(verdicts)
    fixed = {key: value for key, (value, _) in fixed_by.items()}
    while True:
        settings = _settings(settled, fixed)
        try:
            whole = settings if part_of is None else _completed(settings, part_of)
            return config_from(_nested(whole)), settled
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
            settled = {name: _without(verdict, culprits) for name, verdict in settled.items()}


def _completed(settings: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Give a part what our loader asks for; none of it is written down."""
    length = {} if "train.epochs" in settings else {"train.steps": _STAND_IN_STEPS}
    # Batches of people: each of the two numbers must suit the other one, whichever is there.
    batch = settings.get("data.records_per_id", 4)
    people = {
        "train.batch_size": batch,
        "data.records_per_id": settings.get("train.batch_size", batch),
    }
    return {"model.kind": kind} | length | (people if kind == "clip_reid" else {}) | dict(settings)


def _without(verdict: KeyVerdict, culprits: Mapping[str, Problem]) -> KeyVerdict:
    if verdict.key is not None and verdict.key in culprits:
        return _refuse(verdict, culprits[verdict.key])
    also = {key: value for key, value in verdict.also.items() if key not in culprits}
    return replace(verdict, also=also)


def _without_rivals(verdicts: Mapping[str, KeyVerdict]) -> dict[str, KeyVerdict]:
    """Keep one old key for each setting of ours; a second that disagrees is refused."""
    winners: dict[str, tuple[str, KeyVerdict]] = {}
    kept: dict[str, KeyVerdict] = {}
    for name, verdict in verdicts.items():
        first, winner = winners.setdefault(verdict.key or name, (name, verdict))
        if str(winner.value) == str(verdict.value):
            kept[name] = verdict
        else:
            reason = f"{verdict.key} is already {shorten(winner.value)} from {first}"
            kept[name] = replace(verdict, status=Status.REFUSED, key=None, also={}, reason=reason)
    return kept


def _settings(verdicts: Mapping[str, KeyVerdict], fixed: Mapping[str, Any]) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    for verdict in verdicts.values():
        taken |= verdict.settings()
    unset = {"train.epochs"} if "train.steps" in taken else set()
    return {key: value for key, value in fixed.items() if key not in unset} | taken


def _with_groups(keys: Collection[str], written: Iterable[str]) -> frozenset[str]:
    """Add the groups around settings, and what stands inside of those that are mappings."""
    parts = [key.split(".") for key in keys]
    groups = {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}
    inside = {name for name in written if any(name.startswith(f"{key}.") for key in keys)}
    return frozenset(groups | inside)


def _refuse(verdict: KeyVerdict, problem: Problem) -> KeyVerdict:
    inert = problem.message.startswith("has no effect")
    status = Status.NO_EFFECT if inert else Status.REFUSED
    return KeyVerdict(status=status, reason=f"{verdict.key} {problem.message}")


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *groups, leaf = key.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[leaf] = value
    return tree


def _account(
    name: str, value: Any, both: KeyVerdict, settled: Mapping[Column, KeyVerdict]
) -> KeyAccount:
    """Account for a key; of the column that is written, `settled` is what our loader accepted."""
    [verdict] = settled.values()
    is_secret = name.lower().endswith(_SECRET) and value is not None
    return KeyAccount(
        old_key=shorten(name, limit=120),
        old_value="(not shown)" if is_secret else shorten(value, limit=120),
        status=verdict.status,
        key=verdict.key,
        value=None if verdict.key is None else shorten(verdict.value, limit=120),
        reason=verdict.reason,
        ran=_shown(settled.get("ran", both.under("ran"))),
        wanted=_shown(settled.get("wanted", both.under("wanted"))),
    )


def _shown(verdict: KeyVerdict) -> str | None:
    pairs = [f"{key} = {_text(value)}" for key, value in verdict.settings().items()]
    return ", ".join(pairs) or None


def _text(value: Any) -> str:
    return str(value) if isinstance(value, dict) else shorten(value, limit=120)
