"""Generated clips: what is in them follows from how they are said to be made."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pitstop.errors import DataError
from pitstop.workloads.deblur import synthetic
from pitstop.workloads.deblur.spike import read_dat, write_dat
from pitstop.workloads.deblur.synthetic import EXPOSED, PLANES, MadeClips, make_clips

SIZE = (48, 64)


def make(root: Path, *, seed: int = 0, frames: int = 3, **options: bool) -> MadeClips:
    clips = {"train": 2, "test": 1}
    return make_clips(root, clips=clips, frames=frames, size=SIZE, seed=seed, **options)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "clips"
    make(folder)
    return folder


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "RGB"
        return np.asarray(image).astype(np.float64)


def clips(root: Path) -> list[Path]:
    return sorted(path for split in ("train", "test") for path in (root / split).iterdir())


def test_files_lie_as_in_the_published_sets(root: Path) -> None:
    assert (root / "config.yaml").read_text() == "spike_h: 24\nspike_w: 32\n"
    assert len(clips(root)) == 3
    for clip in clips(root):
        for kind, ending in (("blur", "png"), ("sharp", "png"), ("spike", "dat")):
            names = sorted(path.name for path in (clip / kind).iterdir())
            assert names == [f"{frame:06d}.{ending}" for frame in range(3)]
        assert pixels(clip / "blur" / "000000.png").shape == (*SIZE, 3)


def test_the_last_spike_file_of_a_clip_is_shorter(root: Path) -> None:
    for clip in clips(root):
        planes = [
            len(read_dat(clip / "spike" / f"{frame:06d}.dat", height=24, width=32))
            for frame in range(3)
        ]
        assert planes == [PLANES, PLANES, EXPOSED]
    assert (PLANES, EXPOSED) == (56, 49)


def test_a_seed_decides_every_byte(root: Path, tmp_path: Path) -> None:
    make(tmp_path / "again")
    assert digest(tmp_path / "again") == digest(root)
    make(tmp_path / "other", seed=1)
    other = digest(tmp_path / "other")
    same = [name for name, value in digest(root).items() if other[name] == value]
    assert same == ["config.yaml"]


def test_a_clip_does_not_depend_on_how_many_others_there_are(root: Path, tmp_path: Path) -> None:
    made = make_clips(tmp_path / "one", clips={"train": 1}, frames=3, size=SIZE, seed=0)
    assert made.clips == {"train": 1}
    [clip] = (tmp_path / "one" / "train").iterdir()
    assert digest(clip) == digest(root / "train" / clip.name)


def test_clips_and_splits_differ(root: Path) -> None:
    firsts = [(clip / "sharp" / "000000.png").read_bytes() for clip in clips(root)]
    assert len(set(firsts)) == 3


def test_blur_is_the_mean_of_the_exposure_and_sharp_its_middle(root: Path) -> None:
    scene = synthetic._Scene(synthetic._Random(7), SIZE, 2)  # pyright: ignore[reportPrivateUsage]
    folder = root.parent / "written"
    synthetic._write_clip(folder, scene, spikes=False)  # pyright: ignore[reportPrivateUsage]
    for frame in range(2):
        instants = scene.render(frame).astype(np.float64)
        blurred = pixels(folder / "blur" / f"{frame:06d}.png")
        assert np.abs(blurred - instants[:49].mean(axis=0)).max() <= 0.5
        sharp = pixels(folder / "sharp" / f"{frame:06d}.png")
        np.testing.assert_array_equal(sharp, instants[24])
    assert not (folder / "spike").exists()


def test_the_scene_moves_so_that_blurred_frames_lose_detail(root: Path) -> None:
    for clip in clips(root):
        detail = {
            kind: sum(
                np.abs(np.diff(pixels(path), axis=axis)).mean()
                for path in (clip / kind).iterdir()
                for axis in (0, 1)
            )
            for kind in ("blur", "sharp")
        }
        assert detail["blur"] < 0.85 * detail["sharp"]
        first, last = (pixels(clip / "sharp" / f"00000{frame}.png") for frame in (0, 2))
        assert np.abs(first - last).mean() > 5


def test_objects_move_otherwise_than_the_background() -> None:
    """Somewhere a pixel shows what no shift of the picture before it shows."""
    with_objects = synthetic._Scene(synthetic._Random(3), SIZE, 1)  # pyright: ignore[reportPrivateUsage]
    without = synthetic._Scene(synthetic._Random(3), SIZE, 1)  # pyright: ignore[reportPrivateUsage]
    without._sprites.clear()  # pyright: ignore[reportPrivateUsage]
    covered = (with_objects.render(0) != without.render(0)).any(axis=-1)
    shares = covered.mean(axis=(1, 2))
    assert 0.02 < shares.mean() < 0.7
    assert (covered[0] != covered[-1]).any()


def test_cells_fire_in_proportion_to_their_light(root: Path) -> None:
    """Rate = light over threshold; what is left over goes on to the next file."""
    shades, rates = [], []
    for clip in clips(root):
        for frame in range(3):
            spikes = read_dat(clip / "spike" / f"{frame:06d}.dat", height=24, width=32)
            blurred = pixels(clip / "blur" / f"{frame:06d}.png") @ np.array([0.30, 0.59, 0.11])
            shades.append(blurred.reshape(24, 2, 32, 2).mean(axis=(1, 3)).ravel() / 255)
            rates.append(spikes[:EXPOSED].mean(axis=0).ravel())
    shade, rate = np.concatenate(shades), np.concatenate(rates)
    slope, floor = np.polyfit(shade, rate, 1)
    assert slope == pytest.approx(0.5, abs=0.03)
    assert floor == pytest.approx(0.005, abs=0.01)
    assert np.corrcoef(shade, rate)[0, 1] > 0.95


def test_dark_and_bright_light_fire_as_noise_and_threshold_say() -> None:
    random = synthetic._Random(0)  # pyright: ignore[reportPrivateUsage]
    cells, start = (200, 40, 40), np.zeros((40, 40), np.int32)
    dark, _ = synthetic._fire(np.zeros(cells, np.int32), start, random)  # pyright: ignore[reportPrivateUsage]
    # Noise below darkness is cut off, so a little light remains: a mean of 4 x 2.6 of 2040.
    assert dark.mean() == pytest.approx(2 / 256 + 4 * 2.6 / 2040, rel=0.15)
    bright, rest = synthetic._fire(np.full(cells, 1020, np.int32), start, random)  # pyright: ignore[reportPrivateUsage]
    assert bright.mean() == pytest.approx(0.5, abs=0.01)
    assert 0 <= rest.min() <= rest.max() < 2040


def test_spikes_can_be_left_out(tmp_path: Path) -> None:
    made = make(tmp_path / "plain", frames=1, spikes=False)
    assert (made.spike_height, made.spike_width) == (None, None)
    assert not (tmp_path / "plain" / "config.yaml").exists()
    assert not list((tmp_path / "plain").rglob("spike"))


def test_what_was_made_is_said(root: Path) -> None:
    made = make(root.parent / "reported")
    files = [path for path in Path(made.root).rglob("*") if path.is_file()]
    assert made.size_bytes == sum(path.stat().st_size for path in files)
    assert (made.height, made.width, made.spike_height, made.spike_width) == (48, 64, 24, 32)
    assert (made.clips, made.frames, made.seed) == ({"train": 2, "test": 1}, 3, 0)


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="there already"):
        make(tmp_path / "clips")
    assert [path.name for path in (tmp_path / "clips").iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    make(tmp_path / "clips", frames=1)
    assert (tmp_path / "clips" / "train").is_dir()


def test_the_folder_is_not_there_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def watching(path: Path, spikes: np.ndarray) -> None:
        seen.append((tmp_path / "clips").exists())
        write_dat(path, spikes)

    monkeypatch.setattr(synthetic, "write_dat", watching)
    make(tmp_path / "clips", frames=1)
    assert seen == [False] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["clips"]


def test_an_end_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(path: Path, spikes: np.ndarray) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synthetic, "write_dat", full_disk)
    with pytest.raises(DataError, match=r"cannot write clips to .*: No space left"):
        make(tmp_path / "clips")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [(47, 64), (48, 72), (8, 64), (48, 0)])
def test_sizes_that_cannot_be_stored_are_refused(tmp_path: Path, size: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=f"{size[0]}x{size[1]}"):
        make_clips(tmp_path / "clips", clips={"train": 1}, frames=1, size=size, seed=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("clips", "frames"), [({}, 1), ({"train": 0}, 1), ({"train": 1}, 0)])
def test_asking_for_nothing_is_refused(tmp_path: Path, clips: dict[str, int], frames: int) -> None:
    with pytest.raises(DataError, match="nothing to make"):
        make_clips(tmp_path / "clips", clips=clips, frames=frames, size=SIZE, seed=0)
