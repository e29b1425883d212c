"""Samples that hand over spikes as planes, and counts that were written beforehand."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from pitstop.config.workloads.deblur import DeblurData
from pitstop.data.cache.shared import SharedCache
from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import eval_clips, train_clips
from pitstop.workloads.deblur.data.planes import (
    CountedSamples,
    PlaneSamples,
    spike_eval_samples,
    spike_train_samples,
    write_counts,
)
from pitstop.workloads.deblur.data.voxels import NO_PLANE, count_spikes
from pitstop.workloads.deblur.spike import read_dat, write_dat
from pitstop.workloads.deblur.synthetic import make_clips


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_clips(tmp_path / "clips", clips={"train": 1, "test": 1}, frames=3, size=(32, 48), seed=0)
    return tmp_path / "clips"


def data_of(root: Path, **settings: object) -> DeblurData:
    sizes = {"spike_height": 16, "spike_width": 24, "voxel_bins": 5}
    return DeblurData.model_validate({"root": root, "crop": 16, "clip_len": 2, **sizes, **settings})


def test_planes_are_those_that_the_host_would_have_counted(root: Path) -> None:
    data = data_of(root)
    for planes, counted in (
        (spike_train_samples(data, (), seed=3), train_clips(data, (), seed=3, with_spikes=True)),
        (spike_eval_samples(data), eval_clips(data, with_spikes=True)),
    ):
        assert isinstance(planes, PlaneSamples)
        assert len(planes) == len(counted)
        for epoch in range(3):
            mine, theirs = planes.sample(epoch, 0), counted.sample(epoch, 0)
            assert torch.equal(mine.blur, theirs.blur)
            assert mine.spikes is not None
            assert theirs.spikes is not None
            counts = count_spikes(mine.spikes[None], 5)[0]
            assert torch.equal(counts, theirs.spikes.float())


def test_a_shorter_file_is_filled_up(root: Path) -> None:
    path = sorted((root / "test").glob("*/spike/*.dat"))[1]
    spikes = read_dat(path, height=16, width=24)
    write_dat(path, spikes[:-3])
    sample = spike_eval_samples(data_of(root)).sample(0, 0)
    assert sample.spikes is not None
    assert (sample.spikes[1, -3:] == NO_PLANE).all()
    assert (sample.spikes[0] <= 1).all()
    assert np.array_equal(sample.spikes[1, :-3].numpy(), spikes[:-3])


def test_planes_travel_and_are_cached(root: Path) -> None:
    samples = spike_train_samples(data_of(root), (), seed=0)
    wanted = samples.sample(1, 0).spikes
    assert wanted is not None
    with SharedCache(1 << 22, "keep") as cache:
        cached = samples.with_cache(cache)
        assert isinstance(cached, PlaneSamples)
        for _ in range(2):
            found = pickle.loads(pickle.dumps(samples)).sample(1, 0).spikes
            assert torch.equal(found, wanted)
            kept = cached.sample(1, 0).spikes
            assert kept is not None
            assert torch.equal(kept, wanted)
        assert cache.stats().hits > 0


def test_counts_written_beforehand_are_those_of_the_host(root: Path) -> None:
    live, beforehand = data_of(root), data_of(root, spikes="precomputed")
    assert [write_counts(live, split) for split in ("train", "test")] == [3, 3]
    samples = spike_train_samples(beforehand, (), seed=3)
    assert isinstance(samples, CountedSamples)
    wanted = train_clips(live, (), seed=3, with_spikes=True)
    for epoch in range(3):
        mine, theirs = samples.sample(epoch, 1), wanted.sample(epoch, 1)
        assert mine.spikes is not None
        assert theirs.spikes is not None
        assert torch.equal(mine.spikes, theirs.spikes)
        assert torch.equal(mine.sharp, theirs.sharp)
    assert not [key for key in samples.cache_keys(0) if key.endswith(".dat")]


def test_counts_do_not_need_the_spikes_any_more(root: Path) -> None:
    for split in ("train", "test"):
        write_counts(data_of(root), split)
    for path in root.rglob("*.dat"):
        path.unlink()
    assert spike_eval_samples(data_of(root, spikes="precomputed")).sample(0, 0).spikes is not None


def test_counts_that_are_missing_or_of_another_shape_are_named(root: Path) -> None:
    beforehand = data_of(root, spikes="precomputed")
    with pytest.raises(DataError, match=r"there is no .*spike_vox.*\.npy.*data\.spikes to live"):
        spike_eval_samples(beforehand)
    write_counts(data_of(root), "test")
    spike_eval_samples(beforehand)
    with pytest.raises(DataError, match=r"uint8 of shape 5x16x24, not uint8 of 7x16x24"):
        spike_eval_samples(data_of(root, spikes="precomputed", voxel_bins=7))
    path = next(root.glob("test/*/spike_vox/*.npy"))
    path.write_bytes(b"junk")
    with pytest.raises(DataError, match=f"{path.name} is not an array of counts"):
        spike_eval_samples(beforehand)


def test_a_pack_has_no_counts(root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "clips.pack"
    pack.write_bytes(b"")
    with pytest.raises(DataError, match="is a pack, which holds spikes and no counts"):
        write_counts(data_of(pack), "train")


def test_a_file_of_counts_that_cannot_be_written_leaves_nothing_behind(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match=r"cannot write .*\.npy: No space left"):
        write_counts(data_of(root), "test")
    assert not [path for path in root.glob("test/*/spike_vox/*") if path.is_file()]
