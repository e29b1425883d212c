"""Rules over several ranks: one verdict for the job, and who holds it up."""

from dataclasses import asdict, replace

import pytest

from pitstop.doctor.examine import examine
from pitstop.doctor.ranks.together import ranks_of
from pitstop.doctor.rules.ranks import communication, straggler
from pitstop.records.run import RankRecord
from tests.unit.doctor.records import (
    ON_CPU,
    host_line,
    host_lines,
    load,
    noisy,
    rank,
    raw,
    run_of,
)


def job(data_us: list[float], *, exposed_us: float = 0.0) -> list[RankRecord]:
    """Ranks whose steps are equally long, because all wait in backward for the slowest."""
    slowest = max(data_us)
    exchange = raw(
        "communication", backward_us=3_000.0, exchange_us=exposed_us + 500, overlapped_us=500.0
    )
    return [
        rank(
            {"data": us, "forward": 3_000, "backward": 5_000 + slowest - us, "optimizer": 1_000},
            number=number,
            world=len(data_us),
            readings=[exchange] if exposed_us else [],
        )
        for number, us in enumerate(data_us)
    ]


def test_the_rank_with_most_work_of_its_own_is_the_straggler() -> None:
    ranks = ranks_of(job([100, 100, 4_100, 100]))
    assert len({facts.step_us for facts in ranks.facts}) == 1, "the wall clock does not tell"
    found = straggler(ranks)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(4_000 / 13_100)
    assert "rank 2" in found.summary
    assert found.summary.endswith("data")
    assert found.evidence[0] == "rank 2 works 8.10 ms per step, the others 4.10 ms to 4.10 ms"


def test_one_verdict_for_the_job_names_rank_and_cause() -> None:
    verdict = examine(run_of(*job([100, 100, 4_100, 100])))
    assert (verdict.primary, verdict.rank) == ("COMM002", 2)
    assert verdict.shares["data"] == pytest.approx(4_100 / 13_100)
    assert verdict.combined_bound is not None
    # The rank's own wait and what it costs the others are the same time.
    assert verdict.combined_bound.share == pytest.approx(4_100 / 13_100)


@pytest.mark.parametrize(
    ("line", "code"), [("time.sleep(0.03)", "HOST001"), ("print(loss)", "LOG001")]
)
def test_python_of_one_rank_counts_once_and_the_rank_is_named_first(line: str, code: str) -> None:
    """One rank spends 30 of its 34 ms between the parts, and the other waits for it."""
    loop = host_line("loss.backward()", 40, part="backward")
    looks = [ON_CPU, host_lines(loop, host_line(line, 100))]
    slow = {"host": 30_000, "forward": 2_000, "backward": 2_000}
    ahead = {"host": 100, "forward": 2_000, "backward": 31_900}
    verdict = examine(
        run_of(
            rank(slow, number=0, world=2, readings=looks),
            rank(ahead, number=1, world=2, readings=[ON_CPU]),
        )
    )
    assert [found.code for found in verdict.findings if found.bound] == ["COMM002", code]
    assert verdict.combined_bound is not None
    assert verdict.combined_bound.share == pytest.approx(30 / 34, abs=0.01)


def test_ranks_that_all_wait_for_data_have_no_straggler() -> None:
    verdict = examine(run_of(*job([4_000, 4_100, 3_900, 4_000])))
    assert (verdict.primary, verdict.outcome) == ("DATA001", "bottleneck")


def test_what_was_read_of_the_host_holds_for_every_rank_on_it() -> None:
    watched, other = job([100, 4_100])
    watched = replace(watched, readings=(raw("load", **asdict(load(usable_cores=8.0))),))
    verdict = examine(run_of(watched, other))
    [data] = [found for found in verdict.findings if found.code == "DATA001"]
    assert verdict.rank == 1
    assert "num_workers=7" in data.remedy[0]
    elsewhere = replace(other, attempts=(replace(other.attempts[0], host="other"),))
    verdict = examine(run_of(watched, elsewhere))
    [data] = [found for found in verdict.findings if found.code == "DATA001"]
    assert "num_workers=N" in data.remedy[0]


def test_equal_ranks_are_judged_by_the_first() -> None:
    records = [
        rank(
            {"data": noisy(300, 200, seed), "forward": noisy(9_000, 200, seed + 50)},
            steps=200,
            number=seed,
            world=3,
        )
        for seed in range(3)
    ]
    assert examine(run_of(*records)).rank == 0
    nearly = [
        rank({"data": 300, "forward": us, "backward": 9_100 - us}, number=number, world=3)
        for number, us in enumerate((4_000, 4_010, 4_005))
    ]
    assert examine(run_of(*nearly)).rank == 0
    assert ranks_of(records[:1]).slow == ()


def test_the_device_decides_where_there_is_one() -> None:
    def on_gpu(number: int, forward_us: float) -> RankRecord:
        parts = {"data": 100, "forward": 1_000, "backward": 8_900}
        device = {"data": 0, "forward": forward_us, "backward": 10_000 - forward_us}
        return rank(parts, number=number, world=2, device=device)

    found = straggler(ranks_of([on_gpu(0, 3_000), on_gpu(1, 6_000)]))
    assert found is not None
    assert found.bound is not None
    assert (found.bound.part, found.bound.share) == ("forward", pytest.approx(0.3))


def test_the_exchange_costs_what_the_rank_that_waits_least_waits() -> None:
    records = job([100, 100], exposed_us=2_000.0)
    found = communication(ranks_of(records))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(2_000 / 9_100)
    late = rank({"sync": 5_000, "forward": 5_000}, number=0, world=2)
    own = rank({"sync": 1_500, "forward": 8_500}, number=1, world=2)
    found = communication(ranks_of([late, own]))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.15)


def test_an_exchange_costs_no_more_than_the_backward_pass_it_lies_in() -> None:
    """It is timed in one pass of ten: on a crowded host that may be a long one."""
    found = communication(ranks_of(job([100, 100], exposed_us=8_000.0)))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(5_000 / 9_100)


def test_a_divided_model_names_what_gathering_and_dividing_take_in_both_passes() -> None:
    exchange = raw(
        "communication", exchange_us=7_000.0, overlapped_us=0.0, gather_us=5_000.0, reduce_us=2e3
    )
    parts = {"forward": 4_000, "backward": 5_000, "optimizer": 1_000}
    records = [rank(parts, number=number, world=2, readings=[exchange]) for number in range(2)]
    found = communication(ranks_of(records))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.7)
    assert any("gathering weights takes 5" in line for line in found.evidence)


def test_a_run_of_one_rank_exchanges_nothing() -> None:
    alone = rank({"sync": 5_000, "forward": 5_000})
    assert communication(ranks_of([alone])) is None
    assert communication(ranks_of(job([100, 100]))) is None


def test_an_exchange_for_every_micro_batch_counts_as_often() -> None:
    exchange = raw(
        "communication",
        backward_us=1_000.0,
        exchange_us=600.0,
        overlapped_us=100.0,
        exchanges_per_step=8.0,
    )
    records = [
        rank(
            {"forward": 4_000, "backward": 6_000},
            number=number,
            world=2,
            micro_steps=8,
            readings=[exchange],
        )
        for number in range(2)
    ]
    found = communication(ranks_of(records))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(8 * 500 / 10_000)
    assert "8.0 syncs per update; one is enough" in found.evidence
    assert "no_sync" in found.remedy[0]


@pytest.mark.parametrize(
    ("cores", "backward_us", "us"),
    [(8.0, 6_000, 8 * 500), (2.0, 6_000, 8 * 600), (2.0, 4_500, 4_500), (2.0, 8_000, 6_000)],
    ids=["cores to spare", "none to spare", "all of backward", "all but a forward's worth"],
)
def test_an_exchange_beside_computing_is_free_where_there_are_cores_for_it(
    cores: float, backward_us: int, us: int
) -> None:
    exchange = raw(
        "communication",
        backward_us=1_000.0,
        exchange_us=600.0,
        overlapped_us=100.0,
        exchanges_per_step=8.0,
    )
    busy = raw("load", **asdict(load(usable_cores=cores, host_cpu_cores=2.0, tree_cpu_cores=2.0)))
    parts = {"forward": 10_000 - backward_us, "backward": backward_us}
    records = [
        rank(parts, number=number, world=2, readings=[exchange, busy]) for number in range(2)
    ]
    found = communication(ranks_of(records))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(us / 10_000)
    assert found.evidence[0].startswith("40.0%"), (
        "what was waited for is reported as it was measured"
    )


@pytest.mark.parametrize(("excess_us", "severity"), [(2_500, "info"), (9_000, "critical")])
def test_on_a_crowded_host_only_a_long_wait_is_a_ranks_fault(
    excess_us: float, severity: str
) -> None:
    crowded = load(usable_cores=2.0, host_cpu_cores=2.0, tree_cpu_cores=0.5)
    readings = tuple(raw("load", **asdict(crowded)) for _ in range(5))
    ranks = [replace(record, readings=readings) for record in job([100, 100 + excess_us])]
    found = straggler(ranks_of(ranks))
    assert found is not None
    assert found.severity == severity


@pytest.mark.parametrize(
    ("cores", "excess_us", "severity"),
    [(2.0, 2_500, "info"), (2.0, 9_000, "critical"), (8.0, 2_500, "warning")],
)
def test_ranks_that_fill_a_host_are_accused_of_long_waits_alone(
    cores: float, excess_us: float, severity: str
) -> None:
    half_busy = load(usable_cores=cores, host_cpu_cores=1.0, tree_cpu_cores=1.0)
    readings = tuple(raw("load", **asdict(half_busy)) for _ in range(5))
    ranks = [replace(record, readings=readings) for record in job([100, 100 + excess_us])]
    found = straggler(ranks_of(ranks))
    assert found is not None
    assert found.severity == severity
