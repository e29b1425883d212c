"""What the fused half of a block must do; test_block.py runs this under Triton's interpreter."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.kernels import block, block_triton
from pitstop.kernels.block import (
    REFERENCE,
    BlockOps,
    Encoding,
    Layer,
    Norm,
    feed_forward_add_fused,
    norm_project_fused,
    project_add_fused,
)
from pitstop.plan.dry_run.inside import is_fused, run_inside
from pitstop.train.model.recompute import recompute_all
from pitstop.workloads.deblur.model.blocks import AttentionBlock, BlockShape
from pitstop.workloads.deblur.model.stages import Stage
from tests.unit.kernels.triton_interpreter import interpreter_set_right

torch.set_num_threads(1)

FUSED = BlockOps(norm_project_fused, project_add_fused, feed_forward_add_fused)

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""Interpreted kernels are slow: an example as it was found must do."""

Call = Callable[[BlockOps, list[Tensor]], tuple[Tensor, ...]]


@pytest.fixture(scope="module", autouse=True)
def the_interpreter_is_set_right() -> Iterator[None]:
    with interpreter_set_right():
        yield


def results_of(call: Call, versions: BlockOps, leaves: list[Tensor], seed: int) -> list[Tensor]:
    """All results, and the gradients of all leaves for gradients drawn at random."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    outs = call(versions, leaves)
    generator = torch.Generator().manual_seed(seed)
    grads = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in outs]
    return [out.detach() for out in outs] + list(torch.autograd.grad(outs, leaves, grads))


def assert_right(call: Call, leaves: list[Tensor], *, seed: int, within: float = 2e-5) -> None:
    right = results_of(call, REFERENCE, [leaf.double() for leaf in leaves], seed)
    for place, (mine, true) in enumerate(
        zip(results_of(call, FUSED, leaves, seed), right, strict=True)
    ):
        assert mine.shape == true.shape
        error = float((mine.double() - true).norm() / true.norm().clamp_min(1e-9))
        assert error <= within, f"result {place}: {error}"


def normal(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator)


@given(
    channels=st.integers(3, 40),
    outputs=st.integers(1, 70),
    mutual=st.booleans(),
    size=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)),
    shift=st.tuples(st.integers(0, 1), st.integers(0, 2)),
    seed=st.integers(0, 9),
)
@settings(max_examples=8, deadline=None, phases=NO_SHRINKING)
def test_norm_and_projections_are_those_of_float64(
    channels: int,
    outputs: int,
    mutual: bool,
    size: tuple[int, int, int],
    shift: tuple[int, int],
    seed: int,
) -> None:
    draw, window = normal(seed), (2, 3)
    depth, down, across = size
    leaves = [
        3 * draw(2, depth, 2 * down, 3 * across, channels) + 1,
        draw(channels),
        draw(channels),
        draw(outputs, channels),
        draw(outputs),
        draw(outputs, channels),
        draw(outputs),
    ]
    table = draw(6, channels)

    def call(versions: BlockOps, given_: list[Tensor]) -> tuple[Tensor, ...]:
        x, weight, bias, *layers = given_
        encoding = Encoding(table.to(x.dtype), window, shift)
        both = [Layer(*layers[:2]), Layer(*layers[2:])] if mutual else [Layer(*layers)]
        norm = Norm(weight, bias, 1e-5)
        return versions.norm_project(x, norm, both, encoding if mutual else None)

    assert_right(call, leaves if mutual else leaves[:5], seed=seed)


@given(
    channels=st.integers(1, 40),
    inputs=st.integers(1, 140),
    tokens=st.integers(1, 90),
    scaled=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=8, deadline=None, phases=NO_SHRINKING)
def test_a_projection_is_added_as_in_float64(
    channels: int,
    inputs: int,
    tokens: int,
    scaled: bool,
    seed: int,
) -> None:
    draw = normal(seed)
    leaves = [draw(3, tokens, channels), draw(3, tokens, inputs), draw(channels, inputs)]
    scale = torch.tensor([0.0, 1.25, 1.0]).view(3, 1, 1) if scaled else None

    def call(versions: BlockOps, given_: list[Tensor]) -> tuple[Tensor, ...]:
        x, branch, weight, bias = given_
        factor = None if scale is None else scale.to(x.dtype)
        return (versions.project_add(x, branch, Layer(weight, bias), factor),)

    assert_right(call, [*leaves, draw(channels)], seed=seed)


@given(
    channels=st.integers(3, 40),
    hidden=st.integers(1, 90),
    tokens=st.integers(1, 90),
    scaled=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=8, deadline=None, phases=NO_SHRINKING)
def test_the_feed_forward_layer_is_that_of_float64(
    channels: int,
    hidden: int,
    tokens: int,
    scaled: bool,
    seed: int,
) -> None:
    draw = normal(seed)
    leaves = [2 * draw(2, tokens, channels), draw(channels), draw(channels)]
    leaves += [draw(hidden, channels), draw(hidden), draw(hidden, channels), draw(hidden)]
    leaves += [draw(channels, hidden), draw(channels)]
    scale = torch.tensor([1.25, 0.0]).view(2, 1, 1) if scaled else None

    def call(versions: BlockOps, given_: list[Tensor]) -> tuple[Tensor, ...]:
        x, weight, bias, *layers = given_
        three = [Layer(*layers[i : i + 2]) for i in (0, 2, 4)]
        factor = None if scale is None else scale.to(x.dtype)
        return (versions.feed_forward_add(x, Norm(weight, bias, 1e-5), three, factor),)

    assert_right(call, leaves, seed=seed)


def test_half_precision_loses_no_more_than_one_operation_after_the_other() -> None:
    draw, dtype = normal(0), torch.float16
    leaves = [draw(1, 70, 24), 1 + 0.1 * draw(24), 0.1 * draw(24)]
    leaves += [0.2 * draw(48, 24), 0.1 * draw(48), 0.2 * draw(48, 24), 0.1 * draw(48)]
    leaves += [0.2 * draw(24, 48), 0.1 * draw(24)]

    def call(versions: BlockOps, given_: list[Tensor]) -> tuple[Tensor, ...]:
        x, weight, bias, *layers = given_
        if versions is FUSED:
            layers = [part.to(dtype) if part.ndim == 2 else part for part in layers]
        three = [Layer(*layers[i : i + 2]) for i in (0, 2, 4)]
        return (versions.feed_forward_add(x, Norm(weight, bias, 1e-5), three, None),)

    assert_right(call, leaves, seed=0, within=3e-3)


def test_a_projection_without_bias_and_a_stream_that_ends_here_get_their_gradients() -> None:
    draw = normal(1)
    x, weight = draw(1, 1, 2, 3, 8).requires_grad_(), draw(5, 8).requires_grad_()
    norm = Norm(torch.ones(8), torch.zeros(8), 1e-5)
    _, out = norm_project_fused(x, norm, [Layer(weight, None)])
    mine = torch.autograd.grad(out.sum(), (x, weight))
    _, out = REFERENCE.norm_project(x, norm, [Layer(weight, None)])
    for found, want in zip(mine, torch.autograd.grad(out.sum(), (x, weight)), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


def test_weights_that_are_cast_together_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = normal(3)
    x, branch = draw(1, 9, 16), draw(1, 9, 8)
    layers = [Layer(draw(16, 8), draw(16)), Layer(draw(16, 8), draw(16))]
    assert block.prepare("auto", x, layers) == layers  # not on a CUDA device
    monkeypatch.setattr(block, "fits", lambda *_: True)
    with torch.autocast("cpu", torch.float16):
        ready = block.prepare("auto", x, layers)
        for one, other in zip(ready, layers, strict=True):
            assert one.operand is not None
            assert one.operand.dtype == torch.float16
            want = project_add_fused(x, branch, other, None)
            assert torch.equal(project_add_fused(x, branch, one, None), want)


class Operations(TorchDispatchMode):
    """Names of what runs, inside fused operations too."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        self.names.append(str(func))
        if is_fused(func):
            with self:
                return run_inside(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def test_a_feed_forward_layer_cast_together_copies_no_weights_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = normal(5)
    x, norm = draw(1, 9, 16).requires_grad_(), Norm(draw(16), draw(16), 1e-5)
    shapes = ((16, 16), (32, 16), (32, 16), (16, 32))
    layers = [Layer((0.2 * draw(*s)).requires_grad_(), draw(s[0])) for s in shapes]
    monkeypatch.setattr(block, "fits", lambda *_: True)
    leaves = (x, *(layer.weight for layer in layers[1:]))
    found = {}
    with torch.autocast("cpu", torch.float16):
        for name, given_ in (("apart", layers), ("together", block.prepare("auto", x, layers))):
            out = feed_forward_add_fused(x, norm, given_[1:], None)
            with Operations() as seen:
                found[name] = torch.autograd.grad(out.sum(), leaves)
            assert ("aten.cat.default" in seen.names) == (name == "apart")
    assert all(torch.equal(*pair) for pair in zip(found["apart"], found["together"], strict=True))


class Launches:
    """Stands in for a kernel and writes down what it is compiled for."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.seen: list[dict[str, Any]] = []

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*args: object, **constants: Any) -> None:
            self.seen.append(constants)
            self.kernel[grid](*args, **constants)

        return launch


@pytest.mark.parametrize(
    ("setting", "dtype", "precision"),
    [
        ("tf32", torch.float32, "tf32"),
        ("ieee", torch.float32, "tf32x3"),
        ("tf32", torch.float16, "ieee"),
    ],
)
def test_products_are_as_exact_as_torch_is_told_to_make_them(
    setting: str, dtype: torch.dtype, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = normal(6)
    x, norm = draw(1, 1, 2, 3, 8).requires_grad_(), Norm(draw(8), draw(8), 1e-5)
    layers = [Layer(draw(8, 8).to(dtype).requires_grad_(), draw(8)) for _ in range(5)]
    names = ("_project", "_feed_forward", "_feed_forward_hidden")
    launches = [Launches(getattr(block_triton, name)) for name in names]
    for name, kernel in zip(names, launches, strict=True):
        monkeypatch.setattr(block_triton, name, kernel)
    torch.backends.cuda.matmul.fp32_precision = setting
    try:
        _, projected = norm_project_fused(x, norm, layers[:1])
        y = project_add_fused(x, projected, layers[1], None)
        feed_forward_add_fused(y, norm, layers[2:], None).sum().backward()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert [len(kernel.seen) for kernel in launches] == [3, 1, 1]
    for kernel in launches:
        assert {seen["PRECISION"] for seen in kernel.seen} == {precision}


def test_tokens_too_wide_for_float32_run_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "obstacle_on", lambda _: None)
    for channels, why in ((128, None), (129, "129 channels in float32, more than 128")):
        layer = Layer(torch.zeros(3, channels), None)
        said = block.obstacle_of(torch.zeros(1, channels), layer)
        assert said is why if why is None else why in str(said)
        half = layer._replace(weight=layer.weight.half())
        assert block.obstacle_of(torch.zeros(1, channels), half) is None


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_one_graph_holds_a_compiled_half() -> None:
    draw = normal(4)
    x, norm = draw(1, 1, 2, 3, 8).requires_grad_(), Norm(draw(8), draw(8), 1e-5)
    layers, table = [Layer(draw(8, 8).requires_grad_(), draw(8)) for _ in range(6)], draw(6, 8)

    def call(x: Tensor) -> Tensor:
        encoding = Encoding(table, (2, 3), (1, 0))
        x, first, second = norm_project_fused(x, norm, layers[:2], encoding)
        x = project_add_fused(x, first * second, layers[2], None)
        return feed_forward_add_fused(x, norm, layers[3:], None)

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    found = [torch.autograd.grad(f(x).sum(), (x, layers[0].weight)) for f in (compiled, call)]
    assert all(torch.equal(mine, want) for mine, want in zip(*found, strict=True))


@pytest.mark.parametrize("name", ["norm_project", "project_add", "feed_forward_add"])
def test_operations_pass_the_checks_of_torch(name: str) -> None:
    draw = normal(2)
    x, norm = draw(1, 1, 2, 3, 8), (draw(8), draw(8), 1e-5)
    args: dict[str, tuple[object, ...]] = {
        "norm_project": (x, *norm, [draw(24, 8)], [draw(24)], None, [0] * 6),
        "project_add": (x, draw(1, 1, 2, 3, 5), draw(8, 5), draw(8), None),
        "feed_forward_add": (
            x,
            *norm,
            [draw(16, 8), draw(16, 8), draw(8, 16)],
            [draw(16), draw(16), draw(8)],
            None,
        ),
    }
    operation = getattr(torch.ops.pitstop, name).default
    torch.library.opcheck(operation, args[name], test_utils=("test_schema", "test_faketensor"))


def test_a_stage_that_recomputes_gives_what_one_operation_after_the_other_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = BlockShape(
        dim=8,
        num_heads=2,
        window=(2, 4, 4),
        mutual=False,
        mlp_ratio=2.0,
        qkv_bias=True,
        kernels="auto",
    )
    torch.manual_seed(0)
    stage = Stage("up", shape, num_mutual=2, drop_rates=[0.0, 0.3, 0.3], alignment=None)
    for part in stage.modules():
        if isinstance(part, AttentionBlock):
            part.recompute_attention = part.recompute_feed_forward = recompute_all
    x = torch.randn(2, 2, 4, 4, 8)

    def passed() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        torch.manual_seed(1)  # draws the same branches
        out = stage(leaf, ())
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [leaf, *stage.parameters()])]

    plain = passed()
    fits = Mock(return_value=True)
    monkeypatch.setattr(block, "fits", fits)
    for mine, want in zip(passed(), plain, strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-3, atol=1e-4)
    assert fits.called
