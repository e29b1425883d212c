"""Samples are the parts of files they claim to be, and files that do not fit are named."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pitstop.config.workloads.deblur import DeblurData
from pitstop.errors import ConfigError, DataError
from pitstop.workloads.deblur.data.dataset import (
    ClipSample,
    ClipSamples,
    eval_clips,
    spike_size,
    train_clips,
)
from pitstop.workloads.deblur.data.packing import check_clips
from pitstop.workloads.deblur.spike import count_bins, read_dat, write_dat
from pitstop.workloads.deblur.synthetic import make_clips

HEIGHT, WIDTH, FRAMES = 32, 48, 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dataset") / "clips"
    clips = {"train": 2, "test": 1}
    make_clips(root, clips=clips, frames=FRAMES, size=(HEIGHT, WIDTH), seed=0)
    return root


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made, tmp_path / "clips"))


def section(root: Path | None, **settings: object) -> DeblurData:
    return DeblurData.model_validate(
        {
            "root": root,
            "crop": 16,
            "clip_len": 2,
            "spike_height": HEIGHT // 2,
            "spike_width": WIDTH // 2,
            "voxel_bins": 4,
            **settings,
        }
    )


def samples_of(
    root: Path, *, spikes: bool = True, seed: int = 0, **settings: object
) -> ClipSamples:
    return train_clips(section(root, **settings), (), seed=seed, with_spikes=spikes)


def equal(one: ClipSample, other: ClipSample) -> bool:
    assert one.spikes is not None
    assert other.spikes is not None
    return (
        torch.equal(one.blur, other.blur)
        and torch.equal(one.sharp, other.sharp)
        and torch.equal(one.spikes, other.spikes)
        and one.clip == other.clip
    )


def image(path: Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened).transpose(2, 0, 1)


def test_samples_slide_over_every_clip(made: Path) -> None:
    samples = samples_of(made)
    assert len(samples) == 2 * (FRAMES - 1)
    assert samples.starts[:, :2].tolist() == [[clip, at] for clip in (0, 1) for at in range(4)]
    assert len(samples_of(made, clip_stride=3)) == 2 * 2
    assert len(samples_of(made, clip_len=FRAMES)) == 2


@settings(max_examples=25, deadline=None)
@given(epoch=st.integers(0, 1000), index=st.integers(0, 7))
def test_frames_and_spikes_show_the_same_part_turned_alike(
    made: Path, epoch: int, index: int
) -> None:
    samples = samples_of(made)
    sample, view = samples.sample(epoch, index), samples.view(epoch, index)
    top, left, height, width = view.window
    assert (height, width) == (16, 16)
    assert 0 <= top <= HEIGHT - 16
    assert 0 <= left <= WIDTH - 16
    clip, first = index // 4, index % 4
    folder = made / "train" / f"MADE{clip:04d}_07_00"

    def turned(planes: np.ndarray) -> np.ndarray:
        if view.flip_rows:
            planes = np.flip(planes, -2)
        if view.flip_columns:
            planes = np.flip(planes, -1)
        return np.moveaxis(planes, -1, -2) if view.transpose else planes

    assert sample.spikes is not None
    assert sample.clip == clip
    for place in range(2):
        name = f"{first + place:06d}"
        for kind, found in (("blur", sample.blur), ("sharp", sample.sharp)):
            whole = image(folder / kind / f"{name}.png")
            wanted = turned(whole[:, top : top + 16, left : left + 16])
            np.testing.assert_array_equal(found[place].numpy(), wanted)
        spikes = read_dat(folder / "spike" / f"{name}.dat", height=HEIGHT // 2, width=WIDTH // 2)
        cut = spikes[:, top // 2 : top // 2 + 8, left // 2 : left // 2 + 8]
        assert top % 2 == left % 2 == 0
        np.testing.assert_array_equal(sample.spikes[place].numpy(), turned(count_bins(cut, 4)))


def test_a_sample_is_a_function_of_seed_epoch_and_index(made: Path) -> None:
    samples = samples_of(made)
    first = samples.sample(3, 5)
    torch.manual_seed(99)
    samples.sample(0, 0)
    assert equal(first, samples.sample(3, 5))
    assert equal(first, pickle.loads(pickle.dumps(samples)).sample(3, 5))
    views = {samples.view(epoch, index) for epoch in range(6) for index in range(8)}
    assert len(views) > 30
    assert samples_of(made, seed=1).view(3, 5) != samples.view(3, 5)


def test_every_turn_and_every_place_occurs(made: Path) -> None:
    samples = samples_of(made, spikes=False)
    views = [samples.view(epoch, index) for epoch in range(150) for index in range(8)]
    turns = {(view.flip_rows, view.flip_columns, view.transpose) for view in views}
    assert len(turns) == 8
    assert {view.window.top for view in views} == set(range(HEIGHT - 16 + 1))
    assert {view.window.left for view in views} == set(range(WIDTH - 16 + 1))
    still = samples_of(made, augment="none")
    assert not any(
        view.flip_rows or view.flip_columns or view.transpose
        for view in (still.view(epoch, 0) for epoch in range(20))
    )


def test_whole_frames_are_flipped_but_not_laid_on_their_side(made: Path) -> None:
    samples = samples_of(made, crop=None)
    views = [samples.view(epoch, 0) for epoch in range(30)]
    assert any(view.flip_rows for view in views)
    assert not any(view.transpose for view in views)
    assert samples.sample(0, 0).blur.shape == (2, 3, HEIGHT, WIDTH)


def test_the_crop_grows_with_the_epochs(made: Path) -> None:
    samples = train_clips(section(made), ((2, 24), (4, 32)), seed=0, with_spikes=True)
    sides = [samples.sample(epoch, 0).blur.shape[-1] for epoch in range(6)]
    assert sides == [16, 16, 24, 24, 32, 32]
    scheduled = train_clips(section(made), ((0, 8), (1, 24)), seed=0, with_spikes=True)
    assert [scheduled.crop_side(epoch) for epoch in range(3)] == [8, 24, 24]


def test_an_evaluation_shows_every_frame_afresh_just_once(made: Path) -> None:
    samples = eval_clips(section(made, clip_len=2), with_spikes=False)
    seen = []
    for index in range(len(samples)):
        sample = samples.sample(0, index)
        assert torch.equal(sample.blur, samples.sample(7, index).blur)
        first = int(samples.starts[index, 1])
        seen += [first + place for place in range(2) if sample.fresh[place]]
        assert sample.blur.shape == (2, 3, HEIGHT, WIDTH)
    assert seen == list(range(FRAMES))


def test_an_evaluation_crop_is_the_centre(made: Path) -> None:
    samples = eval_clips(section(made, eval_crop=16), with_spikes=True)
    whole = image(made / "test" / "MADE0000_07_00" / "sharp" / "000000.png")
    np.testing.assert_array_equal(samples.sample(0, 0).sharp[0].numpy(), whole[:, 8:24, 16:32])


def test_what_travels_to_workers_is_small(made: Path) -> None:
    assert len(pickle.dumps(samples_of(made))) < 5_000


def test_a_sample_can_be_named(made: Path) -> None:
    assert samples_of(made).name_of(5) == "train/MADE0001_07_00, from 000001.png on"


def test_grey_images_are_read_as_colours(own: Path) -> None:
    path = own / "train" / "MADE0000_07_00" / "blur" / "000000.png"
    with Image.open(path) as opened:
        grey = opened.convert("L")
    grey.save(path)
    blur = samples_of(own, augment="none").sample(0, 0).blur
    assert torch.equal(blur[0, 0], blur[0, 2])


CLIP = Path("train") / "MADE0001_07_00"


def test_a_missing_sharp_frame_is_named(own: Path) -> None:
    (own / CLIP / "sharp" / "000002.png").unlink()
    with pytest.raises(DataError, match=r"MADE0001_07_00/sharp has no frame 000002"):
        samples_of(own)


def test_a_missing_blurred_frame_is_named(own: Path) -> None:
    (own / CLIP / "blur" / "000002.png").unlink()
    with pytest.raises(DataError, match=r"MADE0001_07_00/blur has no frame 000002"):
        samples_of(own)


def test_a_missing_spike_file_is_named_only_if_spikes_are_read(own: Path) -> None:
    (own / CLIP / "spike" / "000003.dat").unlink()
    assert samples_of(own, spikes=False).sample(0, 0).spikes is None
    with pytest.raises(DataError, match=r"MADE0001_07_00/spike/000003\.dat"):
        samples_of(own)


def test_a_truncated_spike_file_is_named(own: Path) -> None:
    path = own / CLIP / "spike" / "000003.dat"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"000003\.dat has 2687 bytes"):
        samples_of(own)


def test_a_frame_of_another_size_is_named_with_both_sizes(own: Path) -> None:
    Image.new("RGB", (40, 32)).save(own / CLIP / "sharp" / "000001.png")
    with pytest.raises(DataError, match=r"is 32x48, but .*sharp/000001\.png is 32x40"):
        samples_of(own)


def test_a_file_that_is_no_image_is_named(own: Path) -> None:
    (own / CLIP / "blur" / "000001.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"blur/000001\.png is not an image"):
        samples_of(own)


def test_sixteen_bit_images_are_refused(own: Path) -> None:
    path = own / CLIP / "blur" / "000001.png"
    Image.fromarray(np.zeros((HEIGHT, WIDTH), np.uint16)).save(path)
    with pytest.raises(DataError, match=r"000001\.png has more than 8 bits"):
        samples_of(own)


def test_two_images_of_one_frame_are_refused(own: Path) -> None:
    shutil.copy(own / CLIP / "blur" / "000001.png", own / CLIP / "blur" / "000001.jpg")
    with pytest.raises(DataError, match=r"000001\.png is one of two images of the same frame"):
        samples_of(own)


def test_a_clip_shorter_than_a_sample_is_named(own: Path) -> None:
    with pytest.raises(DataError, match=r"MADE0000_07_00 has 5 frames, and data.clip_len is 6"):
        samples_of(own, clip_len=6)


def test_a_crop_that_no_frame_has_is_refused(own: Path) -> None:
    with pytest.raises(DataError, match="32x48, smaller than a crop of 40"):
        samples_of(own, crop=40)
    with pytest.raises(DataError, match="smaller than a crop of 48"):
        train_clips(section(own), ((9, 48),), seed=0, with_spikes=False)


def test_clips_that_lie_one_folder_deeper_are_found_and_said(own: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    own.rename(outer / "GOPRO_Large")
    with pytest.raises(DataError, match=r"one folder deeper; set data.root to .*GOPRO_Large"):
        train_clips(section(outer), (), seed=0, with_spikes=False)
    with pytest.raises(DataError, match=r"holds no clips, but .*GOPRO_Large does"):
        check_clips(outer)


def test_the_size_of_spike_frames_is_taken_from_the_dataset_where_no_setting_names_it(
    own: Path,
) -> None:
    assert spike_size(DeblurData(root=own)) == (16, 24)
    (own / "config.yaml").unlink()
    assert spike_size(DeblurData(root=own)) == (360, 640)


def test_another_spike_size_than_the_dataset_states_is_refused(own: Path) -> None:
    with pytest.raises(DataError, match=r"config\.yaml says .* 16x24, but .* is 360x640"):
        samples_of(own, spike_height=360, spike_width=640)
    (own / "config.yaml").write_text("spike_h: 16\n")
    with pytest.raises(DataError, match="does not say spike_h and spike_w"):
        samples_of(own)
    (own / "config.yaml").write_text("[")
    with pytest.raises(DataError, match=r"config\.yaml cannot be read"):
        samples_of(own)


def test_spike_frames_that_do_not_fit_the_pictures_are_refused(own: Path) -> None:
    (own / "config.yaml").unlink()
    with pytest.raises(
        DataError, match="frames of 32x48, no multiple of its spike frames of 24x16"
    ):
        samples_of(own, spike_height=24, spike_width=16)


def test_spikes_of_all_zeros_are_data(own: Path) -> None:
    path = own / CLIP / "spike" / "000001.dat"
    write_dat(path, np.zeros((56, 16, 24), np.uint8))
    found = samples_of(own).sample(0, 4).spikes
    assert found is not None
    assert found[0].any()
    assert not found[1].any()


def test_several_problems_are_told_at_once(own: Path) -> None:
    for frame in range(FRAMES):
        (own / CLIP / "sharp" / f"{frame:06d}.png").unlink()
    (own / "train" / "MADE0000_07_00" / "sharp" / "000000.png").unlink()
    with pytest.raises(DataError, match=r"MADE0000.*MADE0001.*and 1 more of this kind"):
        samples_of(own)


def test_an_empty_split_and_a_missing_one_are_told_apart(own: Path) -> None:
    (own / "none").mkdir()
    with pytest.raises(DataError, match="holds no clips"):
        samples_of(own, split="none")
    with pytest.raises(DataError, match=r"there is no folder .*validation"):
        samples_of(own, split="validation")


def test_a_clip_without_frames_is_named(own: Path) -> None:
    (own / "train" / "notes").mkdir()
    with pytest.raises(DataError, match="notes/blur holds no images"):
        samples_of(own)


def test_no_dataset_is_the_configurations_fault() -> None:
    with pytest.raises(ConfigError, match=r"data\.root is not set"):
        train_clips(section(None), (), seed=0, with_spikes=False)
