"""The doctor on other people's ways to train: frameworks, crashes, kills, and no training at all.

Whatever the script does, its output and its exit code are what they would have been.
"""

import importlib.util
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.scripts.corpus import command
from tests.scripts.run_corpus import Said, doctor

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A way to train, and the line with which its script ends."""

    script: str
    needs: str = "torch"
    args: tuple[str, ...] = ()
    ranks: int = 1
    steps: int = 120


FRAMEWORKS = {
    "Lightning": Framework(script="lightning_trainer.py", needs="lightning"),
    "Hugging Face Trainer": Framework(script="huggingface_trainer.py", needs="transformers"),
    "Accelerate": Framework(script="accelerate_loop.py", needs="accelerate", steps=100),
    "DDP": Framework(script="ddp.py", ranks=2),
    "FSDP2": Framework(script="fsdp2.py", ranks=2, steps=80),
    "compile, eager": Framework(script="compiled.py", args=("--backend", "eager")),
    "compile, aot_eager": Framework(script="compiled.py", args=("--backend", "aot_eager")),
    "mixed precision": Framework(script="mixed_precision.py"),
    "two optimizers": Framework(script="gan.py"),
    "several models": Framework(script="several_models.py"),
    "generator": Framework(script="generator_loop.py"),
}


# One of 26 runs of the FSDP2 script ended so where nobody measured it, after its last line, on two
# busy cores: a thread of torch's is still there when the process goes.
_TORCH_DIED_LEAVING = "terminate called without an active exception"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_measured_without_a_change_to_its_script(name: str) -> None:
    framework = FRAMEWORKS[name]
    if importlib.util.find_spec(framework.needs) is None:
        pytest.skip(f"{framework.needs} is not installed")
    line = command(f"frameworks/{framework.script}", framework.args, ranks=framework.ranks)
    said = doctor(line, steps=1_000)
    if framework.ranks > 1 and _TORCH_DIED_LEAVING in said.stderr:
        said = doctor(line, steps=1_000)
    assert said.exit_code == 0, said.stderr
    # It ran to its own end, and each of its updates was seen as one step.
    assert f"trained {framework.steps} steps" in said.stdout
    assert said.outcome in {"bottleneck", "healthy"}, said.verdict
    assert framework.steps * 0.7 < said.verdict["steps"] < framework.steps
    shares = said.verdict["shares"]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
    # The rest lies between two points that were observed.
    assert shares["unaccounted"] <= 0.05


COMPILER = "aot_eager" if shutil.which("c++") is None else "inductor"
"""What `torch.compile` takes; by default it needs a compiler for C++ on a machine without a GPU."""

# Steps of 30 ms and more, as real ones are: a trainer's own Python is a third of very short ones.
ORDINARY = {
    "plain loop": command("healthy/plain.py"),
    "Lightning": command("frameworks/lightning_trainer.py", ("--batch-size", "8192")),
    "Hugging Face Trainer": command("frameworks/huggingface_trainer.py", ("--batch-size", "128")),
    "torchrun": command("frameworks/ddp.py", ("--batch-size", "512"), ranks=2),
    "compile": command("frameworks/compiled.py", ("--batch-size", "2048", "--backend", COMPILER)),
}


@pytest.mark.quiet
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_steps_lie_inside_calls_that_were_observed(name: str) -> None:
    said = doctor(ORDINARY[name], steps=1_000)
    assert said.exit_code == 0, said.stderr
    # Two ranks on two cores: Python between calls waits for a core now and then.
    least = 0.92 if name == "torchrun" else 0.95
    assert observed_share(said) >= least, said.verdict["shares"]


def observed_share(said: Said) -> float:
    """Of the wall clock, what lies inside observed calls and not merely between two of them."""
    shares = said.verdict["shares"]
    return 1 - shares["unaccounted"] - shares["host"] - shares["loss"]


TORCH_AND_ITS_NEEDS = (
    *("torch", "torchgen", "functorch", "numpy", "numpy.libs", "sympy", "mpmath", "networkx"),
    *("jinja2", "markupsafe", "fsspec", "filelock", "typing_extensions.py"),
)


@pytest.mark.quiet
def test_a_script_is_measured_in_an_environment_that_has_no_pitstop(tmp_path: Path) -> None:
    python = environment_with_torch_alone(tmp_path / "theirs")
    for module, exit_code in (("torch", 0), ("pitstop", 1), ("pydantic", 1)):
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
        assert done.returncode == exit_code, done.stderr
    said = doctor([python, *command("healthy/plain.py")[1:]], steps=1_000)
    assert said.exit_code == 0, said.stderr
    assert said.outcome in {"bottleneck", "healthy"}, said.verdict
    assert said.verdict["steps"] > 70
    assert observed_share(said) >= 0.95, said.verdict["shares"]


def environment_with_torch_alone(folder: Path) -> str:
    """Make an environment that shares torch and what torch needs with ours, and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    ours = Path(sysconfig.get_path("platlib"))
    theirs = Path(sysconfig.get_path("platlib", "venv", {"platbase": str(folder)}))
    for name in TORCH_AND_ITS_NEEDS:
        if (ours / name).exists():
            (theirs / name).symlink_to(ours / name)
    return str(folder / "bin" / "python")


def test_a_crash_is_the_scripts_own_with_its_traceback_and_its_code() -> None:
    said = doctor(command("odd/crash.py"), steps=1_000)
    assert said.exit_code == 1
    assert "RuntimeError: the loss exploded at step 30" in said.stderr
    assert "Traceback" in said.stderr
    # Nothing of ours stands between the user and the line that failed.
    trace = said.stderr[said.stderr.index("Traceback") : said.stderr.index("RuntimeError:")]
    assert "pitstop" not in trace.replace(str(Path(__file__).parents[2]), "")
    assert said.verdict["notes"]


def test_a_killed_script_is_reported_as_killed_and_its_steps_are_kept() -> None:
    said = doctor(command("odd/killed.py"), steps=100_000)
    assert said.exit_code == 128 + signal.SIGKILL
    assert "about to be killed" in said.stdout
    assert "the command was ended by SIGKILL" in said.verdict["notes"]
    # They are handed over twice a second, and it trains for three.
    assert said.verdict["steps"] >= 20


def test_a_scripts_streams_and_exit_code_pass_through() -> None:
    said = doctor(command("odd/exit_three.py"), steps=1_000)
    assert said.exit_code == 3
    assert "said on stdout" in said.stdout
    assert "said on stderr" in said.stderr


def test_a_script_that_never_trains_is_told_so() -> None:
    said = doctor(command("odd/never_trains.py"), steps=1_000)
    assert said.exit_code == 0
    assert "labelled 1920 samples" in said.stdout
    assert said.outcome in {None, "not enough evidence"}
    assert "not enough evidence" in said.stderr
    assert "no optimizer" in said.stderr


def test_training_in_a_subprocess_is_found_there() -> None:
    said = doctor(command("odd/in_a_subprocess.py"), steps=1_000)
    assert said.exit_code == 3
    # Enough to judge by; profiled steps are not counted.
    assert said.verdict["steps"] >= 20
    # The process that trained ended well, as far as it knew.
    assert "the command ended with code 3" in said.verdict["notes"]


@pytest.mark.quiet
def test_ranks_that_a_script_starts_by_itself_are_one_job() -> None:
    """Nothing but torch knows their numbers: no launcher set RANK."""
    said = doctor(command("odd/spawned_ranks.py"), steps=1_000)
    assert said.exit_code == 0
    assert "both ranks are done" in said.stdout
    assert said.codes[0] == "COMM002"
    assert said.verdict["rank"] == 1
    assert not said.verdict["notes"]


def test_a_loop_that_swallows_everything_is_measured_to_its_end() -> None:
    said = doctor(command("odd/swallow.py"), steps=10_000)
    assert said.exit_code == 0
    assert "swallowed 40" in said.stdout


def test_a_loop_that_swallows_everything_is_still_ended_when_enough_was_measured() -> None:
    said = doctor(command("odd/swallow.py"), steps=60)
    assert said.exit_code == 3
    assert "swallowed" not in said.stdout
    assert 60 <= said.verdict["steps"] < 200


@pytest.mark.usefixtures("with_signal_handlers")
def test_interrupting_a_script_that_hangs_still_gives_a_verdict(tmp_path: Path) -> None:
    out = tmp_path / "verdict.json"
    options = ("--steps", "1000", "--json", str(out), "--record", str(tmp_path / "record"))
    process = subprocess.Popen(
        [sys.executable, "-m", "pitstop", "doctor", *options, "--", *command("odd/hang.py")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waiting\n"
        family = [process, *psutil.Process(process.pid).children(recursive=True)]
        # As a terminal does: Ctrl-C goes to every process in the foreground.
        for member in family:
            member.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode != 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert out.exists()
