"""VRT, a video restoration transformer: all frames of a clip are restored at once.

Reading order of one pass: estimate flows between neighbouring frames, sample each neighbour at
its frame's places, convolve to features, run the eight stages over a U of scales, convolve back
and add the input. `architecture.py` has the settings, `stages.py` the stages, `blocks.py` the
attention blocks, `alignment.py` and `spynet.py` the motion. Names and shapes of all weights are
those of the published checkpoints.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.errors import CheckpointError, ConfigError
from pitstop.kernels import Kernels, deform_conv, flow_warp, window_attention
from pitstop.kernels.pairs import neighbour_pairs
from pitstop.train.state.weight_sets import WeightSet, describe_differences, read_weight_set
from pitstop.workloads.deblur.model.alignment import Flows, compose_flows, split_ways
from pitstop.workloads.deblur.model.architecture import (
    ENLARGED_CHANNELS,
    MAX_RESIDUE,
    NUM_ALIGNED_STAGES,
    RGB,
    STAGE_SCALES,
    VRT_GOPRO,
    VRT_SMALL,
    Architecture,
    VRTSettings,
)
from pitstop.workloads.deblur.model.blocks import BlockShape, norm_project
from pitstop.workloads.deblur.model.spynet import NUM_SCALES, SpyNet
from pitstop.workloads.deblur.model.stages import (
    AlignmentShape,
    Reconstruction,
    Resampling,
    ResidualGroup,
    Stage,
)

__all__ = [
    "VRT",
    "VRT_GOPRO",
    "VRT_SMALL",
    "VRTSettings",
    "load_checkpoint",
    "pad_frames",
    "put_weights",
    "read_checkpoint",
]

Fuse: TypeAlias = Callable[[int, Tensor], Tensor]
"""Called with 1 to 4 and the (B, D, h, w, C) output of that stage; gives what replaces it."""

SIZE_MULTIPLE = 8


class FrameConv(nn.Conv3d):
    """A 3x3 convolution on each frame apart, stored as the published weights have it."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - named by the class it extends
        """(B, D, C_in, H, W) -> (B, D, C_out, H, W)."""
        frames = input.flatten(0, 1)
        if frames.is_cuda:
            # Stages want the channels of a pixel together, and so do convolutions there.
            frames = frames.contiguous(memory_format=torch.channels_last)
        frames = functional.conv2d(frames, self.weight.squeeze(2), self.bias, padding=1)
        return frames.unflatten(0, input.shape[:2])


class Enlarge(nn.Module):
    """Twice from four channels to four pixels; parts are numbered as in the published weights."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for place in ("0", "5"):
            self.add_module(place, FrameConv(channels, 4 * channels))
        self.add_module("10", FrameConv(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, C, H, W) -> (B, D, C, 4 H, 4 W)."""
        *steps, last = self.children()
        for step in steps:
            x = functional.leaky_relu(functional.pixel_shuffle(step(x), 2), 0.1)
        return last(x)


class VRT(nn.Module):
    """The restoration network.

    Args:
        kernels: Which version of each operation to run.
        **settings: See `architecture.Architecture`; `VRT_GOPRO` and `VRT_SMALL` are whole sets.

    Raises:
        ConfigError: When settings do not fit together or a kernel is not there.
    """

    def __init__(self, *, kernels: Kernels = "auto", **settings: Unpack[VRTSettings]) -> None:
        super().__init__()
        try:
            arch = Architecture(**settings)
        except TypeError as error:
            raise ConfigError(f"VRT cannot be built: {error}") from error
        for operation in (window_attention, deform_conv, flow_warp):
            operation.dispatch(kernels)
        self.architecture = arch
        self.kernels: Kernels = kernels
        dim, last_dim = arch.embed_dims[0], arch.embed_dims[-1]
        self.conv_first = FrameConv(arch.first_channels, dim)
        if arch.pa_frames:
            self.spynet = SpyNet(arch.flow_channels, kernels=kernels)
        for index in range(NUM_ALIGNED_STAGES):
            self.add_module(f"stage{index + 1}", _build_stage(arch, index, kernels))
        self.stage8 = _build_reconstruction(arch, kernels)
        self.norm = nn.LayerNorm(last_dim)
        self.conv_after_body = nn.Linear(last_dim, dim)
        if arch.upscale != 1:
            self.conv_before_upsample = nn.Sequential(
                FrameConv(dim, ENLARGED_CHANNELS), nn.LeakyReLU()
            )
            self.upsample = Enlarge(ENLARGED_CHANNELS)
        self.conv_last = FrameConv(dim if arch.upscale == 1 else ENLARGED_CHANNELS, arch.out_chans)

    def start_from_input(self) -> None:
        """Empty the last layer: untrained, the network gives its input back, enlarged if it is."""
        nn.init.zeros_(self.conv_last.weight)
        if self.conv_last.bias is not None:
            nn.init.zeros_(self.conv_last.bias)

    def forward(self, x: Tensor, fuse: Fuse | None = None) -> Tensor:
        """Restore a clip.

        Args:
            x: (B, D, in_chans, H, W), colours in [0, 1], and with `noise_map` one channel more.
                Sizes that are no multiple of 8 are continued by their last row and column, and the
                result is cut back.
            fuse: Merges something else into the outputs of stages 1 to 4, before the next stage
                and the skip connection read them.

        Returns:
            (B, D, out_chans, H, W), both sides times `upscale`.
        """
        clip = pad_frames(x)
        flows = self._flows(clip[:, :, :RGB])
        shallow = self.conv_first(self._with_neighbours(clip, flows[0]))
        shallow = shallow.permute(0, 1, 3, 4, 2)
        deep = self._deep_features(shallow, flows, fuse)
        features = shallow + norm_project(self.kernels, deep, self.norm, self.conv_after_body)
        return self._pictures(
            features.permute(0, 1, 4, 2, 3), x[:, :, : self.architecture.out_chans]
        )

    def _pictures(self, features: Tensor, x: Tensor) -> Tensor:
        """Turn features into what the input lacks, and add the input."""
        if self.architecture.upscale != 1:
            features = self.upsample(self.conv_before_upsample(features))
            factor = float(self.architecture.upscale)
            x = functional.interpolate(
                x.flatten(0, 1), scale_factor=factor, mode="bilinear", align_corners=False
            ).unflatten(0, x.shape[:2])
        height, width = x.shape[-2:]
        return self.conv_last(features)[..., :height, :width] + x

    def named_parts(self) -> dict[str, nn.Module]:
        """The modules worth a name in a timing, each called once a pass.

        ``stageN.alignment`` runs inside ``stageN``; the others do not overlap.
        """
        parts: dict[str, nn.Module] = {}
        if self.architecture.pa_frames:
            parts["spynet"] = self.spynet
        for name, stage in self._stages().items():
            parts[name] = stage
            if isinstance(stage, Stage) and stage.aligns:
                parts[f"{name}.alignment"] = stage.pa_deform
        return parts

    def _stages(self) -> dict[str, Stage | Reconstruction]:
        return {name: stage for name, stage in self.named_children() if name.startswith("stage")}  # pyright: ignore[reportReturnType]

    def _flows(self, rgb: Tensor) -> tuple[Flows, ...]:
        """Flows at each of the four scales, or none where there is nothing to align."""
        if not self.architecture.pa_frames or rgb.shape[1] == 1:
            return ((),) * NUM_SCALES
        pairs = neighbour_pairs(rgb.shape[0], rgb.shape[1], rgb.device)
        single = self.spynet(rgb.flatten(0, 1), pairs)
        return tuple(
            compose_flows(
                flow.unflatten(0, (2 * rgb.shape[0], -1)),
                num_steps=self.architecture.num_steps,
                kernels=self.kernels,
            )
            for flow in single
        )

    def _with_neighbours(self, clip: Tensor, flows: Flows) -> Tensor:
        """Append to each frame four samples of its successor and four of its predecessor."""
        if not self.architecture.pa_frames:
            return clip
        clip, noise = clip.split_with_sizes(
            (in_chans := self.architecture.in_chans, clip.shape[2] - in_chans), dim=2
        )
        if not flows:
            return torch.cat((functional.pad(clip, (0, 0, 0, 0, 0, 8 * in_chans)), noise), dim=2)
        pairs = neighbour_pairs(clip.shape[0], clip.shape[1], clip.device)
        samples = flow_warp.dispatch(self.kernels).nearest4(
            clip.flatten(0, 1).index_select(0, pairs.neighbours), flows[0].flatten(0, 1)
        )
        after, before = split_ways(samples.unflatten(0, flows[0].shape[:2]))
        return torch.cat((clip, after, before, noise), dim=2)

    def _deep_features(
        self, shallow: Tensor, flows: tuple[Flows, ...], fuse: Fuse | None
    ) -> Tensor:
        """Walk down three scales, up again over skip connections, and through the last stage."""
        stages = list(self._stages().values())
        skips: list[Tensor] = []
        x = shallow
        for number, stage in enumerate(stages[:4], start=1):
            x = stage.recompute_stage(stage, x, flows[number - 1])
            x = x if fuse is None else fuse(number, x)
            skips.append(x)
        x = stages[4].recompute_stage(stages[4], x, flows[2])
        x = stages[5].recompute_stage(stages[5], x + skips[2], flows[1])
        x = stages[6].recompute_stage(stages[6], x + skips[1], flows[0])
        return stages[7].recompute_stage(stages[7], x + skips[0])


def _block_shape(arch: Architecture, index: int, kernels: Kernels) -> BlockShape:
    depth, height, width = arch.window_size
    return BlockShape(
        dim=arch.embed_dims[index],
        num_heads=arch.num_heads[index],
        window=(1 if index in arch.indep_reconsts else depth, height, width),
        mutual=False,
        mlp_ratio=arch.mlp_ratio,
        qkv_bias=arch.qkv_bias,
        kernels=kernels,
    )


def _build_stage(arch: Architecture, index: int, kernels: Kernels) -> Stage:
    kinds: tuple[Resampling, ...] = ("none", "down", "down", "down", "up", "up", "up")
    alignment = AlignmentShape(
        num_steps=arch.num_steps,
        deformable_groups=arch.deformable_groups,
        max_residue=MAX_RESIDUE / STAGE_SCALES[index],
    )
    return Stage(
        kinds[index],
        _block_shape(arch, index, kernels),
        num_mutual=int(arch.depths[index] * arch.mul_attn_ratio),
        drop_rates=arch.drop_rates(index),
        alignment=alignment if arch.pa_frames else None,
    )


def _build_reconstruction(arch: Architecture, kernels: Kernels) -> Reconstruction:
    groups = [
        ResidualGroup(_block_shape(arch, index, kernels), drop_rates=arch.drop_rates(index))
        for index in range(NUM_ALIGNED_STAGES, len(arch.depths))
    ]
    return Reconstruction(
        arch.embed_dims[NUM_ALIGNED_STAGES - 1], groups, out_dim=arch.embed_dims[-1]
    )


def pad_frames(clip: Tensor) -> Tensor:
    """Repeat the last row and column until both sides are multiples of 8."""
    height, width = clip.shape[-2:]
    below, right = -height % SIZE_MULTIPLE, -width % SIZE_MULTIPLE
    if below == right == 0:
        return clip
    frames = functional.pad(clip.flatten(0, 1), (0, right, 0, below), mode="replicate")
    return frames.unflatten(0, clip.shape[:2])


def read_checkpoint(path: Path, *, key: str | None = None) -> WeightSet:
    """Read weights as KAIR, BasicSR and others save them.

    Nothing in the file is executed.

    Args:
        path: The file.
        key: Under which name it has them; None for what is usual.

    Raises:
        ConfigError: When the file is not there, or holds something else.
    """
    try:
        return read_weight_set(path, key=key)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def load_checkpoint(model: nn.Module, path: Path, *, key: str | None = None) -> tuple[str, ...]:
    """Load weights that `read_checkpoint` reads; every name and shape must fit.

    Returns:
        What should be said aloud about it.

    Raises:
        ConfigError: When the file is not there, holds something else, or does not fit.
    """
    saved = read_checkpoint(path, key=key)
    put_weights(model, saved.tensors, path)
    return saved.notes


def put_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a model.

    Raises:
        ConfigError: Where a name or a shape does not fit; the model is as it was.
    """
    differences = describe_differences(model.state_dict(), tensors)
    if differences:
        raise ConfigError(f"{path} does not fit the model: {differences}")
    model.load_state_dict(tensors)
