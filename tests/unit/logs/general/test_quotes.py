"""What lines of one's own print is quoted as it stands there, and what is not quoted is counted."""

from pathlib import Path

import pytest

from pitstop.cli.doctor_logs import doctor_logs
from pitstop.doctor.logs.examine import examine_log
from pitstop.errors import RecordError
from pitstop.logs.general.read import FieldHints
from pitstop.logs.read import read_logs
from pitstop.records.logs.summary import LogExamination, LogSummary
from pitstop.records.logs.windows import FieldQuote, LineKind
from pitstop.records.store import from_json
from tests.unit.logs.general.examined import examine


def summary(path: Path, lines: list[str]) -> LogSummary:
    return examine(path, lines).summary


def kind_of(said: LogSummary, text: str) -> LineKind:
    [found] = [kind for kind in said.quoted if text in kind.example]
    return found


def field_of(kind: LineKind, name: str) -> FieldQuote:
    [found] = [one for one in kind.fields if one.name == name]
    return found


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"2031-03-04 {whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02},000"


def test_a_field_is_quoted_with_its_lines_its_first_and_its_last_value(log: Path) -> None:
    lines = [f"iter {n} loss {3 / n:.4f} lr 1e-4" for n in range(50, 3000, 50)]
    kind = kind_of(summary(log, lines), "iter")
    assert kind.lines == 59
    count, loss = field_of(kind, "iter"), field_of(kind, "loss")
    assert (count.first, count.last, count.falls, count.lines) == (50, 2950, 0, 59)
    assert (loss.first, loss.last) == (0.06, 0.001)


def test_a_count_that_begins_anew_is_not_summed_and_its_falls_are_counted(log: Path) -> None:
    lines = [f"epoch {e} [{n}/40] loss 0.{n}" for e in range(3) for n in range(10, 41, 10)]
    said = summary(log, lines)
    [count] = [one for one in said.quoted[0].fields if one.role == "count"]
    assert (count.first, count.last, count.most, count.falls, count.total) == (10, 40, 40, 2, 40)
    assert (said.last_step, said.total_steps, said.attempts, said.records) == (None,) * 4


def test_lines_with_a_field_more_are_of_the_same_kind(log: Path) -> None:
    lines = [f"epoch {n} loss 0.5 acc 0.9{' f1 0.8' if n % 5 == 0 else ''}" for n in range(20)]
    said = summary(log, lines)
    assert [kind.lines for kind in said.quoted] == [20]
    assert field_of(said.quoted[0], "f1").lines == 4


def test_a_total_that_only_some_lines_print_is_not_quoted_of_all(log: Path) -> None:
    lines = [one for n in range(1, 9) for one in (f"Epoch {n} begins", f"Epoch [{n}/10] ends")]
    assert all(one.total is None for one in summary(log, lines).quoted[0].fields)


def test_a_number_that_only_some_lines_give_a_unit_is_two_fields(log: Path) -> None:
    lines = [f"epoch {n} loss 0.5 took {n}{'s' if n % 2 else ''}" for n in range(1, 21)]
    took = [
        (one.unit, one.lines) for one in summary(log, lines).quoted[0].fields if one.name == "took"
    ]
    assert sorted(took) == [("", 10), ("s", 10)]


def test_lines_of_which_no_field_can_be_quoted_are_counted_all_the_same(log: Path) -> None:
    lines = [
        one for n in range(9) for one in (f"step {n} loss 0.5", f"Time taken for 1 epoch: {n}")
    ]
    rest = summary(log, lines).unquoted
    assert rest is not None
    assert rest.lines == 9


def test_lines_of_an_evaluation_are_quoted_apart(log: Path) -> None:
    lines = [f"{who} epoch {n} loss 0.{n + 1}" for n in range(9) for who in ("Train", "Val")]
    said = summary(log, lines)
    assert [(kind.lines, kind.phase) for kind in said.quoted] == [(9, ""), (9, "evaluation")]


def test_lines_that_name_the_training_and_are_not_quoted_are_counted(log: Path) -> None:
    shapes = [f"part{chr(97 + k)}_loss 0.5 step{chr(97 + k)} 3" for k in range(8)]
    lines = [one for shape in shapes for _ in range(4) for one in (shape, "")]
    rest = summary(log, lines).unquoted
    assert rest is not None
    assert (rest.lines, rest.is_least) == (12, False)
    assert any("loss" in name for name in rest.names)
    assert "_loss 0.5" in rest.example


def test_losses_that_nothing_counts_are_quoted_and_that_is_said(log: Path) -> None:
    said = summary(log, [f"loss: {1 / n:.3f}" for n in range(1, 30)])
    assert field_of(said.quoted[0], "loss").lines == 29
    assert "no number on these lines counts steps or epochs by its name or a total" in said.notes


def test_a_log_without_a_loss_or_a_count_is_refused_with_the_closest_line(log: Path) -> None:
    log.write_text("".join(f"Conv2d-{n} params {n * 7}\n" for n in range(9)))
    with pytest.raises(RecordError, match=r"closest, \d+ times: 'Conv2d-0 params 0'"):
        read_logs([log])


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("step {n} time: {n}h 13min 16s loss 0.5", {"step", "loss"}),
        ("Iter {n} loss = 2.0, time for 50 iter: 639.4", {"Iter", "loss"}),
        ("step {n} loss 0.5 Top1 62.5 Top5 91.0", {"step", "loss", "Top1", "Top5"}),
        ("step {n} loss 0.5 samples (100 per batch)", {"step", "loss"}),
        ("loss of epoch {n} is : 0.51", {"epoch", "loss"}),
        ("epoch {n} loss 0.5 board 8_1_3", {"epoch", "loss"}),
        ("loss at step {n}: 0.5", {"loss at step"}),
        ("epoch {n} loss 0.5 start_time: 2022-10-16-00:49", {"epoch", "loss"}),
    ],
)
def test_only_a_number_whose_name_is_plain_is_quoted(log: Path, line: str, names: set[str]) -> None:
    said = summary(log, [line.format(n=n) for n in range(1, 20)])
    assert {one.name for kind in said.quoted for one in kind.fields} == names


def test_the_clock_between_lines_is_quoted(log: Path) -> None:
    lines = [f"{clock(90 * n)} epoch {n} loss 0.{n + 1}" for n in range(8)]
    assert summary(log, lines).quoted[0].apart_s == (90, 90, 90)


def test_an_even_clock_over_a_count_gives_the_time_of_a_step(log: Path) -> None:
    lines = [f"{clock(60 * n)} iter {20 * n} loss {1 / n:.3f}" for n in range(1, 30)]
    step = summary(log, lines).step
    assert step is not None
    assert step.middle == pytest.approx(3.0)


def test_an_uneven_clock_gives_none(log: Path) -> None:
    lines = [f"{clock(n * n * n)} iter {20 * n} loss {1 / n:.3f}" for n in range(1, 30)]
    assert summary(log, lines).step is None


def test_time_across_lines_of_another_kind_is_no_steps(log: Path) -> None:
    lines: list[str] = []
    for n in range(1, 40):
        lines.append(f"{clock(100 * n)} iter {10 * n} loss {1 / n:.3f}")
        if n % 2:
            lines.append(f"{clock(100 * n + 5)} test acc 0.9 epoch {n}")
    assert summary(log, lines[:-1]).step is not None
    lines = [f"{clock(n)} {'iter' if n % 2 else 'val epoch'} {n} loss 0.5" for n in range(1, 80)]
    assert summary(log, lines).step is None


@pytest.mark.parametrize("head", ["Epoch: [1] [{n}/60000]", "[{n}/60000 (3%)]", "[{n}/391]"])
def test_a_count_without_a_name_gives_no_time_of_a_step(log: Path, head: str) -> None:
    lines = [f"{clock(n)} {head.format(n=100 * n)} Loss: 0.5" for n in range(60)]
    said = summary(log, lines)
    assert said.step is None
    assert said.quoted[0].lines == 60


def test_running_means_give_what_lies_between_them(log: Path) -> None:
    lines = []
    for n in range(10, 400, 10):
        mean, wait = (12 + 0.5 * n) / n, (11 + 0.1 * n) / n
        values = f"Time 0.481 ({mean:.4f})\tData 0.1 ({wait:.4f})\tLoss 2.1 (2.2)"
        lines.append(f"Epoch: [0][{n}/400]\t{values}")
    said = summary(log, lines)
    assert said.step is not None
    assert said.step.middle == pytest.approx(0.5, rel=0.05)
    assert said.data_share == pytest.approx(0.2, rel=0.1)


def test_no_verdict_calls_a_log_of_ones_own_healthy(log: Path) -> None:
    lines = [f"{clock(60 * n)} iter {20 * n} loss {1 / n:.3f}" for n in range(1, 30)]
    verdict = examine(log, lines).verdict
    assert verdict.outcome == "not enough evidence"
    assert verdict.findings == ()


def test_a_loss_that_is_no_number_is_named_in_a_log_of_ones_own(log: Path) -> None:
    lines = [f"iter {n} loss {'nan' if n > 15 else 0.5}" for n in range(1, 20)]
    verdict = examine(log, lines).verdict
    assert [one.code for one in verdict.findings] == ["NAN001"]
    assert "4 of 19 values" in verdict.findings[0].evidence[0]


def test_a_value_that_is_no_number_is_said_to_be_none_and_its_record_can_be_read_back(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text("".join(f"iter {n} loss {'nan' if n > 15 else 0.5}\n" for n in range(1, 20)))
    doctor_logs([log], json="-")
    said = from_json(capsys.readouterr().out, LogExamination).summary
    loss = field_of(said.quoted[0], "loss")
    assert (loss.first, loss.last) == (0.5, None)
    doctor_logs([log])
    assert "0.5 at the first, no finite number at the last" in capsys.readouterr().out


def test_what_the_user_says_counts_steps_is_stated(log: Path) -> None:
    log.write_text("".join(f"mark {n}/900 loss 0.5\n" for n in range(10, 400, 10)))
    said = examine_log(read_logs([log], hints=FieldHints(step="mark"))[0]).summary
    assert (said.last_step, said.total_steps) == (390, 900)


def test_of_very_many_lines_the_first_and_the_last_are_quoted(log: Path) -> None:
    loss = field_of(summary(log, [f"loss: {n}.5" for n in range(200_000)]).quoted[0], "loss")
    assert (loss.lines, loss.first, loss.last) == (200_000, 0.5, 199_999.5)


def test_a_last_line_without_an_end_is_quoted_without_its_last_number(log: Path) -> None:
    log.write_text("\n".join(f"step {n} lr 0.1 loss 0.{n}" for n in range(10, 30)))
    kind = examine_log(read_logs([log])[0]).summary.quoted[0]
    assert (kind.lines, field_of(kind, "loss").lines) == (20, 19)
    assert field_of(kind, "step").last == 29


def test_quotations_are_printed_as_the_lines_have_them(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"step {n}/8880 loss 2.25e-05 took 1:0{n % 7} mem 812MB" for n in range(5, 60, 5)]
    log.write_text("\n".join(lines) + "\n")
    doctor_logs([log])
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "quoted 11 lines like: step 5/8880 loss 2.25e-05 took 1:05 mem 812MB" in said
    assert "step 5 at the first, 55 at the last, of 8,880" in said
    assert "loss 2.25e-05 at the first, 2.25e-05 at the last" in said
    assert "took 1:05 at the first, 1:06 at the last, median 1:03" in said
    assert "mem 812 MB at the first, 812 MB at the last" in said


def test_an_event_file_is_quoted_by_its_tags(capsys: pytest.CaptureFixture[str]) -> None:
    name = "events.out.tfevents.1700000000.host.1.0"
    [run] = read_logs([Path(__file__).parents[3] / "data" / "logs" / name])
    said = examine_log(run).summary
    for one in said.quoted[0].fields:
        series = run.first.scalars[one.name]
        assert (one.lines, one.first) == (len(series.value), series.value[0])
        assert one.last == series.value[-1]
    doctor_logs([Path(run.source)])
    assert "40 values" in capsys.readouterr().out
