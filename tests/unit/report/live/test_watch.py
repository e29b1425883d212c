"""Watching: looks again until the run is over, asks the doctor seldom, and waits where asked."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pitstop.doctor.examine import examine
from pitstop.errors import RecordError
from pitstop.report.live.tail import RunTail
from pitstop.report.live.watch import Judge, Watch, follow, in_a_thread, once, to_all, watch_of
from tests.unit.report.live_records import GrowingRun, lives

if TYPE_CHECKING:
    from pitstop.report.live.view import LiveView


class Seconds:
    """A clock that a pause moves."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.after: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self.now_s

    def pause(self) -> None:
        self.now_s += 1.0
        if self.after:
            self.after.pop(0)()


def at_once(work: Callable[[], None]) -> None:
    work()


def watched(source: Path, seconds: Seconds, *, judge: Judge | None = None) -> Watch:
    return Watch(
        run=RunTail(source),
        judge=judge or Judge(examine, start=at_once),
        now_s=seconds,
        alive=lives,
    )


def grow(run: GrowingRun, steps: int) -> Callable[[], None]:
    def more() -> None:
        run.step(steps)
        run.end_step()

    return more


def test_a_run_is_shown_until_it_is_over(tmp_path: Path) -> None:
    run, seconds = GrowingRun(tmp_path), Seconds()
    seconds.after = [grow(run, 10), grow(run, 40), run.end]
    seen: list[LiveView] = []
    last = follow(watched(tmp_path, seconds), seen.append, pause=seconds.pause, wait=False)
    assert [view.step for view in seen] == [None, 10, 50, 50]
    assert [view.state for view in seen] == ["running", "running", "running", "finished"]
    assert last is seen[-1]
    assert last.verdict is not None
    assert last.verdict.steps == 45, "the last view has the verdict on all of it"


def test_a_run_that_is_not_there_is_refused_or_waited_for(tmp_path: Path) -> None:
    place, seconds = tmp_path / "later", Seconds()
    with pytest.raises(RecordError, match="--wait"):
        follow(watched(place, seconds), print, pause=seconds.pause, wait=False)
    with pytest.raises(RecordError, match="--wait"):
        once(watched(place, seconds), pause=seconds.pause, wait=False)
    runs: list[GrowingRun] = []
    seconds.after = [
        lambda: None,
        lambda: runs.append(GrowingRun(place)),
        lambda: runs.pop().end(),
    ]
    seen: list[LiveView] = []
    follow(watched(place, seconds), seen.append, pause=seconds.pause, wait=True)
    assert [view.state for view in seen] == ["waiting", "waiting", "running", "finished"]


def test_one_look_waits_for_the_begin_alone(tmp_path: Path) -> None:
    place, seconds = tmp_path / "later", Seconds()
    runs: list[GrowingRun] = []
    seconds.after = [lambda: runs.append(GrowingRun(place)), pytest.fail]
    view = once(watched(place, seconds), pause=seconds.pause, wait=True)
    assert view.state == "running"
    grow(runs[0], 40)()
    view = once(watched(place, seconds), pause=pytest.fail, wait=False)
    assert view.verdict is not None


def test_the_doctor_is_asked_seldom_and_never_twice_at_once(tmp_path: Path) -> None:
    run, seconds = GrowingRun(tmp_path), Seconds()
    grow(run, 30)()
    asked: list[tuple[float, Callable[[], None]]] = []
    judge = Judge(examine, every_s=5.0, start=lambda work: asked.append((seconds.now_s, work)))
    watch = watched(tmp_path, seconds, judge=judge)
    for _ in range(12):
        watch.look()
        grow(run, 1)()
        seconds.pause()
    assert [at for at, _ in asked] == [50.0], "the first examination is still under way"
    asked[0][1]()
    assert watch.look().verdict is not None
    assert [at for at, _ in asked] == [50.0, 62.0]
    asked[1][1]()
    for _ in range(6):
        grow(run, 1)()
        seconds.pause()
        watch.look()
    assert [at for at, _ in asked] == [50.0, 62.0, 67.0]


def test_a_run_that_does_not_grow_is_not_examined_again(tmp_path: Path) -> None:
    run, seconds = GrowingRun(tmp_path), Seconds()
    grow(run, 30)()
    asked: list[Callable[[], None]] = []
    judge = Judge(examine, every_s=5.0, start=lambda work: (asked.append(work), work())[1])
    watch = watched(tmp_path, seconds, judge=judge)
    for _ in range(20):
        watch.look()
        seconds.pause()
    assert len(asked) == 1


def test_what_was_new_while_the_doctor_was_not_due_is_examined_later(tmp_path: Path) -> None:
    run, seconds = GrowingRun(tmp_path), Seconds()
    grow(run, 30)()
    watch = watched(tmp_path, seconds)
    watch.look()
    grow(run, 30)()
    seconds.pause()
    watch.look()
    views = [watch.look() for _ in range(10) if seconds.pause() is None]
    view = views[-1]
    assert view.verdict is not None
    assert view.verdict.steps == 54, "all sixty, though nothing was written since"


def test_work_beside_the_display_is_done_in_another_thread(tmp_path: Path) -> None:
    import threading

    done, names = threading.Event(), []
    in_a_thread(lambda: (names.append(threading.current_thread().name), done.set())[1])
    assert done.wait(10.0)
    assert names != [threading.current_thread().name]
    assert watch_of(tmp_path, examine).run.source == tmp_path


def test_a_view_is_shown_everywhere() -> None:
    one: list[object] = []
    other: list[object] = []
    to_all([one.append, other.append])("view")  # pyright: ignore[reportArgumentType]
    assert one == other == ["view"]
