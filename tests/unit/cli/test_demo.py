"""The demo's text and its folder; the whole of it is an integration test."""

import sys
from pathlib import Path

import pytest

from pitstop.cli.demo import command, engine, folder
from pitstop.cli.demo.command import Bottleneck
from pitstop.cli.demo.engine import BOTTLENECKS, Scale, configure, generate_clips
from pitstop.cli.demo.folder import prepare_folder
from pitstop.cli.demo.script import prepare_script
from pitstop.cli.main import INTERRUPTED, main
from pitstop.doctor.changes import changes_for
from pitstop.doctor.examine import examine
from pitstop.doctor.judge import JudgedRuns
from pitstop.doctor.pairs import PairedRuns
from pitstop.errors import DataError
from pitstop.records.comparison import PairedGain
from tests.unit.doctor.records import rank, run_of

SMALL = Scale(size=(64, 64), frames=2, steps=2, pairs=1, learning_steps=2)


def compared(*ratios: float, difference: float = 0.0) -> str:
    gain = PairedGain(before_s=tuple(ratios), after_s=(1.0,) * len(ratios), steps=27)
    pairs = PairedRuns(gain=gain, judged=JudgedRuns(runs=(), pairs=()))
    turns = engine.EngineTurns(pairs=pairs, largest_difference=difference)
    return "\n".join(command.engine_comparison_lines(turns))


def test_a_gain_is_told_with_the_range_of_all_pairs() -> None:
    text = compared(1.5, 1.2, 2.0)
    assert "1.50x faster (1.20x to 2.00x in 3 pairs" in text
    assert "equal to the bit" in text


def test_a_gain_that_one_pair_does_not_show_is_none() -> None:
    text = compared(1.5, 0.9, 2.0)
    assert "no gain beyond noise: 0.90x to 2.00x in 3 pairs" in text
    assert "1.50x" not in text


def test_a_loss_in_every_pair_is_no_gain() -> None:
    assert "0.80x as fast as before (0.70x to 0.90x in 3 pairs" in compared(0.7, 0.8, 0.9)


def test_weights_that_differ_are_told() -> None:
    text = compared(1.5, difference=2e-3)
    assert "weights differ by up to 2.0e-03 at the end" in text
    assert "equal" not in text


def test_what_the_fixed_run_shows_is_changed_as_well_and_told() -> None:
    kept = {"progress_every_steps": 50, "memory_every_steps": None, "tensorboard": False}
    settings = {"log": {"every_steps": 1, "norm_every_steps": None, **kept}}
    after = examine(run_of(rank({"log": 2_000, "forward": 8_000})))
    assert [finding.code for finding in after.findings] == ["LOG001"]
    more = changes_for(after, settings, cores=2)
    assert list(command.again_lines(after, more)) == [
        "   in the fixed run, LOG001 logging takes much of the step: log.every_steps 1 -> 50"
    ]
    assert not list(command.again_lines(after, ()))


def test_the_fix_changes_few_lines_and_both_scripts_are_whole(tmp_path: Path) -> None:
    script = prepare_script(tmp_path, steps=30)
    changed = [line for line in script.diff.splitlines() if line[:1] in "+-"][2:]
    assert 1 < len(changed) < 15
    for name in ("train.py", "train_fixed.py"):
        text = (script.folder / name).read_text(encoding="utf-8")
        compile(text, name, "exec")
        # Slow by what it computes, as real scripts are.
        assert "sleep" not in text
    assert len(list((script.folder / "pictures").iterdir())) == script.pictures


def test_the_option_offers_every_bottleneck_there_is() -> None:
    assert [bottleneck.value for bottleneck in Bottleneck] == list(BOTTLENECKS)


def test_every_bottleneck_is_a_configuration_that_loads(tmp_path: Path) -> None:
    clips = generate_clips(tmp_path / "demo", SMALL)
    for overrides in BOTTLENECKS.values():
        config = configure(tmp_path / "run", overrides, clips, steps=5)
        assert config.train.steps == 5
        assert (config.data.root, config.run.name) == (tmp_path / "demo" / "clips", "run")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "precious.txt").write_text("mine")
    with pytest.raises(DataError, match="holds files that are not the demo's"):
        prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["clips", "precious.txt"]


def test_a_folder_of_an_earlier_demo_is_made_anew_and_notes_in_it_stay(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "turns" / "before-1").mkdir(parents=True)
    (tmp_path / "report.html").write_text("old")
    prepare_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "made-by-pitstop-demo.txt",
        "notes.txt",
    ]


def test_an_interrupted_demo_says_so_and_leaves_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(output: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "prepare_folder", stopped)
    monkeypatch.setattr(sys, "argv", ["pitstop", "demo", "--output", str(tmp_path / "d")])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == INTERRUPTED
    told = capsys.readouterr().err
    assert "the demo was stopped before its end" in told
    assert "Traceback" not in told
