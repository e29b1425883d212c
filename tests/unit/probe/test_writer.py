"""The writer: bounded bytes, whole lines, nothing lost that a block does not hold."""

# pyright: reportPrivateUsage=false

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.records import store
from pitstop.records.summary import summarise
from pitstop_probe import Clock, RecordWriter, Span, Step
from pitstop_probe.clock import UnsampledSteps
from pitstop_probe.stderr import say
from pitstop_probe.writer import SKETCH_GROWTH, describe_process, sketch
from tests.fakes import FakeClock, FakeDevice, one_by_one


def write_steps(path: Path, steps: int, spans: list[tuple[str, ...]], *, device: bool) -> None:
    """Write steps that open every given span once, with times of five to six digits."""
    time = FakeClock()
    writer = RecordWriter(str(path), now_us=time.now_us)
    clock = Clock(writer, FakeDevice(time) if device else None, now_us=time.now_us)
    for number in range(steps):
        clock.begin_step()
        for path_of_names in spans:
            _open_nested(clock, time, list(path_of_names), 10_000 + number % 977)
        clock.count(samples=8)
        time.advance(300)
    clock.close()
    writer.close()


def _open_nested(clock: Clock, time: FakeClock, names: list[str], us: int) -> None:
    with clock.span(names[0]):
        if len(names) > 1:
            _open_nested(clock, time, names[1:], us)
        time.advance(us)


EIGHT = [
    (name,) for name in ["data", "copy", "forward", "loss", "backward", "clip", "optimizer", "log"]
]
DEEP = [("forward", f"stage{n}", part) for n in range(8) for part in ("attention", "mlp")]
CROWD = [(f"part{n}",) for n in range(60)]


@pytest.mark.parametrize("spans", [EIGHT, EIGHT + DEEP, CROWD], ids=["eight", "deep", "crowd"])
@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_a_step_takes_at_most_200_bytes_on_average(
    tmp_path: Path, spans: list[tuple[str, ...]], device: bool
) -> None:
    path = tmp_path / "rank-0.jsonl"
    write_steps(path, 3_000, spans, device=device)
    assert path.stat().st_size / 3_000 <= 200


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_totals_of_spans_that_rows_had_no_room_for_are_still_exact(
    tmp_path: Path, device: bool
) -> None:
    path = tmp_path / "rank-0.jsonl"
    write_steps(path, 2_000, EIGHT + DEEP, device=device)
    record = store.read_run(path).first
    assert record.steps is not None
    deep = record.paths.index(("forward", "stage3", "mlp"))
    kept = ~(record.steps.host_us[:, deep] != record.steps.host_us[:, deep])
    assert 0 < kept.sum() < 2_000, "the budget should have left some rows without deep spans"

    summary = summarise(record)
    expected_us = sum(10_000 + number % 977 for number in range(2_000))
    mlp = summary.span("forward", "stage3", "mlp")
    assert mlp is not None
    assert (mlp.host.total_us, mlp.calls) == (expected_us, 2_000)
    if device:
        assert mlp.device is not None
        assert mlp.device.total_us == expected_us
    parts = sum(span.host_self_us for span in summary.spans)
    assert parts + summary.unaccounted.total_us == summary.wall.total_us


def test_a_script_that_names_spans_by_step_number_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    time = FakeClock()
    writer = RecordWriter(str(path), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for number in range(3_000):
        clock.begin_step()
        with clock.span(f"step {number}"):
            time.advance(100)
    clock.close()
    writer.close()
    lines = path.read_bytes().splitlines()
    layouts = sum(line.startswith(b'{"kind":"layout"') for line in lines)
    assert layouts <= 257
    assert path.stat().st_size / 3_000 <= 300
    assert summarise(store.read_run(path).first).steps == 3_000


def test_every_line_is_valid_json_whatever_the_values(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    writer = RecordWriter(str(path), {"name": "模糊\ud800\x00\n", "odd": {1: object()}})
    writer.scalars(3, {"loss": float("nan"), "norm": float("-inf"), "lr": 1e-4})
    writer.reading("memory", {"pss_bytes": 12, "parts": (1, 2)})
    writer.event("note", step=1, start_us=writer.origin_us, wall_us=0, detail={"line": "<script>"})
    writer.close("failed", "RuntimeError: boom")

    lines = [
        json.loads(line, parse_constant=pytest.fail) for line in path.read_bytes().splitlines()
    ]
    assert [line["kind"] for line in lines] == ["run", "scalars", "memory", "event", "end"]
    record = store.read_run(path).first
    assert record.notes == ()
    assert str(record.scalars["loss"].value[0]) == "nan"
    assert record.scalars["norm"].value[0] == float("-inf")
    assert record.ending is not None
    assert (record.ending.status, record.ending.reason) == ("failed", "RuntimeError: boom")


def test_a_second_attempt_is_appended_and_closes_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    write_steps(path, 300, EIGHT, device=False)
    whole = path.read_bytes()
    cut = whole[: whole.index(b"[0,290,") + 9]
    path.write_bytes(cut)
    write_steps(path, 10, EIGHT, device=False)

    record = store.read_run(path).first
    assert path.read_bytes().startswith(cut + b"\n")
    assert len(record.attempts) == 2
    assert record.steps is not None
    assert (len(record.steps), int(record.steps.attempt[-1])) == (300, 1)
    assert record.notes == ("1 damaged line left out",)
    assert record.is_finished
    assert summarise(record).steps == 300


def test_closing_twice_writes_one_ending(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    writer = RecordWriter(str(path))
    writer.close()
    writer.close("failed")
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["run", "end"]


def test_the_file_is_flushed_as_the_run_goes(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    time = FakeClock()
    writer = RecordWriter(str(path), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for _ in range(5):
        clock.begin_step()
        time.advance(600_000)
    on_disk = path.read_bytes()
    writer.close()
    assert on_disk.count(b"\n[") == 4, "every slow step should be on disk once it has ended"


def test_rank_and_world_size_come_from_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    RecordWriter(str(tmp_path / "rank-3.jsonl")).close()
    run = store.read_run(tmp_path)
    assert run.first.rank == 3
    assert run.notes == ("3 of 4 ranks left no record: 0, 1, 2",)


@pytest.mark.parametrize("odd", ["", " ", "-1", "none", "1.5"])
def test_an_odd_rank_in_the_environment_is_none_at_all(
    monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, odd)
    process = describe_process()
    assert (process["rank"], process["local_rank"], process["world_size"]) == (0, 0, 1)


def test_ranks_that_torch_alone_was_told_of_have_their_own_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group = SimpleNamespace(
        is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2
    )
    torch = SimpleNamespace(__version__="2.1", distributed=group)
    monkeypatch.setitem(sys.modules, "torch", torch)
    process = describe_process()
    assert (process["rank"], process["world_size"]) == (1, 2)
    # A build of torch without them.
    torch.distributed = SimpleNamespace(is_available=lambda: False)
    assert describe_process()["rank"] == 0


def test_a_step_whose_parts_were_not_sampled_is_read_without_any(tmp_path: Path) -> None:
    """Not sampled is not nothing: neither zero parts nor all of it unaccounted."""
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"), now_us=lambda: 0, origin_us=0)
    root = Span(None, "", None)  # type: ignore[arg-type]
    part = Span(None, "forward", root)  # type: ignore[arg-type]
    for number in range(600):
        step = Step(number, number * 100)
        step.wall_us, step.samples, step.micro_steps = 100, 4, 1
        step.sampled = number % 10 == 3
        if step.sampled:
            step.host_us[part] = [1, 80]
        writer.step(step)
    writer.close()
    record = store.read_run(tmp_path).first
    assert record.steps is not None
    assert record.notes == ()
    unsampled, sampled = record.steps[2], record.steps[3]
    assert (unsampled.wall_us, unsampled.samples, unsampled.host_us, unsampled.unaccounted_us) == (
        100,
        4,
        {},
        None,
    )
    assert (sampled.host_us, sampled.unaccounted_us) == ({("forward",): 80}, 20)
    assert record.steps.start_us.tolist() == [100 * number for number in range(600)]
    summary = summarise(record)
    assert (summary.steps, summary.sampled_steps, summary.samples) == (600, 60, 2400)
    assert (summary.wall.total_us, summary.sampled_wall_us) == (60_000, 6_000)
    assert summary.spans[0].share == 0.8
    assert summary.unaccounted_share == 0.2
    # The last block is cut off: its rows tell the same.
    whole = (tmp_path / "rank-0.jsonl").read_bytes()
    (tmp_path / "rank-0.jsonl").write_bytes(whole[: whole.rindex(b'{"kind":"block"')])
    cut = summarise(store.read_run(tmp_path).first)
    assert (cut.steps, cut.sampled_steps, cut.sampled_wall_us) == (600, 60, 6_000)
    assert cut.spans[0].share == 0.8


def test_a_block_without_any_sample_is_written_and_read(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"), now_us=lambda: 0, origin_us=0)
    for number in range(300):
        step = Step(number, number * 100)
        step.wall_us, step.sampled = 100, False
        writer.step(step)
    writer.close()
    summary = summarise(store.read_run(tmp_path).first)
    assert (summary.steps, summary.sampled_steps, summary.spans) == (300, 0, ())
    assert summary.unaccounted_share is None


COUNTS = st.none() | st.integers(0, 99)


@given(
    runs=st.lists(
        st.tuples(
            st.integers(0, 500),
            st.lists(st.tuples(st.integers(0, 10**7), COUNTS, COUNTS), min_size=1, max_size=300),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_bare_steps_together_are_written_as_one_by_one(
    runs: list[tuple[int, list[tuple[int, int | None, int | None]]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        together, apart = Path(folder) / "together.jsonl", Path(folder) / "apart.jsonl"
        writers = [
            RecordWriter(str(path), now_us=lambda: 0, origin_us=0) for path in (together, apart)
        ]
        index = now_us = 0
        for gap_us, rows in runs:
            wall_us, samples, micro_steps = map(list, zip(*rows, strict=True))
            run = UnsampledSteps(index, now_us + gap_us, wall_us, samples, micro_steps)
            writers[0].unsampled_steps(run)
            for step in one_by_one(run):
                writers[1].step(step)
            index, now_us = index + len(rows), now_us + gap_us + sum(wall_us)
        for writer in writers:
            writer.close()
        lines = [path.read_bytes().splitlines()[1:] for path in (together, apart)]
        assert lines[0] == lines[1]


@given(st.lists(st.integers(0, 10**12) | st.integers(0, 5000), max_size=200))
def test_a_sketch_counts_by_the_rounded_logarithm(values: list[int]) -> None:
    counts: dict[int, int] = {}
    for value in values:
        bucket = round(math.log(value + 1) / math.log(SKETCH_GROWTH))
        counts[bucket] = counts.get(bucket, 0) + 1
    assert sketch(values) == [number for pair in sorted(counts.items()) for number in pair]


def _steps_of(choices: list[tuple[int, int]]) -> Iterator[Step]:
    """Steps with so many spans of the top level, each with so many of its own."""
    root = Span(None, "", None)  # type: ignore[arg-type]
    tops = [Span(None, f"part{n}", root) for n in range(12)]  # type: ignore[arg-type]
    below = [[Span(None, f"block{n}", top) for n in range(8)] for top in tops]  # type: ignore[arg-type]
    for number, (wide, deep) in enumerate(choices):
        step = Step(number, number * 10_000_000)
        step.wall_us, step.sampled = 10_000_000, wide > 0
        for top, children in zip(tops[:wide], below, strict=False):
            step.host_us[top] = [1, 500_000]
            step.host_us.update((child, [1, 1_000]) for child in children[:deep])
        yield step


@given(
    choices=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([0, 1, 8])), max_size=80),
    bytes_per_step=st.sampled_from([60, 120, 195]),
)
def test_what_a_rows_numbers_are_is_said_before_it(
    choices: list[tuple[int, int]], bytes_per_step: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-0.jsonl"
        writer = RecordWriter(str(path), now_us=lambda: 0, bytes_per_step=bytes_per_step)
        for step in _steps_of(choices):
            writer.step(step)
        writer.close()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        record = store.read_run(path).first
    said: dict[int, int] = {}
    for line in lines:
        if isinstance(line, list):
            assert len(line) == 7 + said[line[0]]
        elif line["kind"] == "layout":
            assert line["id"] not in said, "said twice"
            said[line["id"]] = len(line["host"])
    assert record.notes == ()
    assert record.steps is not None
    assert len(record.steps) == len(choices)


class FullDisk:
    """A file whose disk is full from some moment on."""

    closed = False

    def __init__(self, *, at: str) -> None:
        self._at = at
        self.raw = self
        self.asked = 0

    def _take(self, what: str) -> None:
        if what == self._at:
            self.asked += 1
            raise OSError(28, "No space left on device")

    def write(self, _: bytes) -> None:
        self._take("write")

    def flush(self) -> None:
        self._take("flush")

    def close(self) -> None:
        if not self.asked:
            self._take("close")


@pytest.mark.parametrize("at", ["write", "flush", "close"])
def test_a_full_disk_ends_the_record_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str
) -> None:
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"))
    writer._file.close()
    disk = writer._file = FullDisk(at=at)
    for _ in range(3):
        writer.reading("odd", {})
        writer.scalars(1, {"loss": 0.5})
        writer.event("evaluation", step=1, start_us=0, wall_us=1)
        writer.flush()
    writer.close()
    assert writer.is_lost
    assert disk.asked == 1
    assert capsys.readouterr().err == (
        f"pitstop: the record {tmp_path}/rank-0.jsonl ends here: No space left on device\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_file_that_takes_no_first_line_is_refused_and_let_go_of() -> None:
    with pytest.raises(OSError, match="No space left"):
        RecordWriter("/dev/full")


def test_a_line_that_nobody_takes_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, FullDisk(at="write")):
        monkeypatch.setattr(sys, "stderr", stream)
        say("anything")
