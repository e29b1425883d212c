"""Losses held against the untouched script's: what is claimed, is checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.records.tuning.study import Trial
from pitstop.tune.journal import JournaledTrials, StudyHead, TrialJournal
from pitstop.tune.script.losses import OTHER_DRAWS, STATED_SHARE, CheckedTrials, LossMeasure
from pitstop.verify.numbers import MOST_RATIO

BASE = {step: 2.0 - 0.01 * step for step in range(60)}
WORKERS = ("loader.workers=2",)
BF16 = ("autocast=bf16",)


def moved(by: float) -> dict[int, float | None]:
    return {step: loss + by for step, loss in BASE.items()}


def measure(*, repeat: float = 0.0, seed: float = 0.1, draws: bool = False) -> LossMeasure:
    return LossMeasure(base=BASE, repeat_distance=repeat, seed_distance=seed, draws=draws)


@pytest.mark.parametrize("changes", [WORKERS, BF16, ("env.MALLOC_MMAP_MAX_=0",)])
def test_equal_losses_are_the_same_bits(changes: tuple[str, ...]) -> None:
    assert measure().judge(changes, dict(BASE)) == (True, "same bits")


def test_what_claims_the_same_bits_must_have_them() -> None:
    is_alike, said = measure().judge(WORKERS, moved(1e-9))
    assert not is_alike
    assert "at step 0" in said


def test_a_script_that_does_not_repeat_itself_is_held_to_its_own_repeats() -> None:
    assert measure(repeat=0.01).judge(WORKERS, moved(0.019))[0]
    assert not measure(repeat=0.01).judge(WORKERS, moved(0.021))[0]


@given(seed=st.floats(0.01, 1.0), share=st.floats(0.01, 0.99))
def test_rounding_may_move_the_loss_by_a_quarter_of_two_seeds(seed: float, share: float) -> None:
    limit = MOST_RATIO * seed
    assert measure(seed=seed).judge(BF16, moved(share * limit))[0]
    assert not measure(seed=seed).judge(BF16, moved(limit / share))[0]


def test_without_anything_random_a_stated_share_of_the_loss_is_the_measure() -> None:
    mean = sum(BASE.values()) / len(BASE)
    limit = STATED_SHARE * mean
    assert measure(seed=0.0).judge(BF16, moved(0.9 * limit))[0]
    is_alike, said = measure(seed=0.0).judge(BF16, moved(1.1 * limit))
    assert not is_alike
    assert "stated 1%" in said


def test_a_dataset_that_draws_may_draw_others_in_a_worker() -> None:
    limit = OTHER_DRAWS * 0.1
    assert measure(draws=True).judge(WORKERS, moved(0.9 * limit))[0]
    assert not measure(draws=True).judge(WORKERS, moved(1.1 * limit))[0]
    assert not measure(draws=True).judge(("env.X=1",), moved(0.9 * limit))[0]


def test_what_changes_rounding_is_not_believed_where_no_loss_was_seen() -> None:
    nothing = LossMeasure(base={}, repeat_distance=None, seed_distance=None, draws=False)
    assert nothing.judge(WORKERS, {})[0]
    assert not nothing.judge(BF16, {})[0]


@dataclass
class FakeTrials:
    """Every change moves the loss."""

    by: float
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, overrides: Sequence[str]) -> Trial:
        self.asked.append(tuple(overrides))
        return Trial(overrides=tuple(overrides), end="measured", wall_s=1.0, losses=moved(self.by))


def test_a_trial_whose_loss_differs_was_not_measured_however_fast(tmp_path: Path) -> None:
    trials = FakeTrials(by=0.5)
    journal = TrialJournal(tmp_path / "journal.jsonl", StudyHead(config="x", steps=40))
    first = Trial(overrides=(), end="measured", wall_s=2.0, losses=dict(BASE))
    checked = CheckedTrials(
        trials=JournaledTrials(journal=journal, trials=trials), measure=measure(), untouched=[first]
    )
    assert checked.run(()) is first
    differs = checked.run(BF16)
    assert (differs.end, differs.wall_s) == ("loss differs", None)
    # The journal holds what was measured: another limit may judge it otherwise.
    again = TrialJournal(tmp_path / "journal.jsonl", StudyHead(config="x", steps=40))
    kept = again.take(BF16)
    assert kept is not None
    assert (kept.end, kept.losses) == ("measured", moved(0.5))


def test_an_untouched_trial_that_failed_is_run_again_by_the_next_start(tmp_path: Path) -> None:
    head = StudyHead(config="x", steps=40)
    journal = TrialJournal(tmp_path / "journal.jsonl", head)
    journal.write(Trial(overrides=(), end="crashed", reason="there is no data"))
    journal.write(Trial(overrides=BF16, end="crashed"))
    again = TrialJournal(tmp_path / "journal.jsonl", head)
    assert (again.has(()), again.has(BF16)) == (False, True)
