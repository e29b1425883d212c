"""Optimizers: the rule asked for, its form, its bytes, and settings that must not be inert."""

import copy
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pitstop.config.sections import OptimizerSection, ScheduleSection
from pitstop.errors import ConfigError, MissingPackage
from pitstop.train.optim import build as optim
from pitstop.train.optim.adamw_bf16 import AdamWBf16, round_to_bf16_
from pitstop.train.optim.build import (
    build_optimizer,
    optimizer_facts,
    predicted_state_bytes,
    state_bytes,
)
from pitstop.train.optim.schedule import Schedule

TORCH_KINDS = ("adamw", "adam", "sgd", "adamw_bf16")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in model.parameters()]


def section(**settings: Any) -> OptimizerSection:
    return OptimizerSection(**settings)


@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_adam_kinds_take_all_their_settings(kind: str) -> None:
    wanted = section(kind=kind, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2, fused="off")
    ours, theirs = small_model(), small_model()
    train(ours, build_optimizer(ours, wanted), 5)
    rule = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    reference = rule(theirs.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2)
    train(theirs, reference, 5)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=0)


@pytest.mark.parametrize("fused", ["off", "on"])
def test_sgd_takes_all_its_settings(fused: str) -> None:
    wanted = section(kind="sgd", lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.1, fused=fused)
    ours, theirs = small_model(), small_model()
    train(ours, build_optimizer(ours, wanted), 5)
    reference = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.1
    )
    train(theirs, reference, 5)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_the_fused_form_runs_where_it_is_there_and_not_when_switched_off(kind: str) -> None:
    on = optimizer_facts(build_optimizer(small_model(), section(kind=kind, fused="on")))
    auto = optimizer_facts(build_optimizer(small_model(), section(kind=kind)))
    off = optimizer_facts(build_optimizer(small_model(), section(kind=kind, fused="off")))
    assert (on.fused, auto.fused, off.fused) == (True, True, False)
    assert (on.takes_found_inf, off.takes_found_inf) == (True, False)


def test_switching_fused_off_leaves_torch_its_many_tensor_form() -> None:
    optimizer = build_optimizer(small_model(), section(fused="off"))
    assert optimizer.param_groups[0]["fused"] is None
    assert optimizer.param_groups[0]["foreach"] is None


def test_fused_where_torch_has_none_is_refused_or_left_out() -> None:
    with pytest.raises(ConfigError, match="fused is on, but adamw has no fused form on vulkan"):
        build_optimizer(small_model(), section(fused="on"), device_type="vulkan")
    facts = optimizer_facts(build_optimizer(small_model(), section(), device_type="vulkan"))
    assert not facts.fused


@pytest.mark.parametrize("kind", ["adamw8bit", "adamw_bf16"])
def test_fused_is_refused_for_kinds_of_one_form(kind: str) -> None:
    with pytest.raises(ConfigError, match="one form only"):
        build_optimizer(small_model(), section(kind=kind, fused="on"))


@pytest.mark.parametrize("kind", TORCH_KINDS)
def test_an_update_left_out_on_the_device_changes_nothing(kind: str) -> None:
    """The first step is the one torch's fused momentum gets wrong: its buffer is unset memory."""
    model, untouched = small_model(), small_model()
    optimizer, reference = (
        build_optimizer(one, section(kind=kind, lr=0.01)) for one in (model, untouched)
    )
    assert optimizer_facts(optimizer).takes_found_inf
    before = weights(model)
    for param in model.parameters():
        param.grad = torch.full_like(param, torch.nan)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    train(model, optimizer, 3)
    train(untouched, reference, 3)
    tolerance = 2e-3 if kind == "adamw_bf16" else 0.0  # other dice: one call more was made
    torch.testing.assert_close(weights(model), weights(untouched), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", TORCH_KINDS)
def test_an_update_left_out_on_the_way_leaves_the_state_alone(kind: str) -> None:
    model = small_model()
    optimizer = build_optimizer(model, section(kind=kind, lr=0.01))
    train(model, optimizer, 3)
    before = [
        {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
        for state in optimizer.state.values()
    ]
    for param in model.parameters():
        param.grad = torch.full_like(param, torch.inf)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    for state, expected in zip(optimizer.state.values(), before, strict=True):
        found = {name: state[name] for name in expected}
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", TORCH_KINDS)
@pytest.mark.parametrize("fused", ["auto", "off"])
def test_predicted_state_bytes_are_those_measured_after_a_step(kind: str, fused: str) -> None:
    model = small_model()
    optimizer = build_optimizer(model, section(kind=kind, fused=fused))
    predicted = predicted_state_bytes(optimizer)
    train(model, optimizer, 1)
    assert state_bytes(optimizer) == predicted == optimizer_facts(optimizer).state_bytes


def test_state_bytes_before_the_first_step_are_not_measured_rather_than_zero() -> None:
    facts = optimizer_facts(build_optimizer(small_model(), section()))
    assert facts.state_bytes is None
    assert facts.predicted_state_bytes > 0
    assert facts.source.startswith("torch ")


def test_bf16_averages_take_half_the_bytes() -> None:
    full, half = (
        predicted_state_bytes(build_optimizer(small_model(), section(kind=kind)))
        for kind in ("adamw", "adamw_bf16")
    )
    assert 0.5 <= half / full < 0.51


def test_bf16_averages_give_almost_the_same_training() -> None:
    ours, theirs = small_model(), small_model()
    optimizer = build_optimizer(ours, section(kind="adamw_bf16", lr=1e-3))
    train(ours, optimizer, 1)
    train(theirs, reference := build_optimizer(theirs, section(lr=1e-3)), 1)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=1e-7)
    train(ours, optimizer, 200, first=1)
    train(theirs, reference, 200, first=1)
    start, end, wanted = (
        nn.utils.parameters_to_vector(model.parameters()) for model in (small_model(), ours, theirs)
    )
    assert (end - wanted).norm() / (wanted - start).norm() < 0.02


def test_the_second_average_follows_gradients_that_shrink() -> None:
    """Rounded to the nearest it stands still: bf16 does not resolve one part in a thousand."""
    param = nn.Parameter(torch.zeros(4096))
    optimizer = build_optimizer([("p", param)], section(kind="adamw_bf16"))
    exact, nearest = torch.zeros(4096), torch.zeros(4096, dtype=torch.bfloat16)
    dice = torch.Generator().manual_seed(0)
    for step in range(1200):
        grad = torch.randn(4096, generator=dice) * (1.0 if step < 400 else 0.1)
        param.grad = grad.clone()
        optimizer.step()
        exact = 0.999 * exact + 0.001 * grad.square()
        nearest = (0.999 * nearest.float() + 0.001 * grad.square()).bfloat16()
    ours = optimizer.state[param]["exp_avg_sq"]
    assert ours.dtype == torch.bfloat16
    assert float(ours.float().mean() / exact.mean()) == pytest.approx(1, abs=0.01)
    assert float(nearest.float().mean() / exact.mean()) > 1.3


def test_rounding_is_right_on_average_and_keeps_what_bf16_can_hold() -> None:
    dice = torch.Generator().manual_seed(1)
    value = 1 + 3 / 4 * 2**-7
    rounded = torch.full((20_000,), value)
    round_to_bf16_(rounded, dice)
    assert set(rounded.tolist()) == {1.0, 1 + 2**-7}
    assert float(rounded.mean()) == pytest.approx(value, abs=1e-4)
    held = torch.tensor([0.0, -1.5, 2.0**-130, torch.inf, -torch.inf])
    expected = held.clone()
    round_to_bf16_(held, dice)
    torch.testing.assert_close(held, expected, rtol=0, atol=0)


def test_a_resumed_bf16_run_equals_one_left_alone() -> None:
    """Loading must also undo torch's cast of every state to the type of the weights."""
    alone, resumed = small_model(), small_model()
    kept = build_optimizer(alone, section(kind="adamw_bf16", lr=0.01))
    train(alone, kept, 3)
    first = build_optimizer(resumed, section(kind="adamw_bf16", lr=0.01))
    train(resumed, first, 3)
    second = build_optimizer(resumed, section(kind="adamw_bf16", lr=0.01))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert state_bytes(second) == predicted_state_bytes(second)
    torch.manual_seed(7)
    train(alone, kept, 4, first=3)
    torch.manual_seed(8)
    train(resumed, second, 4, first=3)
    torch.testing.assert_close(weights(alone), weights(resumed), rtol=0, atol=0)


def test_a_bf16_update_leaves_the_global_random_numbers_alone() -> None:
    model = small_model()
    optimizer = build_optimizer(model, section(kind="adamw_bf16"))
    before = torch.get_rng_state()
    train(model, optimizer, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_bf16_parameters_in_many_chunks_are_all_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pitstop.train.optim.adamw_bf16.CHUNK_ELEMENTS", 600)
    ours, theirs = small_model(), small_model()
    train(ours, build_optimizer(ours, section(kind="adamw_bf16", lr=1e-3)), 1)
    train(theirs, build_optimizer(theirs, section(lr=1e-3)), 1)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=1e-7)


def test_a_bf16_parameter_whose_gradient_comes_late_starts_like_a_first_step() -> None:
    early, late = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
    optimizer = AdamWBf16([early, late], lr=0.1, weight_decay=0)
    for _ in range(50):
        early.grad = torch.ones(8)
        optimizer.step()
    late.grad = torch.ones(8)
    optimizer.step()
    torch.testing.assert_close(late.detach(), torch.full((8,), 0.9), rtol=0, atol=1e-6)


def test_a_gradient_scale_is_divided_out() -> None:
    plain, scaled = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
    plain.grad, scaled.grad = torch.full((8,), 0.5), torch.full((8,), 512.0)
    AdamWBf16([plain], lr=0.1, eps=0.5).step()
    optimizer = AdamWBf16([scaled], lr=0.1, eps=0.5)
    optimizer.grad_scale = torch.tensor(1024.0)  # type: ignore[attr-defined]
    optimizer.step()
    torch.testing.assert_close(plain, scaled, rtol=0, atol=0)


def test_multipliers_reach_the_parameters_they_name_and_the_longest_name_wins() -> None:
    model = nn.ModuleDict(
        {"spynet": nn.ModuleDict({"head": nn.Linear(2, 2)}), "body": nn.Linear(2, 2)}
    )
    model["spynet"]["tail"] = nn.Linear(2, 2)  # type: ignore[index]
    wanted = section(lr=0.5, lr_multipliers=(("spynet", 0.125), ("spynet.head", 4.0)))
    optimizer = build_optimizer(model, wanted, lr=2.0)
    rates = {param: group["lr"] for group in optimizer.param_groups for param in group["params"]}
    by_name = {name: rates[param] for name, param in model.named_parameters()}
    assert by_name["body.weight"] == 2.0
    assert by_name["spynet.tail.bias"] == 0.25
    assert by_name["spynet.head.weight"] == 8.0


def test_a_multiplier_for_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no effect for spinet.*called 0\.weight"):
        build_optimizer(small_model(), section(lr_multipliers=(("spinet", 0.5),)))


def test_frozen_parameters_are_left_out_and_a_frozen_model_is_an_error() -> None:
    model = small_model()
    model[0].requires_grad_(requires_grad=False)
    facts = optimizer_facts(build_optimizer(model, section()))
    assert facts.num_parameters == 64 * 8 + 8
    with pytest.raises(ConfigError, match="nothing to optimize"):
        build_optimizer(model.requires_grad_(requires_grad=False), section())


def test_without_a_library_the_8bit_kind_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(optim.importlib, "import_module", absent)
    with pytest.raises(MissingPackage, match=r"bitsandbytes or torchao.*pip install bitsandbytes"):
        build_optimizer(small_model(), section(kind="adamw8bit"))


def test_the_8bit_kind_takes_whichever_library_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class AdamW8bit(torch.optim.AdamW):
        pass

    def only_torchao(name: str) -> object:
        if name != "torchao.optim":
            raise ImportError(name)
        return SimpleNamespace(AdamW8bit=AdamW8bit)

    monkeypatch.setattr(optim.importlib, "import_module", only_torchao)
    wanted = section(kind="adamw8bit", lr=0.3, betas=(0.5, 0.6), eps=1e-3, weight_decay=0.7)
    optimizer = build_optimizer(small_model(), wanted)
    assert type(optimizer) is AdamW8bit
    settings = {name: optimizer.param_groups[0][name] for name in ("lr", "betas", "eps")}
    assert settings == {"lr": 0.3, "betas": (0.5, 0.6), "eps": 1e-3}
    assert optimizer.param_groups[0]["weight_decay"] == 0.7


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_8bit_state_takes_a_quarter_and_trains(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        importlib.import_module(f"{library}.optim")
    except ImportError:
        pytest.skip(f"{library} is not installed: the bytes of its 8-bit state are not tested")
    monkeypatch.setattr(optim, "_LOWBIT_LIBRARIES", (library,))
    model = nn.Linear(256, 512)
    optimizer = build_optimizer(model, section(kind="adamw8bit", lr=1e-3))
    schedule = Schedule(optimizer, ScheduleSection(), total_steps=10)
    losses = []
    for step in range(5):
        schedule.apply(step)
        loss = model(torch.ones(2, 256)).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    facts = optimizer_facts(optimizer)
    assert facts.kind == "adamw8bit"
    assert facts.source.startswith(library)
    assert facts.state_bytes == facts.predicted_state_bytes
    full = predicted_state_bytes(build_optimizer(model, section()))
    assert 0.25 < facts.predicted_state_bytes / full < 0.28
    assert losses[-1] < losses[0]
