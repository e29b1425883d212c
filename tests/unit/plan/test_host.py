"""Host memory of a job: sums of made-up processes, and one real trial."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.config.load import load_config
from pitstop.config.sections import RunConfig
from pitstop.plan.host.total import WORKER_BYTES, Host, plan_host, start_method
from pitstop.plan.host.trial import ProcessSizes, TrialRequest, try_processes
from pitstop.records.plans.host import HostPlan

CONFIG = Path(__file__).parents[3] / "configs" / "reid" / "demo.yaml"
MIB = 2**20
SIZES = ProcessSizes(
    process_bytes=400 * MIB,
    private_bytes=250 * MIB,
    tensor_bytes=(MIB, 8),
    decoded_bytes=None,
    first_worker_bytes=120 * MIB,
    next_worker_bytes=20 * MIB,
    reading_bytes=5 * MIB,
)
HOST = Host(limit_bytes=16 * 2**30, limit_of="this machine", cores=8, has_gpu=False)


def config(*overrides: str) -> RunConfig:
    return load_config(CONFIG, ("train.batch_size=16", *overrides)).config


def owners(plan: HostPlan) -> dict[str, int]:
    return {row.owner: row.num_bytes for row in plan.rows}


@given(workers=st.integers(1, 12), prefetch=st.integers(1, 32), step=st.integers(0, 2**32))
def test_rows_add_up_and_batches_are_counted_once(workers: int, prefetch: int, step: int) -> None:
    loaded = config(f"loader.workers={workers}", f"loader.prefetch={prefetch}")
    plan = plan_host(loaded, SIZES, HOST, step_bytes=step)
    held = owners(plan)
    batch = 16 * (MIB + 8)
    assert plan.total_bytes == sum(held.values())
    assert held["batches ahead"] == workers * prefetch * batch
    assert held[f"workers ({workers})"] == (120 + (workers - 1) * 20) * MIB
    # Not the sum of resident sizes: a worker shares its parent's pages.
    assert held[f"workers ({workers})"] < workers * SIZES.process_bytes


def test_without_workers_nothing_waits() -> None:
    held = owners(plan_host(config("loader.workers=0"), SIZES, HOST))
    assert "batches ahead" not in held
    assert held["reading samples"] == 5 * MIB
    assert held["batches in use"] == 16 * (MIB + 8)


def test_ranks_share_libraries_and_the_cache() -> None:
    loaded = config("loader.workers=8", "cache.budget=1GiB")
    one, four = (plan_host(loaded, SIZES, replace(HOST, ranks=ranks)) for ranks in (1, 4))
    assert owners(four)["training processes"] == (400 + 3 * 250) * MIB
    assert owners(one)["cache"] == owners(four)["cache"] == 1024 * MIB
    assert four.workers == 2


def test_a_cache_holds_no_more_than_there_is_to_hold() -> None:
    small = replace(SIZES, decoded_bytes=100 * MIB)
    held = owners(plan_host(config("cache.budget=50GiB"), small, HOST))
    assert held["cache"] == 100 * MIB


def test_page_locked_memory_is_for_gpus_alone() -> None:
    loaded = config("loader.workers=2")
    assert "page-locked copies" not in owners(plan_host(loaded, SIZES, HOST))
    gpu = plan_host(loaded, SIZES, replace(HOST, has_gpu=True))
    assert owners(gpu)["page-locked copies"] > 0
    assert start_method(loaded, has_gpu=True) == "forkserver"
    assert any("CUDA driver" in note for note in gpu.notes)


def test_a_job_that_needs_more_than_the_host_has_does_not_fit() -> None:
    loaded = config("loader.workers=2", "loader.prefetch=2000")
    plan = plan_host(loaded, SIZES, HOST)
    assert plan.total_bytes > HOST.limit_bytes
    assert plan.fit == "does not fit"


def test_workers_that_could_not_be_tried_are_an_allowance() -> None:
    unknown = replace(SIZES, first_worker_bytes=None, next_worker_bytes=None)
    plan = plan_host(config("loader.workers=3"), unknown, HOST)
    [row] = [row for row in plan.rows if row.owner.startswith("workers")]
    assert (row.num_bytes, row.basis) == (3 * WORKER_BYTES, "allowance")


@pytest.mark.slow
def test_a_trial_measures_a_process_and_its_workers(tmp_path: Path) -> None:
    from pitstop.workloads.deblur.synthetic import make_clips

    make_clips(tmp_path / "clips", clips={"train": 2, "test": 1}, frames=6, size=(48, 64), seed=0)
    demo = CONFIG.parents[1] / "deblur" / "demo.yaml"
    request = TrialRequest(config=str(demo), overrides=(f"data.root={tmp_path / 'clips'}",))
    answer = try_processes(request)
    assert answer.error is None
    sizes = answer.sizes
    assert sizes is not None
    # Python, numpy and torch are in it; a worker shares most of it with its parent.
    assert 100 * MIB < sizes.private_bytes <= sizes.process_bytes
    assert sizes.next_worker_bytes is not None
    assert sizes.next_worker_bytes < sizes.process_bytes
    # A clip of two frames of 32x32 in three colours, blurred and sharp, as bytes.
    assert sizes.tensor_bytes[:2] == (2 * 3 * 32 * 32,) * 2
