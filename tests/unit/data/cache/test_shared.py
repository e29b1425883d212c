import copy
import errno
import gc
import os
import pickle
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pitstop.data.cache import arena
from pitstop.data.cache import items as cache_items
from pitstop.data.cache import shared as cache_module
from pitstop.data.cache.arena import Handle
from pitstop.data.cache.eviction import Policy
from pitstop.data.cache.items import read_ahead
from pitstop.data.cache.shared import CacheStats, SharedCache
from pitstop.errors import ConfigError, DataError
from pitstop.measure.host.limits import read_host_limits
from tests.unit.data.cache_soundness import assert_sound, item_of

MIB = 1 << 20
Usage = namedtuple("Usage", "total used free")
POLICIES: tuple[Policy, ...] = ("keep", "lru", "epoch")


def memories_open() -> int:
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("pitstop-cache" in link.name for link in links)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(40, dtype=">i4")[::3],
        np.array(7.5),
        np.zeros((0, 3), np.float32),
        np.array(["2026-01-01", "2026-01-02"], "datetime64[D]"),
        np.array(["ab", "c"]),
        np.array([1 + 2j, 3j], np.complex64),
        np.arange(70) % 3 == 0,
        (np.arange(5 * 8) % 3 == 0).reshape(5, 8),
        (np.arange(2 * 5 * 7) % 3 == 0).reshape(2, 5, 7),
        np.array(True),
        np.zeros((4, 0), bool),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_comes_back_as_it_went_in(array: np.ndarray, policy: Policy) -> None:
    with SharedCache(MIB, policy) as cache:
        assert cache.get("a") is None
        assert cache.put("a", array)
        found = cache.get("a")
        assert found is not None
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
        assert found.shape == array.shape


@pytest.mark.parametrize("array", [np.array([object()]), np.zeros(3, [("a", "i4")])])
def test_objects_and_records_are_refused(array: np.ndarray) -> None:
    with SharedCache(MIB) as cache, pytest.raises(DataError, match="not of"):
        cache.put(1, array)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", [np.uint8, bool])
@pytest.mark.parametrize(
    "window",
    [
        slice(1, 3),
        (slice(2, 9), slice(5, 21)),
        (slice(None, None, 2), slice(3, 90, 7), slice(1, None)),
        (slice(-3, None), slice(90, 3, -2)),
        (slice(5, 2), slice(60, 70)),
        (slice(0, 100), slice(8, 16)),
        (),
    ],
    ids=str,
)
def test_a_window_is_what_slicing_the_whole_gives(window: Any, dtype: type, policy: Policy) -> None:
    whole = np.random.default_rng(0).integers(0, 2, (11, 100, 3)).astype(dtype)
    flat = whole[:, :, 0]
    with SharedCache(MIB, policy) as cache:
        cache.put("deep", whole)
        part = cache.get("deep", window=window)
        assert part is not None
        np.testing.assert_array_equal(part, whole[window])
        assert part.flags.writeable
        if isinstance(window, slice) or len(window) < 3:
            cache.put("flat", flat)
            np.testing.assert_array_equal(cache.get("flat", window=window), flat[window])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "array",
    [
        np.arange(700 * 900 * 3, dtype=np.uint32).astype(np.uint8).reshape(700, 900, 3),
        np.arange(3 * 700 * 900, dtype=np.uint32).astype(np.uint8).reshape(3, 700, 900),
        np.arange(700 * 900, dtype=np.float32).reshape(700, 900),
    ],
    ids=["channels last", "channels first", "wide numbers"],
)
def test_windows_that_are_read_ahead_hold_the_same_bytes(array: np.ndarray, policy: Policy) -> None:
    sizes = array.shape
    wide = tuple(slice(max(0, size - 256), size) for size in sizes)
    windows: list[tuple[slice, ...]] = [
        wide,
        wide[:2],
        tuple(slice(3, 259) for _ in sizes),
        tuple(slice(None, None, -2) for _ in sizes),
        tuple(slice(None, None, 3) for _ in sizes[:-1]),
        (slice(650, 100, -1), slice(10, 190)),
        (slice(None), slice(5, 5)),
    ]
    with SharedCache(4 * MIB, policy) as cache:
        cache.put("item", array)
        for window in windows:
            crop = cache.get("item", window=window)
            assert crop is not None
            assert np.array_equal(crop, array[window])
            assert crop.flags.c_contiguous
            assert crop.flags.owndata


class Watched(np.ndarray):
    """An array that notes where the parts lie that are taken of it."""

    taken: ClassVar[list[np.ndarray]] = []

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key).view(np.ndarray)
        self.taken.append(part)
        return part


def byte_addresses(array: np.ndarray) -> set[int]:
    first = array.__array_interface__["data"][0]
    places = np.full(array.shape, first)
    for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        shape = [size if each == axis else 1 for each in range(array.ndim)]
        places += (np.arange(size) * stride).reshape(shape)
    return set(places.ravel().tolist())


@pytest.mark.parametrize(
    ("shape", "window", "dtype"),
    [
        ((300, 2000, 3), (slice(20, 276), slice(700, 956)), np.uint8),
        ((3, 300, 2000), (slice(None), slice(20, 276), slice(700, 956)), np.uint8),
        ((300, 2000), (slice(280, 20, -1), slice(5, 197)), np.float32),
    ],
)
def test_short_runs_far_apart_are_read_ahead_line_by_line(
    shape: tuple[int, ...], window: tuple[slice, ...], dtype: type
) -> None:
    array = np.zeros(shape, dtype)
    part = array[window]
    Watched.taken.clear()
    read_ahead(part.view(Watched), len(window) - 1)
    (read,) = Watched.taken
    read_places, places = byte_addresses(read), byte_addresses(part)
    assert read_places <= places
    lines, read_lines = ({place // 64 for place in each} for each in (places, read_places))
    runs = part.nbytes // (part.shape[len(window) - 1] * part.strides[len(window) - 1])
    assert len(lines - read_lines) <= runs
    # One byte of a line is enough; a second one happens where the step is no divisor of a line.
    assert len(read_places) <= len(lines) + runs


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((300, 256, 3), (slice(20, 276), slice(0, 256))),
        ((300, 2000, 3), (slice(20, 276), slice(0, 512))),
        ((300, 2000, 3), (slice(20, 276), slice(956, 700, -1))),
        ((300, 20, 100), (slice(20, 276), slice(0, 4))),
    ],
    ids=["no gaps", "long runs", "backwards", "elements larger than a line"],
)
def test_other_windows_are_not_read_twice(
    shape: tuple[int, ...], window: tuple[slice, ...]
) -> None:
    Watched.taken.clear()
    read_ahead(np.zeros(shape, np.uint8)[window].view(Watched), len(window) - 1)
    assert not Watched.taken


def test_an_empty_window_of_a_single_number_is_an_array() -> None:
    with SharedCache(MIB) as cache:
        cache.put(1, np.array(5.0))
        crop = cache.get(1, window=())
        assert isinstance(crop, np.ndarray)
        assert crop.shape == ()


@pytest.mark.parametrize("window", [3, (slice(1), 2), (slice(1),) * 3])
def test_a_window_of_anything_but_slices_is_refused(window: Any) -> None:
    with SharedCache(MIB) as cache:
        cache.put(1, np.zeros((4, 4)))
        with pytest.raises((DataError, TypeError)):
            cache.get(1, window=window)


def quickest_s(run: Callable[[], object], times: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return min(once() for _ in range(times))


def test_a_crop_is_far_quicker_than_a_clone_of_the_whole() -> None:
    large = np.zeros((2160, 5120, 3), np.uint8)
    window = (slice(900, 1156), slice(1500, 1756))
    with SharedCache(64 * MIB) as cache:
        cache.put(1, large)
        crop_s = quickest_s(lambda: cache.get(1, window=window), 200)
    clone_s = quickest_s(lambda: large.copy()[window], 20)
    assert clone_s / crop_s > 60


def test_truth_values_take_an_eighth_of_the_bytes() -> None:
    bits = np.zeros((100, 8000), bool)
    with SharedCache(MIB) as cache:
        cache.put("bits", bits)
        assert cache.stats().used_bytes == pytest.approx(bits.nbytes / 8, rel=0.01)


def test_kept_items_are_views_that_cannot_be_written() -> None:
    with SharedCache(MIB) as cache:
        cache.put(1, np.arange(10))
        first, second = cache.get(1), cache.get(1)
        assert first is not None
        assert second is not None
        assert np.shares_memory(first, second)
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 5
        with pytest.raises(ValueError, match="WRITEABLE"):
            first.flags.writeable = True
        del first, second


@pytest.mark.parametrize("policy", ["lru", "epoch"])
def test_policies_that_drop_items_hand_out_copies(policy: Policy) -> None:
    with SharedCache(MIB, policy) as cache:
        cache.put(1, np.arange(10))
        found = cache.get(1)
        assert found is not None
        found[:] = 0
        np.testing.assert_array_equal(cache.get(1), np.arange(10))


def test_keys_that_look_alike_are_different() -> None:
    keys: list[Any] = ["1", 1, ("1",), (1,), ("1", 1), (("1",), 1), "", (), -1, 2**80, "i1", "é"]
    keys += [("a", "b"), ("ab",), ("a:b",), (1, 23), (12, 3), "\udcff", ("s1", "1:s1")]
    with SharedCache(MIB) as cache:
        for number, key in enumerate(keys):
            assert cache.get(key) is None
            assert cache.put(key, np.array([number]))
        for number, key in enumerate(keys):
            assert cache.get(key) == number
        assert cache.get(np.int64(1)) == keys.index(1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("key", [1.5, None, b"bytes", ("a", 1.5)])
def test_other_keys_are_refused(key: Any) -> None:
    with SharedCache(MIB) as cache, pytest.raises(DataError, match="a cache key is"):
        cache.get(key)


@pytest.mark.parametrize("policy", POLICIES)
def test_keys_with_the_same_hash_do_not_meet(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitstop.data.cache.shared.hash_key", lambda name: len(name) % 2)
    with SharedCache(MIB, policy) as cache:
        for key in range(200):
            cache.put(key, item_of(key, 2))
        for key in range(200):
            np.testing.assert_array_equal(cache.get(key), item_of(key, 2))
        assert cache.get(200) is None


def test_the_first_array_of_a_key_stays() -> None:
    with SharedCache(MIB) as cache:
        assert cache.put(1, np.array([1]))
        assert cache.put(1, np.array([2]))
        assert cache.get(1) == 1
        assert cache.stats().items == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_an_item_larger_than_the_budget_passes_by_and_is_counted(policy: Policy) -> None:
    with SharedCache(MIB, policy) as cache:
        cache.put("small", np.zeros(100, np.uint8))
        assert not cache.put("large", np.zeros(2 * MIB, np.uint8))
        stats = cache.stats()
        assert (stats.too_large, stats.items, stats.evictions) == (1, 1, 0)
        assert cache.get("large") is None


def test_the_budget_holds_items_index_and_all() -> None:
    with SharedCache(8 * MIB) as cache:
        stored = sum(cache.put(key, np.zeros(5000, np.uint8)) for key in range(3000))
        size = Path(cache.__reduce__()[1][0].path).stat().st_size
        assert size == cache.stats().budget_bytes == 8 * MIB
        assert stored * 5000 > 0.95 * 8 * MIB
        assert cache.stats().items == stored


def test_a_budget_is_rounded_down_to_pages() -> None:
    with SharedCache(MIB + 4095) as cache:
        assert cache.stats().budget_bytes == MIB


def test_many_small_items_fit_as_well() -> None:
    with SharedCache(MIB, "lru") as cache:
        for key in range(6000):
            assert cache.put(key, np.array([key]))
        assert cache.get(5999) == 5999
        assert cache.stats().items > 3000
        assert cache.stats().evictions + cache.stats().items == 6000
    with SharedCache(MIB, "keep") as cache:
        assert sum(cache.put(key, np.array([key])) for key in range(6000)) > 3000


@pytest.mark.parametrize("policy", ["lru", "epoch"])
def test_room_is_found_among_items_of_all_sizes(policy: Policy) -> None:
    with SharedCache(MIB, policy) as cache:
        rng = np.random.default_rng(1)
        if policy == "epoch":
            cache.set_order(list(range(600)) * 2)
        for key in rng.integers(0, 600, 3000).tolist():
            found = cache.get(key)
            if found is None:
                cache.put(key, item_of(key))
            else:
                np.testing.assert_array_equal(found, item_of(key))
        assert cache.stats().evictions > 50
        assert_sound(cache)
        assert cache.put("large", np.zeros(MIB // 2, np.uint8)) or policy == "epoch"


def test_statistics_read_as_a_few_aligned_lines() -> None:
    stats = CacheStats(
        policy="lru",
        backing="memory without a name",
        items=1234,
        used_bytes=3 * MIB,
        budget_bytes=4 * MIB,
        hits=3,
        misses=1,
        evictions=2,
        too_large=0,
    )
    assert str(stats) == (
        "cache      lru, memory without a name\n"
        "items      1,234\n"
        "memory     3.00 MiB of 4.00 MiB, 75.0%\n"
        "hit rate   75.0% (3 hits, 1 misses)\n"
        "evictions  2\n"
        "too large  0"
    )


def test_a_rate_of_no_lookups_is_not_measured() -> None:
    with SharedCache(MIB) as cache:
        assert cache.stats().hit_rate is None
        assert "not measured" in str(cache.stats())
        cache.get(1)
        assert cache.stats().hit_rate == 0.0


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (0, "is 0 B"),
        (-5, "is -5 B"),
        (1000, "alone takes"),
        (True, "whole number of bytes"),
        (1.5e9, "whole number of bytes"),
        (2**60, "use .*iB together"),
    ],
)
def test_a_budget_that_cannot_be_is_one_clear_line(budget: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        SharedCache(budget)
    assert "\n" not in str(caught.value)


def test_a_budget_beyond_the_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pitstop.data.cache.shared._available_bytes", lambda: 5 * MIB)
    assert read_host_limits().memory_bytes > 6 * MIB
    with pytest.raises(ConfigError, match=r"6\.00 MiB, and 5\.00 MiB"):
        SharedCache(6 * MIB)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep, lru, epoch"):
        SharedCache(MIB, "fifo")  # pyright: ignore[reportArgumentType]


def test_an_order_for_a_policy_that_does_not_look_at_it_is_an_error() -> None:
    with SharedCache(MIB, "lru") as cache, pytest.raises(ConfigError, match="does not use"):
        cache.set_order([1, 2])


def test_an_order_larger_than_the_budget_is_an_error() -> None:
    with SharedCache(1 << 18, "epoch") as cache:
        with pytest.raises(DataError, match="the order of an epoch takes"):
            cache.set_order(range(100_000))
        cache.put(1, item_of(1))
        assert_sound(cache)


def test_a_closed_cache_says_so() -> None:
    cache = SharedCache(MIB)
    cache.close()
    cache.close()
    with pytest.raises(DataError, match="closed"):
        cache.get(1)
    with pytest.raises(DataError, match="closed"):
        pickle.dumps(cache)


def test_views_outlive_the_cache_and_memory_goes_with_the_last_of_them() -> None:
    before = memories_open()
    cache = SharedCache(MIB)
    cache.put(1, np.arange(10))
    view = cache.get(1)
    handle = pickle.dumps(cache)
    cache.close()
    np.testing.assert_array_equal(view, np.arange(10))
    assert memories_open() > before
    with pickle.loads(handle) as again:
        assert np.shares_memory(again.get(1), view)
        del view
    assert memories_open() == before


def test_a_cache_that_is_forgotten_is_closed() -> None:
    before = memories_open()
    cache = SharedCache(MIB)
    twin = copy.deepcopy(cache)
    cache.put(1, np.arange(3))
    del cache
    gc.collect()
    assert twin.get(1) is not None
    del twin
    gc.collect()
    assert memories_open() == before


def test_a_handle_of_a_cache_that_is_gone_is_a_clear_error() -> None:
    with SharedCache(MIB) as cache:
        handle = pickle.dumps(cache)
    with pytest.raises(DataError, match="the process that made it has ended"):
        pickle.loads(handle)


def test_a_handle_that_by_now_leads_elsewhere_is_a_clear_error(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 5000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (other, pipe, tmp_path):
        with pytest.raises(DataError, match="cannot be opened"):
            arena.open_arena(Handle(token="00" * 16, path=str(path)))


def test_threads_share_a_cache_and_lose_no_count() -> None:
    with SharedCache(MIB, "lru") as cache:

        def look() -> None:
            for key in range(500):
                found = cache.get(key % 70)
                if found is None:
                    cache.put(key % 70, item_of(key % 70))
                else:
                    np.testing.assert_array_equal(found, item_of(key % 70))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = cache.stats()
        assert stats.hits + stats.misses == 2000
        assert_sound(cache)


def test_an_array_that_fails_while_it_is_stored_leaves_no_room_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with SharedCache(MIB) as cache:
        with monkeypatch.context() as patch:
            patch.setattr(cache_items.ItemLayout, "write", fail)
            with pytest.raises(KeyboardInterrupt):
                cache.put(1, item_of(1))
        assert cache.get(1) is None
        assert_sound(cache)
        assert cache.put(1, item_of(1))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_item_stored_twice_at_once_is_there_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = cache_items.ItemLayout.write
    with SharedCache(MIB, policy) as cache:

        def overtaken(*args: Any) -> None:
            monkeypatch.setattr(cache_items.ItemLayout, "write", write)
            assert cache.put(1, item_of(1))
            write(*args)

        monkeypatch.setattr(cache_items.ItemLayout, "write", overtaken)
        assert cache.put(1, item_of(1))
        assert cache.stats().items == 1
        np.testing.assert_array_equal(cache.get(1), item_of(1))
        assert_sound(cache)


@pytest.mark.parametrize("returns", [False, True])
def test_an_item_dropped_while_it_is_copied_is_never_handed_out_torn(
    returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = cache_module._copied  # pyright: ignore[reportPrivateUsage]
    with SharedCache(1 << 18, "lru") as cache:
        cache.put(1, item_of(1, 300))

        def overtaken(*args: Any) -> np.ndarray:
            monkeypatch.setattr(cache_module, "_copied", copied)
            for key in range(2, 20):
                cache.put(key, item_of(key, 300))
            if returns:
                cache.put(1, item_of(1, 300))
            return copied(*args)

        monkeypatch.setattr(cache_module, "_copied", overtaken)
        found = cache.get(1)
        if returns:
            np.testing.assert_array_equal(found, item_of(1, 300))
        else:
            assert found is None
        assert cache.stats().evictions > 0


def test_an_item_that_stays_while_another_goes_is_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = cache_module._copied  # pyright: ignore[reportPrivateUsage]
    with SharedCache(1 << 18, "lru") as cache:
        for key in range(40):
            cache.put(key, item_of(key, 100))
        calls = []

        def overtaken(*args: Any) -> np.ndarray:
            calls.append(args)
            cache.put(100 + len(calls), item_of(100 + len(calls), 100))
            return copied(*args)

        monkeypatch.setattr(cache_module, "_copied", overtaken)
        before = cache.stats().evictions
        np.testing.assert_array_equal(cache.get(39), item_of(39, 100))
        assert cache.stats().evictions > before
        assert len(calls) == 1


def test_an_interrupt_under_the_lock_is_mended_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with SharedCache(MIB, "lru") as cache:
        cache.put(1, item_of(1))
        with monkeypatch.context() as patch:
            patch.setattr("pitstop.data.cache.blocks.Blocks._chain", fail)
            with pytest.raises(KeyboardInterrupt):
                cache.put(2, item_of(2))
        np.testing.assert_array_equal(cache.get(2), item_of(2))
        assert_sound(cache)


def test_an_order_interrupted_on_its_way_leaves_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with SharedCache(MIB, "epoch") as cache:
        cache.put(1, item_of(1))
        cache.set_order([1, 2, 1])
        with monkeypatch.context() as patch:
            patch.setattr("pitstop.data.cache.blocks.Blocks._free", fail)
            with pytest.raises(KeyboardInterrupt):
                cache.set_order([1, 1])
        assert_sound(cache)
        cache.set_order([2, 1])
        assert_sound(cache)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_system_that_runs_out_of_room_makes_the_cache_smaller_not_the_run_fail(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = os.posix_fallocate
    granted = 40 * MIB

    def short(fd: int, start: int, size: int) -> None:
        nonlocal granted
        if size > granted:
            raise OSError(errno.ENOSPC, "No space left on device")
        granted -= size
        reserve(fd, start, size)

    monkeypatch.setattr(os, "posix_fallocate", short)
    with SharedCache(64 * MIB, policy) as cache:
        if policy == "epoch":
            cache.set_order(range(64))
        for key in range(64):
            cache.get(key)
            cache.put(key, item_of(key, 10_000))
            assert cache.get(key) is not None or policy != "lru"
        assert 30 * MIB < cache.stats().used_bytes <= 40 * MIB
        assert_sound(cache, size=10_000)


def test_without_nameless_memory_a_small_shared_mount_is_passed_by_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    free = {"/dev/shm": 64 * MIB, str(tmp_path): 10_000 * MIB}
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, free[str(path)]))
    with SharedCache(100 * MIB) as cache:
        assert cache.put(1, item_of(1))
        backing = cache.stats().backing
        assert str(tmp_path) in backing
        assert "/dev/shm has 64.0 MiB free" in backing
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    free[str(tmp_path)] = 70 * MIB
    with pytest.raises(ConfigError, match=r"nowhere: .*shm has 64.0 MiB free, .* 70.0 MiB free"):
        SharedCache(100 * MIB)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("call", ["truncate", "posix_fallocate"])
def test_a_system_with_no_room_at_all_is_a_clear_error_that_leaves_nothing(
    call: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = memories_open()
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(ConfigError, match=r"lower cache\.budget"):
        SharedCache(MIB, folder=tmp_path if named else None)
    assert memories_open() == before
    assert list(tmp_path.iterdir()) == []


def test_more_processes_than_places_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = memories_open()
    monkeypatch.setattr(arena, "MEMBERS", 0)
    with pytest.raises(DataError, match="more than 0 processes"):
        SharedCache(MIB)
    assert memories_open() == before


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        SharedCache(MIB, folder=tmp_path / "none")


def test_a_named_cache_can_be_read_by_its_user_alone(tmp_path: Path) -> None:
    with SharedCache(MIB, folder=tmp_path):
        [path] = tmp_path.iterdir()
        assert path.stat().st_mode & 0o077 == 0


def test_a_start_sweeps_the_unfinished_of_an_hour_ago_and_no_others(tmp_path: Path) -> None:
    user = os.getuid()
    old, new = (tmp_path / f"pitstop-cache-{user}-{name}.new" for name in ("old", "new"))
    strange = tmp_path / "something-else.arena"
    for path in (old, new, strange):
        path.write_bytes(b"")
    an_hour_ago = new.stat().st_mtime - 3700
    os.utime(old, (an_hour_ago, an_hour_ago))
    with SharedCache(MIB, folder=tmp_path):
        assert not old.exists()
        assert new.exists()
        assert strange.exists()
