"""Shared caches that a watched script makes are in its record."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

import pitstop
from pitstop.data.cache.shared import SharedCache
from pitstop.doctor.facts import facts_of
from pitstop.doctor.rules.memory import large_cache
from pitstop.records.loader import CacheReading
from pitstop.records.run import Reading
from pitstop.records.store import decode, read_run
from tests.unit.doctor.records import memory

MIB = 1 << 20


def test_a_cache_of_a_watched_script_is_read_while_it_is_open(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SharedCache(MIB).close()
    with pitstop.attach(tmp_path / "run"), SharedCache(2 * MIB, "lru") as cache:
        for step in range(40):
            if cache.get(step % 10) is None:
                cache.put(step % 10, np.zeros(10))
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    rank = read_run(tmp_path / "run").first
    readings = [decode(one, CacheReading) for one in rank.readings if one.kind == "cache"]
    assert [reading.policy for reading in readings] == ["lru"], "the other one was closed"
    [reading] = readings
    assert (reading.items, reading.misses, reading.budget_bytes) == (10, 10, 2 * MIB)
    assert reading.dataset_items is None, "what the script will ask for is its own affair"
    assert large_cache(facts_of(rank)) is None, "the host's memory was not read"
    small = asdict(memory(0.0, MIB, MIB, host_total_bytes=3 * MIB))
    seen = Reading(attempt=0, kind="memory", at_us=10**8, values=small)
    found = large_cache(facts_of(replace(rank, readings=(*rank.readings, seen))))
    assert found is not None
    assert found.code == "MEM002"
