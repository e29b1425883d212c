"""A planned step is the longer of two sides, and more of anything never makes it shorter."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.plan.gpus import find_gpu
from pitstop.plan.speed import Ceilings, Pace, plan_speed
from pitstop.plan.table import scaled
from pitstop.records.plans.plan import OperationRow, StepTrace
from tests.unit.plan.test_table import trace

H200 = find_gpu("H200")
PACES = st.builds(Pace, host=st.floats(0.2, 5), device=st.floats(0.2, 5))
ROWS = st.builds(
    OperationRow,
    part=st.sampled_from(["forward", "backward", "recompute", "optimizer"]),
    name=st.sampled_from(["mm", "convolution", "add", "native_layer_norm", "attend_volume"]),
    flops=st.integers(0, 10**13),
    num_bytes=st.integers(0, 10**10),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    count=st.integers(1, 5000),
)
STEPS = st.lists(ROWS, min_size=1, max_size=6).map(
    lambda rows: trace(operations=tuple(rows), fused_operations=("attend_volume",))
)


def seconds(
    step: StepTrace, pace: Pace, *, ceilings: Ceilings = H200, accumulate: int = 1
) -> float:
    paced = replace(ceilings, pace=pace)
    return plan_speed(step, paced, accumulate=accumulate).step_s


@given(step=STEPS, pace=PACES, places=st.integers(0, 500))
def test_a_step_is_never_below_either_side_nor_above_both(
    step: StepTrace, pace: Pace, places: int
) -> None:
    speed = plan_speed(replace(step, recomputed_places=places), replace(H200, pace=pace))
    assert speed.step_s >= speed.device_s
    assert speed.step_s >= speed.launch_s
    assert speed.step_s <= speed.device_s + speed.launch_s


@given(step=STEPS, pace=PACES, sizes=st.tuples(st.integers(1, 64), st.integers(1, 64)))
def test_a_larger_batch_never_has_a_shorter_step(
    step: StepTrace, pace: Pace, sizes: tuple[int, int]
) -> None:
    fewer, more = (seconds(scaled(step, size), pace) for size in sorted(sizes))
    assert fewer <= more


@given(step=STEPS, pace=PACES, extra=st.integers(0, 5000))
def test_more_launches_never_make_a_shorter_step(step: StepTrace, pace: Pace, extra: int) -> None:
    first, *rest = step.operations
    more = replace(step, operations=(replace(first, count=first.count + extra), *rest))
    again = replace(step, recomputed_places=extra)
    assert seconds(step, pace) <= seconds(more, pace)
    assert seconds(step, pace) <= seconds(again, pace)
    assert seconds(step, pace) <= seconds(step, pace, accumulate=2)


@given(step=STEPS, pace=PACES, extra=st.integers(0, 10**10))
def test_more_bytes_or_arithmetic_never_make_a_shorter_step(
    step: StepTrace, pace: Pace, extra: int
) -> None:
    first, *rest = step.operations
    wider = replace(first, num_bytes=first.num_bytes + extra)
    deeper = replace(first, flops=first.flops + extra)
    for one in (wider, deeper):
        assert seconds(step, pace) <= seconds(replace(step, operations=(one, *rest)), pace)


def test_a_batch_is_free_until_the_device_has_as_much_to_do_as_the_host() -> None:
    # Recomputed VRT took 785 ms at batch 1 and 801 at batch 2 (docs/accuracy.md).
    small = OperationRow(
        part="forward", name="mm", flops=10**9, num_bytes=10**6, dtype="bfloat16", count=5000
    )
    step = trace(operations=(small,))
    one, two = (plan_speed(scaled(step, size), H200) for size in (1, 2))
    assert one.step_s == two.step_s == one.launch_s > two.device_s
    many = plan_speed(scaled(step, 512), H200)
    assert many.step_s == many.device_s > many.launch_s == pytest.approx(one.launch_s)
