"""The demo: small and in this process for what it decides, whole as a newcomer runs it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pitstop.cli.demo.command import Bottleneck, demonstrate_engine
from pitstop.cli.demo.engine import Scale
from pitstop.cli.demo.folder import prepare_folder
from pitstop.records.pictures import FOLDER, read_pictures
from pitstop.records.store import read_run

torch.set_num_threads(1)

SHORT = Scale(frames=2, steps=30, pairs=1, learning_steps=11)


def shown(folder: Path, bottleneck: Bottleneck) -> tuple[dict[str, object], str]:
    """The settings that the demo changed, and all it said."""
    lines: list[str] = []
    changes = demonstrate_engine(folder, bottleneck, SHORT, lines.append)
    return {change.key: change.after for change in changes}, "\n".join(lines)


@pytest.mark.slow
def test_another_bottleneck_leads_to_another_second_run(tmp_path: Path) -> None:
    evaluating, told = shown(tmp_path / "one", Bottleneck.evaluation)
    feeding, told_of_feeding = shown(tmp_path / "two", Bottleneck.data)
    assert "eval.every_steps" in evaluating
    assert "EVAL001" in told
    assert "loader.workers" in feeding
    assert "eval.every_steps" not in feeding
    assert "DATA001" in told_of_feeding
    for text in (told, told_of_feeding):
        assert "the weights it ends with are equal to the bit" in text

    # What was said was done: the second run evaluated at its end alone, the first every 5 steps.
    turns = [tmp_path / "one" / "turns" / name for name in ("before-1", "after-1")]
    counts = [len(read_run(turn).first.scalars["eval/psnr"].step) for turn in turns]
    assert counts == [6, 1]


WORDS = ["pitstop", "demo", "--output", "demo"]

# The turns of its script take a minute, and whoever stops it there waits for no other lines.
WITHOUT_SCRIPT = f"""
import runpy
import sys
from pitstop.cli.demo import command

command.demonstrate_script = lambda *_: None
sys.argv = {WORDS}
runpy.run_module("pitstop", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("with_signal_handlers")
def test_a_demo_stopped_on_its_way_says_so_and_its_folder_serves_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_SCRIPT]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        while not running.stdout.readline().startswith("4. the engine"):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, err = running.communicate()
    assert running.returncode == 130
    assert "the demo was stopped before its end" in err
    assert "Traceback" not in err
    left = {path.name for path in (tmp_path / "demo").iterdir()}
    assert "clips" in left
    assert "report.html" not in left
    prepare_folder(tmp_path / "demo")
    assert len(list((tmp_path / "demo").iterdir())) == 1, "all but the sign that it is the demo's"


@pytest.mark.slow
@pytest.mark.quiet
def test_a_newcomer_sees_the_bottleneck_the_cure_and_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", *WORDS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    out = done.stdout
    assert "waiting for the next batch took" in out
    assert re.search(r"of the wait at train\.py:\d+", out)
    script, _ = gains = re.findall(r"^ {3}(.* in 3 pairs.*)$", out, re.MULTILINE)
    faster = re.match(r"([\d.]+)x faster", script)
    assert faster is not None
    assert float(faster[1]) >= 3
    assert "the losses it prints are the same to the last digit" in out
    for name, said in zip(("script.html", "before-and-after.html"), gains, strict=True):
        assert said in (tmp_path / "demo" / name).read_text(encoding="utf-8")

    assert "EVAL001" in out
    assert re.search(r"eval\.every_steps 5 -> \d+", out)
    assert "the weights it ends with are equal to the bit" in out
    assert re.search(r"goes from [\d.]+ dB blurry to [\d.]+ dB restored", out)
    assert len(out.splitlines()) < 45
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert len(page) < 1_000_000
    pictures = read_pictures(tmp_path / "demo" / "fixed")
    assert pictures is not None
    captions = [[cell.caption for cell in row.cells] for row in pictures.rows]
    assert captions == [["blurry", "restored", "sharp", "spikes"]] * 2
    assert page.count("data:image/png") >= sum(map(len, captions))
    for row in pictures.rows:
        for cell in row.cells:
            assert (tmp_path / "demo" / "fixed" / FOLDER / cell.file).stat().st_size > 500
