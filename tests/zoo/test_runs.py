"""Runs of the zoo are kept as they end, and none is made twice."""

import sys
import time
from pathlib import Path

import pytest

from tests.zoo.runs import UNTIMED, Journal, NoTimeLeftError, Run, Zoo
from tests.zoo.table import Row

COUNTS = """
import sys
with open(sys.argv[1], "a") as file:
    file.write("ran\\n")
print("loss 0.5")
"""


def script(tmp_path: Path) -> tuple[Row, Path]:
    """A script that leaves a line wherever it runs."""
    path, ran = tmp_path / "train.py", tmp_path / "ran"
    path.write_text(COUNTS, encoding="utf-8")
    return Row(name="any", script=str(path), args=(str(ran),)), ran


def zoo(journal: Path | None = None, *, within_s: float = 60.0) -> Zoo:
    """A zoo on the CPU."""
    return Zoo(
        device="cpu",
        public=None,
        python=sys.executable,
        journal=Journal(journal),
        end_s=time.monotonic() + within_s,
    )


def test_a_later_call_goes_on_where_the_journal_ends(tmp_path: Path) -> None:
    row, ran = script(tmp_path)
    journal = tmp_path / "runs.jsonl"
    first = zoo(journal).run(row, "bare")
    assert zoo(journal).run(row, "bare") == first
    assert ran.read_text() == "ran\n"
    zoo(journal).run(row, "bare again")
    assert ran.read_text() == "ran\nran\n"


def test_a_line_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    row, ran = script(tmp_path)
    journal = tmp_path / "runs.jsonl"
    zoo(journal).run(row, "bare")
    journal.write_text(journal.read_text()[:-20])
    for _ in range(2):
        zoo(journal).run(row, "bare")
    assert ran.read_text() == "ran\nran\n"


def test_without_time_nothing_is_begun_and_nothing_kept(tmp_path: Path) -> None:
    row, ran = script(tmp_path)
    journal = tmp_path / "runs.jsonl"
    with pytest.raises(NoTimeLeftError, match="any, bare: not begun"):
        zoo(journal, within_s=0.0).run(row, "bare")
    assert not ran.exists()
    assert not journal.exists()


def test_what_is_cut_off_by_the_end_of_time_is_no_result_of_the_script(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import threading; threading.Event().wait()")
    endless = Row(name="endless", script=str(path))
    with pytest.raises(NoTimeLeftError, match="not ended"):
        zoo(within_s=0.3).run(endless, "bare")


def test_a_script_that_takes_longer_than_its_own_limit_is_one(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import threading; threading.Event().wait()")
    assert zoo().run(Row(name="endless", script=str(path), limit_s=0.3), "bare").code == 124


def test_runs_side_by_side_have_checkouts_of_their_own(tmp_path: Path) -> None:
    checkout = tmp_path / "public" / "owner+name"
    checkout.mkdir(parents=True)
    (checkout / "train.py").write_text("import os\nos.mkdir('made')\nprint('loss 0.5')\n")
    row = Row(name="any", script="train.py", repository="owner/name", standins=False)
    made = Zoo(device="cpu", public=tmp_path / "public", python=sys.executable)
    made.run_together([row], UNTIMED[:2], at_a_time=2)
    assert [made.run(row, kind).code for kind in UNTIMED[:2]] == [0, 0]
    assert not (checkout / "made").exists()


@pytest.mark.parametrize(
    ("codes", "others_wait", "first"),
    [
        (("SHARE001", "DATA001"), True, "DATA001"),
        (("SHARE001",), True, "healthy"),
        (("SHARE001",), False, "SHARE001"),
        ((), True, "bottleneck"),
    ],
)
def test_those_that_wait_for_the_gpu_are_no_finding(
    codes: tuple[str, ...], others_wait: bool, first: str
) -> None:
    findings = [{"code": code, "severity": "warning"} for code in codes]
    run = Run(
        kind="whole",
        code=0,
        stdout="",
        stderr="",
        wall_s=1.0,
        verdict={"findings": findings, "outcome": "bottleneck"},
        others_wait=others_wait,
    )
    assert run.first == first
