"""The preset that is nearest to a configuration, and in which settings they differ."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from pitstop.config.load import LoadedConfig, load_config
from pitstop.config.problems import shorten
from pitstop.config.sections import RunConfig
from pitstop.config.shipped import shipped_folder
from pitstop.config.workloads.kinds import KINDS
from pitstop.errors import ConfigError

# Where a run lies and how it is called is no difference between runs.
_LEFT_OUT: Final = ("run.", "data.root", "log.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting: here, and in the preset."""

    key: str
    here: str
    preset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """A preset, and the settings in which a configuration differs from it."""

    preset: str
    differences: tuple[Difference, ...]


def nearest_preset(config: RunConfig, written: Collection[str]) -> Nearest | None:
    """Find the preset of the same workload that differs in the fewest of the written settings."""
    folder = shipped_folder("presets", in_checkout="configs")
    if folder is None:
        return None
    workload = KINDS[config.model.kind].name
    found = [
        Nearest(
            preset=f"configs/{path.relative_to(folder).as_posix()}",
            differences=_differences(config, written, preset),
        )
        for path in sorted((folder / workload).glob("*.yaml"))
        if (preset := _load(path)) is not None
    ]
    return min(found, key=lambda nearest: len(nearest.differences), default=None)


@cache  # a shipped file stays as it is; reading all of a workload takes half of an import
def _load(path: Path) -> LoadedConfig | None:
    try:
        return load_config(path)
    except ConfigError:
        return None


def _differences(
    config: RunConfig, written: Collection[str], preset: LoadedConfig
) -> tuple[Difference, ...]:
    here, there = _leaves(config), _leaves(preset.config)
    is_whole = "model.kind" in written and bool({"train.steps", "train.epochs"} & set(written))
    keys = [key for key in here if key in written or (is_whole and key in preset.written)]
    return tuple(
        Difference(key=key, here=_shown(here[key]), preset=_shown(there.get(key)))
        for key in keys
        if here[key] != there.get(key) and not key.startswith(_LEFT_OUT)
    )


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, dict) else shorten(value)


def _leaves(config: RunConfig) -> dict[str, Any]:
    leaves: dict[str, Any] = {}

    def walk(values: dict[str, Any], prefix: str) -> None:
        for name, value in values.items():
            key = f"{prefix}{name}"
            if isinstance(value, dict) and value and all(isinstance(part, str) for part in value):
                walk(value, f"{key}.") if "multipliers" not in key else leaves.update({key: value})
            else:
                leaves[key] = value

    walk(config.model_dump(mode="json"), "")
    return leaves
