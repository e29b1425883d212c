import itertools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pitstop.errors import ConfigError
from pitstop.kernels import Kernels, fallback
from pitstop.kernels.window_attention import (
    FORMULAS,
    REFERENCE,
    Windows,
    dispatch,
    joint_attention_reference,
    mutual_attention_reference,
    obstacle_of,
    self_attention_reference,
    shift_regions,
)
from tests.interpreted import (
    assert_cases_hold_under_the_interpreter,
    needs_triton,
    said_by_the_compiler,
)

torch.set_num_threads(1)

HERE = Path(__file__).parent
SHARED_BYTES = 99 * 1024
"""What a program may have on all GPUs from sm_86 on."""

Place = tuple[int, int, int]
Pair = tuple[Place, Place, list[Place]]
"""Where the result goes, whose query asks, and the places it sees."""
Extra = Callable[[Place, Place, int], float]
"""What is added to the score of an asking and a seen place, in a head."""
Cut = tuple[Place, Place, bool]
"""Sides of a window, number of windows along each axis, and whether they are shifted."""


def windows_of(volume: Place, windows: Windows) -> list[list[Place]]:
    """Places in the unrolled volume, token by token."""
    (wd, wh, ww), (sd, sh, sw), (nd, nh, nw) = *windows, volume
    steps = list(itertools.product(range(wd), range(wh), range(ww)))
    return [
        [((d + i + sd) % nd, (h + j + sh) % nh, (w + k + sw) % nw) for i, j, k in steps]
        for d, h, w in itertools.product(range(0, nd, wd), range(0, nh, wh), range(0, nw, ww))
    ]


def may_meet(a: Place, b: Place, volume: Place, windows: Windows) -> bool:
    """Whether two places of one shifted window lay on the same side of every seam."""
    for here, there, n, w, s in zip(a, b, volume, *windows, strict=True):
        last = [place < s or place >= n - w + s for place in (here, there)]
        if s and all(last) and (here < s) != (there < s):
            return False
    return True


def naive(qkv: Tensor, pairs: list[Pair], scores_extra: Extra, heads: int) -> Tensor:
    """Every query walks over the places it is given, one head at a time."""
    channels = qkv.shape[-1] // 3
    dim = channels // heads
    out = torch.zeros(*qkv.shape[:4], channels, dtype=qkv.dtype)
    for batch, pair, head in itertools.product(
        range(qkv.shape[0]), range(len(pairs)), range(heads)
    ):
        target, asking, seen = pairs[pair]
        part = slice(head * dim, (head + 1) * dim)
        query = qkv[batch][asking][:channels][part]
        scores = [
            query @ qkv[batch][place][channels : 2 * channels][part] / math.sqrt(dim)
            + scores_extra(asking, place, head)
            for place in seen
        ]
        weights = torch.softmax(torch.stack(scores), 0)
        values = torch.stack([qkv[batch][place][2 * channels :][part] for place in seen])
        out[batch][target][part] = weights @ values
    return out


cuts = st.tuples(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2)),
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3)),
    st.booleans(),
)


def cut_of(cut: Cut) -> tuple[Place, Windows]:
    (wd, wh, ww), (cd, ch, cw), shifted = cut
    shift = (wd // 2, wh // 2, ww // 2) if shifted else (0, 0, 0)
    return (wd * cd, wh * ch, ww * cw), Windows((wd, wh, ww), shift)


@given(cuts, st.integers(1, 2), st.integers(1, 2), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_self_attention_equals_a_walk_over_every_pair_of_places(
    cut: Cut, batch: int, heads: int, seed: int
) -> None:
    volume, windows = cut_of(cut)
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(batch, *volume, 6 * heads, generator=generator, dtype=torch.float64)
    tokens = windows.num_tokens
    table = torch.randn(5, heads, generator=generator, dtype=torch.float64)
    index = torch.randint(0, 5, (tokens, tokens), generator=generator)
    regions = shift_regions(volume, windows, device=qkv.device) if cut[2] else None

    order = {place: i for group in windows_of(volume, windows) for i, place in enumerate(group)}
    pairs = [(a, a, group) for group in windows_of(volume, windows) for a in group]

    def extra(asking: Place, seen: Place, head: int) -> float:
        bias = table[index[order[asking], order[seen]], head].item()
        return bias + (0.0 if may_meet(asking, seen, volume, windows) else -100.0)

    out = self_attention_reference(qkv, table, index, regions, windows=windows, num_heads=heads)
    torch.testing.assert_close(out, naive(qkv, pairs, extra, heads), rtol=1e-10, atol=1e-10)


@given(cuts, st.integers(1, 2), st.integers(1, 2), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_mutual_attention_equals_each_frame_asking_for_the_other(
    cut: Cut, batch: int, heads: int, seed: int
) -> None:
    volume, windows = cut_of(((2, *cut[0][1:]), *cut[1:]))
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(batch, *volume, 6 * heads, generator=generator, dtype=torch.float64)
    regions = shift_regions(volume, windows, device=qkv.device) if cut[2] else None
    half = windows.num_tokens // 2
    pairs = [
        (group[i], group[(i + half) % (2 * half)], group[:half] if i < half else group[half:])
        for group in windows_of(volume, windows)
        for i in range(2 * half)
    ]

    def extra(asking: Place, seen: Place, _head: int) -> float:
        same_frame = (seen[0], *asking[1:])
        return 0.0 if may_meet(same_frame, seen, volume, windows) else -100.0

    out = mutual_attention_reference(qkv, regions, windows=windows, num_heads=heads)
    torch.testing.assert_close(out, naive(qkv, pairs, extra, heads), rtol=1e-10, atol=1e-10)


def test_gradients_of_shifted_attention_agree_with_finite_differences() -> None:
    torch.manual_seed(0)
    windows = Windows((2, 2, 2), (1, 1, 1))
    qkv = torch.randn(1, 4, 4, 2, 6, dtype=torch.float64, requires_grad=True)
    table = torch.randn(9, 1, dtype=torch.float64, requires_grad=True)
    index = torch.randint(0, 9, (8, 8))
    regions = shift_regions((4, 4, 2), windows, device=qkv.device)

    def both(qkv: Tensor, table: Tensor) -> Tensor:
        ops = dispatch()
        own = ops.self_attention(qkv, table, index, regions, windows=windows, num_heads=1)
        return own + ops.mutual_attention(qkv, regions, windows=windows, num_heads=1)

    assert torch.autograd.gradcheck(both, (qkv, table))


def test_a_cut_without_shift_is_one_region() -> None:
    regions = shift_regions((4, 4, 4), Windows((2, 2, 2), (0, 0, 0)), device=torch.device("cpu"))
    assert regions.shape == (8, 8)
    assert regions.unique().numel() == 1


def test_a_cut_shifted_on_all_axes_has_27_regions_and_a_still_axis_gives_9() -> None:
    cpu = torch.device("cpu")
    moved = shift_regions((6, 6, 6), Windows((2, 2, 2), (1, 1, 1)), device=cpu)
    still = shift_regions((6, 6, 6), Windows((2, 2, 2), (0, 1, 1)), device=cpu)
    assert moved.unique().numel() == 27
    assert still.unique().numel() == 9


def test_the_formulas_count_the_products_that_torch_counts() -> None:
    windows = Windows((2, 4, 4), (0, 0, 0))
    qkv = torch.randn(2, 4, 8, 8, 3 * 8)
    shapes = {"num_windows": 2 * 8, "num_tokens": 32, "channels": 8}
    with FlopCounterMode(display=False) as counter:
        mutual_attention_reference(qkv, None, windows=windows, num_heads=2)
    assert counter.get_total_flops() == FORMULAS["mutual_attention"].flops(**shapes)
    index = torch.zeros(32, 32, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        self_attention_reference(qkv, torch.zeros(1, 2), index, None, windows=windows, num_heads=2)
    assert counter.get_total_flops() == FORMULAS["self_attention"].flops(**shapes)


def test_the_byte_floor_is_inputs_and_outputs_once() -> None:
    shapes = {"num_windows": 16, "num_tokens": 32, "channels": 8, "itemsize": 2}
    volume = 16 * 32 * 8 * 2
    assert FORMULAS["mutual_attention"].num_bytes(**shapes) == 4 * volume
    assert FORMULAS["self_attention"].num_bytes(**shapes, bias_bytes=100) == 4 * volume + 100
    backward = FORMULAS["self_attention_backward"]
    assert backward.num_bytes(**shapes, bias_bytes=100) == 8 * volume + 200
    del shapes["itemsize"]
    assert 2 * backward.flops(**shapes) == 5 * FORMULAS["self_attention"].flops(**shapes)


def test_joint_attention_is_mutual_then_self_attention() -> None:
    windows = Windows((2, 2, 2), (1, 1, 1))
    qkv, mutual = torch.randn(2, 1, 4, 4, 2, 12)
    table, index = torch.randn(9, 2), torch.randint(0, 9, (8, 8))
    regions = shift_regions((4, 4, 2), windows, device=qkv.device)
    cut: dict[str, Any] = {"windows": windows, "num_heads": 2}
    out = joint_attention_reference(qkv, mutual, table, index, regions, **cut)
    first, second = out.chunk(2, dim=-1)
    assert torch.equal(first, mutual_attention_reference(mutual, regions, **cut))
    assert torch.equal(second, self_attention_reference(qkv, table, index, regions, **cut))


def test_each_word_names_its_versions() -> None:
    assert dispatch("reference") == REFERENCE
    with pytest.raises(ConfigError, match="auto, reference, fused"):
        dispatch("fast")  # pyright: ignore[reportArgumentType]


def test_on_a_cpu_auto_is_silent_and_fused_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_said", set())
    qkv, windows = torch.randn(1, 2, 2, 2, 12), Windows((2, 2, 2), (0, 0, 0))
    want = mutual_attention_reference(qkv, None, windows=windows, num_heads=2)

    def got(word: Kernels) -> Tensor:
        return dispatch(word).mutual_attention(qkv, None, windows=windows, num_heads=2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(got("auto"), want)
    with pytest.warns(RuntimeWarning, match="window attention runs in plain PyTorch"):
        assert torch.equal(got("fused"), want)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(got("fused"), want)


def test_what_a_program_cannot_hold_is_named() -> None:
    qkv = torch.empty(1, 2, 2, 2, 3 * 65, device="meta")
    small = Windows((2, 2, 2), (0, 0, 0))
    assert "65 channels" in str(obstacle_of(qkv, windows=small, num_heads=1))
    large = Windows((9, 8, 8), (0, 0, 0))
    assert "576 tokens" in str(obstacle_of(qkv, windows=large, num_heads=5))


@pytest.mark.slow
@needs_triton
def test_fused_window_attention_keeps_its_claims_under_the_interpreter() -> None:
    assert_cases_hold_under_the_interpreter(HERE / "window_attention_cases.py")


@pytest.mark.slow
@needs_triton
def test_all_plans_compile_for_devices_that_are_not_here() -> None:
    said = said_by_the_compiler(HERE / "window_attention_compiled.py")
    sizes = [int(line.split()[-1]) for line in said.splitlines()]
    half, halves, tf32, float32, wide_table = 12 + 4, 2 + 3 + 2, 2 + 3 + 2, 3 + 1, 2 + 1
    assert len(sizes) == 4 * (half + halves + tf32 + float32 + wide_table), said
    assert max(sizes) <= SHARED_BYTES, said
