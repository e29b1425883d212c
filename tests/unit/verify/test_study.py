"""The journal: what was run is not run again, what was cut short is."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pitstop.records.verify.trial import TrialEnd, TrialResult
from pitstop.verify.runner import Program
from pitstop.verify.study import RESULT, Study


@dataclass
class FakeRunner:
    """Runs nothing, counts, and is killed where asked."""

    dies: bool = False
    ran: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, program: Program) -> TrialEnd:
        self.ran.append(program.arguments)
        (program.folder / "half-written").write_text("x")
        if self.dies:
            raise KeyboardInterrupt
        return TrialEnd(status="finished", reason="", wall_s=1.0)


@dataclass(frozen=True)
class FakeTrial:
    """A trial whose loss is its number."""

    number: float
    label: str = "base, seed 0"

    def identity(self) -> dict[str, object]:
        return {"number": self.number}

    def program(self, folder: Path) -> Program:
        return Program(arguments=("train", str(self.number)), folder=folder)

    def read(self, folder: Path, ended: TrialEnd) -> TrialResult:
        assert folder.is_dir()
        return TrialResult(
            label=self.label,
            status=ended.status,
            reason="",
            wall_s=ended.wall_s,
            losses={0: self.number, 1: None},
        )


def study(folder: Path, runner: FakeRunner) -> Study:
    return Study(folder, runner, lambda _: None)


def test_a_finished_trial_is_not_repeated_and_keeps_every_bit(tmp_path: Path) -> None:
    runner = FakeRunner()
    first = study(tmp_path, runner).result(FakeTrial(0.1 + 0.2))
    again = study(tmp_path, runner).result(FakeTrial(0.1 + 0.2))
    assert first == again
    assert again.losses == {0: 0.1 + 0.2, 1: None}
    assert len(runner.ran) == 1


def test_another_setting_is_another_trial(tmp_path: Path) -> None:
    runner = FakeRunner()
    for number in (1.0, 2.0):
        study(tmp_path, runner).result(FakeTrial(number))
    assert len(runner.ran) == 2


def test_a_trial_that_was_cut_short_is_run_again_from_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path, FakeRunner(dies=True)).result(FakeTrial(1.0))
    runner = FakeRunner()
    result = study(tmp_path, runner).result(FakeTrial(1.0))
    assert result.status == "finished"
    assert len(runner.ran) == 1


@pytest.mark.parametrize("damage", ["", "{", '{"kind": "Other", "schema": 2}'])
def test_a_damaged_result_is_run_again(tmp_path: Path, damage: str) -> None:
    runner = FakeRunner()
    trial = FakeTrial(1.0)
    one = study(tmp_path, runner)
    one.result(trial)
    (one.folder_of(trial) / RESULT).write_text(damage)
    assert one.result(trial).status == "finished"
    assert len(runner.ran) == 2
