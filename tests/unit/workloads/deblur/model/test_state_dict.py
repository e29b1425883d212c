"""Names, shapes and types of the published model, written down from its description."""

import torch

from pitstop.workloads.deblur.model.vrt import VRT, VRT_GOPRO, VRT_SMALL

Shapes = dict[str, tuple[int, ...]]
STAGES = range(1, 8)


def linear(name: str, out_dim: int, in_dim: int) -> Shapes:
    return {f"{name}.weight": (out_dim, in_dim), f"{name}.bias": (out_dim,)}


def conv(name: str, out_dim: int, in_dim: int, side: int) -> Shapes:
    return {f"{name}.weight": (out_dim, in_dim, side, side), f"{name}.bias": (out_dim,)}


def norm(name: str, dim: int) -> Shapes:
    return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}


def mlp(name: str, in_dim: int, hidden: int, out_dim: int) -> Shapes:
    fc11, fc12 = (linear(f"{name}.{fc}", hidden, in_dim) for fc in ("fc11", "fc12"))
    return fc11 | fc12 | linear(f"{name}.fc2", out_dim, hidden)


def block(name: str, dim: int, places: int, tokens: int, *, mutual: bool) -> Shapes:
    shapes = norm(f"{name}.norm1", dim)
    shapes[f"{name}.attn.relative_position_bias_table"] = (places, 6)
    shapes[f"{name}.attn.relative_position_index"] = (tokens, tokens)
    if mutual:
        shapes[f"{name}.attn.position_bias"] = (1, 64, dim)
    shapes |= linear(f"{name}.attn.qkv_self", 3 * dim, dim)
    shapes |= linear(f"{name}.attn.proj", dim, 2 * dim if mutual else dim)
    if mutual:
        shapes |= linear(f"{name}.attn.qkv_mut", 3 * dim, dim)
    return shapes | norm(f"{name}.norm2", dim) | mlp(f"{name}.mlp", dim, 2 * dim, dim)


def stage(k: int) -> Shapes:
    name, shapes = f"stage{k}", {}
    if k == 1:
        shapes |= norm(f"{name}.reshape.1", 96)
    else:
        width = 384 if k <= 4 else 24
        shapes |= norm(f"{name}.reshape.1", width) | linear(f"{name}.reshape.2", 96, width)
    for i in range(6):
        shapes |= block(f"{name}.residual_group1.blocks.{i}", 96, 675, 128, mutual=True)
    shapes |= linear(f"{name}.linear1", 96, 96)
    for i in range(2):
        shapes |= block(f"{name}.residual_group2.blocks.{i}", 96, 2475, 384, mutual=False)
    shapes |= linear(f"{name}.linear2", 96, 96)
    shapes |= {f"{name}.pa_deform.weight": (96, 96, 3, 3), f"{name}.pa_deform.bias": (96,)}
    for layer, (out_dim, in_dim) in {0: (96, 194), 2: (96, 96), 4: (96, 96), 6: (432, 96)}.items():
        shapes |= conv(f"{name}.pa_deform.conv_offset.{layer}", out_dim, in_dim, 3)
    return shapes | mlp(f"{name}.pa_fuse", 288, 288, 96)


def last_stage() -> Shapes:
    shapes = norm("stage8.0.1", 96) | linear("stage8.0.2", 120, 96)
    for i in range(1, 5):
        places, tokens = (2475, 384) if i <= 2 else (225, 64)
        for j in range(4):
            name = f"stage8.{i}.residual_group.blocks.{j}"
            shapes |= block(name, 120, places, tokens, mutual=False)
        shapes |= linear(f"stage8.{i}.linear", 120, 120)
    return shapes


def spynet() -> Shapes:
    shapes: Shapes = {"spynet.mean": (1, 3, 1, 1), "spynet.std": (1, 3, 1, 1)}
    widths = {0: (32, 8), 2: (64, 32), 4: (32, 64), 6: (16, 32), 8: (2, 16)}
    for level in range(6):
        for layer, (out_dim, in_dim) in widths.items():
            name = f"spynet.basic_module.{level}.basic_module.{layer}"
            shapes |= conv(name, out_dim, in_dim, 7)
    return shapes


def published() -> Shapes:
    shapes: Shapes = {"conv_first.weight": (96, 27, 1, 3, 3), "conv_first.bias": (96,)}
    shapes |= spynet()
    for k in STAGES:
        shapes |= stage(k)
    shapes |= last_stage() | norm("norm", 120) | linear("conv_after_body", 96, 120)
    return shapes | {"conv_last.weight": (3, 96, 1, 3, 3), "conv_last.bias": (3,)}


def test_the_gopro_model_has_the_published_entries_and_no_others() -> None:
    state = VRT(**VRT_GOPRO).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == published()
    assert len(state) == 1526


def test_positions_are_int64_and_everything_else_is_float32() -> None:
    for name, value in VRT(**VRT_GOPRO).state_dict().items():
        wanted = torch.int64 if name.endswith("position_index") else torch.float32
        assert value.dtype == wanted, name


def test_the_gopro_model_has_the_published_number_of_parameters_in_every_module() -> None:
    model = VRT(**VRT_GOPRO)
    counts = {
        name: sum(parameter.numel() for parameter in child.parameters())
        for name, child in model.named_children()
    }
    assert counts == {
        "conv_first": 23_424,
        "spynet": 1_440_300,
        "stage1": 2_027_712,
        "stage2": 2_065_248,
        "stage3": 2_065_248,
        "stage4": 2_065_248,
        "stage5": 2_029_968,
        "stage6": 2_029_968,
        "stage7": 2_029_968,
        "stage8": 2_528_472,
        "norm": 240,
        "conv_after_body": 11_616,
        "conv_last": 2_595,
    }
    assert sum(counts.values()) == 18_320_007
    assert len(list(model.parameters())) == 1_410
    assert len(list(model.buffers())) == 116


def test_parameters_of_an_attention_keep_the_published_order() -> None:
    attention = VRT(**VRT_GOPRO).get_submodule("stage1.residual_group1.blocks.0.attn")
    owners = [name.split(".")[0] for name, _ in attention.named_parameters()]
    assert list(dict.fromkeys(owners)) == [
        "relative_position_bias_table",
        "qkv_self",
        "proj",
        "qkv_mut",
    ]


def test_more_neighbours_widen_the_first_offset_convolution_alone() -> None:
    for pa_frames, in_dim in ((4, 3 * 96 + 4), (6, 4 * 96 + 6)):
        state = VRT(**(VRT_GOPRO | {"pa_frames": pa_frames})).state_dict()
        wanted = published()
        for k in STAGES:
            wanted[f"stage{k}.pa_deform.conv_offset.0.weight"] = (96, in_dim, 3, 3)
        assert {name: tuple(value.shape) for name, value in state.items()} == wanted


def test_without_alignment_there_is_no_flow_estimator_and_the_input_is_the_frame_alone() -> None:
    state = VRT(**(VRT_SMALL | {"pa_frames": 0})).state_dict()
    assert not [name for name in state if "spynet" in name or "pa_" in name]
    assert state["conv_first.weight"].shape == (24, 3, 1, 3, 3)


def test_a_fresh_model_starts_without_offsets_and_with_small_bias_tables() -> None:
    state = VRT(**VRT_SMALL).state_dict()
    assert not state["stage1.pa_deform.conv_offset.6.weight"].any()
    assert not state["stage1.pa_deform.conv_offset.6.bias"].any()
    assert not state["stage1.pa_deform.bias"].any()
    assert state["stage1.pa_deform.weight"].abs().max() <= (9 * 24) ** -0.5
    table = state["stage1.residual_group1.blocks.0.attn.relative_position_bias_table"]
    assert 0.015 < table.std() < 0.025


def test_the_small_model_has_the_parameters_it_says() -> None:
    assert sum(parameter.numel() for parameter in VRT(**VRT_SMALL).parameters()) == 719_157
