"""Whole studies of real scripts: what goes wrong is a result, nothing is lost or left behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pitstop.errors import PitstopError
from pitstop.records.tuning.script import Advice
from pitstop.records.tuning.study import OTHER_SEEDS, Trial, Tuning
from pitstop.tune.knobs import OWN, Knob
from pitstop.tune.script.study import JOURNAL, ScriptStudy, run_script_study, with_tried
from pitstop.tune.space import Space
from pitstop.tune.tuning import Budget

PLANTED = Path(__file__).parent / "planted.py"
ENDS = {
    ("optimizer=fused",): "crashed",
    ("autocast=bf16",): "not finite",
    ("threads=1",): "out of memory",
    ("env.MALLOC_MMAP_MAX_=0", "env.MALLOC_TRIM_THRESHOLD_=68719476736"): "timed out",
    ("env.THP_MEM_ALLOC_ENABLE=1",): "crashed",
}
"""How the planted script ends, by what is changed in it."""


def study(folder: Path, *command: str, trials: int = 12, limit_s: float = 60.0) -> ScriptStudy:
    return ScriptStudy(
        command=command,
        folder=folder,
        allowed=frozenset({"exact", "rounding"}),
        steps=12,
        trial_limit_s=limit_s,
        budget=Budget(most_trials=trials, most_s=1e9),
        memory_limit_bytes=800 << 20,
    )


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """See to it that there is another number of threads to try."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for name in ("MALLOC_MMAP_MAX_", "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_every_planted_trial_is_recorded_as_what_it_was(tmp_path: Path) -> None:
    tried: list[Trial] = []
    wanted = study(tmp_path, sys.executable, str(PLANTED), trials=9, limit_s=40.0)
    found = run_script_study(wanted, tried.append)
    # The untouched runs are told of as they end, each once.
    assert [trial.overrides for trial in tried[:3]] == [(), (), OTHER_SEEDS]
    assert len({id(trial) for trial in tried}) == len(tried)
    ends = {trial.overrides: trial.end for trial in tried if trial.overrides in ENDS}
    assert ends == {one: ENDS[one] for one in ends}
    assert len(ends) == len(ENDS)
    assert not set(found.tuning.overrides) & {word for one in ENDS for word in one}
    assert not any(PLANTED.name in " ".join(each) for each in command_lines())


def command_lines() -> list[list[str]]:
    found: list[list[str]] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found.append(process.cmdline())
    return found


TUNER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.unit.tune.script.test_study import study
from pitstop.tune.script.study import run_script_study
folder, log = sys.argv[2:]
wanted = study(Path(folder), sys.executable, sys.argv[0], log, trials=5)
run_script_study(wanted, lambda trial: None)
"""


@pytest.mark.slow
def test_a_killed_tuner_loses_and_repeats_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    # The whole study takes some twenty seconds: it is not over after two times five.
    kills, lost = kill_often(tmp_path, kills=2, draw=random.Random(0), latest_s=5.0)
    assert (kills, lost) == (2, [])


def kill_often(
    folder: Path, *, kills: int, draw: random.Random, latest_s: float = 14.0
) -> tuple[int, list[str]]:
    """Kill a tuner at random moments until it was killed so often, then let it end.

    Returns:
        How often it was killed before it had ended, and everything that went wrong.
    """
    journal, log = folder / "study" / JOURNAL, folder / "starts.txt"
    script = folder / "planted.py"
    script.write_text(PLANTED.read_text())
    wrong: list[str] = []
    done, before = 0, ""
    while True:
        is_last = done == kills
        code = _run_tuner(folder, log, None if is_last else draw.uniform(1.0, latest_s))
        after = journal.read_text() if journal.exists() else ""
        if not after.startswith(before[: before.rfind("\n") + 1]):
            wrong.append(f"the journal lost lines after kill {done}")
        before = after
        wrong += [f"left behind: {line}" for line in _alive(script)]
        if code != -signal.SIGKILL:
            break
        done += 1
    trials = [json.loads(line) for line in before.splitlines()[1:]]
    starts = log.read_text().splitlines()
    if code:
        wrong.append(f"the last tuner ended with {code}")
    if not len(trials) <= len(starts) <= len(trials) + done:
        wrong.append(f"{len(starts)} trials were started for {len(trials)} and {done} kills")
    return done, wrong


def _run_tuner(folder: Path, log: Path, kill_after_s: float | None) -> int:
    root = str(Path(__file__).parents[4])
    program = TUNER.replace("sys.argv[0]", repr(str(folder / "planted.py")))
    tuner = subprocess.Popen(
        [sys.executable, "-c", program, root, str(folder / "study"), str(log)],
        stderr=subprocess.DEVNULL,
    )
    with suppress(subprocess.TimeoutExpired):
        tuner.wait(kill_after_s)
    if tuner.poll() is None:
        tuner.kill()
    return tuner.wait()


def _alive(script: Path) -> list[str]:
    """Give processes that run the script still, after the time that ending them takes."""
    deadline = time.monotonic() + 60
    while True:
        found = [" ".join(each) for each in command_lines() if str(script) in each]
        if not found or time.monotonic() > deadline:
            return found
        os.sched_yield()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import torch", "it ended, and no optimizer of torch's had made a step"),
        ("print('hello')", "no Python process in it finished importing torch, or the probe was"),
    ],
)
def test_a_script_that_does_not_train_is_said_so(tmp_path: Path, source: str, said: str) -> None:
    script = tmp_path / "idle.py"
    script.write_text(f"{source}\n")
    with pytest.raises(PitstopError, match=r"idle.py cannot be measured as it is") as error:
        run_script_study(study(tmp_path / "study", sys.executable, str(script)), lambda _: None)
    assert said in str(error.value)


@pytest.mark.slow
def test_a_script_that_does_not_end_is_said_to_have_made_no_step(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import threading\nthreading.Event().wait()\n")
    wanted = study(tmp_path / "study", sys.executable, str(script), limit_s=2.0)
    said = r"limit of 2 s, before a step of an optimizer of torch's was seen; --trial-minutes"
    with pytest.raises(PitstopError, match=said):
        run_script_study(wanted, lambda _: None)


@pytest.mark.slow
def test_a_script_that_its_own_files_stop_from_running_again_is_said_so(tmp_path: Path) -> None:
    script, left = tmp_path / "once.py", tmp_path / "left"
    script.write_text(f"open({str(left)!r}, 'x')\n{PLANTED.read_text()}")
    wanted = study(tmp_path / "study", sys.executable, str(script))
    with pytest.raises(PitstopError, match=r"measured once and not again \(crashed\): FileExists"):
        run_script_study(wanted, lambda _: None)
    # The same command goes on once that is gone: what failed is no result.
    left.unlink()
    tried: list[Trial] = []
    with pytest.raises(PitstopError, match="measured once and not again"):
        run_script_study(wanted, tried.append)
    assert [trial.end for trial in tried] == ["measured", "measured", "crashed"]


def test_advice_is_not_to_do_what_was_tried_without_gain() -> None:
    workers = ("loader.workers=2", "loader.persistent=true")
    asked, other = (Knob(name=code, choices=lambda _: (), asked_by=(code,)) for code in "AB")
    space = Space(knobs=(asked, other), choices=((OWN, workers), (OWN, ("b=1",))), left_out=())
    trial = Trial(overrides=(*workers, "c=2"), end="measured")
    tuning = Tuning(source="x", rows=(), overrides=(), trials=(trial,), stopped="")
    advice = Advice(code="A", summary="it waits for data", remedy="use workers")
    said = "tried, and no gain held: loader.workers=2 loader.persistent=true"
    assert with_tried(advice, tuning, space) == replace(advice, remedy=said)
    untried = replace(advice, code="B")
    assert with_tried(untried, tuning, space) is untried
