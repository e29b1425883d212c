"""The doctor on scripts with a known bottleneck: it names it first, and accuses no healthy one."""

from pathlib import Path

import pytest

from tests.integration.shared_runs import shared_doctor
from tests.scripts.corpus import HEALTHY, ON_GPU, SLOW, Case, Healthy
from tests.scripts.run_corpus import Said, doctor, main, printed_rate

STEPS = 80
"""Enough for every share to settle; the command is ended after them."""


def watched(line: list[str], steps: int, *, expected: list[str]) -> Said:
    """Run the doctor; once more where it names something else, for machines are shared."""
    said = shared_doctor(line, steps=min(STEPS, steps))
    if said.codes[:1] != expected:
        said = doctor(line, steps=min(STEPS, steps))
    return said


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_the_planted_bottleneck_is_named_first(case: Case) -> None:
    said = watched(case.command(fixed=False), case.steps, expected=[case.code])
    assert said.exit_code in (0, 3), said.stderr
    assert said.outcome == "bottleneck", said.verdict.get("message")
    assert said.codes[0] == case.code, said.verdict["shares"]
    bound = said.bound(case.code)
    assert bound is not None
    assert bound > 1.2


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_script_is_not_accused(case: Healthy) -> None:
    said = watched(case.command(), case.steps, expected=[])
    assert said.exit_code in (0, 3), said.stderr
    assert said.outcome == "healthy", said.verdict.get("message")
    assert said.codes == []


@pytest.mark.gpu
@pytest.mark.parametrize("case", ON_GPU, ids=lambda case: case.name)
def test_the_planted_bottleneck_of_a_gpu_is_named_first(case: Case) -> None:
    said = doctor(case.command(fixed=False), steps=case.watched_steps)
    assert said.exit_code in (0, 3), said.stderr
    assert said.codes[:1] == [case.code], said.verdict


@pytest.mark.parametrize("case", [*SLOW, *ON_GPU], ids=lambda case: case.name)
def test_every_case_has_its_scripts(case: Case) -> None:
    for fixed in (False, True):
        script = next(word for word in case.command(fixed=fixed) if word.endswith(".py"))
        text = Path(script).read_text(encoding="utf-8")
        assert "pitstop" not in text
        assert "samples/s" in text


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["--only", "logging", "lgging"], "'lgging'"),
        (["--device", "cuda", "--only", HEALTHY[0].name], repr(HEALTHY[0].name)),
    ],
    ids=["no such case", "not on this device"],
)
def test_a_case_that_is_not_there_is_no_reason_to_run_nothing(
    words: list[str], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert f"no case has {missing} in its name" in capsys.readouterr().err


def test_a_rate_is_read_from_the_line_that_ends_a_script() -> None:
    assert printed_rate("step 3\nloss 0.5, 2.000 s after warm-up, 812.5 samples/s\n") == 812.5
    assert printed_rate("killed") is None
