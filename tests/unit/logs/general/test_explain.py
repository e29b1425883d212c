"""``--explain``, ``--step``, ``--time`` and ``--unit``: what the general reader makes of lines."""

from pathlib import Path

import numpy as np
import pytest

from pitstop.cli.doctor_logs import doctor_logs, explain_logs
from pitstop.errors import RecordError
from pitstop.logs.general.read import FieldHints
from pitstop.logs.read import read_logs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "own.log"
    path.write_text("".join(f"step {n} loss 0.5 took 30\n" for n in range(10, 400, 10)))
    return path


def test_an_explanation_says_which_lines_are_quoted_and_which_count_steps(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain_logs([log], step=None, time=None, unit=None) == 0
    said = capsys.readouterr().out
    assert "39  quoted: step 10 loss 0.5 took 30" in said
    assert "took: time, on 39 lines" in said
    assert "lines whose count is of steps: step 10 loss 0.5 took 30" in said


def test_the_users_fields_make_a_time_of_a_step(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor_logs([log], fields=("step", "took", "ms"))
    assert "30.0 ms" in capsys.readouterr().out


def test_what_was_said_of_a_log_can_be_kept_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "own.log"
    log.write_text("".join(f"mark {n} loss 0.5 took 30\n" for n in range(10, 400, 10)))
    assert explain_logs([log], step="mark", time="took", unit="ms") == 0
    kept = capsys.readouterr().out.split(".dialect:\n")[1]
    (tmp_path / "own.log.dialect").write_text(kept)
    table = read_logs([log])[0].first.windows
    assert table is not None
    assert table.last_step[-1] == 390
    assert np.nanmedian(table.step_s) == pytest.approx(0.03)


@pytest.mark.parametrize("text", ["unit = 'parsec'", "steps = 'mark'", "step = 3", "step ="])
def test_a_dialect_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    log = tmp_path / "own.log"
    log.write_text("step 1 loss 2\n" * 9)
    (tmp_path / "own.log.dialect").write_text(text)
    with pytest.raises(RecordError, match=r"own\.log\.dialect"):
        read_logs([log])


@pytest.mark.parametrize("option", ["step", "time"])
def test_a_field_that_no_line_has_is_refused_with_those_there_are(log: Path, option: str) -> None:
    with pytest.raises(RecordError, match=rf"--{option} nosuch: .*; fields: step, loss, took"):
        read_logs([log], hints=FieldHints(**{option: "nosuch"}))
