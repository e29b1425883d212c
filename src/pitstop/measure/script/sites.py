"""What the interventions in a script noted: lines that build something, and what was changed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pitstop.records.script import Setup
from pitstop.records.tuning.script import LoaderSite, ModelSite, OptimizerSite
from pitstop.records.tuning.study import CodePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """All that was noted in the processes of one run."""

    loaders: tuple[LoaderSite, ...]
    optimizers: tuple[OptimizerSite, ...]
    models: tuple[ModelSite, ...]
    own_threads: tuple[str, ...]
    anomaly_detection: tuple[str, ...]
    changed: tuple[CodePlace, ...]


def read_sites(folder: Path) -> Sites:
    """Read what a run left in the folder of its record; lines that were cut off are left out."""
    lines = list(dict.fromkeys(_texts(folder)))
    found: dict[str, list[Any]] = {name: [] for name in _READ}
    drawing: set[str] = set()
    for text in lines:
        with suppress(ValueError, LookupError, TypeError):
            values = json.loads(text)
            kind = "changed" if "changed" in values else values["built"]
            if kind == "draws":
                drawing.add(values["name"])
            else:
                found[kind].append(_READ[kind](values))
    loaders = [replace(site, draws=site.name in drawing) for site in found["loader"]]
    return Sites(
        loaders=tuple(loaders),
        optimizers=tuple(found["optimizer"]),
        models=tuple(found["model"]),
        own_threads=tuple(found["threads"]),
        anomaly_detection=tuple(place for place in found["anomaly_detection"] if place),
        changed=tuple(found["changed"]),
    )


def with_training(loaders: tuple[LoaderSite, ...], setup: Setup) -> tuple[LoaderSite, ...]:
    """Say which lines build the loaders that training steps used.

    The line that builds a loader and the record of its batches have dataset and batch in common.
    """
    used = {(each.dataset, each.batch_size) for each in setup.loaders if each.trains}
    return tuple(replace(each, trains=(each.name, each.batch_size) in used) for each in loaders)


def _texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("sites-*.jsonl")):
        with suppress(OSError):
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def _loader(values: Mapping[str, Any]) -> LoaderSite:
    return LoaderSite(
        place=str(values["place"]),
        name=str(values["name"]),
        workers=int(values["workers"]),
        batch_size=values["batch_size"],
        is_stream=bool(values["is_stream"]),
    )


def _optimizer(values: Mapping[str, Any]) -> OptimizerSite:
    return OptimizerSite(
        place=str(values["place"]),
        name=str(values["name"]),
        takes=tuple(map(str, values["takes"])),
        way=values["way"],
        eight_bit=values.get("eight_bit"),
    )


def _model(values: Mapping[str, Any]) -> ModelSite:
    return ModelSite(
        place=str(values["place"]),
        name=str(values["name"]),
        class_name=str(values["class"]),
        device=str(values["device"]),
        convolves=bool(values["convolves"]),
        volumes=bool(values["volumes"]),
        is_float32=bool(values["is_float32"]),
        pads=bool(values.get("pads", False)),
    )


def _changed(values: Mapping[str, Any]) -> CodePlace:
    return CodePlace(
        change=str(values["changed"]), place=str(values["place"]), name=str(values["name"])
    )


def _switched_on(values: Mapping[str, Any]) -> str:
    return str(values["place"]) if values["value"] == "True" else ""


_READ: Mapping[str, Any] = {
    "loader": _loader,
    "optimizer": _optimizer,
    "model": _model,
    "threads": lambda values: str(values["place"]),
    "anomaly_detection": _switched_on,
    "changed": _changed,
}
