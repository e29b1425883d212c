"""Trials on a cluster that is played: a lost node is a failed trial that is repeated."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pitstop.config.sections import RunConfig
from pitstop.errors import MissingPackage, PitstopError
from pitstop.records.store import from_json, to_json
from pitstop.records.tuning.study import Trial
from pitstop.tune.cluster import ClusterTrials, NodeCall, NodeLost, RepeatedTrials, place_on
from pitstop.tune.journal import JournaledTrials, StudyHead, TrialJournal
from pitstop.tune.node import NodeTrial, Place, describe_place, place_text, run_node_trial
from pitstop.tune.ray_cluster import RayCluster
from pitstop.tune.tuning import Budget, Tuner
from tests.unit.train.runs import line_config
from tests.unit.tune.test_tuning import knob, space_of, two_gains

HEAD = StudyHead(config="a: 1", steps=20)
ASKED = NodeTrial(config="c.yaml", given=(), overrides=(), steps=20, limit_s=9.0, folder=".")

CRASHING = "a=2"


@dataclass
class FakeCluster:
    """Answers trials from a surface; loses the node under those calls that are named."""

    lose: frozenset[int] = frozenset()
    calls: list[tuple[str, ...]] = field(default_factory=list)
    interrupt_at: int | None = None

    def call(self, function: NodeCall, text: str) -> str:
        if function is place_text:
            return to_json(Place(host="node-1", cores=2, free_bytes=1))
        assert function is run_node_trial
        asked = from_json(text, NodeTrial)
        self.calls.append(asked.overrides)
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        if len(self.calls) in self.lose:
            raise NodeLost("WorkerCrashedError: the worker died")
        if CRASHING in asked.overrides:
            return to_json(Trial(overrides=asked.overrides, end="crashed", reason="exit code 1"))
        wall_s = two_gains(frozenset(asked.overrides))
        measured = Trial(
            overrides=asked.overrides, end="measured", wall_s=wall_s, compute_s=0.8 * wall_s,
            samples=4.0, start_s=1.0, host="node-1",
        )  # fmt: skip
        return to_json(measured)


def tuner_on(
    cluster: FakeCluster, config: RunConfig, journal: Path, said: Callable[[Trial], None]
) -> tuple[Tuner, JournaledTrials]:
    journaled = JournaledTrials(
        journal=TrialJournal(journal, HEAD),
        trials=ClusterTrials(cluster=cluster, asked=ASKED),
    )
    tuner = Tuner(
        source="run.yaml",
        space=space_of(config, knob("a", "a=1", CRASHING), knob("b", "b=1")),
        claim_of=lambda _: "rounding",
        trials=RepeatedTrials(trials=journaled, progress=said),
        budget=Budget(most_trials=100, most_s=1e9),
    )
    return tuner, journaled


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return line_config(tmp_path)


def lines(journal: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in journal.read_text().splitlines()][1:]


def test_a_study_with_crashes_and_lost_nodes_finishes_as_without_them(
    tmp_path: Path, config: RunConfig
) -> None:
    calm, _ = tuner_on(FakeCluster(), config, tmp_path / "calm.jsonl", lambda _: None)
    said: list[Trial] = []
    cluster = FakeCluster(lose=frozenset({2, 5, 6}))
    rough, _ = tuner_on(cluster, config, tmp_path / "rough.jsonl", said.append)
    without, found = calm.run(), rough.run()
    assert found.overrides == without.overrides == ("a=1", "b=1")
    assert [trial.overrides for trial in found.trials] == [t.overrides for t in without.trials]
    assert [trial.end for trial in said] == ["lost"] * 3
    kept = lines(tmp_path / "rough.jsonl")
    assert len(kept) == len(cluster.calls) == len(found.trials) + 3
    assert [one["end"] for one in kept].count("lost") == 3
    assert "crashed" in {one["end"] for one in kept}


def test_a_study_that_was_killed_goes_on_from_its_journal_past_what_was_lost(
    tmp_path: Path, config: RunConfig
) -> None:
    whole = FakeCluster(lose=frozenset({2, 5}))
    first, _ = tuner_on(whole, config, tmp_path / "whole.jsonl", lambda _: None)
    expected = first.run()
    for last in range(1, len(whole.calls)):
        journal = tmp_path / f"cut-{last}.jsonl"
        killed = FakeCluster(lose=frozenset({2, 5}), interrupt_at=last)
        tuner, _ = tuner_on(killed, config, journal, lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            tuner.run()
        before = len(lines(journal))
        lost_later = frozenset(n - before for n in (2, 5) if n > before)
        again = FakeCluster(lose=lost_later)
        tuner, journaled = tuner_on(again, config, journal, lambda _: None)
        assert tuner.run().overrides == expected.overrides
        assert journaled.repeated == before == last - 1
        assert len(lines(journal)) == len(whole.calls)


def test_settings_under_which_every_node_is_lost_are_given_up(
    tmp_path: Path, config: RunConfig
) -> None:
    cluster = FakeCluster(lose=frozenset(range(1, 100)))
    tuner, _ = tuner_on(cluster, config, tmp_path / "journal.jsonl", lambda _: None)
    with pytest.raises(PitstopError, match=r"cannot be measured as it is \(lost\)"):
        tuner.run()
    assert len(cluster.calls) == 3


def test_the_space_is_that_of_the_node_and_not_of_the_machine_that_tunes() -> None:
    @dataclass
    class Losing:
        left: int

        def call(self, function: NodeCall, text: str) -> str:
            self.left -= 1
            if self.left >= 0:
                raise NodeLost("gone")
            return to_json(Place(host="g", cores=96, free_bytes=5, gpu_name="H", gpu_bytes=9))

    place = place_on(Losing(left=2))
    assert (place.host, place.has_gpu) == ("g", True)
    with pytest.raises(NodeLost):
        place_on(Losing(left=9))
    assert from_json(place_text(), Place).cores == describe_place().cores


def test_a_node_that_does_not_see_the_configuration_refuses_and_names_itself(
    tmp_path: Path,
) -> None:
    asked = NodeTrial(
        config=str(tmp_path / "none.yaml"), given=(), overrides=("a=1",), steps=20, limit_s=9.0,
        folder=str(tmp_path),
    )  # fmt: skip
    trial = from_json(run_node_trial(to_json(asked)), Trial)
    assert (trial.end, trial.overrides) == ("refused", ("a=1",))
    assert "is not on host" in trial.reason
    assert trial.host is not None


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingPackage, match="pip install ray"):
        RayCluster()
