import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pitstop.kernels.deform_conv import FORMULAS, align_reference, deform_conv_reference
from pitstop.kernels.flow_warp import FORMULAS as WARP_FORMULAS
from pitstop.kernels.flow_warp import bilinear_reference, join_reference
from pitstop.kernels.pairs import in_rows, neighbour_pairs, pixel_stride
from tests.interpreted import (
    assert_cases_hold_under_the_interpreter,
    needs_triton,
    said_by_the_compiler,
)

torch.set_num_threads(1)

HERE = Path(__file__).parent
CPU = torch.device("cpu")
SHARED_BYTES = 99 * 1024
"""What the smallest of the devices lets a program have on the chip."""


@pytest.mark.slow
@needs_triton
def test_kernels_of_alignment_keep_their_claims_under_the_interpreter() -> None:
    assert_cases_hold_under_the_interpreter(HERE / "alignment_cases.py")


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", [86, 89, 90, 120])
def test_the_compiler_takes_the_kernels_for_devices_that_are_not_here(capability: int) -> None:
    said = said_by_the_compiler(HERE / "alignment_compiled.py", str(capability))
    assert said.count("compiled") == 18
    products = [int(number) for number in re.findall(r"_convolve.*, (\d+) products", said)]
    assert len(products) == 8
    assert all(products)
    assert all(int(number) <= SHARED_BYTES for number in re.findall(r"(\d+) bytes shared", said))


def test_pairs_are_neighbours_forth_and_then_back() -> None:
    pairs = neighbour_pairs(2, 3, CPU)
    assert pairs.current.tolist() == [0, 1, 3, 4, 2, 1, 5, 4]
    assert pairs.neighbours.tolist() == [1, 2, 4, 5, 1, 0, 4, 3]
    assert pairs.slots.tolist() == [0, 2, 6, 8, 5, 3, 11, 9]
    assert pairs.lacks.tolist() == [2, 0, 1, 2, 0, 1]
    assert neighbour_pairs(1, 1, CPU).current.numel() == 0


def test_pairs_made_in_an_evaluation_serve_a_training() -> None:
    neighbour_pairs.cache_clear()
    with torch.inference_mode():
        pairs = neighbour_pairs(1, 2, CPU)
    assert not pairs.current.is_inference()


@pytest.mark.parametrize("width", [1, 5])
def test_rows_follow_one_another_as_they_are_or_copied(width: int) -> None:
    images = torch.randn(2, 3, 4, width)
    for same in (images, images.to(memory_format=torch.channels_last)):
        assert in_rows(same) is same
    cut = torch.randn(2, 3, 8, width)[:, :, ::2]
    rows = in_rows(cut)
    assert torch.equal(rows, cut)
    flat = torch.as_strided(rows, (4 * width,), (pixel_stride(rows),))
    assert torch.equal(flat, cut[0, 0].flatten())


def test_joining_lays_both_images_and_the_flow_side_by_side() -> None:
    images, flow = torch.randn(3, 2, 4, 5), torch.randn(4, 2, 4, 5)
    pairs = neighbour_pairs(1, 3, CPU)
    warped = bilinear_reference(images[[1, 2, 1, 0]], flow)
    current = images[[0, 1, 2, 1]]
    out = join_reference(images, flow, pairs, first="warped")
    assert torch.equal(out, torch.cat((warped, current, flow, torch.zeros_like(flow)), dim=1))
    swapped = join_reference(images, flow, pairs, first="current", dtype=torch.bfloat16)
    assert torch.equal(swapped[:, :2], current.bfloat16())


def test_aligning_convolves_each_neighbour_at_guided_places() -> None:
    draw = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    frames, raw, flow = some(2, 4, 3, 5), some(2, 27 * 2, 3, 5), some(2, 2, 3, 5)
    weight, bias, raw_bias = some(4, 4, 3, 3), some(4), some(54)
    out = align_reference(
        frames,
        raw,
        flow,
        weight,
        bias=bias,
        raw_bias=raw_bias,
        pairs=neighbour_pairs(1, 2, CPU),
        max_residue=3.0,
    )
    learned = (raw + raw_bias[:, None, None]).view(2, 9, 3, 2, 3, 5)
    offset = torch.empty(2, 2, 9, 2, 3, 5, dtype=torch.float64)
    for axis in range(2):
        steps = 3 * torch.tanh(learned[:, :, axis]) + flow[:, None, None, 1 - axis]
        offset[:, :, :, axis] = steps.transpose(1, 2)
    mask = torch.sigmoid(learned[:, :, 2]).transpose(1, 2).flatten(1, 2)
    places = offset.flatten(1, 3)
    aligned = deform_conv_reference(frames.flip(0), places, mask, weight, bias=bias)
    after, before = torch.zeros_like(frames), torch.zeros_like(frames)
    after[0], before[1] = aligned
    want = torch.cat((frames, after, before), dim=1).permute(0, 2, 3, 1)
    torch.testing.assert_close(out, want)


def test_formulas_count_what_is_read_and_written_once() -> None:
    sizes = {"pixels": 60, "in_channels": 8, "out_channels": 4, "taps": 9}
    moved = sizes | {"deform_groups": 2, "itemsize": 2}
    forward, backward = FORMULAS["deform_conv"], FORMULAS["deform_conv_backward"]
    assert forward.num_bytes(**moved) == 2 * 60 * (8 + 54 + 4)
    assert backward.num_bytes(**moved) == 2 * 60 * (2 * 8 + 2 * 54 + 4)
    product = 2 * 60 * 8 * 4 * 9
    assert backward.flops(**sizes, groups=1) == 2 * product + 25 * 60 * 8 * 9
    shape = {"pairs": 10, "images": 6, "channels": 96, "height": 4, "width": 5}
    joined = WARP_FORMULAS["join"]
    assert joined.num_bytes(**shape, itemsize=2) == 20 * (2 * (6 * 96 + 10 * 200) + 10 * 8)
    del shape["images"]
    assert joined.flops(**shape) == 8 * 10 * 96 * 20
