"""The doctor ends what the user named, with a code that is no success, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps, at=lambda step: None):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        at(step)
    print(sys.argv[1:], "made", steps, "steps", flush=True)


if __name__ == "__main__":
    train(150)
"""

# Trains as its own grandchild, in the background of a script that leaves when it is under way.
BACKGROUND = """
import os, subprocess, sys

ready, tell = os.pipe()
code = (
    "import os, sys, train\\n"
    "def at(step):\\n"
    "    if step == 40:\\n"
    "        os.write(int(sys.argv[1]), b'x')\\n"
    "        os.read(int(sys.argv[2]), 1)\\n"
    "train.train(400, at)\\n"
)
command = [sys.executable, "-c", code, str(tell), sys.argv[1]]
subprocess.Popen(command, pass_fds=[tell, int(sys.argv[1])])
os.read(ready, 1)
"""

IN_PROCESSES = """
import multiprocessing, sys
import train

if __name__ == "__main__":
    for _ in range(2):
        child = multiprocessing.get_context(sys.argv[1]).Process(target=train.train, args=(150,))
        child.start()
        child.join()
        print("code", child.exitcode, flush=True)
"""

DOCTOR = (sys.executable, "-m", "pitstop", "doctor", "--steps", "40")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs a shell"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "background.py").write_text(BACKGROUND)
    (tmp_path / "in_processes.py").write_text(IN_PROCESSES)
    return tmp_path


def doctor(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DOCTOR, "--record", "record", "--", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_named_script_is_ended_and_that_is_no_success(folder: Path) -> None:
    said = doctor(folder, sys.executable, "train.py")
    assert (said.returncode, said.stdout) == (3, "")


def test_a_named_script_behind_a_shell_is_no_success_to_the_shell(folder: Path) -> None:
    said = doctor(folder, "sh", "-c", f'{sys.executable} "$0"; echo "code $?"', "train.py")
    assert (said.returncode, said.stdout) == (3, "code 3\n")


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", f"{sys.executable} train.py a && {sys.executable} train.py b"),
        (
            sys.executable,
            "-c",
            "import subprocess, sys\n"
            "for name in 'ab': subprocess.run([sys.executable, 'train.py', name], check=True)",
        ),
    ],
    ids=["shell", "launcher"],
)
def test_trainings_that_the_command_does_not_name_run_to_their_end(
    folder: Path, command: tuple[str, ...]
) -> None:
    said = doctor(folder, *command)
    assert said.returncode == 0, said.stderr
    assert said.stdout == "['a'] made 150 steps\n['b'] made 150 steps\n"
    assert "the rest of the command runs on, unmeasured" in said.stderr
    assert "the command ran on, unmeasured, after that" in said.stderr
    # The second was not measured.
    assert [path.name for path in (folder / "record").glob("*-0*.jsonl")] == ["rank-0.jsonl"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_trainings_in_processes_of_the_script_run_to_their_end(folder: Path, method: str) -> None:
    said = doctor(folder, sys.executable, "in_processes.py", method)
    assert said.returncode == 0, said.stderr
    once = f"['{method}'] made 150 steps\ncode 0\n"
    assert said.stdout == once * 2


def test_a_training_in_the_background_goes_on_when_the_doctor_is_gone(folder: Path) -> None:
    waiting, go_on = os.pipe()
    command = [*DOCTOR, "--record", "record", "--", sys.executable, "background.py", str(waiting)]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[waiting]
    ) as process:
        assert process.wait() == 0
        os.write(go_on, b"x")
        assert process.stdout is not None
        # To its end: the training holds it open, too.
        said = process.stdout.read().decode()
    assert "made 400 steps" in said
    os.close(waiting)
    os.close(go_on)
