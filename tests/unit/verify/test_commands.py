"""Two commands judged by what they print; a fake runner prints it."""

import sys
from pathlib import Path

import pytest

from pitstop.errors import PitstopError
from pitstop.records.verify.trial import TrialEnd
from pitstop.records.verify.verification import Verification
from pitstop.verify.commands import (
    CommandTrial,
    WantedCommands,
    closing_metrics,
    preference,
    verify_commands,
)
from pitstop.verify.runner import OUTPUT, ChildRunner, Program
from pitstop.verify.study import Study

LINE = "iter {step}: loss {loss:.4f}, time 30.11ms, mfu 1.00%\n"


class PrintingRunner:
    """Prints the log of a training whose loss ends at what the command says, with noise."""

    def run(self, program: Program) -> TrialEnd:
        _, _, kind, given, seed = program.arguments
        end, _, held_out = given.partition(":")
        seed = "0" if kind == "fixed" else seed
        fall = 0.0 if kind == "stuck" else 4.0
        lines = [
            LINE.format(step=10 * step, loss=float(end) + 0.01 * int(seed) + fall * 0.8**step)
            for step in range(30)
        ]
        if kind == "nan":
            lines[-1] = "iter 290: loss nan, time 30.11ms, mfu 1.00%\n"
        lines = lines if kind not in ("silent", "result") else ["hello\n"]
        if held_out:
            lines.append(f"done: val_loss {float(held_out) + 0.001 * int(seed)}\n")
        (program.folder / OUTPUT).write_text("".join(lines))
        return TrialEnd(status="finished", reason="", wall_s=1.0)


def verified(folder: Path, base: str, candidate: str) -> Verification:
    wanted = WantedCommands(base=tuple(base.split()), candidate=tuple(candidate.split()), seeds=3)
    return verify_commands(wanted, Study(folder, PrintingRunner(), lambda _: None))


@pytest.mark.parametrize(
    ("candidate", "outcome"),
    [("train 2.0 {seed}", "passes"), ("train 2.5 {seed}", "fails"), ("nan 2.0 {seed}", "fails")],
)
def test_a_command_is_judged_by_its_loss(tmp_path: Path, candidate: str, outcome: str) -> None:
    assert verified(tmp_path, "train 2.0 {seed}", candidate).outcome == outcome


def test_two_commands_that_learn_nothing_are_not_passed(tmp_path: Path) -> None:
    found = verified(tmp_path, "stuck 2.3 {seed}", "stuck 2.3 {seed}")
    assert found.statistical is not None
    assert found.statistical.outcome == "passes"
    assert found.outcome == "undecided"
    assert "does not fall" in found.message


def test_a_command_that_is_held_against_itself_runs_on_both_sides(tmp_path: Path) -> None:
    verified(tmp_path, "train 2.0 {seed}", "train 2.0 {seed}")
    assert len(list(tmp_path.glob(f"*/{OUTPUT}"))) == 2 * 3


def test_runs_that_repeat_each_other_are_one_seed_and_decide_nothing(tmp_path: Path) -> None:
    found = verified(tmp_path, "fixed 2.0 {seed}", "fixed 2.01 {seed}")
    assert found.statistical is not None
    assert found.statistical.p_value == 0
    assert found.outcome == "undecided"
    assert "all of them are one seed" in found.message
    assert "confidence" not in found.message


def test_runs_that_repeat_each_other_to_the_bit_on_both_sides_pass(tmp_path: Path) -> None:
    found = verified(tmp_path, "fixed 2.0 {seed}", "fixed 2.0 {seed}")
    assert found.outcome == "passes"
    assert "prints the same numbers" in found.message
    assert "p =" not in found.message


@pytest.mark.parametrize(
    ("printed", "chosen"),
    [
        (["val/train_loss", "val/loss", "loss", "mfu_percent"], "val/loss"),
        (["lr", "Loss"], "Loss"),
        (["loss", "eval_accuracy"], "eval_accuracy"),
    ],
)
def test_held_out_numbers_decide_before_the_training_loss(printed: list[str], chosen: str) -> None:
    assert min(printed, key=preference) == chosen


def test_seeds_are_paired_where_both_commands_take_them(tmp_path: Path) -> None:
    wanted = WantedCommands(base=("train", "2.0", "{seed}"), candidate=("train", "2.0", "1"))
    found = verify_commands(wanted, Study(tmp_path, PrintingRunner(), lambda _: None))
    assert found.statistical is not None
    assert not found.statistical.paired
    assert found.statistical.metric == "loss"
    assert not found.statistical.higher_is_better


def test_a_command_that_prints_no_loss_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(PitstopError, match="holds no loss or metric"):
        verified(tmp_path, "silent 1 {seed}", "silent 1 {seed}")


def test_a_real_command_is_run_and_read(tmp_path: Path) -> None:
    code = "print('step 0: train loss 7.0000, val loss 8.0000')\n"
    code += "for i in range(20): print(f'iter {i}: loss {4 * 0.9**i:.4f}, time 3.1ms, mfu 1.00%')"
    trial = CommandTrial(label="base, run 0", command=(sys.executable, "-c", code), repeat=0)
    result = Study(tmp_path, ChildRunner(), lambda _: None).result(trial)
    assert (result.status, len(result.losses)) == ("finished", 20)
    assert result.losses[19] == pytest.approx(4 * 0.9**19, abs=1e-4)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step 25 val_loss 0.5 val_acc 0.9", {"val_loss": 0.5, "val_acc": 0.9}),
        ("final val loss 0.51", {"val/final val loss": 0.51}),
        ("test accuracy: 91.2%", {"test accuracy": 91.2}),
        (
            "Test set: Average loss: 0.0300, Accuracy: 9900/10000 (99%)",
            {"test/average loss": 0.03, "test/accuracy": 9900.0},
        ),
        ("train loss 0.1 | valid error=1e-3", {"valid error": 0.001}),
        ("test batch size: 1000, eval every 250, validation images 512", {}),
        ("val_loss 0.7\nval_loss 0.5", {"val_loss": 0.5}),
        ("loss 0.3, accuracy 0.8", {}),
    ],
)
def test_a_result_that_is_printed_once_is_read(line: str, found: dict[str, float]) -> None:
    assert closing_metrics(line) == found


def test_a_long_line_is_read_at_its_beginning_alone() -> None:
    assert closing_metrics("val_loss 0.5 " + "a " * 32_000 + "val_acc 1") == {"val_loss": 0.5}


def test_the_result_that_both_print_once_decides_before_the_training_loss(tmp_path: Path) -> None:
    # A lost augmentation: the training loss is better, what is held out is worse.
    found = verified(tmp_path, "train 2.0:0.5 {seed}", "train 1.0:0.9 {seed}")
    assert found.statistical is not None
    assert (found.statistical.metric, found.outcome) == ("val_loss", "fails")


def test_a_verdict_by_the_training_loss_says_so(tmp_path: Path) -> None:
    found = verified(tmp_path, "train 2.0 {seed}", "train 1.9 {seed}")
    assert "it is the training loss" in found.message
    assert (
        "it is the training loss" not in verified(tmp_path, "a 2:1 {seed}", "a 2:1 {seed}").message
    )


def test_commands_that_print_a_result_and_no_loss_are_judged_by_it(tmp_path: Path) -> None:
    found = verified(tmp_path, "result 2.0:0.5 {seed}", "result 2.0:0.501 {seed}")
    assert found.statistical is not None
    assert (found.statistical.metric, found.outcome) == ("val_loss", "passes")


def test_what_the_first_run_does_not_print_ends_the_study_at_once(tmp_path: Path) -> None:
    with pytest.raises(PitstopError, match="holds no loss or metric"):
        verified(tmp_path / "base", "silent 1 {seed}", "train 1 {seed}")
    with pytest.raises(PitstopError, match=r"candidate, run 0 printed no loss.*read as: nothing"):
        verified(tmp_path / "candidate", "train 1 {seed}", "silent 1 {seed}")
    runs = {side: len(list(tmp_path.glob(f"{side}/*/{OUTPUT}"))) for side in ("base", "candidate")}
    assert runs == {"base": 1, "candidate": 2}


def test_another_name_for_the_metric_is_told(tmp_path: Path) -> None:
    said = r"printed no val_loss, though others did; what it printed was read as: loss"
    with pytest.raises(PitstopError, match=said):
        verified(tmp_path, "train 1:0.5 {seed}", "train 1 {seed}")


def test_a_side_that_repeats_itself_is_one_seed_beside_one_that_does_not(tmp_path: Path) -> None:
    # Its first run is that of the other side, to the bit.
    found = verified(tmp_path, "train 2.0 {seed}", "train 2.0 0")
    assert found.exact is not None
    assert not found.exact.is_equal
    assert found.outcome == "undecided"
    assert "every run of a side repeats its first" in found.message


def test_more_runs_of_one_seed_are_not_asked_for(tmp_path: Path) -> None:
    near_the_margin = verified(tmp_path, "train 2.0 {seed}", "train 2.1 0").statistical
    assert near_the_margin is not None
    assert (near_the_margin.outcome, near_the_margin.more_seeds) == ("undecided", None)
