"""A whole study with trials that are answered from a known surface."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from pitstop.config.sections import RunConfig
from pitstop.errors import PitstopError
from pitstop.records.tuning.study import Trial
from pitstop.tune.journal import JournaledTrials, StudyHead, TrialJournal
from pitstop.tune.knobs import KNOBS, OWN, Choice, Knob, Situation
from pitstop.tune.space import Space, open_space
from pitstop.tune.tuning import TURNS, Budget, Tuner
from tests.unit.train.runs import line_config

Surface = Callable[[frozenset[str]], float | None]


@dataclass
class FakeTrials:
    """Seconds of a sample by what is set; None where that cannot be run."""

    surface: Surface
    wait_share: float = 0.2
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, overrides: Sequence[str]) -> Trial:
        self.asked.append(tuple(overrides))
        wall_s = self.surface(frozenset(overrides))
        if wall_s is None:
            return Trial(overrides=tuple(overrides), end="out of memory", reason="80 GiB")
        return Trial(
            overrides=tuple(overrides),
            end="measured",
            wall_s=wall_s,
            compute_s=(1 - self.wait_share) * wall_s,
            samples=4.0,
            start_s=10.0 + 30.0 * ("c=on" in overrides),
        )


def knob(name: str, *choices: str, own: int = 0, ordered: bool = False) -> Knob[Situation]:
    offered: list[Choice] = [(choice,) for choice in choices]
    offered.insert(own, OWN)
    return Knob(
        name=name,
        choices=lambda _: tuple(offered),
        ordered=ordered,
    )


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return line_config(tmp_path)


def space_of(config: RunConfig, *knobs: Knob[Situation]) -> Space:
    situation = Situation(config=config, cores=2, has_gpu=False)
    return open_space(knobs, situation, lambda _: None)


def tuner(
    config: RunConfig, trials: FakeTrials | JournaledTrials, *knobs: Knob[Situation]
) -> Tuner:
    return Tuner(
        source="run.yaml",
        space=space_of(config, *knobs),
        claim_of=lambda _: "rounding",
        trials=trials,
        budget=Budget(most_trials=100, most_s=1e9),
    )


def two_gains(settings: frozenset[str]) -> float:
    return 1.0 * (0.5 if "a=1" in settings else 1.0) * (0.8 if "b=1" in settings else 1.0)


def test_cumulative_gains_are_measured_change_by_change(config: RunConfig) -> None:
    tuning = tuner(config, FakeTrials(two_gains), knob("a", "a=1"), knob("b", "b=1")).run()
    assert [row.overrides for row in tuning.rows] == [(), ("a=1",), ("b=1",)]
    assert [row.gain for row in tuning.rows] == pytest.approx([1.0, 2.0, 1.25])
    assert [row.cumulative_gain for row in tuning.rows] == pytest.approx([1.0, 2.0, 2.5])
    assert tuning.overrides == ("a=1", "b=1")
    assert tuning.stopped == "nothing that is left promises a gain"


def test_every_row_was_measured_in_turns(config: RunConfig) -> None:
    trials = FakeTrials(two_gains)
    tuner(config, trials, knob("a", "a=1"), knob("b", "b=1")).run()
    last = trials.asked[-3 * TURNS :]
    assert last[:3] == [(), ("a=1",), ("a=1", "b=1")]
    assert last[3:6] == [("a=1", "b=1"), ("a=1",), ()]


def test_rows_are_measured_as_often_as_asked(config: RunConfig) -> None:
    trials = FakeTrials(two_gains)
    study = tuner(config, trials, knob("a", "a=1"), knob("b", "b=1"))
    study.turns = 1
    tuning = study.run()
    assert trials.asked[-3:] == [(), ("a=1",), ("a=1", "b=1")]
    assert len(trials.asked) == len(tuning.trials)
    assert [row.gain for row in tuning.rows] == pytest.approx([1.0, 2.0, 1.25])


def test_a_gain_that_the_turns_do_not_confirm_is_left_out(config: RunConfig) -> None:
    calls: dict[frozenset[str], int] = {}

    def fades(settings: frozenset[str]) -> float:
        calls[settings] = calls.get(settings, 0) + 1
        lucky = "b=1" in settings and calls[settings] == 1
        return (0.5 if "a=1" in settings else 1.0) * (
            0.5 if lucky else 1.0 + 0.1 * ("b=1" in settings)
        )

    study = tuner(config, FakeTrials(fades), knob("a", "a=1"), knob("b", "b=1"))
    study.budget = Budget(most_trials=4, most_s=1e9)  # none is left to find it out in the search
    tuning = study.run()
    assert tuning.overrides == ("a=1",)
    assert "b=1" in tuning.notes[0]
    assert tuning.rows[-1].cumulative_gain == pytest.approx(2.0)


def test_what_cannot_be_run_is_recorded_and_never_chosen(config: RunConfig) -> None:
    def surface(settings: frozenset[str]) -> float | None:
        return None if "a=2" in settings else two_gains(settings)

    tuning = tuner(config, FakeTrials(surface), knob("a", "a=1", "a=2")).run()
    assert [trial.overrides for trial in tuning.trials if trial.end == "out of memory"] == [
        ("a=2",)
    ]
    assert tuning.overrides == ("a=1",)


def test_a_configuration_that_cannot_be_run_is_said_so(config: RunConfig) -> None:
    with pytest.raises(
        PitstopError, match=r"cannot be measured as it is \(out of memory\): 80 GiB"
    ):
        tuner(config, FakeTrials(lambda _: None), knob("a", "a=1")).run()


def test_the_smallest_micro_batch_within_two_percent_is_taken(config: RunConfig) -> None:
    times = {"m=4": 0.505, "m=8": 0.5}

    def surface(settings: frozenset[str]) -> float:
        return next((times[one] for one in settings), 1.0)

    batch = knob("micro-batch", "m=4", "m=8", ordered=True)
    tuning = tuner(config, FakeTrials(surface), batch).run()
    assert tuning.overrides == ("m=4",)
    times["m=4"] = 0.52
    assert tuner(config, FakeTrials(surface), batch).run().overrides == ("m=8",)


def test_a_longer_start_is_held_against_what_it_saves(config: RunConfig) -> None:
    tuning = tuner(
        config, FakeTrials(lambda settings: 0.5 if "c=on" in settings else 1.0), knob("c", "c=on")
    ).run()
    # 30 s of compiling, half a second of a sample saved, four samples a step.
    assert tuning.rows[1].break_even_steps == 15


@pytest.mark.parametrize("kept", range(0, 14, 3))
def test_a_study_goes_on_from_its_journal_and_repeats_nothing(
    config: RunConfig, tmp_path: Path, kept: int
) -> None:
    knobs = (knob("a", "a=1"), knob("b", "b=1"))
    head = StudyHead(config="text", steps=40)

    def study() -> tuple[FakeTrials, tuple[str, ...]]:
        trials = FakeTrials(two_gains)
        journal = TrialJournal(tmp_path / "journal.jsonl", head)
        found = tuner(config, JournaledTrials(journal=journal, trials=trials), *knobs).run()
        return trials, found.overrides

    whole, chosen = study()
    lines = (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True)
    # Killed in the middle of a line.
    (tmp_path / "journal.jsonl").write_text("".join(lines[: 1 + kept]) + lines[-1][:40])
    rest, again = study()
    assert again == chosen
    assert rest.asked == whole.asked[kept:]
    assert (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True) == lines


def test_a_study_without_time_still_reads_its_journal(config: RunConfig, tmp_path: Path) -> None:
    knobs = (knob("a", "a=1"), knob("b", "b=1"))

    def study(most_s: float) -> tuple[FakeTrials, Tuner]:
        trials = FakeTrials(two_gains)
        journal = TrialJournal(tmp_path / "journal.jsonl", StudyHead(config="text", steps=40))
        found = tuner(config, JournaledTrials(journal=journal, trials=trials), *knobs)
        found.budget = Budget(most_trials=100, most_s=most_s)
        found.is_known = journal.has
        return trials, found

    whole, first = study(1e9)
    chosen = first.run().overrides
    rest, again = study(0.0)
    assert again.run().overrides == chosen == ("a=1", "b=1")
    assert len(whole.asked) > 9
    assert rest.asked == []


def test_a_journal_of_another_study_is_not_used(tmp_path: Path) -> None:
    TrialJournal(tmp_path / "journal.jsonl", StudyHead(config="text", steps=40))
    with pytest.raises(PitstopError, match="another configuration"):
        TrialJournal(tmp_path / "journal.jsonl", StudyHead(config="text", steps=41))
    (tmp_path / "other.jsonl").write_text("hello\n")
    with pytest.raises(PitstopError, match="no journal"):
        TrialJournal(tmp_path / "other.jsonl", StudyHead(config="text", steps=40))


def test_choices_that_may_not_be_tried_are_named_with_their_reason(config: RunConfig) -> None:
    def objection(choice: Choice) -> str | None:
        return {"a=2": "does not fit", "d=1": "changes the training"}.get(choice[0])

    situation = Situation(config=config, cores=2, has_gpu=False)
    space = open_space([knob("a", "a=1", "a=2"), knob("d", "d=1")], situation, objection)
    assert [one.name for one in space.knobs] == ["a"]
    assert space.choices == ((OWN, ("a=1",)),)
    assert space.left_out == ("a=2: does not fit", "d=1: changes the training")


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("each", KNOBS, ids=lambda each: each.name)
def test_every_choice_is_a_setting_that_loads(
    each: Knob[Situation], tmp_path: Path, *, has_gpu: bool
) -> None:
    base = {
        "train__batch_size": 2,
        "train__accumulate": 3,
        "loader__workers": 1,
        "loader__persistent": False,
        "optimizer__fused": "off",
        "eval__every_steps": 5,
    }
    config = line_config(tmp_path, **base)
    offered = each.choices(Situation(config=config, cores=4, has_gpu=has_gpu, free_bytes=2**30))
    assert len(set(offered)) == len(offered)
    assert not offered or OWN in offered
    for choice in offered:
        settings = (one.split("=", 1) for one in choice)
        values = {key.replace(".", "__"): yaml.safe_load(value) for key, value in settings}
        changed = line_config(tmp_path, **base | values)
        assert changed.train.batch_size * changed.train.accumulate == 6
        assert (changed != config) == (choice != OWN)


@pytest.mark.parametrize(
    ("own", "accumulate", "is_tried"), [("none", 1, False), ("none", 2, True), ("full", 1, True)]
)
def test_recomputing_is_tried_where_it_can_gain(
    own: str, accumulate: int, tmp_path: Path, *, is_tried: bool
) -> None:
    config = line_config(tmp_path, train__recompute=own, train__accumulate=accumulate)
    knob = next(each for each in KNOBS if each.name == "recompute")
    offered = knob.choices(Situation(config=config, cores=4, has_gpu=True))
    assert bool(offered) == is_tried


def test_a_study_that_goes_on_with_other_free_memory_tries_the_same_cache(tmp_path: Path) -> None:
    config = line_config(tmp_path)
    knob = next(each for each in KNOBS if each.name == "cache")
    offered = {
        knob.choices(Situation(config=config, cores=4, has_gpu=True, free_bytes=free * 2**30))
        for free in (100, 118, 127)
    }
    assert offered == {(OWN, ("cache.budget=32768MiB", "cache.policy=keep"))}
