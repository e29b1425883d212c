"""Runs killed at any moment and resumed end with the bits of a run that was left alone."""

import random
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pitstop.records.store import read_run
from pitstop.train.state.checkpoint import Checkpoint, find_newest_whole
from tests.integration.ranks import Doom, exit_codes, launch, train_larger_line
from tests.unit.train.test_run import assert_equal_trees

STEPS = 500
KILLED = -signal.SIGKILL

# Everything that has a state of its own: averages, rates, norms, random numbers, the data's place.
SETTINGS: Mapping[str, object] = {
    "train__steps": STEPS,
    "train__accumulate": 2,
    "train__ema": 0.99,
    "train__clip__kind": "adaptive",
    "schedule__kind": "cosine",
    "schedule__warmup_steps": 10,
    "checkpoint__every_steps": 5,
    "eval__every_steps": 90,
    "loader__eval_workers": 0,
}


def newest(folder: Path) -> Checkpoint | None:
    return find_newest_whole(folder / "run" / "checkpoints")[0]


def final_state(folder: Path, *, world_size: int) -> list[dict[str, Any]]:
    checkpoint = newest(folder)
    assert checkpoint is not None
    assert checkpoint.manifest.step == STEPS
    common = checkpoint.common()
    del common["config"]  # names the folder
    return [common, *(checkpoint.of_rank(rank) for rank in range(world_size))]


def attempt(
    folder: Path,
    settings: Mapping[str, object],
    *,
    world_size: int,
    doom: Doom | None = None,
    killed_after_s: float | None = None,
) -> list[int | None]:
    """Start all ranks where the newest checkpoint left them; give how each ended."""
    ranks = launch(
        train_larger_line, folder, settings, doom, world_size=world_size, logs=folder / "logs"
    )
    if killed_after_s is not None:
        ranks[0].join(killed_after_s)
        for process in ranks:
            process.kill()
    return exit_codes(ranks)


def steps_recorded(folder: Path) -> list[int]:
    """Steps that each attempt of the first rank has lines for, one number an attempt."""
    lines = (folder / "run" / "rank-0.jsonl").read_bytes().split(b"\n")
    counts = []
    for line in lines:
        if b'"kind":"run"' in line:
            counts.append(0)
        elif line.startswith(b"["):
            counts[-1] += 1
    return counts


def losses(folder: Path) -> list[list[float]]:
    """Every loss of each step in the record: a step that was done again has several."""
    series = read_run(folder / "run").first.scalars["loss"]
    by_step: dict[int, list[float]] = {}
    for step, value in zip(series.step.tolist(), series.value.tolist(), strict=True):
        by_step.setdefault(step, []).append(value)
    assert sorted(by_step) == list(range(STEPS)), "the record has a gap"
    return [by_step[step] for step in sorted(by_step)]


def planned_ends(*, world_size: int, whole_s: float) -> Iterator[tuple[Doom | None, float | None]]:
    """Ten ends: of one rank in a step, of the first in a save, of all at any moment.

    Moments are shares of what a whole run takes, so that no attempt gets to the end.
    """
    draw = random.Random(world_size)
    for _ in range(3):
        rank, count = draw.randrange(world_size), draw.randint(20, 60)
        yield Doom(rank=rank, how="killed in a step", count=count), None
    for _ in range(3):
        yield Doom(rank=0, how="killed in a save", count=draw.randint(1, 20)), None
    yield None, draw.uniform(0, 0.01) * whole_s  # before training begins
    for _ in range(3):
        yield None, draw.uniform(0.02, 0.08) * whole_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "settings"),
    [(2, {}), (1, {"loader__workers": 4, "loader__prefetch": 2, "loader__persistent": True})],
    ids=["two ranks", "one rank, four workers"],
)
def test_ten_kills_leave_no_trace_in_weights_optimizer_or_average(
    tmp_path: Path, world_size: int, settings: dict[str, object]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = {**SETTINGS, **settings}
    started = time.perf_counter()
    assert attempt(whole, settings, world_size=world_size) == [0] * world_size
    whole_s = time.perf_counter() - started

    ends = list(planned_ends(world_size=world_size, whole_s=whole_s))
    random.Random(0).shuffle(ends)
    in_training = 0
    for doom, killed_after_s in ends:
        before = newest(cut)
        codes = attempt(
            cut, settings, world_size=world_size, doom=doom, killed_after_s=killed_after_s
        )
        assert KILLED in codes, "this attempt ended before it was killed"
        assert 0 not in codes, "a run that lost a rank must not call itself finished"
        assert None not in codes, "a rank went on waiting for one that is gone"
        after = newest(cut)
        if before is not None:
            assert after is not None, "a checkpoint that was whole is gone"
            assert after.manifest.step >= before.manifest.step
        in_training += after is not None and 0 < after.manifest.step < STEPS
    assert len(ends) == 10
    assert in_training >= 6
    assert attempt(cut, settings, world_size=world_size) == [0] * world_size

    left, right = (final_state(folder, world_size=world_size) for folder in (whole, cut))
    assert_equal_trees(left, right)
    assert sum(count > 0 for count in steps_recorded(cut)) >= 6, "few kills landed in training"
    for alone, resumed in zip(losses(whole), losses(cut), strict=True):
        assert set(resumed) == set(alone), "steps done again have the same loss again"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_rank_is_killed_the_others_end_and_the_run_can_go_on(
    tmp_path: Path, rank: int
) -> None:
    doom = Doom(rank=rank, how="killed in a step", count=50)
    short = {**SETTINGS, "train__steps": 40}
    codes = attempt(tmp_path, short, world_size=2, doom=doom)
    assert codes[rank] == KILLED
    assert codes[1 - rank] not in (0, None)
    survivor = read_run(tmp_path / "run").ranks[1 - rank]
    assert survivor.ending is not None
    assert survivor.ending.status == "failed"
    assert "ended without writing a reason into its record" in survivor.ending.reason
    assert attempt(tmp_path, short, world_size=2) == [0, 0]
    assert read_run(tmp_path / "run").first.is_finished
