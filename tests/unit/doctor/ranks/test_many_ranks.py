"""Many generated ranks: who is slow, where and from when on; nobody where nobody is."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pitstop.doctor.examine import examine
from pitstop.doctor.judge import judge_run
from pitstop.doctor.ranks.grid import RankGrid, grid_of_blocks
from pitstop.doctor.ranks.slow import When, when_slow
from pitstop.doctor.ranks.times import times_of_blocks
from pitstop.doctor.ranks.together import MOST_WHOLE, deciding_ranks, read_ranks
from pitstop.records.store import read_run
from pitstop.records.verdict import Finding
from tests.many_ranks import Slow, slow_host, write_ranks

RANKS = 24
STEPS = 1_536

ALWAYS = Slow(ranks=(13,), part="data", excess_us=60_000)
FROM_HALF = slow_host(1, part="forward", excess_us=60_000, first=768)
AT_FIRST = Slow(ranks=(5,), part="data", excess_us=200_000, last=767)


def straggler(folder: Path) -> Finding | None:
    found = judge_run(folder).verdict.findings
    return next((finding for finding in found if finding.code == "COMM002"), None)


def test_a_generated_block_says_what_its_rows_say(tmp_path: Path) -> None:
    """The generator writes blocks as the probe does: rows summarised anew give the same."""
    write_ranks(tmp_path / "run", ranks=1, steps=300, seed=4)
    file = tmp_path / "run" / "rank-0.jsonl"
    [first, second] = read_run(file).first.blocks
    without = [line for line in file.read_bytes().split(b"\n") if b'"kind":"block"' not in line]
    file.write_bytes(b"\n".join(without))
    [whole] = read_run(file).first.blocks
    assert first.wall.count + second.wall.count == whole.wall.count == 300
    for path, span in whole.spans.items():
        parts = (first.spans[path], second.spans[path])
        assert sum(part.host.total_us for part in parts) == span.host.total_us
        assert max(part.host.most_us for part in parts) == span.host.most_us
        marks = [part.device.total_us for part in parts if part.device is not None]
        assert span.device is not None
        assert sum(marks) == span.device.total_us


@pytest.mark.parametrize("on_device", [True, False])
def test_summaries_judge_as_all_steps_do(tmp_path: Path, *, on_device: bool) -> None:
    write_ranks(tmp_path / "run", ranks=RANKS, steps=STEPS, slow=[ALWAYS], on_device=on_device)
    by_summaries, whole = straggler(tmp_path / "run"), examine(read_run(tmp_path / "run"))
    by_steps = next(finding for finding in whole.findings if finding.code == "COMM002")
    assert by_summaries is not None
    assert by_summaries.summary == by_steps.summary
    assert by_summaries.bound is not None
    assert by_steps.bound is not None
    assert by_summaries.bound.share == pytest.approx(by_steps.bound.share, rel=0.03)


def test_of_many_ranks_only_the_steps_of_those_that_decide_are_read(tmp_path: Path) -> None:
    write_ranks(tmp_path / "run", ranks=RANKS, steps=STEPS, slow=[ALWAYS])
    record = read_ranks(tmp_path / "run")
    whole = {rank.rank for rank in record.ranks if rank.steps is not None}
    assert {0, 13} <= whole
    assert len(whole) <= 4
    assert whole == deciding_ranks(read_run(tmp_path / "run", with_steps=False).ranks)
    few = tmp_path / "few"
    write_ranks(few, ranks=MOST_WHOLE, steps=40)
    assert all(rank.steps is not None for rank in read_ranks(few).ranks)


@pytest.mark.parametrize(
    ("slow", "summary"),
    [
        (ALWAYS, "rank 13 (host node-01) is slower than the others, which wait for it: data"),
        (
            FROM_HALF,
            "from step 768 on, all 8 ranks of host node-01 are slower than the others, "
            "which wait for them: forward",
        ),
        (
            AT_FIRST,
            "until step 767, rank 5 (host node-00) is slower than the others, "
            "which wait for it: data",
        ),
    ],
    ids=["a rank", "a host from then on", "a slow start"],
)
def test_the_finding_names_rank_host_and_time(tmp_path: Path, slow: Slow, summary: str) -> None:
    write_ranks(tmp_path / "run", ranks=RANKS, steps=STEPS, slow=[slow], seed=7)
    found = straggler(tmp_path / "run")
    assert found is not None
    assert found.summary == summary
    times = [line for line in found.evidence if "UTC" in line]
    assert bool(times) == (slow is not ALWAYS)
    assert all(line.startswith("slow from 2026-11-15 00:0") for line in times)


def test_two_stragglers_are_both_named(tmp_path: Path) -> None:
    both = [ALWAYS, slow_host(2, part="forward", excess_us=90_000, first=768)]
    write_ranks(tmp_path / "run", ranks=RANKS, steps=STEPS, slow=both)
    verdict = judge_run(tmp_path / "run").verdict
    [found] = [finding for finding in verdict.findings if finding.code == "COMM002"]
    assert verdict.primary == "COMM002"
    assert any("from step 768 on, all 8 ranks of host node-02" in line for line in found.evidence)


def test_what_became_slow_on_the_way_is_a_warning_though_the_mean_is_small(tmp_path: Path) -> None:
    late = slow_host(1, part="forward", excess_us=50_000, first=1_024)
    write_ranks(tmp_path / "run", ranks=RANKS, steps=STEPS, slow=[late])
    found = straggler(tmp_path / "run")
    assert found is not None
    assert found.bound is not None
    assert found.bound.share < 0.1
    assert found.severity == "warning"


@pytest.mark.slow
def test_twenty_runs_without_a_straggler_have_none(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / f"{seed}"
        write_ranks(folder, ranks=(8, 24, 40)[seed % 3], steps=1_024, seed=100 + seed)
        verdict = judge_run(folder).verdict
        assert [one.code for one in verdict.findings if one.code.startswith("COMM")] == [], seed


def test_one_stall_makes_no_straggler_of_a_rank(tmp_path: Path) -> None:
    """Four minutes once, of a run of five: no rank is slow for that."""
    write_ranks(tmp_path / "run", ranks=RANKS, steps=STEPS, seed=1)
    file = tmp_path / "run" / "rank-7.jsonl"
    lines = file.read_text().split("\n")
    for number, line in enumerate(lines):
        if '"kind":"block"' in line and '"first":512' in line:
            block = json.loads(line)
            # The longest times of data, on the host and on the device.
            for times in (block["wall"], block["device"], *block["spans"][0][2:]):
                times[1] += 240_000_000
                times[3] += 240_000_000
            lines[number] = json.dumps(block, separators=(",", ":"))
    file.write_text("\n".join(lines))
    record = read_run(tmp_path / "run", with_steps=False).ranks[7]
    assert max(block.wall.most_us for block in record.blocks) > 240_000_000, "it is in the record"
    assert straggler(tmp_path / "run") is None


def test_a_rank_that_died_early_leaves_a_gap_and_no_error(tmp_path: Path) -> None:
    write_ranks(tmp_path / "run", ranks=RANKS, steps=STEPS, slow=[ALWAYS])
    file = tmp_path / "run" / "rank-20.jsonl"
    file.write_bytes(file.read_bytes()[:40_000])
    (tmp_path / "run" / "rank-21.jsonl").unlink()
    records = read_run(tmp_path / "run", with_steps=False).ranks
    grid = grid_of_blocks(records)
    assert np.isnan(grid.own_us[20]).any()
    assert not np.isnan(grid.own_us[20]).all()
    found = straggler(tmp_path / "run")
    assert found is not None
    assert "rank 13" in found.summary


def test_a_slow_rank_whose_steps_were_not_read_is_no_error(tmp_path: Path) -> None:
    """While a run is written, another rank may be the slowest than when steps were chosen."""
    write_ranks(tmp_path / "run", ranks=RANKS, steps=STEPS, slow=[ALWAYS])
    record = read_run(tmp_path / "run", steps_of=lambda _: {0, 4})
    verdict = examine(record)
    assert verdict.rank == 0
    assert "COMM002" not in {finding.code for finding in verdict.findings}


def test_times_of_blocks_are_means_of_a_step(tmp_path: Path) -> None:
    """Against a plain sum over all rows of the file."""
    write_ranks(tmp_path / "run", ranks=2, steps=1_024, seed=2, on_device=False)
    file = tmp_path / "run" / "rank-1.jsonl"
    rows = [json.loads(line) for line in file.read_text().split("\n") if line.startswith("[")]
    settled = [row for row in rows if row[1] >= 256]
    times = times_of_blocks(read_run(file, with_steps=False).first)
    assert times.steps == len(settled)
    assert times.step_us == pytest.approx(sum(row[4] for row in settled) / len(settled))
    forward = sum(row[9] for row in settled) / len(settled)
    assert times.own_us["forward"] == pytest.approx(forward)
    assert "backward" not in times.own_us


def slow_in(windows: list[int], *, of: int, level: float = 0.3) -> When:
    own = np.full((6, of), 100.0)
    own[2, windows] += level * 200
    grid = RankGrid(
        ranks=tuple(range(6)),
        hosts=("a",) * 6,
        first_step=tuple(range(0, 100 * of, 100)),
        last_step=100 * of - 1,
        unix_s=tuple(1e9 + 10.0 * window for window in range(of)),
        own_us=own,
        wall_us=np.full((6, of), 200.0),
        settled=0,
    )
    return when_slow(grid, [2])


@pytest.mark.parametrize(
    ("windows", "pattern", "steps"),
    [
        (range(20), "always", (0, 1_999)),
        (range(8, 20), "from", (800, 1_999)),
        (range(6), "until", (0, 599)),
        (range(5, 12), "between", (500, 1_199)),
        (range(0, 20, 4), "at times", (0, 1_699)),
    ],
)
def test_the_pattern_says_when(windows: range, pattern: str, steps: tuple[int, int]) -> None:
    when = slow_in(list(windows), of=20)
    assert when.pattern == pattern
    assert (when.first_step, when.last_step) == steps
    assert when.share == pytest.approx(0.3)
    assert when.from_unix_s == pytest.approx(1e9 + 10 * steps[0] / 100)


def test_one_slow_window_does_not_hide_that_a_rank_is_always_slow() -> None:
    own = np.full((4, 12), 100.0)
    own[1] += 40
    own[1, 5] += 5_000
    grid = RankGrid(
        ranks=(0, 1, 2, 3),
        hosts=("a", "a", "b", "b"),
        first_step=tuple(range(12)),
        last_step=12,
        unix_s=(None,) * 12,
        own_us=own,
        wall_us=np.full((4, 12), 200.0),
        settled=0,
    )
    assert when_slow(grid, [1]).pattern == "always"


JUDGE = """
import json, sys, time
from pathlib import Path
from pitstop.doctor.judge import judge_run
verdict = judge_run(sys.argv[1]).verdict
status = Path("/proc/self/status").read_text()
json.dump({
    "message": verdict.message,
    "took_s": time.process_time(),
    "peak_bytes": int(status.partition("VmHWM:")[2].split()[0]) * 1024,
}, sys.stdout)
"""


@pytest.mark.slow
def test_256_ranks_are_judged_in_ten_seconds_and_a_gigabyte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own; processor time, since others use the machine as well."""
    slow = Slow(ranks=(137,), part="data", excess_us=60_000)
    write_ranks(tmp_path / "run", ranks=256, steps=2_000, slow=[slow])
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    with capsys.disabled():
        sys.stdout.write(
            f"\n256 ranks of 2,000 steps: a verdict in {got['took_s']:.1f} s of processor time, "
            f"peak {got['peak_bytes'] / 2**20:.0f} MiB\n"
        )
    assert "rank 137 (host node-17)" in got["message"]
    assert got["took_s"] < 10
    assert got["peak_bytes"] < 1e9
