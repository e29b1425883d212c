"""What a count is of, and from where on, on lines of our own in shapes that were misread."""

from pathlib import Path

from pitstop.logs.read import read_logs
from tests.unit.logs.general.examined import examine


def plain_bar(n: int, total: int, seconds: int) -> str:
    left = f"{100 * n // total}%|{'#' * (10 * n // total)}| {n}/{total}"
    return f"{left} [00:{seconds:02}<00:00, 1.40s/it]"


def test_a_bar_behind_the_trainers_summary_is_not_the_trainings(log: Path) -> None:
    speed = "'train_samples_per_second': 7.77, 'train_steps_per_second': 0.971"
    lines = [plain_bar(n, 40, n) for n in range(41)]
    lines += [f"{{'train_runtime': 41.2012, {speed}, 'train_loss': 0.31, 'epoch': 0.1}}"]
    for _ in range(3):  # shards are saved
        lines += [plain_bar(n, 32, n // 16) for n in range(33)]
    found = examine(log, lines).summary
    assert found.last_step == 40


def test_an_evaluation_whose_dict_is_printed_twice_took_its_time_once(log: Path) -> None:
    lines = []
    for n in range(1, 7):
        loss = f"{{'loss': {3 / n:.4f}, 'learning_rate': 1e-05, 'epoch': {n}.0}}"
        done = f"{{'eval_loss': {4 / n:.4f}, 'eval_runtime': 7.5, 'epoch': {n}.0}}"
        lines += [plain_bar(10 * n, 60, 20 * n % 60), loss, done, done + " "]
    log.write_text("\n".join(lines) + "\n")
    events = [one for one in read_logs([log])[0].first.events if one.name == "evaluation"]
    assert {one.wall_us / 1e6 for one in events} == {7.5}


def test_losses_that_stand_apart_from_the_bar_have_no_steps(log: Path) -> None:
    losses = [f"{{'loss': 0.{n}, 'learning_rate': 1e-05, 'epoch': 0.{n}}}" for n in range(20, 60)]
    bars = [f" 50%|#| {n}/400 [00:{n:02}<01:00, 1.00s/it]" for n in range(1, 20)]
    said = examine(log, [*bars, *losses]).summary
    assert (said.last_step, said.total_steps, said.records, said.step) == (None,) * 4
