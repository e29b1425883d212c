import os
from pathlib import Path

import pytest

from pitstop.errors import MeasureError
from pitstop.measure.machine.storage import (
    KernelPageCache,
    ReadLimits,
    filesystem_of,
    in_memory,
    measure_volume,
)
from pitstop.records.host.machine import VolumeRead

MIB = 1 << 20


class SteadyClock:
    """Each look at the clock is one millisecond after the one before."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks / 1000


class FakeCache:
    def __init__(self, *, drops: bool) -> None:
        self.drops = drops
        self.asked = 0

    def drop(self, descriptor: int) -> bool:
        os.fstat(descriptor)
        self.asked += 1
        return self.drops


def fill(folder: Path, count: int, size: int) -> None:
    for number in range(count):
        (folder / f"{number:04}.bin").write_bytes(os.urandom(size))


def reads(path: Path, cache: FakeCache | None = None, **limits: float) -> dict[str, VolumeRead]:
    bounds = ReadLimits(**limits) if limits else None  # pyright: ignore[reportArgumentType]
    found = measure_volume(
        path, limits=bounds, cache=cache or FakeCache(drops=True), clock=SteadyClock()
    )
    return {read.order: read for read in found.reads}


def test_a_folder_is_read_in_order_and_as_random_whole_files(tmp_path: Path) -> None:
    fill(tmp_path, 10, MIB)
    found = reads(tmp_path)
    assert found.keys() == {"sequential", "random files"}
    for read in found.values():
        assert (read.files, read.read_bytes) == (10, 10 * MIB)
    # Per file: one look before opening, then one after the block, one before and after the end.
    rate = found["random files"].files_per_s
    assert rate is not None
    assert rate.value == pytest.approx(1000 / 2)
    assert found["random files"].rate.value == pytest.approx(MIB * 1000 / 2)
    assert found["random files"].rate.samples == 5


def test_a_single_file_is_read_in_order_only(tmp_path: Path) -> None:
    fill(tmp_path, 1, 3 * MIB)
    found = reads(tmp_path / "0000.bin")
    assert found.keys() == {"sequential"}
    assert found["sequential"].rate.value == pytest.approx(3 * MIB * 1000 / 2)
    assert found["sequential"].files_per_s is None


def test_one_file_left_in_memory_makes_the_whole_read_doubtful(tmp_path: Path) -> None:
    class LastStays(FakeCache):
        def drop(self, descriptor: int) -> bool:
            super().drop(descriptor)
            return self.asked != 4

    fill(tmp_path, 4, MIB)
    found = reads(tmp_path, LastStays(drops=True))
    assert found["sequential"].cache == "may include page cache"
    assert found["random files"].cache == "dropped"


def test_a_read_ends_at_its_limit_even_inside_a_huge_file(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(400 * MIB)
    with (tmp_path / "other").open("wb") as file:
        file.truncate(400 * MIB)
    found = reads(tmp_path, read_bytes=20 * MIB, seconds=1e9)
    assert all(20 * MIB <= read.read_bytes <= 28 * MIB for read in found.values())
    slow = reads(tmp_path, read_bytes=1 << 40, seconds=0.01)
    assert all(read.read_bytes <= 15 * 4 * MIB for read in slow.values())


def test_too_few_bytes_give_no_rate_rather_than_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"abc")
    found = measure_volume(tmp_path, cache=FakeCache(drops=True), clock=SteadyClock())
    assert found.reads == ()
    assert (found.files_seen, found.bytes_seen, found.complete) == (1, 3, True)


def test_nothing_is_written_and_nothing_but_regular_files_is_opened(tmp_path: Path) -> None:
    fill(tmp_path, 3, MIB)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.bin")}
    found = measure_volume(tmp_path, clock=SteadyClock())
    assert found.files_seen == 3
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.bin")} == before
    assert len(list(tmp_path.iterdir())) == 5


def test_a_slow_search_stops_and_says_it_is_incomplete(tmp_path: Path) -> None:
    fill(tmp_path, 3, 10)

    class HourClock(SteadyClock):
        def __call__(self) -> float:
            return super().__call__() * 3_600_000

    found = measure_volume(tmp_path, cache=FakeCache(drops=True), clock=HourClock())
    assert (found.files_seen, found.complete) == (0, False)


@pytest.mark.parametrize(
    ("make", "word"),
    [(lambda _: None, "does not exist"), (os.mkfifo, "neither a folder nor a regular file")],
)
def test_a_wrong_path_is_told_in_one_paragraph(tmp_path: Path, make: object, word: str) -> None:
    path = tmp_path / "data"
    assert callable(make)
    make(path)
    with pytest.raises(MeasureError, match=word) as error:
        measure_volume(path)
    assert str(path) in str(error.value)
    assert "--data" in str(error.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        with pytest.raises(MeasureError, match="you may read"):
            measure_volume(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_pages_that_cannot_leave_memory_are_never_called_dropped() -> None:
    if filesystem_of(Path("/dev/shm")) != "tmpfs":
        pytest.skip("needs a tmpfs")
    path = Path("/dev/shm") / f"pitstop-test-{os.getpid()}"
    try:
        path.write_bytes(b"x" * MIB)
        with path.open("rb") as file:
            assert KernelPageCache().drop(file.fileno()) is False
        assert in_memory(measure_volume(path))
    finally:
        path.unlink()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs a Linux kernel")
def test_dirty_pages_are_seen_to_stay_and_clean_ones_to_go(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
    with path.open("rb") as file:
        if in_memory(measure_volume(path)):
            pytest.skip("temporary files lie in memory here")
        file.read()
        dropped = KernelPageCache().drop(file.fileno())
        if not dropped:
            pytest.skip("this file system cannot tell")
        file.seek(0)
        file.read()
        os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="needs a Linux kernel")
@pytest.mark.parametrize(
    ("answer", "dropped"),
    [(BlockingIOError(), True), (OSError(95, "not supported"), False), (None, False)],
)
def test_only_a_kernel_that_would_have_to_wait_proves_the_pages_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: OSError | None, *, dropped: bool
) -> None:
    def preadv(*_: object) -> int:
        if answer is not None:
            raise answer
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        assert KernelPageCache().drop(file.fileno()) is dropped
