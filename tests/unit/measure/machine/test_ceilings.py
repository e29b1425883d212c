import contextlib
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pitstop.measure.machine.ceilings import (
    QUICK,
    Effort,
    cpu_matrix_rates,
    fp32_products,
    host_copy_rate,
    matrix_flops,
)
from pitstop.measure.machine.decode import measure_decoding, natural_picture
from pitstop.measure.machine.repeats import repeated_rates

TINY = Effort(repeats=3, seconds=0.0, cpu_matrix=64, host_copy_bytes=1 << 20)


class WorkClock:
    """Time passes only while work is done."""

    def __init__(self, call_s: float) -> None:
        self.call_s = call_s
        self.calls = 0

    def work(self) -> None:
        self.calls += 1

    def __call__(self) -> float:
        return self.calls * self.call_s


@given(call_s=st.floats(1e-6, 10), repeats=st.integers(1, 9), seconds=st.floats(0, 1))
def test_the_rate_is_one_over_the_time_of_a_call(
    call_s: float, repeats: int, seconds: float
) -> None:
    seconds = min(seconds, 200 * call_s)
    clock = WorkClock(call_s)
    rates = repeated_rates(clock.work, repeats=repeats, seconds=seconds, clock=clock)
    assert rates == [pytest.approx(1 / call_s)] * repeats
    # Each repeat overshoots its share of the time by at most one call.
    assert clock.calls * call_s <= seconds + repeats * call_s * (1 + 1e-9)


def test_a_clock_that_does_not_move_gives_no_rate() -> None:
    assert repeated_rates(lambda: None, repeats=3, seconds=0.0, clock=lambda: 5.0) == []


def test_a_product_of_matrices_counts_every_multiply_and_add() -> None:
    size = 3
    steps = sum(2 for _ in range(size) for _ in range(size) for _ in range(size))
    assert matrix_flops(size) == steps


def test_the_copy_rate_counts_bytes_read_and_bytes_written() -> None:
    looks = iter(range(1000))
    found = host_copy_rate(TINY, clock=lambda: float(next(looks)))
    # One second passes in each copy: one look before it, one after it.
    assert found.rate.value == 2 * (1 << 20)
    assert (found.rate.unit, found.rate.samples, found.route) == ("B/s", 3, "host")


def test_the_cpu_matrix_rate_states_its_threads_and_restores_them() -> None:
    before = torch.get_num_threads()
    looks = iter(range(1000))
    rates = cpu_matrix_rates(TINY, threads=1, clock=lambda: float(next(looks)))
    assert torch.get_num_threads() == before
    assert "fp32" in {rate.dtype for rate in rates}
    for rate in rates:
        assert (rate.device, rate.threads, rate.size) == ("cpu", 1, 64)
        assert rate.rate.value == 2 * 64**3


def test_quick_does_less_than_the_default() -> None:
    full = Effort()
    assert QUICK.repeats * QUICK.seconds < full.repeats * full.seconds
    assert QUICK.matrix < full.matrix


def test_choosing_how_float32_is_multiplied_is_undone() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    with fp32_products(tf32=True):
        assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == before
    with contextlib.suppress(RuntimeError), fp32_products(tf32=False):
        assert matmul.fp32_precision == "ieee"
        raise RuntimeError
    assert matmul.fp32_precision == before


def test_the_picture_compresses_like_a_photograph() -> None:
    picture = natural_picture(640, 360)
    assert picture.shape == (360, 640, 3)
    assert picture.dtype == np.uint8
    # Neighbours of a photograph resemble each other, and its colours go together.
    plane = picture[..., 0].astype(float)
    assert np.corrcoef(plane[:, :-1].ravel(), plane[:, 1:].ravel())[0, 1] > 0.95
    assert np.corrcoef(plane.ravel(), picture[..., 1].ravel())[0, 1] > 0.9
    assert plane.std() > 20


def test_decoding_states_size_and_rate_of_what_was_decoded() -> None:
    looks = iter(range(10_000))
    rates = measure_decoding(Image, repeats=3, seconds=0.0, clock=lambda: next(looks) / 10)
    assert [rate.codec for rate in rates] == ["jpeg", "png"]
    jpeg, png = rates
    for rate in rates:
        assert rate.images.value == pytest.approx(10)
        assert rate.pixels_per_s == pytest.approx(10 * rate.width * rate.height)
    raw = jpeg.width * jpeg.height * 3
    assert jpeg.encoded_bytes < png.encoded_bytes < raw


def test_the_median_is_the_middle_of_the_repeats() -> None:
    times = iter([0, 1, 0, 2, 0, 4])
    rates = repeated_rates(lambda: None, repeats=3, seconds=0.0, clock=lambda: float(next(times)))
    assert statistics.median(rates) == 0.5
