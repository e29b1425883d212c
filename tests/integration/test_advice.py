"""Advice on real scripts, through the command line: it names their lines and fits what they do."""

from pathlib import Path

import pytest

from tests.integration.shared_runs import shared_doctor
from tests.scripts.corpus import FOLDER, command

pytestmark = pytest.mark.slow

STAND_IN = """
class Slow:
    def reset(self):
        return [0.0] * 16, {}

    def step(self, action):
        total = 0.0
        for number in range(400_000):
            total += (number * action) % 7
        return [total % 1.0] * 16, 1.0, False, False, {}


def make(name):
    return Slow()
"""


def finding(script: str, code: str, *args: str) -> str:
    """All that is said of one finding."""
    said = shared_doctor(command(script, args), steps=80)
    assert said.verdict, said.stderr
    found = {found["code"]: found for found in said.verdict["findings"]}
    assert code in found, said.verdict
    return "\n".join((*found[code]["evidence"], *found[code]["remedy"]))


@pytest.mark.parametrize(
    ("script", "code", "args"),
    [
        *(
            # Beside those who compare the times of the same runs, made once.
            pytest.param(*each, marks=pytest.mark.quiet)
            for each in (
                ("slow/evaluate_often.py", "EVAL001", ("--eval-every", "4")),
                ("slow/save_often.py", "CKPT001", ("--save-every", "4")),
                ("slow/optimizer_loop.py", "OPT001", ("--update", "loop")),
            )
        ),
        ("advice/costly_loss.py", "LOSS001", ("frozen",)),
    ],
)
def test_what_is_costly_is_told_with_a_line_of_the_script(
    script: str, code: str, args: tuple[str, ...]
) -> None:
    text = finding(script, code, *args)
    name = script.rpartition("/")[2]
    [first, *_] = [line for line in text.splitlines() if " at " in line and ".py:" in line]
    assert f"{name}:" in first, text
    number = int(first.partition(f"{name}:")[2].split()[0])
    source = (FOLDER / script).read_text(encoding="utf-8").splitlines()[number - 1].strip()
    assert f"`{source}`" in first


def test_a_frozen_network_is_named_where_there_is_one() -> None:
    assert "run the frozen PerceptualLoss" in finding("advice/costly_loss.py", "LOSS001", "frozen")
    assert "frozen" not in finding("advice/costly_loss.py", "LOSS001", "loop")


def test_a_script_that_acts_is_told_of_many_environments_and_of_no_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "gymnasium"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    # What the environment gives is what the model is given: data, though no loader makes it.
    text = finding("advice/acting.py", "DATA001")
    assert "env.step(action)" in text
    assert "gymnasium.make_vec" in text
    assert "DataLoader" not in text
