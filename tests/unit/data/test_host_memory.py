"""Memory is added up once for what is shared, and per process for what is not."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pitstop.config.sections import CacheSection, LoaderSection, TrainSection
from pitstop.data.host_memory import DataStats, LoaderPlan, Seen, plan_memory
from pitstop.data.loader.sample_bytes import data_stats, estimate_sample_bytes
from pitstop.errors import ConfigError

torch.set_num_threads(1)

GIB = 1 << 30
MIB = 1 << 20

PLAN = LoaderPlan(
    ranks=3,
    workers=12,
    prefetch=4,
    prefetch_bytes=None,
    batch_size=1,
    pinned=False,
    cache_budget_bytes=50 * GIB,
)
SEEN = Seen(
    samples_damaged=0,
    samples=2_222,
    tensor_bytes=(133 * MIB,),
    samples_read=8,
    decoded_bytes=290 * GIB,
    host_limit_bytes=256 * GIB,
    shm_free_bytes=128 * GIB,
)


def stats_of(loader: LoaderPlan = PLAN, seen: Seen = SEEN) -> DataStats:
    return plan_memory("run.yaml", loader, seen, drop_last=True)


def test_the_cache_is_counted_once_whatever_the_number_of_processes() -> None:
    """36 workers and 3 ranks with a cache of 50 GiB are 50 GiB of cache, not 108 times that."""
    stats = stats_of()
    assert stats.cache_bytes == 50 * GIB
    assert stats.waiting_batches == 3 * 12 * 4
    assert stats.total_bytes == 50 * GIB + (144 + 3) * 133 * MIB
    assert stats.fits
    many = stats_of(replace(PLAN, workers=36))
    assert many.cache_bytes == 50 * GIB


def test_a_cache_larger_than_the_host_does_not_fit() -> None:
    stats = stats_of(replace(PLAN, cache_budget_bytes=290 * GIB))
    assert stats.cache_bytes == 290 * GIB
    assert not stats.fits


def test_a_cache_holds_no_more_than_there_is() -> None:
    assert stats_of(seen=replace(SEEN, decoded_bytes=16 * GIB)).cache_bytes == 16 * GIB
    assert stats_of(seen=replace(SEEN, decoded_bytes=None)).cache_bytes == 50 * GIB


def test_a_sum_above_nine_tenths_of_the_host_does_not_fit() -> None:
    total = stats_of().total_bytes
    exact = -(-total * 10 // 9)
    assert stats_of(seen=replace(SEEN, host_limit_bytes=exact + 1)).fits
    assert not stats_of(seen=replace(SEEN, host_limit_bytes=exact - 10)).fits


def test_waiting_batches_must_fit_in_shared_memory() -> None:
    assert not stats_of(seen=replace(SEEN, shm_free_bytes=64 * MIB)).shm_fits
    assert stats_of(seen=replace(SEEN, shm_free_bytes=None)).shm_fits
    none = replace(PLAN, workers=0, prefetch=None)
    assert stats_of(none, replace(SEEN, shm_free_bytes=0)).shm_fits
    assert stats_of(none).waiting_bytes == 0


def test_pinned_copies_are_rounded_up_tensor_by_tensor() -> None:
    seen = replace(SEEN, tensor_bytes=(3 * MIB, 1 * MIB))
    stats = stats_of(replace(PLAN, pinned=True), seen)
    # 3 becomes 4 and 1 stays 1: one more a batch, for 144 waiting and 3 in use, and 3 of 5 twice.
    assert stats.pinned_bytes == (144 + 3) * MIB + 3 * 5 * MIB
    assert stats_of(PLAN, seen).pinned_bytes == 0


def test_a_limit_in_bytes_bounds_what_waits() -> None:
    stats = stats_of(replace(PLAN, prefetch_bytes=10 * 133 * MIB + 5))
    assert stats.waiting_batches == 10
    assert stats_of(replace(PLAN, prefetch_bytes=900 * GIB)).waiting_batches == 144


def test_batches_of_an_epoch_are_those_the_loader_deals() -> None:
    assert stats_of().epoch_batches == 2_222 // 3
    assert plan_memory("x", PLAN, SEEN, drop_last=False).epoch_batches == 741


@given(st.integers(1, 8), st.integers(0, 16), st.integers(1, 8), st.integers(1, 64))
def test_parts_add_up_to_the_total(ranks: int, workers: int, prefetch: int, batch: int) -> None:
    loader = replace(
        PLAN, ranks=ranks, workers=workers, prefetch=prefetch, batch_size=batch, pinned=True
    )
    stats = stats_of(loader)
    parts = (stats.waiting_bytes, stats.in_use_bytes, stats.pinned_bytes, stats.cache_bytes)
    assert sum(parts) == stats.total_bytes
    assert stats.waiting_bytes == ranks * workers * prefetch * batch * 133 * MIB


class Growing:
    """Samples that differ in size, and grow with the epochs."""

    def __init__(self, count: int = 100) -> None:
        self.count = count
        self.read: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self.count

    def sample(self, epoch: int, index: int) -> dict[str, Any]:
        self.read.append((epoch, index))
        return {"x": torch.zeros(10 * (epoch + 1) + index % 2, dtype=torch.uint8), "name": "a"}


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "x": torch.stack([sample["x"] for sample in samples]),
        "more": [(torch.zeros(len(samples)),)],
        "names": [sample["name"] for sample in samples],
    }


def test_samples_of_every_size_an_epoch_can_have_are_read() -> None:
    samples = Growing()
    found, count, _ = estimate_sample_bytes(samples, collate, (0, 5))
    assert {epoch for epoch, _ in samples.read} == {0, 5}
    assert count == len(samples.read) <= 16
    assert found == (60, 4)
    assert estimate_sample_bytes(Growing(1), collate, (0,)) == ((10, 4), 1, 0)


def test_settings_are_taken_as_they_come_out_on_this_host() -> None:
    sections = (
        LoaderSection(workers=6, prefetch=3),
        CacheSection(budget=7),
        TrainSection(batch_size=2, steps=1),
    )
    stats = data_stats("run.yaml", Growing(), collate, sections=sections, ranks=2)
    assert (stats.loader.ranks, stats.loader.workers, stats.waiting_batches) == (2, 3, 18)
    assert stats.batch_bytes == 2 * stats.sample_bytes
    assert (stats.cache_bytes, stats.decoded_bytes) == (7, None)
    with pytest.raises(ConfigError, match="cannot be shared by the 8 ranks"):
        data_stats("run.yaml", Growing(), collate, sections=sections, ranks=8)
