"""Runs in turns: one sentence about all pairs, for the terminal and for the page."""

from pathlib import Path

import pytest

from pitstop.doctor.pairs import judge_pairs
from pitstop.errors import RecordError
from pitstop.records.run import RunRecord
from pitstop.report.page.html import write_page
from tests.unit.doctor.records import noisy, rank, run_of


def run(name: str, step_us: float, *, steps: int = 60) -> RunRecord:
    parts = {"forward": noisy(step_us, steps, len(name), spread=0.01)}
    return run_of(rank(parts, steps=steps), source=name)


def test_the_pair_in_the_middle_stands_for_all() -> None:
    paired = judge_pairs(
        [
            (run("a", 9_000), run("b", 3_000)),
            (run("c", 20_000), run("d", 2_000)),
            (run("e", 8_000), run("f", 2_000)),
        ]
    )
    assert [round(speedup) for speedup in paired.gain.speedups] == [3, 10, 4]
    assert [judged.record.source for judged in paired.judged.runs] == ["e", "f"]
    (said,) = paired.judged.pairs
    assert (said.result, said.message) == ("faster", paired.gain.message)


def test_page_and_terminal_say_the_same_where_one_pair_is_faster_beyond_doubt(
    tmp_path: Path,
) -> None:
    # The middle pair alone is faster by a third, far beyond its own noise; another shows a loss.
    paired = judge_pairs(
        [
            (run("a", 8_000), run("b", 6_000)),
            (run("c", 9_000), run("d", 3_000)),
            (run("e", 8_000), run("f", 9_000)),
        ]
    )
    assert paired.gain.change == "no difference beyond noise"
    write_page(paired.judged, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert paired.gain.message in page
    assert "times as long" not in page


def test_without_a_pair_or_a_step_there_is_no_gain() -> None:
    with pytest.raises(RecordError, match="at least one pair"):
        judge_pairs([])
