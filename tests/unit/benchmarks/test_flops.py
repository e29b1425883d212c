import warnings
from collections.abc import Iterator

import pytest
import torch
from benchmarks.flops import OUTSIDE, count_flops, top_level
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.second = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Mixed(nn.Module):
    """A convolution, attention and a plain product outside any child."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, kernel_size=3, stride=2, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return tokens @ tokens.transpose(1, 2)


def test_an_mlp_costs_what_its_matrices_cost() -> None:
    model, batch = Mlp(), 7
    found = count_flops(lambda: model(torch.randn(batch, 10)).sum().backward())
    first, second = 2 * batch * 10 * 20, 2 * batch * 20 * 5
    assert found.forward == first + second
    # Gradients of both weights and of the hidden values; the input needs none.
    assert found.backward == first + 2 * second
    assert found.total == 2 * first + 3 * second
    parts = {part.name: (part.forward, part.backward) for part in found.by_module}
    assert parts == {"Mlp.first": (first, first), "Mlp.second": (second, 2 * second)}


def test_a_convolution_costs_its_kernel_at_every_output_pixel() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, kernel_size=5, padding=2, stride=2))
    found = count_flops(lambda: model(torch.randn(2, 3, 16, 16)))
    pixels = 2 * 8 * 8 * 8
    assert (found.forward, found.backward) == (2 * pixels * 3 * 5 * 5, 0)
    assert [part.name for part in found.by_module] == ["Sequential.0"]


def test_totals_agree_with_torchs_own_counter_and_with_the_parts() -> None:
    model = Mixed()
    picture = torch.randn(2, 3, 8, 8)
    found = count_flops(lambda: model(picture).sum().backward())
    with FlopCounterMode(display=False) as counter:
        model(picture).sum().backward()
    assert found.total == counter.get_total_flops() > 0
    assert sum(part.forward for part in found.by_module) == found.forward
    assert sum(part.backward for part in found.by_module) == found.backward
    assert sum(op.flops or 0 for op in found.counted) == found.total


def test_inference_mode_counts_the_same_forward_work() -> None:
    model = Mixed()
    picture = torch.randn(2, 3, 8, 8)
    trained = count_flops(lambda: model(picture).sum().backward())
    with torch.inference_mode():
        inferred = count_flops(lambda: model(picture))
    assert (inferred.forward, inferred.backward) == (trained.forward, 0)


def test_work_outside_every_module_is_kept_apart() -> None:
    left, right = torch.randn(4, 5), torch.randn(5, 6)
    found = count_flops(lambda: left @ right)
    [part] = found.by_module
    assert (part.name, part.forward) == (OUTSIDE, 2 * 4 * 5 * 6)


def test_operations_without_a_formula_are_listed_with_their_calls() -> None:
    x = torch.randn(3)
    found = count_flops(lambda: torch.relu(torch.exp(torch.exp(x))).view(3, 1))
    assert found.total == 0
    calls = {op.name: op.calls for op in found.not_counted}
    assert calls == {"aten.exp": 2, "aten.relu": 1}, "a view is no work"
    assert all(op.flops is None for op in found.not_counted)


@pytest.fixture(scope="module")
def triple() -> Iterator[object]:
    """An operation of our own, as a kernel would register it."""
    library = torch.library.Library("pitstop_test", "DEF")
    library.define("triple(Tensor x) -> Tensor")
    library.impl("triple", lambda x: x * 3, "CompositeExplicitAutograd")
    yield torch.ops.pitstop_test.triple
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library._destroy()  # pyright: ignore[reportPrivateUsage]


def test_a_kernel_is_counted_by_the_formula_it_brings(triple: object) -> None:
    assert callable(triple)
    x = torch.randn(4, 5)
    without = count_flops(lambda: triple(x))
    assert without.total == 0
    assert "pitstop_test.triple" in {op.name for op in without.not_counted}

    seen: list[object] = []

    def formula(x_shape: torch.Size, *, out_shape: torch.Size) -> int:
        seen.append((x_shape, out_shape))
        return x_shape.numel()

    counted = count_flops(lambda: triple(triple(x)), formulas={triple: formula})
    assert counted.forward == 2 * 20
    assert seen == [((4, 5), (4, 5))] * 2
    [op] = counted.counted
    assert (op.name, op.calls, op.flops) == ("pitstop_test.triple", 2, 40)
    assert counted.not_counted == ()


def test_counting_leaves_no_hooks_behind() -> None:
    model = Mlp()
    count_flops(lambda: model(torch.randn(2, 10)).sum().backward())
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks  # pyright: ignore[reportPrivateUsage]
    assert not hooks._global_forward_pre_hooks  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("running", "name"),
    [
        ({"Global"}, OUTSIDE),
        ({"Global", "Net"}, "Net"),
        ({"Global", "Net", "Net.stage1", "Net.stage1.block0"}, "Net.stage1"),
        ({"Global", "Net", "Net.stage1", "Net.stage2"}, "Net"),
        ({"Global", "Net", "Vgg", "Vgg.features"}, "Vgg.features"),
        ({"Global", "Net", "Vgg"}, OUTSIDE),
    ],
)
def test_the_part_named_is_the_one_child_that_runs(running: set[str], name: str) -> None:
    assert top_level(running) == name
