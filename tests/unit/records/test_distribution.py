"""Distributions: exact totals, quantiles within their stated error, merging without loss."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from pitstop.records.distribution import EMPTY, QUANTILE_ERROR, Distribution, merge
from pitstop_probe.writer import distribution

times = st.lists(st.integers(0, 10**9), min_size=1, max_size=300)


@given(times, st.floats(0, 1))
def test_quantiles_are_within_two_percent_of_the_sorted_values(
    values: list[int], share: float
) -> None:
    got = Distribution.of(values).quantile_us(share)
    exact = sorted(values)[int(share * (len(values) - 1))]
    assert got is not None
    assert abs(got - exact) <= QUANTILE_ERROR * (exact + 1) * 1.001


@given(st.lists(times, min_size=1, max_size=6))
def test_merging_blocks_gives_the_distribution_of_all_values(blocks: list[list[int]]) -> None:
    everything = [value for block in blocks for value in block]
    merged = merge(Distribution.of(block) for block in blocks)
    assert merged == Distribution.of(everything)
    assert merged.total_us == sum(everything)
    assert merged.mean_us is not None
    assert abs(merged.mean_us - statistics.fmean(everything)) < 1e-3


@given(times)
def test_the_probe_and_the_reader_mean_the_same_buckets(values: list[int]) -> None:
    count, total, least, most, flat = distribution(values)
    ours = Distribution.of(values)
    assert (count, total, least, most) == (ours.count, ours.total_us, ours.least_us, ours.most_us)
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == ours.buckets


def test_nothing_counted_is_not_zero() -> None:
    assert EMPTY.quantile_us(0.5) is None
    assert EMPTY.mean_us is None
    assert merge([]) == EMPTY
