import mmap
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.measure.host.process_tree import (
    processor_times,
    resident_sizes,
    tree_counters,
    tree_memory,
    tree_pids,
)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def add_process(
    proc: Path,
    pid: int,
    parent: int,
    *,
    pss_kb: int | None = 0,
    ticks: tuple[int, int, int, int] = (0, 0, 0, 0),
    io: tuple[int, int] | None = (0, 0),
    state: str = "S",
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    # A program may call itself anything, brackets and spaces included.
    times = " ".join(map(str, ticks))
    head = f"{pid} (python) (x y) {state} {parent}"
    (folder / "stat").write_text(f"{head} 0 0 0 0 0 0 0 0 0 {times} 20 0 1\n")
    (folder / "statm").write_text(f"900 {pid} 0 0 0 0 0\n")
    if pss_kb is not None:
        text = f"Rss: {10 * pss_kb} kB\nPss: {pss_kb} kB\nPss_Anon: {pss_kb} kB\n"
        (folder / "smaps_rollup").write_text(text)
    if io is not None:
        (folder / "io").write_text(f"rchar: 9\nread_bytes: {io[0]}\nwrite_bytes: {io[1]}\n")


@settings(deadline=None, max_examples=40)
@given(parents=st.lists(st.integers(0, 30), max_size=30))
def test_the_tree_is_the_root_and_everyone_who_descends_from_it(
    tmp_path_factory: pytest.TempPathFactory, parents: list[int]
) -> None:
    proc = tmp_path_factory.mktemp("proc")
    add_process(proc, 1, 0)
    ancestry = {1: 0}
    for number, choice in enumerate(parents):
        pid = 2 + number
        # Either some earlier process or a stranger (999) is the parent.
        ancestry[pid] = choice + 1 if choice < number + 1 else 999
        add_process(proc, pid, ancestry[pid])

    def descends(pid: int) -> bool:
        while pid in ancestry:
            if pid == 1:
                return True
            pid = ancestry[pid]
        return False

    assert sorted(tree_pids(1, proc=proc)) == [pid for pid in sorted(ancestry) if descends(pid)]


def test_children_are_read_from_thread_lists_where_the_kernel_keeps_them(tmp_path: Path) -> None:
    for pid, children in ((10, {"10": "11", "15": "12 13"}), (11, {"11": ""}), (12, {"12": "14"})):
        for thread, text in children.items():
            folder = tmp_path / str(pid) / "task" / thread
            folder.mkdir(parents=True)
            (folder / "children").write_text(text)
    assert sorted(tree_pids(10, proc=tmp_path)) == [10, 11, 12, 13, 14]


def test_memory_of_the_tree_is_the_sum_of_proportional_sizes(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, pss_kb=100)
    add_process(tmp_path, 11, 10, pss_kb=20)
    add_process(tmp_path, 12, 11, pss_kb=3)
    add_process(tmp_path, 50, 1, pss_kb=7777)
    found = tree_memory(10, proc=tmp_path)
    assert found is not None
    assert (found.basis, found.tree_bytes, found.own_bytes) == ("pss", 123 * 1024, 100 * 1024)
    assert (found.processes, found.unreadable) == (3, 0)


def test_a_kernel_without_a_rollup_is_summed_over_mappings(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, pss_kb=None)
    (tmp_path / "10/smaps").write_text("00-01 r--p\nPss: 4 kB\nSwapPss: 9 kB\n02-03\nPss: 5 kB\n")
    found = tree_memory(10, proc=tmp_path)
    assert found is not None
    assert (found.basis, found.tree_bytes) == ("pss", 9 * 1024)


def test_without_proportional_sizes_every_member_is_counted_as_resident(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, pss_kb=None)
    add_process(tmp_path, 11, 10, pss_kb=50)
    found = tree_memory(10, proc=tmp_path)
    assert found is not None
    assert (found.basis, found.tree_bytes) == ("rss", (10 + 11) * PAGE)


def test_a_living_member_that_may_not_be_read_is_told_and_a_zombie_is_not(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, pss_kb=100)
    add_process(tmp_path, 11, 10, pss_kb=None)
    add_process(tmp_path, 12, 10, pss_kb=None, state="Z")
    found = tree_memory(10, proc=tmp_path)
    assert found is not None
    assert (found.processes, found.unreadable, found.tree_bytes) == (1, 1, 100 * 1024)


def test_a_root_that_is_gone_is_not_zero_bytes(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1)
    assert tree_memory(99, proc=tmp_path) is None
    assert tree_counters(99, proc=tmp_path).cpu_s is None


def test_a_root_that_is_a_zombie_is_not_zero_bytes(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, pss_kb=None, state="Z")
    (tmp_path / "10" / "smaps_rollup").write_text("")
    (tmp_path / "10" / "statm").write_text("0 0 0 0 0 0 0\n")
    assert tree_memory(10, proc=tmp_path) is None


def test_counters_keep_what_reaped_members_left_behind(tmp_path: Path) -> None:
    alive, reaped = tmp_path / "alive", tmp_path / "reaped"
    add_process(alive, 10, 1, ticks=(100, 50, 0, 0), io=(1000, 10))
    add_process(alive, 11, 10, ticks=(30, 20, 0, 0), io=(500, 5))
    # The kernel hands a reaped child's time and bytes to its parent.
    add_process(reaped, 10, 1, ticks=(100, 50, 30, 20), io=(1500, 15))
    before, after = tree_counters(10, proc=alive), tree_counters(10, proc=reaped)
    assert before == after
    assert before.cpu_s == 200 / TICK
    assert (before.read_bytes, before.write_bytes) == (1500, 15)


def test_bytes_of_a_tree_with_an_unreadable_member_are_unknown(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, io=(1000, 10))
    add_process(tmp_path, 11, 10, io=None)
    assert tree_counters(10, proc=tmp_path).read_bytes is None


def test_a_system_without_proc_counts_private_bytes(tmp_path: Path) -> None:
    found = tree_memory(proc=tmp_path / "missing")
    assert found is not None
    assert found.basis == "private"
    assert 0 < found.own_bytes <= psutil.Process().memory_info().rss
    spent_s = tree_counters(proc=tmp_path / "missing").cpu_s
    assert spent_s is not None
    assert spent_s >= 0


@contextmanager
def forked_sharers(count: int, block: mmap.mmap) -> Iterator[None]:
    """Fork processes that touch a shared block and then wait for the signal to end."""
    ready_read, ready_write = os.pipe()
    pids: list[int] = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            block[:: mmap.PAGESIZE]
            os.write(ready_write, b"x")
            signal.pause()
            os._exit(0)
        pids.append(pid)
    try:
        for _ in pids:
            os.read(ready_read, 1)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ready_read)
        os.close(ready_write)


@linux_only
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_block_shared_by_five_processes_is_counted_once() -> None:
    size = 100_000_000
    before = tree_memory()
    assert before is not None
    with mmap.mmap(-1, size) as block:
        block[:: mmap.PAGESIZE] = b"x" * len(range(0, size, mmap.PAGESIZE))
        with forked_sharers(4, block):
            found = tree_memory()
            resident = sum(psutil.Process(pid).memory_info().rss for pid in tree_pids(os.getpid()))
    assert found is not None
    assert found.processes == before.processes + 4
    grown = found.tree_bytes - before.tree_bytes
    assert 0.95 < grown / size < 1.25
    assert resident > 4.5 * size, "resident sizes count the block in every process"


def test_names_with_brackets_do_not_hide_processor_time(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = ["S", "1", *["0"] * 9, "150", "50", *["0"] * 10]
    (tmp_path / "7" / "stat").write_text(f"7 (a) (b) {' '.join(fields)}")
    (tmp_path / "8").mkdir()
    (tmp_path / "self").mkdir()
    assert processor_times(proc=tmp_path) == {7: ("a) (b", 200 / os.sysconf("SC_CLK_TCK"))}
    assert processor_times(proc=tmp_path / "none") == {}


def test_resident_sizes_name_every_process_by_its_program(tmp_path: Path) -> None:
    rest = " ".join(["S", "1", *("0" for _ in range(19)), "25", "0"])
    for pid, name in ((7, "python"), (8, "a (b) c")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {rest}\n")
    (tmp_path / "9").mkdir()  # gone while we looked
    page = os.sysconf("SC_PAGE_SIZE")
    assert resident_sizes(proc=tmp_path) == {7: ("python", 25 * page), 8: ("a (b) c", 25 * page)}


def test_resident_sizes_of_this_host_agree_with_psutil(tmp_path: Path) -> None:
    for found in (resident_sizes(), resident_sizes(proc=tmp_path / "no proc here")):
        name, size = found[os.getpid()]
        own = psutil.Process()
        assert name[:15] == own.name()[:15]
        assert 0.5 <= size / own.memory_info().rss <= 2
