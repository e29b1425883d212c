"""VRT with spikes against a second one written from its description, and what it promises."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_vrt import clip, relative_error
from spike_oracle import SpikeOracle
from torch import Tensor, nn

from pitstop.errors import ConfigError
from pitstop.train.model.recompute import apply_recompute
from pitstop.workloads.deblur.model.spike_branch import (
    AttentionShape,
    PixelAttention,
    ResidualConv,
    SpikeEncoder,
    SpikeShape,
    TemporalFusion,
    TemporalSelfAttention,
    by_squares,
)
from pitstop.workloads.deblur.model.vrt import VRT, VRT_GOPRO, VRT_SMALL, VRTSettings
from pitstop.workloads.deblur.model.vrt_spike import VRTSpike, load_spike_checkpoint
from tests.saved_bytes import saved_bytes

TINY: VRTSettings = VRT_SMALL | {
    "embed_dims": (8,) * 8,
    "num_heads": (2,) * 8,
    "depths": (2, 1, 1, 1, 1, 1, 1, 1),
    "indep_reconsts": (),
    "window_size": (2, 4, 4),
    "deformable_groups": 2,
    "flow_channels": (4, 4, 4, 4),
    "drop_path_rate": 0.0,
}
SHAPE = SpikeShape(
    bins=3,
    channels=8,
    attention=AttentionShape(heads=2),
    fusion=AttentionShape(heads=4, mlp_ratio=3.0),
)


def spike_model(shape: SpikeShape = SHAPE, *, seed: int = 0) -> VRTSpike:
    """Every weight non-zero, as biases and offset convolutions do not begin."""
    torch.manual_seed(seed)
    model = VRTSpike(spike=shape, **TINY).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("conv_offset.6.weight"):
                parameter.copy_(0.02 * torch.randn_like(parameter))
            elif parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def voxels_of(x: Tensor, bins: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    shape = (*x.shape[:2], bins, *x.shape[-2:])
    return torch.randint(0, 4, shape, generator=generator).to(x.dtype)


@pytest.mark.parametrize("strides", [(1, 1, 1), (2, 1, 2)])
def test_the_network_equals_the_second_one(strides: tuple[int, int, int]) -> None:
    model = spike_model(replace(SHAPE, temporal_strides=strides))
    x = clip(1, 3, 16, 8)
    voxels = voxels_of(x)
    oracle = SpikeOracle(model.state_dict(), TINY)
    with torch.no_grad():
        wanted = oracle.restore(x, voxels, strides=strides, heads=2, fuse_heads=4)
        assert relative_error(model(x, voxels), wanted, x) <= 1e-4
        assert relative_error(model(x, voxels.flip(1)), wanted, x) > 1e-3


@pytest.mark.slow
def test_the_guides_network_has_the_parameters_it_is_known_by() -> None:
    guide: VRTSettings = VRT_GOPRO | {
        "depths": (8,) * 7 + (4,) * 6,
        "embed_dims": (96,) * 13,
        "num_heads": (6,) * 13,
        "indep_reconsts": (11, 12),
        "window_size": (5, 8, 8),
    }
    with torch.device("meta"):
        model = VRTSpike(**guide)
    counts = {
        name: sum(parameter.numel() for parameter in child.parameters())
        for name, child in model.named_children()
    }
    assert counts["spike_encoder"] == 4_812_672
    assert counts["spike_temporal_sa"] == 299_136
    assert counts["cross_attn_fuse"] == 299_904
    assert sum(counts.values()) == 23_675_463


def test_without_spikes_it_is_vrt_with_the_same_weights() -> None:
    torch.manual_seed(0)
    plain = VRT(**TINY).eval()
    torch.manual_seed(0)
    without = VRTSpike(use_spike=False, **TINY).eval()
    assert list(without.state_dict()) == list(plain.state_dict())
    x = clip(1, 2, 16, 16)
    with torch.no_grad():
        assert torch.equal(without(x), plain(x))
    assert without.named_parts().keys() == plain.named_parts().keys()
    assert without.branch_blocks() == []


def test_early_fusion_is_vrt_on_more_channels() -> None:
    shape = replace(SHAPE, kind="early")
    torch.manual_seed(0)
    early = VRTSpike(spike=shape, **TINY).eval()
    torch.manual_seed(0)
    plain = VRT(**(TINY | {"in_chans": 6})).eval()
    assert list(early.state_dict()) == list(plain.state_dict())
    x = clip(1, 2, 16, 16)
    voxels = voxels_of(x)
    with torch.no_grad():
        out = early(x, voxels)
        assert out.shape == x.shape
        assert torch.equal(out, plain(torch.cat((x, voxels), dim=2)))
        assert not torch.equal(out, early(x, voxels.flip(1)))


def test_spikes_are_taken_where_and_only_where_they_are_used() -> None:
    x = clip(1, 2, 8, 8)
    with pytest.raises(AssertionError, match="where, they are used"):
        spike_model()(x)
    with pytest.raises(AssertionError, match="where, they are used"):
        VRTSpike(use_spike=False, **TINY)(x, voxels_of(x))


def test_frames_that_no_scale_divides_are_continued_and_cut_back() -> None:
    x = clip(1, 2, 13, 18)
    with torch.no_grad():
        assert spike_model()(x, voxels_of(x)).shape == x.shape


BLOCKS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "attention": lambda: (
        PixelAttention(4, AttentionShape(heads=2)),
        (torch.randn(1, 2, 1, 2, 4), torch.randn(1, 3, 1, 2, 4)),
    ),
    "over time": lambda: (
        TemporalSelfAttention(4, AttentionShape(heads=2, chunk=1)),
        (torch.randn(1, 2, 2, 1, 4),),
    ),
    "fusion": lambda: (
        TemporalFusion(4, AttentionShape(heads=2)),
        (torch.randn(1, 2, 1, 2, 4), torch.randn(1, 3, 1, 2, 4)),
    ),
    "residual": lambda: (ResidualConv(2), (torch.randn(1, 2, 2, 2, 2),)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    torch.manual_seed(3)
    module, inputs = BLOCKS[name]()
    module.double()
    inputs = tuple(each.double().requires_grad_() for each in inputs)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def call(*values: Tensor) -> Tensor:
        given, weights = values[: len(inputs)], values[len(inputs) :]
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), given)

    assert torch.autograd.gradcheck(call, (*inputs, *parameters))


def test_the_gradient_of_the_whole_network_is_that_of_a_small_step() -> None:
    model = spike_model().double()
    x = clip(1, 2, 8, 8).double()
    voxels = voxels_of(x)
    parameters = [p for name, p in model.named_parameters() if "spike" in name or "fuse" in name]
    generator = torch.Generator().manual_seed(1)
    ways = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]

    def loss() -> Tensor:
        return (model(x, voxels) - x).square().sum()

    grads = torch.autograd.grad(loss(), parameters)
    slope = sum((g * way).sum().item() for g, way in zip(grads, ways, strict=True))
    ends = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            for parameter, way in zip(parameters, ways, strict=True):
                parameter.add_(way, alpha=step)
            ends.append(loss().item())
            for parameter, way in zip(parameters, ways, strict=True):
                parameter.sub_(way, alpha=step)
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(slope, rel=1e-5)
    assert all(grad.any() for grad in grads)


@pytest.mark.parametrize("part", ["attention", "fusion"])
def test_chunks_change_how_much_is_worked_on_at_once_and_not_the_result(part: str) -> None:
    whole, cut = AttentionShape(heads=2), AttentionShape(heads=2, chunk=3)
    x, memory = torch.randn(2, 1, 2, 7, 5, 4, generator=torch.Generator().manual_seed(0))
    kind: Any = TemporalSelfAttention if part == "attention" else TemporalFusion
    inputs = (x,) if part == "attention" else (x, memory)
    torch.manual_seed(0)
    one = kind(4, whole)
    torch.manual_seed(0)
    pieces = kind(4, cut)
    seen: list[torch.Size] = []
    attention = pieces.get_submodule("attn" if part == "attention" else "attn.attn")
    attention.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[2:4]))
    torch.testing.assert_close(pieces(*inputs), one(*inputs))
    assert sorted(map(tuple, seen)) == sorted([(3, 3), (3, 2)] * 2 + [(1, 3), (1, 2)])


def test_squares_that_hold_everything_are_no_squares() -> None:
    calls: list[int] = []

    def count(x: Tensor) -> Tensor:
        calls.append(1)
        return x

    x = torch.zeros(1, 1, 4, 6, 1)
    by_squares(count, 6, x)
    by_squares(count, None, x)
    assert len(calls) == 2
    by_squares(count, 5, x)
    assert len(calls) == 4


def test_chunks_that_are_recomputed_keep_less() -> None:
    """What a chunk makes on its way is dropped; without recomputing nothing is saved by it."""
    torch.manual_seed(0)
    block = TemporalFusion(8, AttentionShape(heads=2, chunk=4))
    x, memory = torch.randn(2, 1, 2, 8, 8, 8)
    known = [*block.parameters(), x, memory]
    kept = saved_bytes(lambda: block(x, memory), ignoring=known)
    apply_recompute(block, "full")
    assert saved_bytes(lambda: block(x, memory), ignoring=known) < 0.6 * kept


@pytest.mark.parametrize("name", ["over time", "fusion", "residual", "encoder"])
def test_a_block_compiles_into_one_graph(name: str) -> None:
    if name == "encoder":
        module: nn.Module = SpikeEncoder(2, 4, temporal_strides=(1, 1, 1))
        inputs: tuple[Tensor, ...] = (torch.randn(1, 2, 2, 8, 8),)
    else:
        module, inputs = BLOCKS[name]()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*inputs), module(*inputs))


def test_dropout_acts_in_training_alone() -> None:
    torch.manual_seed(0)
    block = PixelAttention(4, AttentionShape(heads=2, dropout=0.5))
    x = torch.randn(1, 4, 2, 2, 4)
    block.eval()
    assert torch.equal(block(x, x), block(x, x))
    block.train()
    assert not torch.equal(block(x, x), block(x, x))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"channels": 12}, r"model\.spike\.channels is 12, but the stages .* have 8"),
        ({"attention": AttentionShape(heads=3)}, r"8, no multiple of the 3 heads of model\.spike"),
        ({"fusion": AttentionShape(heads=5)}, r"8, no multiple of the 5 heads of model\.fusion"),
        ({"temporal_strides": (1, 1)}, "needs as many temporal strides, not 2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VRTSpike(spike=replace(SHAPE, **shape), **TINY)


def test_weights_of_vrt_go_into_the_backbone_and_leave_the_branch(tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = VRT(**TINY)
    path = tmp_path / "vrt.pth"
    torch.save({"params": plain.state_dict()}, path)
    model = spike_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    [note] = load_spike_checkpoint(model, path)
    assert "has no spike branch" in note
    wanted = before | plain.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted[name]), name


def test_a_backbone_under_its_own_name_is_understood(tmp_path: Path) -> None:
    saved, model = spike_model(seed=1), spike_model(seed=2)
    branch = ("spike_", "cross_")
    names = {
        name if name.startswith(branch) else f"vrt.{name}": value
        for name, value in saved.state_dict().items()
    }
    torch.save(names, tmp_path / "whole.pth")
    assert load_spike_checkpoint(model, tmp_path / "whole.pth") == ()
    wanted = saved.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted[name]), name


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    state = spike_model().state_dict()
    del state["spike_encoder.in_proj.bias"]
    torch.save(state, tmp_path / "part.pth")
    with pytest.raises(ConfigError, match=r"(?s)does not fit the model.*in_proj\.bias"):
        load_spike_checkpoint(spike_model(), tmp_path / "part.pth")


def test_the_branch_has_names_of_its_own_in_a_timing() -> None:
    model = spike_model()
    parts = model.named_parts()
    assert {"spike_encoder", "temporal_attention", "fusion1", "fusion4", "stage8"} <= set(parts)
    called: list[str] = []
    for name, part in parts.items():
        part.register_forward_hook(lambda *_, name=name: called.append(name))
    x = clip(1, 2, 8, 8)
    with torch.no_grad():
        model(x, voxels_of(x))
    assert sorted(called) == sorted(parts)
    order = [name for name in called if name.startswith(("fusion", "stage")) and "." not in name]
    assert order[:4] == ["stage1", "fusion1", "stage2", "fusion2"]
