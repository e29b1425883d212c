"""YAML files, their bases and `key=value` overrides in; one checked configuration out.

Every mistake is reported at once, with the place it was made and what was expected.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pitstop.config.check import check_tree
from pitstop.config.host_limits import HostLimits
from pitstop.config.host_risks import host_risks
from pitstop.config.obstacles import run_obstacles
from pitstop.config.problems import ConfigProblems, Problem
from pitstop.config.sections import RunConfig
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.config.workloads.kinds import KINDS
from pitstop.config.yaml.files import apply_overrides, read_with_bases
from pitstop.config.yaml.tree import Tree, plain_tree
from pitstop.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A configuration that can be used.

    Attributes:
        config: All settings, defaults filled in.
        warnings: What is allowed and still worth saying.
        written: Names of the settings somebody wrote down, groups included.
    """

    config: RunConfig
    warnings: tuple[Problem, ...]
    written: frozenset[str]


def load_config(
    path: Path | str,
    overrides: Iterable[str] = (),
    *,
    kinds: Mapping[str, WorkloadSections] | None = None,
    host: HostLimits | None = None,
    to_run: bool = False,
) -> LoadedConfig:
    """Load a configuration file.

    Args:
        path: YAML file; `base:` in it names files it is laid over.
        overrides: Texts such as `train.batch_size=4`, laid over the file in order.
        kinds: Sections of models from outside, by `model.kind`.
        host: Limits to warn against; None to leave them out.
        to_run: Whether what a run would stumble over is a mistake, such as a missing dataset.

    Raises:
        ConfigProblems: If anything in it is wrong; carries every mistake.
        ConfigError: If the file cannot be read.
    """
    path = Path(path)
    tree = read_with_bases(path)
    _refuse_guide_keys(tree, path)
    apply_overrides(tree, overrides)
    loaded = _finish(tree, str(path), kinds, host)
    obstacles = run_obstacles(loaded.config, host) if to_run else ()
    if obstacles:
        placed = [
            replace(problem, origin=tree.origin(problem.key))
            if problem.key in loaded.written
            else problem
            for problem in obstacles
        ]
        raise ConfigProblems(str(path), placed)
    return loaded


def config_from(
    settings: Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    kinds: Mapping[str, WorkloadSections] | None = None,
    host: HostLimits | None = None,
) -> LoadedConfig:
    """Make a configuration of settings given in code, under the same rules as a file.

    Raises:
        ConfigProblems: If anything in it is wrong; carries every mistake.
    """
    source = "configuration"
    tree = plain_tree(settings, source)
    apply_overrides(tree, overrides)
    return _finish(tree, source, kinds, host)


def _finish(
    tree: Tree, source: str, kinds: Mapping[str, WorkloadSections] | None, host: HostLimits | None
) -> LoadedConfig:
    checked = check_tree(tree, {**KINDS, **(kinds or {})})
    if checked.problems or checked.config is None:
        raise ConfigProblems(source, checked.problems)
    warnings = checked.warnings
    if host is not None:
        risks = host_risks(checked.config, host)
        warnings += tuple(replace(risk, origin=tree.origin(risk.key)) for risk in risks)
    return LoadedConfig(config=checked.config, warnings=warnings, written=tree.written())


def _refuse_guide_keys(tree: Tree, path: Path) -> None:
    shouted = [name for name in tree.values if name.isupper() and name.isidentifier()]
    if len(shouted) > 1 and len(shouted) > len(tree.values) / 2:
        raise ConfigError(
            f"{path} is written with the keys of another project ({', '.join(shouted[:3])}); "
            f"convert it with `pitstop config import {path}`"
        )
