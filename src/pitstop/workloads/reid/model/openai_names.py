"""Names of CLIP's weights in OpenAI's own files, turned into those of `transformers`."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from torch import Tensor

from pitstop.errors import ConfigError

_TOWERS: Final[Mapping[str, str]] = MappingProxyType(
    {"visual.transformer": "vision_model", "transformer": "text_model"}
)
_OF_BLOCK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "attn.out_proj": "self_attn.out_proj",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    }
)
_OTHERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
        "visual.class_embedding": "vision_model.embeddings.class_embedding",
        "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
        "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
        "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
        "visual.ln_post.weight": "vision_model.post_layernorm.weight",
        "visual.ln_post.bias": "vision_model.post_layernorm.bias",
        "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "ln_final.weight": "text_model.final_layer_norm.weight",
        "ln_final.bias": "text_model.final_layer_norm.bias",
    }
)
_TRANSPOSED: Final[Mapping[str, str]] = MappingProxyType(
    {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
)
_NOT_WEIGHTS: Final = ("logit_scale", "input_resolution", "context_length", "vocab_size")
"""What belongs to CLIP's own training, and sizes that its archives keep as tensors."""
_BLOCK: Final = re.compile(
    r"(visual\.transformer|transformer)\.resblocks\.(\d+)\.(.+)\.(weight|bias)$"
)
_JOINED: Final = re.compile(
    r"(visual\.transformer|transformer)\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)$"
)


def transformers_names(state: Mapping[str, Tensor], *, source: str) -> Mapping[str, Tensor]:
    """Rename OpenAI's weights; those that have `transformers`' names already stay as they are.

    Raises:
        ConfigError: Where a weight has neither name, such as those of CLIP's ResNets.
    """
    if "vision_model.embeddings.class_embedding" in state:
        return state
    renamed: dict[str, Tensor] = {}
    unknown: list[str] = []
    for name, value in state.items():
        if name in _NOT_WEIGHTS or name.endswith("attn_mask"):
            continue
        named = _renamed(name, value)
        renamed |= named
        if not named:
            unknown.append(name)
    if unknown:
        raise ConfigError(
            f"model.weights: {source} is no vision transformer of CLIP: {len(unknown)} of its "
            f"{len(state)} weights have other names, such as {unknown[0]}; CLIP's ResNets are not "
            "built"
        )
    return renamed


def _renamed(name: str, value: Tensor) -> dict[str, Tensor]:
    if name in _OTHERS:
        return {_OTHERS[name]: value}
    if name in _TRANSPOSED:
        return {_TRANSPOSED[name]: value.T}
    if joined := _JOINED.match(name):
        tower, number, kind = joined.groups()
        prefix = f"{_TOWERS[tower]}.encoder.layers.{number}.self_attn"
        return {
            f"{prefix}.{part}_proj.{kind}": piece
            for part, piece in zip("qkv", value.chunk(3), strict=True)
        }
    block = _BLOCK.match(name)
    if block is None or block[3] not in _OF_BLOCK:
        return {}
    tower, number, part, kind = block.groups()
    return {f"{_TOWERS[tower]}.encoder.layers.{number}.{_OF_BLOCK[part]}.{kind}": value}
