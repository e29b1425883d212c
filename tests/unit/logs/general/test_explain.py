"""``--explain``, ``--step``, ``--time`` and ``--unit``: what the general reader took lines for."""

from pathlib import Path

import pytest

from pitstop.cli.doctor_logs import doctor_logs, explain_logs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "own.log"
    path.write_text("".join(f"step {n} loss 0.5 took 30\n" for n in range(10, 400, 10)))
    return path


def test_an_explanation_says_what_lines_became_and_what_was_not_understood(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain_logs([log], step=None, time=None, unit=None) == 0
    said = capsys.readouterr().out
    assert "39  training records   step 10 loss 0.5 took 30" in said
    assert "step: step (80% sure: a counter that rises by 10)" in said
    assert "not understood: took, e.g. step 10 loss 0.5 took 30" in said


def test_the_users_fields_make_a_time_of_a_step(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor_logs([log], fields=("step", "took", "ms"))
    assert "30.0 ms" in capsys.readouterr().out
