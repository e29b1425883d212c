"""Plans of scripts: other choices predicted from one recording, against recordings of those."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pitstop.errors import PitstopError
from pitstop.plan.memory import WORKSPACE_BYTES, Gpu
from pitstop.plan.script import planned
from pitstop.plan.script.batch import BatchShape, find_batch
from pitstop.plan.script.choices import ScriptChoices
from pitstop.plan.script.planned import WantedScript, largest_step, plan_recorded, plan_script
from pitstop.records.plans.plan import MemoryPlan
from pitstop.records.plans.script import SavedPiece, ScriptMemory
from pitstop.records.script import Ended
from pitstop.records.store import from_json, to_json
from tests.unit.plan.recorded import Dropping, Pictures, Tokens, pictures, record, tokens

GIB = 2**30


def choices_of(memory: ScriptMemory, batch_size: int | None = None) -> ScriptChoices:
    step = largest_step(memory)
    return ScriptChoices(memory, step, find_batch(memory, step, batch_size))


def saved(memory: ScriptMemory, **changes: object) -> int:
    choices = choices_of(memory)
    return choices.peak(replace(choices.own, **changes)).most_saved_bytes


def wanted(**changes: object) -> WantedScript:
    asked = WantedScript(command=("python", "train.py"), gpu=Gpu(name="a GPU", num_bytes=GIB))
    return replace(asked, **changes)


@pytest.fixture(scope="module")
def recorded() -> ScriptMemory:
    return record(Tokens(), lambda: tokens(4))


@settings(max_examples=12, deadline=None)
@given(samples=st.integers(3, 9), times=st.integers(2, 4), is_pictures=st.booleans())
def test_another_batch_is_predicted_as_it_is_then_recorded(
    samples: int, times: int, is_pictures: bool
) -> None:
    torch.manual_seed(0)
    model, batch = (Pictures(), pictures) if is_pictures else (Tokens(), tokens)
    first = record(model, lambda: batch(samples))
    then = record(model, lambda: batch(samples * times))
    assert saved(first, batch_size=samples * times) == pytest.approx(saved(then), rel=0.01)
    assert saved(then, batch_size=samples) == pytest.approx(saved(first), rel=0.01)


@pytest.mark.parametrize(
    ("shape", "is_certain"),
    [((8, 64), True), ((64, 8), True), ((8, 8), False), ((16, 8, 8), False)],
)
def test_a_side_that_is_the_batch_twice_leaves_a_doubt(
    shape: tuple[int, ...], is_certain: bool
) -> None:
    piece = SavedPiece(
        storage=0,
        num_bytes=4 * math.prod(shape),
        shape=shape,
        dtype="float32",
        kind="saved",
        block=None,
        made_by="Linear",
        made_with="",
    )
    batch = BatchShape(samples=8, leading=frozenset())
    assert batch.grows(piece)
    assert batch.is_certain(piece) == is_certain


def test_recomputation_is_predicted_as_it_is_then_recorded(recorded: ScriptMemory) -> None:
    then = record(Tokens(recompute=True), lambda: tokens(4))
    assert choices_of(then).own.recompute == "as in the script"
    assert saved(recorded, recompute="full") == pytest.approx(saved(then), rel=0.01)
    assert saved(then, recompute="none") == pytest.approx(saved(recorded), rel=0.01)
    one, other = choices_of(recorded), choices_of(then)
    again = one.peak_bytes(replace(one.own, recompute="full"))
    assert other.peak_bytes(other.own) == pytest.approx(again, rel=0.05)


def test_half_precision_is_predicted_as_it_is_then_recorded(recorded: ScriptMemory) -> None:
    then = record(Tokens(), lambda: tokens(4), autocast=True)
    assert choices_of(then).own.precision == "bf16"
    assert saved(recorded, precision="bf16") == pytest.approx(saved(then), rel=0.03)
    assert saved(then, precision="fp32") == pytest.approx(saved(recorded), rel=0.03)


def test_a_gpu_keeps_no_scores_of_attention_and_small_masks_of_dropout() -> None:
    memory = record(Dropping(), lambda: tokens(4))
    step = largest_step(memory)
    batch = find_batch(memory, step, None)
    here = ScriptChoices(memory, step, batch, on_gpu=False)
    there = ScriptChoices(memory, step, batch)
    scores = sum(one.num_bytes for one in step.pieces if one.kind == "scores")
    assert scores >= 2 * 4 * 24 * 24 * 4  # of each sample, and the mask over them
    less = here.peak(here.own).most_saved_bytes - there.peak(there.own).most_saved_bytes
    assert less == scores + 3 * (4 * 24 * 32)


def test_a_plan_adds_up_and_survives_its_json(recorded: ScriptMemory) -> None:
    plan = plan_recorded(wanted(), recorded)
    assert sum(row.num_bytes for row in plan.ledger) == plan.peak_bytes
    assert plan.fit == "fits"
    assert plan.interval_basis.startswith("estimated")
    assert plan.low_bytes < plan.peak_bytes < plan.high_bytes
    assert from_json(to_json(plan), MemoryPlan) == plan
    assert from_json(to_json(recorded), ScriptMemory) == recorded


def test_the_table_has_every_choice_and_one_best(recorded: ScriptMemory) -> None:
    table = plan_recorded(wanted(), recorded).table
    assert {row.batch_size for row in table} == {2, 4, 8, 16}
    assert {row.recompute for row in table} == {"none", "full"}
    assert {row.precision for row in table} == {"fp32", "bf16"}
    assert {row.optimizer for row in table} == {"adamw", "sgd", "adamw8bit"}
    assert [row.batch_size for row in table if row.best] == [16]
    assert sum(row.configured for row in table) == 1


def test_states_of_other_optimizers_are_as_large_as_theirs(recorded: ScriptMemory) -> None:
    weights = sum(weight.nbytes for weight in Tokens().parameters())
    states = choices_of(recorded).states
    assert states["adamw"] == pytest.approx(2 * weights, rel=0.01)
    assert states["sgd"] == pytest.approx(weights, rel=0.01)
    assert states["adamw8bit"] < states["adamw"]  # small weights keep four bytes a number


def gradients_at_the_peak(passes: int, *, clear_between: bool) -> tuple[int, int]:
    """Train with several backward passes a step; give the planned gradients, and the weights."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 4096))

    class Rule(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)
            for _ in range(passes - 1):
                model(torch.randn(2, 64)).square().mean().backward()
                if clear_between:
                    super().zero_grad(set_to_none)

    memory = record(model, lambda: torch.randn(2, 64), optimizer=Rule)
    choices = choices_of(memory)
    held = choices.peak(choices.own).gradient_bytes
    return held, sum(weight.nbytes for weight in model.parameters())


@pytest.mark.parametrize("clear_between", [False, True])
def test_gradients_of_several_backward_passes_are_no_larger_than_the_weights(
    clear_between: bool,
) -> None:
    held, weights = gradients_at_the_peak(4, clear_between=clear_between)
    assert 0 < held <= weights


def test_what_does_not_fit_says_what_to_change(recorded: ScriptMemory) -> None:
    whole = choices_of(recorded)
    peak = whole.peak_bytes(whole.own) + WORKSPACE_BYTES
    small = Gpu(name="a GPU", num_bytes=round(0.997 * peak) + 620 * 2**20)
    plan = plan_recorded(wanted(gpu=small), recorded)
    assert plan.fit == "too close"
    assert plan.advice
    assert "train." not in " ".join(plan.advice)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("batch_size=many", "batch_size is a number"),
        ("precision=fp8", "these can be changed"),
        ("colour=blue", "these can be changed"),
    ],
)
def test_a_question_that_nobody_can_answer_is_refused(
    recorded: ScriptMemory, change: str, message: str
) -> None:
    with pytest.raises(PitstopError, match=message):
        plan_recorded(wanted(what_if=(change,)), recorded)


def test_a_question_is_answered_with_the_difference(recorded: ScriptMemory) -> None:
    (one,) = plan_recorded(wanted(what_if=("train.batch_size=8",)), recorded).what_if
    assert one.more_bytes is not None
    assert one.more_bytes > 0


class TimeFirst(nn.Module):
    """Has its batch second, and is called with nothing that tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0]


def test_a_batch_that_nothing_tells_is_asked_for() -> None:
    memory = record(TimeFirst(), lambda: torch.randn(7, 5, 6))
    plan = plan_recorded(wanted(), memory)
    assert any("--batch-size N" in note for note in plan.notes)
    assert {row.batch_size for row in plan.table} == {0}
    then = record(TimeFirst(), lambda: torch.randn(7, 10, 6))
    told, twice = choices_of(memory, 5), choices_of(then, 10)
    assert told.peak(replace(told.own, batch_size=10)).most_saved_bytes == pytest.approx(
        twice.peak(twice.own).most_saved_bytes, rel=0.05
    )


def test_a_peak_that_a_gpu_measured_is_what_is_planned(recorded: ScriptMemory) -> None:
    measured = replace(recorded, device="cuda:0", device_peak_bytes=200 * 2**20)
    plan = plan_recorded(wanted(), measured)
    assert plan.peak_bytes == 200 * 2**20
    assert sum(row.num_bytes for row in plan.ledger) == plan.peak_bytes
    assert plan.calibration is not None


@pytest.mark.parametrize(
    ("code", "failure", "message"),
    [
        (1, "AssertionError: Torch not compiled with CUDA enabled", "asks for a GPU, and there is"),
        (1, "RuntimeError: Found no NVIDIA driver on your system", "build() -> (model, batch)"),
        (1, "FileNotFoundError: data/train.csv", "failed before its first steps were recorded"),
        (1, None, "with exit code 1 after 0 optimizer steps, and a plan needs 4; its own output"),
        (0, None, "after 0 optimizer steps, and a plan needs 4"),
    ],
)
def test_a_script_that_takes_no_steps_is_answered_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, code: int, failure: str | None, message: str
) -> None:
    def record_memory(command: object, folder: Path, *, stdout: int | None) -> Ended:
        del command, folder, stdout
        return Ended(
            exit_code=code,
            signal=None,
            wall_s=1.0,
            interrupted=False,
            stopped_by_us=False,
            ran_on=False,
        )

    monkeypatch.setattr(planned, "record_memory", record_memory)
    monkeypatch.setattr(planned, "first_failure", lambda _: failure)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PitstopError) as caught:
        plan_script(wanted())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
