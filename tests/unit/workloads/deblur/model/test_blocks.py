import math

import pytest
import torch

from pitstop.kernels.window_attention import Size, Windows, shift_regions
from pitstop.workloads.deblur.model.blocks import (
    AttentionBlock,
    BlockGroup,
    BlockShape,
    BranchScales,
    draw_scales,
    fit_windows,
    relative_position_index,
    sine_encoding,
)

CPU = torch.device("cpu")


def shape(*, window: Size = (2, 4, 4), mutual: bool = True) -> BlockShape:
    return BlockShape(
        dim=8,
        num_heads=2,
        window=window,
        mutual=mutual,
        mlp_ratio=2.0,
        qkv_bias=True,
        kernels="reference",
    )


@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("shifted", [True, False])
def test_a_block_compiles_without_a_graph_break(mutual: bool, shifted: bool) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    block = AttentionBlock(shape(mutual=mutual))
    windows = Windows((2, 4, 4), (1, 2, 2) if shifted else (0, 0, 0))
    regions = shift_regions((6, 8, 8), windows, device=CPU) if shifted else None
    x = torch.randn(2, 5, 8, 7, 8, requires_grad=True)
    scales = BranchScales(attention=torch.rand(2, 1, 1, 1, 1), feed_forward=True)
    compiled = torch.compile(block, fullgraph=True, backend="eager")
    torch.testing.assert_close(
        compiled(x, windows, regions, scales), block(x, windows, regions, scales)
    )


def test_both_parts_and_the_residuals_make_up_a_block() -> None:
    block, x = AttentionBlock(shape()), torch.randn(1, 2, 8, 8, 8)
    windows = Windows((2, 4, 4), (0, 0, 0))
    middle = x + block.attn(block.norm1(x), windows, None)
    whole = middle + block.mlp(block.norm2(middle))
    torch.testing.assert_close(block(x, windows, None), whole)


def test_a_left_branch_passes_its_input_on_and_gives_its_parameters_zero_gradients() -> None:
    block, x = AttentionBlock(shape()), torch.randn(1, 2, 4, 4, 8, requires_grad=True)
    windows = Windows((2, 4, 4), (0, 0, 0))
    out = block(x, windows, None, BranchScales(attention=False, feed_forward=False))
    assert torch.equal(out, x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize("batch", [1, 3])
def test_branches_are_left_as_often_as_their_rate_and_scaled_to_keep_the_mean(batch: int) -> None:
    torch.manual_seed(0)
    x = torch.empty(batch, 1, 1, 1, 1)
    total, left, draws = 0.0, 0, 3000
    for _ in range(draws):
        [first, second] = draw_scales((0.0, 0.25), x)
        assert first == BranchScales(attention=True, feed_forward=True)
        scale = second.attention
        scale = torch.zeros(batch) if scale is False else torch.as_tensor(scale).flatten()
        assert set(scale.tolist()) <= {0.0, torch.tensor(1 / 0.75).item()}
        total += scale.mean().item()
        left += int((scale == 0).sum())
    assert total / draws == pytest.approx(1, abs=0.05)
    assert left / (draws * batch) == pytest.approx(0.25, abs=0.03)


def test_a_single_sample_is_dropped_without_being_computed() -> None:
    torch.manual_seed(0)
    drawn = [draw_scales((0.5,), torch.empty(1, 1, 1, 1, 1))[0].feed_forward for _ in range(20)]
    assert any(scale is False for scale in drawn)
    assert any(isinstance(scale, torch.Tensor) for scale in drawn)


def test_a_group_drops_branches_in_training_only() -> None:
    torch.manual_seed(0)
    group, x = BlockGroup(shape(), drop_rates=(0.9, 0.9)), torch.randn(1, 2, 8, 8, 8)
    with torch.no_grad():
        assert torch.equal(group.eval()(x), group(x))
        outs = [group.train()(x) for _ in range(8)]
    assert any(torch.equal(out, x) for out in outs)


def test_every_second_block_of_a_group_is_shifted() -> None:
    group = BlockGroup(shape(), drop_rates=(0.0,) * 3)
    cuts: list[tuple[Windows, bool]] = []

    def note(_: torch.nn.Module, args: tuple[torch.Tensor, Windows, torch.Tensor | None]) -> None:
        cuts.append((args[1], args[2] is None))

    for block in group.blocks:
        block.register_forward_pre_hook(note)
    group(torch.randn(1, 4, 8, 8, 8))
    still, moved = Windows((2, 4, 4), (0, 0, 0)), Windows((2, 4, 4), (1, 2, 2))
    assert cuts == [(still, True), (moved, False), (still, True)]


def test_region_labels_are_made_once_a_shape_and_forgotten_after_many() -> None:
    group, seen = BlockGroup(shape(mutual=False), drop_rates=(0.0, 0.0)), []
    group.blocks[1].register_forward_pre_hook(lambda _, args: seen.append(args[2]))
    with torch.no_grad():
        for _ in range(2):
            group(torch.randn(1, 4, 8, 8, 8))
        assert seen[0] is seen[1]
        for height in range(8, 8 + 4 * 2 * BlockGroup.MAX_CACHED_SHAPES, 4):
            group(torch.randn(1, 2, height, 8, 8))
    assert len(group._regions) <= BlockGroup.MAX_CACHED_SHAPES  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("volume", "mutual", "expected"),
    [
        ((5, 9, 9), True, Windows((2, 4, 4), (1, 2, 2))),
        ((2, 4, 9), True, Windows((2, 4, 4), (0, 0, 2))),
        ((1, 3, 2), False, Windows((1, 3, 2), (0, 0, 0))),
        ((1, 3, 2), True, Windows((2, 3, 2), (0, 0, 0))),
    ],
)
def test_windows_shrink_to_the_volume_and_stand_still_there(
    volume: Size, mutual: bool, expected: Windows
) -> None:
    assert fit_windows(volume, shape(mutual=mutual)) == expected


def test_the_relative_index_counts_steps_between_tokens() -> None:
    window = (2, 3, 2)
    index = relative_position_index(window)
    tokens = [(d, h, w) for d in range(2) for h in range(3) for w in range(2)]
    for i, a in enumerate(tokens):
        for j, b in enumerate(tokens):
            step = (a[0] - b[0] + 1) * 5 * 3 + (a[1] - b[1] + 2) * 3 + (a[2] - b[2] + 1)
            assert index[i, j] == step
    assert index.dtype == torch.int64


def test_the_sine_encoding_has_rows_first_then_columns() -> None:
    encoding = sine_encoding(8, 8, 12)
    assert encoding.shape == (1, 64, 12)
    for y, x, k in ((0, 0, 0), (3, 5, 3), (7, 2, 5), (2, 7, 8), (7, 7, 11)):
        place = y if k < 6 else x
        angle = (place + 1) / (8 + 1e-6) * 2 * math.pi / 10000 ** (2 * (k % 6 // 2) / 6)
        wanted = math.sin(angle) if k % 2 == 0 else math.cos(angle)
        assert encoding[0, 8 * y + x, k].item() == pytest.approx(wanted, abs=1e-6)
