"""A study of a script as text: lines to change, with places, gains and what the loss said."""

from dataclasses import replace

from pitstop.records.tuning.script import Advice, CodeChange, ScriptSeen, ScriptTuning
from pitstop.records.tuning.study import CodePlace, GainRow, Trial, Tuning
from pitstop.report.script_tuning import change_lines, result_line, script_tuning_report
from pitstop.report.terminal import make_console

BARE = GainRow(
    knob="",
    overrides=(),
    claim="exact",
    wall_s=0.4,
    gain=1.0,
    gain_low=1.0,
    gain_high=1.0,
    cumulative_gain=1.0,
    peak_device_bytes=None,
    start_s=3.0,
)
WORKERS = replace(
    BARE,
    knob="workers",
    overrides=("loader.workers=2",),
    wall_s=0.2,
    gain=2.0,
    gain_low=1.9,
    gain_high=2.1,
    cumulative_gain=2.0,
    break_even_steps=30,
)
FOUND = ScriptTuning(
    command="python train.py",
    tuning=Tuning(
        source="python train.py",
        rows=(BARE, WORKERS),
        overrides=("loader.workers=2",),
        trials=(),
        stopped="all trials are spent",
        left_out=("TF32: it trains without a GPU",),
        notes=("threads=1 was faster in the search and not in the turns; it was left out",),
    ),
    seen=ScriptSeen(device="cpu", threads=2, autocast=None, is_compiled=False),
    changes=(
        CodeChange(
            text="give DataLoader num_workers=2",
            places=(CodePlace(change="loader.workers=2", place="train.py:31", name="DataLoader"),),
            gain=2.0,
            gain_low=1.9,
            gain_high=2.1,
            loss="same bits",
        ),
    ),
    advice=(
        Advice(
            code="SYNC001",
            summary="the loop waits for the device",
            remedy="read values less often",
            places=("train.py:40",),
        ),
        Advice(code="BATCH001", summary="the batch is small", remedy=""),
    ),
)


def shown(found: ScriptTuning) -> str:
    console = make_console()
    console.width = 200
    with console.capture() as capture:
        console.print(script_tuning_report(found))
    return capture.get()


def test_lines_to_change_have_their_place_their_gain_and_their_loss() -> None:
    assert change_lines(FOUND) == ["train.py:31  give DataLoader num_workers=2  (2.00x, same bits)"]
    text = shown(FOUND)
    assert text.startswith(
        "2.00x faster with 1 change (measured in turns): 400 ms a step to 200 ms"
    )
    for said in ("train.py:31", "1.90x to 2.10x", "30 steps", "TF32: it trains", "threads=1 was"):
        assert said in text


def test_what_no_change_fixes_is_advice_with_its_line() -> None:
    text = shown(FOUND)
    assert "SYNC001 the loop waits for the device (train.py:40)\n    read values less often" in text
    assert "BATCH001 the batch is small\n" in text


def test_a_variable_has_no_line() -> None:
    variable = replace(FOUND.changes[0], text="A=1 before the command", places=())
    assert change_lines(replace(FOUND, changes=(variable,))) == [
        "A=1 before the command  (2.00x, same bits)"
    ]


def test_nothing_gained_is_said() -> None:
    tried = Trial(overrides=("threads=1",), end="crashed")
    without = replace(FOUND.tuning, rows=(BARE,), left_out=(), trials=(tried,))
    nothing = replace(FOUND, changes=(), advice=(), tuning=without)
    assert result_line(nothing) == "nothing that was tried makes this script faster beyond noise"
    assert "change these lines" not in shown(nothing)


def test_a_study_without_time_for_a_change_does_not_speak_of_what_it_tried() -> None:
    untouched = (Trial(overrides=(), end="measured"),)
    tuning = replace(FOUND.tuning, rows=(BARE,), trials=untouched, stopped="the time is over")
    nothing = replace(FOUND, changes=(), tuning=tuning)
    assert result_line(nothing) == "no change was tried: the time is over"
