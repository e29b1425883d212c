"""What fused attention in volumes must do; test_window_attention.py runs this interpreted."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.kernels import window_attention, window_attention_triton
from pitstop.kernels.window_attention import (
    REFERENCE,
    Size,
    WindowAttention,
    Windows,
    joint_attention_fused,
    mutual_attention_fused,
    self_attention_fused,
    shift_regions,
)
from pitstop.kernels.window_attention_triton import Launch, Plan
from pitstop.workloads.deblur.model.blocks import relative_position_index
from tests.unit.kernels.triton_interpreter import interpreter_set_right

torch.set_num_threads(1)

FUSED = WindowAttention(self_attention_fused, mutual_attention_fused, joint_attention_fused)
KINDS = ("self_attention", "mutual_attention", "joint_attention")
Given = tuple[str, list[Tensor], dict[str, Any], bool]
"""Which operation, its tensors, how the volume is cut, and whether seams are masked."""


@pytest.fixture(scope="module", autouse=True)
def the_interpreter_is_set_right() -> Iterator[None]:
    with interpreter_set_right():
        yield


def plan_of(queries: int, keys: int, *, programs: int = 4) -> Plan:
    launch = Launch(queries, keys, programs, 4, 1)
    return Plan(launch, launch, launch)


def inputs(
    kind: str,
    volume: Size,
    windows: Windows,
    *,
    batch: int = 1,
    heads: int = 2,
    channels: int = 16,
    table_window: Size | None = None,
    masked: bool = True,
) -> Given:
    generator = torch.Generator().manual_seed(sum(volume) + 64 * batch + channels)
    table_window = table_window or windows.size
    places = 1
    for side in table_window:
        places *= 2 * side - 1
    qkv = torch.randn(2, batch, *volume, 3 * heads * channels, generator=generator)
    table = torch.randn(places, heads, generator=generator)
    tensors = {
        "self_attention": [qkv[0], table],
        "mutual_attention": [qkv[1]],
        "joint_attention": [qkv[0], qkv[1], table],
    }[kind]
    cut: dict[str, Any] = {"windows": windows, "num_heads": heads}
    if kind != "mutual_attention":
        cut["table_window"] = table_window
    return kind, tensors, cut, masked


def index_of(windows: Windows, table_window: Size) -> Tensor:
    """The index of the table's window, cut down to the one at hand."""
    depth, height, width = windows.size
    index = relative_position_index(table_window).view(*table_window, *table_window)
    index = index[:depth, :height, :width, :depth, :height, :width]
    return index.reshape(windows.num_tokens, -1)


def all_of(
    versions: WindowAttention,
    given_: Given,
    *,
    dtype: torch.dtype = torch.float32,
    grad_size: float = 1.0,
) -> list[Tensor]:
    """Result and gradients of everything that has one."""
    kind, tensors, cut, masked = given_
    leaves = [part.to(dtype).requires_grad_() for part in tensors]
    windows, volume = cut["windows"], tensors[0].shape[1:4]
    regions = None
    if masked:
        sides_ = (volume[0], volume[1], volume[2])
        regions = shift_regions(sides_, windows, device=tensors[0].device)
    more = [regions]
    if kind != "mutual_attention":
        more = [index_of(windows, cut["table_window"]), regions]
    out = getattr(versions, kind)(*leaves, *more, **cut)
    generator = torch.Generator().manual_seed(1)
    grad = (grad_size * torch.randn(out.shape, generator=generator)).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def agree(got: list[Tensor], want: list[Tensor], *, rtol: float = 1e-5, atol: float = 2e-5) -> None:
    for mine, true in zip(got, want, strict=True):
        size = max(float(true.square().mean().sqrt()), 1.0)
        torch.testing.assert_close(mine.double(), true, rtol=rtol, atol=atol * size)


def assert_exact(given_: Given) -> None:
    agree(all_of(FUSED, given_), all_of(REFERENCE, given_, dtype=torch.float64))


def use(patch: pytest.MonkeyPatch, plan: Plan) -> None:
    def always(*_: object, **__: object) -> Plan:
        return plan

    patch.setattr(window_attention_triton, "plan_for", always)


sides = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5))


@st.composite
def cuts(draw: Callable[..., Any], *, mutual: bool) -> tuple[Size, Windows]:
    """Any window, any shift that is shorter than it, and a few windows along each axis."""
    depth, height, width = draw(sides)
    size = (2 if mutual else depth, height, width)
    shift = tuple(draw(st.integers(0, side - 1)) for side in size)
    counts = draw(st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)))
    volume = tuple(side * count for side, count in zip(size, counts, strict=True))
    return volume, Windows(size, shift)


@given(
    kind=st.sampled_from(KINDS),
    cut=cuts(mutual=False),
    mutual_cut=cuts(mutual=True),
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    channels=st.sampled_from([16, 20, 24, 30, 32]),
    tiles=st.sampled_from([(16, 16), (16, 32), (32, 16), (16, 64)]),
    programs=st.sampled_from([1, 5, 1000]),
    masked=st.booleans(),
)
@settings(max_examples=12, deadline=None)
@example(
    kind="self_attention",
    cut=((2, 8, 6), Windows((2, 4, 3), (1, 2, 1))),
    mutual_cut=((2, 1, 1), Windows((2, 1, 1), (0, 0, 0))),
    batch=2,
    heads=2,
    channels=20,
    tiles=(16, 16),
    programs=5,
    masked=True,
)
def test_any_cut_gives_the_results_and_gradients_of_the_reference(
    kind: str,
    cut: tuple[Size, Windows],
    mutual_cut: tuple[Size, Windows],
    batch: int,
    heads: int,
    channels: int,
    tiles: tuple[int, int],
    programs: int,
    masked: bool,
) -> None:
    volume, windows = cut if kind == "self_attention" else mutual_cut
    given_ = inputs(
        kind, volume, windows, batch=batch, heads=heads, channels=channels, masked=masked
    )
    with pytest.MonkeyPatch.context() as patch:
        use(patch, plan_of(*tiles, programs=programs))
        assert_exact(given_)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_that_shrank_reads_its_places_in_the_table_of_the_whole_one(kind: str) -> None:
    windows = Windows((2, 3, 2), (0, 0, 1))
    assert_exact(inputs(kind, (2, 3, 4), windows, table_window=(3, 4, 4)))


@pytest.mark.parametrize("programs", [1, 8, 11])
@pytest.mark.parametrize(
    ("size", "table"), [((2, 4, 4), (2, 4, 4)), ((1, 3, 5), (2, 4, 5)), ((1, 1, 1), (1, 1, 1))]
)
def test_what_programs_summed_of_a_bias_is_folded_into_its_table(
    size: Size, table: Size, programs: int
) -> None:
    cut = window_attention_triton.Cut(size, (0, 0, 0), False, 2, table)
    index = index_of(Windows(size, (0, 0, 0)), table).flatten()
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(programs, 2, cut.tokens, cut.tokens, generator=generator)
    found = torch.full((math.prod(2 * side - 1 for side in table), 2), torch.nan)
    window_attention_triton.fold_parts(parts, found, cut)
    summed = parts.double().sum(0).permute(2, 1, 0).flatten(0, 1)
    want = torch.zeros_like(found, dtype=torch.float64).index_add(0, index, summed)
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)


def test_the_plans_for_real_windows_are_exact_in_half_precision() -> None:
    # Not bfloat16: the interpreter multiplies its bits as integers. A device's test does.
    for size, shift, volume, channels in (
        ((1, 8, 8), (0, 4, 4), (1, 8, 16), 20),
        ((2, 8, 8), (1, 4, 4), (2, 8, 8), 16),
        ((6, 8, 8), (0, 4, 4), (6, 8, 8), 16),
    ):
        given_ = inputs("self_attention", volume, Windows(size, shift), heads=1, channels=channels)
        got = all_of(FUSED, given_, dtype=torch.float16)
        assert [part.dtype for part in got] == [torch.float16] * 3
        agree(got, all_of(REFERENCE, given_, dtype=torch.float64), rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize(
    ("setting", "rtol", "atol"),
    # Where TF32 is allowed, operands and bias come in 16 bits, whose mantissa is as long.
    [("ieee", 1e-5, 2e-5), ("tf32", 1e-2, 5e-3)],
)
def test_the_plans_for_real_windows_are_exact_in_float32(
    setting: str, rtol: float, atol: float
) -> None:
    torch.backends.cuda.matmul.fp32_precision = setting
    try:
        for size, shift, volume, channels in (
            ((1, 8, 8), (0, 4, 4), (1, 8, 16), 20),
            ((2, 8, 8), (1, 4, 4), (2, 8, 8), 16),
            ((6, 8, 8), (0, 4, 4), (6, 8, 8), 16),
        ):
            windows = Windows(size, shift)
            given_ = inputs("self_attention", volume, windows, heads=1, channels=channels)
            want = all_of(REFERENCE, given_, dtype=torch.float64)
            agree(all_of(FUSED, given_), want, rtol=rtol, atol=atol)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"


@pytest.fixture
def halves_for_tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(window_attention, "HALVES_FOR_TF32", True)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = "ieee"


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # written again, stretched
@pytest.mark.usefixtures("halves_for_tf32")
@pytest.mark.parametrize(
    ("kind", "tiles"), [("self_attention", (16, 16)), ("joint_attention", (16, 32))]
)
@pytest.mark.parametrize(
    ("query", "value", "grad"),
    # Float16 alone holds none but the first: numbers too large, too small, gradients too small.
    [(1.0, 1.0, 1.0), (1.0, 1e5, 1e6), (1e-4, 1e-3, 1e-12), (1.0, 1e-4, 1e-3)],
)
def test_tf32_by_halves_keeps_its_error_at_any_size_of_numbers(
    kind: str, tiles: tuple[int, int], query: float, value: float, grad: float
) -> None:
    name, tensors, cut, masked = inputs(kind, (2, 4, 3), Windows((2, 4, 3), (0, 2, 1)), channels=20)
    sizes = torch.tensor([query, 1.0, value]).repeat_interleave(2 * 20)
    given_ = (name, [part * sizes if part.dim() == 5 else part for part in tensors], cut, masked)
    with pytest.MonkeyPatch.context() as patch:
        use(patch, plan_of(*tiles))
        got = all_of(FUSED, given_, grad_size=grad)
    want = all_of(REFERENCE, given_, dtype=torch.float64, grad_size=grad)
    for mine, true in zip(got, want, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - true).norm() <= 1.5e-3 * true.norm()


@pytest.mark.usefixtures("halves_for_tf32")
def test_tf32_by_halves_saves_halves_and_passes_the_checks_of_torch() -> None:
    _, tensors, cut, _ = inputs("joint_attention", (2, 2, 3), Windows((2, 2, 3), (0, 1, 0)))
    qkv, mutual, table = (part.requires_grad_() for part in tensors)
    flat = [*cut["windows"].size, *cut["windows"].shift, *cut["windows"].size]
    torch.library.opcheck(
        torch.ops.pitstop.attend_volume.default, (qkv, table, mutual, flat, 2, True)
    )
    kept: list[Tensor] = []

    def keep(part: Tensor) -> Tensor:
        kept.append(part)
        return part

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
        joint_attention_fused(qkv, mutual, table, torch.empty(0), None, **cut)
    assert [part.dtype for part in kept if part.shape == qkv.shape] == [torch.float16] * 2


@pytest.mark.parametrize(
    ("setting", "dtype", "precision", "short_bias"),
    [
        ("tf32", torch.float32, "tf32", True),
        ("ieee", torch.float32, "tf32x3", False),
        ("tf32", torch.float16, "ieee", True),
        ("ieee", torch.float16, "ieee", True),
    ],
)
def test_products_are_as_exact_as_torch_is_told_to_make_them(
    setting: str, dtype: torch.dtype, precision: str, short_bias: bool
) -> None:
    qkv = torch.empty(1, 2, 8, 8, 48, dtype=dtype)
    cut = window_attention_triton.Cut((2, 8, 8), (0, 0, 0), False, 1, (2, 8, 8))
    torch.backends.cuda.matmul.fp32_precision = setting
    try:
        launch = window_attention_triton.Launch(16, 16, 1, 1, 1)
        found = window_attention_triton.constants_of(qkv, qkv, qkv, cut, launch)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert (found["PRECISION"], found["SHORT_BIAS"]) == (precision, short_bias)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_call_gives_the_same_bits(kind: str) -> None:
    given_ = inputs(kind, (4, 4, 6), Windows((2, 4, 3), (1, 2, 1)))
    for mine, again in zip(all_of(FUSED, given_), all_of(FUSED, given_), strict=True):
        assert torch.equal(mine, again)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_are_not_contiguous_are_read_all_the_same(kind: str) -> None:
    given_ = inputs(kind, (2, 4, 3), Windows((2, 4, 3), (0, 0, 0)))
    turned = [part.mT.contiguous().mT for part in given_[1]]
    got = all_of(FUSED, (given_[0], turned, *given_[2:]))
    agree(got, all_of(REFERENCE, given_, dtype=torch.float64))


def test_keys_of_another_side_of_a_seam_hardly_count() -> None:
    # As in the reference they lose a hundred, no more: enormous scores still win.
    windows = Windows((1, 1, 4), (0, 0, 2))
    kind, tensors, cut, masked = inputs("self_attention", (1, 1, 4), windows, heads=1)
    tensors[0] *= 6
    given_ = (kind, tensors, cut, masked)
    right = all_of(REFERENCE, given_, dtype=torch.float64)
    apart = all_of(REFERENCE, (*given_[:3], False), dtype=torch.float64)
    assert not torch.allclose(right[0], apart[0], rtol=0.1)
    agree(all_of(FUSED, given_), right, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_operation_passes_the_checks_of_torch(kind: str) -> None:
    _, tensors, cut, _ = inputs(kind, (2, 2, 3), Windows((2, 2, 3), (0, 1, 0)))
    leaves = [part.requires_grad_() for part in tensors]
    flat = [*cut["windows"].size, *cut["windows"].shift, *cut["windows"].size]
    qkv, mutual, table = {
        "self_attention": lambda: (leaves[0], None, leaves[1]),
        "mutual_attention": lambda: (None, leaves[0], None),
        "joint_attention": lambda: tuple(leaves),
    }[kind]()
    arguments = (qkv, table, mutual, flat, 2, True)
    torch.library.opcheck(torch.ops.pitstop.attend_volume.default, arguments)


def test_it_is_one_graph_for_the_compiler_and_gradients_stay() -> None:
    kind, tensors, cut, masked = inputs("joint_attention", (2, 2, 3), Windows((2, 2, 3), (0, 1, 0)))

    def whole(qkv: Tensor, mutual: Tensor, table: Tensor, *more: Any, **cut: Any) -> Tensor:
        return joint_attention_fused(qkv.tanh(), mutual, table, *more, **cut).square()

    def plain(qkv: Tensor, mutual: Tensor, table: Tensor, *more: Any, **cut: Any) -> Tensor:
        return REFERENCE.joint_attention(qkv.tanh(), mutual, table, *more, **cut).square()

    compiled = torch.compile(whole, fullgraph=True, backend="aot_eager")
    given_ = (kind, tensors, cut, masked)
    got = all_of(REFERENCE._replace(joint_attention=compiled), given_)
    agree(got, all_of(REFERENCE._replace(joint_attention=plain), given_, dtype=torch.float64))


def test_volumes_that_windows_do_not_fill_are_noticed() -> None:
    _, (qkv, table), cut, _ = inputs("self_attention", (2, 3, 3), Windows((2, 2, 3), (0, 0, 0)))
    with pytest.raises(AssertionError, match="no multiple of its windows"):
        self_attention_fused(qkv, table, torch.empty(0), None, **cut)


def test_mutual_attention_needs_two_frames() -> None:
    _, (qkv,), cut, _ = inputs("mutual_attention", (3, 2, 2), Windows((3, 2, 2), (0, 0, 0)))
    with pytest.raises(AssertionError, match="exactly two frames"):
        mutual_attention_fused(qkv, None, **cut)
