import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.config.quantities import format_bytes, parse_bytes, parse_workers, whole

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("20GiB", 20 * GIB),
        ("20 gib", 20 * GIB),
        ("1.5GiB", GIB * 3 // 2),
        ("20GB", 20 * 1000**3),
        ("512kB", 512_000),
        ("7B", 7),
        ("0", 0),
    ],
)
def test_a_size_is_read_with_its_unit(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["20", "20G", "-1", "-1GiB", "GiB", "", "nan GiB", "1e3GiB", "٣GiB"]
)
def test_a_size_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


@given(st.integers(min_value=0, max_value=2**60))
def test_a_written_size_reads_back_exactly(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == size_bytes


@given(st.integers(min_value=1, max_value=999), st.sampled_from(["GiB", "GB", "MiB", "MB"]))
def test_a_round_size_keeps_the_unit_it_was_written_in(count: int, unit: str) -> None:
    assert format_bytes(parse_bytes(f"{count}{unit}")) == f"{count}{unit}"


@pytest.mark.parametrize(
    ("value", "number"),
    [("12", 12), ("3e5", 300_000), ("300_000", 300_000), ("4.0", 4), (7, 7), (2.0, 2)],
)
def test_a_whole_number_may_be_written_as_people_write_it(value: object, number: int) -> None:
    assert whole(value) == number


@pytest.mark.parametrize(
    "value", ["1.5", "1e400", "inf", "nan", "9" * 5000, "true", True, None, [], 2**60]
)
def test_what_is_no_exact_whole_number_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"number|convert"):
        whole(value)


@pytest.mark.parametrize(
    ("value", "workers"),
    [("auto", "auto"), ("0.8", 0.8), ("12", 12), ("1", 1), ("1.0", 1.0), (0, 0)],
)
def test_workers_are_auto_a_fraction_or_a_count(value: object, workers: object) -> None:
    read = parse_workers(value)
    assert (read, type(read)) == (workers, type(workers))


@pytest.mark.parametrize("value", ["-1", "1.5", "0.0", "-0.5", "many", True, "5000"])
def test_other_workers_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"number|convert"):
        parse_workers(value)
