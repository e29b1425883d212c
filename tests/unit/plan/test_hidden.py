"""Workspaces that nobody sees, by the shapes of an operation."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pitstop.plan.dry_run.hidden import fourier_bytes
from pitstop.plan.memory import Gpu, plan_memory
from tests.unit.plan.test_claims import step

GIB = 2**30
CONVOLUTION = torch.ops.aten.convolution.default


def convolution(side: int = 200, kernel: int = 3, **changes: Any) -> tuple[Any, ...]:
    given = {"dtype": torch.float32, "stride": [1, 1], "groups": 1, "transposed": False} | changes
    images = torch.empty(4, 256, side, side, dtype=given["dtype"], device="meta")
    weight = torch.empty(256, 256, kernel, kernel, dtype=given["dtype"], device="meta")
    padding = [kernel // 2] * 2
    return (
        *(images, weight, None, given["stride"], padding, [1, 1]),
        *(given["transposed"], [0, 0], given["groups"]),
    )


def test_the_six_camera_head_in_fp32_may_take_seventeen_gibibytes() -> None:
    # 33,024 frequencies of a square of 256; the profiler saw 2 x 33,024 + 1 kernels in this head.
    pairs = 4 * 256 + 256 * 256 + 4 * 256
    assert fourier_bytes(CONVOLUTION, convolution()) == pairs * 33_024 * 8
    assert fourier_bytes(CONVOLUTION, convolution()) / GIB == pytest.approx(16.6, abs=0.05)


@pytest.mark.parametrize(
    "given",
    [
        {"side": 300},
        {"kernel": 1},
        {"dtype": torch.bfloat16},
        {"stride": [2, 2]},
        {"groups": 256},
        {"transposed": True},
    ],
)
def test_where_cudnn_offers_no_such_transform_nothing_is_added(given: dict[str, Any]) -> None:
    assert fourier_bytes(CONVOLUTION, convolution(**given)) == 0


def test_it_widens_the_interval_and_not_the_figure() -> None:
    gpu = Gpu(name="gpu", num_bytes=140 * GIB)
    trace = step(recompute="full")
    plain = plan_memory("run.yaml", trace, gpu)
    warned = plan_memory("run.yaml", replace(trace, fourier_bytes=17 * GIB), gpu)
    assert warned.peak_bytes == plain.peak_bytes
    assert warned.high_bytes == plain.peak_bytes + 17 * GIB
    assert "17.0 GiB of workspace" in warned.notes[-1]
    assert not plain.notes
