"""Running somebody's VRT, built by the authors' own code, with our parts.

The model stays the object that it was: its parameters, their names, whatever optimizer or wrapper
holds them. Only its parts are exchanged for ours, which hold the very same parameters, and its
forward pass with them.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pitstop.errors import ConfigError
from pitstop.kernels import Kernels
from pitstop.train.model.recompute import recompute_all
from pitstop.workloads.deblur.model.architecture import NUM_ALIGNED_STAGES, VRTSettings
from pitstop.workloads.deblur.model.blocks import AttentionBlock
from pitstop.workloads.deblur.model.vrt import VRT

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, *, kernels: Kernels = "auto") -> Model:
    """Exchange the parts of a VRT from its authors' code for ours, in place.

    Parameters and buffers stay the same tensors under the same names, so an optimizer that has them
    goes on, and checkpoints load and save as before. Where blocks were recomputed they still are.
    Branches that are dropped at random in training are drawn anew, at the same rates.

    Args:
        model: A `VRT` of the authors' `models/network_vrt.py`, with pictures aligned by flow.
        kernels: Which version of each operation to run.

    Returns:
        ``model`` itself.

    Raises:
        ConfigError: When it is no such model; it is not changed then.
    """
    settings = settings_of(model)
    recomputed = _recomputed(model)
    with torch.device("meta"):
        ours = VRT(kernels=kernels, **settings)
    _adopt(ours, model)
    for block, halves in zip(_blocks(ours), recomputed, strict=True):
        for half in halves:
            setattr(block, half, recompute_all)
    ours.train(model.training)
    for name, part in ours.named_children():
        setattr(model, name, part)
    model.forward = ours.forward
    return model


def settings_of(model: Any) -> VRTSettings:
    """Read off a model of the authors' code how it was built.

    Raises:
        ConfigError: When it lacks what such a model has, or has what ours does not do.
    """
    try:
        _refuse_what_is_missing_here(model)
        return _read(model)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{type(model).__name__} is no VRT of the authors' code: {error}"
        ) from error


def _refuse_what_is_missing_here(model: Any) -> None:
    attention = model.stage1.residual_group2.blocks[0].attn
    usual = (attention.dim // attention.num_heads) ** -0.5
    obstacles = {
        "it has no alignment (pa_frames is 0)": not model.pa_frames,
        "it is told the noise (nonblind_denoising)": model.nonblind_denoising,
        "its scores have a scale of their own (qk_scale)": abs(attention.scale - usual) > 1e-9,
    }
    for reason, holds in obstacles.items():
        if holds:
            raise ConfigError(f"this VRT cannot be accelerated: {reason}")


def _read(model: Any) -> VRTSettings:
    stages = [getattr(model, f"stage{number + 1}") for number in range(NUM_ALIGNED_STAGES)]
    lasts = list(model.stage8)[1:]
    mutual = [len(stage.residual_group1.blocks) for stage in stages]
    depths = [
        count + len(stage.residual_group2.blocks)
        for count, stage in zip(mutual, stages, strict=True)
    ]
    groups = [stage.residual_group2 for stage in stages] + [last.residual_group for last in lasts]
    block = groups[-1].blocks[-1]
    window = tuple(groups[0].window_size)
    return {
        "upscale": model.upscale,
        "in_chans": model.in_chans,
        "out_chans": model.out_chans,
        "window_size": window,
        "depths": depths + [len(last.residual_group.blocks) for last in lasts],
        "indep_reconsts": _single_frames(groups, window),
        "embed_dims": [stage.linear1.out_features for stage in stages]
        + [last.linear.out_features for last in lasts],
        "num_heads": [group.blocks[0].num_heads for group in groups],
        # The least share that gives each stage as many.
        "mul_attn_ratio": min(
            max(one / all_ for one, all_ in zip(mutual, depths, strict=True)) + 1e-9, 1.0
        ),
        "mlp_ratio": block.mlp.fc11.out_features / block.mlp.fc11.in_features,
        "qkv_bias": block.attn.qkv_self.bias is not None,
        "drop_path_rate": getattr(block.drop_path, "drop_prob", 0.0) or 0.0,
        "pa_frames": model.pa_frames,
        "deformable_groups": stages[0].pa_deform.deformable_groups,
        "flow_channels": _flow_channels(model.spynet),
    }


def _single_frames(groups: Sequence[Any], window: tuple[int, ...]) -> list[int]:
    if window[0] == 1:
        return []
    return [place for place, group in enumerate(groups) if group.window_size[0] == 1]


def _flow_channels(spynet: Any) -> list[int]:
    layers = [part for part in spynet.basic_module[0].modules() if isinstance(part, nn.Conv2d)]
    return [layer.out_channels for layer in layers[:-1]]


def _blocks(model: nn.Module) -> list[AttentionBlock]:
    return [part for part in model.modules() if isinstance(part, AttentionBlock)]


def _recomputed(model: nn.Module) -> list[list[str]]:
    """For each block, in order, which of its halves the authors' code recomputes."""
    names = {
        "use_checkpoint_attn": "recompute_attention",
        "use_checkpoint_ffn": "recompute_feed_forward",
    }
    blocks = [part for part in model.modules() if hasattr(part, "use_checkpoint_attn")]
    return [
        [ours for theirs, ours in names.items() if getattr(block, theirs, False)]
        for block in blocks
    ]


def _adopt(ours: nn.Module, theirs: nn.Module) -> None:
    """Put the very parameters and buffers of one model in the places of another's."""
    given: dict[str, Tensor] = {**dict(theirs.named_parameters()), **dict(theirs.named_buffers())}
    wanted = {**dict(ours.named_parameters()), **dict(ours.named_buffers())}
    wrong = given.keys() ^ wanted.keys()
    wrong |= {name for name in given.keys() & wanted if given[name].shape != wanted[name].shape}
    if wrong:
        raise ConfigError(
            f"this VRT cannot be accelerated: {len(wrong)} of its tensors have no place in ours or "
            f"another shape, such as {min(wrong)}"
        )
    for name, tensor in given.items():
        place, _, last = name.rpartition(".")
        setattr(ours.get_submodule(place), last, tensor)
