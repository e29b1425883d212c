import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_vrt import clip, random_vrt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pitstop.errors import ConfigError
from pitstop.kernels.pairs import neighbour_pairs
from pitstop.workloads.deblur.model.blocks import BlockGroup
from pitstop.workloads.deblur.model.vrt import (
    VRT,
    VRT_GOPRO,
    VRT_SMALL,
    Enlarge,
    VRTSettings,
    load_checkpoint,
)

TINY: VRTSettings = VRT_SMALL | {
    "depths": (2,) * 8,
    "embed_dims": (8,) * 8,
    "num_heads": (2,) * 8,
    "indep_reconsts": (),
    "drop_path_rate": 0.0,
    "flow_channels": (4, 4, 4, 4),
}


@pytest.mark.slow
def test_gradients_agree_with_finite_differences() -> None:
    model = random_vrt(TINY | {"pa_frames": 4}).double()
    x = clip(1, 3, 8, 16).double()
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)

    def objective() -> Tensor:
        return (model(x) * weights).sum()

    objective().backward()
    step = 1e-6
    picker = torch.Generator().manual_seed(3)
    chosen = list(model.named_parameters())[::13]
    for name, parameter in chosen:
        assert parameter.grad is not None, name
        place = int(torch.randint(parameter.numel(), (1,), generator=picker))
        values = parameter.detach().view(-1)
        kept, ends = values[place].item(), []
        for end in (kept + step, kept - step):
            values[place] = end
            with torch.no_grad():
                ends.append(objective().item())
        values[place] = kept
        slope = (ends[0] - ends[1]) / (2 * step)
        gradient = parameter.grad.view(-1)[place].item()
        assert gradient == pytest.approx(slope, rel=1e-4, abs=1e-6), name


def test_sizes_that_are_no_multiple_of_eight_are_continued_and_cut_back() -> None:
    model, x = random_vrt(TINY), clip(1, 2, 13, 18)
    padded = functional.pad(x[0], (0, 6, 0, 3), mode="replicate")[None]
    with torch.no_grad():
        assert torch.equal(model(x), model(padded)[..., :13, :18])


def test_flows_come_at_four_scales_and_know_their_direction() -> None:
    model, x = random_vrt(TINY), clip(1, 3, 16, 16)
    with torch.no_grad():
        flows = model.named_parts()["spynet"](x[0], neighbour_pairs(1, 3, x.device))
        first = model.named_parts()["spynet"](x[0, :2], neighbour_pairs(1, 2, x.device))
    assert [flow.shape for flow in flows] == [(4, 2, 16 // s, 16 // s) for s in (1, 2, 4, 8)]
    # From frame 0 to 1 and 1 to 2, then back from 2 to 1 and 1 to 0.
    torch.testing.assert_close(flows[0][[0, 3]], first[0])
    assert not torch.equal(flows[0][0], flows[0][3])


@pytest.mark.slow
def test_nothing_in_a_pass_reads_a_value_back_from_the_device() -> None:
    # Tensors on the meta device have no values: reading one raises.
    for mode, batch in itertools.product((True, False), (1, 2)):
        model = VRT(**(VRT_SMALL | {"pa_frames": 4})).to("meta").train(mode)
        x = torch.empty(batch, 5, 3, 32, 40, device="meta")
        assert model(x).shape == x.shape


def test_named_parts_are_each_called_once_a_pass() -> None:
    model = random_vrt(TINY)
    calls: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: calls.append(name)

    for name, part in model.named_parts().items():
        part.register_forward_hook(note(name))
    model(clip(1, 2, 8, 8))
    stages = [f"stage{k}" for k in range(1, 8)]
    assert sorted(calls) == sorted(
        ["spynet", "stage8", *stages, *(f"{s}.alignment" for s in stages)]
    )


@pytest.mark.parametrize("part", ["attention", "feed_forward", "alignment", "stage"])
def test_recomputing_a_part_saves_bytes_and_changes_no_gradient(part: str) -> None:
    plain, saved_plain = gradients(random_vrt(TINY), part=None)
    again, saved_again = gradients(random_vrt(TINY), part=part)
    assert saved_again < saved_plain
    for name, gradient in plain.items():
        assert torch.equal(gradient, again[name]), name


def recompute(model: nn.Module, call: Callable[..., Tensor], *, parts: list[str]) -> None:
    """Put a call into the places that a model offers for it."""
    places = [
        (module, f"recompute_{part}")
        for module in model.modules()
        for part in parts
        if hasattr(module, f"recompute_{part}")
    ]
    assert places
    for module, place in places:
        setattr(module, place, call)


def gradients(model: VRT, *, part: str | None) -> tuple[dict[str, Tensor], int]:
    """Gradients of every parameter, and the bytes kept for the backward pass."""

    def keep_inputs_only(fn: Callable[..., Tensor], *args: Any) -> Tensor:
        return checkpoint(fn, *args, use_reentrant=False)

    if part is not None:
        recompute(model, keep_inputs_only, parts=[part])
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(clip(1, 3, 16, 16))
    saved_bytes = sum(kept.values())
    out.square().sum().backward()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(named) == len(list(model.parameters()))
    return named, saved_bytes


def test_recompute_reaches_only_the_stages_that_are_named() -> None:
    model, calls = random_vrt(TINY), []

    def note(fn: Callable[..., Tensor], *args: Any) -> Tensor:
        calls.append(fn)
        return fn(*args)

    for name in ("stage2", "stage8"):
        recompute(model.named_parts()[name], note, parts=["stage", "feed_forward"])
    with torch.no_grad():
        model(clip(1, 2, 8, 8))
    stages = [call for call in calls if isinstance(call, nn.Module)]
    assert stages == [model.named_parts()["stage2"], model.named_parts()["stage8"]]
    assert len(calls) == 2 + 2 + 2


def test_fusing_replaces_what_stages_one_to_four_hand_on() -> None:
    model, x, seen = random_vrt(TINY), clip(1, 2, 16, 16), []

    def fuse(number: int, features: Tensor) -> Tensor:
        seen.append((number, tuple(features.shape)))
        return features

    with torch.no_grad():
        plain = model(x)
        assert torch.equal(model(x, fuse), plain)
        assert not torch.allclose(model(x, lambda _, features: features * 2), plain)
    sizes = {1: 16, 2: 8, 3: 4, 4: 2}
    assert seen == [(k, (1, 2, size, size, 8)) for k, size in sizes.items()]


def test_further_input_channels_are_seen_and_only_colours_come_out() -> None:
    model = random_vrt(TINY | {"in_chans": 5})
    x = torch.cat((clip(1, 2, 8, 8), torch.rand(1, 2, 2, 8, 8)), dim=2)
    other = torch.cat((x[:, :, :3], torch.rand(1, 2, 2, 8, 8)), dim=2)
    with torch.no_grad():
        assert model(x).shape == (1, 2, 3, 8, 8)
        assert not torch.allclose(model(x), model(other))


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"params": state}])
def test_a_checkpoint_loads_bare_or_under_params(
    tmp_path: Path, wrap: Callable[[dict[str, Tensor]], dict[str, Any]]
) -> None:
    source, target = random_vrt(TINY), VRT(**TINY)
    torch.save(wrap(source.state_dict()), tmp_path / "weights.pth")
    load_checkpoint(target, tmp_path / "weights.pth")
    wanted = source.state_dict()
    for name, value in target.state_dict().items():
        assert torch.equal(value, wanted[name]), name


def test_a_checkpoint_that_lacks_an_entry_is_refused_by_its_name(tmp_path: Path) -> None:
    state = VRT(**TINY).state_dict()
    del state["spynet.mean"]
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ConfigError, match=r"(?s)does not fit the model.*spynet\.mean"):
        load_checkpoint(VRT(**TINY), tmp_path / "weights.pth")


class Stranger:
    """Something a checkpoint has no business holding."""


@pytest.mark.parametrize("content", [Stranger(), [1, 2]])
def test_a_file_that_is_no_dictionary_of_tensors_is_refused(
    tmp_path: Path, content: object
) -> None:
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(ConfigError, match=r"weights\.pth holds"):
        load_checkpoint(VRT(**TINY), tmp_path / "weights.pth")


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint at .*none\.pth"):
        load_checkpoint(VRT(**TINY), tmp_path / "none.pth")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"upscale": 3}, "upscale is 3; choose 1 or 4"),
        ({"pa_frames": 3}, "choose 0, 2, 4 or 6"),
        ({"depths": (8, 8, 8, 8, 4, 4, 4)}, "depths has 7 entries"),
        ({"embed_dims": (10,) * 8}, "needs a multiple of 4"),
        ({"embed_dims": (8,) * 6 + (12,) + (8,)}, "must agree"),
        ({"indep_reconsts": (11,)}, "names place 11"),
        ({"in_chans": 1}, "at least 3"),
        ({"drop_path_rate": 1.0}, "drop_path_rate is 1.0"),
        ({"mul_attn_ratio": 2.0}, "mul_attn_ratio is 2.0"),
        ({"window_size": (8, 8)}, "depth, height and width"),
        ({"flow_channels": (8,)}, "four widths"),
        ({"num_heads": (3,) * 8}, "no multiple of its 3 heads"),
        ({"pa_frames": 6}, "no multiple of 3 neighbours"),
        ({"deformable_groups": 16}, "do not divide into 16"),
        ({"pa_frames": 4, "deformable_groups": 1}, "do not share out"),
        ({"windw": 3}, "windw"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: VRTSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VRT(**(TINY | changes))


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"upscale is 2.*pa_frames is 5"):
        VRT(**(VRT_GOPRO | {"upscale": 2, "pa_frames": 5}))


def test_kernels_that_do_not_exist_are_refused_when_the_model_is_built() -> None:
    with pytest.raises(ConfigError, match="choose one of auto, reference, fused"):
        VRT(kernels="fastest", **TINY)  # type: ignore[arg-type]


def test_drop_rates_rise_evenly_and_both_groups_of_a_stage_start_at_its_first() -> None:
    line = torch.linspace(0, 0.2, 72).tolist()
    model = VRT(**VRT_GOPRO)
    rates = {
        name: module.drop_rates
        for name, module in model.named_modules()
        if isinstance(module, BlockGroup)
    }
    assert rates["stage1.residual_group1"] == pytest.approx(line[:6])
    assert rates["stage1.residual_group2"] == pytest.approx(line[:2])
    assert rates["stage7.residual_group1"] == pytest.approx(line[48:54])
    assert rates["stage7.residual_group2"] == pytest.approx(line[48:50])
    assert rates["stage8.1.residual_group"] == pytest.approx(line[56:60])
    assert rates["stage8.4.residual_group"] == pytest.approx(line[68:])


def test_an_enlarging_network_has_the_published_names_and_begins_from_its_input() -> None:
    torch.manual_seed(0)
    network = VRT(**(TINY | {"upscale": 4}))
    head = {
        name: tuple(value.shape)
        for name, value in network.state_dict().items()
        if name.startswith(("conv_before_upsample", "upsample", "conv_last"))
        and name.endswith("weight")
    }
    dim = network.architecture.embed_dims[0]
    assert head == {
        "conv_before_upsample.0.weight": (64, dim, 1, 3, 3),
        "upsample.0.weight": (256, 64, 1, 3, 3),
        "upsample.5.weight": (256, 64, 1, 3, 3),
        "upsample.10.weight": (64, 64, 1, 3, 3),
        "conv_last.weight": (3, 64, 1, 3, 3),
    }
    small = torch.rand(1, 2, 3, 16, 20)
    assert network(small).shape == (1, 2, 3, 64, 80)
    network.start_from_input()
    larger = functional.interpolate(small[0], scale_factor=4.0, mode="bilinear")
    assert torch.equal(network(small)[0], larger)


def test_enlarging_puts_four_channels_into_the_four_pixels_of_a_square() -> None:
    torch.manual_seed(0)
    enlarge = Enlarge(2).double()
    x = torch.randn(1, 2, 2, 3, 3, dtype=torch.float64)
    for step in list(enlarge.children())[:2]:
        wide = step(x)
        shuffled = torch.zeros(1, 2, 2, 2 * wide.shape[-2], 2 * wide.shape[-1]).double()
        for channel, row, column in itertools.product(range(2), range(2), range(2)):
            shuffled[:, :, channel, row::2, column::2] = wide[:, :, 4 * channel + 2 * row + column]
        x = torch.where(shuffled > 0, shuffled, 0.1 * shuffled)
    expected = list(enlarge.children())[2](x)
    torch.manual_seed(0)
    enlarge = Enlarge(2).double()
    got = enlarge(torch.randn(1, 2, 2, 3, 3, dtype=torch.float64))
    assert got.shape == (1, 2, 2, 12, 12)
    assert torch.allclose(got, expected, rtol=0, atol=1e-12)
