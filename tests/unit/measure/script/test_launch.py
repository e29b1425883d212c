"""Somebody's command under measurement: where its record goes, what reaches it, how it ends."""

import errno
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pitstop.errors import PitstopError
from pitstop.measure.script.launch import run_script, seen_without_steps
from pitstop.records.script import Untrained
from pitstop_probe import RecordWriter
from pitstop_probe.attach import VARIABLE

SAY_FOLDER = f"""
import json, os, pathlib, sys
pathlib.Path(sys.argv[1]).write_text(json.loads(os.environ[{VARIABLE!r}])["folder"])
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


@pytest.mark.parametrize(
    "name",
    [
        "rank-0.jsonl",
        "other-0-12.jsonl",
        "worker-12.jsonl",
        "seen-12.json",
        "outside.jsonl",
        "ended-by-pitstop",
        "measured-by-pitstop",
        "without-data",
    ],
)
def test_a_folder_with_anything_of_another_run_is_refused_before_the_command_runs(
    tmp_path: Path, name: str
) -> None:
    folder, ran = tmp_path / "record", tmp_path / "ran"
    folder.mkdir()
    (folder / name).touch()
    with pytest.raises(PitstopError, match=f"holds {name} of another run"):
        run_script(["touch", str(ran)], folder, steps=None)
    assert not ran.exists()
    assert [path.name for path in folder.iterdir()] == [name]


def test_a_folder_with_files_of_no_run_is_taken(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert run_script(["true"], tmp_path, steps=None).exit_code == 0


def test_places_that_can_hold_no_record_are_refused_in_one_line(tmp_path: Path) -> None:
    taken, ran = tmp_path / "taken", tmp_path / "ran"
    taken.touch()
    for place in (taken, taken / "below", Path("/proc/x"), Path("/proc"), tmp_path / ("x" * 5_000)):
        with pytest.raises(PitstopError, match="cannot write a record to") as refused:
            run_script(["touch", str(ran)], place, steps=None)
        assert "\n" not in str(refused.value)
    assert not ran.exists()


def test_the_command_is_told_an_absolute_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_script(python(SAY_FOLDER, tmp_path / "said"), Path("record"), steps=None)
    assert (tmp_path / "said").read_text() == str(tmp_path / "record")


def test_a_file_without_its_interpreter_is_a_users_error(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("import torch\n")
    record = tmp_path / "record"
    with pytest.raises(PitstopError, match="not executable"):
        run_script([str(script)], record, steps=None)
    script.chmod(0o755)
    # Once it is fixed, the same folder can be named again.
    with pytest.raises(PitstopError, match="no #! line"):
        run_script([str(script)], record, steps=None)
    script.write_text("#!/no/such/interpreter\n")
    with pytest.raises(PitstopError, match="cannot run"):
        run_script([str(script)], record, steps=None)


def test_a_real_time_signal_has_a_name_too(tmp_path: Path) -> None:
    ended = run_script(python("import os; os.kill(os.getpid(), 40)"), tmp_path, steps=None)
    assert (ended.signal, ended.exit_code) == ("signal 40", None)
    kinds = [json.loads(line) for line in (tmp_path / "outside.jsonl").read_text().splitlines()]
    assert any("signal 40" in json.dumps(line) for line in kinds)


def test_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run_script(["true"], tmp_path, steps=None)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_nothing_runs_where_its_record_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("pitstop.measure.script.launch.RecordWriter", refuse)
    with pytest.raises(PitstopError, match="no space left"):
        run_script(["touch", str(tmp_path / "ran")], tmp_path / "record", steps=None)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("half", ["", '{"pid": 3, "comm', "[]", '{"worker": false}', "3"])
def test_a_process_killed_while_it_wrote_what_it_was_is_left_out(tmp_path: Path, half: str) -> None:
    whole = {
        "command": ["train.py"],
        "torch": "2.1",
        "backward_passes": 3,
        "compiled": False,
        "worker": False,
    }
    (tmp_path / "seen-1.json").write_text(half)
    (tmp_path / "seen-2.json").write_text(json.dumps(whole))
    assert seen_without_steps(tmp_path) == (
        Untrained(command=("train.py",), torch="2.1", backward_passes=3, compiled=False),
    )


def test_a_disk_that_fills_up_costs_the_record_and_not_the_commands_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is raised here or in the thread that looks, whose errors pytest tells of."""

    class Full(RecordWriter):
        def reading(self, kind: str, values: Mapping[str, Any]) -> None:
            super().reading(kind, values)
            refused.append(kind)
            raise OSError(errno.ENOSPC, "no space left")

        def close(self, status: str = "finished", reason: str = "") -> None:
            super().close(status, reason)
            refused.append("close")
            raise OSError(errno.ENOSPC, "no space left")

    refused: list[str] = []
    monkeypatch.setattr("pitstop.measure.script.launch.RecordWriter", Full)
    monkeypatch.setattr("pitstop.measure.script.launch._READ_EVERY_S", 0.01)
    ended = run_script(["sh", "-c", "sleep 0.5; exit 3"], tmp_path, steps=None)
    assert ended.exit_code == 3
    assert refused == ["source", "memory", "ended", "close"]
