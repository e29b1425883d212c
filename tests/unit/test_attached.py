"""`pitstop.attach` in a notebook: the verdict shows itself, as text and as HTML."""

import subprocess
import sys
from pathlib import Path

import pytest

from pitstop.attached import JudgedAttached
from tests.browser.records import NASTY, write_run


def test_the_verdict_of_a_record_shows_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "run", name=NASTY)
    attached = JudgedAttached(None, tmp_path / "run")
    shown = attached.verdict()
    assert shown.verdict.outcome == "bottleneck"
    assert repr(shown).startswith("bottleneck: ")
    html = shown._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html == attached._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html.count("<details>") == html.count("</details>") == len(shown.verdict.findings)
    assert "<script" not in html


def test_the_text_is_shown_once_in_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Rich asks for the shell's own name, and displays by itself where that is a notebook's.
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)
    write_run(tmp_path / "run")
    assert repr(JudgedAttached(None, tmp_path / "run").verdict()).startswith("bottleneck: ")
    assert capsys.readouterr().out == ""


def test_a_measurement_without_a_step_says_so(tmp_path: Path) -> None:
    shown = JudgedAttached(None, tmp_path / "nothing").verdict()
    assert "no step was recorded" in repr(shown)


@pytest.mark.slow
def test_a_loop_that_was_attached_to_is_judged_from_its_own_process(tmp_path: Path) -> None:
    code = """
import torch, pitstop, sys
model = torch.nn.Linear(8, 8); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with pitstop.attach("run") as attached:
    for _ in range(60):
        optimizer.zero_grad(); model(torch.randn(4, 8)).sum().backward(); optimizer.step()
print(attached.verdict()._repr_html_())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<div><b>")


def test_attaching_needs_nothing_of_what_judges() -> None:
    code = "import sys, pitstop; pitstop.attach; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pitstop.doctor", "pitstop.report", "rich"} & set(done.stdout.split())
