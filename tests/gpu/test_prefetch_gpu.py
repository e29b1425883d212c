"""Copies on a side stream: the same numbers, no waiting, and memory that is not reused too soon."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pitstop.data.loader.prefetch import DevicePrefetcher

pytestmark = pytest.mark.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    image: Tensor
    names: list[str]


def batches(count: int, numbers: int, *, pinned: bool) -> list[Batch]:
    tensors = [torch.full((numbers,), float(at)) for at in range(count)]
    if pinned:
        tensors = [tensor.pin_memory() for tensor in tensors]
    return [Batch(image=tensor, names=[str(at)]) for at, tensor in enumerate(tensors)]


@pytest.mark.parametrize("pinned", [True, False])
def test_batches_arrive_whole_and_in_order(pinned: bool) -> None:
    source = batches(20, 1 << 20, pinned=pinned)
    for at, batch in enumerate(DevicePrefetcher(source, "cuda")):
        assert batch.image.device.type == "cuda"
        assert batch.names == [str(at)]
        assert torch.equal(batch.image.cpu(), source[at].image)


def test_work_that_lags_behind_sees_its_own_batch() -> None:
    """The host runs far ahead of the device, so freed memory is offered for reuse early."""
    source = batches(30, 1 << 22, pinned=True)
    weights = torch.randn(2048, 2048, device="cuda")
    seen = []
    for batch in DevicePrefetcher(source, "cuda"):
        for _ in range(20):
            weights = torch.nn.functional.normalize(weights @ weights)
        # Queued after the slow products; by the time it runs the host has let go of the batch.
        seen.append(torch.stack(batch.image.aminmax()))
        del batch
    assert torch.stack(seen).tolist() == [[at, at] for at in range(30)]


def test_the_host_never_waits_for_the_device() -> None:
    source = batches(5, 1 << 20, pinned=True)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [batch.image * 2 for batch in DevicePrefetcher(source, "cuda")]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert [int(image[0].item()) for image in found] == [0, 2, 4, 6, 8]


def test_work_on_another_stream_than_the_default_waits_for_its_batch() -> None:
    source = batches(10, 1 << 22, pinned=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        seen = [torch.stack(batch.image.aminmax()) for batch in DevicePrefetcher(source, "cuda")]
        found = torch.stack(seen).tolist()
    assert found == [[at, at] for at in range(10)]


def test_leaving_early_and_starting_over_both_work() -> None:
    prefetcher = DevicePrefetcher(batches(6, 1 << 20, pinned=True), "cuda")
    assert int(next(iter(prefetcher)).image[0].item()) == 0
    assert [int(batch.image[0].item()) for batch in prefetcher] == [0, 1, 2, 3, 4, 5]


def test_what_is_on_the_device_already_is_not_copied() -> None:
    image = torch.ones(8, device="cuda")
    [batch] = DevicePrefetcher([{"image": image}], "cuda")
    assert batch["image"].data_ptr() == image.data_ptr()
