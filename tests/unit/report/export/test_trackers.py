"""A verdict in experiment trackers, read back: TensorBoard itself, stand-ins for the others."""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pitstop.doctor.judge import judge_run
from pitstop.errors import MissingPackage, PitstopError
from pitstop.report.export.figures import ExportedRun, exported
from pitstop.report.export.trackers import to_mlflow, to_tensorboard, to_wandb
from tests.browser.records import write_run


@pytest.fixture
def run(tmp_path: Path) -> ExportedRun:
    return exported(judge_run(write_run(tmp_path / "slow")))


def test_shares_add_up_and_the_bound_is_that_of_the_verdict(tmp_path: Path) -> None:
    judged = judge_run(write_run(tmp_path / "slow"))
    run = exported(judged)
    shares = [value for name, value in run.metrics.items() if name.startswith("pitstop/share/")]
    assert sum(shares) == pytest.approx(1)
    first = judged.verdict.findings[0]
    assert first.bound is not None
    assert run.metrics[f"pitstop/bound/{first.code}"] == first.bound.speedup
    assert first.summary in run.texts["pitstop/findings"]


def test_tensorboard_reads_back_what_was_written(run: ExportedRun, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    to_tensorboard(run, tmp_path / "board")
    found = EventAccumulator(str(tmp_path / "board" / run.name))
    found.Reload()
    tags: Any = found.Tags()
    assert set(tags["scalars"]) == set(run.metrics)
    for name, value in run.metrics.items():
        assert found.Scalars(name)[0].value == pytest.approx(value, rel=1e-6)
    for name, text in run.texts.items():
        assert found.Tensors(name)[0].tensor_proto.string_val == [text.encode()]


def test_wandb_gets_a_run_with_numbers_and_texts(
    run: ExportedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(summary={}, asked={})

    @contextmanager
    def init(**asked: str) -> Any:
        made.asked = asked
        yield made

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    to_wandb(run, "mine")
    assert made.asked["project"] == "mine"
    assert made.summary == {**run.metrics, **run.texts}


def test_mlflow_gets_metrics_tags_and_the_findings_as_a_file(
    run: ExportedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}

    @contextmanager
    def start_run(run_name: str) -> Any:
        kept["name"] = run_name
        yield

    stand_in = SimpleNamespace(
        set_experiment=lambda name: kept.update(experiment=name),
        start_run=start_run,
        log_metrics=lambda metrics: kept.update(metrics=metrics),
        set_tags=lambda tags: kept.update(tags=tags),
        log_text=lambda text, file: kept.update({file: text}),
    )
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    to_mlflow(run, "mine")
    assert kept["experiment"] == "mine"
    assert kept["metrics"] == run.metrics
    assert kept["tags"]["pitstop/verdict"] == run.texts["pitstop/verdict"]
    assert kept["pitstop-findings.md"] == run.texts["pitstop/findings"]


def test_what_a_tracker_refuses_is_one_message(
    run: ExportedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("the store is in maintenance mode")

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(set_experiment=refuse))
    with pytest.raises(PitstopError, match="MLflow did not take the run: the store is in"):
        to_mlflow(run, "mine")


@pytest.mark.parametrize(("send", "package"), [(to_wandb, "wandb"), (to_mlflow, "mlflow")])
def test_a_missing_package_is_named(
    send: Any, package: str, run: ExportedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=f"needs {package}; .*pip install {package}"):
        send(run, "mine")
