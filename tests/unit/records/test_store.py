"""Records: killed at any byte, damaged anywhere, of any schema, they read and say what is gone."""

import json
import os
import random
import sys
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.errors import RecordError
from pitstop.records import store
from pitstop.records.reader import RankReader
from pitstop.records.run import RankRecord, StepTiming
from pitstop.records.summary import summarise
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock, FakeDevice, ListSink


class Tee:
    """Hands everything to the writer and keeps it for comparison."""

    def __init__(self, writer: RecordWriter) -> None:
        self.writer = writer
        self.kept = ListSink()

    def step(self, step: object) -> None:
        self.kept.step(step)  # type: ignore[arg-type]
        self.writer.step(step)  # type: ignore[arg-type]

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None:
        self.kept.event(name, step=step, start_us=start_us, wall_us=wall_us)
        self.writer.event(name, step=step, start_us=start_us, wall_us=wall_us)


def write_run(path: Path, steps: int, *, seed: int = 0, device: bool = True) -> ListSink:
    """Write a lively run: nested spans that come and go, evaluations, losses, readings."""
    rng = random.Random(seed)
    time = FakeClock(10**9)
    writer = RecordWriter(str(path), {"name": "lively"}, now_us=time.now_us)
    sink = Tee(writer)
    clock = Clock(sink, FakeDevice(time) if device else None, now_us=time.now_us)
    for number in range(steps):
        clock.begin_step()
        with clock.span("data"):
            time.advance(rng.randint(0, 900))
        with clock.span("forward"):
            time.advance(rng.randint(5, 20))
            for stage in range(rng.randint(0, 3)):
                with clock.span(f"stage{stage}"):
                    time.advance(rng.randint(0, 4_000))
        if number % 10 == 9:
            with clock.span("log"):
                time.advance(3)
            writer.scalars(number, {"loss": rng.random()})
        if number % 50 == 49:
            with clock.outside_step("evaluation"):
                time.advance(70_000)
            writer.reading("memory", {"allocated_bytes": number})
        time.advance(rng.randint(0, 40))
        clock.count(samples=4)
    clock.close()
    writer.close()
    return sink.kept


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_what_was_written_is_what_is_read(tmp_path: Path, device: bool) -> None:
    kept = write_run(tmp_path / "rank-0.jsonl", 700, device=device)
    record = store.read_run(tmp_path).first
    assert record.steps is not None
    assert len(record.steps) == 700
    for read, written in zip(record.steps, kept.steps, strict=True):
        assert read == StepTiming(
            attempt=0,
            index=written.index,
            start_us=written.start_us - 10**9,
            wall_us=written.wall_us,
            outside_us=written.outside_us,
            samples=4,
            micro_steps=1,
            host_us={span.path: us for span, (_, us) in written.host_us.items()},
            device_wall_us=written.device_wall_us,
            device_us={span.path: us for span, us in written.device_us.items()},
        )
        assert read.unaccounted_us == written.unaccounted_us
    assert [event.wall_us for event in record.events] == [70_000] * 14
    assert record.scalars["loss"].step.tolist() == list(range(9, 700, 10))
    assert [reading.values["allocated_bytes"] for reading in record.readings][:2] == [49, 99]
    assert record.is_finished
    assert record.notes == ()


def test_the_summary_is_the_same_with_and_without_steps(tmp_path: Path) -> None:
    kept = write_run(tmp_path / "rank-0.jsonl", 700)
    with_steps = summarise(store.read_run(tmp_path).first)
    without = summarise(store.read_run(tmp_path, with_steps=False).first)
    assert with_steps == without
    assert without.wall.total_us == sum(step.wall_us for step in kept.steps)
    assert without.samples == 2_800
    forward = without.span("forward")
    assert forward is not None
    assert forward.host.total_us == sum(
        us
        for step in kept.steps
        for span, (_, us) in step.host_us.items()
        if span.depth == 1 and span.name == "forward"
    )
    assert [span.path for span in without.spans][:3] == [
        ("data",),
        ("forward",),
        ("forward", "stage0"),
    ]


def check_reads(data: bytes, path: Path) -> RankRecord | None:
    """Read damaged bytes with and without steps; both must give a record that summarises."""
    path.write_bytes(data)
    summaries = []
    record = None
    for with_steps in (False, True):
        try:
            record = store.read_run(path, with_steps=with_steps).first
        except RecordError as error:
            if "is not a run record" not in str(error):
                raise
            return None
        summaries.append(summarise(record))
    assert summaries[0].steps >= 0
    return record


def test_a_run_cut_at_any_of_500_bytes_reads_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    write_run(path, 400)
    whole = path.read_bytes()
    rng = random.Random(1)
    for _ in range(500):
        cut = whole[: rng.randrange(len(whole))]
        record = check_reads(cut, path)
        assert record is not None
        rows = sum(line.startswith(b"[") for line in cut.split(b"\n")[:-1])
        assert record.steps is not None
        assert len(record.steps) == rows
        assert summarise(record).steps == rows
        assert not record.is_finished
        assert bool(record.notes) == (not cut.endswith(b"\n") and bool(cut))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_never_break_a_reader(tmp_path: Path, data: st.DataObject) -> None:
    source = tmp_path / "whole" / "rank-0.jsonl"
    if not source.exists():
        write_run(source, 300)
    damaged = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    check_reads(bytes(damaged), tmp_path / "rank-0.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        b"[0,1,0,0,-5,4,1,1,1]",
        b"[0,1,0,0]",
        b'[0,1,0,0,"5",4,1,1,1]',
        b"[0,1,0,0,1e999,4,1,1,1]",
        b"[0,1,0,0," + b"9" * 400 + b",4,1,1,1]",
        b"[99,1,0,0,5,4,1,1,1]",
        b"[" * 100_000,
        b'{"kind":"scalars","step":1,"values":{"loss":' + b"9" * 400 + b"}}",
        b"{" * 1000,
        b'{"kind":"block"}',
        b'{"kind":"block","spans":[[0]]}',
        b'{"kind":"end","status":"exploded"}',
        b'{"kind":["x"]}',
        b"\xff\xfe\x00",
        b"[0,1],[0,2]",
        b"null",
        b'"text"',
    ],
)
def test_a_line_that_is_no_record_is_counted_and_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rank-0.jsonl"
    write_run(path, 20)
    head, end = path.read_bytes().rsplit(b'{"kind":"block"', 1)
    record = check_reads(head + line + b'\n{"kind":"block"' + end, path)
    assert record is not None
    assert record.steps is not None
    assert len(record.steps) == 20
    assert record.notes == ("1 damaged line left out",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("samples", 10**15),
        ("samples", -4),
        ("micro_steps", 10**15),
        ("outside_us", -1),
        ("outside_us", 10**30),
        ("wall", [20, 10**18, 0, 10**18, [10, 20]]),
        ("wall", [20, 100, 5, 4, [10, 20]]),
        ("wall", [20, 1, 5, 5, [10, 20]]),
        ("wall", [20, 100, 5, 5, [10, 19]]),
        ("wall", [10**12, 10**12, 1, 1, [10, 10**12]]),
        ("wall", [-1, 0, 0, 0, [10, -1]]),
    ],
)
def test_a_block_that_cannot_be_true_is_not_believed(
    tmp_path: Path, key: str, value: object
) -> None:
    path = tmp_path / "rank-0.jsonl"
    write_run(path, 20)
    lines = path.read_bytes().split(b"\n")
    [at] = [at for at, line in enumerate(lines) if line.startswith(b'{"kind":"block"')]
    lines[at] = json.dumps(json.loads(lines[at]) | {key: value}, separators=(",", ":")).encode()
    path.write_bytes(b"\n".join(lines))
    record = store.read_run(path, with_steps=False).first
    assert "1 damaged line left out" in record.notes
    # The rows themselves are still there.
    assert sum(block.wall.count for block in record.blocks) == 20


def spans_of(depth: int) -> bytes:
    lines = [{"kind": "run", "schema": 2}]
    lines += [
        {"kind": "span", "id": n, "parent": n - 1 if n else None, "name": f"s{n}"}
        for n in range(depth)
    ]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def test_spans_nested_without_end_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(spans_of(20_000))
    record = store.read_run(path).first
    assert max(map(len, record.paths)) <= 512
    assert "damaged lines left out" in record.notes[0]


def test_a_table_of_more_cells_than_memory_holds_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitstop.records.reader._MOST_CELLS", 30_000)
    path = tmp_path / "rank-0.jsonl"
    write_run(path, 20_000)
    record = store.read_run(path).first
    assert record.steps is not None
    assert 0 < len(record.steps) < 20_000
    assert "more than can be shown one by one" in record.notes[0]
    assert sum(block.wall.count for block in record.blocks) == 20_000


def test_a_line_without_an_end_does_not_fill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitstop.records.reader.MOST_LINE_BYTES", 1 << 20)
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(b'{"kind":"run","schema":2}\n' + b"x" * (40 << 20))
    tracemalloc.start()
    try:
        assert "damaged" in store.read_run(path).first.notes[0]
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="has neither")
def test_pipes_devices_and_files_without_an_end_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.jsonl")
    for source in (tmp_path, tmp_path / "rank-0.jsonl", Path("/dev/zero")):
        with pytest.raises(RecordError, match="not a regular file"):
            store.read_run(source)
    # Of a size that is not known there is nothing to read.
    assert store.read_run("/proc/self/maps").first.attempts == ()


def test_a_reader_may_follow_a_live_file(tmp_path: Path) -> None:
    whole_path, path = tmp_path / "whole.jsonl", tmp_path / "rank-0.jsonl"
    write_run(whole_path, 600)
    whole = whole_path.read_bytes()
    follower = store.RunFollower(path)
    assert not follower.poll()
    rng = random.Random(2)
    done = 0
    while done < len(whole):
        more = rng.randint(1, 9_000)
        with path.open("ab") as file:
            file.write(whole[done : done + more])
        done += more
        assert follower.poll()
        rows = sum(line.startswith(b"[") for line in whole[:done].split(b"\n")[:-1])
        assert summarise(follower.record()).steps == rows
    assert not follower.poll()
    assert follower.record().is_finished
    assert summarise(follower.record()) == summarise(store.read_run(whole_path).first)


def test_a_newer_schema_shows_its_header_and_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"kind":"run","schema":99,"rank":0}\n[0,"who knows"]\n{"kind":"block"}\n')
    record = store.read_run(path).first
    assert record.attempts[0].schema == 99
    assert summarise(record).steps == 0
    [note] = record.notes
    assert "newer than this pitstop's 2" in note
    assert "upgrade" in note


def test_an_older_schema_reads_through_its_upgrade() -> None:
    lines = b'{"kind":"run","schema":1}\n{"kind":"layout","id":0,"host":[]}\n[0,7,0,0,1.5]\n'

    def from_seconds(line: object) -> object:
        if isinstance(line, list):
            return [*line[:4], int(line[4] * 1e6), None, None]
        return line

    reader = RankReader(with_steps=True, upgrades={1: from_seconds})
    reader.feed(lines)
    record = reader.record()
    assert record.steps is not None
    assert [(step.index, step.wall_us) for step in record.steps] == [(7, 1_500_000)]
    assert record.notes == ()

    without = RankReader(with_steps=True)
    without.feed(lines)
    [note] = without.record().notes
    assert "no longer reads" in note
    assert "measure the run again" in note


def test_a_foreign_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("epoch 1 loss 0.5\n")
    with pytest.raises(RecordError, match="is not a run record"):
        store.read_run(path)
    with pytest.raises(RecordError, match="there is no file or folder"):
        store.read_run(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="holds no run record"):
        store.read_run(tmp_path / "empty")


def test_a_run_killed_before_its_first_line_reads_as_empty(tmp_path: Path) -> None:
    for content in (b"", b'{"kind":"ru', b'{"kind":"run","schema":2'):
        path = tmp_path / "rank-0.jsonl"
        path.write_bytes(content)
        record = store.read_run(path).first
        assert record.attempts == ()
        assert not record.is_finished
        assert summarise(record).steps == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A record to carry through JSON."""

    name: str
    value_s: float | None = None


def test_records_go_through_json_and_back(tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    store.write_json(Sample(name="a", value_s=0.1), path)
    assert json.loads(path.read_text()) == {
        "kind": "Sample",
        "schema": 2,
        "name": "a",
        "value_s": 0.1,
    }
    assert store.from_json(path.read_text(), Sample) == Sample(name="a", value_s=0.1)
    assert json.loads(store.to_json(Sample(name="a", value_s=float("nan"))))["value_s"] is None
    assert list(tmp_path.iterdir()) == [path], "no temporary file may be left"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "no valid JSON"),
        ("[]", "expected a Sample"),
        ('{"kind":"Other","schema":1}', "found Other"),
        ('{"kind":"Sample","schema":7}', "schema 7"),
        ('{"kind":"Sample","schema":1,"name":3}', "name"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_does_not_fit_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(RecordError, match=complaint):
        store.from_json(text, Sample)


def test_writing_into_a_missing_folder_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot write"):
        store.write_json(Sample(name="a"), tmp_path / "missing" / "x.json")


def test_of_several_processes_of_a_rank_the_one_that_trained_most_is_read(tmp_path: Path) -> None:
    write_run(tmp_path / "rank-0.jsonl", 10)
    write_run(tmp_path / "other-0-31.jsonl", 300)
    write_run(tmp_path / "other-0-32.jsonl", 40)
    write_run(tmp_path / "rank-1.jsonl", 50)
    write_run(tmp_path / "other-1-33.jsonl", 7)
    write_run(tmp_path / "other-10-34.jsonl", 900)
    for with_steps in (True, False):
        record = store.read_run(tmp_path, with_steps=with_steps)
        assert [summarise(rank).steps for rank in record.ranks] == [300, 50]
        named = "rank-0.jsonl, other-0-32.jsonl, other-1-33.jsonl"
        assert [note for note in record.notes if named in note]
    # A file that is named is read, whatever lies beside it.
    alone = store.read_run(tmp_path / "rank-0.jsonl")
    assert (summarise(alone.first).steps, alone.notes) == (10, ())


def test_a_second_file_of_a_rank_that_is_no_record_is_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "rank-0.jsonl", 10)
    (tmp_path / "other-0-31.jsonl").write_text("nothing\n")
    assert summarise(store.read_run(tmp_path).first).steps == 10


def test_a_run_reads_without_what_was_seen_from_outside_where_that_is_damaged(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "rank-0.jsonl", 10)
    (tmp_path / store.OUTSIDE).write_bytes(b"\x00\xff garbage\n")
    record = store.read_run(tmp_path)
    assert summarise(record.first).steps == 10
    assert [note for note in record.first.notes if "outside.jsonl is not a run record" in note]


@pytest.mark.parametrize(
    ("ended", "status", "said"),
    [
        ({"exit_code": 1, "signal": None}, "finished", ["the command ended with code 1"]),
        (
            {"exit_code": None, "signal": "SIGKILL"},
            "finished",
            ["the command was ended by SIGKILL"],
        ),
        ({"exit_code": 0, "signal": None}, "finished", []),
        # The rank tells of it better, or it was our doing.
        ({"exit_code": 1, "signal": None}, "failed", []),
        ({"exit_code": 1, "signal": None, "stopped_by_us": True}, "finished", []),
    ],
)
def test_a_command_that_failed_is_told_of_where_no_rank_did(
    tmp_path: Path, ended: dict[str, object], status: str, said: list[str]
) -> None:
    """A spawned rank that raises ends without a word: its exception goes to another process."""
    for name, end in (("rank-0.jsonl", status), (store.OUTSIDE, "finished")):
        writer = RecordWriter(str(tmp_path / name))
        if name == store.OUTSIDE:
            writer.reading("ended", ended)
        writer.close(end)
    assert list(store.read_run(tmp_path).notes) == said


def test_a_folder_that_may_not_be_read_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # who tests may be allowed everything
    with pytest.raises(RecordError, match=r"cannot read .*: Permission denied"):
        store.rank_files(tmp_path)
