"""What a count is of, and from where on, on lines of our own in shapes that were misread."""

import json
from pathlib import Path

from pitstop.logs.read import read_logs
from tests.unit.logs.general.examined import examine


def elapsed(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def test_a_total_that_holds_several_epochs_with_decimals_is_the_runs(log: Path) -> None:
    lines = [
        json.dumps(
            {"done_steps": n, "total_steps": 4000, "loss": 3 / n, "epoch": n / 800,
             "elapsed_time": elapsed(20 * n)}
        )
        for n in range(1, 150)
    ]  # fmt: skip
    found = examine(log, lines).summary
    assert (found.first_step, found.last_step) == (1, 149)
    assert found.total_steps is None  # never reached: it is quoted
    notes = "\n".join(found.notes)
    assert "4,000 is printed as a total" in notes
    assert "counted anew" not in notes


def test_a_log_that_begins_in_a_later_epoch_does_not_say_where_its_steps_begin(log: Path) -> None:
    lines = [
        f"Epoch: [{epoch}][{n:2}/40]\tLoss {3 / (40 * epoch + n):.4f}"
        for epoch in range(12, 20)
        for n in range(1, 41)
    ]
    found = examine(log, lines).summary
    assert found.first_step is None
    assert found.last_step == 8 * 40
    notes = "\n".join(found.notes)
    assert "the log begins in epoch 12" in notes
    assert "the least it can be" in notes


def test_a_number_of_the_row_is_not_a_step(log: Path) -> None:
    rows = [f"{n},0.0001,32,256,1,{3 / n:.5f},{4 / n:.5f}" for n in range(1, 30)]
    table = log.with_suffix(".csv")
    lines = ["idx,learning_rate,batch_size,round_num,train_epoch,train_loss,val_loss", *rows]
    found = examine(table, lines).summary
    assert (found.first_step, found.last_step, found.total_steps) == (None, None, None)
    assert any("how many steps that is" in note for note in found.notes)


SETTINGS = [f"{name} = {n}" for n, name in enumerate(("batch", "width", "depth", "seed", "heads"))]


def test_settings_that_come_again_between_records_leave_attempts_open(log: Path) -> None:
    first = [f"Iteration: {n}\tLoss: {9 / (n + 1):.4f}" for n in range(0, 2100, 100)]
    second = [f"Iteration: {n}\tLoss: {9 / (n + 1):.4f}" for n in range(2100, 4100, 100)]
    assert examine(log, [*SETTINGS, *first, *second]).summary.attempts == 1
    found = examine(log, [*SETTINGS, *first, *SETTINGS, *second]).summary
    assert found.attempts is None
    assert (found.first_step, found.last_step) == (0, 4000)


def bar(name: str, n: int, total: int, seconds: int, more: str = "") -> str:
    share = "#" * (10 * n // total)
    return (
        f"{name}: {100 * n // total}%|{share}| {n}/{total} [00:{seconds:02}<00:00, 9.0it/s{more}]"
    )


def test_two_bars_of_one_evaluation_are_one_as_long_as_both(log: Path) -> None:
    lines = []
    for epoch in range(5):
        lines += [bar(f"Epoch {epoch}", n, 60, n // 3, ", loss=0.5") for n in range(1, 61)]
        lines += [bar("Val", n, 20, n // 10) for n in range(1, 21)]
        lines += [bar("Val", 20, 20, 2)]  # a full bar is drawn again
        lines += [bar("Test", n, 30, n // 10) for n in range(1, 31)]
    log.write_text("\n".join(lines) + "\n")
    events = [one for one in read_logs([log])[0].first.events if one.name == "evaluation"]
    assert [one.wall_us / 1e6 for one in events] == [5.0] * 5


def test_a_second_bar_of_the_same_name_is_part_of_the_evaluation_it_follows(log: Path) -> None:
    lines = []
    for epoch in range(5):
        lines += [bar(f"Epoch {epoch}", n, 60, n // 3, ", loss=0.5") for n in range(1, 61)]
        lines += [bar("Validation", n, 20, n // 10) for n in range(21)]
    lines += [bar("Validation", n, 20, n // 10) for n in range(21)]  # a test of the best model
    log.write_text("\n".join(lines) + "\n")
    events = [one for one in read_logs([log])[0].first.events if one.name == "evaluation"]
    assert [one.wall_us / 1e6 for one in events] == [2.0] * 4 + [4.0]


def test_right_answers_of_all_are_a_result_and_no_step(log: Path) -> None:
    lines = []
    for n in range(1, 21):
        lines += [
            f"Epoch [{n}]",
            f"[Train set] Loss: {3 / n:.4f}, Accuracy: {1000 + 431 * n % 977}/50000  Time : 43.2",
            f"[Test set] Average loss: {4 / n:.4f}, Accuracy: {4435 + n}/10000 (44.35%)",
        ]
    found = examine(log, lines).summary
    assert (found.records, found.last_step) == (20, None)


def test_a_loss_printed_as_a_tensor_is_named_before_it(log: Path) -> None:
    lines = []
    for n in range(15):
        lines.append(f"epoch {n}")
        for share in range(0, 100, 9):
            value = 3 / (1 + n + share / 100)
            lines += [f"%{share}.5", f"Loss = tensor({value:.4f}, device='cuda:0', grad_fn=<Mean>)"]
    found = examine(log, lines).summary
    assert (found.records, found.last_step) == (15, None)


def nth(epoch: int, end: int) -> list[str]:
    counts = range(10, end + 10, 10)
    losses = [f"Iter {n}/530 training loss = {3 / (530 * epoch + n):.5f}" for n in counts]
    return [f"This is {epoch}-th epoch", *losses]


def test_an_epoch_counted_as_the_fourth_begins_the_count_anew(log: Path) -> None:
    found = examine(log, [line for n in range(1, 7) for line in nth(n, 530)]).summary
    assert (found.last_step, found.attempts) == (6 * 530, 1)


def test_a_run_that_broke_off_twice_in_its_first_epoch_is_counted_from_there(log: Path) -> None:
    lines = nth(0, 120) + nth(0, 50) + [line for n in range(9) for line in nth(n, 530)]
    assert examine(log, lines).summary.last_step == 9 * 530


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
