"""A bound put to the test: measured as it is predicted, and beside it."""

import numpy as np
import pytest

from pitstop.doctor.ablation import judge_ablation
from pitstop.doctor.examine import examine
from pitstop.records.run import RunRecord
from pitstop.records.script import HostLines
from pitstop.records.store import from_json, to_json
from pitstop.records.verdict import Verdict
from tests.unit.doctor.records import ON_CPU, host_line, noisy, rank, run_of

STEPS = 200


def run(every_us: float, seed: int, *, logs: bool = True) -> RunRecord:
    """Steps of 10 ms, every fourth of which writes for so long."""
    host = np.where(np.arange(STEPS) % 4 == 0, every_us, 10.0)
    lines = (host_line("print(loss)", 100),) if logs else ()
    looks = HostLines(samples=200, every_us=10_000, lines=lines)
    parts = {"forward": noisy(10_000, STEPS, seed, spread=0.05), "host": host}
    return run_of(rank(parts, steps=STEPS, readings=[ON_CPU, looks]))


def test_what_comes_every_few_steps_is_in_the_measured_gain() -> None:
    plain, without = run(40_000, 1), run(10, 2, logs=False)
    test = judge_ablation("log", examine(plain), plain, without)
    assert test.predicted is not None
    assert test.measured == pytest.approx(2.0, rel=0.05)
    assert test.predicted == pytest.approx(2.0, rel=0.05)
    assert test.low is not None
    assert test.high is not None
    assert test.low < 2.0 < test.high
    assert test.left == ()


def test_what_was_not_left_out_is_told() -> None:
    plain, without = run(40_000, 1), run(20_000, 2)
    test = judge_ablation("log", examine(plain), plain, without)
    assert test.measured == pytest.approx(20 / 15, rel=0.05)
    assert any("print(loss)" in words for words in test.left)


@pytest.mark.parametrize("without", [None, run_of(rank({"forward": 1_000.0}, steps=12))])
def test_a_second_run_that_left_too_little_measures_nothing(without: RunRecord | None) -> None:
    plain = run(40_000, 1)
    test = judge_ablation("log", examine(plain), plain, without)
    assert test.predicted is not None
    assert test.measured is None


def test_a_verdict_with_a_test_goes_through_json() -> None:
    plain = run(40_000, 1)
    verdict = Verdict(
        outcome="healthy",
        message="",
        findings=(),
        ablation=judge_ablation("log", examine(plain), plain, run(10, 2)),
    )
    assert from_json(to_json(verdict), Verdict) == verdict
