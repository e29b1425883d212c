"""The .dat format bit by bit, and counting into bins, each against a plain loop."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.errors import DataError
from pitstop.workloads.deblur.spike import Window, count_bins, num_planes, read_dat, write_dat

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def random_spikes(shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) < 0.3).astype(np.uint8)


def bit_by_bit(spikes: np.ndarray) -> bytes:
    """The definition: rows from the bottom up, the leftmost of eight pixels in the lowest bit."""
    packed = bytearray()
    for plane in spikes:
        for row in plane[::-1]:
            for start in range(0, len(row), 8):
                packed.append(sum(int(row[start + bit]) << bit for bit in range(8)))
    return bytes(packed)


@QUICK
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
def test_files_are_the_bits_of_the_definition(
    tmp_path: Path, planes: int, height: int, row_bytes: int, seed: int
) -> None:
    spikes = random_spikes((planes, height, 8 * row_bytes), seed)
    path = tmp_path / "a.dat"
    write_dat(path, spikes)
    assert path.read_bytes() == bit_by_bit(spikes)
    found = read_dat(path, height=height, width=8 * row_bytes)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, spikes)


@QUICK
@given(st.data())
def test_a_window_is_the_same_part_of_the_whole(tmp_path: Path, data: st.DataObject) -> None:
    height, width = 7, 40
    spikes = random_spikes((3, height, width))
    write_dat(tmp_path / "a.dat", spikes)
    top = data.draw(st.integers(0, height - 1))
    left = data.draw(st.integers(0, width - 1))
    window = Window(
        top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    )
    found = read_dat(tmp_path / "a.dat", height=height, width=width, window=window)
    bottom, right = top + window.height, left + window.width
    np.testing.assert_array_equal(found, spikes[:, top:bottom, left:right])


def test_a_window_beyond_the_frame_is_our_own_mistake(tmp_path: Path) -> None:
    write_dat(tmp_path / "a.dat", random_spikes((1, 4, 8)))
    with pytest.raises(AssertionError):
        read_dat(tmp_path / "a.dat", height=4, width=8, window=Window(1, 0, 4, 8))


@pytest.mark.parametrize(("planes", "height", "width"), [(88, 396, 640), (56, 360, 448)])
def test_a_file_whose_bytes_were_taken_for_pixels_is_read_as_bits(
    tmp_path: Path, planes: int, height: int, width: int
) -> None:
    """These files have just ten times as many bytes as such frames have pixels, by accident."""
    path = tmp_path / "000047.dat"
    path.write_bytes(bytes(planes * 360 * 640 // 8))
    assert path.stat().st_size == 10 * height * width
    assert num_planes(path, height=height, width=width) == 80
    assert num_planes(path, height=360, width=640) == planes


@pytest.mark.parametrize("planes", [88, 81])
def test_a_file_of_360x640_read_at_the_size_of_another_camera_is_refused(
    tmp_path: Path, planes: int
) -> None:
    path = tmp_path / "000047.dat"
    path.write_bytes(bytes(planes * 360 * 640 // 8))
    with pytest.raises(DataError, match=rf"{planes * 28_800} bytes, .*250x400 \(12500 bytes"):
        read_dat(path, height=250, width=400)


@pytest.mark.parametrize("size", [0, 5, 11])
def test_a_cut_off_file_is_refused_with_both_sizes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "000001.dat"
    path.write_bytes(bytes(size))
    with pytest.raises(DataError, match=rf"000001\.dat has {size} bytes, .*6x8 \(6 bytes each\)"):
        read_dat(path, height=6, width=8)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.dat"):
        read_dat(tmp_path / "gone.dat", height=6, width=8)


def test_rows_that_do_not_fill_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2x12"):
        write_dat(tmp_path / "a.dat", random_spikes((1, 2, 12)))
    with pytest.raises(DataError, match="2x12"):
        read_dat(tmp_path / "a.dat", height=2, width=12)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.dat").mkdir()
    (tmp_path / "a.dat" / "in the way").touch()
    with pytest.raises(DataError, match=r"cannot write .*a\.dat"):
        write_dat(tmp_path / "a.dat", random_spikes((1, 2, 8)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.dat"]


@QUICK
@given(st.integers(1, 70), st.integers(1, 40))
def test_every_plane_is_counted_once_and_bins_are_even(planes: int, bins: int) -> None:
    ones = np.ones((planes, 1, 8), np.uint8)
    shares = count_bins(ones, bins)[:, 0, 0]
    assert shares.sum() == planes
    assert shares.max() - shares.min() <= 1
    spikes = random_spikes((planes, 2, 8))
    counts = count_bins(spikes, bins)
    assert counts.dtype == np.uint8
    ends = np.cumsum(shares)
    for place, end in enumerate(ends):
        np.testing.assert_array_equal(counts[place], spikes[end - shares[place] : end].sum(axis=0))


def test_few_planes_are_spread_over_many_bins() -> None:
    shares = count_bins(np.ones((10, 1, 8), np.uint8), 32)[:, 0, 0]
    assert shares.sum() == 10
    gaps = np.diff(np.flatnonzero(shares))
    assert set(gaps.tolist()) <= {3, 4}


def test_more_planes_than_a_byte_counts_are_refused() -> None:
    assert count_bins(np.ones((255, 1, 8), np.uint8), 1).max() == 255
    with pytest.raises(DataError, match=r"256 spike planes .* 1 bins"):
        count_bins(np.ones((256, 1, 8), np.uint8), 1)
