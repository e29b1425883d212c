"""Advice fits the script and the machine: what is not there is not advised to be changed."""

from dataclasses import replace
from typing import Any

import pytest

from pitstop.doctor.facts import Facts
from pitstop.doctor.rules.cadence import checkpoint, evaluation, host_work
from pitstop.doctor.rules.compute import loss_bound, optimizer_bound, recompute_cost
from pitstop.doctor.rules.data import data_wait
from pitstop.doctor.rules.fitting import FITTED
from pitstop.doctor.rules.machine import other_jobs
from pitstop.doctor.rules.places import places_of
from pitstop.doctor.rules.remedies import REMEDIES, remedy_for
from pitstop.records.script import HostLines
from pitstop.records.verdict import Finding
from tests.unit.doctor.records import (
    GIB,
    LOADER,
    ON_CPU,
    OWNERS,
    SETUP,
    facts,
    gpu_load,
    host_line,
    host_lines,
    load,
    memory,
)

STARVED = {"data": 4_000, "forward": 2_000, "backward": 4_000}
BUSY_HOST = {"host": 4_000, "forward": 2_000, "backward": 4_000}
NO_LOADER = replace(ON_CPU, loaders=())
FULL = {"usable_cores": 2.0, "host_cpu_cores": 2.0}
BY_OTHERS = load(tree_cpu_cores=0.3, **FULL)
BY_US = load(tree_cpu_cores=2.0, **FULL)

ENV = "observation, *_ = self.env.step(action)"
COLLECTS: dict[str, Any] = {"apart": {"evaluation": dict.fromkeys(range(9, 100, 10), 50_000)}}


def found(finding: Finding | None) -> Finding:
    assert finding is not None
    return finding


def test_every_line_that_is_fitted_is_a_line_of_advice() -> None:
    lines = {line for remedy in REMEDIES.values() for line in remedy.code}
    assert set(FITTED) <= lines


def test_a_script_without_a_loader_gets_no_advice_on_loaders() -> None:
    run = facts(STARVED, readings=[NO_LOADER])
    with_loader = facts(STARVED, readings=[replace(ON_CPU, loaders=(LOADER,))])
    for code in ("COPY001", "LAUNCH001", "MEM003", "COMPILE001", "BATCH001", "EVAL001"):
        assert not any("DataLoader" in line for line in remedy_for(run, code)), code
    for code in ("COPY001", "LAUNCH001", "MEM003", "COMPILE001", "BATCH001"):
        assert any("DataLoader" in line for line in remedy_for(with_loader, code)), code
    off = "make batches outside the training thread: a DataLoader with workers, or a prefetching"
    assert found(data_wait(run)).remedy[0].startswith(off)
    line = host_lines(host_line("x = make_batch()", 400))
    first = found(host_work(facts(BUSY_HOST, readings=[NO_LOADER, line]))).remedy[0]
    assert first.startswith(f"if it makes the next batch: {off}")


@pytest.mark.parametrize(
    ("reading", "who"),
    [(BY_OTHERS, "other processes use 1.7 of 2 cores"), (BY_US, "this job's own threads")],
)
def test_workers_are_not_advised_where_no_core_is_free(reading: Any, who: str) -> None:
    setup = replace(ON_CPU, loaders=(replace(LOADER, workers=0),))
    crowded = found(data_wait(facts(STARVED, readings=[setup, reading]))).remedy[1]
    assert crowded.startswith(f"no core is free for loader workers ({who}")
    free = found(data_wait(facts(STARVED, readings=[setup, load()]))).remedy[0]
    assert "num_workers=15" in free


def test_an_evaluation_is_not_given_workers_where_no_core_is_free() -> None:
    setup = replace(ON_CPU, loaders=(replace(LOADER, trains=False, workers=0),))
    crowded = facts(STARVED, readings=[setup, BY_OTHERS], **COLLECTS)
    assert not any("workers" in line for line in found(evaluation(crowded)).remedy)
    free = facts(STARVED, readings=[setup, load()], **COLLECTS)
    assert any("workers of its own" in line for line in found(evaluation(free)).remedy)


def test_an_environment_that_is_stepped_is_told_of_many_at_once() -> None:
    acting = host_lines(host_line("observation, *_ = env.step(action)", 400))
    advice = found(host_work(facts(BUSY_HOST, readings=[NO_LOADER, acting]))).remedy
    assert "gymnasium.make_vec" in advice[0]
    assert not any("batch: move" in line for line in advice)
    inside = host_lines(host_line("x = play()", 400, part="data", calls="gymnasium.core.step"))
    assert "make_vec" in found(data_wait(facts(STARVED, readings=[NO_LOADER, inside]))).remedy[0]
    other = host_lines(host_line("optimizer_envelope.step()", 400))
    assert "make_vec" not in str(host_work(facts(BUSY_HOST, readings=[NO_LOADER, other])))


def test_gradients_by_hand_are_not_taken_for_a_batch_that_is_made() -> None:
    line = host_line("total += float(np.square(p.grad.tolist()).sum())", 60)
    advice = found(host_work(facts(BUSY_HOST, readings=[NO_LOADER, host_lines(line)]))).remedy
    assert "clip_grad_norm_" in advice[0]
    assert "next batch" not in str(advice)


def test_acting_between_updates_is_no_evaluation() -> None:
    # As in PPO: a policy that is set to evaluate collects what the next updates train on.
    passes = host_line("model.learn(steps)", 54, part="evaluation")
    acting = host_lines(host_line("loss", 60, part="loss"), host_line("x", 20))
    acting = replace(acting, outside=(passes, host_line(ENV, 7, part="evaluation")))
    run = facts(STARVED, readings=[NO_LOADER, acting], **COLLECTS)
    assert evaluation(run) is None
    other = found(host_work(run))
    assert "gymnasium.make_vec" in other.remedy[0]
    share = 450_000 / (450_000 + 90 * 10_000)
    assert other.bound is not None
    assert other.bound.share == pytest.approx(share)
    assert "33.3% in passes of a model set to evaluate, which step environments" in other.evidence


def test_a_policy_that_acts_in_its_steps_is_evaluated_between_them() -> None:
    acting = host_lines(host_line("y, *_ = env.step(action)", 40))
    acting = replace(acting, outside=(host_line(ENV, 30, part="evaluation"),))
    run = facts(BUSY_HOST, readings=[NO_LOADER, acting], **COLLECTS)
    assert found(evaluation(run)).code == "EVAL001"
    assert "set to evaluate" not in str(found(host_work(run)).evidence)


def test_nobody_is_told_to_move_the_call_that_makes_all_steps() -> None:
    call = "model.learn(total_timesteps)"
    lines = [host_line(call, 90, part=part) for part in ("host", "backward", "optimizer")]
    advice = found(host_work(facts(BUSY_HOST, readings=[NO_LOADER, host_lines(*lines)]))).remedy
    assert not any("move the lines above" in line for line in advice)
    assert any("its settings and callbacks" in line for line in advice)
    own = host_lines(host_line("metric(y)", 90), *lines[1:])
    advice = found(host_work(facts(BUSY_HOST, readings=[NO_LOADER, own]))).remedy
    assert any("move the lines above" in line for line in advice)


def test_another_device_is_advised_only_where_a_stranger_is_on_this_one() -> None:
    on_host = found(other_jobs(facts(STARVED, readings=[ON_CPU, BY_OTHERS])))
    assert "CUDA_VISIBLE_DEVICES" not in str(on_host.remedy)
    stranger = load(gpu_load(other_pids=(7,)))
    on_gpu = found(other_jobs(facts(STARVED, readings=[SETUP, stranger])))
    assert "CUDA_VISIBLE_DEVICES" in on_gpu.remedy[0]


def test_advice_on_a_frozen_network_needs_one() -> None:
    step = {"forward": 2_000, "loss": 6_000, "backward": 2_000}
    without = found(loss_bound(facts(step, readings=[ON_CPU])))
    assert not any("frozen" in line or "layers" in line for line in without.remedy)
    assert without.remedy[0].startswith("loops over samples in the lines above")
    setup = replace(ON_CPU, frozen=("VGG",))
    seen = found(loss_bound(facts(step, readings=[setup])))
    assert any(line.startswith("run the frozen VGG") for line in seen.remedy)
    assert not any("loops over samples" in line for line in seen.remedy)


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        ([SETUP, replace(OWNERS, peak_bytes=30 * GIB)], "try it, it may not fit, 50.0 GiB of the"),
        (
            [SETUP, replace(OWNERS, peak_bytes=75 * GIB)],
            "it may well not fit, 5.00 GiB of the device's",
        ),
        ([ON_CPU], "try it, it may not fit, free memory was not measured"),
        ([ON_CPU, memory(1.0, GIB, GIB)], "60.0 GiB of the host's 64.0 GiB is free"),
    ],
)
def test_leaving_recomputation_out_names_the_memory_there_is(
    readings: list[object], words: str
) -> None:
    parts = {"forward": 3_000, "backward": 6_000, ("backward", "recompute"): 1_800}
    advice = found(recompute_cost(facts(parts, readings=readings))).remedy[0]
    assert advice.startswith("remove torch.utils.checkpoint: ")
    assert words in advice


def test_bars_and_log_files_are_advised_where_lines_speak_of_them() -> None:
    def advice(text: str) -> str:
        lines = host_lines(host_line(text, 50))
        return " ".join(remedy_for(facts(STARVED, readings=[ON_CPU, lines]), "LOG001"))

    assert "tqdm" in advice("bar.set_postfix(loss=x)")
    assert "tqdm" not in advice("file.write(x)")
    assert "log file" in advice("file.write(x)")
    assert "log file" not in advice("print(x)")


def run_with_lines(part: str, parts: dict[str, int], **rest: Any) -> Facts:
    usual, rare = host_line(f"{part}()", 90, part=part), host_line("chance()", 2, part=part)
    lines = HostLines(samples=200, every_us=10_000, lines=(rare, usual), outside=())
    if part in ("evaluation", "checkpoint"):
        lines = replace(lines, lines=(), outside=(rare, usual))
    return facts(parts, readings=[ON_CPU, lines], **rest)


def test_every_costly_part_is_told_with_its_line() -> None:
    step = {"forward": 3_000, "backward": 3_000}
    apart = dict.fromkeys(range(10, 100, 10), 60000)
    cases = [
        (evaluation(run_with_lines("evaluation", step, apart={"evaluation": apart})), "evaluation"),
        (checkpoint(run_with_lines("checkpoint", step, apart={"checkpoint": apart})), "checkpoint"),
        (loss_bound(run_with_lines("loss", step | {"loss": 6_000})), "loss"),
        (optimizer_bound(run_with_lines("optimizer", step | {"optimizer": 6_000})), "optimizer"),
    ]
    for finding, part in cases:
        evidence = "\n".join(found(finding).evidence)
        assert "97.8% of it at train.py:" in evidence
        assert f"`{part}()`" in evidence
        assert "chance()" not in evidence


def test_few_looks_name_a_place_without_a_share() -> None:
    lines = host_lines(host_line("optimizer.step()", 2, part="optimizer"))
    run = facts({"optimizer": 5_000, "forward": 5_000}, readings=[ON_CPU, lines])
    [words] = places_of(run, "optimizer")
    assert words.startswith("at train.py:")
    assert words.endswith(" `optimizer.step()`")
    assert places_of(run, "loss") == ()
