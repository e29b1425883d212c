"""Spikes as channels: each choice against loops over planes, in batches of unequal lengths."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.workloads.deblur.data.voxels import (
    NO_PLANE,
    Voxels,
    count_spikes,
    firing_shares,
    intervals,
    join_planes,
    middle_planes,
)
from pitstop.workloads.deblur.spike import count_bins


def spikes_of(lengths: list[int], *, seed: int, rate: float = 0.3) -> Tensor:
    """(len(lengths), 1, longest, 3, 4): each sample one frame."""
    random = np.random.default_rng(seed)
    clips = [
        torch.from_numpy((random.random((1, length, 3, 4)) < rate).astype(np.uint8))
        for length in lengths
    ]
    return join_planes(clips)


def centres(planes: int, bins: int) -> list[int]:
    return [int((k + 0.5) * planes / bins) for k in range(bins)]


def counts_by_hand(planes: np.ndarray, bins: int) -> np.ndarray:
    return count_bins(planes, bins)


def shares_by_hand(planes: np.ndarray, bins: int) -> np.ndarray:
    return np.stack(
        [planes[max(c - 3, 0) : c + 4].mean(axis=0) for c in centres(len(planes), bins)]
    )


def intervals_by_hand(planes: np.ndarray, bins: int) -> np.ndarray:
    out = np.zeros((bins, *planes.shape[1:]))
    for k, centre in enumerate(centres(len(planes), bins)):
        for y, x in np.ndindex(*planes.shape[1:]):
            fired = np.flatnonzero(planes[:, y, x])
            before, after = fired[fired <= centre], fired[fired > centre]
            if len(before) and len(after):
                out[k, y, x] = 1 / (after[0] - before[-1])
    return out


def middle_by_hand(planes: np.ndarray, bins: int) -> np.ndarray:
    first = (len(planes) - bins) // 2
    empty = np.zeros_like(planes[0])
    wanted = range(first, first + bins)
    return np.stack([planes[t] if 0 <= t < len(planes) else empty for t in wanted])


CHOICES: dict[str, tuple[Callable[..., Tensor], Callable[..., np.ndarray]]] = {
    "counts": (count_spikes, counts_by_hand),
    "tfp": (lambda spikes, bins: firing_shares(spikes, bins, reach=3), shares_by_hand),
    "tfi": (intervals, intervals_by_hand),
    "raw": (middle_planes, middle_by_hand),
}


@pytest.mark.parametrize("kind", CHOICES)
@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 23), min_size=1, max_size=3),
    bins=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_every_choice_equals_loops_over_planes(
    kind: str, lengths: list[int], bins: int, seed: int
) -> None:
    spikes = spikes_of(lengths, seed=seed)
    device_side, by_hand = CHOICES[kind]
    found = device_side(spikes, bins)
    assert found.shape == (len(lengths), 1, bins, 3, 4)
    for place, length in enumerate(lengths):
        wanted = by_hand(spikes[place, 0, :length].numpy(), bins)
        np.testing.assert_allclose(found[place, 0].numpy(), wanted, atol=1e-6)


def test_counts_lose_no_spike() -> None:
    spikes = spikes_of([88, 81], seed=0)
    counts = count_spikes(spikes, 32)
    torch.testing.assert_close(counts.sum(dim=2), (spikes == 1).sum(dim=2).float())
    assert counts.max() <= 3


def test_the_settings_choose_what_is_fed() -> None:
    spikes = spikes_of([20], seed=1)
    size = (3, 4)
    seen = {
        "counts": Voxels(bins=4, log1p=False)(spikes, size),
        "log": Voxels(bins=4)(spikes, size),
        "tfp": Voxels(kind="tfp", bins=4)(spikes, size),
        "near": Voxels(kind="tfp", bins=4, reach=1)(spikes, size),
        "tfi": Voxels(kind="tfi", bins=4)(spikes, size),
        "raw": Voxels(kind="raw", bins=4)(spikes, size),
    }
    torch.testing.assert_close(seen["log"], seen["counts"].log1p())
    names = list(seen)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            assert not torch.equal(seen[one], seen[other]), (one, other)


def test_counts_made_beforehand_are_taken_as_they_are() -> None:
    spikes = spikes_of([20], seed=1)
    counted = count_spikes(spikes, 4).to(torch.uint8)
    live, beforehand = Voxels(bins=4), Voxels(bins=4, counted=True)
    torch.testing.assert_close(beforehand(counted, (3, 4)), live(spikes, (3, 4)))


def test_channels_come_at_the_size_of_the_frames_in_full_precision() -> None:
    voxels = Voxels(kind="tfp", bins=5)
    spikes = spikes_of([20], seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        out = voxels(spikes, (6, 8))
    assert (out.shape, out.dtype) == ((1, 1, 5, 6, 8), torch.float32)
    torch.testing.assert_close(out, voxels(spikes, (6, 8)), rtol=0, atol=0)
    wanted = torch.nn.functional.interpolate(
        voxels(spikes, (3, 4))[0], scale_factor=2.0, mode="bilinear"
    )
    torch.testing.assert_close(out[0], wanted)


def test_planes_that_are_none_are_marked() -> None:
    joined = join_planes(
        [torch.zeros(2, 3, 1, 1, dtype=torch.uint8), torch.ones(2, 5, 1, 1).byte()]
    )
    assert joined.shape == (2, 2, 5, 1, 1)
    assert joined[0, :, 3:].unique().tolist() == [NO_PLANE]
    assert joined[0, :, :3].unique().tolist() == [0]


def test_no_spike_at_all_is_zero_everywhere() -> None:
    dark = torch.zeros(1, 2, 9, 2, 2, dtype=torch.uint8)
    for kind in ("counts", "tfp", "tfi", "raw"):
        assert not Voxels(kind=kind, bins=3)(dark, (4, 4)).any()
