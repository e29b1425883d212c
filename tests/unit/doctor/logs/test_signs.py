"""Rules about values: losses, learning rates, memory, labels and bars of made logs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.doctor.logs.bar import bar_disagrees
from pitstop.doctor.logs.case import case_of
from pitstop.doctor.logs.facts import is_loss
from pitstop.doctor.logs.signs import (
    SIGN_RULES,
    loss_is_flat,
    losses_not_finite,
    main_loss,
    memory_climbs,
    rate_never_moves,
    units_mislabelled,
)
from pitstop.records.logs.windows import Disagreement, DisagreementCode
from pitstop.records.run import RunRecord
from pitstop.records.verdict import Finding
from tests.unit.doctor.log_tables import NAN, log_record

Rule = Callable[..., Finding | None]
GIB = 2.0**30


def ask(rule: Rule, record: RunRecord) -> Finding | None:
    return rule(case_of(record.first, record.source))


def found(rule: Rule, record: RunRecord) -> Finding:
    finding = ask(rule, record)
    assert finding is not None
    return finding


def test_a_loss_that_becomes_nan_is_critical_and_dated() -> None:
    finding = found(losses_not_finite, log_record(scalars={"loss": [2.0, 1.5, NAN, NAN]}))
    assert (finding.code, finding.severity, finding.bound) == ("NAN001", "critical", None)
    assert finding.evidence == (
        "loss: 2 of 4 values are not finite, first at step 150, after 1.5 in the record before",
    )
    assert "too high" in finding.remedy[-1], "a higher loss scale overflows sooner"
    recovered = log_record(scalars={"loss": [2.0, NAN, 1.5]})
    assert found(losses_not_finite, recovered).severity == "warning"


def test_an_infinite_loss_is_none_either_and_a_metric_is_no_loss() -> None:
    record = log_record(scalars={"decode.loss_ce": [float("inf"), 1.0], "val/loss": [NAN] * 2})
    finding = found(losses_not_finite, record)
    assert len(finding.evidence) == 1
    assert finding.evidence[0].startswith("decode.loss_ce: 1 of 2 values")
    assert ask(losses_not_finite, log_record(scalars={"mIoU": [NAN] * 3})) is None


@pytest.mark.parametrize(
    "name",
    ["loss", "Loss", "total_loss", "decode.loss_ce", "SDMLoss", "loss/object/heatmap", "G_loss"],
)
def test_names_of_losses(name: str) -> None:
    assert is_loss(name)


@pytest.mark.parametrize("name", ["eval_loss", "val/loss", "lossless", "acc", "glossy", "val_loss"])
def test_names_that_are_no_training_losses(name: str) -> None:
    assert is_loss(name) is (name == "lossless"), "a word that begins with loss counts"


def test_the_loss_that_sums_up_the_others_is_the_main_one() -> None:
    record = log_record(scalars={"loss_cls": [1.0], "total_loss": [2.0]})
    chosen = main_loss(case_of(record.first, "").facts)
    assert chosen is not None
    assert chosen[0] == "total_loss"


def noisy(values: np.ndarray, spread: float = 0.05) -> list[float]:
    return (values * np.random.default_rng(3).uniform(1 - spread, 1 + spread, len(values))).tolist()


def test_a_loss_at_chance_from_the_first_step_is_flat() -> None:
    finding = found(loss_is_flat, log_record(scalars={"loss": noisy(np.full(60, 5.95), 0.01)}))
    assert (finding.code, finding.severity, finding.bound) == ("LOSS002", "warning", None)
    assert "medians of 20 of 60 values" in finding.evidence[0]


def test_a_loss_that_falls_is_not_flat_however_noisy() -> None:
    falling = noisy(np.linspace(2.0, 1.8, 90), 0.2)
    assert ask(loss_is_flat, log_record(scalars={"loss": falling})) is None


def test_a_flat_loss_late_in_training_may_be_the_end_of_it() -> None:
    record = log_record(scalars={"loss": [0.3] * 40}, total_steps=4000)
    late = record.first.scalars["loss"].step
    late += 100_000
    assert found(loss_is_flat, record).severity == "info"


def test_a_loss_that_is_mostly_rounded_to_nothing_is_not_flat() -> None:
    rounded = np.where(np.arange(90) % 9 == 0, 0.01, 0.0)
    assert ask(loss_is_flat, log_record(scalars={"loss": rounded.tolist()})) is None
    assert found(loss_is_flat, log_record(scalars={"loss": [0.0] * 90})).code == "LOSS002"


@pytest.mark.parametrize("name", ["actor_loss", "Policy Loss", "loss_G", "train/pg_loss", "D_loss"])
def test_a_loss_that_falls_in_no_good_run_is_not_called_flat(name: str) -> None:
    assert ask(loss_is_flat, log_record(scalars={name: [0.3] * 90})) is None


def test_few_losses_are_not_judged() -> None:
    assert ask(loss_is_flat, log_record(scalars={"loss": [1.0] * 19})) is None


def test_a_rate_that_never_moves_is_said_and_blamed_only_where_a_schedule_was_asked_for() -> None:
    plain = found(rate_never_moves, log_record(lr=2e-4))
    assert (plain.code, plain.severity) == ("LR001", "info")
    assert plain.evidence == ("lr 0.0002 in all 40 records, over 1,950 steps (as printed)",)
    asked = found(rate_never_moves, log_record(lr=2e-4, settings={"lr_config.policy": "poly"}))
    assert asked.severity == "warning"
    assert "the log's settings name a schedule: lr_config.policy = poly" in asked.evidence


def test_early_in_a_run_a_constant_rate_is_no_news() -> None:
    assert ask(rate_never_moves, log_record(lr=2e-4, total_steps=200_000)) is None
    asked = log_record(lr=2e-4, total_steps=200_000, settings={"warmup_iters": "1500"})
    assert ask(rate_never_moves, asked) is not None


def test_a_rate_that_moves_once_is_not_constant() -> None:
    assert ask(rate_never_moves, log_record(lr=[2e-4] * 39 + [1e-4])) is None


def test_a_rate_printed_in_a_bar_counts_as_well() -> None:
    finding = found(rate_never_moves, log_record(scalars={"lr": [3e-4] * 32}))
    assert "lr 0.0003 in all 32 records" in finding.evidence[0]


def test_memory_that_climbs_to_the_end_is_reported_with_its_slope() -> None:
    climbing = (GIB * np.linspace(5, 8, 40)).tolist()
    finding = found(memory_climbs, log_record(memory_bytes=climbing))
    assert (finding.code, finding.severity) == ("MEM001", "warning")
    expected = 3 / 39 / 50 * 1000
    assert finding.evidence[1].startswith(f"{expected:.2f} GiB more every 1,000 steps")
    assert "printed as total: memory" in finding.evidence[0]


@pytest.mark.parametrize(
    "gib",
    [
        np.full(40, 5.0),
        np.concatenate([np.linspace(2, 6, 10), np.full(30, 6.0)]),
        np.concatenate([np.full(20, 5.0), np.full(20, 6.0)]),
        np.concatenate([np.linspace(4, 6, 30), np.full(10, 6.0)]),
        np.concatenate([np.full(22, 5.0), np.full(12, 6.0), np.full(6, 7.0)]),
        np.concatenate([np.linspace(2, 6, 10), 6 + 0.001 * np.arange(30)]),
        np.linspace(8, 5, 40),
        5 + 0.01 * np.arange(40) / 39,
    ],
    ids=[
        "constant",
        "warm-up",
        "one larger batch",
        "full at last",
        "two larger batches",
        "warm-up and crumbs",
        "falling",
        "a few megabytes",
    ],
)
def test_memory_that_settles_is_no_leak(gib: np.ndarray) -> None:
    assert ask(memory_climbs, log_record(memory_bytes=(GIB * gib).tolist())) is None


def disagreement(code: DisagreementCode, **fields: object) -> Disagreement:
    return Disagreement(code=code, message="what was printed is not what it says", **fields)  # pyright: ignore[reportArgumentType]


def test_mislabelled_units_are_said_in_the_logs_own_words() -> None:
    one = disagreement("epoch named batch", printed=88.538, rebuilt=0.481, times=6)
    finding = found(units_mislabelled, log_record(disagreements=[one]))
    assert (finding.code, finding.severity) == ("UNIT001", "info")
    assert finding.evidence == (
        "what was printed is not what it says (in 6 records; the first is given)",
    )
    assert (
        ask(units_mislabelled, log_record(disagreements=[disagreement("steps went back")])) is None
    )


@pytest.mark.parametrize(("real", "severity"), [(22, "info"), (16, "warning")])
def test_a_bar_that_announces_too_much_is_reported(real: int, severity: str) -> None:
    one = disagreement("fewer steps than announced", printed=23.0, rebuilt=float(real))
    finding = found(bar_disagrees, log_record(disagreements=[one]))
    assert (finding.code, finding.severity) == ("BAR001", severity)
    assert finding.summary == "epochs end before the announced number of steps"


def epochs_of(steps: int, announced: int, *, epochs: int = 4, attempts: int = 1) -> RunRecord:
    """Eight records an epoch, counted on as a bar counts: from the end of the one before."""
    record = log_record(1.0, rows=8 * epochs, steps=steps // 8, steps_per_epoch=announced)
    windows = record.first.windows
    assert windows is not None
    windows.epoch[:] = np.arange(8 * epochs) // 8
    windows.attempt[:] = np.arange(8 * epochs) // (8 * epochs // attempts)
    return record


def test_epochs_that_stop_at_80_of_1863_steps_are_found_from_the_records() -> None:
    finding = found(bar_disagrees, epochs_of(80, 1863))
    assert finding.severity == "warning"
    assert finding.evidence == (
        "80 steps per epoch (median of 3 epochs; first step of the next - its own), announced: "
        "1,863",
    )


def test_a_sampler_that_outruns_its_len_is_found_as_well() -> None:
    finding = found(bar_disagrees, epochs_of(1952, 1863))
    assert finding.summary == "epochs go on after the announced number of steps"
    assert finding.severity == "info"


def test_a_bar_that_is_right_and_one_that_is_cut_off_are_left_alone() -> None:
    assert ask(bar_disagrees, epochs_of(80, 80)) is None
    assert ask(bar_disagrees, epochs_of(80, 1863, epochs=1)) is None
    assert ask(bar_disagrees, epochs_of(80, 1863, epochs=2, attempts=2)) is None, "a new start"


def test_a_bar_is_not_both_too_long_and_too_short() -> None:
    one = disagreement("fewer steps than announced", printed=80.0, rebuilt=72.0)
    record = epochs_of(88, 80)
    windows = record.first.windows
    assert windows is not None
    log = replace(windows.log, disagreements=(one,))
    rank = replace(record.first, windows=replace(windows, log=log))
    finding = found(bar_disagrees, replace(record, ranks=(rank,)))
    assert finding.summary == "epochs end before the announced number of steps"
    assert len(finding.evidence) == 1


anything = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=60)


@given(anything, anything, st.lists(st.floats(0, 1e12) | st.just(NAN), min_size=1, max_size=40))
def test_no_values_make_a_rule_fail(
    loss: list[float], rate: list[float], memory: list[float]
) -> None:
    record = log_record(
        0.1, memory_bytes=memory, rows=len(memory), scalars={"loss": loss, "lr": rate}
    )
    case = case_of(record.first, record.source)
    for rule in SIGN_RULES:
        finding = rule(case)
        assert finding is None or (finding.evidence and finding.bound is None)
