"""No rule is dead: each speaks on a real script, measured by the probe, not on made-up facts."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pitstop.doctor.rules.catalogue import CATALOGUE, RANK_RULES, RULES
from tests.integration.shared_runs import shared_doctor
from tests.scripts.corpus import FIRES, FOLDER, ON_GPU, SLOW, Fires, command
from tests.scripts.run_corpus import Said, doctor, doctor_by_hand


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Keep cores busy from outside the measured job."""
    burner = [sys.executable, str(FOLDER / "rules/burner.py")]
    others = [subprocess.Popen(burner, stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.communicate()


def measured(case: Fires) -> Said:
    if case.by_hand:
        return doctor_by_hand(case.command())
    if case.driver is None and not case.neighbours:
        return shared_doctor(case.command(), steps=case.steps)
    path = None if case.driver is None else str(FOLDER / case.driver)
    with busy_neighbours(case.neighbours):
        return doctor(case.command(), steps=case.steps, path=path)


def codes(said: Said) -> list[str]:
    """Whatever was found, information included."""
    return [finding["code"] for finding in said.verdict.get("findings", [])]


def test_every_rule_has_a_script_that_makes_it_speak() -> None:
    tried = {case.code for case in (*SLOW, *ON_GPU, *FIRES)}
    assert len(RULES) + len(RANK_RULES) == len(CATALOGUE), "one code a rule"
    assert [entry.code for entry in CATALOGUE if entry.code not in tried] == []
    assert tried <= {entry.code for entry in CATALOGUE}


@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.code)
def test_every_script_is_there(case: Fires) -> None:
    assert (FOLDER / case.script).is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        # Of what is timed by hand most has no name, whatever else runs.
        pytest.param(
            case, id=case.code, marks=[] if case.by_counts or case.by_hand else pytest.mark.quiet
        )
        for case in FIRES
        if case.device == "cpu"
    ],
)
def test_a_rule_speaks_on_a_real_script(case: Fires) -> None:
    said = measured(case)
    assert case.code in codes(said), (said.verdict.get("message"), said.stderr)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", [case for case in FIRES if case.device == "cuda"], ids=lambda case: case.code
)
def test_a_rule_speaks_on_a_real_script_on_a_gpu(case: Fires) -> None:
    said = measured(case)
    assert case.code in codes(said), (said.verdict.get("message"), said.stderr)


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize(
    ("where", "part"),
    [("update", "optimizer"), ("host", "host"), ("evaluation", "evaluation, outside the step")],
)
def test_a_script_that_hangs_once_is_still_judged_by_its_other_steps(where: str, part: str) -> None:
    said = shared_doctor(command("rules/stall.py", ("--at", where)), steps=85)
    assert said.verdict["primary"] == "DATA001", said.verdict["message"]
    found = {finding["code"]: finding for finding in said.verdict["findings"]}
    # A busy machine may add stalls of its own.
    lines = [line for line in found["STALL001"]["evidence"] if f" longer in {part} (" in line]
    assert any("`time.sleep(" in line for line in lines), found["STALL001"]["evidence"]
    assert "; also, step " in said.verdict["message"]
