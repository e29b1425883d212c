"""Exit codes of ``pitstop doctor --fail-on``, and the ablation in the JSON."""

import json
from pathlib import Path

import pytest

from pitstop.cli import doctor_script
from pitstop.cli.doctor_script import ScriptOptions, diagnose_script
from pitstop.measure.script import launch
from pitstop.records.script import Ended
from pitstop.records.verdict import Bound, Finding, Severity, Verdict

SLOW_LOG = Finding(
    code="LOG001",
    severity="warning",
    summary="slow",
    evidence=(),
    bound=Bound(part="logging", share=0.5),
    remedy=(),
)
JUDGED = Verdict(outcome="bottleneck", message="slow", findings=(SLOW_LOG,), steps=60)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """A command that trained and ended with code 7, and how it was run."""
    calls: list[dict[str, object]] = []

    def run_script(_command: object, _folder: object, **how: object) -> Ended:
        calls.append(how)
        return Ended(exit_code=7, signal=None, wall_s=1.0, interrupted=False, stopped_by_us=False)

    monkeypatch.setattr(launch, "run_script", run_script)
    monkeypatch.setattr(doctor_script, "_judge", lambda *_: JUDGED)
    return calls


def code_of(folder: Path, *, fail_on: Severity | None = None, ablate: launch.Part | None) -> int:
    options = ScriptOptions(
        steps=200,
        detach=False,
        ablate=ablate,
        folder=folder / "record",
        fail_on=fail_on,
        json_path=str(folder / "verdict.json"),
    )
    return diagnose_script(["train"], options)


@pytest.mark.parametrize(
    ("fail_on", "code"), [(None, 7), ("critical", 7), ("warning", 1), ("info", 1)]
)
@pytest.mark.usefixtures("ran")
def test_a_command_that_failed_is_not_hidden_where_no_finding_is_severe_enough(
    tmp_path: Path, fail_on: Severity | None, code: int
) -> None:
    assert code_of(tmp_path, fail_on=fail_on, ablate=None) == code
    assert json.loads((tmp_path / "verdict.json").read_text())["ablation"] is None


def test_an_ablation_stands_in_the_json(tmp_path: Path, ran: list[dict[str, object]]) -> None:
    assert code_of(tmp_path, ablate="log") == 7
    assert [how.get("ablate") for how in ran] == [None, "log"]
    test = json.loads((tmp_path / "verdict.json").read_text())["ablation"]
    # Nothing was recorded here, so nothing could be measured.
    assert (test["part"], test["predicted"], test["measured"]) == ("log", 2.0, None)
