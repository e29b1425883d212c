"""Machines without torch: every command works, or says in one line what to install."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock

GUIDE = Path(__file__).parents[1] / "data" / "configs" / "guide_reid.yaml"

# As if torch were not installed, whatever the test's own environment holds.
WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
sys.argv[0] = "pitstop"
from pitstop.cli.main import main
main()
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def record(tmp_path: Path) -> Path:
    time = FakeClock()
    writer = RecordWriter(str(tmp_path / "run" / "rank-0.jsonl"), now_us=time.now_us)
    clock = Clock(writer, now_us=time.now_us)
    for _ in range(40):
        clock.begin_step()
        with clock.span("data"):
            time.advance(1_000)
    clock.close()
    writer.close()
    return tmp_path / "run"


def test_torch_is_out_of_reach_in_these_tests() -> None:
    code = WITHOUT_TORCH.replace("from pitstop.cli.main import main\nmain()", "import torch")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in done.stderr


def test_help_and_doctor_work(record: Path) -> None:
    assert run("--help").returncode == 0
    done = run("doctor", record)
    assert (done.returncode, done.stderr) == (1, "")
    assert "DATA001" in done.stdout


def test_a_page_is_written(record: Path, tmp_path: Path) -> None:
    done = run("report", record, "--output", tmp_path / "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert "DATA001" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_configurations_are_converted_checked_and_shown(tmp_path: Path) -> None:
    target = tmp_path / "reid.yaml"
    done = run("config", "import", GUIDE, "--output", target)
    assert done.returncode == 0, done.stderr
    for command in ("check", "show"):
        done = run("config", command, target, f"data.root={tmp_path}")
        assert done.returncode == 0, done.stderr
        assert ("not tried: torch is not installed" in done.stdout) == (command == "check")


def test_the_machine_is_measured_and_the_gap_is_said() -> None:
    done = run("machine", "--quick", "--json", "-")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert any("need torch; install torch 2.11 or later" in note for note in record["notes"])


def test_the_demo_leaves_torch_to_its_owner(tmp_path: Path) -> None:
    done = run("demo", "--output", tmp_path / "demo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the demo needs torch; install torch 2.11 or later as pytorch.org says\n"
    )
    assert not (tmp_path / "demo").exists()
