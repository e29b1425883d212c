"""CLIP's own weights, as `transformers` or OpenAI name them, put into our towers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.errors import ConfigError, MissingPackage
from pitstop.train.state.weight_sets import read_weight_set
from pitstop.workloads.reid.model.clip import ReidModel
from pitstop.workloads.reid.model.openai_names import transformers_names
from pitstop.workloads.reid.model.towers import CHANNELS, Block


def load_clip(model: ReidModel, name: Path, *, key: str | None = None) -> tuple[str, ...]:
    """Start from trained weights; what CLIP does not have stays random.

    Args:
        model: With the sizes of that CLIP.
        name: A file of OpenAI's weights, a folder that `transformers` can read, or a model's name
            on its hub.
        key: Under which name a file has the weights; None for what is usual.

    Returns:
        What should be said aloud about it.

    Raises:
        CheckpointError: Where a file cannot be read.
        ConfigError: Where it is no CLIP, or has other sizes.
        MissingPackage: Where `transformers` is not installed and needed.
    """
    if name.is_file():
        found = read_weight_set(name, key=key)
        copy_clip(model, transformers_names(found.tensors, source=str(name)), source=str(name))
        return found.notes
    if key is not None:
        raise ConfigError(f"model.weights_key has no effect: {name} is no file")
    _load_folder(model, name)
    return ()


def _load_folder(model: ReidModel, name: Path) -> None:
    try:
        from transformers import CLIPModel
    except ImportError as error:
        raise MissingPackage("transformers", purpose="model.weights") from error
    try:
        clip: Any = CLIPModel.from_pretrained(str(name))
    except (OSError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"model.weights names {name}, which cannot be read as a CLIP model ({first}); name a "
            "folder with config.json and model.safetensors, or a model of the hub, or leave it out "
            "for random weights"
        ) from error
    acts = {clip.config.vision_config.hidden_act, clip.config.text_config.hidden_act}
    if acts != {"quick_gelu"}:
        raise ConfigError(
            f"model.weights names {name}, whose activation is {' and '.join(sorted(acts))}; only "
            "quick_gelu is built, which OpenAI's weights have"
        )
    copy_clip(model, clip.state_dict(), source=str(name))


def copy_clip(model: ReidModel, state: Mapping[str, Tensor], *, source: str) -> None:
    """Copy CLIP's weights, by the names that `transformers` has for them.

    Raises:
        ConfigError: Where one is missing or has another size.
    """
    reader = _Reader(state, source)
    with torch.no_grad():
        _copy_image_tower(model, reader)
        _copy_text_tower(model, reader)


class _Reader:
    """Copies weights by name and says what does not fit."""

    def __init__(self, state: Mapping[str, Tensor], source: str) -> None:
        self._state = state
        self._source = source

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._state:
            raise ConfigError(f"model.weights: {self._source} has no {name}; it is no CLIP")
        return self._state[name]

    def put(self, target: Tensor, value: Tensor, name: str) -> None:
        if target.shape != value.shape:
            there, here = ("x".join(map(str, shape)) for shape in (value.shape, target.shape))
            raise ConfigError(
                f"model.weights: {name} of {self._source} is {there}, and the model wants {here}; "
                "set model.backbone, model.embed_dim, model.text_len and data.tokenizer as these "
                "weights have them"
            )
        target.copy_(value)

    def copy(self, target: Tensor, name: str) -> None:
        self.put(target, self[name], name)

    def copy_norm(self, norm: nn.LayerNorm, name: str) -> None:
        self.copy(norm.weight, f"{name}.weight")
        self.copy(norm.bias, f"{name}.bias")

    def copy_blocks(self, blocks: nn.ModuleList, prefix: str) -> None:
        for number, block in enumerate(blocks):
            assert isinstance(block, Block)
            self._copy_block(block, f"{prefix}.encoder.layers.{number}")

    def _copy_block(self, block: Block, prefix: str) -> None:
        attention = f"{prefix}.self_attn"
        self.copy_norm(block.norm_1, f"{prefix}.layer_norm1")
        self.copy_norm(block.norm_2, f"{prefix}.layer_norm2")
        for kind in ("weight", "bias"):
            parts = [self[f"{attention}.{part}_proj.{kind}"] for part in "qkv"]
            self.put(getattr(block.qkv, kind), torch.cat(parts), f"{attention}.q_proj.{kind}")
            self.copy(getattr(block.out, kind), f"{attention}.out_proj.{kind}")
            self.copy(getattr(block.widen, kind), f"{prefix}.mlp.fc1.{kind}")
            self.copy(getattr(block.narrow, kind), f"{prefix}.mlp.fc2.{kind}")


def _copy_image_tower(model: ReidModel, reader: _Reader) -> None:
    patches, prefix = model.patches, "vision_model.embeddings"
    name = f"{prefix}.patch_embedding.weight"
    for modality, channels in CHANNELS.items():
        if channels == 3:
            reader.copy(patches.weights[modality], name)
            continue
        weight, offset = _for_one_channel(reader[name], patches.mean, patches.deviation)
        reader.put(patches.weights[modality], weight, name)
        reader.put(patches.offsets[modality], offset, name)
    reader.copy(patches.class_token, f"{prefix}.class_embedding")
    name = f"{prefix}.position_embedding.weight"
    reader.put(patches.positions, _on_grid(reader[name], patches.grid), name)
    reader.copy_norm(patches.norm, "vision_model.pre_layrnorm")
    reader.copy_blocks(model.trunk.blocks, "vision_model")
    reader.copy_norm(model.trunk.norm, "vision_model.post_layernorm")
    reader.copy(model.trunk.image_projection, "visual_projection.weight")


def _copy_text_tower(model: ReidModel, reader: _Reader) -> None:
    text = model.text
    reader.copy(text.words.weight, "text_model.embeddings.token_embedding.weight")
    name = "text_model.embeddings.position_embedding.weight"
    reader.put(text.positions, reader[name][: len(text.positions)], name)
    reader.copy_blocks(text.blocks, "text_model")
    reader.copy_norm(text.norm, "text_model.final_layer_norm")
    reader.copy(text.text_projection, "text_projection.weight")


def _for_one_channel(weight: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Fold three equal channels, each normalised its own way, into one normalised by the means.

    Args:
        weight: CLIP's map of patches, (width, 3, patch, patch).
        mean: Of each channel, (3, 1, 1).
        deviation: Likewise.

    Returns:
        The map of one channel (width, 1, patch, patch), and what is added to every token.
    """
    wide, deviation = weight.double() / deviation.double(), deviation.double()
    offset = (wide * (mean.double().mean() - mean.double())).sum(dim=(1, 2, 3))
    return wide.sum(dim=1, keepdim=True) * deviation.mean(), offset


def _on_grid(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """Interpolate the positions of a square of patches to another grid; keep the class token's."""
    side = round((len(positions) - 1) ** 0.5)
    if (side, side) == grid:
        return positions
    square = positions[1:].unflatten(0, (side, side)).permute(2, 0, 1).unsqueeze(0)
    stretched = functional.interpolate(square, size=grid, mode="bicubic", align_corners=False)
    return torch.cat([positions[:1], stretched[0].permute(1, 2, 0).flatten(0, 1)])
