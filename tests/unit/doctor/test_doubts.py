"""Where two measurements of one thing disagree, finding and message say so."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.doctor.examine import examine
from pitstop.doctor.message import largest_part, message_of
from pitstop.records.run import RankRecord
from pitstop.records.script import Modules, ModuleTime
from pitstop.records.verdict import Finding, Verdict
from tests.unit.doctor.records import (
    KERNELS,
    LOADER,
    ON_CPU,
    SETUP,
    WORK,
    WORKER,
    facts,
    noisy,
    rank,
    run_of,
)

NAMES = ("data", "forward", "loss", "backward", "optimizer", "host", "zero_grad", "unaccounted")
STARVED = {"data": 30_000, "forward": 10_000}


def judged(record: RankRecord) -> tuple[Verdict, Finding]:
    verdict = examine(run_of(record))
    return verdict, verdict.findings[0]


@given(st.dictionaries(st.sampled_from(NAMES), st.floats(0.001, 1), min_size=1))
def test_the_largest_part_is_named_with_its_true_share(weights: dict[str, float]) -> None:
    whole = sum(weights.values())
    shares = {name: weight / whole for name, weight in weights.items()}
    said = largest_part(shares)
    assert said is not None
    most = max(shares.values())
    named = [name for name, share in shares.items() if share == most]
    assert any(
        f" {'unaccounted for' if n == 'unaccounted' else n} ({most:.1%})" in said for n in named
    )
    assert ("most of the time" in said) == (most > 0.5)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES[:-1]), st.integers(10, 10_000), min_size=1),
    st.integers(0, 1_000),
    st.floats(0.05, 2.0),
)
def test_the_sentence_of_a_run_without_a_finding_names_its_largest_part(
    means: dict[str, int], seed: int, spread: float
) -> None:
    """However unevenly the parts fall: what is uncertain may be the largest all the same."""
    parts = {name: noisy(us, 60, seed + us, spread) for name, us in means.items()}
    run = facts(parts, steps=60)
    shares = run.shares()
    name = max(shares, key=shares.__getitem__)
    assert f" {name} ({shares[name]:.1%})" in message_of(None, (), run)


def test_a_run_whose_largest_parts_cannot_be_judged_is_not_called_healthy() -> None:
    host = np.zeros(100)
    host[[29, 40, 77, 90]] = 10_000.0, 28_000.0, 10_000.0, 12_000.0
    verdict = examine(run_of(rank({"forward": 1_000.0, "host": host})))
    assert verdict.outcome == "not enough evidence"
    assert verdict.message.startswith("host took 40.0% ± ")
    assert "but varies too much to judge" in verdict.message


def test_a_wait_that_the_loading_process_contradicts_is_doubted() -> None:
    alone = replace(ON_CPU, loaders=(replace(LOADER, workers=0, pinned=False),))
    timed = replace(WORKER, worker=-1, batches=100, read_us=2_990_000, collate_us=10_000)
    _, agreed = judged(rank(STARVED, readings=[alone, timed]))
    assert (agreed.code, agreed.doubts, agreed.confidence) == ("DATA001", (), "high")
    verdict, found = judged(rank(STARVED, readings=[alone, replace(timed, read_us=190_000)]))
    assert (found.code, found.confidence) == ("DATA001", "low")
    assert "waits 30.0 ms per step, but making a batch" in found.doubts[0]
    assert f"; uncertain: {found.doubts[0]}" in verdict.message


def test_a_wait_for_workers_who_are_fast_enough_is_doubted() -> None:
    workers = [
        replace(WORKER, pid=number, worker=number, batches=25, read_us=3_900_000)
        for number in range(4)
    ]
    _, agreed = judged(rank(STARVED, readings=[ON_CPU, *workers]))
    assert (agreed.code, agreed.doubts) == ("DATA001", ())
    fast = [replace(worker, read_us=900_000) for worker in workers]
    _, found = judged(rank(STARVED, readings=[ON_CPU, *fast]))
    assert found.confidence == "low"
    assert "4 workers make a batch every 10.0 ms, and a step takes 40.0 ms" in found.doubts[0]


def test_two_clocks_that_disagree_are_both_told() -> None:
    steps = {"data": 6_000, "forward": 4_000}
    idle = replace(KERNELS, busy_us=4_000.0)
    _, agreed = judged(rank(steps, device=steps, readings=[SETUP, idle, WORK]))
    assert (agreed.code, agreed.doubts) == ("DATA001", ())
    record = rank(steps, device=steps, readings=[SETUP, idle, WORK])
    assert record.steps is not None
    slower = replace(record.steps, device_wall_us=record.steps.wall_us * 1.5)
    _, found = judged(replace(record, steps=slower))
    assert "10.0 ms by the host's clock and 15.0 ms by the device's" in found.doubts[0]


def test_kernels_longer_than_a_step_and_marks_against_kernels_are_doubted() -> None:
    steps = {"data": 6_000, "forward": 4_000}
    # Idle by the kernels 30 %, by the marks 60 %.
    busy = replace(KERNELS, busy_us=7_000.0)
    _, found = judged(rank(steps, device=steps, readings=[SETUP, busy, WORK]))
    assert "60.0% of the time by CUDA events, 30.0% by its kernels" in found.doubts[0]
    update = {"optimizer": 6_000, "forward": 4_000}
    long = replace(KERNELS, busy_us=15_000.0)
    _, found = judged(rank(update, device=update, readings=[SETUP, long, WORK]))
    assert found.doubts == ("kernels of a profiled step take 15.0 ms, but a step 10.0 ms",)


def test_what_was_not_sampled_is_said_before_a_bottleneck_is_named() -> None:
    steps = {"data": 6_000, "forward": 4_000}
    verdict, found = judged(rank(steps, device=steps, readings=[SETUP]))
    assert verdict.message.startswith(
        "kernels and arithmetic were not sampled; from the rest: the training loop waits for data"
    )
    assert found.confidence == "low"
    idle = replace(KERNELS, busy_us=4_000.0)
    verdict, found = judged(rank(steps, device=steps, readings=[SETUP, idle, WORK]))
    assert verdict.message.startswith("the training loop waits for data")
    verdict, found = judged(rank(steps, readings=[ON_CPU]))
    assert verdict.message.startswith("the training loop waits for data"), "a CPU has no kernels"
    assert found.confidence == "high"


@pytest.mark.parametrize(("forward_us", "doubted"), [(4_000, False), (900, True), (9_000, True)])
def test_modules_that_do_not_make_up_their_part_are_doubted(
    forward_us: int, *, doubted: bool
) -> None:
    """A module inside another one is counted once."""
    modules = Modules(
        step=500,
        modules=(
            ModuleTime(name="body", kind="Net", forward_us=forward_us, backward_us=None),
            ModuleTime(name="body.0", kind="Conv", forward_us=forward_us, backward_us=None),
        ),
    )
    message = examine(run_of(rank({"forward": 4_000.0}, readings=[modules]))).message
    assert ("uncertain: modules sum to" in message) == doubted


def test_on_a_gpu_the_closing_sentence_says_how_busy_the_device_is() -> None:
    steps = {"forward": 6_000, "backward": 4_000}
    verdict = examine(run_of(rank(steps, device=steps, readings=[SETUP, KERNELS, WORK])))
    assert verdict.outcome == "healthy"
    assert verdict.message.endswith(
        "most of the time is forward (60.0%) on the host; the device is busy 95.0% of the time"
    )


def test_of_a_host_that_waits_for_its_device_the_device_says_where_the_time_goes() -> None:
    """A wait names no work, and a module around all others no part of the model."""
    host = {"forward": 1_000, "backward": 1_000, "wait": 8_000}
    device = {"forward": 3_000, "backward": 7_000, "wait": 0}
    modules = Modules(
        step=500,
        modules=(
            ModuleTime(name="(model)", kind="GPT", forward_us=1_000, backward_us=1_000),
            ModuleTime(name="h", kind="Blocks", forward_us=700, backward_us=700, parent=0),
            ModuleTime(name="head", kind="Linear", forward_us=300, backward_us=300, parent=0),
        ),
    )
    readings = [SETUP, KERNELS, WORK, modules]
    verdict = examine(run_of(rank(host, device=device, readings=readings)))
    assert verdict.outcome == "healthy"
    assert verdict.message.endswith(
        "most of the time is backward (70.0%), mostly h (Blocks) 70.0% on the device; the device "
        "is busy 95.0% of the time"
    )


def test_confidence_follows_from_the_doubts_whatever_is_given() -> None:
    found = Finding(
        code="DATA001", severity="info", summary="", evidence=(), bound=None, remedy=(),
        doubts=("x",), confidence="high",
    )  # fmt: skip
    assert found.confidence == "low"
    assert replace(found, doubts=()).confidence == "high"


@pytest.mark.parametrize(("share", "outcome"), [(0.095, "healthy"), (0.105, "bottleneck")])
def test_a_share_about_its_limit_is_reported_with_reservation(share: float, outcome: str) -> None:
    """Either way the same part is named: which way it falls is chance."""
    wait = noisy(10_000 * share, 200, 1, 0.1)
    verdict = examine(run_of(rank({"data": wait, "forward": 10_000 - wait}, steps=200)))
    assert verdict.outcome == outcome
    assert "another run may" in verdict.message
    assert "data" in verdict.message


@pytest.mark.parametrize("share", [0.05, 0.08, 0.13, 0.40])
def test_a_share_far_from_its_limit_needs_no_reservation(share: float) -> None:
    wait = noisy(10_000 * share, 200, 1, 0.1)
    verdict = examine(run_of(rank({"data": wait, "forward": 10_000 - wait}, steps=200)))
    assert "another run may" not in verdict.message


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.07, 0.14))
def test_runs_of_one_program_differ_only_with_reservation(seed: int, share: float) -> None:
    """Where one of six runs names a bottleneck and another none, each says that it may differ."""
    verdicts = []
    for number in range(6):
        wait = noisy(10_000 * share, 120, seed + number, 0.5)
        work = noisy(10_000 * (1 - share), 120, seed + number + 100, 0.1)
        verdicts.append(examine(run_of(rank({"data": wait, "forward": work}, steps=120))))
    if len({verdict.outcome for verdict in verdicts}) > 1:
        reserved = sum("another run may" in verdict.message for verdict in verdicts)
        assert reserved >= 5


@pytest.mark.parametrize(
    ("period", "trains", "is_doubted"),
    [(1, False, True), (1, True, False), (1, None, False), (5, False, False)],
)
def test_an_evaluation_at_every_step_may_be_the_batches_of_the_training(
    period: int, trains: bool | None, is_doubted: bool
) -> None:
    loaders = () if trains is None else (replace(LOADER, trains=trains),)
    apart = {"evaluation": dict.fromkeys(range(0, 100, period), 20_000 * period)}
    record = rank({"forward": 10_000}, apart=apart, readings=[replace(SETUP, loaders=loaders)])
    _, finding = judged(record)
    assert finding.code == "EVAL001"
    assert ("batches of the training" in str(finding.doubts)) == is_doubted
