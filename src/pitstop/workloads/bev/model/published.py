"""Weights as public code saves them, put into our network.

Three ways of naming a Swin are read: that of its authors, that of mmsegmentation, and the latter
inside DiffBEV's whole network for one camera, whose depth net and head are taken along.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.train.state.weight_sets import describe_differences, read_weight_set
from pitstop.workloads.bev.model.heads import BLOCKS
from pitstop.workloads.bev.model.lift_splat import LssNet

_BACKBONE: Final = "backbone.backbone."
_STAGE_NORMS: Final = f"{_BACKBONE}hidden_states_norms."
_MADE_ANEW: Final = ("relative_position_index", "attn_mask")
"""Follows from the sizes of windows and images."""
_OF_FRUSTUM: Final = ("transformer.dx", "transformer.bx", "transformer.nx", "transformer.frustum")
_OF_BLOCK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.o_proj",
        "attn.w_msa.proj": "attention.o_proj",
        "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
        "ffn.layers.0.0": "mlp.fc1",
        "ffn.layers.1": "mlp.fc2",
    }
)
_OF_BOTTLENECK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "conv1": "body.0",
        "bn1": "body.1",
        "conv2": "body.3",
        "bn2": "body.4",
        "conv3": "body.6",
        "bn3": "body.7",
        "downsample.0": "shortcut.0",
        "downsample.1": "shortcut.1",
    }
)
_BLOCK: Final = re.compile(r"(?:layers|stages)\.(\d+)\.blocks\.(\d+)\.(.+)")
_MERGING: Final = re.compile(
    r"(layers|stages)\.(\d+)\.downsample\.(reduction|norm)\.(weight|bias)$"
)
_BOTTLENECK: Final = re.compile(r"decode_head\.topdown\.(\d+)\.(\d+)\.(.+)\.(weight|bias)$")
_STAGE_NORM: Final = re.compile(r"norm(\d*)\.(weight|bias)$")


def load_published(model: LssNet, path: Path, *, key: str | None = None) -> tuple[str, ...]:
    """Put the weights of a file into a network.

    A file of a backbone starts the backbone; one of DiffBEV's network for one camera starts all of
    it. Stages that are not computed are left out, and so are classifiers of other tasks.

    Returns:
        What should be said aloud about it.

    Raises:
        CheckpointError: Where the file cannot be read.
        ConfigError: Where a weight of what it starts is missing, unknown or of another shape.
    """
    found = read_weight_set(path, key=key)
    named = _renamed(found.tensors)
    own = model.state_dict()
    whole = any(name.startswith("depth_net") for name in named)
    wanted = {n: v for n, v in own.items() if whole or n.startswith(_BACKBONE)}
    fresh = {n for n in wanted if n.startswith(_STAGE_NORMS) and n not in named}
    given = {n: v for n, v in named.items() if not _of_unused_stage(n, model)}
    differences = describe_differences({n: v for n, v in wanted.items() if n not in fresh}, given)
    if differences:
        raise ConfigError(
            f"model.weights: {path} does not fit the network: {differences}; set model.backbone "
            "to what they were made for"
        )
    model.load_state_dict({**own, **given})
    return (*found.notes, *_summary(path, whole=whole, fresh=fresh))


def _summary(path: Path, *, whole: bool, fresh: set[str]) -> tuple[str, ...]:
    notes = []
    if not whole:
        notes.append(f"the backbone starts from {path}, the rest from random weights")
    if fresh:
        notes.append(f"{path} has no norms behind inner stages: {len(fresh)} weights start fresh")
    return tuple(notes)


def _of_unused_stage(name: str, model: LssNet) -> bool:
    """Whether a weight belongs to a stage, or its norm, that is not computed or not given out."""
    if name.startswith(_STAGE_NORMS):
        stages = {f"stage{stage + 1}" for stage in model.backbone.out_stages}
        return name.removeprefix(_STAGE_NORMS).partition(".")[0] not in stages
    place = re.search(r"swin\.encoder\.layers\.(\d+)\.(blocks|downsample)", name)
    if place is None:
        return False
    last = max(model.backbone.out_stages)
    return int(place[1]) > last or (place[2] == "downsample" and int(place[1]) == last)


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give every weight its name here; what cannot be named keeps its own."""
    inside = any(name.startswith("backbone.") for name in tensors)
    named: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.endswith(_MADE_ANEW) or name in _OF_FRUSTUM or name.startswith("head."):
            continue
        if inside and not name.startswith("backbone."):
            named |= _of_network(name, value)
        else:
            named |= _of_swin(name.removeprefix("backbone."), value)
    if inside and not any(name.startswith("depth_net") for name in named):
        # Heads of other tasks stand beside the backbone in files of mmsegmentation.
        return {name: value for name, value in named.items() if name.startswith(_BACKBONE)}
    return named


def _of_network(name: str, value: Tensor) -> dict[str, Tensor]:
    """Name what stands beside the backbone."""
    for theirs, ours in (
        ("transformer.depthnet.", "depth_net.project."),
        ("decode_head.classifier.", "head.classifier."),
    ):
        if name.startswith(theirs):
            return {name.replace(theirs, ours): value}
    bottleneck = _BOTTLENECK.match(name)
    if bottleneck is None or bottleneck[3] not in _OF_BOTTLENECK:
        return {name: value}
    layer, block, part, kind = bottleneck.groups()
    place = int(layer) * BLOCKS + int(block)
    return {f"head.blocks.{place}.{_OF_BOTTLENECK[part]}.{kind}": value}


def _of_swin(name: str, value: Tensor) -> dict[str, Tensor]:
    """Name a weight of a backbone, of its authors' code or of mmsegmentation's."""
    for pattern, rename in _SWIN:
        if match := pattern.match(name):
            return {f"{_BACKBONE}{n}": v for n, v in rename(match, value).items()}
    return {name: value}


def _patch_weight(match: re.Match[str], value: Tensor) -> dict[str, Tensor]:
    part, kind = match.groups()
    ours = "norm" if part == "norm" else "patch_embeddings.projection"
    return {f"swin.embeddings.{ours}.{kind}": value}


def _norm_weight(match: re.Match[str], value: Tensor) -> dict[str, Tensor]:
    """Name a norm behind a stage; that of a classifier stands behind the fourth."""
    return {f"hidden_states_norms.stage{int(match[1] or 3) + 1}.{match[2]}": value}


def _merging_weight(match: re.Match[str], value: Tensor) -> dict[str, Tensor]:
    family, stage, part, kind = match.groups()
    if family == "stages":
        value = _merged_in_order(value)
    return {f"swin.encoder.layers.{stage}.downsample.{part}.{kind}": value}


def _merged_in_order(value: Tensor) -> Tensor:
    """Order four pixels' channels as Swin's authors do.

    mmsegmentation unfolds: a channel's four pixels stand together, row by row. The authors have
    the channels of each pixel together, column by column.
    """
    pixels = value.unflatten(-1, (-1, 4)).transpose(-1, -2)
    return pixels[..., [0, 2, 1, 3], :].flatten(-2)


def _block_weight(match: re.Match[str], value: Tensor) -> dict[str, Tensor]:
    stage, block, rest = match.groups()
    prefix = f"swin.encoder.layers.{stage}.blocks.{block}"
    part, _, kind = rest.rpartition(".")
    if kind == "relative_position_bias_table":
        return {f"{prefix}.attention.relative_position_bias.{kind}": value}
    if part in {"attn.qkv", "attn.w_msa.qkv"}:
        pieces = zip("qkv", value.chunk(3), strict=True)
        return {f"{prefix}.attention.{letter}_proj.{kind}": piece for letter, piece in pieces}
    if part not in _OF_BLOCK:
        return {f"{prefix}.{rest}": value}
    return {f"{prefix}.{_OF_BLOCK[part]}.{kind}": value}


_SWIN: Final[
    tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Tensor], dict[str, Tensor]]], ...]
] = (
    (re.compile(r"patch_embed\.(proj|projection|norm)\.(weight|bias)$"), _patch_weight),
    (_STAGE_NORM, _norm_weight),
    (_MERGING, _merging_weight),
    (_BLOCK, _block_weight),
)
