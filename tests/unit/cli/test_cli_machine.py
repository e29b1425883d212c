import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pitstop.cli import machine as command
from pitstop.errors import MeasureError, RecordError
from pitstop.measure.machine import describe
from pitstop.records.host.machine import Machine
from pitstop.records.store import from_json

app = typer.Typer()
app.command("machine")(command.machine)


def test_the_record_is_written_where_asked_and_the_words_still_shown(tmp_path: Path) -> None:
    target = tmp_path / "machine.json"
    result = CliRunner().invoke(app, ["--quick", "--json", str(target)])
    assert result.exit_code == 0, result.output
    assert "usable cores" in result.output
    assert from_json(target.read_text(), Machine).quick


def test_a_dash_writes_the_record_and_nothing_else() -> None:
    result = CliRunner().invoke(app, ["--quick", "--json", "-"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["kind"] == "Machine"


def test_a_wrong_path_is_an_error_a_user_can_mend(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--data", str(tmp_path / "nowhere")])
    assert isinstance(result.exception, MeasureError)
    with pytest.raises(MeasureError, match="does not exist"):
        raise result.exception


def test_a_place_that_takes_no_record_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("measured first")

    monkeypatch.setattr(describe, "measure_machine", measured)
    result = CliRunner().invoke(app, ["--json", str(tmp_path / "missing" / "machine.json")])
    assert isinstance(result.exception, RecordError)
