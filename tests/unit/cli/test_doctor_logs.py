"""``pitstop doctor LOG ...`` over real text: what is said, exit codes, and what is no log."""

import json
import os
import re
from pathlib import Path

import pytest

from pitstop.cli.doctor_logs import doctor_logs, is_log
from pitstop.errors import PitstopError, RecordError
from pitstop.records.logs.comparison import LogComparison
from pitstop.records.logs.summary import LogExamination
from pitstop.records.store import from_json
from pitstop_probe import Clock, RecordWriter

CORPUS = Path(__file__).parents[2] / "data" / "logs"
LOGS = sorted(path for path in CORPUS.iterdir() if not path.name.endswith(".facts.json"))


def bar(path: Path, rate: float, *, steps: int = 20_000) -> Path:
    """A bar as tqdm draws it in one line, with elapsed time in whole seconds."""
    drawn = []
    for step in range(0, steps, 50):
        seconds = int(step / rate)
        elapsed = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        short = elapsed.removeprefix("0:")
        drawn.append(
            f"\rTraining loss=0.52 lr=2e-4:   0%|  | {step}/200000 [{short}<7:27:00, {rate}iter/s]"
        )
    path.write_text("".join(drawn))
    return path


@pytest.fixture
def batch_4(tmp_path: Path) -> Path:
    return bar(tmp_path / "batch4.log", 7.45)


@pytest.fixture
def batch_8(tmp_path: Path) -> Path:
    return bar(tmp_path / "batch8.log", 3.64)


def test_the_guides_two_bars_differ_by_2_3_percent_and_not_51(
    batch_4: Path, batch_8: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor_logs([batch_4, batch_8], batch_sizes=[4, 8]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no difference beyond noise: ")
    assert "29.1 samples/s against 29.8 samples/s: 2.3% slower" in out
    assert "in steps/s it would seem 51.1% slower" in out


def test_a_log_that_is_slower_than_the_first_leaves_with_one(
    batch_4: Path, batch_8: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor_logs([batch_4, batch_8], batch_sizes=[4]) == 1
    assert capsys.readouterr().out.startswith("slower: ")
    assert doctor_logs([batch_8, batch_4], batch_sizes=[4]) == 0


def test_bars_without_batch_sizes_are_not_compared(
    batch_4: Path, batch_8: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor_logs([batch_4, batch_8]) == 2
    assert capsys.readouterr().out.startswith("not comparable: ")


def test_one_bar_is_timed_and_quoted(batch_4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor_logs([batch_4]) == 0
    out = capsys.readouterr().out
    assert out.startswith("not enough evidence: no tool defines this format")
    assert "not known: give --batch-size" in out
    assert "0 at the first, 19,950 at the last, of 200,000" in " ".join(out.split())
    doctor_logs([batch_4], batch_sizes=[4], world_sizes=[2])
    assert "4 samples x 2 ranks / 134 ms a step" in capsys.readouterr().out


@pytest.mark.parametrize("count", [1, 2])
def test_the_record_goes_to_stdout_and_nothing_else_does(
    batch_4: Path, batch_8: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor_logs([batch_4, batch_8][:count], batch_sizes=[4], json="-")
    out = capsys.readouterr().out
    kind = LogExamination if count == 1 else LogComparison
    assert json.loads(out)["kind"] == kind.__name__
    from_json(out, kind)


def test_a_format_can_be_named_and_a_wrong_one_is_refused(batch_4: Path) -> None:
    assert doctor_logs([batch_4], log_format="general") == 0
    with pytest.raises(RecordError, match="there is no log format 'nonsense'"):
        doctor_logs([batch_4], log_format="nonsense")


def test_sizes_that_do_not_fit_the_logs_are_refused(batch_4: Path) -> None:
    with pytest.raises(RecordError, match="2 batch sizes for 1"):
        doctor_logs([batch_4], batch_sizes=[4, 8])


def test_a_measured_run_is_no_log(tmp_path: Path, batch_4: Path) -> None:
    writer = RecordWriter(str(tmp_path / "run" / "rank-0.jsonl"))
    Clock(writer).close()
    writer.close()
    assert not is_log(tmp_path / "run")
    assert not is_log(tmp_path / "run" / "rank-0.jsonl")
    assert not is_log(tmp_path / "nothing here")
    assert is_log(batch_4)
    assert is_log(batch_4.parent)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_every_log_of_the_corpus_is_judged_or_refused_in_one_paragraph(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_log(path)
    refused = ""
    try:
        code = doctor_logs([path])
    except PitstopError as error:
        refused, code = str(error), 2
    if code == 2:
        assert path.name in refused
        assert "\n" not in refused
        return
    lines = capsys.readouterr().out.splitlines()
    outcome = lines[0].partition(":")[0]
    assert (outcome == "bottleneck") == bool(code)
    for name in ("step ", "samples/s ", "run ", "wait for data "):
        for line in lines:
            if line.startswith(name):
                assert "(" in line or "not known: " in line, "a number without its formula"
    assert not any(re.search(r"\bnan\b", line) for line in lines)
    assert any(line.startswith(("not in the log ", "quoted ")) for line in lines)


def verdict(name: str, capsys: pytest.CaptureFixture[str]) -> LogExamination:
    doctor_logs([CORPUS / name], json="-")
    return from_json(capsys.readouterr().out, LogExamination)


def evidence(examined: LogExamination, code: str) -> str:
    [finding] = [one for one in examined.verdict.findings if one.code == code]
    return " / ".join(finding.evidence)


def test_a_time_per_batch_that_is_an_epoch_is_called_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    examined = verdict("strong_baseline.log", capsys)
    said = evidence(examined, "UNIT001")
    assert '"Time per batch: 88.538[s]" is the time of the whole epoch' in said
    assert examined.summary.step is not None
    assert examined.summary.step.middle == pytest.approx(0.481, rel=0.01)


def test_start_up_inside_a_mean_is_taken_out_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    examined = verdict("topreid.txt", capsys)
    said = evidence(examined, "UNIT001")
    assert '"Time per batch: 2.841[s]" is 0.761 s a step plus 42 s' in said
    assert examined.summary.step is not None
    assert examined.summary.step.middle == pytest.approx(0.76, rel=0.01)
    codes = {finding.code for finding in examined.verdict.findings}
    assert {"EVAL001", "DATA002", "BAR001"} <= codes


def test_an_evaluation_hidden_in_data_time_is_no_wait_for_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    examined = verdict("None.log.json", capsys)
    assert examined.summary.step is not None
    assert examined.summary.step.middle == pytest.approx(0.361, rel=0.01)
    codes = {finding.code for finding in examined.verdict.findings}
    assert "EVAL001" in codes
    assert "DATA001" not in codes


@pytest.mark.parametrize(
    "name", ["mmcv_iter.log", "None.log.json", "mmengine_file.log", "metrics.json", "nanogpt.log"]
)
def test_a_median_of_printed_times_stands_in_the_file(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    step = verdict(name, capsys).summary.step
    assert step is not None
    assert "printed" in step.formula
    text = (CORPUS / name).read_text()
    printed = {float(found) for found in re.findall(r"\d+\.\d+", text)}
    scale = 1000 if name == "nanogpt.log" else 1
    for number in (step.low, step.middle, step.high):
        assert any(number * scale == pytest.approx(one, rel=1e-9) for one in printed)


def test_a_bar_that_lost_its_total_is_quoted_as_far_as_it_counts_to_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quoted = verdict("tqdm_lost_total.log", capsys).summary.quoted
    [count] = [one for one in quoted[0].fields if one.role == "count"]
    assert (count.total, count.most) == (1863, 1850)


def test_a_trainer_state_without_single_times_still_shows_its_evaluations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    examined = verdict("trainer_state.json", capsys)
    assert examined.verdict.primary == "EVAL001"
    assert "eval_runtime" in evidence(examined, "EVAL001")


def test_two_runs_in_one_file_are_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    examined = verdict("broken_two_runs.log", capsys)
    assert examined.summary.step is None
    assert examined.verdict.outcome == "not enough evidence"
    assert examined.verdict.message == "the log's times contradict themselves"
    assert any("two runs seem to write into one file" in note for note in examined.verdict.notes)


def test_a_pipe_is_a_log_that_is_refused_without_being_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert is_log(pipe)  # opening it would wait for a writer for ever
    with pytest.raises(RecordError, match="is a pipe"):
        doctor_logs([pipe])


@pytest.mark.parametrize("time", ["-0.5", "0"])
def test_impossible_times_are_no_times_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"step={n} loss={1 / n} step_time_s={time}\n" for n in range(1, 60)))
    assert doctor_logs([log]) == 0
    out = capsys.readouterr().out
    assert out.startswith("not enough evidence: no tool defines this format")
    assert re.search(r"^step +not known", out, re.MULTILINE)


def test_a_step_beyond_all_floats_does_not_stop_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    lines = [f"step={n} step_time_s=0.5\n" for n in [*range(1, 60), 10**400]]
    log.write_text("".join(lines))
    assert doctor_logs([log]) == 0
    assert "step 1 at the first" in " ".join(capsys.readouterr().out.split())


def test_standard_input_is_a_log() -> None:
    assert is_log(Path("-"))
