"""A tree of settings against the sections and rules: what is wrong, and what it comes to."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from pitstop.config.keys import Key, every_key, section_classes
from pitstop.config.problems import Problem, shorten
from pitstop.config.rules import COMMON, Rule
from pitstop.config.sections import DataSection, LossSection, ModelSection, RunConfig, Section
from pitstop.config.suggest import did_you_mean
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.config.yaml.tree import Tree, Values

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What came of a tree.

    Attributes:
        config: The configuration; where there are problems, with defaults in their place. None if
            not even that is possible.
        problems: Why the configuration cannot be used; empty if it can.
        warnings: What is allowed and still worth saying.
    """

    config: RunConfig | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check_tree(tree: Tree, kinds: Mapping[str, WorkloadSections]) -> Checked:
    """Check everything that can be checked, whatever else is wrong."""
    workload, problems = _workload(tree, kinds)
    classes = section_classes(workload)
    keys = every_key(classes)
    problems += _strangers(tree, keys)
    sections: dict[str, Section | None] = {}
    for name, section in classes.items():
        if workload is None and name in {"data", "model", "loss"}:
            continue
        sections[name], found = _validate(name, section, tree, keys)
        problems += found
    config = _assemble(sections, workload)
    warnings: tuple[Problem, ...] = ()
    if config is not None:
        invalid = frozenset(problem.key for problem in problems)
        broken, warnings = _judge(config, tree, workload, invalid=invalid)
        problems += broken
    return Checked(config=config, problems=(*tree.problems, *problems), warnings=warnings)


def broken_rules(
    rules: tuple[Rule, ...], config: RunConfig, *, invalid: Collection[str] = ()
) -> list[Rule]:
    """Pick the rules a configuration breaks, leaving out those that hang on an invalid setting."""
    return [
        rule
        for rule in rules
        if not any(_related(key, bad) for key in (rule.key, *rule.reads) for bad in invalid)
        and rule.broken(config)
    ]


def _workload(
    tree: Tree, kinds: Mapping[str, WorkloadSections]
) -> tuple[WorkloadSections | None, list[Problem]]:
    model = tree.values.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind], []
    if kind is None and tree.incomplete:
        return None, []
    choices = ", ".join(sorted(kinds))
    if kind is None:
        return None, [Problem(key="model.kind", message=f"is missing; choose one of {choices}")]
    message = f"must be one of {choices}, not {shorten(kind)}{_nearest(kind, tuple(kinds))}"
    return None, [Problem(key="model.kind", message=message, origin=tree.origin("model.kind"))]


def _strangers(tree: Tree, keys: Mapping[str, Key]) -> list[Problem]:
    return [
        Problem(key=shorten(name), message=_unknown(name, keys), origin=tree.origins.get((name,)))
        for name in tree.values
        if "." in name or name not in keys
    ]


def _unknown(key: str, keys: Mapping[str, Key]) -> str:
    if key in keys and "." in key:
        group, _, rest = key.partition(".")
        return f"unknown key; write `{group}:` and under it `{rest.replace('.', ': ')}:`"
    return f"unknown key{did_you_mean(key, keys)}"


def _validate(
    name: str, section: type[Section], tree: Tree, keys: Mapping[str, Key]
) -> tuple[Section | None, list[Problem]]:
    """Validate one section; settings that are wrong are reported, then left at their defaults."""
    raw = tree.values.get(name)
    problems: dict[str, Problem] = {}
    values: Values = {}
    if isinstance(raw, dict):
        values = _without_empty_groups(raw, name, keys)
    elif raw is not None:
        message = f"must be a group of settings, not {shorten(raw)}"
        problems[name] = Problem(key=name, message=message, origin=tree.origin(name))
    problems |= _half_letters(values, name, tree)
    # The second round proves that what is left is sound; a third is for sections from outside
    # whose own validators look at several fields.
    for _ in range(3):
        try:
            return section.model_validate(values), list(problems.values())
        except ValidationError as error:
            for item in error.errors(include_url=False, include_context=False):
                path = _path(item["loc"], name, keys, whole=item["type"] == "extra_forbidden")
                key = ".".join(path)
                if key not in problems:
                    message = _message(item, path, _value_at(values, path[1:]), keys)
                    problems[key] = _problem(key, message, tree)
            for key in problems:
                _remove(values, tuple(key.split("."))[1:])
    return None, list(problems.values())


def _half_letters(values: Values, name: str, tree: Tree) -> dict[str, Problem]:
    """Take out what no encoding has: whoever checks the types would fail on it."""
    message = "holds half of a letter (a lone surrogate), which cannot be written anywhere"
    found = {key: _problem(key, message, tree) for key in _not_unicode(values, name)}
    for key in found:
        _remove(values, tuple(key.split("."))[1:])
    return found


def _not_unicode(values: Values, path: str) -> Iterator[str]:
    """Name the settings whose text no encoding has."""
    for name, value in values.items():
        key = f"{path}.{name}"
        if isinstance(value, dict):
            yield from _not_unicode(value, key)
        elif any(_SURROGATE.search(each) for each in _texts(value)):
            yield key


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for each in pair for text in _texts(each))


def _path(
    loc: tuple[int | str, ...], name: str, keys: Mapping[str, Key], *, whole: bool
) -> tuple[str, ...]:
    path = (name,)
    for part in loc:
        inner = (*path, str(part))
        if not whole and ".".join(inner) not in keys:
            break
        path = inner
    return path


def _message(
    item: Mapping[str, Any], path: tuple[str, ...], value: Any, keys: Mapping[str, Key]
) -> str:
    key = ".".join(path)
    if item["type"] == "extra_forbidden":
        return _unknown(key, keys)
    known = keys[key]
    if item["type"] == "missing" and len(item["loc"]) == len(path) - 1:
        return f"is missing; it must be {known.expectation}"
    if known.section is not None and item["type"] == "value_error":
        return str(item["msg"]).removeprefix("Value error, ")
    return f"must be {known.expectation}, not {shorten(value)}{_nearest(value, known.choices)}"


def _problem(key: str, message: str, tree: Tree) -> Problem:
    return Problem(key=shorten(key, limit=80), message=message, origin=tree.origin(key))


def _nearest(value: Any, choices: Collection[str]) -> str:
    close = difflib.get_close_matches(shorten(value).lower(), choices, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _without_empty_groups(values: Values, prefix: str, keys: Mapping[str, Key]) -> Values:
    """Copy settings; a group with nothing under it says nothing."""
    kept: Values = {}
    for name, value in values.items():
        key = keys.get(f"{prefix}.{name}")
        is_group = key is not None and key.section is not None
        if is_group and isinstance(value, dict):
            kept[name] = _without_empty_groups(value, f"{prefix}.{name}", keys)
        elif not (is_group and value is None):
            kept[name] = value
    return kept


def _value_at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _remove(values: Values, path: tuple[str, ...]) -> None:
    if not path:
        values.clear()
        return
    group = _value_at(values, path[:-1])
    if isinstance(group, dict):
        group.pop(path[-1], None)


def _assemble(
    sections: Mapping[str, Section | None], workload: WorkloadSections | None
) -> RunConfig | None:
    if None in sections.values():
        return None
    if workload is None:
        stand_ins = {
            "data": DataSection(),
            "model": ModelSection(kind="unknown"),
            "loss": LossSection(),
        }
        sections = {**stand_ins, **sections}
    return RunConfig.model_validate(dict(sections))


def _judge(
    config: RunConfig, tree: Tree, workload: WorkloadSections | None, *, invalid: frozenset[str]
) -> tuple[list[Problem], tuple[Problem, ...]]:
    rules = COMMON if workload is None else COMMON + workload.all_rules
    written = tree.written()

    def report(broken: list[Rule]) -> list[Problem]:
        return [
            Problem(
                key=rule.key,
                message=rule.explain(config),
                origin=tree.origin(rule.key) if rule.key in written else None,
            )
            for rule in broken
        ]

    inert = [
        rule for rule in broken_rules(rules.inert, config, invalid=invalid) if rule.key in written
    ]
    conflicts = [] if tree.incomplete else broken_rules(rules.conflicts, config, invalid=invalid)
    risks = [
        rule for rule in broken_rules(rules.risks, config, invalid=invalid) if rule.key in written
    ]
    return report(inert + conflicts), tuple(report(risks))


def _related(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
