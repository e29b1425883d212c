"""How growth is told from what comes and goes."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.drill.soak import Sample, device_growth, device_troubles_of, growth, troubles_of

ROOT = Path(__file__).parents[2]


def samples(handles: list[int]) -> list[Sample]:
    return [
        Sample(at_s=5.0 * index, held_bytes=100, pss_bytes=100, handles=count, threads=count)
        for index, count in enumerate(handles)
    ]


def test_a_save_under_way_is_no_leak() -> None:
    found = growth(samples([20, 20, 20, 21, 20, 20, 20, 23, 20, 22, 21, 23]))
    assert (found["handles_grown"], found["threads_grown"]) == (0, 0)


def test_a_handle_never_given_back_is_a_leak() -> None:
    found = growth(samples([20, 20, 20, 21, 20, 20, 20, 21, 22, 21, 21, 22]))
    assert found["handles_grown"] == 1
    assert found["threads_grown"] == 1


def test_memory_is_fitted_by_a_line() -> None:
    rising = [
        Sample(
            at_s=10.0 * index,
            held_bytes=1000 + 20 * index,
            pss_bytes=900 - 10 * index,
            handles=1,
            threads=1,
        )
        for index in range(30)
    ]
    found = growth(rising)
    assert (found["held_bytes_per_hour"], found["pss_bytes_per_hour"]) == (2 * 3600, -3600)


def rising(minutes: int, *, bytes_per_hour: int) -> list[Sample]:
    return [
        Sample(
            at_s=60.0 * minute,
            held_bytes=0,
            pss_bytes=10**8 + minute * bytes_per_hour // 60,
            handles=1,
            threads=1,
        )
        for minute in range(minutes + 1)
    ]


def test_growth_is_judged_where_all_who_share_are_counted_and_for_long_enough() -> None:
    grown, flat = (growth(rising(60, bytes_per_hour=most)) for most in (1_100_000, 900_000))
    assert troubles_of(grown, is_whole=True) == ["memory"]
    assert troubles_of(flat, is_whole=True) == []
    assert troubles_of(grown, is_whole=False) == []
    brief = growth(rising(30, bytes_per_hour=1_100_000))
    assert troubles_of(brief, is_whole=True) == []


def test_what_a_device_held_is_compared_with_the_first_third() -> None:
    readings = [{"step": step, "allocated": 5, "reserved": 8} for step in range(9)]
    readings[1]["allocated"] = 7
    readings[8]["reserved"] = 9
    found = device_growth(readings)
    assert (found["allocated_first_bytes"], found["allocated_later_bytes"]) == (7, 5)
    assert (found["reserved_first_bytes"], found["reserved_later_bytes"]) == (8, 9)
    assert device_troubles_of(found) == ["device memory reserved"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="samples come from /proc")
def test_a_soak_alone_writes_what_it_saw(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    options = ["--minutes", "0.4", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "tests.drill.soak", *options], cwd=ROOT, check=True)
    found = json.loads(out.read_text())
    assert found["is_over"]
    assert set(found["latest"]) >= {"watch", "train", "train and workers"}
    for grown in found["latest"].values():
        assert grown["pss_bytes_over_time"][-1] > 0
    assert [name for name in found["troubles"] if "ended early" in name] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a signal at the parent's end is Linux's")
def test_a_drill_that_fails_leaves_no_process_behind(tmp_path: Path) -> None:
    program = (
        "import os, sys, time, pathlib\n"
        "from tests.drill.lives import begin\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "life = begin([], folder / 'log', before=lambda: time.sleep(600))\n"
        "print(life.pid, flush=True)\n"
        "while not (folder / 'log').exists():\n"
        "    pass\n"
        "os.abort()\n"
    )
    failed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, check=False
    )
    assert failed.returncode < 0
    pid = int(failed.stdout)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=60)
    assert not psutil.pid_exists(pid)
