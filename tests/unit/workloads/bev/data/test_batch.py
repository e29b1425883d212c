"""Samples side by side."""

import dataclasses

import torch

from pitstop.data.loader.prefetch import on_device
from pitstop.data.tensors import bytes_in
from pitstop.workloads.bev.data.batch import BevBatch, BevSample, collate


def sample(number: int) -> BevSample:
    return BevSample(
        images=torch.full((6, 3, 4, 5), number, dtype=torch.uint8),
        intrinsics=torch.eye(3).expand(6, 3, 3),
        cam_to_ego=torch.eye(4).expand(6, 4, 4),
        image_transform=torch.eye(3).expand(6, 3, 3),
        bev_transform=torch.eye(4),
        calibration=torch.tensor(number),
        targets=torch.zeros(2, 7, 8, dtype=torch.uint8),
        mask=torch.ones(7, 8, dtype=torch.uint8),
    )


def test_a_batch_has_every_field_of_its_samples_in_order() -> None:
    batch = collate([sample(3), sample(5)])
    assert batch.calibration.tolist() == [3, 5]
    assert batch.calibration.dtype == torch.int64
    assert batch.images[:, 0, 0, 0, 0].tolist() == [3, 5]
    for part in dataclasses.fields(BevSample):
        one, both = getattr(sample(3), part.name), getattr(batch, part.name)
        assert both.shape == (2, *one.shape)
        assert both.dtype == one.dtype


def test_a_batch_moves_as_a_whole() -> None:
    batch = collate([sample(1)])
    moved = on_device(batch, torch.device("meta"))
    assert isinstance(moved, BevBatch)
    assert {getattr(moved, part.name).device.type for part in dataclasses.fields(moved)} == {"meta"}
    assert bytes_in(moved) == bytes_in(batch)
