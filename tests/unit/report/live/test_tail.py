"""Files that grow: nothing is read twice, nothing is missed, and nothing in the folder changes."""

import gc
import itertools
import json
import os
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.doctor.examine import examine
from pitstop.errors import RecordError
from pitstop.records.distribution import merge
from pitstop.records.store import read_run
from pitstop.report.live import tail as tail_module
from pitstop.report.live.over_time import MOST_POINTS, MeansOverTime
from pitstop.report.live.steps import WINDOW_STEPS
from pitstop.report.live.tail import FileTail, RankTail, RunTail
from pitstop.report.live.throughput import parts_of
from pitstop.report.live.view import LiveView, live_view, recent_run
from pitstop.report.live.watch import Judge, Watch
from tests.browser.records import write_run
from tests.unit.report.live_records import GrowingRun, look, unknown

COUNTER = itertools.count()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two attempts with everything a record can hold, a damaged line between them."""
    place = tmp_path_factory.mktemp("resumed")
    first = write_run(place / "a", steps=60).read_bytes()
    second = write_run(place / "b", steps=300).read_bytes()
    return first[:-40] + b"\n" + b'{"kind":"scalars","step":\n[1,2\n' + second


def view_of(tail_of: Path) -> tuple[RunTail, LiveView]:
    run = RunTail(tail_of)
    run.poll(100.0)
    return run, live_view(run, now_s=100.0, is_alive=unknown)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_random_portions_give_the_view_of_the_whole(
    data: st.DataObject, resumed: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    length = data.draw(st.integers(0, len(resumed)))
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=8)))
    place = tmp_path_factory.mktemp("portions")
    whole, grown = place / "whole.jsonl", place / "grown.jsonl"
    whole.write_bytes(resumed[:length])
    follower = RunTail(grown)
    for begin, end in itertools.pairwise([0, *cuts, length]):
        with grown.open("ab") as file:
            file.write(resumed[begin:end])
        os.utime(grown, ns=(0, next(COUNTER)))
        follower.poll(100.0)
        live_view(follower, now_s=100.0, is_alive=unknown)
    run, expected = view_of(whole)
    follower.source = whole
    view = live_view(follower, now_s=100.0, is_alive=unknown)
    assert comparable(view) == comparable(expected)
    one, other = recent_run(follower), recent_run(run)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert examine(one) == examine(other)


def comparable(view: LiveView) -> object:
    """A view without the age of its file, which is the only thing that may differ."""
    from dataclasses import replace

    ranks = tuple(replace(rank, age_s=None, state="running", reason="") for rank in view.ranks)
    return replace(view, age_s=None, state="running", reason="", ranks=ranks)


def test_the_window_is_the_end_of_what_a_full_reading_gives(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    for number in range(70):
        run.step(20, wait_us=1_000 + 37 * number, work_us=5_000 + number)
        run.step(outside_us=300_000)
    run.end()
    tail = FileTail(run.path)
    tail.poll(0.0)
    full = read_run(tmp_path).first
    steps, window = full.steps, tail.tail.window().steps
    assert steps is not None
    assert window is not None
    assert len(window) == WINDOW_STEPS < len(steps)
    for name in ("index", "start_us", "wall_us", "outside_us", "samples"):
        expected = getattr(steps, name)[-WINDOW_STEPS:]
        np.testing.assert_array_equal(getattr(window, name), expected, err_msg=name)
    np.testing.assert_array_equal(window.host_us, steps.host_us[-WINDOW_STEPS:])
    blocks = read_run(tmp_path, with_steps=False).first.blocks
    assert tail.tail.past.wall == merge(block.wall for block in blocks[1:])
    assert tail.tail.past.outside_us == sum(block.outside_us for block in blocks[1:])


def test_what_was_read_once_is_not_read_again(tmp_path: Path) -> None:
    """The middle of the file becomes rubbish after it was read: nobody notices."""
    run = GrowingRun(tmp_path)
    run.step(700)
    run.end_step()
    tail = RunTail(tmp_path)
    before = look(tail)
    data = run.path.read_bytes()
    run.path.write_bytes(data[:600] + b"x" * (len(data) - 700) + data[-100:])
    run.step(1)
    run.end_step()
    after = look(tail, 101.0)
    assert before.step == 700
    assert after.step == 701
    assert after.notes == ()


def test_a_line_counts_once_its_end_is_there(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(30)
    run.end_step()
    data = run.path.read_bytes()
    run.path.write_bytes(data[:-5])
    tail = RunTail(tmp_path)
    assert look(tail).step == 29
    run.path.write_bytes(data)
    assert look(tail, 101.0).step == 30


def test_a_file_that_another_took_the_place_of_is_read_from_its_begin(tmp_path: Path) -> None:
    long, short = GrowingRun(tmp_path / "a"), GrowingRun(tmp_path / "b")
    long.step(300)
    short.step(20)
    long.end()
    short.end()
    place = tmp_path / "run" / "rank-0.jsonl"
    place.parent.mkdir()
    place.write_bytes(long.path.read_bytes())
    tail = RunTail(place.parent)
    assert look(tail).step == 300
    place.write_bytes(short.path.read_bytes())
    assert look(tail).step == 20
    other = long.path.read_bytes().replace(b'"name":"night"', b'"name":"day"', 1)
    place.write_bytes(other)
    assert look(tail).step == 300, "longer than what was read, but another file"
    assert look(tail).name == "day"
    assert look(tail).attempts == 1


def test_a_resumed_attempt_begins_anew_and_keeps_what_was_reached(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(40)
    run.writer.scalars(39, {"loss": 0.5, "eval/psnr": 30.0})
    run.writer.reading("saved", {"step": 40, "path": "checkpoints"})
    run.end("interrupted", "SIGTERM")
    tail = RunTail(tmp_path)
    assert look(tail).state == "interrupted"
    again = GrowingRun(tmp_path)
    again.next_step = 40
    again.step(10, work_us=18_000)
    again.end_step()
    view = look(tail, 101.0)
    assert (view.state, view.attempts, view.step) == ("running", 2, 50)
    assert view.first is not None
    assert view.first.step_s == 0.02, "only steps of the present attempt are now"
    assert view.loss is not None
    assert view.loss.value == 0.5
    assert view.checkpoint is not None
    assert view.checkpoint.step == 40


def test_a_rank_that_appears_late_is_taken_in(tmp_path: Path) -> None:
    first = GrowingRun(tmp_path, world=2)
    first.step(10)
    first.end_step()
    tail = RunTail(tmp_path)
    assert look(tail).notes == ("1 of 2 ranks have no record yet",)
    second = GrowingRun(tmp_path, rank=1, world=2)
    second.step(4)
    second.end_step()
    view = look(tail)
    assert [rank.rank for rank in view.ranks] == [0, 1]
    assert view.step == 4, "the run is where its last rank is"
    assert view.notes == ()


def test_what_lies_outside_the_process_is_read_with_it(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(30)
    run.end_step()
    outside = write_run(tmp_path / "other", steps=30)
    (tmp_path / "outside.jsonl").write_bytes(outside.read_bytes())
    view = look(RunTail(tmp_path))
    assert view.memory is not None
    assert view.memory.tree_bytes


def test_following_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(30)
    run.end_step()
    before = {
        path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()
    }
    tmp_path.chmod(0o500)
    run.path.chmod(0o400)
    tail = RunTail(tmp_path)
    assert look(tail).step == 30
    assert look(tail).step == 30
    tmp_path.chmod(0o700)
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()}
    assert after == before


def test_a_file_out_of_reach_is_said_and_tried_again(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(30)
    run.end_step()
    tail = RunTail(tmp_path)
    look(tail)
    away = run.path.rename(tmp_path / "away")
    view = look(tail)
    assert view.step == 30
    assert view.notes == ("cannot read rank-0.jsonl: No such file or directory",)
    away.rename(run.path)
    assert look(tail).notes == ()


def test_something_else_than_a_record_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "train.log"
    other.write_text("epoch 1, loss 0.5\n")
    with pytest.raises(RecordError, match="not a run record"):
        RunTail(other).poll(0.0)
    other.write_bytes(b'{"kind":"ru')
    assert RunTail(other).poll(0.0), "a header that is being written"


def test_an_attempt_of_a_newer_schema_is_named(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(30)
    run.end()
    run.set_head(schema=99)
    view = look(RunTail(tmp_path))
    assert view.step is None
    assert any("newer than this pitstop" in note for note in view.notes)


def test_what_is_kept_of_a_long_run_is_bounded() -> None:
    tail = RankTail()
    head = {"kind": "run", "schema": 2, "rank": 0, "world_size": 1}
    span = {"kind": "span", "id": 0, "parent": None, "name": "data"}
    layout = {"kind": "layout", "id": 0, "host": [0]}
    tail.feed(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n"
                       for line in (head, span, layout)))  # fmt: skip
    for begin in range(0, 20_000, 1_000):
        lines = []
        for step in range(begin, begin + 1_000):
            lines.append(b"[0,%d,0,0,1000,4,1,500]" % step)
            lines.append(b'{"kind":"scalars","step":%d,"values":{"loss":0.5}}' % step)
            lines.append(b'{"kind":"memory","at_us":%d,"x":1}' % step)
            lines.append(b'{"kind":"event","name":"e","step":%d,"start_us":0,"wall_us":1}' % step)
        tail.feed(b"\n".join(lines) + b"\n")
    window = tail.window()
    assert window.steps is not None
    assert len(window.steps) == WINDOW_STEPS
    assert len(window.readings) < 1_000
    assert len(window.events) < 1_000
    assert len(tail.loss.points) <= MOST_POINTS
    assert tail.loss.last == (19_999, 0.5)


def held_by(thing: object) -> tuple[int, int]:
    """Count the objects that something holds, and their bytes; functions and classes are shared."""
    seen: dict[int, object] = {}
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen[id(one)] = one
        waiting += gc.get_referents(one)
    return len(seen), sum(map(sys.getsizeof, seen.values()))


def many_steps(first: int) -> bytes:
    """Rows, losses, metrics, events and readings, each under a name that no other step has."""
    lines = []
    for step in range(first, first + WINDOW_STEPS):
        lines.append(b"[0,%d,0,0,1000,4,1,500]" % step)
        lines.append(b'{"kind":"span","id":%d,"parent":null,"name":"s%d"}' % (step, step))
        lines.append(b'{"kind":"scalars","step":%d,"values":{"eval/%d":0.5}}' % (step, step))
        lines.append(b'{"kind":"k%d","at_us":%d,"x":1}' % (step, step))
        lines.append(
            b'{"kind":"event","name":"e%d","step":%d,"start_us":0,"wall_us":1}' % (step, step)
        )
    return b"\n".join(lines) + b"\n"


def test_twice_as_many_steps_are_held_in_as_many_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "MOST_NAMING_LINES", 64)
    record = tmp_path / "rank-0.jsonl"
    record.write_bytes(b'{"kind":"run","schema":2,"rank":0,"world_size":1}\n')
    watch = Watch(run=RunTail(tmp_path), judge=Judge(examine, start=lambda work: work()))
    held = []
    for turn in range(8):
        with record.open("ab") as file:
            file.write(many_steps(100_000 + turn * WINDOW_STEPS))
        watch.look()
        held.append(held_by(watch.run))
    objects, size_bytes = held[3]
    assert held[-1][0] <= objects
    assert held[-1][1] <= 1.02 * size_bytes  # numbers of more digits


def test_a_line_without_an_end_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "MOST_LINE_BYTES", 10_000)
    tail = RankTail()
    for _ in range(100):
        tail.feed(b"x" * 1_000)
    assert held_by(tail)[1] < 30_000


@given(st.integers(0, 3_000), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_a_course_keeps_the_mean_and_the_order(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=count).tolist()
    means = MeansOverTime()
    for step, value in enumerate(values):
        means.add(step, value)
    points = means.points
    assert len(points) <= MOST_POINTS
    steps = [step for step, _ in points]
    assert steps == sorted(set(steps))
    if values:
        assert steps[-1] == len(values) - 1
        begins = [0, *(step + 1 for step in steps[:-1])]
        lengths = {end + 1 - begin for begin, end in zip(begins[:-1], steps[:-1], strict=True)}
        assert len(lengths) <= 1, "windows of equal length, but for the last"
        for begin, (end, mean) in zip(begins, points, strict=True):
            assert mean == pytest.approx(np.mean(values[begin : end + 1]), rel=1e-9, abs=1e-6)


def test_losses_that_are_not_finite_are_counted_apart() -> None:
    means = MeansOverTime()
    for step, value in enumerate((1.0, float("nan"), 3.0, float("inf"))):
        means.add(step, value)
    assert [mean for _, mean in means.points] == [1.0, 3.0]
    assert (means.missing, means.first_missing) == (2, 1)
    assert means.last is not None
    assert means.last[0] == 3


def test_a_part_that_is_named_after_the_last_row_is_known_at_once(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(30)
    run.end_step()
    tail = FileTail(run.path)
    tail.poll(0.0)
    assert tail.tail.steps().paths == (("data",), ("forward",))
    with run.path.open("ab") as file:
        file.write(b'{"kind":"span","id":2,"parent":null,"name":"late"}\n')
    tail.poll(1.0)
    table = tail.tail.steps()
    assert table.paths == (("data",), ("forward",), ("late",))
    assert np.isnan(table.host_us[:, 2]).all()
    assert len(table) == 30


def test_a_damaged_row_is_left_out_however_it_came(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(30)
    run.end_step()
    tail = FileTail(run.path)
    tail.poll(0.0)
    assert len(tail.tail.steps()) == 30
    with run.path.open("ab") as file:
        file.write(b"[0,30,0,0,-5,4,1,2000,8000]\n")
    tail.poll(1.0)
    assert len(tail.tail.steps()) == 30
    run.step(2)
    run.end_step()
    tail.poll(2.0)
    assert tail.tail.steps().index.tolist()[-3:] == [29, 30, 31]


def test_damage_in_a_full_window_leaves_one_row_less_however_it_came(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(600)
    run.end_step()
    grown = FileTail(run.path)
    grown.poll(0.0)
    assert len(grown.tail.steps()) == WINDOW_STEPS
    with run.path.open("ab") as file:
        file.write(b"[0,600,0,0,-5,4,1,2000,8000]\n")
    whole = FileTail(run.path)
    for tail in (grown, whole):
        tail.poll(1.0)
        assert len(tail.tail.steps()) == WINDOW_STEPS - 1


def test_rows_without_parts_do_not_dilute_the_shares() -> None:
    tail = RankTail()
    tail.feed(
        b'{"kind":"run","schema":2}\n{"kind":"span","id":0,"parent":null,"name":"data"}\n'
        b'{"kind":"layout","id":0,"host":[0]}\n{"kind":"layout","id":1,"host":[]}\n'
        b"[0,0,0,0,1000,4,1,500]\n[1,1,0,0,1000,4,1]\n[0,2,0,0,1000,4,1,500]\n"
    )
    parts = parts_of(tail.steps(), range(3))
    assert [(part.name, part.share, part.mean_s) for part in parts] == [
        ("data", 0.5, 0.0005),
        ("unaccounted", 0.5, 0.0005),
    ]
