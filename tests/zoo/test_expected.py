"""What a stopwatch on a GPU says must come first."""

import os
import subprocess
import sys
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.zoo.expected import LIMITS, expected_first, shares_of
from tests.zoo.stopwatch import device_times, kernel_kind, union_ns
from tests.zoo.table import HERE


def timed(
    shares: dict[str, float],
    *,
    outside: dict[str, float] | None = None,
    **device: float,
) -> dict[str, Any]:
    """A stopwatch's result: a step of 1,000 us."""
    names = ("busy", "products", "fp32", "update", "copies", "other", "waits", "kernels")
    return {
        "shares": shares,
        "outside": outside or {},
        "step_us": 1000.0,
        "device": {name: device.get(name, 0.0) for name in names},
    }


def test_a_loop_that_waits_for_data_must_be_found() -> None:
    seen = timed({"data": 0.6, "forward": 0.2, "backward": 0.2}, busy=100, products=100, kernels=20)
    assert expected_first(seen) == ("DATA001",)


def test_a_wait_behind_which_the_device_is_busy_can_not_go() -> None:
    seen = timed({"data": 0.6, "forward": 0.2, "backward": 0.2}, busy=960, products=960)
    assert shares_of(seen)["DATA001"] == pytest.approx(0.04)
    assert expected_first(seen) == ("healthy",)


def test_without_a_gpu_each_thing_costs_its_own_time() -> None:
    seen = timed({"data": 0.3, "forward": 0.3, "backward": 0.3}) | {"device": None}
    assert shares_of(seen)["DATA001"] == pytest.approx(0.3)
    assert expected_first(seen) == ("DATA001",)
    assert expected_first(seen | {"outside": {"evaluation": 0.6}}) == ("EVAL001",)


def test_many_short_kernels_on_an_idle_device_are_launches() -> None:
    seen = timed({"forward": 0.4, "backward": 0.5, "data": 0.05}, busy=300, kernels=200, other=300)
    assert expected_first(seen)[:2] == ("LAUNCH001", "BATCH001")


def test_products_in_fp32_on_a_busy_device_are_a_matter_of_precision() -> None:
    seen = timed({"forward": 0.5, "backward": 0.5}, busy=980, products=900, fp32=900, other=80)
    assert expected_first(seen) == ("PREC001",)


@pytest.mark.parametrize(
    ("outside", "code"),
    [
        ({"evaluation": 0.3, "evaluation pass": 0.1, "pass": 0.2}, "EVAL001"),
        ({"evaluation": 0.1, "pass": 0.4}, "DATA002"),
        ({"save": 0.4, "pass": 0.1}, "CKPT001"),
        ({"python": 0.4, "evaluation": 0.2}, "HOST001"),
        ({"waits": 0.4, "evaluation": 0.2}, "SYNC001"),
        ({"copies": 0.4}, "COPY001"),
    ],
)
def test_what_lies_outside_the_steps_counts_for_the_whole_time(
    outside: dict[str, float], code: str
) -> None:
    seen = timed({"forward": 0.5, "backward": 0.5}, outside=outside, busy=950)
    assert expected_first(seen)[0] == code
    assert shares_of(seen)[code] == pytest.approx(
        sum(share for name, share in outside.items() if code == "EVAL001" and "eval" in name)
        or max(outside.values())
    )


def test_an_update_is_clipping_and_the_zeroing_of_gradients_too() -> None:
    seen = timed({"optimizer": 0.2, "clip": 0.1, "zero_grad": 0.05, "forward": 0.65}, busy=100)
    assert shares_of(seen)["OPT001"] == pytest.approx(0.35)


def test_two_that_are_about_equal_may_both_come_first() -> None:
    seen = timed({"data": 0.40, "copy": 0.35, "forward": 0.25}, busy=50)
    assert set(expected_first(seen)) == {"DATA001", "COPY001"}


def test_what_a_stopwatch_did_not_see_is_not_judged() -> None:
    assert expected_first({"shares": {}, "outside": {}, "step_us": 0.0}) == ()


@given(
    data=st.floats(0, 0.4),
    copy=st.floats(0, 0.3),
    optimizer=st.floats(0, 0.3),
    busy=st.floats(0, 1000),
    evaluation=st.floats(0, 0.9),
)
def test_no_share_is_more_than_all(
    data: float, copy: float, optimizer: float, busy: float, evaluation: float
) -> None:
    host = {"data": data, "copy": copy, "optimizer": optimizer}
    seen = timed(host, outside={"evaluation": evaluation}, busy=busy, kernels=500)
    found = shares_of(seen)
    assert set(found) <= set(LIMITS)
    assert all(0 <= share <= 1 + 1e-9 for share in found.values())
    within = [share for code, share in found.items() if code != "EVAL001"]
    assert max(within) <= 1 - evaluation + 1e-9


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 40)), max_size=30))
def test_time_in_which_anything_runs_is_counted_once(spans: list[tuple[int, int]]) -> None:
    at = [(start, start + length) for start, length in spans]
    assert union_ns(at) == len({tick for start, end in at for tick in range(start, end)})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", "products"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64>", "products"),
        ("Memcpy HtoD (Pageable -> Device)", "copies"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "update"),
        ("void at::native::vectorized_elementwise_kernel<4>", "other"),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


def test_a_profile_without_kernels_is_an_idle_device() -> None:
    assert device_times([])["busy"] == 0


@pytest.mark.slow
def test_a_script_waits_for_its_turn_on_the_gpu_and_no_earlier(tmp_path: Path) -> None:
    lock = tmp_path / "turn"
    script = """
import os, torch
print("imported", flush=True)
try:
    torch.cuda._lazy_init()
except (AssertionError, RuntimeError):  # no GPU here
    pass
print("turn", os.environ.get("ZOO_TURN"), flush=True)
"""
    env = {**os.environ, "ZOO_TURN": str(lock), "PYTHONPATH": str(HERE / "turns")}  # noqa: TID251
    with lock.open("w") as held:
        flock(held, LOCK_EX)
        command = [sys.executable, "-c", script]
        waiting = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "imported\n"
        assert waiting.poll() is None
        flock(held, LOCK_UN)
        assert waiting.stdout.read() == "turn None\n"
        assert waiting.wait() == 0
        waiting.stdout.close()
