"""Weights by the names of Swin's authors, of mmsegmentation and of DiffBEV, put into ours."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.workloads.bev.model.lift_splat import LssNet, LssSettings
from pitstop.workloads.bev.model.published import load_published
from tests.unit.workloads.bev.model.test_lift_splat import SMALL_MONO, SMALL_SURROUND

torch.set_num_threads(1)

_OURS = "backbone.backbone."
_BODY = {"0": "conv1", "1": "bn1", "3": "conv2", "4": "bn2", "6": "conv3", "7": "bn3"}


def net(settings: LssSettings, seed: int) -> LssNet:
    torch.manual_seed(seed)
    model = LssNet(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def authors_names(model: LssNet) -> dict[str, Tensor]:
    """The backbone as its authors' code has it, with what a classifier has beside it."""
    own = model.backbone.state_dict()
    state: dict[str, Tensor] = {"head.weight": torch.zeros(10, 192), "head.bias": torch.zeros(10)}
    for name, value in own.items():
        short = name.removeprefix("backbone.swin.").replace("encoder.", "")
        if "q_proj" in short:
            parts = [own[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            state[short.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
        elif "k_proj" in short or "v_proj" in short:
            continue
        else:
            state[_renamed(short)] = value
    for stage in range(4):
        state[f"layers.{stage}.blocks.1.attn.relative_position_index"] = torch.zeros(16, 16)
        state[f"layers.{stage}.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    return state


def _renamed(name: str) -> str:
    for ours, theirs in (
        ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
        ("embeddings.norm", "patch_embed.norm"),
        ("layernorm_before", "norm1"),
        ("layernorm_after", "norm2"),
        ("attention.o_proj", "attn.proj"),
        ("attention.relative_position_bias.", "attn."),
        ("backbone.hidden_states_norms.stage4", "norm"),
    ):
        name = name.replace(ours, theirs)
    return name


def unfolded(value: Tensor) -> Tensor:
    """Reorder four pixels' channels as a convolution's unfolding has them."""
    pixels = value.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :]
    return pixels.transpose(-1, -2).flatten(-2)


def mmseg_names(model: LssNet) -> dict[str, Tensor]:
    state = {}
    for name, value in authors_names(model).items():
        if name.startswith("head"):
            continue
        named = name.replace("layers.", "stages.", 1).replace("attn.", "attn.w_msa.")
        named = named.replace("mlp.fc1", "ffn.layers.0.0").replace("mlp.fc2", "ffn.layers.1")
        named = named.replace("patch_embed.proj.", "patch_embed.projection.")
        named = "norm3" + named.removeprefix("norm") if named.startswith("norm.") else named
        state[f"backbone.{named}"] = unfolded(value) if "downsample" in named else value
    return state


def diffbev_names(model: LssNet) -> dict[str, Tensor]:
    state = mmseg_names(model)
    state["transformer.dx"] = torch.ones(3)
    state["transformer.frustum"] = torch.ones(2, 2, 2, 3)
    for name, value in model.depth_net.state_dict().items():
        state[name.replace("project", "transformer.depthnet")] = value
    for name, value in model.head.state_dict().items():
        kind, *rest = name.split(".")
        if kind == "classifier":
            state[f"decode_head.{name}"] = value
            continue
        block, part, place, end = rest
        theirs = _BODY[place] if part == "body" else f"downsample.{place}"
        layer, number = divmod(int(block), 4)
        state[f"decode_head.topdown.{layer}.{number}.{theirs}.{end}"] = value
    return state


def test_the_names_of_swins_authors(tmp_path: Path) -> None:
    source, target = net(SMALL_MONO, 1), net(SMALL_MONO, 2)
    torch.save({"model": authors_names(source)}, tmp_path / "swin.pth")
    before = {n: v.clone() for n, v in target.state_dict().items()}
    [note] = load_published(target, tmp_path / "swin.pth")
    assert "the backbone starts from" in note
    theirs = source.state_dict()
    for name, value in target.state_dict().items():
        wanted = theirs if name.startswith(_OURS) else before
        assert torch.equal(value, wanted[name]), name


def test_inner_stages_have_no_norms_in_a_classifier(tmp_path: Path) -> None:
    source, target = net(replace(SMALL_SURROUND, out_stages=(3,)), 1), net(SMALL_SURROUND, 2)
    torch.save({"model": authors_names(source)}, tmp_path / "swin.pth")
    notes = load_published(target, tmp_path / "swin.pth")
    assert "4 weights start fresh" in notes[-1]
    found = target.backbone.state_dict()
    for name, value in source.backbone.state_dict().items():
        assert torch.equal(found[name], value), name


def test_stages_that_are_not_computed_are_left_out(tmp_path: Path) -> None:
    source = net(SMALL_MONO, 1)
    target = net(replace(SMALL_MONO, out_stages=(2,)), 2)
    torch.save({"model": authors_names(source)}, tmp_path / "swin.pth")
    load_published(target, tmp_path / "swin.pth")
    images = torch.randn(1, 3, *SMALL_MONO.image_size)
    assert target.backbone(images)[0].shape[1] == 96
    wanted = source.backbone.state_dict()["backbone.swin.encoder.layers.2.blocks.1.mlp.fc2.bias"]
    name = "backbone.swin.encoder.layers.2.blocks.1.mlp.fc2.bias"
    assert torch.equal(target.backbone.state_dict()[name], wanted)


def test_the_names_of_mmsegmentation(tmp_path: Path) -> None:
    source, target = net(SMALL_MONO, 1), net(SMALL_MONO, 2)
    state = {f"module.{name}": value for name, value in mmseg_names(source).items()}
    state["module.decode_head.conv_seg.weight"] = torch.zeros(2)
    torch.save({"meta": {"iter": 3}, "state_dict": state}, tmp_path / "upernet.pth")
    load_published(target, tmp_path / "upernet.pth")
    found = target.backbone.state_dict()
    for name, value in source.backbone.state_dict().items():
        assert torch.equal(found[name], value), name


def test_all_of_diffbevs_network(tmp_path: Path) -> None:
    source, target = net(SMALL_MONO, 1), net(SMALL_MONO, 2)
    torch.save({"state_dict": diffbev_names(source)}, tmp_path / "lss.pth")
    assert load_published(target, tmp_path / "lss.pth") == ()
    found = target.state_dict()
    for name, value in source.state_dict().items():
        assert torch.equal(found[name], value), name


def test_what_does_not_fit_is_told_by_groups_and_nothing_is_loaded(tmp_path: Path) -> None:
    state = authors_names(net(SMALL_MONO, 1))
    state = {name: value for name, value in state.items() if "layers.2" not in name}
    state["layers.0.blocks.0.gamma"] = torch.zeros(3)
    torch.save(state, tmp_path / "swin.pth")
    target = net(SMALL_MONO, 2)
    before = {n: v.clone() for n, v in target.state_dict().items()}
    with pytest.raises(ConfigError, match=r"missing there \(17 in .*layers\.2\.blocks") as caught:
        load_published(target, tmp_path / "swin.pth")
    assert "blocks.0.gamma is not known here" in str(caught.value)
    assert all(torch.equal(v, before[n]) for n, v in target.state_dict().items())
