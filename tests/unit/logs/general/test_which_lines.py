"""Which of a log's lines and bars are the training's, on lines of our own in misread shapes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pitstop.doctor.logs.examine import examine_log
from pitstop.errors import RecordError
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


def test_a_bar_of_preparation_is_not_the_training_however_often_it_is_drawn(log: Path) -> None:
    lines = [bar(n, 4000, n, name="Preprocessing data: ") for n in range(1, 400)]
    lines += [
        bar(n, 120, 9 * n, name="Training: ", tail=f", loss={3 / n:.3f}") for n in range(1, 121)
    ]
    found = examine(log, lines).summary
    assert found.last_step == 120
    assert found.total_steps == 120


def test_a_count_and_its_total_in_brackets_stand_within_the_count_before_them(log: Path) -> None:
    lines = [
        f"[2031/03/04 {8 + n // 20:02}:{3 * n % 60:02}:07] Iter: [{n}][0/40]\tLoss {3 / (n + 1)}"
        for n in range(60)
    ]
    found = examine(log, lines).summary
    assert found.last_step is None
    assert found.step is None


def test_a_count_with_its_values_on_the_next_line_is_read_with_them(log: Path) -> None:
    lines = ["reading the index ... done"]
    for n in range(1, 80):
        lines += [
            f"iter = {20 * n}",
            f"\tloss = {3 / n:.5f}, accuracy (cur) = 0.{n:02}, valid = 1.0",
        ]
        lines += ["snapshot written"] if n % 30 == 0 else []
    found = examine(log, lines).summary
    assert (found.records, found.first_step, found.last_step) == (79, 20, 1580)


def test_an_epoch_with_its_loss_on_the_next_line_is_read_with_it(log: Path) -> None:
    lines = []
    for n in range(1, 31):
        lines += [f"Epoch {n}/30", f"train loss: {3 / n:.4f}  train acc: 0.{n + 10}", ""]
    assert examine(log, lines).summary.records == 30


def epochs_in_four_lines(first: int, last: int) -> list[str]:
    lines = []
    for n in range(first, last):
        at = f"2031-03-04 {8 + n // 30:02}:{2 * n % 60:02}"
        lines += [
            f"{at}:10,118 INFO epoch: {n} start, learning rate: 0.01",
            f"{at}:48,512 INFO epoch: {n} end, loss: {2 + 1 / (n + 1):.6f}",
            f"{at}:52,004 INFO epoch: {n} validation, acc: 0.6{n:02}, loss: {2 + 2 / (n + 3):.3f}",
            f"{at}:52,007 INFO epoch: {n} model saved",
        ]
    return lines


def test_of_lines_about_one_epoch_those_with_the_trainings_loss_are_records(log: Path) -> None:
    lines = [
        *epochs_in_four_lines(0, 40),
        "2031-03-04 10:00:00,000 - INFO - epoch: 40 start, learning rate: 0.01",
    ]
    assert examine(log, lines).summary.records == 40


def test_a_total_time_of_each_step_is_the_steps(log: Path) -> None:
    lines = [
        f"Step {n}/400 | Loss: {5 / n:.4f} | LR: 0.1 | Total Step Time: {2400 + 10 * (n % 7)}.25ms"
        for n in range(1, 401)
    ]
    found = examine(log, lines).summary
    assert found.step is not None
    assert found.step.middle == pytest.approx(2.43, rel=0.01)


def test_a_bar_that_ends_before_its_total_counts_the_least(log: Path) -> None:
    lines = []
    for epoch in range(1, 4):
        lines.append(f"Epoch {epoch}/3")
        lines += [
            bar(n, 90, 2 * n, name="Training: ", tail=f", loss={1 / n:.4f}")
            for n in range(1, 90)  # the last drawing is wiped
        ]
        lines += [bar(n, 9, n, name="Validating: ") for n in range(1, 10)]
        lines += [f"Loss | {1 / epoch:.4f} | 0.8"]
    found = examine(log, lines).summary
    assert found.last_step is not None
    assert 267 <= found.last_step <= 270
    assert any("the least it can be" in note for note in found.notes)


def test_a_loss_that_a_bar_rounds_to_nothing_is_not_called_flat(log: Path) -> None:
    lines = []
    for n in range(1, 1001):
        lines.append(bar(n, 1000, 2 * n, name="Training progress: ", tail=", Loss=0.0000"))
        if n % 20 == 0:
            lines.append(f"[Iter {n}] Loss: {0.9 / n:.6f}  L1: {0.5 / n:.6f}")
    found = examine(log, lines)
    assert "LOSS002" not in [one.code for one in found.verdict.findings]
    assert found.summary.last_step == 1000


def test_evaluations_that_dicts_time_are_part_of_the_run_that_bars_time(log: Path) -> None:
    found = examine(log, trainers_console(steps=100)).summary
    assert found.run_s == pytest.approx(100 * 7 + 5 * 50, rel=0.03)
    assert found.events["evaluation"].share == pytest.approx(250 / 950, rel=0.05)


def test_the_same_step_of_the_next_epoch_is_another_record(log: Path) -> None:
    lines = [f"Epoch [{n}/50], Step [6/7], Loss: {3 / n:.4f}" for n in range(1, 51)]
    assert examine(log, lines).summary.records == 50


def test_seeds_that_count_the_same_in_turn_are_not_summed(log: Path) -> None:
    lines = []
    for seed in range(5):
        lines += [f"[seed={seed}] angles=30"]
        lines += [f"[Unrolled] iter {n}/600: loss={900 / n}, PSNR=28.1" for n in (200, 400, 600)]
        lines += [f"[seed={seed}] PSNR=28.17dB  SSIM=0.8"]
    found = examine(log, lines).summary
    assert found.last_step == 600
    assert found.attempts is None
    assert not any("two runs seem to write" in note for note in found.notes)
    assert any("the least it can be" in note for note in found.notes)


def test_a_loss_held_against_the_best_one_is_no_epochs_record(log: Path) -> None:
    lines = []
    for n in range(1, 61):
        lines += [f"Epoch {n}/500", f"806/806 [=====] - 9s 11ms/step - loss: {1 + 1 / n:.4f}", ""]
        better = "improved from 2.41 to 2.40, saving model to /tmp/best.h5"
        lines += [f"Epoch {n:05}: loss {'did not improve from 2.4' if n % 3 else better}", ""]
        lines += [f"Epoch {n:05}: reducing learning rate to 0.0005."] if n % 20 == 0 else []
    assert examine(log, lines).summary.records == 60


def test_a_time_of_a_step_with_its_unit_in_its_name_is_the_steps(log: Path) -> None:
    lines = [
        f'{{"event": "step", "step": {n}, "train/loss": {2 / (n + 1)}, '
        f'"train/step_time_s": 3{n % 4}.5, "profile/rollout_time_s": 17.{n % 5}}}'
        for n in range(50)
    ]
    found = examine(log, lines).summary
    assert found.step is not None
    assert found.step.middle == pytest.approx(31.5, abs=1.1)


@pytest.mark.parametrize("unit", ["KB", "KiB", "MB", "MiB", "GB", "GiB", "kib"])
def test_every_unit_of_memory_has_a_size(log: Path, unit: str) -> None:
    lines = [f"step {n} loss {1 / n:.4f} memory 12{n % 7} {unit}" for n in range(1, 40)]
    assert examine(log, lines).summary.last_step == 39


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


def test_many_lines_an_epoch_without_a_count_are_one_record_an_epoch(log: Path) -> None:
    lines = [
        f"[fit] epoch {epoch} (done={part / 8:.3f}) | loss: {3 / (epoch * 8 + part):.4f}"
        for epoch in range(1, 6)
        for part in range(1, 9)
    ]
    found = examine(log, lines).summary
    assert (found.records, found.last_step, found.step) == (5, None, None)
    assert any("the last is its record" in note for note in found.notes)


def test_many_lines_whose_epochs_jump_are_refused(log: Path) -> None:
    lines = [f"epoch {epoch} part {n} loss: 0.5{n}" for epoch in (3, 9, 4, 11) for n in range(6)]
    with pytest.raises(RecordError, match="no lines that count"):
        examine(log, lines)


def test_epochs_named_where_a_model_is_saved_are_not_all_epochs(log: Path) -> None:
    lines = [
        f"Saved model at epoch {epoch} with loss: {1 / epoch:.4f}" for epoch in (1, 2, 3, 5, 8, 13)
    ]
    found = examine(log, lines).summary
    assert (found.records, found.attempts, found.last_step) == (None, 1, None)
    assert any("only where a model is saved" in note for note in found.notes)


def test_a_model_saved_within_counted_steps_is_no_record(log: Path) -> None:
    lines = []
    for step in range(10, 400, 10):
        lines.append(f"step {step} loss: {4 / step:.4f} lr 0.001")
        if step % 100 == 0:
            lines.append(f"Saved model at epoch {step // 100} with loss: {4 / step:.4f}")
    found = examine(log, lines).summary
    assert (found.records, found.last_step) == (39, 390)


def test_a_count_that_its_tool_says_is_of_samples_gives_no_steps_or_times(log: Path) -> None:
    lines = [
        f"(epoch: {epoch}, iters: {count}, time: 0.05{epoch}, data: 0.003) G_L1: 3.2 D: 0.4"
        for epoch in range(1, 6)
        for count in range(400, 4400, 400)
    ]
    found = examine(log, lines).summary
    assert (found.last_step, found.total_steps, found.step) == (None, None, None)
    assert any("iters, a count of samples" in note for note in found.notes)
    assert not any("if time is one" in note for note in found.notes)


def test_a_nameless_bar_is_no_training_beside_named_steps_with_a_loss(log: Path) -> None:
    lines = []
    for step in range(20, 2020, 20):
        second = step // 2 + 40 * (step // 500)
        clock = f"2021-03-04 {10 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02},000"
        lines.append(f"{clock} trainer INFO: iter: {step:06}, lr: 0.01, total_loss: {9 / step:.3f}")
        if step % 500 == 0:
            lines += [bar(n, 90, n // 3) for n in range(1, 91)]
    found = examine(log, lines).summary
    assert (found.format, found.last_step) == ("general", 2000)
    assert found.step is not None
    assert found.step.middle == pytest.approx(0.5)


def test_an_epochs_last_line_without_time_left_is_of_the_same_series(log: Path) -> None:
    lines = []
    for epoch in range(1, 13):
        lines.append(f"Epoch {epoch}/12")
        lines += [f"{n:2}/20 [=>...] - ETA: {20 - n}s - loss: 0.9{n:02}" for n in range(1, 20)]
        lines.append("20/20 [=====] - 6s 149ms/step - loss: 0.8123 - acc: 0.5")
    assert examine(log, lines).summary.records == 12 * 20


def test_a_count_behind_the_epoch_is_the_step_within_it(log: Path) -> None:
    lines = [
        f"Epoch {epoch}-{n} | Train | Loss: {2 / (epoch + 1):.3f}, SA: 0.{n:03}"
        for epoch in range(6)
        for n in range(0, 200, 20)
    ]
    found = examine(log, lines).summary
    assert found.records == 60
    assert not any("the last is its record" in note for note in found.notes)


def test_a_loaded_optimizer_is_another_process_where_the_log_is_silent_too(log: Path) -> None:
    lines, second = [], 0
    for step in range(10, 1510, 10):
        second += 4
        if step in (510, 1010):
            second += 900
            lines += ["Loading model from out/last.pth", "Loading optimizer from out/last.pth"]
        clock = f"2021-03-04 {10 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        lines.append(f"{clock} step: {step}, lr: 0.01, loss: {9 / step:.3f}")
    found = examine(log, lines).summary
    assert (found.attempts, found.last_step) == (3, 1500)


def test_a_run_of_which_steps_take_too_little_is_not_called_healthy(log: Path) -> None:
    lines, now = [], datetime(2021, 3, 4, 10, tzinfo=UTC)
    for count in range(100, 10_100, 100):
        now += timedelta(seconds=4.1 + count % 300 / 1000)
        if count % 500 == 100:
            now += timedelta(seconds=6)  # nobody says what for
        epoch, inside = divmod(count - 100, 500)
        head = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03} Epoch: [{epoch}]"
        lines += [f"{head}[{inside + 100}/500] Overall Loss {900 / count:.4f} LR 0.01"]
    found = examine(log, lines)
    assert found.summary.last_step == 20 * 500
    assert found.verdict.outcome == "not enough evidence"
    assert "what that is the log does not tell" in found.verdict.message


def test_meters_of_an_evaluation_are_not_the_trainings(log: Path) -> None:
    lines = []
    for epoch in (1, 2, 3):
        lines += [
            f"TRAINING - Epoch: [{epoch}][{n}/391]\tTime 0.020 (0.0{40 - epoch})\tData 0.001 "
            f"(0.002)\tLoss {3 / (epoch + n):.4f} (2.1)"
            for n in range(0, 400, 100)
        ]
        lines += [
            f"EVALUATING - Epoch: [{epoch}][{n}/100]\tTime 0.013 (0.016)\tData 0.001 (0.004)\tLoss "
            "1.2 (1.3)"
            for n in (0, 99)
        ]
    found = examine(log, lines).summary
    assert (found.format, found.last_step) == ("AverageMeter", 2 * 391 + 300)
    assert found.attempts == 1


def test_meters_of_epochs_of_several_lengths_are_several_runs(log: Path) -> None:
    lines = [
        f"Epoch: [{epoch}][{n}/{length}]\tTime 0.020 (0.03{epoch})\tLoss 0.5 (0.6)"
        for length in (40, 10)
        for epoch in (1, 2)
        for n in range(0, length, 5)
    ]
    found = examine(log, lines).summary
    assert (found.attempts, found.run_s, found.total_steps) == (None, None, None)
    assert any("several runs" in note for note in found.notes)


def test_a_last_line_without_an_end_counts_and_its_last_number_is_left_out(log: Path) -> None:
    lines = [f"update {n} loss {3 / n:.4f} norm {100 + n}.25" for n in range(1, 61)]
    log.write_text("\n".join(lines)[:-3])
    found = examine_log(read_logs([log])[0]).summary
    assert (found.records, found.last_step) == (60, 60)
    norms = read_logs([log])[0].ranks[0].scalars["norm"]
    assert len(norms.value) == 59


@pytest.mark.parametrize("behind", [")", " norm)", "]"])
def test_a_number_that_something_stands_behind_is_whole_without_an_end(
    log: Path, behind: str
) -> None:
    lines = [f"update {n} loss {3 / n:.4f} (norm {100 + n}.25{behind}" for n in range(1, 61)]
    log.write_text("\n".join(lines))
    norms = read_logs([log])[0].ranks[0].scalars["norm"]
    assert (len(norms.value), norms.value[-1]) == (60, 160.25)


def test_a_last_record_without_an_end_counts(log: Path) -> None:
    lines = [f'{{"step": {n}, "loss": {3 / n:.4f}, "step_time": 0.2{n % 9}}}' for n in range(1, 60)]
    for end in ("", "\n"):
        text = "\n".join(lines) + end
        log.write_text(text)
        assert examine_log(read_logs([log])[0]).summary.records == 59


def test_a_last_line_cut_off_in_its_count_is_left_out(log: Path) -> None:
    lines = [f"loss {3 / n:.4f} in step {n}" for n in range(1, 61)]
    log.write_text("\n".join(lines))
    assert examine_log(read_logs([log])[0]).summary.last_step == 59


def test_hours_minutes_and_seconds_with_letters_are_a_time_since_the_start(log: Path) -> None:
    lines = [
        f"pass 1 batch {n}/4,000 batch-loss {300 / n:.3f} total-elapsed 0h{2 * n // 60:02}m"
        f"{2 * n % 60:02}s"
        for n in range(1, 600)
    ]
    step = examine(log, lines).summary.step
    assert step is not None
    assert step.middle == pytest.approx(2, rel=0.03)


def test_a_clock_of_whole_seconds_that_stands_still_between_lines_is_a_running_one(
    log: Path,
) -> None:
    lines = [
        f"step {n} loss {300 / n:.3f} elapsed {int(0.7 * n) // 60}m{int(0.7 * n) % 60:02}s"
        for n in range(1, 500)
    ]
    step = examine(log, lines).summary.step
    assert step is not None
    assert step.middle == pytest.approx(0.7, rel=0.05)


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


def test_a_count_that_goes_as_the_epoch_of_other_lines_is_the_epoch(log: Path) -> None:
    lines = []
    for n in range(30):
        lines += [
            f"[2031-03-04 08:{n:02}:08 net] INFO Train: [{n}/30]\tlr 0.3\tloss {3 / (n + 1):.4f}",
            f"[2031-03-04 08:{n:02}:09 net] INFO EPOCH {n} training takes 0:00:06",
        ]
    found = examine(log, lines).summary
    assert (found.records, found.last_step) == (30, None)
    table = read_logs([log])[0].ranks[0].windows
    assert table is not None
    assert table.log.total_epochs == 30


def test_an_epoch_alone_with_values_below_is_read_though_its_first_comes_again(log: Path) -> None:
    lines = []
    for n in (1, 1, 1, 2, 3, *range(1, 11)):
        lines += [f"epoch: {n}", f"train loss: {2900 / (n + 1):.4f}", f"valid loss: {2901 / n:.4f}"]
    found = examine(log, lines)
    assert found.summary.records is None
    assert "epochs go back: several runs seem to write into one file" in found.summary.notes


def test_epochs_that_only_lines_of_an_evaluation_name_are_read_from_them(log: Path) -> None:
    lines = [f"Epoch {n} metrics: valid/loss={3 / (n + 1):.4f}  valid/acc=0.{n}" for n in range(30)]
    found = examine(log, lines).summary
    assert found.records == 30
    assert "an epoch is named only where it is evaluated" in found.notes


def stamped(at_s: float, text: str) -> str:
    at = datetime(2031, 3, 4, 8, tzinfo=UTC) + timedelta(seconds=at_s)
    return f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03} {text}"


def test_missing_lines_of_thousands_of_steps_are_no_break(log: Path) -> None:
    steps = [*range(100, 10_100, 100), *range(60_100, 70_100, 100)]
    lines = [stamped(0.05 * n, f"Training loss at step {n}: {3 / n:.6f}") for n in steps]
    found = examine(log, lines)
    assert "TIME001" not in [one.code for one in found.verdict.findings]
    assert "most lines of 50,400 steps are missing, up to 60,100" in found.summary.notes


def test_lines_that_are_missing_in_many_places_are_one_note(log: Path) -> None:
    steps = [k * 60_000 + n for k in range(9) for n in range(100, 10_100, 100)]
    lines = [stamped(0.05 * n, f"Training loss at step {n}: {3 / n:.6f}") for n in steps]
    said = [one for one in examine(log, lines).summary.notes if "missing" in one]
    assert said == ["most lines of 403,200 steps are missing, in 8 places, the first up to 60,100"]


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


def test_lines_that_print_a_count_again_are_named(log: Path) -> None:
    lines = [f"round{0}, iter{0}, loss: {3 + n / 7:.4f}" for n in range(4)]
    lines += [f"round0, iter{10 * n}, loss: {3 / n:.4f}" for n in range(1, 60)]
    found = examine(log, lines).summary
    assert "3 lines print a count again and are left out" in found.notes
