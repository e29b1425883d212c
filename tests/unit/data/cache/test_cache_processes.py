"""One cache in many processes: however they start, whatever the system lacks."""

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitstop.data.cache.eviction import Policy
from pitstop.data.cache.locks import FileLocks, Locks, RecordLocks
from pitstop.data.cache.shared import SharedCache
from pitstop.measure.host.process_tree import tree_memory
from tests.unit.data.cache_soundness import KEYS, assert_sound, item_of, read_all

BUDGET = 512 << 10
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("policy", ["keep", "lru"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_started_in_any_way_share_every_byte(method: str, policy: Policy) -> None:
    context: Any = multiprocessing.get_context(method)
    with SharedCache(BUDGET, policy) as cache:
        cache.put(KEYS, item_of(KEYS))
        workers = [context.Process(target=read_all, args=(cache, seed, 3)) for seed in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        stats = cache.stats()
        assert stats.hits + stats.misses == 3 * 3 * KEYS, "the host's total, not this process's"
        assert stats.misses < 2 * 3 * KEYS
        assert_sound(cache)
        read_all(cache, 9, 1)


def read_and_stay(cache: SharedCache, items: int, ready: Any, leave: Any) -> None:
    item = np.zeros(1 << 20, np.uint8)
    for key in range(items):
        found = cache.get(key)
        if found is None:
            cache.put(key, item)
        else:
            found.max()
    ready.put(True)
    leave.wait()


def test_four_processes_that_read_everything_hold_it_once() -> None:
    budget = 96 << 20
    context = multiprocessing.get_context("fork")
    ready, leave = context.Queue(), context.Event()

    def tree_bytes() -> int:
        memory = tree_memory()
        assert memory is not None
        return memory.tree_bytes

    before = tree_bytes()
    with SharedCache(budget) as cache:
        args = (cache, 90, ready, leave)
        readers = [context.Process(target=read_and_stay, args=args) for _ in range(4)]
        for reader in readers:
            reader.start()
        for _ in readers:
            ready.get()
        grown = tree_bytes() - before
        leave.set()
        for reader in readers:
            reader.join()
        assert cache.stats().items == 90
    ready.close()
    ready.join_thread()
    assert 90 << 20 <= grown < 1.05 * budget + (64 << 20), "once each would be 360 MiB"


def test_a_child_that_has_two_handles_of_one_cache_keeps_its_place() -> None:
    context = multiprocessing.get_context("spawn")
    with SharedCache(BUDGET, "lru") as cache, pickle.loads(pickle.dumps(cache)) as twin:
        child = context.Process(target=use_both, args=(cache, twin))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert_sound(cache)


def use_both(cache: SharedCache, twin: SharedCache) -> None:
    cache.put(1, item_of(1))
    np.testing.assert_array_equal(twin.get(1), item_of(1))
    cache.close()
    twin.put(2, item_of(2))
    np.testing.assert_array_equal(twin.get(2), item_of(2))


def test_a_forked_child_may_close_what_it_inherited() -> None:
    with SharedCache(BUDGET, "lru") as cache:
        cache.put(1, item_of(1))
        child = multiprocessing.get_context("fork").Process(target=cache.close)
        child.start()
        child.join()
        assert child.exitcode == 0
        cache.put(2, item_of(2))
        np.testing.assert_array_equal(cache.get(1), item_of(1))
        assert_sound(cache)


RANK = """
import pickle, sys
import numpy as np
from tests.unit.data.cache_soundness import read_all
with pickle.loads(bytes.fromhex(sys.argv[1])) as cache:
    read_all(cache, int(sys.argv[2]), 2)
    assert not cache.stats().too_large
"""


@pytest.mark.parametrize("named", [False, True])
def test_ranks_that_are_no_children_open_a_handle(named: bool, tmp_path: Path) -> None:
    with SharedCache(BUDGET, folder=tmp_path if named else None) as cache:
        handle = pickle.dumps(cache).hex()
        ranks = [
            subprocess.Popen([sys.executable, "-c", RANK, handle, str(rank)], cwd=ROOT)
            for rank in range(2)
        ]
        assert [rank.wait() for rank in ranks] == [0, 0]
        stats = cache.stats()
        assert stats.hits + stats.misses == 2 * 2 * KEYS
        assert stats.hits > 0
        assert_sound(cache)
    assert list(tmp_path.iterdir()) == []


# What Windows and macOS lack. Runs anew in each spawned child, as the main module does.
BARE = """
import os, sys
sys.path.insert(0, os.getcwd())
for module in {modules}:
    sys.modules[module] = None
for name in ("memfd_create", "posix_fallocate", "register_at_fork", "fork"):
    delattr(os, name)
import pathlib, tempfile
is_dir = pathlib.Path.is_dir
pathlib.Path.is_dir = lambda path: not str(path).startswith(("/proc", "/dev/shm")) and is_dir(path)
tempfile.tempdir = sys.argv[1]
import multiprocessing
from pathlib import Path
from pitstop.data.cache.shared import SharedCache
from tests.unit.data.cache_soundness import KEYS, assert_sound, read_all

def main():
    context = multiprocessing.get_context("spawn")
    folder = Path(sys.argv[1])
    with SharedCache({budget}, sys.argv[2]) as cache:
        assert len(list(folder.glob("*.arena"))) == 1
        assert str(folder) in cache.stats().backing
        workers = [context.Process(target=read_all, args=(cache, n, 2)) for n in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert cache.stats().hits + cache.stats().misses == 2 * 2 * KEYS
        assert_sound(cache)
        killed = context.Process(target=read_all, args=(cache, 5, 1000))
        killed.start()
        before = cache.stats().hits
        while cache.stats().hits < before + 100:
            assert killed.is_alive()
        killed.kill()
        killed.join()
        read_all(cache, 6, 1)
    assert list(folder.iterdir()) == [], list(folder.iterdir())

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("modules", "policy"),
    [
        pytest.param((), "keep", id="as-macos-keep"),
        pytest.param(("fcntl",), "lru", id="as-windows-lru"),
        pytest.param((), "lru", id="as-macos-lru", marks=pytest.mark.slow),
        pytest.param(("fcntl",), "keep", id="as-windows-keep", marks=pytest.mark.slow),
    ],
)
def test_a_system_without_linux_ways_has_the_cache_too(
    modules: tuple[str, ...], policy: Policy, tmp_path: Path
) -> None:
    script = tmp_path / "bare.py"
    script.write_text(BARE.format(modules=modules, budget=BUDGET))
    folder = tmp_path / "temp"
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, str(script), str(folder), policy],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def locks_of(kind: str, folder: Path) -> tuple[Locks, int]:
    path = folder / "an.arena"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    return (RecordLocks(fd, 1000) if kind == "record" else FileLocks(path)), fd


def try_lock(kind: str, folder: Path, number: int) -> None:
    locks, _ = locks_of(kind, folder)
    os._exit(10 + locks.take(number, wait=False))


def hold_and_die(kind: str, folder: Path, number: int) -> None:
    locks, _ = locks_of(kind, folder)
    assert locks.take(number, wait=True)
    os.kill(os.getpid(), 9)


def outcome(target: Any, *args: object) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=target, args=args)
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.parametrize("kind", ["record", "file"])
def test_a_lock_keeps_others_out_and_dies_with_its_owner(kind: str, tmp_path: Path) -> None:
    locks, fd = locks_of(kind, tmp_path)
    assert locks.take(3, wait=True)
    assert outcome(try_lock, kind, tmp_path, 3) == 10
    assert outcome(try_lock, kind, tmp_path, 4) == 11
    assert outcome(hold_and_die, kind, tmp_path, 5) == -9
    assert locks.take(5, wait=False)
    assert locks.idle(10), "own locks count as free"
    locks.give(3)
    locks.give(5)
    locks.close(remove=True)
    os.close(fd)
    assert [path.name for path in tmp_path.iterdir()] == ["an.arena"]


@pytest.mark.parametrize("kind", ["record", "file"])
def test_locks_are_not_idle_while_another_process_holds_one(kind: str, tmp_path: Path) -> None:
    locks, fd = locks_of(kind, tmp_path)
    receiver, sender = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    holder = context.Process(target=hold_until_released, args=(kind, tmp_path, sender))
    holder.start()
    assert receiver.recv() == "held"
    assert not locks.idle(10)
    receiver.send("go")
    holder.join()
    assert locks.idle(10)
    locks.close(remove=True)
    os.close(fd)


def hold_until_released(kind: str, folder: Path, pipe: Any) -> None:
    locks, _ = locks_of(kind, folder)
    locks.take(7, wait=True)
    pipe.send("held")
    pipe.recv()
