"""A planned step of a model that ranks divide, from a made-up dry run."""

from dataclasses import replace

from pitstop.plan.memory import RANKS_BYTES, WORKSPACE_BYTES, Gpu, plan_memory
from pitstop.plan.shards import divide_trace
from pitstop.records.plans.plan import GATHERED, UNDIVIDED
from tests.unit.plan.test_table import GIB, MIB, trace

WHOLE = trace(
    owners={
        "parameters": 70 * MIB,
        "gradients": 30 * MIB,
        "averaged weights": 70 * MIB,
        "optimizer state": 140 * MIB,
        "activations": 60 * GIB,
    },
    peak_bytes=60 * GIB + 310 * MIB,
    shard="full",
    largest_block_bytes=5 * MIB,
    outside_blocks_bytes=2 * MIB,
)


def test_what_stays_from_step_to_step_is_divided_and_what_is_gathered_comes_on_top() -> None:
    found = divide_trace(WHOLE, ranks=4)
    assert found.owners == {
        "parameters": 17.5 * MIB,
        "gradients": 17.5 * MIB,
        "averaged weights": 17.5 * MIB,
        "optimizer state": 35 * MIB,
        "activations": 60 * GIB,
        GATHERED: 17 * MIB,
        UNDIVIDED: 12 * MIB,
    }
    assert found.peak_bytes == sum(found.owners.values())
    assert found.optimizer_bytes["adamw"] == 35 * MIB
    assert "divided between 4 ranks" in found.notes[-1]


def test_ranks_that_do_not_divide_the_model_plan_as_before() -> None:
    assert divide_trace(WHOLE, ranks=1) is WHOLE
    alone = replace(WHOLE, shard="none")
    assert divide_trace(alone, ranks=4) is alone


def test_a_copy_on_each_host_is_divided_between_as_many_ranks_as_said() -> None:
    hybrid = replace(WHOLE, shard="hybrid", shard_ranks=2)
    assert divide_trace(hybrid, ranks=8).owners["parameters"] == 35 * MIB
    of_one_host = divide_trace(replace(hybrid, shard_ranks=None), ranks=8)
    assert of_one_host.owners["optimizer state"] == 17.5 * MIB
    assert "of one host" in of_one_host.notes[-1]


def test_a_plan_lists_them_and_no_buckets_of_whole_gradients() -> None:
    gpu = Gpu(name="some", num_bytes=80 * GIB)
    rows = plan_memory("x", divide_trace(WHOLE, ranks=4), gpu, ranks=4).ledger
    basis = {row.owner: row.basis for row in rows}
    assert (basis[GATHERED], basis[UNDIVIDED]) == ("estimated", "estimated")
    assert "gradient buckets" not in basis
    expected = divide_trace(WHOLE, ranks=4).peak_bytes + WORKSPACE_BYTES + RANKS_BYTES
    assert sum(row.num_bytes for row in rows) == expected
