"""What a study says on a terminal."""

from dataclasses import replace

from pitstop.records.tuning.study import OTHER_SEEDS, GainRow, Trial, Tuning
from pitstop.report.terminal import make_console
from pitstop.report.tuning import result_line, trial_line, tuning_report

FIRST = GainRow(
    knob="",
    overrides=(),
    claim="exact",
    wall_s=0.5,
    gain=1.0,
    gain_low=1.0,
    gain_high=1.0,
    cumulative_gain=1.0,
    peak_device_bytes=None,
    start_s=4.0,
)
SECOND = GainRow(
    knob="workers",
    overrides=("loader.workers=2",),
    claim="exact",
    wall_s=0.25,
    gain=2.0,
    gain_low=1.9,
    gain_high=2.2,
    cumulative_gain=2.0,
    peak_device_bytes=None,
    start_s=5.0,
    break_even_steps=3,
)


def tuning(*rows: GainRow) -> Tuning:
    return Tuning(
        source="run.yaml",
        rows=rows,
        overrides=rows[-1].overrides,
        trials=(
            Trial(overrides=(), end="measured", wall_s=0.5, compute_s=0.4, took_s=60.0),
            Trial(overrides=("a=1",), end="out of memory", reason="80 GiB", took_s=3.0),
        ),
        stopped="all trials are spent",
        left_out=("b=1: does not fit",),
    )


def text_of(study: Tuning, written: str | None) -> str:
    console = make_console()
    with console.capture() as captured:
        console.print(tuning_report(study, written))
    return captured.get()


def test_the_result_comes_first_and_the_next_command_last() -> None:
    lines = text_of(tuning(FIRST, SECOND), "run-tuned.yaml").strip().splitlines()
    assert lines[0] == (
        "2.00x faster with 1 change (measured in turns): 2.00 samples/s to 4.00 samples/s"
    )
    assert "loader.workers=2" in lines[4]
    assert "1.90x to 2.20x" in lines[4]
    assert "2 trials in 63.0 s (1 out of memory); stopped because all trials are spent" in lines
    assert "  b=1: does not fit" in lines
    assert lines[-2:] == [
        "written to run-tuned.yaml",
        "next: pitstop verify run.yaml run-tuned.yaml",
    ]


def test_settings_laid_over_the_configuration_are_verified_with_it() -> None:
    asked = replace(tuning(FIRST), overrides=("a=2",), given=("train.steps=30", "a=1"))
    said = "pitstop verify run.yaml 'my tuned.yaml' train.steps=30"
    assert asked.verify_command("my tuned.yaml") == said


def test_where_nothing_was_gained_no_file_is_named() -> None:
    text = text_of(tuning(FIRST), None)
    assert text.startswith("no setting that was tried makes this run faster beyond noise")
    assert "written" not in text


def test_a_trial_is_one_line_without_escapes() -> None:
    assert trial_line(tuning(FIRST).trials[0]) == "as given: 2.00 samples/s"
    again = Trial(overrides=OTHER_SEEDS, end="measured", wall_s=0.25, compute_s=0.25)
    assert trial_line(again, of="steps") == "as given, other seeds: 4.00 steps/s"
    failed = Trial(overrides=("a=1",), end="crashed", reason="\x1b[2J gone")
    assert trial_line(failed) == "a=1: crashed: \\x1b[2J gone"
    assert result_line(tuning(FIRST)).startswith("no setting")
