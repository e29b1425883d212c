"""The probe knows whether its doctor lives, and what it was asked to end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pitstop_probe import doctor
from pitstop_probe.doctor import Doctor, doctor_of, hold, is_held

HOLDING = """
import sys
from pitstop_probe.doctor import hold
lock = hold(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_until_its_holder_lets_go_or_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(str(path))
    held = hold(str(path))
    assert is_held(str(path))
    held.close()
    assert not is_held(str(path))
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert is_held(str(path))
        with pytest.raises(OSError, match="unavailable"):
            hold(str(path))
        other.kill()
        other.wait()
        assert not is_held(str(path))


def test_a_lock_that_cannot_be_tried_counts_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    held = hold(str(path))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(doctor, "_lock", refuse)
    assert not is_held(str(path))
    held.close()


def named(command: list[str], *, pid: int = 0) -> Doctor:
    made = doctor_of({"doctor": {"lock": "none", "pid": pid, "command": command}})
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("command", "script", "is_ended"),
    [
        (["python", "train.py"], "train.py", True),
        (["uv", "run", "/jobs/train.py", "--lr", "1"], "/jobs/train.py", True),
        (["torchrun", "--nproc-per-node", "2", "src/train.py"], "/abs/src/train.py", True),
        (["bash", "sweep.sh"], "train.py", False),
        (["bash", "-c", "python a.py; python b.py"], "a.py", False),
        (["make", "train"], "train.py", False),
        (["python", "-c", "import x"], "-c", False),
        (["python", "launcher.py"], "train.py", False),
        (["python", ""], "", False),
    ],
)
def test_what_the_command_names_may_be_ended(
    monkeypatch: pytest.MonkeyPatch, command: list[str], script: str, *, is_ended: bool
) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    assert named(command).ends_this(is_rank=False) is is_ended
    # Whatever it is, the doctor's own child is what was named.
    assert named(command, pid=os.getppid()).ends_this(is_rank=False)


def test_a_module_is_named_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(sys, "argv", ["/somewhere/package/train.py"])
    monkeypatch.setattr(main, "__spec__", type("Spec", (), {"name": "package.train"}))
    assert named(["torchrun", "-m", "package.train"]).ends_this(is_rank=False)
    assert not named(["torchrun", "-m", "package.other"]).ends_this(is_rank=False)


def test_of_a_scripts_own_processes_only_ranks_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    forked = named(["python", "train.py"], pid=os.getppid())
    forked.is_forked = True
    assert not forked.ends_this(is_rank=False)
    assert forked.ends_this(is_rank=True)
    monkeypatch.setattr(doctor, "parent_process", lambda: "spawned by")
    spawned = named(["python", "train.py"])
    assert not spawned.ends_this(is_rank=False)
    assert spawned.ends_this(is_rank=True)
    assert not named(["bash", "sweep.sh"]).ends_this(is_rank=True)


def test_settings_without_a_doctor_have_none() -> None:
    assert doctor_of({"folder": "x"}) is None
