"""`pitstop eval`: a number people can trust, a record for machines, mistakes in one paragraph."""

import json
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from pitstop.config.dump import to_yaml
from pitstop.config.sections import RunConfig
from pitstop.train.run import TrainingRun
from pitstop.workloads import catalogue
from tests.command_line import Run, command_line
from tests.fork_server.client import run_python
from tests.unit.train.runs import LINE, LineTask, line_config

ROOT = Path(__file__).parents[3]
EVERY = ["eval.every_steps=4"]  # without which the best is not looked for
torch.set_num_threads(1)


def build_task(config: RunConfig) -> LineTask:
    assert config.model.weights is None
    return LineTask()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A trained run at tmp_path/run with its line.yaml, and the command line in this process."""
    config = line_config(tmp_path)
    yaml = to_yaml(config, kinds={"line": LINE})
    (tmp_path / "line.yaml").write_text(yaml)
    TrainingRun(config=config, config_yaml=yaml, task=LineTask()).run()
    monkeypatch.setattr(catalogue, "outside_kinds", lambda: {"line": LINE})
    monkeypatch.setattr(catalogue, "build_task", build_task)

    return command_line(capsys, monkeypatch, "eval", tmp_path / "line.yaml")


def test_the_metric_comes_first(run: Run, tmp_path: Path) -> None:
    code, out, err = run("eval.batch_size=2", "--checkpoint", tmp_path / "run")
    assert (code, err) == (0, "")
    metric, source, pace, closing = out.splitlines()
    assert metric.split()[0] == "error"
    assert source.endswith("save-000003-step-000000012 (step 12)")
    assert pace.startswith("7 samples in ")
    line = f"{tmp_path / 'line.yaml'} eval.batch_size=2 --checkpoint {tmp_path / 'run'}"
    assert closing == f"next: pitstop infer {line} --output FOLDER"


def test_the_record_goes_to_stdout_alone_or_to_a_file(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("--checkpoint", tmp_path / "run", "--json", "-")
    assert code == 0
    assert json.loads(out)["kind"] == "EvaluationRecord"
    target = tmp_path / "eval.json"
    code, out, _ = run("--checkpoint", tmp_path / "run", "--json", target)
    assert out.startswith("error ")
    assert json.loads(target.read_text())["step"] == 12


def test_weights_that_training_began_with_need_not_be_there(run: Run, tmp_path: Path) -> None:
    code, _, err = run("model.weights=gone.pth", "--checkpoint", tmp_path / "run")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--checkpoint", "nowhere"], "there is no checkpoint at nowhere"),
        (["eval.batch_sise=2", "--checkpoint", "run"], "did you mean eval.batch_size"),
        (
            ["checkpoint.best_of=psnr", "eval.every_steps=4", "--checkpoint", "run"],
            "measures error",
        ),
        (["--checkpoint", "other.pth"], "is not of the model that this configuration describes"),
        ([], "Missing option '--checkpoint'"),
    ],
)
def test_a_mistake_leaves_with_two(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.ones(3)}, "other.pth")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_without_torch_what_to_install_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pitstop.cli.output.find_spec", lambda name: None)
    code, _, err = run("--checkpoint", "run")
    assert code == 2
    assert err.startswith("error: evaluation needs torch; install torch ")


@pytest.mark.slow
def test_from_nothing_to_a_verdict_by_commands_alone(tmp_path: Path) -> None:
    clips, run, frames = tmp_path / "clips", tmp_path / "deblur-demo", tmp_path / "frames"

    def pitstop(*words: object) -> str:
        done = run_python("-m", "pitstop", *map(str, words), folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout

    config = [ROOT / "configs" / "deblur" / "demo.yaml", f"data.root={clips}"]
    small = ("--train-clips", "1", "--test-clips", "1", "--frames", "5", "--size", "32x48")
    pitstop("data", "make", "deblur", clips, *small)
    lasting = ("train.steps=4", "eval.every_steps=4", "schedule.warmup_steps=1")
    told = pitstop("train", *config, *lasting, "--work-dir", tmp_path)
    assert "finished at step 4" in told
    [evaluated] = [line for line in told.splitlines() if line.startswith("step 4: evaluated, ")]

    measured = json.loads(pitstop("eval", *config, "--checkpoint", run, "--json", "-"))
    assert (measured["step"], measured["samples"]) == (4, 3)
    # Training shows three digits of the same number.
    shown = float(evaluated.split("psnr ")[1].split(",")[0])
    assert measured["metrics"]["psnr"] == pytest.approx(shown, rel=0.005)

    pitstop("infer", *config, "--checkpoint", run, "--output", frames)
    names = sorted(str(path.relative_to(frames)) for path in frames.rglob("*") if path.is_file())
    blurred = sorted((clips / "test").glob("*/blur/*.png"))
    assert names == [f"{path.parts[-3]}{os.sep}{path.name}" for path in blurred]
    with Image.open(frames / names[0]) as image:
        assert image.size == (32, 32)  # data.eval_crop

    assert pitstop("doctor", run).startswith("not enough evidence")
