import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.measure.machine.advice import (
    GIB,
    WORKER_BYTES,
    advise,
    cache_budget_bytes,
    workers_per_rank,
)
from pitstop.records.host.machine import Advice, Cpu, DecodeRate, Ram, Volume
from pitstop.records.quantity import Measured


def cpu(usable: float | None) -> Cpu:
    none = dict.fromkeys(field.name for field in dataclasses.fields(Cpu))
    return Cpu(**{**none, "usable_cores": usable})


def ram(free: int | None, shm: int | None = 64 * GIB, total: int | None = None) -> Ram:
    none = dict.fromkeys(field.name for field in dataclasses.fields(Ram))
    return Ram(**{**none, "available_bytes": free, "shm_bytes": shm, "total_bytes": total})


def volume(size: int, *, complete: bool = True) -> Volume:
    return Volume(
        path="data",
        filesystem="ext4",
        files_seen=1,
        bytes_seen=size,
        complete=complete,
        reads=(),
    )


def given_advice(
    cores: float | None, free: int | None, gpus: int = 1, data: Volume | None = None, **more: object
) -> dict[str, Advice]:
    shm = more.get("shm", 64 * GIB)
    assert shm is None or isinstance(shm, int)
    png = DecodeRate(
        codec="png",
        width=1280,
        height=720,
        encoded_bytes=1_300_000,
        images=Measured(value=46.0, unit="image/s", low=45.0, high=47.0, samples=3),
    )
    found = advise(cpu(cores), ram(free, shm), gpus=gpus, decoding=(png,), volume=data)
    return {advice.setting: advice for advice in found}


@given(cores=st.floats(0.1, 512), ranks=st.integers(1, 16))
def test_workers_and_training_loops_together_fit_the_usable_cores(cores: float, ranks: int) -> None:
    workers = workers_per_rank(cores, ranks)
    assert workers is not None
    assert workers >= 1
    if cores >= 2 * ranks:
        assert ranks * (workers + 1) <= cores < ranks * (workers + 2)


@given(free=st.integers(0, 4096 * GIB), workers=st.integers(0, 128))
def test_the_cache_leaves_a_tenth_of_memory_and_the_workers_share(free: int, workers: int) -> None:
    budget = cache_budget_bytes(free, None, workers)
    assert budget % GIB == 0
    assert budget == 0 or budget + workers * WORKER_BYTES <= 0.9 * free
    assert budget + GIB + workers * WORKER_BYTES > 0.9 * free


@given(free=st.integers(0, 64 * GIB), limit=st.integers(0, 64 * GIB))
def test_the_cache_is_at_most_half_of_the_limit(free: int, limit: int) -> None:
    budget = cache_budget_bytes(free, limit, 0)
    assert budget <= limit / 2
    assert budget == min(cache_budget_bytes(free, None, 0), limit // 2 // GIB * GIB)


def test_workers_are_advised_for_the_host_not_for_a_rank() -> None:
    workers = given_advice(16.0, 120 * GIB, gpus=4)["loader.workers"]
    assert workers.value == "12"
    assert "= 3 at most a rank, 12 for the host" in workers.arithmetic


def test_sixteen_cores_and_one_gpu_get_fifteen_workers_with_the_sum_in_words() -> None:
    workers = given_advice(16.0, 120 * GIB)["loader.workers"]
    assert workers.value == "15"
    assert "16 usable cores / 1 rank, less one core" in workers.arithmetic
    assert "15 x 46.0 = no more than 690 PNG images of 1280x720" in workers.arithmetic


def test_a_quota_below_one_core_is_not_called_room_to_spare() -> None:
    workers = given_advice(0.5, 4 * GIB)["loader.workers"]
    assert workers.value == "1"
    assert "no core to spare" in workers.arithmetic


def test_a_dataset_larger_than_the_cache_gets_the_bound_on_its_hit_rate() -> None:
    cache = given_advice(4.0, 60 * GIB, data=volume(290 * GIB))["cache.budget"]
    assert cache.value == "52GiB"
    assert "hit at most 17.9%" in cache.arithmetic
    assert "3 x 512 MiB for workers (assumed)" in cache.arithmetic


def test_a_dataset_is_only_said_to_fit_when_all_of_it_was_seen() -> None:
    whole = given_advice(4.0, 60 * GIB, data=volume(17 * GIB))["cache.budget"]
    part = given_advice(4.0, 60 * GIB, data=volume(17 * GIB, complete=False))["cache.budget"]
    assert "fit as they are stored" in whole.arithmetic
    assert "fit" not in part.arithmetic


@pytest.mark.parametrize(("shm", "reported"), [(64 << 20, True), (8 * GIB, False), (None, False)])
def test_a_small_shared_memory_mount_is_reported(shm: int | None, *, reported: bool) -> None:
    assert ("/dev/shm" in given_advice(4.0, 60 * GIB, shm=shm)) is reported


def test_nothing_known_means_no_advice() -> None:
    assert given_advice(None, None) == {}
