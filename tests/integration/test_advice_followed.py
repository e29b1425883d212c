"""What following advice gives is set against what the bound allows, with an error."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks import advice_followed
from benchmarks.advice_followed import (
    TEN,
    Followed,
    Turn,
    Turns,
    case_of,
    line_of,
    measure,
    row_of,
    turn_of,
)

from tests.scripts.run_corpus import Said

FOLLOWED = Followed(case="no workers", advice="num_workers=")


def turn(slow_per_s: float, fixed_per_s: float, bound_share: float = 0.5) -> Turn:
    return Turn(
        bound_share=bound_share,
        slow_per_s=slow_per_s,
        fixed_per_s=fixed_per_s,
        advised=True,
        others_cores=0.1,
    )


def said(**finding: Any) -> Said:
    found = {
        "code": "DATA001",
        "bound": {"share": 0.5, "cpu_headroom_share": 0.1},
        "remedy": ["DataLoader(..., num_workers=3)"],
    }
    verdict = {"findings": [{**found, **finding}]}
    return Said(exit_code=0, verdict=verdict, stdout="", stderr="", samples_per_s=None)


def test_ten_scripts_are_named_and_all_are_in_the_corpus() -> None:
    assert len({followed.case for followed in TEN}) == 10
    for followed in TEN:
        assert case_of(followed.case).name == followed.case


def test_a_bound_that_is_reached_has_the_quotient_one() -> None:
    assert turn(100, 200).quotient == pytest.approx(1)
    assert turn(100, 100).quotient == 0
    assert turn(100, 400).quotient == pytest.approx(1.5)


def test_the_bound_counts_what_remains_at_its_quickest() -> None:
    found = turn_of(said(), case_of("no workers"), "num_workers=", (100.0, 250.0, 0.3))
    assert found is not None
    assert found.quotient == pytest.approx(1)
    assert (found.advised, found.others_cores) == (True, 0.3)


def test_advice_that_was_not_given_is_not_followed_and_what_was_not_found_is_no_row() -> None:
    case = case_of("no workers")
    other = turn_of(said(remedy=["pray"]), case, "num_workers=", (1.0, 2.0, 0.0))
    assert other is not None
    assert not other.advised
    assert turn_of(said(code="LOG001"), case, "num_workers=", (1.0, 2.0, 0.0)) is None
    assert turn_of(said(bound=None), case, "num_workers=", (1.0, 2.0, 0.0)) is None


def test_only_what_lies_beyond_the_error_is_beyond_the_bound() -> None:
    noisy = row_of(FOLLOWED, [turn(100, 190), turn(100, 260), turn(100, 210)])
    assert noisy.quotient > 1 > noisy.low
    assert not noisy.is_beyond_bound
    clear = row_of(FOLLOWED, [turn(100, 300), turn(100, 310), turn(100, 305)])
    assert clear.is_beyond_bound
    assert "BEYOND THE BOUND" in line_of(clear)
    assert "explain" in line_of(row_of(FOLLOWED, [turn(100, 110), turn(100, 112)]))


def test_a_single_pair_tells_no_error() -> None:
    assert not row_of(FOLLOWED, [turn(100, 400)]).is_beyond_bound


def test_pairs_are_kept_as_they_end_and_none_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def take_turn(followed: Followed, number: int, *, quiet_s: float) -> Turn | None:
        made.append(number)
        if number == 2:
            raise KeyboardInterrupt
        return turn(100, 200) if number else None

    monkeypatch.setattr(advice_followed, "take_turn", take_turn)
    path = tmp_path / "turns.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measure(FOLLOWED, Turns(path), pairs=5, quiet_s=0.0)
    path.write_text(path.read_text() + '\n{"case": "no wor')  # cut off while it was written
    row = measure(FOLLOWED, Turns(path), pairs=2, quiet_s=0.0)
    assert made == [0, 1, 2]
    assert row is not None
    assert row.turns == [turn(100, 200)]
    Turns(path).add("no workers", turn(100, 300))
    assert Turns(path).of("no workers") == [None, turn(100, 200), turn(100, 300)]
