"""Hit rates of each policy, against what arithmetic and exhaustive search say."""

import random
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from pitstop.data.cache.items import encode_key, hash_key
from pitstop.data.cache.shared import SharedCache
from pitstop.data.cache.upcoming import NEVER, NewOrder, Order

ITEM_BYTES = 32 << 10
CLIPS, FRAMES, WINDOW = 22, 101, 6


def read(cache: SharedCache, keys: Sequence[int], item_bytes: int = ITEM_BYTES) -> float:
    """Use a cache as a dataset does; the share of lookups that hit."""
    item = np.zeros(item_bytes, np.uint8)
    hits = 0
    for key in keys:
        if cache.get(key) is None:
            cache.put(key, item)
        else:
            hits += 1
    return hits / len(keys)


def windows(rng: random.Random, *, grouped: bool) -> list[int]:
    """Frames of one epoch of six-frame windows, by clip in order or fully shuffled."""
    starts = [(clip, first) for clip in range(CLIPS) for first in range(FRAMES - WINDOW + 1)]
    if grouped:
        clips = rng.sample(range(CLIPS), CLIPS)
        starts.sort(key=lambda start: clips.index(start[0]))
    else:
        rng.shuffle(starts)
    return [clip * FRAMES + first + step for clip, first in starts for step in range(WINDOW)]


@pytest.mark.parametrize("percent", [10, 17, 50, 90])
def test_kept_items_hit_as_often_as_the_cache_is_large(percent: int) -> None:
    items, rng = 1000, random.Random(percent)
    item_bytes = 4 * ITEM_BYTES
    with SharedCache(items * item_bytes * percent // 100) as cache:
        read(cache, range(items), item_bytes)
        shuffled = [key for _ in range(2) for key in rng.sample(range(items), items)]
        rate = read(cache, shuffled, item_bytes)
    assert rate == pytest.approx(percent / 100, abs=0.005)


def test_least_recently_used_hits_on_windows_in_order() -> None:
    rng = random.Random(0)
    with SharedCache(CLIPS * FRAMES * ITEM_BYTES * 172 // 1000, "lru") as cache:
        assert read(cache, windows(rng, grouped=True)) > 0.82


@pytest.mark.slow
def test_a_known_order_nearly_triples_the_hits_on_shuffled_windows() -> None:
    rng = random.Random(0)
    epochs = [windows(rng, grouped=False) for _ in range(3)]
    with SharedCache(CLIPS * FRAMES * ITEM_BYTES * 172 // 1000, "epoch") as cache:
        rates = []
        for now, following in pairwise(epochs):
            cache.set_order(now + following[: len(following) // 8])
            rates.append(read(cache, now))
    assert rates[1] > 0.45
    assert rates[1] < 0.4865, "more than the optimum is not to be had"


def belady(keys: Sequence[int], capacity: int) -> int:
    """Most hits any policy can have, found by dropping what is used last of all."""
    held: set[int] = set()
    hits = 0
    for place, key in enumerate(keys):
        if key in held:
            hits += 1
            continue
        later = {k: _next(keys, k, place) for k in (*held, key)}
        if len(held) < capacity:
            held.add(key)
        elif (last := max(later, key=lambda k: later[k])) != key:
            held.remove(last)
            held.add(key)
    return hits


def _next(keys: Sequence[int], key: int, place: int) -> int:
    return next((at for at in range(place + 1, len(keys)) if keys[at] == key), NEVER)


@pytest.mark.parametrize("seed", range(5))
def test_with_the_whole_order_known_no_policy_has_more_hits(seed: int) -> None:
    rng = random.Random(seed)
    keys = rng.choices(range(40), k=400)
    with SharedCache(16 * ITEM_BYTES, "epoch") as cache:
        cache.set_order(keys)
        rate = read(cache, keys)
        capacity = cache.stats().items
    assert 5 < capacity < 16
    assert round(rate * len(keys)) == belady(keys, capacity)


def test_without_an_order_nothing_is_dropped() -> None:
    with SharedCache(16 * ITEM_BYTES, "epoch") as cache:
        read(cache, list(range(100)) * 3)
        assert cache.stats().evictions == 0
        assert cache.get(0) is not None


@pytest.mark.parametrize("seed", range(3))
def test_of_equal_items_exactly_the_least_recently_used_goes(seed: int) -> None:
    rng = random.Random(seed)
    item = np.zeros(1000, np.uint8)
    model: OrderedDict[int, None] = OrderedDict()
    with SharedCache(1 << 18, "lru") as cache:
        while cache.stats().evictions == 0:
            cache.put(-len(model) - 1, item)
            model[-len(model) - 1] = None
        model.popitem(last=False)
        for _ in range(3000):
            key = rng.randrange(int(len(model) * 1.3))
            there = key in model
            assert (cache.get(key) is not None) == there
            if not there:
                assert cache.put(key, item)
                model.popitem(last=False)
            model[key] = None
            model.move_to_end(key)


def test_an_order_tells_the_next_use_of_each_key() -> None:
    keys = [3, 1, 3, 2, 1, 3]
    new = NewOrder(keys)
    memory = memoryview(bytearray(new.size_bytes))
    new.write(memory, 0)
    order = Order(memory, 0)
    digests = [hash_key(encode_key(key)) for key in (1, 2, 3, 4)]
    assert [order.next_use(digest) for digest in digests] == [1, 3, 0, NEVER]
    assert order.use(digests[2]) == 2
    assert order.use(digests[2]) == 5
    assert order.use(digests[2]) == NEVER
    assert order.use(digests[2]) == NEVER
    assert order.use(digests[3]) == NEVER
    assert order.next_uses(np.array(digests)).tolist() == [1, 3, NEVER, NEVER]


def test_an_order_of_nothing_tells_nothing() -> None:
    with SharedCache(1 << 20, "epoch") as cache:
        cache.put(1, np.zeros(5))
        cache.set_order([])
        assert cache.get(1) is not None
