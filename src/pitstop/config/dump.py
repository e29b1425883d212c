"""A configuration as YAML that loads to the same configuration, or as one flat list of settings."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml

from pitstop.config.check import broken_rules
from pitstop.config.rules import COMMON
from pitstop.config.sections import RunConfig
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.config.workloads.kinds import KINDS


def to_yaml(
    config: RunConfig,
    *,
    only: Collection[str] | None = None,
    kinds: Mapping[str, WorkloadSections] | None = None,
) -> str:
    """Write a configuration out.

    Settings nothing would read are left out: what is shown is what acts, and loading the text
    does not trip over them.

    Args:
        config: What to write.
        only: Names of the settings to write; None for all.
        kinds: Sections of models from outside, by `model.kind`.
    """
    workload = {**KINDS, **(kinds or {})}[config.model.kind]
    inert = broken_rules((COMMON + workload.all_rules).inert, config)
    silent = {rule.key for rule in inert}
    values = _pick(config.model_dump(mode="json"), "", silent, only)
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def flat_settings(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Give every setting of a dumped configuration under its whole name."""
    for name, value in values.items():
        # Where keys are no names the whole is one value: sizes by epoch.
        if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
            yield from flat_settings(value, f"{above}{name}.")
        else:
            yield above + name, value


class _Dumper(yaml.SafeDumper):
    """Groups as blocks, lists on one line."""


_Dumper.add_representer(
    list,
    lambda dumper, items: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", items, flow_style=True
    ),
)


def _pick(
    values: Mapping[str, Any], prefix: str, silent: Collection[str], only: Collection[str] | None
) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in silent or (only is not None and key not in only):
            continue
        inner = _pick(value, f"{key}.", silent, only) if isinstance(value, dict) else value
        if inner != {}:
            picked[name] = inner
    return picked
