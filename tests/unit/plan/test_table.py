"""Other batches, optimizers and what to change first, from made-up dry runs."""

from dataclasses import replace

import pytest

from pitstop.errors import PitstopError
from pitstop.plan.advice import advise
from pitstop.plan.gpus import find_gpu
from pitstop.plan.memory import (
    CONTEXT_BYTES,
    RANKS_BYTES,
    WORKSPACE_BYTES,
    Gpu,
    fit_of,
    plan_memory,
)
from pitstop.plan.speed import plan_speed
from pitstop.plan.table import batch_law, plan_table, scaled
from pitstop.records.plans.plan import MemoryPlan, OperationRow, StepTrace
from pitstop.records.store import from_json, to_json

GIB = 2**30
MIB = 2**20


def trace(**changes: object) -> StepTrace:
    base = StepTrace(
        model="Net",
        parameters=18_320_007,
        batch_size=1,
        precision="bf16",
        recompute="none",
        kernels="auto",
        optimizer="adamw",
        owners={"parameters": 70 * MIB, "optimizer state": 140 * MIB, "activations": 60 * GIB},
        peak_bytes=60 * GIB + 210 * MIB,
        peak_place=("backward", "stage8"),
        peak_operation="mm",
        saved_bytes=60 * GIB,
        gradient_bytes=70 * MIB,
        reserved_bytes=62 * GIB,
        optimizer_bytes={"adamw": 140 * MIB, "adamw8bit": 35 * MIB, "adamw_bf16": 70 * MIB},
        operations=(
            OperationRow(
                part="forward", name="mm", flops=10**12, num_bytes=10**9, dtype="bfloat16", count=10
            ),
            OperationRow(
                part="optimizer",
                name="_fused_adamw_",
                flops=0,
                num_bytes=10**8,
                dtype="float32",
                count=1,
            ),
        ),
    )
    return replace(base, **changes)


def recomputed() -> StepTrace:
    owners = {"parameters": 70 * MIB, "optimizer state": 140 * MIB, "activations": 10 * GIB}
    slower = tuple(replace(one, count=2 * one.count) for one in trace().operations)
    return trace(
        recompute="full",
        owners=owners,
        peak_bytes=10 * GIB + 210 * MIB,
        operations=slower,
    )


def plan_for(size_gib: int, *traces: StepTrace) -> MemoryPlan:
    plan = plan_memory("run.yaml", traces[0], Gpu(name="gpu", num_bytes=size_gib * GIB))
    table = plan_table(
        traces, batch_law(traces[0], None), plan.usable_bytes, ceilings=find_gpu("H200")
    )
    laid_out = replace(plan, table=table)
    return replace(laid_out, advice=advise(laid_out))


def test_the_ledger_adds_up_to_the_peak() -> None:
    plan = plan_memory("run.yaml", trace(), Gpu(name="gpu", num_bytes=80 * GIB))
    assert sum(row.num_bytes for row in plan.ledger) == plan.peak_bytes
    assert plan.peak_bytes == trace().peak_bytes + WORKSPACE_BYTES
    assert plan.usable_bytes == 80 * GIB - CONTEXT_BYTES


@pytest.mark.parametrize(
    ("peak", "fit"), [(94, "fits"), (96, "too close"), (104, "too close"), (106, "does not fit")]
)
def test_close_to_the_border_no_verdict_is_given(peak: int, fit: str) -> None:
    assert fit_of(peak, 100) == fit


def test_rows_of_one_of_several_ranks_hold_and_give_what_its_plan_does() -> None:
    gpu = Gpu(name="gpu", num_bytes=80 * GIB)
    among = trace(ranks=4)
    plan = plan_memory("run.yaml", among, gpu)
    assert plan.peak_bytes - plan_memory("run.yaml", trace(), gpu).peak_bytes == RANKS_BYTES
    h200 = find_gpu("H200")
    rows = plan_table([among], batch_law(among, None), plan.usable_bytes, ceilings=h200)
    configured = next(row for row in rows if row.configured)
    assert configured.peak_bytes == plan.peak_bytes
    planned, alone = plan_speed(among, h200), plan_speed(trace(), h200)
    assert configured.samples_per_s == planned.samples_per_s == 4 * alone.samples_per_s


def test_weights_do_not_grow_with_the_batch() -> None:
    law = batch_law(trace(), None)
    assert law.peak(trace(), 2) == 120 * GIB + 210 * MIB
    assert law.peak(trace(), 1) == trace().peak_bytes


def test_a_second_dry_run_bends_the_line() -> None:
    twice = trace(batch_size=2, peak_bytes=90 * GIB + 210 * MIB)
    law = batch_law(trace(), twice)
    assert law.growth == pytest.approx(0.5)
    assert law.peak(trace(), 2) == twice.peak_bytes


def test_eight_bits_save_what_the_state_is_and_no_more() -> None:
    # The claim was 12 GB of Adam; the state of 18.3 M weights is 140 MiB.
    plan = plan_for(80, trace(), recomputed())
    eight = next(row for row in plan.table if row.optimizer == "adamw8bit")
    own = next(row for row in plan.table if row.configured)
    assert own.peak_bytes - eight.peak_bytes == 105 * MIB


def test_a_larger_batch_never_has_a_shorter_step() -> None:
    # The claim was 6 s -> 4 s -> 3.5 s for batches 1, 2, 3.
    times = [plan_speed(scaled(trace(), size), find_gpu("H200")).step_s for size in (1, 2, 3, 64)]
    assert times == sorted(times)
    rates = [size / taken for size, taken in zip((1, 2, 3, 64), times, strict=True)]
    assert rates[-1] <= 64 * rates[0]


def test_rows_of_the_table_take_as_many_micro_batches_as_the_plan() -> None:
    traces = [trace(), recomputed()]
    h200 = find_gpu("H200")
    rows = plan_table(traces, batch_law(traces[0], None), 139 * GIB, ceilings=h200, accumulate=6)
    configured = next(row for row in rows if row.configured)
    planned = plan_speed(trace(), h200, accumulate=6)
    assert configured.step_s == planned.step_s
    assert configured.samples_per_s == planned.samples_per_s


def test_a_way_that_a_size_decides_stands_at_its_own_batch_alone() -> None:
    traces = [trace(recompute="20GiB"), trace(recompute="full")]
    law = batch_law(traces[0], None)
    rows = plan_table(traces, law, 139 * GIB, ceilings=None, own_grows=False)
    by_size = {row.batch_size for row in rows if row.recompute == "20GiB"}
    assert by_size == {1}
    assert {row.batch_size for row in rows if row.recompute == "full"} > by_size


def test_an_update_comes_once_however_many_micro_batches_there_are() -> None:
    one, six = (plan_speed(trace(), find_gpu("H200"), accumulate=count) for count in (1, 6))
    assert (one.kernels, six.kernels) == (10 + 1, 6 * 10 + 1)
    assert six.flops == 6 * one.flops


def test_recomputation_off_at_a_batch_of_one_needs_more_than_the_guides_card() -> None:
    plan = plan_for(48, trace(), recomputed())
    assert plan.fit == "does not fit"
    assert plan.advice[0].startswith("train.recompute=full: fits, saves 50.0 GiB")
    assert any("adamw8bit does not help: saves 105 MiB" in line for line in plan.advice)


def test_where_nothing_fits_it_says_so() -> None:
    plan = plan_for(4, trace(), recomputed())
    assert plan.advice[0].startswith("no choice of")
    assert "lower train.batch_size" in plan.advice[1]


def test_the_best_row_fits_and_is_the_fastest() -> None:
    plan = plan_for(140, trace(), recomputed())
    best = next(row for row in plan.table if row.best)
    others = [row for row in plan.table if row.fit == "fits" and row.optimizer == "adamw"]
    assert best.fit == "fits"
    assert best.samples_per_s == max(row.samples_per_s or 0 for row in others)


def test_a_plan_survives_its_own_json() -> None:
    plan = plan_for(48, trace(), recomputed())
    assert from_json(to_json(plan), MemoryPlan) == plan


def test_an_unknown_gpu_is_answered_with_the_list() -> None:
    assert find_gpu("nvidia rtx 4090").gpu == "RTX 4090"
    with pytest.raises(PitstopError, match="A100-80GB, A100-40GB"):
        find_gpu("A100")
