"""Whatever bytes a record is made of: a view comes of it, as text and on a page."""

import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pitstop.doctor.examine import examine
from pitstop.errors import RecordError
from pitstop.records.store import to_json
from pitstop.report.live.page import LivePage
from pitstop.report.live.tail import RunTail
from pitstop.report.live.terminal import live_report
from pitstop.report.live.text import plain_line
from pitstop.report.live.view import live_view, recent_run
from tests.browser.records import write_run
from tests.unit.report.live_records import unknown

PAGE = LivePage(refresh_s=1.0)
NUMBER = itertools.count()
ODD = (
    b"", b"null", b"-1", b"1e999", b'"x"', b"[]", b"{}", b"true", b"9" * 40, b"0", b"\xff\x00",
    b'"nan"', b"\x1b[2J", b"]", b",",
)  # fmt: skip


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_run(tmp_path_factory.mktemp("sound"), steps=40).read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_damaged_record_still_gives_a_view(
    data: st.DataObject, record: bytes, place: Path
) -> None:
    damaged = record
    for _ in range(data.draw(st.integers(1, 6))):
        begin = data.draw(st.integers(0, len(damaged)))
        end = begin + data.draw(st.integers(0, 12))
        damaged = damaged[:begin] + data.draw(st.sampled_from(ODD)) + damaged[end:]
    file = place / f"rank-{next(NUMBER)}.jsonl"
    file.write_bytes(damaged)
    run = RunTail(file)
    try:
        run.poll(10.0)
    except RecordError:
        return
    recent = recent_run(run)
    verdict = None if recent is None else examine(recent)
    view = live_view(run, now_s=10.0, is_alive=unknown, verdict=verdict)
    for console in (Console(file=io.StringIO(), width=80), terminal()):
        console.print(live_report(view))
    assert "\x1b" not in plain_line(view)
    assert "<script>" not in PAGE.inside(view)
    assert to_json(view)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=True)
