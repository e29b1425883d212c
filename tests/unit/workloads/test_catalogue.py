"""Workloads are found by name; those of others by entry points, with their mistakes named."""

from pathlib import Path

import pytest

from pitstop.config.load import config_from
from pitstop.errors import ConfigError
from pitstop.workloads import catalogue
from pitstop.workloads.catalogue import BUILDERS, build_task, outside_kinds

SQUARES = """
from pitstop.config.sections import DataSection, LossSection, ModelSection
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.workloads.catalogue import Workload

SECTIONS = WorkloadSections(name="squares", data=DataSection, model=ModelSection, loss=LossSection)
WORKLOAD = Workload(kinds={"square": SECTIONS}, build=lambda config: ("task", config.run.name))
TAKEN = Workload(kinds={"vrt": SECTIONS}, build=lambda config: None)
OTHER = 3
"""


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: str, module: str = SQUARES
) -> None:
    """Put a package with an entry point where Python looks for packages."""
    name = f"outside_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(module)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[pitstop.workloads]\nsquares = {value.replace('MODULE', name)}\n"
    )
    monkeypatch.syspath_prepend(str(folder))


def test_deblur_is_built_of_its_configuration() -> None:
    task = build_task(config_from({"model": {"kind": "vrt"}, "train": {"steps": 1}}).config)
    assert task.name == "deblur"
    assert "deblur" in BUILDERS


def test_reid_is_built_of_its_configuration() -> None:
    settings = {"model": {"kind": "clip_reid"}, "train": {"steps": 1, "batch_size": 4}}
    assert build_task(config_from(settings).config).name == "reid"


def test_a_workload_that_is_not_built_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "BUILDERS", {"deblur": BUILDERS["deblur"]})
    settings = {"model": {"kind": "clip_reid"}, "train": {"steps": 1, "batch_size": 4}}
    with pytest.raises(ConfigError, match="clip_reid belongs to the workload reid"):
        build_task(config_from(settings).config)


def test_a_workload_from_outside_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "MODULE:WORKLOAD")
    settings = {"model": {"kind": "square"}, "train": {"steps": 1}, "run": {"name": "mine"}}
    config = config_from(settings, kinds=outside_kinds()).config
    assert build_task(config) == ("task", "mine")


def test_a_model_nobody_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "MODULE:WORKLOAD")
    settings = {"model": {"kind": "square"}, "train": {"steps": 1}}
    config = config_from(settings, kinds=outside_kinds()).config
    stranger = config.model_copy(update={"model": config.model.model_copy(update={"kind": "x"})})
    with pytest.raises(ConfigError, match=r"no workload has model\.kind x"):
        build_task(stranger)


@pytest.mark.parametrize(
    ("value", "module", "words"),
    [
        ("MODULE:GONE", SQUARES, "cannot be imported: AttributeError"),
        ("MODULE:WORKLOAD", "raise KeyError('no such sensor')", "KeyError: 'no such sensor'"),
        ("MODULE:OTHER", SQUARES, "is a int, not a pitstop.workloads.catalogue.Workload"),
        ("MODULE:TAKEN", SQUARES, "brings model.kind vrt, which is taken"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, module: str, words: str
) -> None:
    install(tmp_path, monkeypatch, value, module)
    with pytest.raises(ConfigError, match=r"the workload squares of outside[_-]") as caught:
        outside_kinds()
    assert words in str(caught.value)


def test_nothing_from_outside_is_imported_for_a_model_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "MODULE:WORKLOAD", "raise RuntimeError('imported')")
    settings = {"model": {"kind": "vrt"}, "train": {"steps": 1}}
    assert build_task(config_from(settings).config).name == "deblur"
