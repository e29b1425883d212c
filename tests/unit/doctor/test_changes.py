"""From findings to settings: every fix is a setting of the configuration, or there is none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.config.load import config_from
from pitstop.doctor import changes
from pitstop.doctor.changes import ADVISED, always, changes_for, round_up
from pitstop.doctor.rules.catalogue import ENTRIES
from pitstop.records.verdict import Bound, Finding, Severity, Verdict

BASE = {"model": {"kind": "vrt"}, "train": {"steps": 10}}
SLOW = (
    "loader.workers=0",
    "train.recompute=full",
    "eval.every_steps=10",
    "checkpoint.every_steps=5",
    "log.every_steps=1",
)


def settings(*overrides: str) -> dict[str, Any]:
    return config_from(BASE, overrides).config.model_dump(mode="json")


def finding(code: str, share: float | None = 0.3, severity: Severity = "warning") -> Finding:
    bound = None if share is None else Bound(part=code, share=share)
    return Finding(
        code=code, severity=severity, summary="slow", evidence=(), bound=bound, remedy=()
    )


def verdict(*findings: Finding) -> Verdict:
    return Verdict(outcome="bottleneck", message="slow", findings=findings)


def changed(
    *findings: Finding, overrides: tuple[str, ...] = SLOW, cores: int = 8
) -> dict[str, Any]:
    found = changes_for(verdict(*findings), settings(*overrides), cores=cores)
    return {change.key: change.after for change in found}


def test_each_disease_has_a_cure_of_its_own() -> None:
    fixes = {code: changed(finding(code)) for code in ("DATA001", "RECOMP001", "EVAL001", "LOG001")}
    assert fixes["DATA001"] == {"loader.workers": 7}
    assert fixes["RECOMP001"] == {"train.recompute": "none"}
    assert fixes["EVAL001"] == {"eval.every_steps": 500}
    # The gradient norm was never written down, so it stays so.
    assert fixes["LOG001"] == {"log.every_steps": 50, "log.progress_every_steps": 50}


@pytest.mark.parametrize("code", sorted(ADVISED))
def test_every_code_is_one_of_the_doctors_and_every_key_is_a_setting(code: str) -> None:
    assert code in ENTRIES
    changed(finding(code))  # a key that is no setting raises


@pytest.mark.parametrize("code", sorted(ADVISED))
def test_what_follows_from_a_finding_loads_and_needs_no_second_cure(code: str) -> None:
    found = changes_for(verdict(finding(code)), settings(*SLOW), cores=2)
    fixed = (*SLOW, *(change.override for change in found))
    again = changes_for(verdict(finding(code, share=0.01)), settings(*fixed), cores=2)
    assert again == ()


def test_one_worker_is_written_as_a_count_and_not_as_yes() -> None:
    [change] = changes_for(verdict(finding("DATA001")), settings(*SLOW), cores=2)
    assert change.override == "loader.workers=1"
    assert settings(*SLOW, change.override)["loader"]["workers"] == 1


def test_what_is_told_as_information_changes_nothing() -> None:
    assert changed(finding("EVAL001", severity="info")) == {}


def test_a_finding_whose_cure_is_in_place_changes_nothing() -> None:
    assert changed(finding("RECOMP001"), overrides=()) == {}
    assert changed(finding("DATA001"), overrides=("loader.workers=auto",)) == {}
    assert changed(finding("EVAL001"), overrides=("eval.every_steps=null",)) == {}


def test_a_finding_that_no_setting_mends_changes_nothing() -> None:
    assert changed(finding("HOST001"), finding("TIME001", share=None)) == {}


def test_of_two_findings_about_one_setting_the_first_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advised = {code: {"loader.workers": always(number)} for code, number in (("A", 3), ("B", 4))}
    monkeypatch.setattr(changes, "ADVISED", advised)
    assert changed(finding("B"), finding("A")) == {"loader.workers": 4}


def test_more_workers_than_cores_become_fewer_and_never_none() -> None:
    many = ("loader.workers=20",)
    assert changed(finding("DATA004"), overrides=many) == {"loader.workers": 7}
    assert changed(finding("DATA004"), overrides=many, cores=1) == {"loader.workers": 1}


@given(every=st.integers(1, 1000), share=st.floats(0.1, 0.99), cost_s=st.floats(1e-3, 10))
def test_a_stretched_cadence_costs_a_fiftieth_at_most(
    every: int, share: float, cost_s: float
) -> None:
    """By the time it takes, not by shares: so many steps, and then one evaluation."""
    step_s = cost_s * (1 - share) / share / every
    new = changed(finding("EVAL001", share=share), overrides=(f"eval.every_steps={every}",))
    steps = new["eval.every_steps"]
    assert cost_s / (cost_s + steps * step_s) <= 0.02 * (1 + 1e-9)
    # Round numbers lie at most two and a half times apart.
    assert cost_s / (cost_s + steps / 2.6 * step_s) > 0.02


@given(value=st.floats(1, 1e9))
def test_round_numbers_begin_with_one_two_or_five(value: float) -> None:
    number = round_up(value)
    assert value <= number < 2.6 * value + 1
    assert str(number).rstrip("0") in ("1", "2", "5")
