"""VRT that also sees spikes: by a branch of their own, or as further channels of the frames.

Without spikes it is VRT itself, weights and all. With the branch, the backbone's weights keep
VRT's names, so published ones can be put into it; the branch's stand beside them.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, Unpack

import torch
from torch import Tensor, nn

from pitstop.errors import ConfigError
from pitstop.kernels import Kernels
from pitstop.workloads.deblur.model.architecture import RGB, VRTSettings
from pitstop.workloads.deblur.model.spike_branch import (
    NUM_FUSED,
    ResidualConv,
    SpikeAttention,
    SpikeEncoder,
    SpikeFusion,
    SpikeShape,
    TemporalFusion,
    TemporalSelfAttention,
)
from pitstop.workloads.deblur.model.vrt import VRT, pad_frames, put_weights, read_checkpoint

_BACKBONE: Final = "vrt."
_BRANCH: Final = ("spike_encoder.", "spike_temporal_sa.", "cross_attn_fuse.")


class VRTSpike(VRT):
    """The restoration network with spikes.

    Args:
        use_spike: False leaves everything about spikes out: plain VRT.
        spike: The branch, or how many channels of spikes go in with the frames.
        kernels: Which version of each operation to run.
        **settings: VRT's own; ``in_chans`` is found here.

    Raises:
        ConfigError: When settings do not fit together.
    """

    def __init__(
        self,
        *,
        use_spike: bool = True,
        spike: SpikeShape | None = None,
        kernels: Kernels = "auto",
        **settings: Unpack[VRTSettings],
    ) -> None:
        shape = SpikeShape() if spike is None else spike
        early = use_spike and shape.kind == "early"
        if early:
            settings["in_chans"] = RGB + shape.bins
        super().__init__(kernels=kernels, **settings)
        self.use_spike = use_spike
        self.spike_shape = shape
        self.has_branch = use_spike and not early
        if not self.has_branch:
            return
        dim = self.architecture.embed_dims[0]
        if shape.channels != dim:
            raise ConfigError(
                f"model.spike.channels is {shape.channels}, but the stages it is fused with have "
                f"{dim} (model.embed_dims); set them to the same number"
            )
        self.spike_encoder = SpikeEncoder(
            shape.bins, shape.channels, temporal_strides=shape.temporal_strides
        )
        self.spike_temporal_sa = SpikeAttention(shape.channels, shape.attention)
        self.cross_attn_fuse = SpikeFusion(shape.channels, shape.fusion)

    def forward(self, x: Tensor, spikes: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Restore a clip.

        Args:
            x: (B, D, 3, H, W), colours in [0, 1].
            spikes: (B, D, bins, H, W), as `voxels` makes them; none where none are used.

        Returns:
            (B, D, 3, H, W).
        """
        assert (spikes is not None) == self.use_spike, "spikes where, and only where, they are used"
        if spikes is None:
            return super().forward(x)
        if not self.has_branch:
            return super().forward(torch.cat((x, spikes.to(x.dtype)), dim=2))
        features = self.spike_temporal_sa(self.spike_encoder(pad_frames(spikes)))
        return super().forward(x, partial(self._fuse, features))

    def named_parts(self) -> dict[str, nn.Module]:
        """VRT's, and those of the branch; `fusionN` follows `stageN`."""
        parts = super().named_parts()
        if self.has_branch:
            parts["spike_encoder"] = self.spike_encoder
            parts["temporal_attention"] = self.spike_temporal_sa
            for number, block in enumerate(self.cross_attn_fuse.fuse_blocks, start=1):
                parts[f"fusion{number}"] = block
        return parts

    def branch_blocks(self) -> list[nn.Module]:
        """The repeated blocks of the branch."""
        kinds = (ResidualConv, TemporalSelfAttention, TemporalFusion)
        return [module for module in self.modules() if isinstance(module, kinds)]

    def _fuse(self, spikes: list[Tensor], number: int, features: Tensor) -> Tensor:
        assert 1 <= number <= NUM_FUSED
        return self.cross_attn_fuse.fuse_blocks[number - 1](features, spikes[number - 1])


def load_spike_checkpoint(
    model: VRTSpike, path: Path, *, key: str | None = None
) -> tuple[str, ...]:
    """Load weights of the whole network, or of VRT alone; then the branch stays as it is.

    Names of the backbone may stand under ``vrt.``. Nothing in the file is executed.

    Returns:
        What should be said aloud about it.

    Raises:
        ConfigError: When the file is not there, holds something else, or does not fit.
    """
    found = read_checkpoint(path, key=key)
    saved = _unprefixed(found.tensors)
    own = model.state_dict()
    branch = {name for name in own if name.startswith(_BRANCH)}
    without_branch = bool(branch) and not branch & saved.keys()
    wanted = {name: own[name] for name in branch} if without_branch else {}
    put_weights(model, {**wanted, **saved}, path)
    if not without_branch:
        return found.notes
    return (
        *found.notes,
        f"{path} has no spike branch: VRT starts from it, the branch from random weights",
    )


def _unprefixed(saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(_BACKBONE): value for name, value in saved.items()}
