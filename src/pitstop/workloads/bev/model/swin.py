"""The image backbone: Swin of transformers, with what it makes anew at every pass kept.

transformers builds the mask of shifted windows from nothing in every block of every pass. All
images of a run have one size, so each block's mask is made once here. Blocks attend as
`swin_attention` has it, or with reference kernels as transformers does in its plain way: the bias
is learned, and compiled through `scaled_dot_product_attention` the backward pass does not run on a
GPU ("(*bias): last dimension must be contiguous", torch 2.11).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn

from pitstop.errors import ConfigError, DataError
from pitstop.kernels import Kernels
from pitstop.workloads.bev.model.swin_attention import join_attention

PATCH: Final = 4
"""Pixels from one feature of the first stage to the next; every stage doubles it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwinSize:
    """How wide and deep a Swin is."""

    embed_dim: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window: int

    def channels(self, stage: int) -> int:
        """Channels that a stage, from 0, gives out."""
        return self.embed_dim * 2**stage


SIZES: Final[Mapping[str, SwinSize]] = MappingProxyType(
    {
        "swin_nano": SwinSize(embed_dim=24, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8), window=4),
        "swin_t": SwinSize(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), window=7),
        "swin_s": SwinSize(embed_dim=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24), window=7),
        "swin_b": SwinSize(embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32), window=7),
    }
)


def swin_size(name: str) -> SwinSize:
    """Look a backbone up.

    Raises:
        ConfigError: When there is none of this name.
    """
    if name not in SIZES:
        raise ConfigError(f"model.backbone is {name!r}; choose one of {', '.join(SIZES)}")
    return SIZES[name]


class SwinFeatures(nn.Module):
    """Features of images at some stages of a Swin.

    Args:
        name: One of `SIZES`.
        out_stages: Stages, from 0, to give out.
        image_size: Height and width of all images.
        drop_path: Probability of leaving out the deepest block in training.
        weights: Folder of a Swin as transformers saves it; None for random weights.
        kernels: Which version of attention to run: "reference" is transformers' own, the others are
            `JoinedAttention`. Names and weights are the same.

    Raises:
        ConfigError: When the name, a stage or a kernel does not exist, or transformers is not
            installed.
        DataError: When the weights cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        out_stages: tuple[int, ...],
        image_size: tuple[int, int],
        drop_path: float = 0.0,
        weights: Path | None = None,
        kernels: Kernels = "auto",
    ) -> None:
        super().__init__()
        size = swin_size(name)
        if not out_stages or max(out_stages) >= len(size.depths):
            raise ConfigError(
                f"model.out_stages is {list(out_stages)}; {name} has the stages 0 to "
                f"{len(size.depths) - 1}"
            )
        self.size = size
        self.out_stages = out_stages
        self.image_size = image_size
        self.backbone = _build(size, out_stages, drop_path=drop_path, weights=weights)
        # Behind the last stage, for classifiers: nobody reads it, so its weights would never learn.
        self.backbone.get_submodule("swin").layernorm = nn.Identity()
        _keep_masks(self.backbone, image_size)
        if kernels != "reference":
            join_attention(self.backbone, kernels=kernels)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Normalised (N, 3, H, W) images to one (N, C, h, w) map a stage."""
        assert images.shape[-2:] == self.image_size, "images are of another size than was said"
        return list(self.backbone(images).feature_maps)

    def blocks(self) -> list[nn.Module]:
        """Give the attention blocks, first to last."""
        return _blocks(self.backbone)


class KeptMask(nn.Module):
    """The mask of a block whose windows are shifted, made once."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, height: int, width: int, dtype: torch.dtype, device: Any) -> Tensor:  # noqa: ARG002 - called by transformers
        """Give the mask in the type that is asked for."""
        return self.mask.to(dtype)


def _build(
    size: SwinSize, out_stages: tuple[int, ...], *, drop_path: float, weights: Path | None
) -> nn.Module:
    try:
        from transformers import SwinBackbone, SwinConfig
    except ImportError as error:
        raise ConfigError(
            "the Swin backbone needs transformers; install it with `pip install transformers`"
        ) from error
    settings: dict[str, Any] = {
        "embed_dim": size.embed_dim,
        # Stages behind the last one that is used would be computed for nothing.
        "depths": list(size.depths[: max(out_stages) + 1]),
        "num_heads": list(size.num_heads[: max(out_stages) + 1]),
        "window_size": size.window,
        "drop_path_rate": drop_path,
        "out_indices": [stage + 1 for stage in sorted(out_stages)],
        "attn_implementation": "eager",
    }
    config = SwinConfig(**settings)
    if weights is None:
        return SwinBackbone(config)
    return _load(SwinBackbone, config, weights)


def _load(backbone: Any, config: Any, folder: Path) -> nn.Module:
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{folder} is no folder of Swin weights: it has no config.json; give one that "
            "transformers saved, a file of Swin's authors or of mmsegmentation, or set "
            "model.weights to null"
        )
    try:
        model, facts = backbone.from_pretrained(
            folder, config=config, local_files_only=True, output_loading_info=True
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"the weights in {folder} do not fit model.backbone: {error}") from error
    # A classifier has no norms for the features of inner stages: those start fresh.
    missing = [key for key in facts["missing_keys"] if "hidden_states_norms" not in key]
    if missing:
        raise DataError(
            f"the weights in {folder} lack {len(missing)} of the backbone's, such as "
            f"{missing[0]}; set model.backbone to what they were made for"
        )
    return model


def _blocks(backbone: nn.Module) -> list[nn.Module]:
    return [module for module in backbone.modules() if type(module).__name__ == "SwinLayer"]


def _keep_masks(backbone: nn.Module, image_size: tuple[int, int]) -> None:
    """Put a `KeptMask` in the place of the method that makes a block's mask."""
    stages = [module for module in backbone.modules() if type(module).__name__ == "SwinStage"]
    height, width = (-(-side // PATCH) for side in image_size)
    for stage in stages:
        for block in _blocks(stage):
            window = int(getattr(block, "window_size"))  # noqa: B009 - transformers' own name
            padded = (-(-height // window) * window, -(-width // window) * window)
            make_mask: Any = block.get_attn_mask
            mask = make_mask(*padded, dtype=torch.float32, device=torch.device("cpu"))
            if mask is not None:
                block.kept_mask = KeptMask(mask)
                # Not as an attribute: a module would go where the class's method hides it.
                block.__dict__["get_attn_mask"] = block.kept_mask.forward
        height, width = -(-height // 2), -(-width // 2)
