"""Which workloads there are: those of pitstop in a dictionary, those of others by entry points.

A package brings a workload of its own with an entry point in the group `pitstop.workloads`, named
as the workload and pointing at a `Workload`. It is imported only when a configuration is read or
built whose model pitstop does not know.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeAlias

from pitstop.config.sections import RunConfig
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.config.workloads.kinds import KINDS
from pitstop.errors import ConfigError
from pitstop.train.task import Task

ENTRY_POINTS: Final = "pitstop.workloads"

Builder: TypeAlias = Callable[[RunConfig], Task[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a package from outside brings along."""

    kinds: Mapping[str, WorkloadSections]
    """Its sections, by the `model.kind` that chooses them."""
    build: Builder


def _deblur(config: RunConfig) -> Task[Any]:
    from pitstop.workloads.deblur.task import build_deblur

    return build_deblur(config)


def _bev(config: RunConfig) -> Task[Any]:
    from pitstop.workloads.bev.task import build_bev

    return build_bev(config)


def _reid(config: RunConfig) -> Task[Any]:
    from pitstop.workloads.reid.task import build_reid

    return build_reid(config)


BUILDERS: Final[Mapping[str, Builder]] = {"deblur": _deblur, "bev": _bev, "reid": _reid}
"""How the task of each of pitstop's own workloads is made of a configuration."""


def build_task(config: RunConfig) -> Task[Any]:
    """Make the task that `model.kind` asks for.

    Raises:
        ConfigError: Where there is no such workload, or it cannot do what is asked.
    """
    kind = config.model.kind
    if kind not in KINDS:
        return _outside_builder(kind)(config)
    name = KINDS[kind].name
    if name not in BUILDERS:
        raise ConfigError(
            f"model.kind {kind} belongs to the workload {name}, which is not built yet; there is "
            f"{', '.join(BUILDERS)}"
        )
    return BUILDERS[name](config)


def outside_kinds() -> dict[str, WorkloadSections]:
    """Give the sections of all workloads from outside, for `load_config`.

    Raises:
        ConfigError: Where one of them cannot be used; names it.
    """
    found: dict[str, WorkloadSections] = {}
    for point in entry_points(group=ENTRY_POINTS):
        for kind, sections in _load(point).kinds.items():
            if kind in KINDS or kind in found:
                raise ConfigError(f"{_named(point)} brings model.kind {kind}, which is taken")
            found[kind] = sections
    return found


def _outside_builder(kind: str) -> Builder:
    for point in entry_points(group=ENTRY_POINTS):
        workload = _load(point)
        if kind in workload.kinds:
            return workload.build
    raise ConfigError(
        f"no workload has model.kind {kind}; install the package that brings it (pitstop has "
        f"{', '.join(KINDS)})"
    )


def _load(point: EntryPoint) -> Workload:
    try:
        workload = point.load()
    except Exception as error:
        # A stranger's module may raise anything when it is imported.
        raise ConfigError(
            f"{_named(point)} cannot be imported: {type(error).__name__}: {error}; fix or remove "
            "the package"
        ) from error
    if not isinstance(workload, Workload):
        raise ConfigError(
            f"{_named(point)} is a {type(workload).__name__}, not a "
            f"{Workload.__module__}.{Workload.__qualname__}"
        )
    return workload


def _named(point: EntryPoint) -> str:
    package = point.dist.name if point.dist is not None else "an unknown package"
    return f"the workload {point.name} of {package} ({point.value})"
