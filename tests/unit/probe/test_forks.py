"""In a forked process nothing of the parent's is destroyed, asked or written to, at its end too."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pitstop.records.store import read_run
from pitstop_probe import RecordWriter, forks
from pitstop_probe.forks import keep_for_parent, let_go, stays_here

SCRIPT = Path(__file__).with_name("forking_script.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def forked(folder: Path, holder: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), holder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pitstop:" not in done.stderr
    ended = json.loads((folder / "ended.json").read_text(encoding="utf-8"))
    return ended, (folder / "touched").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("holder", ["probe", "clock"])
def test_no_child_touches_what_its_parent_made(tmp_path: Path, holder: str) -> None:
    ended, touched = forked(tmp_path, holder)
    assert touched == ""
    assert ended.pop("loss") > 0.0
    for way, (code, usual) in ended.items():
        assert code == usual, way
    record = read_run(tmp_path).first
    assert record.is_finished
    assert record.steps is not None
    # Every step once; the probe's begin where the script's first ends, and four are slowed down.
    indices = [step.index for step in record.steps]
    trained = 30 * len(ended) + 2
    looked_into = {4, 5, 6, 7} if holder == "probe" else set[int]()
    expected = range(trained - 1 if holder == "probe" else trained)
    assert indices == [index for index in expected if index not in looked_into]
    # Those that train by themselves leave a record of their own; a clock's is its maker's.
    texts = [path.read_text(encoding="utf-8") for path in tmp_path.glob("other-*")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    ends = [line for line in lines if isinstance(line, dict) and line["kind"] == "end"]
    # Three came to their end by themselves.
    assert [end["steps"] for end in ends] == ([55] * 3 if holder == "probe" else [])


class Destroyed:
    def __init__(self, seen: int) -> None:
        self._seen = seen

    def __del__(self, write: Any = os.write) -> None:
        write(self._seen, b"destroyed")


@pytest.mark.parametrize("collected", [False, True])
def test_what_stays_here_is_let_go_of_here_and_kept_there(*, collected: bool) -> None:
    reading, writing = os.pipe()
    thing = stays_here(Destroyed(writing))
    if collected:  # garbage that nobody has collected yet
        gc.disable()
        around: list[Any] = [thing]
        around.append(around)
        del around
    child = os.fork()
    if child == 0:
        del thing
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    let_go(thing)
    del thing
    gc.enable()
    gc.collect()
    assert os.read(reading, 100) == b"destroyed"
    os.close(reading)
    os.close(writing)


def test_what_is_kept_outlives_the_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "kept.py"
    script.write_text(
        "import ctypes, os\n"
        "from pitstop_probe.forks import keep_for_parent\n"
        "class Thing:\n"
        "    def __del__(self, write=os.write):\n"
        "        write(1, b'destroyed')\n"
        "keep_for_parent([Thing()])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=True)
    assert done.stdout == b""


HANDLERS = """
import ctypes, os, sys
from pitstop_probe.forks import skip_exit_handlers_in_children
libc = ctypes.CDLL(None)
# What a library registers that waits for its threads when the process exits.
getattr(libc, "__cxa_atexit")(libc.abort, None, None)
if sys.argv[1] == "skipped":
    skip_exit_handlers_in_children()
child = os.fork()
if child == 0:
    libc.printf(b"printed by C\\n")
    print("printed by Python")
    sys.exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os.write(1, b"%d\\n" % code)
os._exit(0)
"""


def test_children_exit_without_the_handlers_of_libraries(tmp_path: Path) -> None:
    script = tmp_path / "handlers.py"
    script.write_text(HANDLERS)

    def printed(way: str) -> list[bytes]:
        command = [sys.executable, str(script), way]
        return subprocess.run(command, capture_output=True, check=True).stdout.split(b"\n")

    assert printed("run")[-2] == b"-6"
    assert sorted(printed("skipped")) == [b"", b"7", b"printed by C", b"printed by Python"]


def test_a_parents_record_takes_nothing_from_its_child(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    writer = RecordWriter(str(path))
    writer.reading("before", {})
    child = os.fork()
    if child == 0:
        writer.reading("after", {})
        writer.flush()
        writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.close()
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["run", "before", "end"]


def test_one_that_fails_to_begin_anew_is_named_and_keeps_no_other_from_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd:
        def forked(self) -> None:
            raise ValueError("planted")

    class Sound:
        is_notified = False

        def forked(self) -> None:
            self.is_notified = True

    monkeypatch.setattr(forks, "_own", {})
    monkeypatch.setattr(forks, "_notified", forks.weakref.WeakValueDictionary())
    odd, sound = Odd(), Sound()
    forks.notify_of_forks(odd)
    forks.notify_of_forks(sound)
    forks._forked()  # pyright: ignore[reportPrivateUsage]
    assert sound.is_notified
    assert "not measured in a forked process: ValueError('planted')" in capsys.readouterr().err


def test_nothing_is_needed_of_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    monkeypatch.setattr(forks, "_kept", [])
    keep_for_parent("thing")
    assert forks._kept == ["thing"]  # pyright: ignore[reportPrivateUsage]
