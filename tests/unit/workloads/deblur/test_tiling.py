"""Tiles: weights that add up, restorations that do not show them, sides that keep a budget."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from pitstop.errors import ConfigError
from pitstop.workloads.deblur.spike import Window
from pitstop.workloads.deblur.tiling import (
    Border,
    Tiling,
    choose_count,
    choose_side,
    cut_axis,
    restore_tiles,
)

BORDERS: tuple[Border, ...] = ("cosine", "discard")


@given(
    length=st.integers(1, 200),
    side=st.integers(1, 8),
    overlap=st.integers(0, 63),
    border=st.sampled_from(BORDERS),
    step=st.sampled_from((1, 2, 4, 8)),
)
def test_weights_of_all_parts_add_up_to_one_everywhere(
    length: int, side: int, overlap: int, border: Border, step: int
) -> None:
    length, side = length * step, 8 * side
    parts = cut_axis(length, side, min(overlap, side - 1), border=border, step=step)
    total = torch.zeros(length, dtype=torch.float64)
    for part in parts:
        assert part.start % step == 0
        total[part.start : part.start + len(part.weights)] += part.weights
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-12, rtol=0)
    assert parts[0].start == 0
    assert parts[-1].start + len(parts[-1].weights) == length
    assert {len(part.weights) for part in parts} == {min(side, length)}


def test_a_cosine_fades_and_a_discarded_border_does_not_count() -> None:
    cosine, discard = (cut_axis(24, 16, 8, border=border)[0].weights for border in BORDERS)
    assert cosine[:8].tolist() == [1] * 8
    assert (cosine[8:].diff() < 0).all()
    assert cosine[8:].sum().item() == pytest.approx(4)
    assert discard.tolist() == [1] * 12 + [0] * 4


def blur_locally(image: Tensor) -> Tensor:
    """A stand-in for a network that sees three pixels around; borders are zeros, as a network's."""
    kernel = torch.arange(49.0, dtype=image.dtype).view(1, 1, 7, 7) / 49
    return functional.conv2d(image[None, None], kernel, padding=3)[0, 0]


def restore_windows(image: Tensor, windows: Sequence[Window]) -> Tensor:
    return torch.stack(
        [
            blur_locally(image[top : top + height, left : left + width])
            for top, left, height, width in windows
        ]
    )


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("size", [(40, 53), (16, 70), (33, 17)])
def test_a_local_restoration_in_tiles_is_that_of_the_whole(
    border: Border, size: tuple[int, int]
) -> None:
    image = torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    whole = blur_locally(image)
    tiling = Tiling(side=24, overlap=8, border=border)
    restore = partial(restore_windows, image)
    tiled = restore_tiles(restore, torch.zeros_like(whole)[None], tiling)[0]
    if border == "discard":
        # Four of the eight pixels next to a border are thrown away, and three are wrong.
        torch.testing.assert_close(tiled, whole)
    inside = torch.ones_like(whole, dtype=torch.bool)
    for axis, length in enumerate(size):
        for part in cut_axis(length, 24, 8, border=border):
            for edge in (part.start, part.start + len(part.weights)):
                near = torch.arange(length).sub(edge).abs() <= 3
                near &= 0 < edge < length
                inside &= ~(near[:, None] if axis == 0 else near[None, :])
    assert inside.any()
    torch.testing.assert_close(tiled[inside], whole[inside])


def test_without_an_overlap_seams_show() -> None:
    """So the test above can tell."""
    image = torch.rand(48, 48, dtype=torch.float64)
    whole = blur_locally(image)
    tiled = restore_tiles(
        partial(restore_windows, image),
        torch.zeros_like(whole)[None],
        Tiling(side=24, overlap=0, border="discard"),
    )
    assert (tiled[0] - whole).abs().max() > 0.1


@given(
    height=st.integers(1, 60),
    width=st.integers(1, 60),
    at_once=st.integers(1, 12),
    border=st.sampled_from(BORDERS),
)
def test_several_tiles_at_once_give_what_single_ones_give(
    height: int, width: int, at_once: int, border: Border
) -> None:
    """To the bit, two samples a batch; all calls are equal in size, and no more than needed."""
    frames = torch.rand(2, height, width, generator=torch.Generator().manual_seed(0))
    tiling = Tiling(side=16, overlap=4, border=border)
    calls: list[torch.Size] = []

    def restore(windows: Sequence[Window]) -> Tensor:
        parts = [frames[:, w.top : w.top + w.height, w.left : w.left + w.width] for w in windows]
        calls.append(torch.cat(parts).shape)
        return torch.cat(parts) * 3

    single = restore_tiles(restore, torch.zeros_like(frames), tiling)
    tiles, calls = len(calls), []
    assert torch.equal(
        restore_tiles(restore, torch.zeros_like(frames), tiling, at_once=at_once), single
    )
    torch.testing.assert_close(single, frames * 3)
    assert len(set(calls)) == 1
    assert calls[0][0] <= 2 * at_once
    assert len(calls) == -(-tiles // at_once)
    assert len(calls) * calls[0][0] // 2 < tiles + len(calls)


@pytest.mark.parametrize(
    ("budget", "most", "chosen", "tried"),
    [(25, 4, 3, 4), (26, 4, 3, 4), (99, 4, 4, 4), (99, 9, 6, 7)],
)
def test_as_many_tiles_at_once_as_keep_a_budget(
    budget: int, most: int, chosen: int, tried: int
) -> None:
    asked: list[tuple[int, int]] = []

    def measure(side: int, count: int) -> int | None:
        asked.append((side, count))
        return None if count > 6 else 10 + 5 * count

    choice = choose_count(measure, side=64, budget_bytes=budget, most=most)
    assert (choice.side, choice.at_once, choice.peak_bytes) == (64, chosen, 10 + 5 * chosen)
    assert asked == [(64, count) for count in range(1, tried + 1)]


@pytest.mark.parametrize(("peak", "words"), [(2**21, "2.00 MiB"), (None, "more than there is")])
def test_a_budget_that_not_even_one_tile_keeps_is_refused(peak: int | None, words: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"64x64 takes {words}, .* is 1.00 MiB; .* lower eval\.tile"
    ):
        choose_count(lambda *_: peak, side=64, budget_bytes=2**20, most=4)


def memory_of(side: int) -> int:
    return 1000 + 7 * side * side


def test_the_largest_side_that_keeps_the_budget_is_found() -> None:
    asked: list[int] = []

    def measure(side: int) -> int:
        asked.append(side)
        return memory_of(side)

    choice = choose_side(measure, budget_bytes=memory_of(300), largest=1280, multiple=8)
    assert choice.side % 8 == 0
    assert memory_of(choice.side) <= memory_of(300)
    assert memory_of(choice.side + 16) > 0.9 * memory_of(300)
    assert choice.peak_bytes == memory_of(choice.side)
    assert asked == [64, 128, choice.side]


def test_a_side_larger_than_the_frames_is_of_no_use() -> None:
    choice = choose_side(memory_of, budget_bytes=10**12, largest=300, multiple=8)
    assert choice.side == 304


def test_a_side_that_takes_more_than_foreseen_is_made_smaller() -> None:
    def measure(side: int) -> int | None:
        return None if side > 200 else memory_of(side)

    choice = choose_side(measure, budget_bytes=10**9, largest=1000, multiple=8)
    assert 128 < choice.side <= 200


def test_a_budget_between_the_two_small_tiles_takes_the_smaller() -> None:
    choice = choose_side(memory_of, budget_bytes=memory_of(100), largest=1000, multiple=8)
    assert choice.side == 64


@pytest.mark.parametrize("measured", [10**6, None])
def test_a_budget_for_nothing_is_refused(measured: int | None) -> None:
    with pytest.raises(ConfigError, match=r"a tile of 64x64 takes .*; raise it, or lower"):
        choose_side(lambda side: measured, budget_bytes=10**5, largest=1000, multiple=8)
