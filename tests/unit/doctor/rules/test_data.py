"""Rules on loader the loop: who is late, which stage, which volume, which cache setting."""

from dataclasses import replace

import numpy as np
import pytest

from pitstop.doctor.loader_facts import volume_of
from pitstop.doctor.rules.data import (
    announced_length,
    data_wait,
    epoch_stalls,
    hit_rate,
    too_many_workers,
)
from tests.unit.doctor.records import (
    CACHE,
    KERNELS,
    LOADER,
    ON_CPU,
    SETUP,
    WORKER,
    cache_after,
    facts,
    host_line,
    host_lines,
    load,
    raw,
)

STARVED = {"data": 4_000, "forward": 2_000, "backward": 4_000}


def test_the_bound_is_the_share_of_the_wait_in_the_whole_run() -> None:
    found = data_wait(facts(STARVED, apart={"evaluation": {50: 100_000}}))
    assert found is not None
    assert found.bound is not None
    # 90 steps of 10 ms, 4 of them waiting, and an evaluation of 100 ms between them.
    assert found.bound.share == pytest.approx(90 * 4_000 / (90 * 10_000 + 100_000))


def test_one_odd_step_makes_no_verdict() -> None:
    waits = np.full(100, 100.0)
    waits[60] = 400_000
    odd = facts({"data": waits, "forward": 9_900})
    assert odd.share("data") == pytest.approx(0.01)
    assert [(stall.step, stall.part, stall.us) for stall in odd.stalls] == [(60, "data", 399_900)]
    assert data_wait(odd) is None


def test_a_wait_behind_a_busy_device_costs_nothing() -> None:
    busy = facts(STARVED, readings=[SETUP, replace(KERNELS, busy_us=9_800.0)])
    assert data_wait(busy) is None
    marked = facts(STARVED, device={"data": 100, "forward": 4_000, "backward": 5_900})
    assert data_wait(marked) is None


def test_on_a_gpu_the_bound_is_the_time_the_device_idles() -> None:
    found = data_wait(facts(STARVED, readings=[SETUP, replace(KERNELS, busy_us=7_000.0)]))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.3), "not the 0.4 that the host waits"
    marked = facts(STARVED, device={"data": 3_500, "forward": 2_000, "backward": 4_500})
    found = data_wait(marked)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.35)


def test_a_gpu_run_that_tells_nothing_of_its_device_is_not_judged() -> None:
    assert data_wait(facts(STARVED, readings=[SETUP])) is None


def test_workers_that_compute_name_their_stage() -> None:
    found = data_wait(facts(STARVED, readings=[ON_CPU, WORKER, load(usable_cores=16.0)]))
    assert found is not None
    text = "\n".join(found.evidence)
    assert "making a batch takes 40.0 ms in one of 1 worker: dataset 90.0%, collate 10.0%" in text
    assert "waits for the CPU" in text
    assert found.remedy[0].endswith("DataLoader(..., num_workers=15, persistent_workers=True)")


def test_workers_that_start_anew_for_every_pass_are_counted_once() -> None:
    passes = [
        replace(WORKER, pid=10 * number + worker, worker=worker, cpu_us=100_000)
        for number in range(5)
        for worker in range(2)
    ]
    found = data_wait(facts(STARVED, readings=[ON_CPU, *passes]))
    assert found is not None
    text = "\n".join(found.evidence)
    assert "in one of 2 workers" in text
    assert "/data/city delivered 95.2 MiB/s" in text, "twice what one worker reads"


def test_workers_that_start_anew_are_not_taken_for_many_that_are_ready_in_time() -> None:
    # Two make a batch every 5 ms together, the loop takes one every 6: no worker is idle for long.
    passes = [
        replace(WORKER, pid=10 * number + worker, worker=worker, read_us=240_000, collate_us=10_000)
        for number in range(6)
        for worker in range(2)
    ]
    crowded = [load(usable_cores=2.0, host_cpu_cores=2.0, tree_cpu_cores=0.5)] * 5
    found = data_wait(facts(STARVED, readings=[ON_CPU, *passes, *crowded]))
    assert found is not None
    assert found.severity == "critical"


def test_workers_of_the_evaluation_do_not_stand_for_a_loop_that_loads_by_itself() -> None:
    alone = replace(ON_CPU, loaders=(replace(LOADER, workers=0),))
    itself = replace(WORKER, worker=-1, read_us=50_000, collate_us=50_000)
    found = data_wait(facts(STARVED, readings=[alone, WORKER, itself]))
    assert found is not None
    text = "\n".join(found.evidence)
    assert "takes 4.00 ms in the training process itself: dataset 50.0%, collate 50.0%" in text


@pytest.mark.parametrize(
    ("read_us", "collate_us", "advice"),
    [(90_000, 10_000, "make a batch cheaper to prepare"), (10_000, 90_000, "make collate cheaper")],
)
def test_a_costly_collate_is_not_told_about_crops(
    read_us: int, collate_us: int, advice: str
) -> None:
    """A tokenizer in collate has no images to decode less of."""
    alone = replace(ON_CPU, loaders=(replace(LOADER, workers=0),))
    itself = replace(WORKER, worker=-1, read_us=read_us, collate_us=collate_us)
    found = data_wait(facts(STARVED, readings=[alone, itself]))
    assert found is not None
    assert found.remedy[-1].startswith(advice)


def test_where_no_core_is_free_what_the_script_can_change_comes_first_and_once() -> None:
    alone = replace(ON_CPU, loaders=(replace(LOADER, workers=0),))
    crowded = [load(usable_cores=2.0, host_cpu_cores=2.0, tree_cpu_cores=0.5)] * 5
    found = data_wait(facts(STARVED, readings=[alone, *crowded]))
    assert found is not None
    assert found.remedy[0].startswith("make a batch cheaper to prepare: open files")
    assert found.remedy[1].startswith("no core is free for loader workers")
    assert str(found.remedy).count("cheaper") == 1


def test_a_loop_that_loads_by_itself_is_shown_its_lines_beside_its_stages() -> None:
    alone = replace(ON_CPU, loaders=(replace(LOADER, workers=0),))
    itself = replace(WORKER, worker=-1)
    lines = host_lines(host_line("if noise[y, x] < 0.05:", 30, part="data"))
    found = data_wait(facts(STARVED, readings=[alone, itself, lines]))
    assert found is not None
    assert any("of the wait at train.py:" in line for line in found.evidence)
    # With workers the loop's own lines wait in a queue, and say nothing about the work.
    apart = data_wait(facts(STARVED, readings=[ON_CPU, WORKER, lines]))
    assert apart is not None
    assert not any("of the wait at" in line for line in apart.evidence)


def test_workers_of_the_evaluation_do_not_stand_for_those_of_the_training() -> None:
    named = replace(ON_CPU, loaders=(replace(LOADER, pids=(WORKER.pid,)),))
    evaluating = replace(WORKER, pid=WORKER.pid + 1, read_us=10 * WORKER.read_us)
    alone = data_wait(facts(STARVED, readings=[named, WORKER]))
    beside = data_wait(facts(STARVED, readings=[named, WORKER, evaluating]))
    assert alone is not None
    assert alone == beside


def test_workers_that_wait_name_the_volume() -> None:
    slow = replace(WORKER, cpu_us=100_000)
    found = data_wait(facts(STARVED, readings=[ON_CPU, slow]))
    assert found is not None
    assert any("storage, or a CPU core" in line for line in found.evidence)
    assert any("/data/city delivered 47.6 MiB/s" in line for line in found.evidence)
    assert "copy /data/city to a local disk" in found.remedy[0]


def test_storage_that_delivers_nothing_is_not_what_workers_wait_for() -> None:
    waiting = replace(WORKER, cpu_us=100_000, read_bytes=40 << 10)
    found = data_wait(facts(STARVED, readings=[ON_CPU, waiting, load()]))
    assert found is not None
    assert any("waits for a CPU core, a lock or the network" in line for line in found.evidence)
    assert not any("local disk" in remedy for remedy in found.remedy)
    uncounted = replace(waiting, read_bytes=None)
    found = data_wait(facts(STARVED, readings=[ON_CPU, uncounted, load()]))
    assert found is not None
    assert any("local disk" in remedy for remedy in found.remedy)


def test_workers_without_work_are_not_told_to_be_more() -> None:
    idle = replace(WORKER, alive_us=4_000_000)
    found = data_wait(facts(STARVED, readings=[ON_CPU, idle, load()]))
    assert found is not None
    # Without a GPU, SETTING001 tells to remove pin_memory.
    assert found.remedy[0] == "prefetch more: DataLoader(..., prefetch_factor=4)"


def test_a_wait_for_a_turn_on_a_crowded_host_is_not_the_scripts_fault() -> None:
    quick = replace(WORKER, read_us=20_000, collate_us=5_000, cpu_us=25_000)
    crowded = [load(usable_cores=2.0, host_cpu_cores=2.0, tree_cpu_cores=0.5)] * 5
    found = data_wait(facts(STARVED, readings=[ON_CPU, quick, *crowded]))
    assert found is not None
    assert found.severity == "info"
    assert "other processes use 1.5 of 2 cores" in found.evidence[-1]
    slow = data_wait(facts(STARVED, readings=[ON_CPU, WORKER, *crowded]))
    assert slow is not None
    assert slow.severity == "critical", "these workers are too slow on any host"
    quiet = [load(usable_cores=2.0, host_cpu_cores=0.9, tree_cpu_cores=0.5)] * 5
    alone = data_wait(facts(STARVED, readings=[ON_CPU, quick, *quiet]))
    assert alone is not None
    assert alone.severity == "critical"


@pytest.mark.parametrize("cores", [float("nan"), float("inf"), 0.0, -1.0, 1e308])
def test_a_damaged_number_of_cores_breaks_no_rule(cores: float) -> None:
    odd = load(usable_cores=cores, host_cpu_cores=2.0, tree_cpu_cores=0.5)
    found = data_wait(facts(STARVED, readings=[ON_CPU, WORKER, odd]))
    assert found is not None
    too_many_workers(facts(STARVED, readings=[ON_CPU, WORKER, odd]))


def test_cores_that_are_taken_are_not_promised() -> None:
    found = data_wait(facts(STARVED, readings=[ON_CPU, WORKER, load(usable_cores=4.0)]))
    assert found is not None
    assert "no core is free" in found.remedy[0]


def test_a_loop_that_reads_by_itself_is_shown_its_line() -> None:
    alone = replace(ON_CPU, loaders=(replace(LOADER, workers=0),))
    line = host_line("image = decode(path)", 80, part="data")
    other = host_line("label = int(name)", 20, part="data")
    found = data_wait(facts(STARVED, readings=[alone, host_lines(other, line)]))
    assert found is not None
    assert "80.0% of the wait at train.py" in found.evidence[2]
    assert "decode(path)" in found.evidence[2]


def test_our_own_engine_is_told_its_own_key() -> None:
    engine = {"loader.workers": {"workers": 2}}
    found = data_wait(facts(STARVED, applied=engine, readings=[load(usable_cores=8.0)]))
    assert found is not None
    assert found.remedy[0].endswith("loader.workers: 7")


@pytest.mark.parametrize(
    ("short_us", "share", "fix"),
    [
        (360_000, "90.0% of the wait was for unfinished batches", "loader.workers"),
        (40_000, "10.0% of the wait", "loader.prefetch"),
    ],
    ids=["workers too slow", "handed over too slowly"],
)
def test_stages_of_our_own_loader_are_named(short_us: int, share: str, fix: str) -> None:
    reading = raw(
        "loader",
        batches=10,
        workers=2,
        prefetch=2,
        stages_us={"unpack": 700_000, "crop": 300_000},
        busy_us=1_000_000,
        cpu_us=990_000,
        queue_us=0,
        wait_us=400_000,
        short_us=short_us,
        largest_bytes=1,
    )
    engine = {"loader.workers": {"workers": 2}}
    found = data_wait(facts(STARVED, readings=[reading], applied=engine))
    assert found is not None
    assert any("unpack 70.0%, crop 30.0%" in line for line in found.evidence)
    assert any(share in line for line in found.evidence)
    assert fix in found.remedy[0]


@pytest.mark.parametrize(
    ("files", "volume"),
    [
        ((), None),
        (("/usr/lib/a.so", "relative.png"), None),
        (("/data/a/1.png",), "/data/a"),
        (("/data/a/1.png", "/data/b/1.png"), "/data"),
        (("/data/a/1.png", "/data/a/2.png", "/mnt/b/1.png"), "/data/a"),
    ],
)
def test_the_volume_is_where_data_files_lie(files: tuple[str, ...], volume: str | None) -> None:
    assert volume_of(files) == volume


def test_epoch_boundaries_cost_what_they_take() -> None:
    boundaries = {"epoch boundary": {30: 200_000, 60: 200_000, 90: 200_000}}
    again = replace(ON_CPU, loaders=(replace(LOADER, persistent=False),))
    found = epoch_stalls(facts({"data": 100, "forward": 9_900}, apart=boundaries, readings=[again]))
    assert found is not None
    assert found.bound is not None
    assert (found.severity, found.bound.part) == ("critical", "epoch boundary")
    assert found.bound.share == pytest.approx(600_000 / (600_000 + 90 * 10_000))
    assert any("restarted every pass" in line for line in found.evidence)
    assert "persistent_workers=True" in found.remedy[0]


def test_the_slow_first_step_after_workers_start_belongs_to_the_boundary() -> None:
    boundaries = dict.fromkeys(range(15, 100, 8), 30_000)
    forward = np.full(100, 9_900.0)
    forward[list(boundaries)] += 4_000
    run = facts(
        {"data": 100, "forward": forward}, apart={"epoch boundary": boundaries}, readings=[ON_CPU]
    )
    found = epoch_stalls(run)
    assert found is not None
    assert found.bound is not None
    spent = 11 * 34_000
    assert found.bound.share == pytest.approx(spent / (spent + 90 * 10_000))
    assert any("those with it take longer" in line for line in found.evidence)


def test_one_boundary_alone_is_told_but_not_blamed() -> None:
    found = epoch_stalls(facts({"forward": 10_000}, apart={"epoch boundary": {50: 300_000}}))
    assert found is not None
    assert found.severity == "info"


def stalling(period: int, steps: int = 200) -> np.ndarray:
    waits = np.full(steps, 100.0)
    waits[period - 1 :: period] = 150_000
    return waits


def test_waits_at_even_distances_are_epoch_boundaries() -> None:
    found = epoch_stalls(facts({"data": stalling(40), "forward": 9_900}, steps=200))
    assert found is not None
    assert found.bound is not None
    # Warm-up takes 20 steps; stalls at 39, 79, 119, 159 and 199 are counted.
    total = 180 * 9_900 + 175 * 100 + 5 * 150_000
    assert found.bound.share == pytest.approx(5 * 149_900 / total)
    assert "every 40 steps" in found.evidence[0]


def test_uneven_waits_and_the_rhythm_of_workers_are_no_epochs() -> None:
    uneven = np.full(200, 100.0)
    uneven[[31, 77, 120, 190]] = 150_000
    assert epoch_stalls(facts({"data": uneven, "forward": 9_900}, steps=200)) is None
    many = {"loader.workers": {"workers": 12}}
    rhythm = facts({"data": stalling(40), "forward": 9_900}, steps=200, applied=many)
    assert epoch_stalls(rhythm) is None
    assert epoch_stalls(facts({"data": 100, "forward": 9_900})) is None


def test_a_policy_that_evicts_under_a_shuffle_is_blamed() -> None:
    lru = cache_after(replace(CACHE, policy="lru"), hits=16, misses=984)
    found = hit_rate(facts(STARVED, readings=lru, applied={"cache.policy": {}}))
    assert found is not None
    assert found.bound is not None
    assert found.summary.endswith("policy")
    assert found.bound.share == pytest.approx(0.4 * (0.172 - 0.016) / (1 - 0.016))
    assert found.remedy[0] == "cache.policy: keep"


def test_a_full_cache_that_keeps_lacks_budget_only() -> None:
    found = hit_rate(facts(STARVED, readings=cache_after(CACHE, hits=172, misses=828)))
    assert found is not None
    assert found.bound is not None
    assert found.summary.endswith("budget")
    assert found.bound.share == pytest.approx(0.4)


def test_an_order_that_scatters_neighbours_is_blamed_on_the_sampler() -> None:
    windows = replace(CACHE, policy="lru", item_uses=6.0, misses=6_000)
    scattered = cache_after(windows, hits=880, misses=5_120)
    found = hit_rate(facts(STARVED, readings=scattered))
    assert found is not None
    assert found.bound is not None
    assert found.summary.endswith("sampler")
    most = 1 - (1 - 0.172) / 6
    assert found.bound.share == pytest.approx(0.4 * (most - 880 / 6_000) / (1 - 880 / 6_000))


@pytest.mark.parametrize(
    "caches",
    [
        [CACHE],
        cache_after(CACHE, hits=0, misses=100),
        cache_after(replace(CACHE, dataset_items=None), hits=0, misses=5_000),
        cache_after(replace(CACHE, items=1_000), hits=1_000, misses=10),
    ],
    ids=["first pass", "too few lookups", "size not known", "all that is possible"],
)
def test_a_cache_that_tells_too_little_or_does_well_is_left_alone(caches: list[object]) -> None:
    assert hit_rate(facts(STARVED, readings=caches)) is None


def test_a_cache_nobody_waits_for_is_only_mentioned() -> None:
    caches = cache_after(CACHE, hits=172, misses=828)
    found = hit_rate(facts({"data": 10, "forward": 9_990}, readings=caches))
    assert found is not None
    assert found.severity == "info"


@pytest.mark.parametrize(
    ("cores", "busy", "severity"),
    [(16.0, 2.0, None), (4.0, 2.0, None), (2.0, 1.0, "info"), (2.0, 2.0, "warning")],
)
def test_more_workers_than_cores_matter_where_the_cores_are_full(
    cores: float, busy: float, severity: str | None
) -> None:
    found = too_many_workers(
        facts(STARVED, readings=[ON_CPU, load(usable_cores=cores, tree_cpu_cores=busy)])
    )
    assert (None if found is None else found.severity) == severity
    assert too_many_workers(facts(STARVED, readings=[ON_CPU])) is None, "cores not known"


@pytest.mark.parametrize(
    ("length", "passes", "batches", "severity"),
    [
        (186, 2, 160, "warning"),
        (80, 2, 166, "info"),
        (186, 0, 0, None),
        (80, 3, 240, None),
        (None, 3, 240, None),
    ],
)
def test_a_loader_that_promises_other_batches_than_it_yields_is_found(
    length: int | None, passes: int, batches: int, severity: str | None
) -> None:
    loader = replace(
        LOADER,
        length=length,
        whole_passes=passes,
        whole_batches=batches,
        trains=True,
        place="/home/me/train.py:41",
    )
    found = announced_length(facts({"data": 100}, readings=[replace(SETUP, loaders=(loader,))]))
    assert (None if found is None else found.severity) == severity
    if found is not None:
        assert "train.py:41" in found.evidence[0]
        assert found.bound is None


def test_batches_of_an_evaluation_within_an_epoch_do_not_make_the_epoch_longer() -> None:
    """25 evaluations on four batches of the training loader each, while one pass of it goes on."""
    loader = replace(LOADER, length=128, passes=27, whole_passes=1, whole_batches=228, trains=True)
    readings = [replace(SETUP, loaders=(loader,))]
    assert announced_length(facts({"data": 100}, readings=readings)) is None
    # A pass that ends before its length cannot come from that.
    short = replace(loader, whole_batches=64)
    found = announced_length(facts({"data": 100}, readings=[replace(SETUP, loaders=(short,))]))
    assert found is not None
    assert found.code == "BAR001"
