"""Recompute: what forward holds falls by every policy, and gradients are what they were."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.errors import ConfigError
from pitstop.train.model.recompute import RecomputeCall, apply_recompute, plain_call
from pitstop.workloads.deblur.model.vrt import VRT, VRT_SMALL
from tests.saved_bytes import saved_bytes

DIM = 64
Policy = str | tuple[str, ...]
POLICIES: list[Policy] = ["full", "attention", "ffn", "selective", ("first",)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Block(nn.Module):
    """Attention and feed-forward, each called through a place; attention drops at random."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)
        self.recompute_attention: RecomputeCall = plain_call
        self.recompute_feed_forward: RecomputeCall = plain_call

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.recompute_attention(self.attend, x)
        return x + self.recompute_feed_forward(self.feed, x)

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)).softmax(-1)
        scores = functional.dropout(scores, 0.2, training=self.training)
        return (scores @ value).transpose(1, 2).flatten(2)

    def feed(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Stage(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Block(), Block())
        self.recompute_stage: RecomputeCall = plain_call


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Stage()
        self.second = Stage()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first.recompute_stage(self.first, x)
        return self.second.recompute_stage(self.second, x)


class Bare(nn.Module):
    """The same sort of thing without places."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Dropout(0.3)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def build(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().train()


def batch() -> Tensor:
    return torch.randn(2, 96, DIM, generator=torch.Generator().manual_seed(1))


def held_bytes(model: nn.Module, inputs: Tensor) -> int:
    return saved_bytes(
        lambda: model(inputs).square().mean(), ignoring=[*model.parameters(), inputs]
    )


def gradients(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    model(inputs).square().mean().backward()
    return [param.grad.clone() for param in model.parameters() if param.grad is not None]


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__.partition(".")[0] in {"mm", "addmm", "bmm", "baddbmm"}
        return func(*args, **(kwargs or {}))


def num_products(model: nn.Module, inputs: Tensor) -> int:
    with Products() as products:
        gradients(model, inputs)
    return products.count


@pytest.mark.parametrize("policy", POLICIES)
def test_forward_holds_less_and_gradients_stay_bit_for_bit(policy: Policy) -> None:
    model, inputs = build(Model), batch()
    before, expected = held_bytes(model, inputs), gradients(model, inputs)
    facts = apply_recompute(model, policy)
    assert sum(facts.places.values()) > 0
    assert held_bytes(model, inputs) < 0.9 * before
    torch.testing.assert_close(gradients(model, inputs), expected, rtol=0, atol=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_it_holds_under_autocast(policy: Policy) -> None:
    model, inputs = build(Model), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before, expected = held_bytes(model, inputs), gradients(model, inputs)
        apply_recompute(model, policy)
        assert held_bytes(model, inputs) < 0.9 * before
        torch.testing.assert_close(gradients(model, inputs), expected, rtol=0, atol=0)


@pytest.fixture
def _one_rank(tmp_path: Path) -> Iterator[None]:
    meeting = f"file://{tmp_path}/ranks"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_rank")
@pytest.mark.parametrize("policy", POLICIES)
def test_it_holds_with_gradients_exchanged_between_ranks(policy: Policy) -> None:
    model, inputs = build(Model), batch()
    before, expected = held_bytes(model, inputs), gradients(model, inputs)
    apply_recompute(model, policy)
    wrapped = DistributedDataParallel(model)
    assert held_bytes(wrapped, inputs) < 0.9 * before
    torch.testing.assert_close(gradients(wrapped, inputs), expected, rtol=0, atol=0)


def test_each_policy_works_on_its_own_parts() -> None:
    places = {policy: apply_recompute(build(Model), policy).places for policy in POLICIES}
    assert places["full"] == places["selective"] == {"attention": 4, "feed_forward": 4}
    assert places["attention"] == {"attention": 4}
    assert places["ffn"] == {"feed_forward": 4}
    assert places["first",] == {"stage": 1}


def test_halves_together_hold_what_full_holds() -> None:
    model, inputs = build(Model), batch()
    sizes: dict[str, int] = {}
    for policy in ("none", "full", "attention", "ffn", "selective"):
        apply_recompute(model, policy)
        sizes[policy] = held_bytes(model, inputs)
    spared = {policy: sizes["none"] - size for policy, size in sizes.items()}
    assert spared["full"] == pytest.approx(spared["attention"] + spared["ffn"], rel=0.05)
    assert sizes["full"] < sizes["selective"] < sizes["none"]


def test_selective_makes_no_deep_product_again() -> None:
    model, inputs = build(Model), batch()
    plain = num_products(model, inputs)
    apply_recompute(model, "full")
    full = num_products(model, inputs)
    apply_recompute(model, "selective")
    selective = num_products(model, inputs)
    blocks, scores = 4, 1
    assert full >= plain + blocks * 3
    assert selective == plain + blocks * scores


def test_selective_counts_what_it_keeps() -> None:
    """Autograd does not save these outcomes, so a count of its savings alone would miss them."""
    linear = nn.Linear(DIM, DIM, bias=False)
    model = nn.Sequential(nn.Sequential(linear, nn.GELU(), nn.GELU()))
    inputs = batch()
    apply_recompute(model, "selective", units=list(model))
    kept = inputs.nbytes  # the product
    assert saved_bytes(lambda: model(inputs), ignoring=[inputs, linear.weight]) == kept


def test_memory_is_counted_once_and_only_what_is_kept() -> None:
    x = torch.ones(1000, requires_grad=True)

    def forward() -> Tensor:
        doubled = x * 2
        once = doubled.exp()  # saves its outcome
        return (once.view(10, 100).sigmoid() + once.sum()).sum()  # sigmoid saves its own

    assert saved_bytes(forward) == 2 * x.nbytes
    assert saved_bytes(lambda: x.sin().sum()) == x.nbytes
    assert saved_bytes(lambda: x.sin().sum(), ignoring=[x]) == 0


@pytest.mark.parametrize("policy", ["full", "selective", ("blocks.0", "blocks.2")])
def test_a_model_without_places_is_wrapped_by_unit(policy: Policy) -> None:
    model, inputs = build(Bare), batch()
    names = list(model.state_dict())
    before, expected = held_bytes(model, inputs), gradients(model, inputs)
    apply_recompute(model, policy, units=list(model.blocks))  # type: ignore[arg-type]
    assert held_bytes(model, inputs) < 0.9 * before
    torch.testing.assert_close(gradients(model, inputs), expected, rtol=0, atol=0)
    assert list(model.state_dict()) == names


def test_a_copy_of_a_wrapped_model_runs_its_own_weights() -> None:
    model, inputs = build(Bare).eval(), batch()
    apply_recompute(model, "full", units=list(model.blocks))  # type: ignore[arg-type]
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for param in twin.parameters():
            param.zero_()
    torch.testing.assert_close(twin(inputs), inputs, rtol=0, atol=0)


def test_a_later_policy_replaces_the_earlier_one() -> None:
    for kind in (Model, Bare):
        model, inputs = build(kind), batch()
        units = list(getattr(model, "blocks", []))
        plain = held_bytes(model, inputs)
        for policy in ("full", "selective", "full"):
            apply_recompute(model, policy, units=units)
        assert apply_recompute(model, "none", units=units).places == {}
        assert held_bytes(model, inputs) == plain
        assert not any("forward" in vars(module) for module in model.modules())


def test_dropout_draws_the_same_numbers_again() -> None:
    model, inputs = build(Bare), batch()
    apply_recompute(model, "full", units=list(model.blocks))  # type: ignore[arg-type]
    one = gradients(model, inputs)
    after = torch.rand(3)
    apply_recompute(model, "none")
    assert all(map(torch.equal, one, gradients(model, inputs)))
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ("attention", "has nothing of that kind"),
        ("full", "has nothing of that kind"),
        (("blocks.0", "stage9"), "names stage9, which Bare does not have; there are blocks"),
    ],
)
def test_a_policy_that_finds_nothing_is_an_error(policy: Policy, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        apply_recompute(build(Bare), policy)


def test_an_unknown_stage_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="there are first, second"):
        apply_recompute(build(Model), ("third",))


def test_evaluation_keeps_nothing_and_gives_the_same() -> None:
    model, inputs = build(Model).eval(), batch()
    plain = model(inputs)
    apply_recompute(model, "full")
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), plain, rtol=0, atol=0)
        assert held_bytes(model, inputs) == 0


@pytest.fixture(scope="module")
def vrt() -> Callable[[], VRT]:
    def make() -> VRT:
        torch.manual_seed(0)
        return VRT(kernels="reference", **VRT_SMALL).train()

    return make


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["full", "attention", "ffn", "selective", ("stage1", "stage8")])
def test_vrt_holds_less_by_every_policy(policy: Policy, vrt: Callable[[], VRT]) -> None:
    model, inputs = vrt(), torch.rand(1, 3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    before = held_bytes(model, inputs)
    expected = gradients(model, inputs)
    apply_recompute(model, policy)
    torch.manual_seed(5)
    assert held_bytes(model, inputs) < 0.9 * before
    for ours, theirs in zip(gradients(model, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
