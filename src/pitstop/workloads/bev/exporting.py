"""A model of bird's-eye views as a function of tensors, for other programs."""

import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from pitstop.train.task import ExportForm
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.data.dataset import RANDOM
from pitstop.workloads.bev.model.geometry import Cameras, Frame
from pitstop.workloads.bev.model.lift_splat import LssNet

_CAMERA_HEIGHT_M: Final = 1.5


class GroundLogits(nn.Module):
    """The logits of every class and cell; where points go is worked out from the cameras."""

    def __init__(self, model: LssNet) -> None:
        super().__init__()
        self.model = model

    def forward(  # noqa: PLR0917 - programs call it by position
        self,
        images: Tensor,
        intrinsics: Tensor,
        cam_to_ego: Tensor,
        image_transform: Tensor,
        bev_transform: Tensor,
    ) -> Tensor:
        """Segment (B, N, 3, H, W) bytes; matrices as in `batch.BevBatch`."""
        cameras = Cameras(intrinsics, cam_to_ego, image_transform, bev_transform)
        return self.model.segment(images, self.model.points_of(cameras))


def bev_export_form(model: LssNet, blank: BevBatch, *, frame: Frame) -> ExportForm:
    """Give a model with an example whose cameras look all around, or ahead.

    Args:
        model: In evaluation mode.
        blank: A batch of one, for its shapes.
        frame: Where the ground lies: around the car, or before its one camera.
    """
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, blank.images.shape, generator=draw, dtype=torch.uint8)
    batch = replace(
        blank,
        images=images,
        intrinsics=_intrinsics(*images.shape[-2:]).expand_as(blank.intrinsics).clone(),
        # Of no number: what is worked out for it must not be kept for a camera of the dataset.
        calibration=torch.full_like(blank.calibration, RANDOM),
        cam_to_ego=blank.cam_to_ego if frame == "camera" else _around(images.shape[1])[None],
    )
    names = ("images", "intrinsics", "cam_to_ego", "image_transform", "bev_transform")
    with torch.no_grad():
        expected = model.forward(batch)
    return ExportForm(
        module=GroundLogits(model),
        inputs={name: getattr(batch, name) for name in names},
        output="logits",
        expected=expected,
    )


def _intrinsics(height: int, width: int) -> Tensor:
    """A lens that sees about 70 degrees across."""
    focal = 0.7 * width
    return torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])


def _around(cameras: int) -> Tensor:
    """Poses of cameras that look evenly around a car, x ahead and z up."""
    poses = []
    for place in range(cameras):
        turn = 2 * math.pi * place / cameras
        ahead, left = math.cos(turn), math.sin(turn)
        # Columns: the camera's right, down and forward.
        poses.append(
            [[left, 0, ahead, 0], [-ahead, 0, left, 0], [0, -1, 0, _CAMERA_HEIGHT_M], [0, 0, 0, 1]]
        )
    return torch.tensor(poses, dtype=torch.float32)
