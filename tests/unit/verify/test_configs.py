"""Two configurations verified whole: planted harms are caught where they should be, others pass.

Trials are trained in this process; `test_runner` is about children.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import pytest
import yaml

from pitstop.errors import PitstopError
from pitstop.records.verify.trial import TrialEnd
from pitstop.records.verify.verification import Verification
from pitstop.verify import engine_child
from pitstop.verify.configs import Wanted, verify_configs
from pitstop.verify.engine_trial import CONFIG
from pitstop.verify.engine_trial import SETTINGS as SETTINGS_FILE
from pitstop.verify.runner import OUTPUT, Program
from pitstop.verify.study import Study
from tests.unit.verify.workload import HARMLESS, HARMS, SETTINGS, Harm, install


class InProcessRunner:
    """Trains here; what is broken is broken for every configuration but the baseline's."""

    def __init__(self, harm: Harm = nullcontext) -> None:
        self._harm = harm
        self._base: str | None = None
        self.ran = 0

    def run(self, program: Program) -> TrialEnd:
        self.ran += 1
        text = (program.folder / CONFIG).read_text()
        self._base = self._base or text
        harm = nullcontext if text == self._base else self._harm
        with (program.folder / OUTPUT).open("w") as file, redirect_stdout(file), harm():
            try:
                code = engine_child.main(program.folder)
            except PitstopError as error:
                return TrialEnd(status="crashed", reason=str(error), wall_s=1.0)
        return TrialEnd(status="finished" if code == 0 else "crashed", reason="", wall_s=1.0)


@pytest.fixture(autouse=True)
def workload(tmp_path: Path) -> Iterator[None]:
    before = list(sys.path)
    install(tmp_path / "site")
    yield
    sys.path[:] = before


def verified(
    folder: Path,
    settings: tuple[str, ...],
    runner: InProcessRunner,
    *,
    steps: int | None = None,
    check_steps: int = 8,
    numbers_only: bool = False,
) -> Verification:
    """Verify the baseline with some settings changed."""
    base, candidate = folder / "base.yaml", folder / "candidate.yaml"
    base.write_text(yaml.safe_dump(SETTINGS))
    changed = {key: dict(value) for key, value in SETTINGS.items()}
    for setting in settings:
        key, _, value = setting.partition("=")
        section, _, name = key.partition(".")
        changed[section][name] = yaml.safe_load(value)
    candidate.write_text(yaml.safe_dump(changed))
    wanted = Wanted(
        base=base,
        candidate=candidate,
        seeds=3,
        check_steps=check_steps,
        steps=steps,
        numbers_only=numbers_only,
    )
    return verify_configs(wanted, Study(folder / "study", runner, lambda _: None))


def levels(found: Verification) -> dict[str, str]:
    return {level.level: level.outcome for level in found.levels}


def test_dropped_averages_under_a_change_of_cadence_are_caught_to_the_bit(tmp_path: Path) -> None:
    harm, settings = HARMS["dropped EMA"]
    found = verified(tmp_path, settings, InProcessRunner(harm))
    assert (found.claim, found.outcome) == ("exact", "fails")
    assert levels(found)["exact"] == "fails"
    assert "psnr at step 8" in found.message


def test_an_exact_change_passes_without_further_runs_and_its_candidate_resumes(
    tmp_path: Path,
) -> None:
    runner = InProcessRunner()
    found = verified(tmp_path, HARMLESS["other log and prefetch cadence"], runner)
    assert (found.claim, found.outcome) == ("exact", "passes")
    assert levels(found)["statistical"] == "not run"
    assert levels(found)["checklist"] == "passes"
    assert runner.ran == 3, "base, candidate, and the candidate resumed"
    verified(tmp_path, HARMLESS["other log and prefetch cadence"], runner)
    assert runner.ran == 3, "all of it is in the journal"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("wrong accumulation scaling", "numerical"),
        ("fp16 without scaler", "numerical"),
        ("clipped twice", "numerical"),
        ("augmentation lost", "exact"),
        ("window changed", "statistical"),
    ],
)
def test_a_planted_harm_is_caught_at_its_level(tmp_path: Path, name: str, level: str) -> None:
    harm, settings = HARMS[name]
    found = verified(tmp_path, settings, InProcessRunner(harm), check_steps=30)
    assert found.outcome == "fails", found.message
    assert levels(found)[level] == "fails"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accumulation over four micro-batches", "bf16"])
def test_a_change_of_rounding_passes_by_numbers_and_by_its_metric(
    tmp_path: Path, name: str
) -> None:
    found = verified(tmp_path, HARMLESS[name], InProcessRunner(), steps=40)
    assert found.outcome == "passes", found.message
    assert (levels(found)["numerical"], levels(found)["statistical"]) == ("passes", "passes")
    assert found.statistical is not None
    assert found.statistical.margin == 0.3
    assert found.time_to_quality is not None
    assert found.time_to_quality.base_samples == found.time_to_quality.candidate_samples


class WithoutDeterministicKernels(InProcessRunner):
    """Refuses deterministic runs, as torch does of operations that have no such form."""

    def run(self, program: Program) -> TrialEnd:
        settings = json.loads((program.folder / SETTINGS_FILE).read_text())
        if "run.deterministic=true" in settings["overrides"]:
            reason = "exit code 1: RuntimeError: x does not have a deterministic implementation"
            return TrialEnd(status="crashed", reason=reason, wall_s=1.0)
        return super().run(program)


def test_without_deterministic_kernels_numbers_are_compared_all_the_same(tmp_path: Path) -> None:
    runner = WithoutDeterministicKernels()
    found = verified(tmp_path, HARMLESS["bf16"], runner, numbers_only=True)
    assert (found.claim, found.outcome) == ("rounding", "passes")
    assert levels(found)["numerical"] == "passes"
    assert (levels(found)["statistical"], levels(found)["checklist"]) == ("not run", "not run")
    assert "sums in any order" in found.message
    assert runner.ran == 3, "base, candidate, another seed of the base"


def test_equal_bits_are_not_claimed_without_deterministic_kernels(tmp_path: Path) -> None:
    settings = HARMLESS["other log and prefetch cadence"]
    found = verified(tmp_path, settings, WithoutDeterministicKernels())
    assert (found.claim, found.outcome) == ("exact", "undecided")
    assert "deterministic" in found.message


def test_a_candidate_that_cannot_be_trained_fails(
    tmp_path: Path,
) -> None:
    def broken() -> nullcontext[None]:
        raise PitstopError("the disk is full")

    class Breaks(InProcessRunner):
        def run(self, program: Program) -> TrialEnd:
            try:
                return super().run(program)
            except PitstopError as error:
                return TrialEnd(status="crashed", reason=str(error), wall_s=0.0)

    settings = HARMLESS["bf16"]
    found = verified(tmp_path, settings, Breaks(broken))
    assert (found.outcome, levels(found)["exact"]) == ("fails", "not run")
    assert "candidate" in found.message
    assert "the disk is full" in found.message


def test_a_metric_that_is_not_there_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump({**SETTINGS, "train": {**SETTINGS["train"], "steps": 4}}))
    other = tmp_path / "other.yaml"
    other.write_text("base: base.yaml\noptimizer: {lr: 0.1}\n")
    wanted = Wanted(base=base, candidate=other, seeds=1, check_steps=2, metric="mAP")
    with pytest.raises(PitstopError, match="no metric mAP; they have psnr"):
        verify_configs(wanted, Study(tmp_path / "study", InProcessRunner(), lambda _: None))
