"""What choices claim of a real configuration, and what a tuned file holds."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import yaml

from pitstop.config.load import load_config
from pitstop.plan.dry_run.request import Answer, Request, trace_all
from pitstop.plan.memory import Gpu
from pitstop.records.tuning.study import GainRow, Trial, Tuning
from pitstop.tune import configured
from pitstop.tune.configured import (
    FittingTrials,
    TuningRequest,
    claim_of_choice,
    objection_to,
    write_tuned,
)
from pitstop.tune.node import describe_place
from pitstop.tune.tuning import Budget

CONFIGS = Path(__file__).parents[3] / "configs"


def study(config: str, *overrides: str) -> TuningRequest:
    return TuningRequest(
        config=CONFIGS / config,
        overrides=overrides,
        folder=Path("unused"),
        allowed=frozenset({"exact", "rounding"}),
        steps=40,
        trial_limit_s=60.0,
        budget=Budget(most_trials=1, most_s=1.0),
    )


@pytest.mark.parametrize(
    ("config", "choice", "claim"),
    [
        ("deblur/demo.yaml", ("loader.workers=2",), "exact"),
        ("deblur/demo.yaml", ("train.precision=bf16",), "rounding"),
        ("deblur/demo.yaml", ("train.batch_size=2", "train.accumulate=1"), "rounding"),
        ("bev/demo.yaml", ("train.batch_size=1", "train.accumulate=2"), "training"),
        ("reid/demo.yaml", ("log.every_steps=50",), "exact"),
        ("deblur/demo.yaml", ("optimizer.kind=adamw_bf16",), "training"),
    ],
)
def test_a_choice_claims_what_it_will_be_held_to(
    config: str, choice: tuple[str, ...], claim: str
) -> None:
    given = {
        "deblur/demo.yaml": ("train.batch_size=1", "train.accumulate=2"),
        "bev/demo.yaml": ("train.batch_size=2",),
        "reid/demo.yaml": (),
    }
    assert claim_of_choice(study(config, *given[config]), choice) == claim


def test_what_does_not_go_together_or_claims_too_little_is_objected_to() -> None:
    one = study("deblur/demo.yaml", "loader.workers=0")
    assert objection_to(one, ("log.every_steps=50",)) is None
    assert "has no effect" in str(objection_to(one, ("loader.prefetch=4",)))
    assert objection_to(one, ("optimizer.kind=adamw_bf16",)) == "changes the training"


class Measured:
    """Answers every trial, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def run(self, overrides: Sequence[str]) -> Trial:
        self.asked.append(tuple(overrides))
        return Trial(overrides=tuple(overrides), end="measured", wall_s=1.0, compute_s=1.0)


def fitting(num_bytes: int) -> tuple[FittingTrials, Measured]:
    inner = Measured()
    one = study("deblur/demo.yaml", "train.accumulate=4", "data.root=nowhere")
    gpu = Gpu(name="small", num_bytes=num_bytes)
    return FittingTrials(trials=inner, study=one, gpu=gpu), inner


@cache
def traced(request: Request) -> Answer:
    [answer] = trace_all([request])
    return answer


@pytest.fixture
def _traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace a setting in a process of its own for the first who asks: it takes seconds."""
    monkeypatch.setattr(configured, "trace_all", lambda requests: [*map(traced, requests)])


@pytest.mark.usefixtures("_traced_once")
def test_what_does_not_fit_by_its_plan_is_not_run_and_said_to_lack_memory() -> None:
    trials, inner = fitting(2**20)
    larger = ("train.batch_size=4", "train.accumulate=1")
    for overrides in (larger, (*larger, "log.every_steps=50")):
        trial = trials.run(overrides)
        assert trial.end == "out of memory"
        assert trial.reason.startswith("does not fit")
    assert trials.run(("log.every_steps=50",)).end == "measured"
    assert inner.asked == [("log.every_steps=50",)]


@pytest.mark.usefixtures("_traced_once")
def test_what_fits_by_its_plan_is_run() -> None:
    trials, inner = fitting(64 * 2**30)
    larger = ("train.batch_size=4", "train.accumulate=1")
    assert trials.run(larger).end == "measured"
    assert inner.asked == [larger]


def place_text() -> str:
    place = describe_place()
    cores = f"{place.cores} core{'s' * (place.cores > 1)}"
    return f"{place.gpu_name}, {cores}" if place.has_gpu else cores


def test_a_tuned_file_says_what_was_gained_and_loads_to_the_tuned_settings(tmp_path: Path) -> None:
    rows = [
        GainRow(
            knob=knob,
            overrides=overrides,
            claim="exact",
            wall_s=wall_s,
            gain=gain,
            gain_low=gain,
            gain_high=gain,
            cumulative_gain=gain,
            peak_device_bytes=2**30 if knob else None,
            start_s=1.0,
            break_even_steps=7 if knob else None,
        )
        for knob, overrides, wall_s, gain in (
            ("", (), 1.0, 1.0),
            ("workers", ("loader.workers=2",), 0.5, 2.0),
        )
    ]
    one = study("deblur/demo.yaml", "train.steps=77")
    tuning = Tuning(
        source="demo.yaml",
        rows=tuple(rows),
        overrides=("loader.workers=2",),
        trials=(),
        stopped="all trials are spent",
    )
    path = tmp_path / "tuned.yaml"
    write_tuned(tuning, one, path)
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert head[0] == "# demo.yaml, tuned by measurement: 1.00 s a sample at first"
    assert head[1] == f"# measured on {place_text()}, in 0 trials"
    assert head[2:] == [
        "#   loader.workers=2: 2.00x (2.00x to 2.00x), exact, 1.00 GiB on the device, "
        "its longer start is paid back after 7 steps",
        "# together 2.00x, 500 ms a sample, 1.00 GiB on the device",
        "# the effective batch is as it was, so the learning rate is too",
        f"# does it harm? pitstop verify demo.yaml {path}",
    ]
    assert yaml.safe_load(path.read_text())["loader"]["workers"] == 2
    loaded = load_config(path).config
    wanted = load_config(one.config, ("train.steps=77", "loader.workers=2")).config
    assert loaded == wanted
