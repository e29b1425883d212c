"""Learning rates against torch's own schedulers, closed forms, and the message of a rescale."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from pitstop.config.sections import OptimizerSection, ScheduleSection
from pitstop.errors import ConfigError
from pitstop.train.optim.build import build_optimizer
from pitstop.train.optim.schedule import Schedule, learning_rate_factor, scaled_lr

TOTAL = 40


def golden(section: ScheduleSection) -> list[float]:
    """The same curve by torch's schedulers, which share no code with ours."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    rest = TOTAL - section.warmup_steps
    fall: lr_scheduler.LRScheduler
    match section.kind:
        case "cosine":
            fall = lr_scheduler.CosineAnnealingLR(optimizer, rest, eta_min=section.end_factor)
        case "poly":
            fall = lr_scheduler.PolynomialLR(optimizer, rest, power=section.power)
        case "step":
            at = [milestone - section.warmup_steps for milestone in section.milestones]
            fall = lr_scheduler.MultiStepLR(optimizer, at, gamma=section.gamma)
        case "constant":
            fall = lr_scheduler.ConstantLR(optimizer, factor=1.0)
    schedule = fall
    if section.warmup_steps:
        rise = lr_scheduler.LinearLR(
            optimizer, start_factor=section.warmup_start, total_iters=section.warmup_steps
        )
        schedule = lr_scheduler.SequentialLR(optimizer, [rise, fall], [section.warmup_steps])
    rates = []
    for _ in range(TOTAL):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own SequentialLR
            schedule.step()
    return rates


@pytest.mark.parametrize("warmup_steps", [0, 8])
@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "cosine"},
        {"kind": "cosine", "end_factor": 0.1},
        {"kind": "poly"},
        {"kind": "poly", "power": 2.5},
        {"kind": "step", "milestones": (12, 20), "gamma": 0.3},
        {"kind": "constant"},
    ],
)
def test_curves_are_those_of_torchs_schedulers(
    settings: dict[str, object], warmup_steps: int
) -> None:
    section = ScheduleSection.model_validate(
        {**settings, "warmup_steps": warmup_steps, "warmup_start": 0.01}
    )
    ours = [learning_rate_factor(section, step, TOTAL) for step in range(TOTAL)]
    assert ours == pytest.approx(golden(section), rel=1e-9, abs=1e-12)


def test_the_points_that_can_be_told_by_hand() -> None:
    cosine = ScheduleSection(kind="cosine", warmup_steps=10, warmup_start=0.2, end_factor=0.1)
    points = [learning_rate_factor(cosine, step, 30) for step in (0, 5, 10, 20, 30, 99)]
    assert points == pytest.approx([0.2, 0.6, 1.0, 0.55, 0.1, 0.1])
    poly = ScheduleSection(kind="poly", power=2.0, end_factor=0.5)
    assert learning_rate_factor(poly, 15, 30) == pytest.approx(0.5 + 0.5 * 0.25)
    stairs = ScheduleSection(kind="step", milestones=(3, 6), gamma=0.5)
    steps = [learning_rate_factor(stairs, step, 9) for step in (2, 3, 5, 6)]
    assert steps == [1.0, 0.5, 0.5, 0.25]


@given(
    kind=st.sampled_from(["cosine", "poly", "constant"]),
    warmup=st.integers(0, 50),
    extra=st.integers(1, 200),
    start=st.floats(0, 1),
    end=st.floats(0, 1),
)
def test_the_rate_rises_to_one_and_never_rises_again(
    kind: str, warmup: int, extra: int, start: float, end: float
) -> None:
    section = ScheduleSection.model_validate(
        {"kind": kind, "warmup_steps": warmup, "warmup_start": start, "end_factor": end}
    )
    curve = [learning_rate_factor(section, step, warmup + extra) for step in range(warmup + extra)]
    assert curve[warmup] == 1.0
    assert curve[:warmup] == sorted(curve[:warmup])
    assert curve[warmup:] == sorted(curve[warmup:], reverse=True)
    assert min(curve[warmup:]) >= (0 if kind == "constant" else end) - 1e-12


def test_groups_keep_their_multipliers_through_the_schedule() -> None:
    model = nn.ModuleDict({"flow": nn.Linear(2, 2), "body": nn.Linear(2, 2)})
    section = OptimizerSection(lr=0.4, lr_multipliers=(("flow", 0.5),))
    optimizer = build_optimizer(model, section)
    schedule = Schedule(optimizer, ScheduleSection(), total_steps=10)
    assert schedule.apply(0) == 1.0
    assert schedule.apply(5) == pytest.approx(0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.2])


def test_a_resumed_run_takes_its_rate_from_the_configuration() -> None:
    param = nn.Parameter(torch.zeros(1))
    saved = torch.optim.SGD([param], lr=8.0).state_dict()
    optimizer = torch.optim.SGD([param], lr=2.0)
    schedule = Schedule(optimizer, ScheduleSection(), total_steps=10)
    optimizer.load_state_dict(saved)
    schedule.apply(5)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1.0)


def test_a_rate_held_in_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(2.0)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=rate, fused=True)
    Schedule(optimizer, ScheduleSection(), total_steps=10).apply(5)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        (ScheduleSection(warmup_steps=10), "never leave warm-up"),
        (ScheduleSection(kind="step", milestones=(3, 10)), "milestones has 10"),
    ],
)
def test_a_part_of_the_schedule_beyond_the_end_is_an_error(
    section: ScheduleSection, complaint: str
) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(ConfigError, match=complaint):
        Schedule(optimizer, section, total_steps=10)


def test_a_rescaled_rate_says_why() -> None:
    section = OptimizerSection(lr=1e-4, lr_scaling="linear", reference_batch=8)
    lr, message = scaled_lr(section, batch_size=4, accumulate=4, devices=2)
    assert lr == pytest.approx(4e-4)
    assert message == ("lr 0.0001 x 4 = 0.0004: effective batch 32 against reference 8 (linear)")


def test_the_square_root_rule_and_the_default_reference() -> None:
    section = OptimizerSection(lr=1e-4, lr_scaling="sqrt")
    lr, message = scaled_lr(section, batch_size=2, accumulate=8, devices=4)
    assert lr == pytest.approx(1e-4 * math.sqrt(8))
    assert "effective batch 64 against reference 8 (sqrt)" in message


def test_no_rule_leaves_the_rate_alone() -> None:
    lr, message = scaled_lr(OptimizerSection(lr=0.5), batch_size=2, accumulate=8, devices=4)
    assert lr == 0.5
    assert message == "lr 0.5: effective batch 64, not scaled"
