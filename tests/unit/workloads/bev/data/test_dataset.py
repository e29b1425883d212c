"""Samples: what they show, what they are a function of, and what is wrong with their files."""

import dataclasses
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pitstop.config.workloads.bev import MonoData, SurroundData
from pitstop.data.cache.cached_samples import CacheableSamples
from pitstop.data.cache.shared import SharedCache
from pitstop.data.loader.fetch import NamedSamples
from pitstop.errors import ConfigError, DataError
from pitstop.workloads.bev.data.batch import BevSample, collate
from pitstop.workloads.bev.data.dataset import (
    RANDOM,
    MonoSamples,
    SurroundSamples,
    mono_eval,
    mono_train,
    surround_eval,
    surround_train,
)
from pitstop.workloads.bev.data.index import CAMERAS, BevIndex
from pitstop.workloads.bev.data.pon import PON_GRID, write_labels
from pitstop.workloads.bev.data.poses import inverse, moved
from pitstop.workloads.bev.data.targets import SURROUND_CLASSES, SURROUND_GRID, visible_boxes

torch.set_num_threads(1)

SIZE = (128, 352)


def surround(root: Path, **options: Any) -> SurroundData:
    settings: dict[str, Any] = {
        "root": root,
        "version": "v1.0-mini",
        "image_size": SIZE,
        "resize": (0.8, 1.1),
        "photometric": False,
    }
    return SurroundData(**(settings | options))


def mono(root: Path, **options: Any) -> MonoData:
    return MonoData(root=root, version="v1.0-mini", image_size=(96, 128), **options)


def equal(one: BevSample, two: BevSample) -> bool:
    names = [part.name for part in dataclasses.fields(BevSample)]
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in names)


def test_a_surround_sample_has_six_cameras_and_all_classes(world_root: Path) -> None:
    samples = surround_eval(surround(world_root))
    assert len(samples) == 2
    sample = samples.sample(0, 0)
    assert sample.images.shape == (6, 3, *SIZE)
    assert sample.images.dtype == sample.targets.dtype == sample.mask.dtype == torch.uint8
    assert sample.targets.shape == (len(SURROUND_CLASSES), *SURROUND_GRID.shape)
    assert sample.targets.max() == 1
    assert sample.mask.min() == 1
    assert torch.equal(sample.bev_transform, torch.eye(4))
    assert collate([sample, samples.sample(0, 1)]).images.shape == (2, 6, 3, *SIZE)


def test_a_mono_sample_is_one_camera_in_its_own_frame(world_root: Path) -> None:
    samples = mono_eval(mono(world_root))
    assert len(samples) == 2 * 6
    sample = samples.sample(0, 7)
    assert sample.images.shape == (1, 3, 96, 128)
    assert sample.targets.shape == (14, *PON_GRID.shape)
    assert torch.equal(sample.cam_to_ego[0], torch.eye(4))
    assert 0 < sample.mask.float().mean() < 1
    # The whole image, without keeping its ratio.
    corner = sample.image_transform[0] @ torch.tensor([399.5, 224.5, 1.0])
    torch.testing.assert_close(corner, torch.tensor([127.5, 95.5, 1.0]))


def test_a_sample_is_a_function_of_seed_epoch_and_index(world_root: Path) -> None:
    data = surround(world_root, photometric=True, cameras=5)
    samples, again = surround_train(data, seed=3), surround_train(data, seed=3)
    first = samples.sample(1, 1)
    samples.sample(0, 0)
    assert equal(first, samples.sample(1, 1))
    assert equal(first, again.sample(1, 1))
    assert not equal(first, samples.sample(2, 1))
    assert not equal(first, surround_train(data, seed=4).sample(1, 1))
    assert first.images.shape[0] == 5
    photos = mono_train(mono(world_root), seed=3)
    assert equal(photos.sample(1, 4), photos.sample(1, 4))
    assert not equal(photos.sample(1, 4), photos.sample(2, 4))


def test_samples_travel_to_workers(world_root: Path) -> None:
    for samples in (surround_train(surround(world_root), seed=0), mono_eval(mono(world_root))):
        copy = pickle.loads(pickle.dumps(samples))
        assert equal(copy.sample(0, 1), samples.sample(0, 1))


def test_equal_calibrations_mean_equal_geometry(world_root: Path) -> None:
    names = ("intrinsics", "cam_to_ego", "image_transform", "bev_transform")
    data = mono(world_root, split="mini_train")
    samples = [mono_train(data, seed=0).sample(0, number) for number in range(12)]
    numbers = [int(sample.calibration) for sample in samples]
    # Two moments of one scene: the rig is the same, its cameras differ.
    assert numbers[:6] == numbers[6:]
    assert len(set(numbers)) == 6
    assert min(numbers) >= 0
    for one, two in zip(samples[:6], samples[6:], strict=True):
        assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in names)
    evaluated = surround_eval(surround(world_root))
    assert int(evaluated.sample(0, 0).calibration) == int(evaluated.sample(0, 1).calibration) >= 0


@pytest.mark.parametrize("option", [{}, {"bev_augment": False}, {"flip": False}, {"cameras": 5}])
def test_geometry_drawn_at_random_says_so(world_root: Path, option: dict[str, Any]) -> None:
    samples = surround_train(surround(world_root, **option), seed=0)
    assert int(samples.sample(0, 0).calibration) == RANDOM


def cones(index: BevIndex, sample: int) -> np.ndarray:
    """Give world points in the orange upper part of cones that are all visible and near."""
    boxes = visible_boxes(index, sample, ("movable_object.trafficcone",), min_visibility=4)
    points = index.box_pose[boxes, :3].copy()
    points[:, 2] += 0.3 * index.box_size[boxes, 2]
    near = np.hypot(*(points - index.ego_to_world(sample)[:3, 3])[:, :2].T) < 22
    return points[near]


def colours_of(samples: SurroundSamples, epoch: int, number: int) -> list[np.ndarray]:
    """Read the colours of cones where a sample's own matrices say they are."""
    sample = samples.sample(epoch, number)
    place = int(samples.frames.chosen[number])
    index = samples.frames.index
    ego = moved(inverse(index.ego_to_world(place)), cones(index, place))
    found = []
    for camera in range(len(sample.images)):
        there = moved(np.linalg.inv(sample.cam_to_ego[camera].double().numpy()), ego)
        pixels = there[there[:, 2] > 0.5] @ sample.intrinsics[camera].double().numpy().T
        shown = (pixels / pixels[:, 2:]) @ sample.image_transform[camera].double().numpy().T
        u, v = np.rint(shown[:, :2]).astype(int).T
        inside = (u > 2) & (u < SIZE[1] - 3) & (v > 2) & (v < SIZE[0] - 3)
        image = sample.images[camera].permute(1, 2, 0).numpy().astype(int)
        found.extend(image[v[inside], u[inside]])
    return found


@pytest.mark.parametrize("augmented", [False, True])
def test_points_project_onto_what_is_rendered_there(world_root: Path, augmented: bool) -> None:
    """An orange thing of the tables is orange in the picture, turned and mirrored or not."""
    data = surround(world_root, eval_split="mini_train", resize=(0.9, 1.3))
    samples = surround_train(data, seed=0) if augmented else surround_eval(data)
    found = [
        colour
        for epoch in range(6 if augmented else 1)
        for number in range(len(samples))
        for colour in colours_of(samples, epoch, number)
    ]
    orange = [red > 1.35 * green and green > 1.3 * blue for red, green, blue in found]
    assert len(orange) >= 5
    assert np.mean(orange) > 0.85


def test_the_ground_turns_with_its_target(world_root: Path) -> None:
    samples = surround_train(surround(world_root), seed=0)
    index = samples.frames.index
    place = int(samples.frames.chosen[0])
    for epoch in range(4):
        sample = samples.sample(epoch, 0)
        boxes = visible_boxes(index, place, ("vehicle.car",), min_visibility=1)
        ego = moved(inverse(index.ego_to_world(place)), index.box_pose[boxes, :3])
        at = SURROUND_GRID.cells(moved(sample.bev_transform.double().numpy(), ego)[:, :2])
        cells = at[((at > 3) & (at < 197)).all(axis=1)].astype(int)
        vehicle = sample.targets[SURROUND_CLASSES.index("vehicle")]
        assert vehicle[cells[:, 0], cells[:, 1]].float().mean() == 1


def test_labels_are_read_where_there_are_files(world_root: Path, tmp_path: Path) -> None:
    made = mono_eval(mono(world_root))
    index, chosen = made.frames.index, made.frames.chosen
    wanted = np.zeros((14, *PON_GRID.shape), np.bool_)
    wanted[3, 5, 6] = True
    with pytest.raises(DataError, match="cannot look into"):
        mono_eval(mono(world_root, labels=tmp_path / "none"))
    with pytest.raises(DataError, match="lacks 12 label files"):
        mono_eval(mono(world_root, labels=tmp_path))
    for token in index.file_tokens[chosen, :6].ravel().tolist():
        write_labels(tmp_path / f"{token.decode()}.png", (wanted, wanted[3]))
    sample = mono_eval(mono(world_root, labels=tmp_path)).sample(0, 3)
    assert torch.equal(sample.targets.bool(), torch.from_numpy(wanted))
    assert sample.mask.sum() == 1


def test_samples_have_names_and_scenes(world_root: Path) -> None:
    six, one = surround_eval(surround(world_root)), mono_eval(mono(world_root))
    assert isinstance(six, NamedSamples)
    assert isinstance(one, NamedSamples)
    assert six.name_of(1).startswith("scene-0103, samples/CAM_FRONT/")
    assert one.name_of(11).startswith(f"scene-0103, samples/{CAMERAS[5]}/")
    assert len(one.sequences) == len(one)
    assert set(six.sequences.tolist()) == set(one.sequences.tolist())


def first_image(samples: SurroundSamples | MonoSamples) -> Path:
    place = int(samples.frames.chosen[0])
    return samples.frames.root / samples.frames.index.file(place, 0)


def test_files_that_cannot_be_used_are_named(own_root: Path) -> None:
    samples = surround_eval(surround(own_root))
    path = first_image(samples)
    whole = path.read_bytes()
    for data, words in (
        (b"", "is damaged: it is empty"),
        (b"not a picture", "is damaged: it is not an image"),
        (whole[: len(whole) // 3], "is damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=words) as caught:
            samples.sample(0, 0)
        assert str(path) in str(caught.value)
    Image.new("RGB", (40, 30)).save(path)
    with pytest.raises(DataError, match=r"is 30x40, but sample_data\.json says 225x400"):
        samples.sample(0, 0)
    path.unlink()
    with pytest.raises(DataError, match="cannot read"):
        samples.sample(0, 0)
    with pytest.raises(DataError, match=f"lacks 1 images .* such as {path.name}"):
        surround_eval(surround(own_root))


VIEWS: dict[str, dict[str, Any]] = {
    "whole pixels": {"rotate_deg": 0, "flip": False, "resize": (0.9, 1.0)},
    "mirrored": {"rotate_deg": 0, "flip": True, "resize": (0.9, 1.0)},
    "turned": {"rotate_deg": 5.4, "flip": True},
    "black at the sides": {"rotate_deg": 0, "flip": True, "resize": (0.6, 0.7)},
    "reduced or not": {"resize": (0.45, 0.7), "image_size": (64, 176), "photometric": True},
    "fixed ground": {"bev_augment": False},
}
KEPT = {"reduced or not": {1, 2}, "fixed ground": {1, "drawn"}, "one camera": {2, "drawn"}}


def cacheable(root: Path, view: str) -> SurroundSamples | MonoSamples:
    if view == "one camera":
        return mono_train(mono(root), seed=2)
    return surround_train(surround(root, **VIEWS[view]), seed=2)


@pytest.mark.parametrize("view", [*VIEWS, "one camera"])
@pytest.mark.parametrize("policy", ["keep", "lru"])
def test_a_cache_changes_no_byte(world_root: Path, view: str, policy: Any) -> None:
    samples = cacheable(world_root, view)
    assert isinstance(samples, CacheableSamples)
    with SharedCache(32 << 20, policy) as cache:
        cached = samples.with_cache(cache)
        for epoch in (1, 2, 2):
            for index in range(len(samples)):
                assert equal(cached.sample(epoch, index), samples.sample(epoch, index))
        assert cache.stats().hits > cache.stats().misses == cache.stats().items > 0


def read_elsewhere(samples: SurroundSamples | MonoSamples, answer: Any) -> None:
    torch.set_num_threads(1)
    sample = samples.sample(3, 1)
    names = [part.name for part in dataclasses.fields(BevSample)]
    answer.send([getattr(sample, name).numpy() for name in names])


@pytest.mark.parametrize("view", ["mirrored", "one camera"])
def test_a_worker_finds_what_another_process_kept(own_root: Path, view: str) -> None:
    samples = cacheable(own_root, view)
    wanted = samples.sample(3, 1)
    with SharedCache(32 << 20) as cache:
        cached = samples.with_cache(cache)
        cached.sample(3, 1)
        misses = cache.stats().misses
        # Nothing but the cache has these images any more.
        for path in (own_root / "samples").glob("CAM_*/*"):
            path.write_bytes(b"")
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe(duplex=False)
        worker = context.Process(target=read_elsewhere, args=(cached, there))
        worker.start()
        there.close()
        parts = map(torch.from_numpy, here.recv())
        names = [part.name for part in dataclasses.fields(BevSample)]
        found = BevSample(**dict(zip(names, parts, strict=True)))
        worker.join()
        assert equal(found, wanted)
        assert cache.stats().hits == cache.stats().misses == misses > 0


@pytest.mark.parametrize("view", [*VIEWS, "one camera"])
def test_a_cache_is_asked_for_what_was_foretold(world_root: Path, view: str) -> None:
    samples = cacheable(world_root, view)
    with SharedCache(32 << 20) as cache:
        cached = samples.with_cache(cache)
        for epoch in range(6):
            cached.sample(epoch, 0)
        expected = set(samples.cache_keys(0))
        assert all(cache.get(key) is not None for key in expected)
        assert cache.stats().items == len(expected)
    assert {key[1] for key in expected if isinstance(key, tuple)} == KEPT.get(view, {1})


def test_a_file_that_was_damaged_is_named_in_spite_of_a_cache(own_root: Path) -> None:
    samples = surround_train(surround(own_root), seed=0)
    path = first_image(samples)
    whole = path.read_bytes()
    with SharedCache(32 << 20) as cache:
        cached = samples.with_cache(cache)
        for data in (b"", whole[: len(whole) // 3]):
            path.write_bytes(data)
            with pytest.raises(DataError, match="is damaged") as caught:
                cached.sample(0, 0)
            assert str(path) in str(caught.value)
        assert cache.get(next(iter(samples.cache_keys(0)))) is None
        path.write_bytes(whole)
        assert equal(cached.sample(0, 0), samples.sample(0, 0))


def test_a_missing_map_version_split_or_root_is_said_at_once(own_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.root"):
        surround_eval(surround(own_root).model_copy(update={"root": None}))
    with pytest.raises(DataError, match=r"no version v1\.0-test"):
        mono_eval(mono(own_root).model_copy(update={"version": "v1.0-test"}))
    with pytest.raises(DataError, match="has no split test; it has mini_train, mini_val"):
        surround_eval(surround(own_root, eval_split="test"))
    for path in (own_root / "maps" / "expansion").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="map expansion of nuScenes is a download of its own"):
        surround_eval(surround(own_root))


def test_a_split_without_scenes_is_said(own_root: Path) -> None:
    (own_root / "splits.json").write_text('{"val": ["scene-0001"]}')
    with pytest.raises(DataError, match="no scene of the split val; it has scene-0061, scene-0103"):
        surround_eval(surround(own_root))
