"""Records side by side."""

from dataclasses import fields

import torch

from pitstop.workloads.reid.data.batch import ReidBatch, ReidSample, collate

torch.set_num_threads(1)


def sample(row: int, *, level: int = 9) -> ReidSample:
    return ReidSample(
        images=torch.full((4, 3, 6, 5), level, dtype=torch.uint8),
        present=torch.tensor([True, False, True, False, True]),
        tokens=torch.arange(7),
        person=row + 10,
        camera=-1,
        row=row,
    )


def test_records_stand_side_by_side_as_bytes() -> None:
    batch = collate([sample(0), sample(3)])
    assert batch.images.shape == (2, 4, 3, 6, 5)
    assert batch.images.dtype is torch.uint8
    assert batch.present.dtype is torch.bool
    assert batch.persons.tolist() == [10, 13]
    assert batch.cameras.tolist() == [-1, -1]
    assert batch.rows.tolist() == [0, 3]
    for name in ("tokens", "persons", "cameras", "rows"):
        assert getattr(batch, name).dtype is torch.int64


def test_a_black_image_is_an_image() -> None:
    # What a record has is what its metadata say, not what its pixels add up to.
    assert collate([sample(0, level=0)]).present.tolist() == [[True, False, True, False, True]]


def test_every_field_goes_to_the_device_and_the_mask_can_still_be_read() -> None:
    batch = collate([sample(0)])
    moved = batch.to(torch.device("meta"))
    names = {item.name for item in fields(ReidBatch)} - {"present_on_host"}
    assert all(getattr(moved, name).is_meta for name in names)
    assert moved.present_on_host is batch.present_on_host
    assert batch.present_on_host.equal(batch.present)
