"""A number of bytes decides what is recomputed: it is kept to, and nothing else changes."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pitstop.errors import ConfigError
from pitstop.train.model.recompute import Place, apply_recompute, places_of
from pitstop.train.model.recompute_budget import PlaceCost, choose, fit_recompute
from pitstop.workloads.deblur.model.vrt import VRT, VRT_SMALL
from tests.saved_bytes import saved_bytes
from tests.unit.train.model.test_recompute import Bare, Model, batch, build, gradients, held_bytes

SHARES = [0.5, 0.7, 0.85, 1.0]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def fitted(model: nn.Module, inputs: Tensor, budget: int) -> dict[str, int]:
    units = list(model.blocks) if isinstance(model, Bare) else []
    facts = fit_recompute(model, budget, lambda: model(inputs).square().mean(), units=units)
    assert facts.kept_bytes is not None
    assert facts.kept_bytes <= budget
    return dict(facts.places)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", [Model, Bare])
def test_what_forward_holds_fits_and_gradients_stay_bit_for_bit(
    kind: type[nn.Module], share: float
) -> None:
    model, inputs = build(kind), batch()
    whole, expected = held_bytes(model, inputs), gradients(model, inputs)
    budget = round(share * whole) + inputs.nbytes  # inputs count as kept
    fitted(model, inputs, budget)
    assert held_bytes(model, inputs) <= budget
    torch.testing.assert_close(gradients(model, inputs), expected, rtol=0, atol=0)


def test_more_room_recomputes_no_more() -> None:
    model, inputs = build(Model), batch()
    whole = held_bytes(model, inputs) + inputs.nbytes
    counts = [sum(fitted(model, inputs, round(share * whole)).values()) for share in SHARES]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 0


@pytest.mark.slow
def test_a_network_with_places_inside_stages_fits() -> None:
    torch.manual_seed(0)
    model = VRT(kernels="reference", **VRT_SMALL).train()
    clip = torch.rand(1, 4, 3, 32, 32)

    def held() -> int:
        there = [*model.parameters(), *model.buffers(), clip]
        return saved_bytes(lambda: model(clip).mean(), ignoring=there)

    whole = held()
    apply_recompute(model, "full")
    least = held()
    apply_recompute(model, "none")
    budget = (whole + least) // 2
    facts = fit_recompute(model, budget, lambda: model(clip).mean(), units=[])
    assert held() <= budget
    assert 0 < sum(facts.places.values()) < len(places_of(model, []))


def test_measuring_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(4, 8)
    fit_recompute(model, 2**30, lambda: model(x).sum(), units=[model[0]])
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert "forward" not in vars(model[0])


def test_measuring_keeps_nothing() -> None:
    model, inputs = build(Model), batch()
    there = [*model.parameters(), inputs]
    budget = 2 * held_bytes(model, inputs)
    gc.collect()

    def measured() -> None:
        fit_recompute(model, budget, lambda: model(inputs).square().mean(), units=[])

    assert saved_bytes(measured, ignoring=there) == 0


def test_what_cannot_fit_is_refused_with_what_would() -> None:
    model, inputs = build(Model), batch()
    with pytest.raises(ConfigError, match=r"is 1KiB, but Model keeps [\d.]+ KiB .* recomputed"):
        fitted(model, inputs, 1024)


COSTS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=1, max_size=12)


@given(COSTS, st.integers(-100, 6000))
def test_enough_is_chosen_and_none_in_vain(sizes: list[tuple[int, int]], excess: int) -> None:
    place = Place(module=nn.Identity(), part="unit")
    costs = [PlaceCost(place=place, saved_bytes=s, written_bytes=w) for s, w in sizes]
    chosen = choose(costs, excess)
    freed = sum(cost.saved_bytes for cost in chosen)
    if sum(saved for saved, _ in sizes) < excess:
        assert len(chosen) == len(costs)
        return
    assert freed >= excess
    assert all(freed - cost.saved_bytes < excess for cost in chosen)
