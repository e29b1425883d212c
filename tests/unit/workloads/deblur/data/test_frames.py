"""Parts of files, with and without a cache between: the same bytes, and damage with its name."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from pitstop.config.sections import LoaderSection
from pitstop.config.workloads.deblur import DeblurData
from pitstop.data.cache.cached_samples import CacheableSamples
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.batches import build_loader
from pitstop.data.sampling.samplers import ShuffledBatches
from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import ClipSample, ClipSamples, train_clips
from pitstop.workloads.deblur.data.frames import FileReader
from pitstop.workloads.deblur.spike import Window
from pitstop.workloads.deblur.synthetic import make_clips

torch.set_num_threads(1)

HEIGHT, WIDTH, FRAMES, CLIPS = 32, 48, 6, 2
PART = Window(3, 5, 16, 16)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames") / "clips"
    make_clips(folder, clips={"train": CLIPS}, frames=FRAMES, size=(HEIGHT, WIDTH), seed=0)
    return folder


def samples_of(root: Path) -> ClipSamples:
    data = DeblurData.model_validate(
        {
            "root": root,
            "crop": 16,
            "clip_len": 3,
            "spike_height": HEIGHT // 2,
            "spike_width": WIDTH // 2,
            "voxel_bins": 4,
        }
    )
    return train_clips(data, (), seed=0, with_spikes=True)


def equal(one: ClipSample, other: ClipSample) -> bool:
    assert one.spikes is not None
    assert other.spikes is not None
    pairs = ((one.blur, other.blur), (one.sharp, other.sharp), (one.spikes, other.spikes))
    return all(torch.equal(left, right) for left, right in pairs)


@pytest.mark.parametrize("policy", ["keep", "lru", "epoch"])
def test_samples_are_the_same_from_files_and_from_a_cache(root: Path, policy: str) -> None:
    samples = samples_of(root)
    assert isinstance(samples, CacheableSamples)
    with SharedCache(8 << 20, policy) as cache:  # type: ignore[arg-type]
        cached = samples.with_cache(cache)
        for epoch in range(3):
            for index in range(len(samples)):
                assert equal(cached.sample(epoch, index), samples.sample(epoch, index))
        stats = cache.stats()
    files = CLIPS * FRAMES * 3
    assert (stats.items, stats.misses) == (files, files)
    assert stats.hits == 3 * len(samples) * 9 - files
    # Spikes lie there as bits: eight to the byte.
    frame_bytes = CLIPS * FRAMES * 2 * HEIGHT * WIDTH * 3
    assert stats.used_bytes < frame_bytes * 1.5


def test_a_cache_too_small_for_all_still_gives_the_same_samples(root: Path) -> None:
    samples = samples_of(root)
    for policy in ("keep", "lru", "epoch"):
        with SharedCache(140 << 10, policy) as cache:
            cached = samples.with_cache(cache)
            if policy == "epoch":
                order = [key for index in range(len(samples)) for key in samples.cache_keys(index)]
                cache.set_order(order * 2)
            for epoch in range(2):
                for index in range(len(samples)):
                    assert equal(cached.sample(epoch, index), samples.sample(epoch, index))
            assert cache.stats().items < CLIPS * FRAMES * 3


def test_a_sample_asks_for_what_it_says_it_will_ask_for(root: Path) -> None:
    asked: list[str] = []

    class Listening(SharedCache):
        def get(self, key: object, **options: object) -> None:
            asked.append(str(key))

    samples = samples_of(root)
    with Listening(8 << 20) as cache:
        samples.with_cache(cache).sample(0, 5)
    assert asked == list(samples.cache_keys(5))
    assert len(asked) == 9
    assert all(Path(key).is_file() for key in asked)


def test_samples_with_a_cache_travel_to_workers(root: Path) -> None:
    samples = samples_of(root)
    with SharedCache(8 << 20) as cache:
        cached = samples.with_cache(cache)
        travelled = pickle.loads(pickle.dumps(cached))
        travelled.sample(0, 0)
        cached.sample(0, 0)
        assert cache.stats().hits == 9


def test_workers_fill_one_cache_together(root: Path) -> None:
    def first(taken: list[ClipSample]) -> torch.Tensor:
        return taken[0].blur

    samples = samples_of(root)
    order = ShuffledBatches(len(samples), 1, seed=0, drop_last=True)
    with SharedCache(8 << 20) as cache:
        section = LoaderSection(workers=2)
        with build_loader(samples.with_cache(cache), order, first, section) as loader:
            for epoch in range(2):
                loader.set_epoch(epoch)
                list(loader)
        assert cache.stats().items == CLIPS * FRAMES * 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"no picture at all", "it is not an image"),
    ],
)
def test_a_damaged_image_is_told_with_its_path(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "000007.png"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        FileReader().frame(path, PART)
    assert str(caught.value) == f"{path} is damaged: {words}"


def test_an_image_cut_off_is_told_with_its_path(root: Path, tmp_path: Path) -> None:
    whole = next((root / "train").rglob("*.png")).read_bytes()
    path = tmp_path / "cut.png"
    sums_and_end = 24  # after the last pixel: two checksums and the end's own block
    for length in range(0, len(whole) - sums_and_end, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut\.png is damaged"):
            FileReader().frame(path, PART)


def test_a_part_is_cut_where_it_was_asked_for(root: Path) -> None:
    path = next((root / "train").rglob("*.png"))
    whole = FileReader().frame(path, Window(0, 0, HEIGHT, WIDTH))
    np.testing.assert_array_equal(FileReader().frame(path, PART), whole[3:19, 5:21])


def test_a_file_that_breaks_while_training_is_named_in_the_count(root: Path) -> None:
    samples = samples_of(root)
    order = ShuffledBatches(len(samples), 1, seed=0, drop_last=True)
    path = sorted((root / "train").rglob("sharp/*.png"))[4]
    content = path.read_bytes()
    path.write_bytes(b"")
    try:
        section = LoaderSection(workers=1, corrupt="skip")
        with build_loader(samples, order, len, section) as loader:
            for epoch in range(2):
                loader.set_epoch(epoch)
                list(loader)
            # One entry a sample it is part of, the same words each time it is met.
            assert len(loader.skipped) == 2
            assert all(f"{path} is damaged: it is empty" in text for text in loader.skipped)
            assert set(loader.skipped.values()) <= {2, 3, 4}
    finally:
        path.write_bytes(content)
