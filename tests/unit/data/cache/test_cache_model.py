"""Random programs on a cache, against a plain dictionary."""

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pitstop.data.cache.blocks import SMALLEST_ARENA
from pitstop.data.cache.eviction import Policy
from pitstop.data.cache.items import Key, decode_layout, encode_key, layout_of
from pitstop.data.cache.shared import SharedCache
from tests.unit.data.cache_soundness import assert_sound, item_of

KEYS = st.integers(0, 60)
DTYPES = st.sampled_from(["u1", "<i4", ">f8", "?", "<c8", "S3", "<U2", "<M8[s]"])
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0)))


class CacheMachine(RuleBasedStateMachine):
    """A cache far too small for its keys, next to a dictionary of all that ever went in."""

    def __init__(self) -> None:
        super().__init__()
        self.caches: list[SharedCache] = []
        self.stored: set[int] = set()
        self.policy: Policy = "keep"
        self.lookups = 0

    @initialize(policy=st.sampled_from(["keep", "lru", "epoch"]), budget=st.integers(0, 64 << 10))
    def make(self, policy: Policy, budget: int) -> None:
        self.policy = policy
        self.caches = [SharedCache(SMALLEST_ARENA + budget, policy)]

    @rule(key=KEYS, handle=st.integers(0, 9))
    def put(self, key: int, handle: int) -> None:
        was_there = key in self.stored
        stored = self.cache(handle).put(key, item_of(key))
        if stored:
            self.stored.add(key)
        assert stored or not (was_there and self.policy == "keep")
        assert stored or self.policy != "lru"

    @rule(key=KEYS, handle=st.integers(0, 9))
    def get(self, key: int, handle: int) -> None:
        self.lookups += 1
        found = self.cache(handle).get(key)
        if found is None:
            assert self.policy != "keep" or key not in self.stored
        else:
            assert key in self.stored
            np.testing.assert_array_equal(found, item_of(key))

    @rule(key=KEYS, handle=st.integers(0, 9), first=st.integers(-50, 50), last=st.integers(-9, 150))
    def crop(self, key: int, handle: int, first: int, last: int) -> None:
        self.lookups += 1
        window = (slice(first, None), slice(first, last))
        found = self.cache(handle).get(key, window=window)
        assert found is not None or self.policy != "keep" or key not in self.stored
        if found is not None:
            np.testing.assert_array_equal(found, item_of(key)[window])

    @precondition(lambda self: self.policy == "epoch")
    @rule(keys=st.lists(KEYS, max_size=200), handle=st.integers(0, 9))
    def set_order(self, keys: list[int], handle: int) -> None:
        self.cache(handle).set_order(keys)

    @rule(handle=st.integers(0, 9))
    def share(self, handle: int) -> None:
        self.caches.append(pickle.loads(pickle.dumps(self.cache(handle))))

    @precondition(lambda self: len(self.caches) > 1)
    @rule(handle=st.integers(0, 9))
    def leave(self, handle: int) -> None:
        self.caches.pop(handle % len(self.caches)).close()

    @invariant()
    def is_sound(self) -> None:
        if self.caches:
            assert_sound(self.caches[0])
            stats = self.caches[0].stats()
            assert stats.hits + stats.misses == self.lookups
            assert stats.used_bytes <= stats.budget_bytes

    def cache(self, handle: int) -> SharedCache:
        return self.caches[handle % len(self.caches)]

    def teardown(self) -> None:
        for cache in self.caches:
            cache.close()


def test_a_cache_never_gives_anything_but_what_was_put() -> None:
    run_state_machine_as_test(
        CacheMachine, settings=settings(max_examples=12, stateful_step_count=40, deadline=None)
    )


@given(array=ARRAYS, data=st.data())
def test_any_array_and_any_window_come_back(array: np.ndarray, data: st.DataObject) -> None:
    layout = layout_of(array)
    assert decode_layout(layout.encode()) == layout
    memory = np.zeros(layout.stored_bytes + 128, np.uint8)
    layout.write(array, memory.data, 64)
    assert not memory[:64].any()
    assert not memory[64 + layout.stored_bytes :].any()
    np.testing.assert_array_equal(layout.whole(memory, 64), array)
    axes = data.draw(st.integers(0, array.ndim))
    window = tuple(data.draw(st.slices(size)) for size in array.shape[:axes])
    np.testing.assert_array_equal(layout.crop(memory, 64, window), array[window])


def keys_of(leaves: st.SearchStrategy[Key]) -> st.SearchStrategy[Key]:
    return st.lists(leaves, max_size=3).map(tuple)


ANY_KEY: st.SearchStrategy[Key] = st.recursive(
    st.one_of(st.text(max_size=4), st.integers()), keys_of, max_leaves=5
)


@given(first=ANY_KEY, second=ANY_KEY)
def test_two_keys_have_the_same_bytes_only_if_they_are_the_same(first: Key, second: Key) -> None:
    assert (encode_key(first) == encode_key(second)) == (first == second)
