"""``pitstop plan``: what it prints, and how it ends; dry runs are made up."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pitstop.cli.main import app
from pitstop.errors import PitstopError
from pitstop.plan import configured_run
from pitstop.plan.dry_run.request import Answer, Request
from pitstop.plan.host.trial import ProcessSizes, TrialAnswer, TrialRequest
from pitstop.records.plans.evaluation import EvaluationTrace
from pitstop.records.plans.plan import MemoryPlan, OperationRow, StepTrace
from pitstop.records.store import from_json

CONFIG = str(Path(__file__).parents[3] / "configs" / "deblur" / "opt.yaml")
GIB = 2**30
SIZES = ProcessSizes(
    process_bytes=GIB,
    private_bytes=GIB // 2,
    tensor_bytes=(5 * 2**20,),
    decoded_bytes=None,
    first_worker_bytes=GIB // 4,
    next_worker_bytes=GIB // 8,
    reading_bytes=0,
)


def evaluation(request: Request) -> Answer:
    """12 GiB in tiles."""
    assert request.config == CONFIG
    size = 12 * GIB
    trace = EvaluationTrace(
        batch_size=1,
        tile=256,
        owners={"parameters": 95 * 10**6, "optimizer state": 189 * 10**6, "temporary": size},
        peak_bytes=size + 284 * 10**6,
        peak_operation="mm",
    )
    return Answer(evaluation=trace)


def answer(request: Request) -> Answer:
    """A step that keeps 5 GiB recomputed and 60 GiB else, and twice that for twice the batch."""
    if request.part == "evaluation":
        return evaluation(request)
    last = dict(override.split("=", 1) for override in request.overrides)
    words = " ".join(f"{key}={value}" for key, value in last.items())
    if "precision=fp32" in words and "recompute=none" in words:
        return Answer(error="aten.nonzero.default cannot be planned: numbers decide its shape")
    size = 2 if "batch_size=2" in words else 1
    saved = (60 if "recompute=none" in words else 5) * GIB * size
    operation = OperationRow(
        part="forward", name="mm", flops=10**12, num_bytes=10**9, dtype="bfloat16", count=100
    )
    trace = StepTrace(
        model="VRTSpike",
        parameters=23_680_000,
        batch_size=size,
        precision="fp32" if "precision=fp32" in words else "bf16",
        recompute="none" if "recompute=none" in words else "full",
        kernels="auto",
        optimizer="adamw",
        owners={"parameters": 95 * 10**6, "optimizer state": 189 * 10**6, "activations": saved},
        peak_bytes=saved + 284 * 10**6,
        peak_place=("backward", "stage8"),
        peak_operation="mm",
        saved_bytes=saved,
        gradient_bytes=95 * 10**6,
        reserved_bytes=saved + 284 * 10**6,
        optimizer_bytes={"adamw": 189 * 10**6, "adamw8bit": 47 * 10**6},
        operations=(operation,),
        fused_operations=("attend_volume",),
    )
    return Answer(trace=replace(trace, notes=("made up",)))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace_all(requests: Sequence[Request]) -> list[Answer]:
        return [answer(request) for request in requests]

    def try_processes(request: TrialRequest) -> TrialAnswer:
        assert request.start_method == "forkserver"
        return TrialAnswer(sizes=SIZES)

    monkeypatch.setattr(configured_run, "trace_all", trace_all)
    monkeypatch.setattr(configured_run, "try_processes", try_processes)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *words])
    if isinstance(result.exception, PitstopError):
        return 2, str(result.exception)
    return result.exit_code, result.output


@pytest.mark.usefixtures("made_up")
def test_it_says_who_holds_the_memory_and_what_fits() -> None:
    code, text = run(CONFIG, "--gpu-memory", "48GiB", "--gpu", "L40S")
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("fits: 5.39 GiB of 47.4 GiB")
    assert "the peak is in backward, stage8 (mm); most of it: activations" in text
    assert "assumes the fused kernels attend_volume" in text
    row = next(line for line in lines if "none" in line and "bf16" in line)
    assert "does not fit" in row
    assert "is not in the table: aten.nonzero.default cannot be planned" in text


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(("gpu", "is_timed"), [(("--gpu", "L40S"), True), ((), False)])
def test_a_column_of_times_is_headed_where_there_are_times(
    gpu: tuple[str, ...], is_timed: bool
) -> None:
    _, text = run(CONFIG, "--gpu-memory", "48GiB", *gpu)
    heading = next(line for line in text.splitlines() if line.split()[:1] == ["batch"])
    assert ("step" in heading.split()) == is_timed


@pytest.mark.usefixtures("made_up")
def test_it_says_where_the_peak_of_the_whole_run_is() -> None:
    code, text = run(CONFIG, "eval.tile=256", "--gpu-memory", "48GiB", "--no-table")
    assert code == 0
    assert "fits: 12.4 GiB between training steps, 12.2 GiB as a command of its own" in text
    assert "batch 1, tiles of 256 (metrics not included)" in text
    assert "the peak of the run is in evaluation" in text


@pytest.mark.usefixtures("made_up")
def test_an_evaluation_that_does_not_fit_is_said_first() -> None:
    code, text = run(CONFIG, "--gpu-memory", "8GiB", "--no-table")
    assert code == 1
    assert text.startswith("does not fit: evaluation, see below")


@pytest.mark.usefixtures("made_up")
def test_the_host_is_planned_too() -> None:
    settings = ("loader.workers=4", "loader.prefetch=2")
    code, text = run(CONFIG, *settings, "--gpu-memory", "48GiB", "--no-table")
    assert code == 0
    assert "workers (4)" in text
    assert "640 MiB" in text
    assert "1 process with 4 workers, each 2 batches ahead; a batch is 5.00 MiB" in text
    small = ("--gpu-memory", "48GiB", "--no-table", "--host-memory", "1GiB")
    code, text = run(CONFIG, *settings, *small)
    assert code == 1
    assert text.startswith("does not fit: the host, see below")


@pytest.mark.usefixtures("made_up")
def test_what_does_not_fit_ends_with_one_and_says_what_to_change() -> None:
    code, text = run(CONFIG, "train.recompute=none", "--gpu-memory", "48GiB")
    assert code == 1
    assert text.startswith("does not fit: 60.4 GiB of 47.4 GiB")
    assert "train.recompute=full: fits, saves 55.0 GiB" in text
    assert "optimizer.kind=adamw8bit does not help: saves 135 MiB" in text


@pytest.mark.usefixtures("made_up")
def test_a_question_is_answered_beside_the_plan() -> None:
    _, text = run(
        CONFIG, "--gpu-memory", "48GiB", "--no-table", "--what-if", "train.recompute=none"
    )
    assert "train.recompute=none: does not fit, 60.4 GiB (+55.0 GiB)" in text
    assert "other choices" not in text


@pytest.mark.usefixtures("made_up")
def test_a_question_that_changes_no_step_is_answered_so() -> None:
    questions = ("--what-if", "run.name=other", "--what-if", "train.accumulate=8")
    _, text = run(CONFIG, "--gpu-memory", "48GiB", "--no-table", *questions)
    assert "run.name=other: changes nothing in a training step" in text
    assert "train.accumulate=8: fits, 5.39 GiB (+0 B)" in text


@pytest.mark.usefixtures("made_up")
def test_the_record_can_be_read_back(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    run(CONFIG, "--gpu", "H200", "--json", str(file))
    plan = from_json(file.read_text(), MemoryPlan)
    assert plan.fit == "fits"
    assert plan.batch_growth == pytest.approx(1.0)
    assert plan.speed is not None
    assert plan.speed.basis == "data sheet"
    assert plan.speed.low_s < plan.speed.step_s < plan.speed.high_s


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say which GPU to plan for"),
        (("--gpu", "abacus"), "--gpu abacus is none of H200"),
        (("--gpu-memory", "48"), "write it as 48GiB"),
        (("--gpu-memory", "100MiB"), "driver and libraries take 620 MiB"),
        (("--gpu", "H200", "--precision", "bf16"), "set train.batch_size, train.precision"),
        (("--gpu", "H200", "--batch-size", "8"), "--batch-size is for a build()"),
    ],
)
def test_misuse_is_answered_in_one_sentence(words: tuple[str, ...], message: str) -> None:
    code, text = run(CONFIG, *words)
    assert code == 2
    assert message in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--precision", "fp8"), "--precision fp8 is none of fp32, tf32, bf16, fp16"),
        (("--optimizer", "lion"), "--optimizer lion is none of adamw,"),
        (("--what-if", "train.recompute=full"), "--what-if is for a configuration; of a build()"),
        (("train.batch_size=4",), "KEY=VALUE is for a configuration"),
        (("--no-table",), "--no-table is for a configuration"),
    ],
)
def test_of_a_build_what_would_do_nothing_is_refused(words: tuple[str, ...], message: str) -> None:
    code, text = run("net:build", *words, "--gpu", "H200")
    assert code == 2
    assert message in " ".join(text.split())


def test_a_script_without_dashes_is_answered_with_the_whole_line() -> None:
    code, text = run("--gpu", "H200", "train.py", "--lr", "1")
    assert code == 2
    assert "did you mean: pitstop plan --gpu H200 -- python train.py --lr 1" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "2", "--", "python", "train.py"), "--ranks is for a configuration"),
        (("--", "train.py"), "does not run by itself; did you mean: pitstop plan"),
        ((CONFIG, "--", "python", "train.py"), "or a command after --"),
        ((), "or a command after --"),
    ],
)
def test_options_that_do_nothing_for_a_script_are_refused(
    words: tuple[str, ...], message: str
) -> None:
    code, text = run("--gpu", "H200", *words)
    assert code == 2
    assert message in " ".join(text.split())


def test_a_size_that_decides_on_recomputation_needs_no_run_at_twice_the_batch(
    made_up: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    def trace_all(requests: Sequence[Request]) -> list[Answer]:
        asked.extend(requests)
        return [answer(request) for request in requests]

    monkeypatch.setattr(configured_run, "trace_all", trace_all)
    for policy, expected in (("full", 1), ("20GiB", 0)):
        asked.clear()
        code, text = run(CONFIG, f"train.recompute={policy}", "--gpu-memory", "200GiB")
        twice = [one for one in asked if any("train.batch_size=" in word for word in one.overrides)]
        assert (code, len(twice)) == (0, expected), text
