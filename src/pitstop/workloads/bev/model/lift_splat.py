"""Lift, splat and segment: camera images to what lies on the ground.

Reading order of one pass: normalise the images, run the backbone and its neck, guess for every
feature how far away it looks (a weight for each depth) and what it is (a row of channels), sum the
weighted rows into the cells their points fall into, and read classes off the cells. `geometry.py`
says where points fall, `pitstop.kernels.splat` sums them.

Images travel as bytes and become numbers here. Logits come out as (B, classes, rows, columns),
rows forward and columns across, as `data/batch.py` has it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from pitstop.config.workloads.bev import LssModel, SurroundModel
from pitstop.errors import ConfigError
from pitstop.kernels import Kernels, has_triton
from pitstop.kernels import splat as splat_kernels
from pitstop.kernels.splat_columns_plan import join_column_plans
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.model.encoder import GroundEncoder, ImageNeck
from pitstop.workloads.bev.model.geometry import (
    RIGHT,
    Bound,
    Cameras,
    Conventions,
    Lift,
    LiftedPoints,
    SplatGrid,
    lifted_points,
)
from pitstop.workloads.bev.model.heads import MapHead, TopdownHead
from pitstop.workloads.bev.model.norms import NormKind
from pitstop.workloads.bev.model.swin import PATCH, SwinFeatures, swin_size

MEAN: Final = (123.675, 116.28, 103.53)
SPREAD: Final = (58.395, 57.12, 57.375)
"""Mean and standard deviation of ImageNet's red, green and blue, in levels of 0 to 255."""

MAX_KEPT_POINTS: Final = 2**25
"""Points of known calibrations that are kept, at 28 bytes each; six cameras have two million."""


_MONO_GRID: Final = SplatGrid(
    forward=(1.0, 50.0, 0.5), across=(-25.0, 25.0, 0.5), height=(-10.0, 10.0, 20.0), frame="camera"
)

RANDOM: Final = -1
"""Number of a calibration that nobody will see again."""

_NOT_COMPILED: Final = ("backbone", "splat")
"""Parts without layers to compile: one has blocks instead, one is a kernel of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LssSettings:
    """What a network is made of; defaults are those of the one-camera benchmark."""

    image_size: tuple[int, int] = (600, 800)
    backbone: str = "swin_t"
    out_stages: tuple[int, ...] = (3,)
    drop_path: float = 0.0
    weights: Path | None = None
    """Folder of backbone weights."""
    depth: Bound = (1.0, 50.0, 1.0)
    channels: int = 64
    """Channels of a lifted point."""
    grid: SplatGrid = _MONO_GRID
    conventions: Conventions = RIGHT
    heads: tuple[int, ...] = (14,)
    """Classes of each head; logits of all heads stand side by side."""
    priors: tuple[float, ...] = ()
    """Frequency of each class, from which the logits start; none for no opinion."""
    width: int = 128
    """Channels in the middle of the first blocks of the one-camera head, or of the first stage of
    the six-camera encoder."""
    neck_channels: int = 256
    """Channels of joined image features; used by the six-camera network alone."""
    encoder_channels: int = 256
    """Channels that six-camera heads read."""
    norm: NormKind = "batch"
    """Of the six-camera network's convolutions; the one-camera head has groups always."""
    target: tuple[Bound, Bound] | None = None
    """Forward and across bounds of the logits; None for the one-camera head, which halves the
    steps of the grid."""

    @property
    def lift(self) -> Lift:
        """The points of a camera: features are as fine as the finest stage that is used."""
        stride = PATCH * 2 ** min(self.out_stages)
        return Lift(image_size=self.image_size, stride=stride, depth=self.depth)


MONO: Final = LssSettings()
SURROUND: Final = LssSettings(
    image_size=(256, 704),
    out_stages=(1, 2, 3),
    drop_path=0.3,
    depth=(1.0, 60.0, 0.5),
    channels=80,
    grid=SplatGrid(
        forward=(-51.2, 51.2, 0.4),
        across=(-51.2, 51.2, 0.4),
        height=(-10.0, 10.0, 20.0),
        frame="ego",
    ),
    heads=(6,),
    width=160,
    target=((-50.0, 50.0, 0.5), (-50.0, 50.0, 0.5)),
)


class DepthNet(nn.Module):
    """How far away each feature looks, and what it sees."""

    def __init__(self, in_channels: int, *, lift: Lift, channels: int) -> None:
        super().__init__()
        self.lift = lift
        self.project = nn.Conv2d(in_channels, lift.num_bins + channels, 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(N, C, h, w) -> weights (N, rows, columns, depths), rows (N, rows, columns, channels).

        A backbone that pads its images gives a feature more than lies wholly in the image; it is
        left out.
        """
        rows, columns = self.lift.feature_size
        projected = self.project(features)[..., :rows, :columns].permute(0, 2, 3, 1)
        logits, seen = projected.split(
            (self.lift.num_bins, projected.shape[-1] - self.lift.num_bins), -1
        )
        return logits.float().softmax(-1).to(seen.dtype), seen.contiguous()


class Splat(nn.Module):
    """Sums lifted rows into the cells of the grid."""

    def __init__(self, grid: SplatGrid, *, kernels: Kernels) -> None:
        super().__init__()
        self.grid = grid
        self.kernels: Kernels = kernels
        self.splat = splat_kernels.dispatch(kernels)

    def forward(self, depth: Tensor, seen: Tensor, points: LiftedPoints) -> Tensor:
        """Give (B, heights * channels, rows, columns), laid out with channels last."""
        up, forward, across = self.grid.shape
        num_cells = points.num_samples * self.grid.num_cells
        sums = self.splat(
            depth,
            seen,
            points.ranks_depth,
            points.ranks_feat,
            points.ranks_bev,
            num_cells,
            points.plan,
        )
        shape = (forward, across) if points.rows_forward else (across, forward)
        planes = sums.view(points.num_samples, up, *shape, -1)
        return planes.permute(0, 1, 4, 2, 3).flatten(1, 2)

    def wants_plan(self, device: torch.device) -> bool:
        """Whether the version that runs on a device reads plans."""
        if self.kernels == "auto":
            return device.type == "cuda" and has_triton()
        return self.kernels == "fused"


class LssNet(nn.Module):
    """Lift-splat segmentation, from one camera or several.

    Args:
        settings: `MONO`, `SURROUND`, or something between.
        kernels: Which version of the splat and of attention to run; "reference" leaves attention
            to transformers.

    Raises:
        ConfigError: When settings do not fit together or a kernel is not there.
        DataError: When weights cannot be used.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, settings: LssSettings = MONO, *, kernels: Kernels = "auto") -> None:
        super().__init__()
        _check(settings)
        self.settings = settings
        self.splat = Splat(settings.grid, kernels=kernels)
        self.backbone = SwinFeatures(
            settings.backbone,
            out_stages=settings.out_stages,
            image_size=settings.image_size,
            drop_path=settings.drop_path,
            weights=settings.weights,
            kernels=kernels,
        )
        size = swin_size(settings.backbone)
        stages = [size.channels(stage) for stage in sorted(settings.out_stages)]
        self.neck: nn.Module | None = None
        if len(stages) > 1:
            self.neck = ImageNeck(stages, settings.neck_channels, norm=settings.norm)
        features = stages[0] if self.neck is None else settings.neck_channels
        self.depth_net = DepthNet(features, lift=settings.lift, channels=settings.channels)
        lifted = settings.channels * settings.grid.shape[0]
        self.encoder, self.head = _ground_parts(settings, lifted)
        spread = torch.tensor(SPREAD).view(3, 1, 1)
        self.register_buffer("scale", 1 / spread, persistent=False)
        self.register_buffer("shift", -torch.tensor(MEAN).view(3, 1, 1) / spread, persistent=False)
        self._kept: dict[tuple[torch.device, int], LiftedPoints] = {}

    def forward(self, batch: BevBatch) -> Tensor:
        """Segment a batch; its targets and mask are not read.

        Returns:
            (B, classes, rows, columns) logits.
        """
        return self.segment(batch.images, self.locate(batch))

    def segment(self, images: Tensor, points: LiftedPoints) -> Tensor:
        """Segment (B, N, 3, H, W) bytes whose lifted points go where `locate` said."""
        pictures = images.flatten(0, 1).to(self.scale.dtype) * self.scale + self.shift
        maps = self.backbone(pictures)
        features = maps[0] if self.neck is None else self.neck(maps)
        depth, seen = self.depth_net(features)
        ground = self.splat(depth, seen, points)
        return self.head(self.encoder(ground))

    def locate(self, batch: BevBatch) -> LiftedPoints:
        """Find the cells of a batch's points.

        A calibration that is known by its number is worked out once. The numbers are only looked
        at where they lie on the host: reading them back from a device would wait for it.
        """
        cameras = Cameras(
            batch.intrinsics, batch.cam_to_ego, batch.image_transform, batch.bev_transform
        )
        if batch.calibration.device.type != "cpu":
            return self.points_of(cameras)
        return self._known_points(cameras, batch.calibration)

    def points_of(self, cameras: Cameras) -> LiftedPoints:
        """Find the cells of the points of cameras, whether they are known or not."""
        settings = self.settings
        with_plan = self.splat.wants_plan(cameras.intrinsics.device)
        return lifted_points(
            cameras, settings.lift, settings.grid, settings.conventions, with_plan=with_plan
        )

    def regions(self) -> list[nn.Module]:
        """List what is worth compiling by itself: blocks of the backbone, layers behind it.

        None of them is a named part: hooks that time it would be compiled, too.
        """
        behind = [part for name, part in self.named_parts().items() if name not in _NOT_COMPILED]
        return [*self.backbone.blocks(), *(layers for part in behind for layers in _layers(part))]

    def named_parts(self) -> dict[str, nn.Module]:
        """Name the modules worth a time of their own: each runs once a pass, outside the others."""
        parts: dict[str, nn.Module] = {"backbone": self.backbone}
        if self.neck is not None:
            parts["neck"] = self.neck
        parts |= {"depth_net": self.depth_net, "splat": self.splat}
        if not isinstance(self.encoder, nn.Identity):
            parts["encoder"] = self.encoder
        return parts | {"head": self.head}

    @torch.compiler.disable()
    def _known_points(self, cameras: Cameras, calibration: Tensor) -> LiftedPoints:
        device = cameras.intrinsics.device
        keys = [(device, number) for number in calibration.tolist()]
        fresh = {key: here for here, key in enumerate(keys) if key not in self._kept}
        points_each = cameras.intrinsics.shape[1] * self.settings.lift.num_points
        free = MAX_KEPT_POINTS // points_each - len(self._kept)
        if (device, RANDOM) in fresh or len(fresh) > free:
            return self.points_of(cameras)
        # What an evaluation works out serves training, which must be able to keep it for backward.
        with torch.inference_mode(mode=False):
            for key, here in fresh.items():
                alone = Cameras(*(part[here : here + 1] for part in cameras))
                self._kept[key] = self.points_of(alone)
        return _join([self._kept[key] for key in keys], self.settings.grid.num_cells)


def settings_of(
    section: LssModel, image_size: tuple[int, int], *, classes: int, priors: Sequence[float] = ()
) -> LssSettings:
    """Read the settings of a network off its section of a configuration.

    Args:
        section: Of a one-camera or a six-camera network.
        image_size: Height and width of the network's images.
        classes: Number of classes to find.
        priors: Frequency of each class, from which the logits start; none for no opinion.
    """
    surround = isinstance(section, SurroundModel)
    extra = {}
    if surround:
        joined = section.encoder_channels
        extra = {"neck_channels": joined, "encoder_channels": joined, "norm": section.norm}
    return replace(
        SURROUND if surround else MONO,
        image_size=image_size,
        backbone=section.backbone,
        out_stages=section.out_stages,
        drop_path=section.drop_path,
        weights=section.weights,
        depth=section.depth,
        channels=section.channels,
        grid=SplatGrid(
            forward=section.forward_bound,
            across=section.x_bound,
            height=section.height_bound,
            frame="ego" if surround else "camera",
        ),
        heads=(classes,),
        priors=tuple(priors),
        width=section.head_width,
        **extra,
    )


def _layers(part: nn.Module) -> Iterator[nn.Module]:
    """Give what a part calls one after the other."""
    for child in part.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif isinstance(child, nn.Sequential):
            yield child


def _check(settings: LssSettings) -> None:
    if len(settings.out_stages) > 1 and settings.target is None:
        raise ConfigError(
            "several stages of the backbone are joined by the six-camera network alone"
        )
    rows, columns = settings.lift.feature_size
    if rows == 0 or columns == 0:
        raise ConfigError(
            f"data.image_size {list(settings.image_size)} is smaller than one feature of "
            f"{settings.lift.stride} pixels"
        )


def _ground_parts(settings: LssSettings, lifted: int) -> tuple[nn.Module, nn.Module]:
    """The encoder and the head."""
    if settings.target is None:
        head = TopdownHead(
            lifted, sum(settings.heads), width=settings.width, priors=settings.priors
        )
        return nn.Identity(), head
    grid, encoded = settings.grid, settings.encoder_channels
    encoder = GroundEncoder(lifted, width=settings.width, out_channels=encoded, norm=settings.norm)
    head = MapHead(
        encoded,
        settings.heads,
        source=(grid.forward, grid.across),
        target=settings.target,
        priors=settings.priors,
        norm=settings.norm,
    )
    return encoder, head


def _join(samples: list[LiftedPoints], num_cells: int) -> LiftedPoints:
    """Points of a batch from those of its samples."""
    first = samples[0]
    if len(samples) == 1:
        return first
    device, count = first.ranks_bev.device, len(samples)
    num_points = first.ranks_bev.numel()
    steps = torch.arange(count, device=device, dtype=torch.int32)[:, None]
    cells = torch.stack([sample.ranks_bev for sample in samples])
    cells = torch.where(cells < num_cells, cells + steps * num_cells, count * num_cells)
    numbers = torch.arange(count * num_points, device=device, dtype=torch.int32)
    plans = [sample.plan for sample in samples if sample.plan is not None]
    return LiftedPoints(
        numbers,
        numbers // first.num_bins,
        cells.flatten(),
        join_column_plans(plans) if plans else None,
        num_samples=count,
        num_bins=first.num_bins,
        rows_forward=first.rows_forward,
    )
