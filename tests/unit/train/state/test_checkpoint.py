import enum
import errno
import hashlib
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.errors import CheckpointError
from pitstop.train.state.checkpoint import (
    BestOf,
    CheckpointWriter,
    WritingRanks,
    find_newest_whole,
    open_checkpoint,
)
from pitstop.train.state.manifest import FileSum, Manifest, read_manifest, write_manifest
from pitstop.train.state.snapshot import snapshot
from tests.fork_server.client import start_python


@pytest.fixture(autouse=True)
def single_threaded() -> None:
    torch.set_num_threads(1)


def state_of(step: int, *, elements: int = 100) -> dict[str, Any]:
    """A state that knows its step in every part, so that a mixture would show."""
    return {
        "step": step,
        "model": {"w": torch.full((elements,), float(step)), "b": torch.tensor(step)},
        "optimizer": {"state": {0: {"m": torch.full((3,), step)}}, "groups": [{"lr": 0.1}]},
        "config": f"train:\n  steps: {step}\n",
        "ema": None,
    }


def own_of(step: int, rank: int = 0) -> dict[str, Any]:
    return {"step": step, "rank": rank, "rng": torch.full((8,), step, dtype=torch.uint8)}


def save(writer: CheckpointWriter, step: int, **metrics: float) -> None:
    writer.save(state_of(step), own_of(step), step=step, epoch=step // 10, metrics=metrics)


def writer_of(folder: Path, **options: Any) -> CheckpointWriter:
    return CheckpointWriter(folder, **{"keep_last": 3, "background": False, **options})


def newest_step(folder: Path) -> int | None:
    """The step of the newest whole checkpoint, after looking at all of it."""
    found, _ = find_newest_whole(folder)
    if found is None:
        return None
    step = found.manifest.step
    common, own = found.common(), found.of_rank(0)
    assert common["step"] == own["step"] == step
    assert common["model"]["w"].unique().tolist() == [step]
    return step


def steps_in(folder: Path) -> list[int]:
    return [open_checkpoint(path).manifest.step for path in sorted(folder.glob("save-*"))]


@pytest.mark.parametrize("background", [False, True])
def test_what_was_saved_comes_back(tmp_path: Path, background: bool) -> None:
    with writer_of(tmp_path, background=background) as writer:
        writer.save(state_of(7), own_of(7), step=7, epoch=2, metrics={"psnr": 31.5})
    found, skipped = find_newest_whole(tmp_path)
    assert found is not None
    assert skipped == []
    manifest = found.manifest
    assert (manifest.step, manifest.epoch, manifest.world_size) == (7, 2, 1)
    assert manifest.metrics == {"psnr": 31.5}
    for mapped in (False, True):
        common = found.common(mapped=mapped)
        assert torch.equal(common["model"]["w"], torch.full((100,), 7.0))
        assert common["optimizer"]["state"][0]["m"].tolist() == [7, 7, 7]
        assert common["config"] == "train:\n  steps: 7\n"
    assert found.of_rank(0)["rng"].dtype == torch.uint8


def test_training_may_change_the_state_while_it_is_written(tmp_path: Path) -> None:
    ready, state = threading.Event(), state_of(1)
    # The first question of the writer's thread waits until training has gone on.
    ranks = WritingRanks(agree=lambda well: ready.wait(30) and well)
    with writer_of(tmp_path, background=True, ranks=ranks) as writer:
        writer.save(state, own_of(1), step=1, epoch=0)
        state["model"]["w"].fill_(99.0)
        state["step"] = 99
        ready.set()
    assert newest_step(tmp_path) == 1


def test_a_view_does_not_take_its_base_to_disk(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.save({"w": torch.zeros(1_000_000)[:10]}, {}, step=1, epoch=0)
    found, _ = find_newest_whole(tmp_path)
    assert found is not None
    assert found.manifest.files["common.pt"].size_bytes < 10_000


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value", [np.float64(1.0), Colour.RED, {1, 2}, object(), {("a", "b"): 1}, Path("x")]
)
def test_what_only_code_could_read_back_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"state\.a"):
        snapshot({"a": [value]})


def test_ordered_mappings_become_plain_ones() -> None:
    assert type(snapshot(OrderedDict(a=torch.zeros(1)))) is dict


class Payload:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (os.mkdir, ("ran_code",))


def test_reading_never_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with writer_of(tmp_path / "c") as writer:
        save(writer, 1)
    [path] = (tmp_path / "c").glob("save-*")
    for bad in (pickle.dumps(Payload(), protocol=2), None):
        if bad is None:
            torch.save(Payload(), path / "common.pt")
        else:
            (path / "common.pt").write_bytes(bad)
        seal(path)
        checkpoint = open_checkpoint(path)
        with pytest.raises(CheckpointError):
            checkpoint.common()
    assert not (tmp_path / "ran_code").exists()


def seal(path: Path) -> None:
    """Write a manifest that fits the files as they are, as a forger could."""
    old = read_manifest((path / "manifest.json").read_text())
    content = {name: (path / name).read_bytes() for name in old.files}
    sums = {
        name: FileSum(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in content.items()
    }
    manifest = Manifest(step=old.step, epoch=old.epoch, world_size=old.world_size, files=sums)
    (path / "manifest.json").write_text(write_manifest(manifest))


def test_a_manifest_of_a_billion_ranks_is_refused_without_counting_them_out() -> None:
    text = write_manifest(Manifest(step=1, epoch=0, world_size=1, files=some_files()))
    body = text.partition("\n")[0].replace('"world_size": 1', '"world_size": 1000000000')
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="not the files of 1000000000 ranks"):
            read_manifest(f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_manifests_that_name_other_files_are_refused() -> None:
    text = write_manifest(Manifest(step=1, epoch=0, world_size=1, files=some_files()))
    body = text.partition("\n")[0]
    for old, new in [
        ("common.pt", "../../x"),
        ('"version": 1', '"version": 2'),
        ('"step": 1', '"step": -1'),
        ('"step": 1', '"step": "1"'),
        ('"world_size": 1', '"world_size": 2'),
        ('"metrics": {}', '"metrics": []'),
    ]:
        forged = body.replace(old, new)
        assert forged != body
        digest = hashlib.sha256(forged.encode()).hexdigest()
        with pytest.raises(CheckpointError):
            read_manifest(f"{forged}\n{digest}\n")


def some_files() -> dict[str, FileSum]:
    part = FileSum(size_bytes=3, sha256="0" * 64)
    return {"common.pt": part, "rank-00000.pt": part}


@given(st.data())
def test_any_change_to_a_manifest_shows(data: st.DataObject) -> None:
    manifest = Manifest(
        step=5, epoch=1, world_size=1, metrics={"psnr": 30.1, "nan": None}, files=some_files()
    )
    text = write_manifest(manifest)
    assert read_manifest(text) == manifest
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda c: c != text[place]))
    for torn in (text[:place], text[:place] + letter + text[place + 1 :]):
        with pytest.raises(CheckpointError):
            read_manifest(torn)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_never_taken_for_whole(data: st.DataObject, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.rmtree(folder, ignore_errors=True)
    with writer_of(folder) as writer:
        for step in (1, 2, 3):
            save(writer, step)
    damaged = data.draw(st.sets(st.sampled_from([1, 2, 3]), min_size=1))
    for step in damaged:
        [path] = folder.glob(f"save-*-step-{step:09d}")
        name = data.draw(st.sampled_from(["common.pt", "rank-00000.pt", "manifest.json"]))
        damage(path / name, data)
    found, skipped = find_newest_whole(folder)
    whole = {1, 2, 3} - damaged
    assert newest_step(folder) == max(whole, default=None)
    newest = found.manifest.step if found is not None else 0
    assert [int(s.path.name[-9:]) for s in skipped] == [s for s in (3, 2, 1) if s > newest]
    assert all(s.reason for s in skipped)


def damage(path: Path, data: st.DataObject) -> None:
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["remove", "cut", "flip", "grow", "empty"]))
    place = data.draw(st.integers(0, len(content) - 1))
    if kind == "remove":
        path.unlink()
        return
    if kind == "flip":
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(
        {"cut": content[:place], "grow": content + b"x", "empty": b""}.get(kind, content)
    )


def test_the_newest_is_the_last_saved_not_the_furthest(tmp_path: Path) -> None:
    with writer_of(tmp_path, keep_last=2) as writer:
        for step in (10, 20, 30):
            save(writer, step)
    # Went back to step 10 and took another way; meets step 20 again.
    with writer_of(tmp_path, keep_last=2) as writer:
        save(writer, 15)
        assert newest_step(tmp_path) == 15
        save(writer, 20)
    assert newest_step(tmp_path) == 20
    assert steps_in(tmp_path) == [15, 20]


def test_a_step_saved_twice_is_there_once_more_until_it_is_retired(tmp_path: Path) -> None:
    with writer_of(tmp_path, keep_last=1) as writer:
        save(writer, 5)
        save(writer, 5)
    assert steps_in(tmp_path) == [5]


@pytest.mark.parametrize(
    ("higher_is_better", "kept"), [(True, [20, 50, 60]), (False, [30, 50, 60])]
)
def test_the_best_is_kept_beside_the_last(
    tmp_path: Path, higher_is_better: bool, kept: list[int]
) -> None:
    best_of = BestOf(metric="psnr", higher_is_better=higher_is_better)
    with writer_of(tmp_path, keep_last=2, best_of=best_of) as writer:
        for step, psnr in [(10, 25.0), (20, 31.0), (30, 20.0), (40, 31.0), (50, float("nan"))]:
            save(writer, step, psnr=psnr)
        save(writer, 60)
    assert steps_in(tmp_path) == kept


def test_nothing_is_deleted_before_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer_of(tmp_path, keep_last=1) as writer:
        save(writer, 1)
        real = Path.rename

        def rename(self: Path, target: Path) -> Path:
            if target.name.startswith(".removed"):
                assert newest_step(tmp_path) == 2
            return real(self, target)

        monkeypatch.setattr(Path, "rename", rename)
        save(writer, 2)
    assert steps_in(tmp_path) == [2]


def test_a_torn_checkpoint_does_not_push_a_whole_one_out(tmp_path: Path) -> None:
    with writer_of(tmp_path, keep_last=2) as writer:
        for step in (1, 2, 3):
            save(writer, step)
        [torn] = tmp_path.glob("save-*-step-000000003")
        (torn / "common.pt").write_bytes(b"")
        save(writer, 4)
        shutil.rmtree(torn)
    assert steps_in(tmp_path) == [2, 4]


def test_leftovers_of_a_killed_run_are_said_and_cleared(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        save(writer, 1)
    (tmp_path / ".writing").mkdir()
    (tmp_path / ".writing" / "rank-00001.pt").write_bytes(b"from another time")
    (tmp_path / ".removed-save-000000-step-000000000").mkdir()
    found, [skipped] = find_newest_whole(tmp_path)
    assert found is not None
    assert "cut short" in skipped.reason
    with writer_of(tmp_path) as writer:
        save(writer, 2)
    assert sorted(path.name[:4] for path in tmp_path.iterdir()) == ["save", "save"]


def test_strangers_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "save-old").mkdir()
    assert find_newest_whole(tmp_path) == (None, [])
    with writer_of(tmp_path, keep_last=1) as writer:
        save(writer, 1)
        save(writer, 2)
    assert {"notes.txt", "save-old"} < {path.name for path in tmp_path.iterdir()}


def test_no_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert find_newest_whole(tmp_path / "nowhere") == (None, [])
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        open_checkpoint(tmp_path)


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("limit_bytes", [0, 100, 2_000, 20_000])
def test_a_disk_that_takes_no_more_costs_nothing_but_the_save(
    tmp_path: Path, background: bool, limit_bytes: int
) -> None:
    writer = writer_of(tmp_path, keep_last=1, background=background)
    save(writer, 1)
    writer.wait()
    state = state_of(2, elements=50_000)

    def save_second() -> None:
        writer.save(state, own_of(2), step=2, epoch=0)
        writer.wait()

    with (
        files_no_larger_than(limit_bytes),
        pytest.raises(CheckpointError, match=r"step 2 .*File too large.*; raise the limit"),
    ):
        save_second()
    assert state["model"]["w"].unique().tolist() == [2.0]
    assert newest_step(tmp_path) == 1
    assert not (tmp_path / ".writing").exists()
    writer.save(state, own_of(3), step=3, epoch=0)
    writer.close()
    assert steps_in(tmp_path) == [3]


def test_a_full_disk_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left.*checkpoint\.keep_last"):
        save(writer_of(tmp_path), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"step 1 in .*file/c"):
        save(writer_of(tmp_path / "file" / "c"), 1)


def test_an_error_in_the_background_comes_with_the_next_save_or_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    writer = writer_of(tmp_path / "file", background=True)
    save(writer, 1)
    with pytest.raises(CheckpointError, match="step 1"):
        save(writer, 2)
    save(writer, 3)
    with pytest.raises(CheckpointError, match="step 3"):
        writer.close()
    writer.close()


def test_a_failed_save_does_not_hide_what_ended_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def train() -> None:
        with writer_of(tmp_path / "file", background=True) as writer:
            save(writer, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        train()
    assert "step 1" in caught.value.__notes__[0]


def test_there_is_never_more_than_one_save_under_way(tmp_path: Path) -> None:
    threads: set[int] = set()

    def agree(well: bool) -> bool:
        threads.add(sum(t.name == "checkpoint-writer" for t in threading.enumerate()))
        return well

    with writer_of(tmp_path, background=True, ranks=WritingRanks(agree=agree)) as writer:
        for step in range(1, 6):
            save(writer, step)
    assert threads == {1}
    assert steps_in(tmp_path) == [3, 4, 5]


class Votes:
    """Lets threads stand for ranks: waits for all, and answers whether all are well."""

    def __init__(self, world_size: int) -> None:
        self._barrier = threading.Barrier(world_size)
        self._votes: list[bool] = []
        self._result = True
        self._lock = threading.Lock()

    def __call__(self, well: bool) -> bool:
        with self._lock:
            self._votes.append(well)
        if self._barrier.wait(30) == 0:
            self._result, self._votes = all(self._votes), []
        self._barrier.wait(30)
        return self._result


def save_on_ranks(folder: Path, step: int, *, world_size: int) -> list[Exception | None]:
    votes = Votes(world_size)

    def run(rank: int) -> Exception | None:
        writer = writer_of(
            folder, ranks=WritingRanks(rank=rank, world_size=world_size, agree=votes)
        )
        try:
            writer.save(state_of(step), own_of(step, rank), step=step, epoch=0)
        except CheckpointError as error:
            return error
        return None

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(run, range(world_size)))


def test_ranks_write_one_checkpoint_together(tmp_path: Path) -> None:
    assert save_on_ranks(tmp_path, 4, world_size=3) == [None] * 3
    found, _ = find_newest_whole(tmp_path)
    assert found is not None
    assert [found.of_rank(rank)["rank"] for rank in range(3)] == [0, 1, 2]
    assert found.common()["step"] == 4
    with pytest.raises(CheckpointError, match="saved by 3 ranks and has nothing for rank 3"):
        found.of_rank(3)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_write_fails_the_save_on_all(
    tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_on_ranks(tmp_path, 1, world_size=2)
    real = Path.open

    def open_(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == f"rank-{failing:05d}.pt" and args == ("wb",):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_)
        errors = save_on_ranks(tmp_path, 2, world_size=2)
    assert "Input/output error" in str(errors[failing])
    assert "another rank" in str(errors[1 - failing])
    assert newest_step(tmp_path) == 1
    assert not (tmp_path / ".writing").exists()
    assert save_on_ranks(tmp_path, 3, world_size=2) == [None, None]
    assert newest_step(tmp_path) == 3


def test_a_rank_with_another_folder_is_found_out(tmp_path: Path) -> None:
    """Ranks that do not see the same storage would leave parts that nobody can join."""
    votes = Votes(2)

    def run(rank: int) -> bool:
        ranks = WritingRanks(rank=rank, world_size=2, agree=votes)
        try:
            save(writer_of(tmp_path / str(rank), ranks=ranks), 1)
        except CheckpointError:
            return True
        return False

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [True, True]
    assert newest_step(tmp_path / "0") is None


def kill_at(event: int, action: Callable[[], None]) -> bool:
    """Do something in a child that is killed just before its n-th touch of the file system.

    Returns:
        Whether the child lived to the end.
    """
    child = os.fork()
    if child == 0:
        seen = 0

        def hook(name: str, _: object) -> None:
            nonlocal seen
            if name == "open" or name.startswith(("os.", "shutil.")):
                seen += 1
                if seen == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_killed_before_any_touch_of_the_disk_leaves_old_or_new(tmp_path: Path) -> None:
    template = tmp_path / "template"
    with writer_of(template, keep_last=2) as writer:
        for step in (1, 2):
            save(writer, step)
    outcomes = []
    for event in range(1, 200):
        folder = tmp_path / str(event)
        shutil.copytree(template, folder)

        def save_third(folder: Path = folder) -> None:
            save(writer_of(folder, keep_last=2), 3)

        lived = kill_at(event, save_third)
        outcomes.append(newest_step(folder))
        # Whatever was left, the next run saves again and clears up.
        with writer_of(folder, keep_last=2) as writer:
            save(writer, 4)
        assert newest_step(folder) == 4
        assert len(list(folder.iterdir())) == 2
        if lived:
            break
    else:
        pytest.fail("the save never ended")
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {2, 3}
    # One kill at least fell into each phase: before the rename, and while old ones were removed.
    assert outcomes.count(2) > 5
    assert outcomes.count(3) > 2


SAVER = """
import sys, torch
from pathlib import Path
from pitstop.train.state.checkpoint import CheckpointWriter
torch.set_num_threads(1)
with CheckpointWriter(Path(sys.argv[1]), keep_last=2, background=sys.argv[2] == "1") as writer:
    for step in range(1, 1_000_000):
        common = {"step": step, "model": {"w": torch.full((200_000,), float(step))}}
        writer.save(common, {"step": step}, step=step, epoch=0)
        sys.stdout.write(f"{step}\\n")
        sys.stdout.flush()
"""


@pytest.mark.slow
@pytest.mark.parametrize("background", ["0", "1"])
def test_killed_at_a_random_moment_leaves_a_whole_checkpoint(
    tmp_path: Path, background: str
) -> None:
    rng = random.Random(4)
    for round_ in range(6):
        folder = tmp_path / str(round_)
        ours, theirs = os.pipe()
        saver = start_python("-c", SAVER, str(folder), background, streams=(0, theirs, 2))
        os.close(theirs)
        with os.fdopen(ours) as said:
            reported = [int(said.readline()) for _ in range(rng.randint(2, 5))]
            # Somewhere inside one of the saves that follow; each takes a few milliseconds.
            with pytest.raises(subprocess.TimeoutExpired):
                saver.wait(timeout=rng.random() * 0.05)
            saver.kill()
            reported += map(int, said.read().split())
        saver.wait()
        found = newest_step(folder)
        # In the background, the save reported of last may be the one that was under way.
        assert found is not None
        assert reported[-1] - (background == "1") <= found <= reported[-1] + 1


RANK = """
import sys, torch
from pathlib import Path
from torch import distributed
from pitstop.train.state.checkpoint import CheckpointWriter, join_writers
torch.set_num_threads(1)
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
store = f"file://{folder}/store"
distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
total = torch.zeros(())
with CheckpointWriter(
    folder / "c", keep_last=1, ranks=join_writers(rank=rank, world_size=2)
) as writer:
    for step in range(1, 6):
        writer.save({"step": step, "model": {"w": torch.full((10,), float(step))}},
                    {"step": step, "rank": rank}, step=step, epoch=0)
        for _ in range(20):
            part = torch.ones(())
            distributed.all_reduce(part)
            total += part
assert total.item() == 200, total
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_real_ranks_write_in_the_background_while_they_train(tmp_path: Path) -> None:
    ranks = [start_python("-c", RANK, str(tmp_path), str(rank)) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    assert newest_step(tmp_path / "c") == 5
    found, _ = find_newest_whole(tmp_path / "c")
    assert found is not None
    assert [found.of_rank(rank)["rank"] for rank in range(2)] == [0, 1]
