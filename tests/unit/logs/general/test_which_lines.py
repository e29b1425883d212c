"""Which of a log's lines and bars are the training's, on lines of our own in misread shapes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pitstop.logs.read import read_logs
from tests.unit.logs.general.examined import examine


def bar(n: int, total: int, elapsed_s: int, *, name: str = "", tail: str = "") -> str:
    spent = f"{elapsed_s // 60:02}:{elapsed_s % 60:02}"
    rate = f"{max(elapsed_s, 1) / n:.2f}s/it" if n else "?s/it"
    return f"{name}{100 * n // total:3}%|##   | {n}/{total} [{spent}<10:00, {rate}{tail}]"


def trainers_console(*, steps: int = 60, every: int = 20) -> list[str]:
    """Bars and dicts of a Trainer that reads shards first and evaluates by a longer bar."""
    lines = [bar(n, 900, 3 * n, name="Reading shards: ") for n in range(1, 900, 3)]
    elapsed = 0
    for n in range(1, steps + 1):
        elapsed += 7
        lines += [bar(n, steps, elapsed)]
        lines += [
            f"{{'loss': {3 / n:.4f}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': {n / 20}}}"
        ]
        if n % every == 0:
            lines += [bar(m, 50, m) for m in range(1, 51)]
            lines += [f"{{'eval_loss': 0.9, 'eval_runtime': 50.0, 'epoch': {n / 20}}}"]
            elapsed += 50
    return lines


def test_the_trainers_bar_has_no_name_and_others_are_not_its_steps(log: Path) -> None:
    found = examine(log, trainers_console()).summary
    assert (found.first_step, found.last_step, found.total_steps) == (1, 60, 60)
    assert found.step is not None
    assert found.step.middle == pytest.approx(7, rel=0.02)


def test_an_evaluation_is_no_slow_window_beside_a_bar_of_other_work(log: Path) -> None:
    found = examine(log, trainers_console())
    assert found.summary.events["evaluation"].count == 3
    assert "DRIFT002" not in [one.code for one in found.verdict.findings]


def test_a_count_and_its_total_in_brackets_stand_within_the_count_before_them(log: Path) -> None:
    lines = [
        f"[2031/03/04 {8 + n // 20:02}:{3 * n % 60:02}:07] Iter: [{n}][0/40]\tLoss {3 / (n + 1)}"
        for n in range(60)
    ]
    found = examine(log, lines).summary
    assert found.last_step is None
    assert found.step is None


def test_evaluations_within_a_whole_training_are_not_its_steps(log: Path) -> None:
    lines = []
    for n in range(1, 41):
        lines.append(
            f"{{'loss': {3 / n:.4f}, 'grad_norm': 0.1, 'learning_rate': 1e-05, 'epoch': {n / 20}}}"
        )
        if n % 10 == 0:
            lines.append(f"{{'eval_loss': 0.9, 'eval_runtime': 100.0, 'epoch': {n / 20}}}")
    lines.append(
        "{'train_runtime': 2400.0, 'train_samples_per_second': 10.0, "
        "'train_steps_per_second': 0.1, 'train_loss': 0.5, 'epoch': 2.0}"
    )
    found = examine(log, lines).summary
    assert found.step is not None
    assert found.step.middle == pytest.approx((2400 - 400) / 240)


@pytest.mark.parametrize("behind", [")", " norm)", "]"])
def test_a_number_that_something_stands_behind_is_whole_without_an_end(
    log: Path, behind: str
) -> None:
    lines = [f"update {n} loss {3 / n:.4f} (norm {100 + n}.25{behind}" for n in range(1, 61)]
    log.write_text("\n".join(lines))
    norms = read_logs([log])[0].ranks[0].scalars["norm"]
    assert (len(norms.value), norms.value[-1]) == (60, 160.25)


def test_trainings_that_each_print_the_same_epoch_are_several_runs(log: Path) -> None:
    lines = []
    for method in ("sgd", "adam", "momentum"):
        lines += [f"method: {method}", "Epoch: first"]
        lines += [
            line
            for n in range(0, 470, 5)
            for line in (f"Step {n:5} of   469: ", f"Train loss: {3 / (n + 1):.5f}")
        ]
        lines += ["Epoch: 0"]
    last = examine(log, lines).summary.last_step
    assert last is None or last <= 469


def stamped(at_s: float, text: str) -> str:
    at = datetime(2031, 3, 4, 8, tzinfo=UTC) + timedelta(seconds=at_s)
    return f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03} {text}"


def with_validations(*, logger: str) -> list[str]:
    """Steps of 0.1 s and, after each thousandth, a validation of 50 s."""
    lines, at, head = [], 0.0, f"- INFO - {logger} - "
    for n in range(100, 60_100, 100):
        at += 10
        lines.append(stamped(at, f"{head}Epoch 1, Step: {n}, Batch Loss: {3 / n:.6f}"))
        if n % 1000 == 0:
            at += 50
            lines.append(stamped(at, f"{head}Validation result at epoch 1, step {n}: loss: 0.9"))
    return lines


@pytest.mark.parametrize("logger", ["net.training", "runner"])
def test_a_run_of_which_validations_take_a_third_is_not_healthy(log: Path, logger: str) -> None:
    found = examine(log, with_validations(logger=logger))
    assert found.verdict.outcome != "healthy"
    assert found.summary.step is not None
    assert found.summary.step.middle == pytest.approx(0.1, rel=0.01)


def test_slow_records_of_no_known_cause_are_no_steps_at_their_usual_time(log: Path) -> None:
    lines, at = [], 0.0
    for n in range(100, 60_100, 100):
        at += 60 if n % 1000 == 0 else 10
        lines.append(stamped(at, f"step {n} loss {3 / n:.6f}"))
    assert examine(log, lines).verdict.outcome != "healthy"
