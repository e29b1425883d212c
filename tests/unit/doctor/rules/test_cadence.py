"""Rules on what happens every so often, and on Python between the parts."""

import math
from dataclasses import replace

import numpy as np
import pytest

from pitstop.doctor.facts import facts_of
from pitstop.doctor.host_lines import is_logging
from pitstop.doctor.rules.cadence import (
    checkpoint,
    evaluation,
    host_work,
    logging,
    time_outside_steps,
)
from pitstop.records.script import HostLine, Setup
from tests.unit.doctor.records import (
    KERNELS,
    ON_CPU,
    SETUP,
    facts,
    host_line,
    host_lines,
    rank,
    syncs,
)

STEP = {"data": 100, "forward": 3_900, "backward": 6_000}


def every(period: int, us: int, steps: int = 100) -> dict[int, int]:
    return dict.fromkeys(range(period - 1, steps, period), us)


@pytest.mark.parametrize(
    ("rule", "name", "code"),
    [(evaluation, "evaluation", "EVAL001"), (checkpoint, "checkpoint", "CKPT001")],
)
def test_a_cadence_costs_its_share_of_the_run(rule, name: str, code: str) -> None:  # type: ignore[no-untyped-def]
    found = rule(facts(STEP, apart={name: every(10, 50_000)}))
    assert found is not None
    assert found.bound is not None
    assert (found.code, found.severity, found.bound.part) == (code, "critical", name)
    assert found.bound.share == pytest.approx(9 * 50_000 / (9 * 50_000 + 90 * 10_000))
    assert "9 times, one per 10 steps" in found.evidence
    assert rule(facts(STEP, apart={name: every(10, 10_000)})) is None
    assert rule(facts(STEP)) is None


def test_a_cadence_also_costs_what_it_adds_to_the_steps_it_falls_in() -> None:
    saves = every(10, 50_000)
    forward = np.full(100, 3_900.0)
    forward[list(saves)] += 5_000
    found = checkpoint(facts(STEP | {"forward": forward}, apart={"checkpoint": saves}))
    assert found is not None
    assert found.bound is not None
    spent = 9 * 55_000
    assert found.bound.share == pytest.approx(spent / (spent + 90 * 10_000))
    assert "of that, 3.2% is inside steps" in found.evidence[-1]


@pytest.mark.parametrize("period", [25, 50, 80])
def test_evaluations_at_even_distances_are_judged_by_their_share_alone(period: int) -> None:
    """Taken for chance, a few of them would be within two standard errors of nothing."""
    evaluations = every(period, period * 2_500, steps=200)
    found = evaluation(facts(STEP, steps=200, apart={"evaluation": evaluations}))
    assert found is not None
    assert found.severity == "warning"


def test_an_evaluation_that_came_once_has_no_cadence_yet() -> None:
    found = evaluation(facts(STEP, apart={"evaluation": {60: 500_000}}))
    assert found is not None
    assert found.severity == "info"


def test_a_first_evaluation_that_compiles_is_no_cadence() -> None:
    one_off = {30: 360_000, 60: 14_000, 90: 14_000}
    assert evaluation(facts(STEP, apart={"evaluation": one_off})) is None
    also_costly = {30: 600_000, 60: 200_000, 90: 250_000}
    found = evaluation(facts(STEP, apart={"evaluation": also_costly}))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(1_050_000 / (900_000 + 1_050_000))


def test_what_falls_in_one_step_happened_once() -> None:
    """A save of two files is one save: two events that follow each other before the same step."""
    record = rank(STEP, apart={"checkpoint": every(10, 50_000)})
    halves = [
        replace(event, start_us=event.start_us + late, wall_us=25_000)
        for event in record.events
        for late in (0, 25_000)
    ]
    found = checkpoint(facts_of(replace(record, events=tuple(halves))))
    assert found is not None
    assert found.evidence[1] == "9 times, one per 10 steps"
    assert found.evidence[2].startswith("median 50.0 ms")


def test_an_evaluation_in_warm_up_does_not_count() -> None:
    assert evaluation(facts(STEP, apart={"evaluation": {3: 10**9, 4: 10**9}})) is None


LOGGED = STEP | {"host": 10_000}


def error_of(hits: int, looks: int) -> float:
    """The binomial error of a share, with two hits and two misses more than were seen."""
    share = (hits + 2) / (looks + 4)
    return math.sqrt(share * (1 - share) / (looks + 4))


def test_lines_that_log_are_told_from_other_python() -> None:
    printing = host_line('print(f"step {step}")', 300, calls="print")
    other = host_line("meter.update(x)", 100)
    loop = host_line("loss.backward()", 900, part="backward")
    run = facts(LOGGED, readings=[ON_CPU, host_lines(loop, printing, other)])
    log, host = logging(run), host_work(run)
    assert log is not None
    assert log.bound is not None
    # Half of the run, hit by three looks of four: sqrt(0.75 x 0.25 / 400) of that half, nearly.
    assert log.evidence[0] == "37.5% ± 1.1% of 90 steps"
    assert log.bound.share == pytest.approx(0.5 * (0.75 + 2 * error_of(300, 400)))
    assert "print(f" in log.evidence[1]
    assert host is None, "an eighth of the run is not much"


def test_a_function_that_writes_a_log_counts_whole_and_the_loop_does_not() -> None:
    def at(function: str, line: int, text: str, samples: int, part: str = "host") -> HostLine:
        made = host_line(text, samples, part=part)
        return replace(made, function=function, line=line)

    lines = (
        at("main", 60, "loss.backward()", 900, part="backward"),
        at("main", 70, "print(loss)", 100),
        at("main", 71, "metric(output)", 100),
        at("write_log", 20, "values = gather(model)", 100),
        at("<listcomp>", 22, "[f'{v:.3f}' for v in values]", 50),
        at("write_log", 25, "json.dump(values, file)", 50),
    )
    run = facts(LOGGED, readings=[ON_CPU, host_lines(*lines)])
    log, host = logging(run), host_work(run)
    assert log is not None
    assert log.evidence[0].startswith("37.5% ±"), "three quarters of the looks at half of the run"
    assert host is None
    shares = [facts(LOGGED, readings=[ON_CPU, host_lines(*lines[:3])])]
    found = logging(shares[0])
    assert found is not None
    assert found.evidence[0].startswith("25.0% ±"), "of the loop, the line that prints alone"


def test_looks_bound_a_gain_from_above_and_never_by_more_than_their_part() -> None:
    loop = host_line("loss.backward()", 40, part="backward")
    few = (loop, host_line("print(loss)", 38), host_line("meter.update(x)", 2))
    found = logging(facts(LOGGED, readings=[ON_CPU, host_lines(*few)]))
    assert found is not None
    assert found.bound is not None
    assert found.evidence[0].startswith("47.5% ±")
    assert found.bound.share == pytest.approx(0.5), "two standard errors more would be 50.9 %"


def test_a_line_is_counted_once_whatever_it_called() -> None:
    lines = [
        host_line("json.dump(state, file)", 100, calls="json.dump"),
        host_line("json.dump(state, file)", 200, calls="json.dump > encoder.iterencode"),
        host_line("step(batch)", 20),
    ]
    found = logging(facts(LOGGED, readings=[ON_CPU, host_lines(*lines)]))
    assert found is not None
    assert [line for line in found.evidence if "json.dump" in line] == [
        f"46.9% at train.py:{lines[0].line} `json.dump(state, file)`"
    ]


def test_python_that_does_not_log_is_named_line_by_line() -> None:
    heavy, light = host_line("for p in pixels:", 380), host_line("logger.info(x)", 20)
    run = facts(LOGGED, readings=[ON_CPU, host_lines(heavy, light)])
    found = host_work(run)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.5 * (0.95 + 2 * error_of(380, 400)))
    assert "47.5% at train.py" in found.evidence[1]
    assert "for p in pixels:" in found.evidence[1]
    assert logging(run) is None


def test_lines_that_may_load_are_told_how_loading_is_done() -> None:
    loads = "if it makes the next batch"
    alone = replace(ON_CPU, loaders=())

    def places(line: HostLine, setup: Setup = alone) -> list[int]:
        loop = replace(host_line("loss.backward()", 900, part="backward"), line=60)
        found = host_work(facts(LOGGED, readings=[setup, host_lines(loop, line)]))
        assert found is not None
        last = len(found.remedy) - 1
        return [at - last for at, text in enumerate(found.remedy) if text.startswith(loads)]

    line = host_line("x, y = get_batch()", 400)
    before, elsewhere = replace(line, line=50), replace(line, function="get_batch", line=90)
    assert places(before) == places(elsewhere) == [-2], "first of three"
    # Where a loader makes the batches of training, such a line most likely does something else.
    assert places(before, ON_CPU) == places(elsewhere, ON_CPU) == [0], "last"
    assert places(replace(line, line=70)) == [], "below the passes"
    engine = facts(LOGGED, applied={"loader.workers": {"workers": 2}})
    found = host_work(engine)
    assert found is not None
    assert not any("DataLoader" in text for text in found.remedy)


def test_waits_are_taken_off_other_python_once_and_only_where_they_were_looked_at() -> None:
    waiting = LOGGED | {"wait": 5_000}
    idle = replace(KERNELS, busy_us=5_000.0, sync_us=6_000.0)
    found = host_work(facts(waiting, readings=[SETUP, idle]))
    assert found is not None
    assert found.bound is not None
    # 25 ms: 10 of other Python, with 1 of the 6 that the driver saw; 5 have their own part.
    assert found.bound.share == pytest.approx(9 / 25)
    marked = facts(waiting, device={"host": 9_000, "forward": 3_900, "backward": 6_000})
    assert host_work(marked) is None, "how much of it is waiting is not known"


def test_without_lines_the_whole_span_is_other_work() -> None:
    found = host_work(facts(LOGGED, readings=[ON_CPU]))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.5)
    assert host_work(facts(STEP | {"host": 1_000}, readings=[ON_CPU])) is None


def test_a_line_that_waits_for_the_device_is_the_sync_rules_business() -> None:
    line = host_line("print(loss.item())", 400)
    readings = [SETUP, replace(KERNELS, busy_us=8_000.0), host_lines(line), syncs(line, 10**6)]
    run = facts(LOGGED, readings=readings)
    assert logging(run) is None
    assert host_work(run) is None


def test_python_beside_a_busy_device_costs_nothing() -> None:
    run = facts(LOGGED, readings=[SETUP, replace(KERNELS, busy_us=19_500.0)])
    assert host_work(run) is None
    idle = facts(LOGGED, readings=[SETUP, replace(KERNELS, busy_us=14_000.0)])
    found = host_work(idle)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.3)


def test_few_looks_say_nothing_of_single_lines() -> None:
    few = host_lines(host_line("print(x)", 7))
    run = facts(LOGGED, readings=[ON_CPU, few])
    assert logging(run) is None
    found = host_work(run)
    assert found is not None
    assert len(found.evidence) == 1
    assert not any("above" in fix for fix in found.remedy)
    assert any("--steps 1000" in fix for fix in found.remedy)


def test_a_dozen_looks_tell_logging_from_other_python_within_their_error() -> None:
    few = host_lines(host_line("print(x)", 12))
    run = facts(LOGGED, readings=[ON_CPU, few])
    found = logging(run)
    assert found is not None
    assert found.evidence[0] == f"50.0% ± {0.5 * error_of(12, 12):.1%} of 90 steps"
    assert host_work(run) is None
    loop = host_line("loss.backward()", 40, part="backward")
    half = host_lines(loop, host_line("print(x)", 5), host_line("count(x)", 5))
    even = facts(STEP | {"host": 3_000}, readings=[ON_CPU, half])
    assert logging(even) is None, "11.5 % of the run, of which few looks make nothing sure"


def test_the_share_of_python_is_told_with_its_error() -> None:
    uneven = np.where(np.arange(100) % 2, 12_000.0, 8_000.0)
    found = host_work(facts(STEP | {"host": uneven}, readings=[ON_CPU]))
    assert found is not None
    assert "50.0% ± 0.5% of 90 steps" in found.evidence[0]


def test_what_watching_adds_to_short_steps_is_not_the_scripts() -> None:
    """Steps of 0.2 ms that do nothing between their parts: 45 us there are the probe's."""
    step = {"forward": 45, "backward": 80, "optimizer": 30}
    assert host_work(facts(step | {"host": 45}, readings=[ON_CPU])) is None
    assert host_work(facts(step | {"host": 120}, readings=[ON_CPU])) is not None
    assert host_work(facts(step | {"host": 45})) is not None, "our engine is not watched"


def test_logging_apart_and_in_spans_of_that_name_adds_up() -> None:
    run = facts(STEP | {"log": 1_000}, apart={"progress": every(1, 1_000)}, samples=None)
    found = logging(run)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(2_000 / 12_000)
    assert logging(facts(STEP | {"log": 100})) is None
    odd = np.full(100, 10.0)
    odd[50] = 200_000
    assert logging(facts(STEP | {"log": odd})) is None, "one odd step makes no cadence"


@pytest.mark.parametrize(
    ("text", "calls", "logs"),
    [
        ("print(loss)", None, True),
        ("report(loss)", "logging", True),
        ("bar.set_postfix(loss=x)", None, True),
        ("writer.add_scalar('loss', x, step)", None, True),
        ("json.dump(state, f)", None, True),
        ("wandb.log({'loss': x})", None, True),
        ("x = x.log_softmax(-1)", None, False),
        ("fingerprint(batch)", None, False),
        ("Trainer(logger=False).fit(model)", None, False),
        ("y = torch.log(x)", None, False),
        ("scheduler.step()", None, False),
    ],
)
def test_logging_is_told_by_what_is_called(text: str, calls: str | None, logs: bool) -> None:
    assert is_logging(host_line(text, 1, calls=calls)) is logs


def test_time_apart_without_a_rule_of_its_own_is_named() -> None:
    found = time_outside_steps(facts(STEP, apart={"plotting": every(10, 100_000)}))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.5)
    assert found.evidence[1] == "plotting: 9 times, 900 ms"
    assert time_outside_steps(facts(STEP, apart={"plotting": every(10, 20_000)})) is None
    assert time_outside_steps(facts(STEP, apart={"evaluation": every(10, 90_000)})) is None


@pytest.mark.parametrize("inner_first", [False, True])
def test_a_lambda_on_a_line_is_that_line(inner_first: bool) -> None:
    whole = host_line("best = max(row, key=lambda k: k.item())", 200)
    inner = replace(whole, function="<lambda>", samples=600)
    loop = host_line("loss.backward()", 900, part="backward")
    lines = (inner, whole) if inner_first else (whole, inner)
    found = host_work(facts(LOGGED, readings=[ON_CPU, host_lines(loop, *lines)]))
    assert found is not None
    assert sum("lambda k" in line for line in found.evidence) == 1


@pytest.mark.parametrize(
    "text",
    [
        "for x, y in tqdm(loader):",
        "for i, batch in enumerate(logger.log_every(loader, 10)):",
        "batch = next(iter(tqdm(loader)))",
        "tqdm(loader, desc='train')",
    ],
)
def test_a_wait_for_data_through_a_bar_is_not_logging(text: str) -> None:
    """The loop's line is on the stack while its next batch is made, whatever wraps the loader."""
    waits = host_line(text, 90, part="data", calls="std.tqdm.__iter__")
    assert logging(facts(STEP | {"data": 9_000}, readings=[ON_CPU, host_lines(waits)])) is None


def test_a_dataset_that_prints_logs() -> None:
    """A line of the dataset itself that writes is logging, though it lies in the wait for data."""
    prints = host_line("print(path)", 90, part="data")
    found = logging(facts(STEP | {"data": 9_000}, readings=[ON_CPU, host_lines(prints)]))
    assert found is not None
    assert "print(path)" in " ".join(found.evidence)
