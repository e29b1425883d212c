"""A shared cache under SIGKILL: at every line of its code, and at random under load."""

import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from pitstop.data.cache import eviction
from pitstop.data.cache.eviction import Policy
from pitstop.data.cache.shared import SharedCache
from tests.unit.data.cache_soundness import assert_sound, item_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and SIGKILL")

CODE = str(Path(eviction.__file__).parent)
BUDGET = 256 << 10
WRONG_BYTE = 3
# Longer than any operation on a busy machine; only a hang reaches it.
HANG_S = 60.0


class KillAt:
    """Kills this process just before its n-th line of the cache's own code."""

    def __init__(self, line: int) -> None:
        self._left = line

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def outcome_of(action: Callable[[], object], *, killed_at: int | None) -> int:
    """Run an action in a forked child that dies at a line, or lives; how the child ended."""
    child = os.fork()
    if child == 0:
        try:
            if killed_at is not None:
                sys.settrace(KillAt(killed_at))
            action()
            sys.settrace(None)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing may get back into pytest
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def full_cache(policy: Policy) -> SharedCache:
    cache = SharedCache(BUDGET, policy)
    if policy == "epoch":
        cache.set_order([*range(40), 100, *range(40)])
    for key in range(60):
        cache.put(key, item_of(key))
    return cache


def assert_still_works(cache: SharedCache, policy: Policy) -> None:
    assert_sound(cache)
    for key in (*range(60), 100, 101):
        found = cache.get(key)
        if found is not None:
            np.testing.assert_array_equal(found, item_of(key))
    if policy == "lru":
        assert cache.put(102, item_of(102))
        np.testing.assert_array_equal(cache.get(102), item_of(102))
    assert_sound(cache)


def die_at_lines(stride: int, scene: Callable[[int], int]) -> int:
    """Play a scene once for every `stride`-th line of the code; at which line it came to its end.

    Strides of the quick tests are primes, to meet most of the code.
    """
    for line in range(1, 4000, stride):
        ended = scene(line)
        assert ended in (0, -signal.SIGKILL)
        if ended == 0:
            return line
    raise AssertionError("the scene never came to its end")


def put_killed(policy: Policy, stride: int) -> None:
    def scene(line: int) -> int:
        with full_cache(policy) if policy != "keep" else SharedCache(BUDGET) as cache:
            ended = outcome_of(lambda: cache.put(100, item_of(100)), killed_at=line)
            # The room that the dead process was writing to comes back with the next member.
            outcome_of(lambda: cache.put(101, item_of(101)), killed_at=None)
            assert_still_works(cache, policy)
        return ended

    assert die_at_lines(stride, scene) > 100


def order_killed(stride: int) -> None:
    def scene(line: int) -> int:
        with full_cache("epoch") as cache:
            ended = outcome_of(lambda: cache.set_order(range(60)), killed_at=line)
            assert_still_works(cache, "epoch")
            cache.set_order(range(30))
            assert_sound(cache)
        return ended

    assert die_at_lines(stride, scene) > 200


def lookup_killed(stride: int) -> None:
    with full_cache("lru") as cache:

        def scene(line: int) -> int:
            ended = outcome_of(lambda: cache.get(59), killed_at=line)
            assert_still_works(cache, "keep")
            return ended

        assert die_at_lines(stride, scene) > 30


def mending_killed(stride: int) -> None:
    with full_cache("lru") as cache:

        def scene(line: int) -> int:
            # Dies under the lock, so that the next one has to mend, and dies while it does.
            assert outcome_of(lambda: cache.put(100, item_of(100)), killed_at=60) == -9
            return outcome_of(lambda: cache.put(101, item_of(101)), killed_at=line)

        assert die_at_lines(stride, scene) > 1000
        assert_still_works(cache, "lru")


@pytest.mark.parametrize("policy", ["keep", "lru", "epoch"])
def test_a_put_killed_at_many_lines_harms_nothing(policy: Policy) -> None:
    put_killed(policy, 29)


def test_a_lookup_killed_at_many_lines_harms_nothing() -> None:
    lookup_killed(7)


def test_a_new_order_killed_at_many_lines_harms_nothing() -> None:
    order_killed(71)


def test_mending_killed_at_many_lines_is_mended_again() -> None:
    mending_killed(211)


def in_a_small_process(scenes: Callable[..., None], *args: object) -> None:
    """Play scenes that fork again and again where a fork is cheap: only the cache is imported.

    This process has torch, and whatever the tests before this one left behind.
    """
    process = multiprocessing.get_context("spawn").Process(target=scenes, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["keep", "lru", "epoch"])
def test_a_put_killed_at_any_line_harms_nothing(policy: Policy) -> None:
    in_a_small_process(put_killed, policy, 1)


@pytest.mark.slow
def test_lookups_orders_and_mending_killed_at_any_line_harm_nothing() -> None:
    in_a_small_process(lookup_killed, 1)
    in_a_small_process(order_killed, 1)
    in_a_small_process(mending_killed, 13)


def work(cache: SharedCache, seed: int) -> None:
    """Look up, check every byte, store; for ever."""
    rng = random.Random(seed)
    while True:
        key = rng.randrange(120)
        found = cache.get(key)
        expected = item_of(key)
        if found is None:
            cache.put(key, expected)
        elif found.shape != expected.shape or not np.array_equal(found, expected):
            os._exit(WRONG_BYTE)
        if found is not None and expected.ndim == 2:
            part = cache.get(key, window=(slice(0, 3), slice(5, 70)))
            if part is not None and not np.array_equal(part, expected[0:3, 5:70]):
                os._exit(WRONG_BYTE)


def lookups_of(cache: SharedCache) -> int:
    stats = cache.stats()
    return stats.hits + stats.misses


def wait_for_progress(cache: SharedCache, beyond: int) -> None:
    deadline = time.monotonic() + HANG_S
    while lookups_of(cache) <= beyond:
        assert time.monotonic() < deadline, "nobody gets on any more"


def storm(cache: SharedCache, rounds: int, method: str) -> None:
    """Kill a random worker, see the others get on, start another in its place; many times."""
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])  # else every worker imports it again
    rng = random.Random(0)

    def started(seed: int) -> BaseProcess:
        worker = context.Process(target=work, args=(cache, seed), daemon=True)
        worker.start()
        return worker

    workers = [started(seed) for seed in range(4)]
    try:
        for turn in range(rounds):
            wait_for_progress(cache, lookups_of(cache) + rng.randrange(200))
            victim = rng.randrange(len(workers))
            workers[victim].kill()
            wait_for_progress(cache, lookups_of(cache))
            workers[victim].join(HANG_S)
            assert workers[victim].exitcode == -signal.SIGKILL
            workers[victim] = started(1000 + turn)
            assert all(worker.exitcode is None for worker in workers), "a worker saw a wrong byte"
    finally:
        for worker in workers:
            worker.kill()
            worker.join(HANG_S)
    # A new member frees what the dead one before it left half-written. All are there at once, for
    # whoever came after another had gone would only take its place.
    together = context.Barrier(8)
    joined = [context.Process(target=join, args=(cache, together)) for _ in range(8)]
    for process in joined:
        process.start()
    for process in joined:
        process.join(HANG_S)
        assert process.exitcode == 0


def join(cache: SharedCache, together: Barrier) -> None:
    cache.put(0, item_of(0))
    together.wait(HANG_S)


def memories_open() -> int:
    """How many nameless memories this process has open."""
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("pitstop-cache" in link.name for link in links)


@pytest.mark.parametrize("policy", [pytest.param("keep", marks=pytest.mark.slow), "lru"])
def test_ten_kills_under_load_leave_no_hang_no_wrong_byte_no_memory(policy: Policy) -> None:
    before = memories_open()
    with SharedCache(BUDGET, policy) as cache:
        storm(cache, 10, "fork")
        assert_sound(cache)
    assert memories_open() == before


def two_hundred_kills(policy: Policy, method: str, folder: Path) -> None:
    before = memories_open()
    with SharedCache(BUDGET, policy, folder=folder if method == "forkserver" else None) as cache:
        if policy == "epoch":
            cache.set_order(random.Random(0).choices(range(120), k=5000))
        storm(cache, 200, method)
        assert_sound(cache)
    assert memories_open() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "method"),
    [("keep", "fork"), ("lru", "fork"), ("epoch", "fork"), ("lru", "forkserver")],
)
def test_two_hundred_kills_under_load_leave_nothing_behind(
    policy: Policy, method: str, tmp_path: Path
) -> None:
    in_a_small_process(two_hundred_kills, policy, method, tmp_path)
    assert list(tmp_path.iterdir()) == []


RANK = """
import pickle, sys, numpy as np
from pitstop.data.cache.shared import SharedCache
from pathlib import Path
cache = SharedCache({budget}, "lru", folder=Path(sys.argv[1]))
cache.put("mine", np.arange(100))
sys.stdout.buffer.write(pickle.dumps(cache).hex().encode() + b"\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def killed_maker(folder: Path) -> tuple["subprocess.Popen[bytes]", str]:
    maker = subprocess.Popen(
        [sys.executable, "-c", RANK.format(budget=BUDGET), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert maker.stdout is not None
    return maker, maker.stdout.readline().decode()


def test_a_named_cache_outlives_its_maker_and_goes_with_its_last_user(tmp_path: Path) -> None:
    maker, handle = killed_maker(tmp_path)
    with maker, pickle.loads(bytes.fromhex(handle)) as cache:
        maker.kill()
        maker.wait()
        assert cache.get("mine").tolist() == list(range(100))
        assert cache.put("yours", np.arange(5))
        assert len(list(tmp_path.glob("*.arena"))) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_swept_by_the_next_start(tmp_path: Path) -> None:
    maker, _ = killed_maker(tmp_path)
    with maker:
        with SharedCache(BUDGET, folder=tmp_path):
            assert len(list(tmp_path.glob("*.arena"))) == 2, "a living one must stay"
        maker.kill()
    assert len(list(tmp_path.glob("*.arena"))) == 1
    with SharedCache(BUDGET, folder=tmp_path):
        assert len(list(tmp_path.glob("*.arena"))) == 1
    assert list(tmp_path.iterdir()) == []
