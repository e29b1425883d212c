"""What the zoo calls the same, and what it calls different."""

from pathlib import Path

import pytest

from tests.zoo.compare import (
    grouped,
    losses,
    same_losses,
    same_output,
    stopwatch_groups,
    true_steps,
    worst_difference,
)
from tests.zoo.generate import KINDS
from tests.zoo.table import OURS, PUBLIC, Row, chosen, read_table


def test_lines_that_differ_in_numbers_only_are_the_same() -> None:
    assert same_output(["step 1 took 3.1 ms"], "step 1 took 2.9 ms") is True
    assert same_output(["step 1\nstep 2"], "step 1") is False
    assert same_output(["step 1"], "step 1\nWarning: something") is False


def test_output_that_varies_by_itself_is_not_judged() -> None:
    assert same_output(["won", "lost"], "won") is None


def test_losses_must_agree_to_the_bit_where_bare_runs_do() -> None:
    assert same_losses([[0.5, 0.25], [0.5, 0.25]], [0.5, 0.25]) is True
    assert same_losses([[0.5, 0.25], [0.5, 0.25]], [0.5, 0.25000001]) is False
    assert same_losses([[0.5, 0.25], [0.5, 0.25]], [0.5]) is False


def test_losses_may_be_apart_where_bare_runs_are() -> None:
    bare = [[0.50, 0.25], [0.52, 0.25]]
    assert same_losses(bare, [0.58, 0.26]) is True
    assert same_losses(bare, [0.75, 0.25]) is False


def test_one_bare_run_cannot_say_how_far_losses_may_be_apart() -> None:
    assert same_losses([[0.5, 0.25]], [0.5, 0.25]) is True
    assert same_losses([[0.5, 0.25]], [0.5, 0.26]) is None
    assert same_losses([[0.5, 0.25]], [0.5]) is False


def test_durations_and_arrays_are_numbers() -> None:
    assert same_output(["Step: 9ms | Tot: 910ms"], "Step: 12ms | Tot: 1s2ms") is True
    assert same_output(["acc: [0.2 0.25 ]"], "acc: [0.2 0.251]") is True
    assert same_output(["9 samples"], "9 steps") is False


def test_a_bar_may_be_as_long_as_its_line_leaves_room() -> None:
    bare = "Epoch 2/2 ━━━━━━ 100/100 85.58it/s"
    assert same_output([bare, bare], "Epoch 2/2 ━━━━━ 100/100 140.08it/s") is True


def test_a_script_without_losses_is_not_judged_by_them() -> None:
    assert same_losses([[], []], []) is None


def test_losses_and_steps_are_found_in_what_scripts_print() -> None:
    row = Row(name="any", script="any.py")
    printed = "Epoch 1\tLoss: 2.3076\ntrain_loss=-0.5\nloss 1.5e-05, 3 s"
    assert losses(printed, row.losses) == [2.3076, -0.5, 1.5e-05]
    assert true_steps(r"step (\d+)", "step 1\nstep 12\ndone") == 12
    assert true_steps(r"step (\d+)", "done") is None


def test_a_column_is_as_wide_as_its_numbers() -> None:
    assert same_output(["loss     dur\n------  -----"], "loss     dur\n------  ------") is True


def test_parts_are_compared_in_what_a_stopwatch_can_time() -> None:
    said = grouped({"data": 0.2, "loss": 0.1, "forward": 0.2, "backward": 0.4, "optimizer": 0.1})
    clock = stopwatch_groups({"data": 0.25, "forward": 0.25, "backward": 0.4, "optimizer": 0.1})
    assert said["rest"] == pytest.approx(0.3)
    assert worst_difference(said, clock) == pytest.approx(5.0)


@pytest.mark.parametrize("table", [OURS, PUBLIC], ids=["ours", "public"])
def test_a_table_is_whole(table: Path) -> None:
    rows = read_table(table)
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert all(entry.split()[0] in KINDS for entry in row.data), row.name
        if row.repository:
            assert len(row.commit) == 40, row.name
        else:
            assert (row.working_folder(None) / row.script).is_file(), row.name


def test_a_name_that_is_not_there_is_no_reason_to_run_nothing() -> None:
    with pytest.raises(ValueError, match="'lbgfs'"):
        chosen(read_table(OURS), ["lbgfs"], "cpu")


def test_public_rows_are_those_that_the_page_lists() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "zoo.md").read_text(encoding="utf-8")
    for row in read_table(PUBLIC):
        assert row.repository in page, row.name
        assert row.commit[:12] in page, row.name
