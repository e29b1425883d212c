"""The recomputation of public logs, on lines of our own; it shares nothing with the readers."""

from pathlib import Path

import pytest
from benchmarks.log_corpus import Facts, compare, recompute

LINE = r"(?P<stamp>[\d:]{8}) epoch (?P<epoch>\d+)/(?P<epochs>\d+) \[(?P<step>\d+)/(?P<total>\d+)\]"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    lines = []
    for epoch in range(1, 4):
        for n in range(10, 51, 10):
            at = 100 * (epoch - 1) + n
            lines.append(f"00:{at // 60:02}:{at % 60:02} epoch {epoch}/9 [{n}/50] loss 0.3")
        lines.append("validating")
    path = tmp_path / "own.log"
    path.write_text("\n".join(lines))
    return path


def test_steps_epochs_and_the_time_of_a_step_come_from_the_text_alone(log: Path) -> None:
    about = {"line": LINE, "counts": "epoch", "first_epoch": 1, "clock": "%H:%M:%S"}
    facts = recompute(log, {**about, "evaluates": "^validating"})
    assert (facts.records, facts.last_step, facts.last_epoch) == (15, 150, 3)
    assert (facts.total_steps, facts.total_epochs, facts.attempts) == (450, 9, 1)
    assert facts.step_s == pytest.approx(1.0)  # the 60 s across an epoch's end are no step's


def test_a_count_without_its_epoch_is_summed_up(log: Path) -> None:
    facts = recompute(log, {"line": r"\[(?P<step>\d+)/(?P<total>\d+)\]", "counts": "epoch"})
    assert facts.last_step == 150


def test_a_description_that_fits_nothing_is_a_doubt(log: Path) -> None:
    assert recompute(log, {"line": "no such line"}).doubts


def test_what_is_said_beside_the_text_is_found() -> None:
    facts = Facts(records=9, last_step=90.0, attempts=1, step_s=0.5)
    said = {"last_step": 90, "attempts": 1, "step": {"unit": "s", "middle": 0.51}}
    assert compare(facts, said) == []
    wrong = {"last_step": 91, "attempts": 2, "step": {"unit": "s", "middle": 0.6}}
    assert len(compare(facts, wrong)) == 3
    untimed = Facts(records=9, last_step=90.0)
    assert compare(untimed, {**said, "last_step": 90})  # a time that the text does not have


def test_waits_rates_and_batches_are_compared_too(tmp_path: Path) -> None:
    log = tmp_path / "own.log"
    lines = [f"step {n} took 0.5 s, data 20 ms, 64.0 samples/s" for n in range(1, 9)]
    log.write_text("\n".join(lines) + "\n")
    line = r"step (?P<step>\d+) took (?P<step_s>\S+) s, data (?P<data_ms>\d+) ms, (?P<rate>\S+) "
    facts = recompute(log, {"line": line, "batch": 32})
    assert (facts.data_s, facts.rate, facts.batch_size) == (0.02, 64.0, 32)
    said = {"last_step": 8, "attempts": 1, "batch_size": 32, "rate": {"middle": 64.0}}
    assert compare(facts, {**said, "data_wait": {"middle": 0.02}}) == []
    wrong = {**said, "batch_size": 64, "rate": {"middle": 128.0}, "data_wait": {"middle": 20.0}}
    assert len(compare(facts, wrong)) == 3
    silent = recompute(log, {"line": r"step (?P<step>\d+)"})
    assert len(compare(silent, said)) == 2  # a batch size and a rate that the text does not have
