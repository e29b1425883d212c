from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pitstop.errors import ConfigError
from pitstop.kernels.block import FORMULAS, REFERENCE, Layer, Norm, dispatch, fits, stacked
from tests.interpreted import (
    assert_cases_hold_under_the_interpreter,
    needs_triton,
    said_by_the_compiler,
)

torch.set_num_threads(1)

HERE = Path(__file__).parent
SHARED_BYTES = 99 * 1024
"""What a program may have on all GPUs from sm_86 on."""
HOPPER_SHARED_BYTES = 227 * 1024


@pytest.mark.slow
@needs_triton
def test_the_fused_half_keeps_its_claims_under_the_interpreter() -> None:
    assert_cases_hold_under_the_interpreter(HERE / "block_cases.py")


@pytest.mark.slow
@needs_triton
def test_all_kernels_compile_for_gpus_that_are_not_here() -> None:
    said = said_by_the_compiler(HERE / "block_compiled.py")
    lines = said.splitlines()
    assert len(lines) == 3 * 35
    for line in lines:
        limit = HOPPER_SHARED_BYTES if "sm_90" in line else SHARED_BYTES
        assert int(line.split()[-1]) <= limit, line


def test_the_stream_is_projected_twice_and_handed_on() -> None:
    x, norm = torch.randn(1, 1, 2, 3, 8), Norm(torch.randn(8), torch.randn(8), 1e-5)
    layers = [Layer(torch.randn(5, 8), torch.randn(5)), Layer(torch.randn(5, 8), None)]
    through, first, second = dispatch("auto").norm_project(x, norm, layers)
    normed = functional.layer_norm(x, (8,), norm.weight, norm.bias)
    assert torch.equal(through, x)
    torch.testing.assert_close(first, functional.linear(normed, *layers[0][:2]))
    torch.testing.assert_close(second, normed @ layers[1].weight.T)


def test_branches_are_scaled_and_added() -> None:
    x, norm = torch.randn(2, 3, 8), Norm(torch.ones(8), torch.zeros(8), 1e-5)
    scale = torch.tensor([0.0, 2.0]).view(2, 1, 1)
    layer = Layer(torch.randn(8, 5), torch.randn(8))
    branch = torch.randn(2, 3, 5)
    got = dispatch("auto").project_add(x, branch, layer, scale)
    torch.testing.assert_close(got, x + scale * functional.linear(branch, layer.weight, layer.bias))
    layers = [Layer(torch.randn(6, 8), torch.randn(6)) for _ in range(2)]
    layers.append(Layer(torch.randn(8, 6), torch.randn(8)))
    got = dispatch("auto").feed_forward_add(x, norm, layers, scale)
    normed = functional.layer_norm(x, (8,))
    gate, value = (functional.linear(normed, *one[:2]) for one in layers[:2])
    want = functional.linear(functional.gelu(gate) * value, *layers[2][:2])
    torch.testing.assert_close(got, x + scale * want)


def test_a_word_that_names_no_version_is_refused() -> None:
    assert dispatch("reference") is REFERENCE
    with pytest.raises(ConfigError, match="auto, reference, fused"):
        dispatch("fast")  # pyright: ignore[reportArgumentType]


def test_what_does_not_fit_is_said_once_and_run_plainly() -> None:
    x, layer = torch.randn(2, 8), Layer(torch.randn(8, 8), None)
    assert not fits("auto", x, layer)
    with pytest.warns(RuntimeWarning, match="on cpu, not on a CUDA device"):
        assert not fits("fused", x, layer)
    assert not fits("reference", x, layer)


def test_matrices_that_follow_each_other_are_stacked_without_a_copy() -> None:
    joint = torch.randn(5 * 4 + 3 * 4 + 4)
    upper, lower = joint[:20].view(5, 4), joint[20:32].view(3, 4)
    whole = stacked(upper, lower)
    assert whole.data_ptr() == joint.data_ptr()
    assert torch.equal(whole, torch.cat((upper, lower)))


@pytest.mark.parametrize(
    "lower",
    [
        lambda joint: joint[21:33].view(3, 4),
        lambda joint: joint[20:32].view(4, 3).T,
        lambda joint: joint[20:32].clone().view(3, 4),
        lambda joint: joint[:12].view(3, 4),
    ],
    ids=["behind a gap", "turned", "elsewhere", "before"],
)
def test_other_matrices_are_copied_into_one(lower: Callable[[Tensor], Tensor]) -> None:
    joint = torch.randn(36)
    upper, below = joint[:20].view(5, 4), lower(joint)
    whole = stacked(upper, below)
    assert whole.data_ptr() != joint.data_ptr()
    assert torch.equal(whole, torch.cat((upper, below)))


def test_formulas_count_what_is_read_and_written_once() -> None:
    sizes = {"tokens": 20, "channels": 96}
    stream = torch.empty(20, 96, device="meta")
    qkv = torch.empty(20, 288, dtype=torch.bfloat16, device="meta")
    forward, backward = FORMULAS["norm_project"], FORMULAS["norm_project_backward"]
    assert forward.num_bytes(**sizes, itemsize=2) == stream.nbytes + qkv.nbytes
    assert backward.num_bytes(**sizes, itemsize=2) == 3 * stream.nbytes + qkv.nbytes
    assert backward.flops(**sizes) == 2 * forward.flops(**sizes) == 4 * 20 * 96 * 288
