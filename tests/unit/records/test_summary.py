"""The summary: what is counted in some steps only is not spread over all."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pitstop.records import store
from pitstop.records.summary import RunSummary, summarise
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock


def run_of(path: Path, steps: Sequence[tuple[int, int | None]]) -> RunSummary:
    """Write steps of a length and a count of samples, and read them."""
    time = FakeClock()
    writer = RecordWriter(str(path / "rank-0.jsonl"), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for wall_us, samples in steps:
        clock.begin_step()
        time.advance(wall_us)
        if samples is not None:
            clock.count(samples=samples)
    clock.close()
    writer.close()
    return summarise(store.read_run(path).first)


def test_the_rate_is_that_of_the_steps_whose_samples_were_counted(tmp_path: Path) -> None:
    summary = run_of(tmp_path, [(10_000, 40)] * 90 + [(10_000, None)] * 10)
    assert summary.samples_per_s == pytest.approx(4_000)


def test_samples_of_a_few_short_steps_give_no_rate_of_the_run(tmp_path: Path) -> None:
    """One model for 60 short steps, then another one, unobserved, for 50 long ones."""
    assert run_of(tmp_path, [(1_000, 128)] * 60 + [(15_000, None)] * 50).samples_per_s is None


def test_a_run_whose_samples_nobody_counted_has_no_rate(tmp_path: Path) -> None:
    assert run_of(tmp_path, [(1_000, None)] * 60).samples_per_s is None
    assert run_of(tmp_path / "none", []).samples_per_s is None
