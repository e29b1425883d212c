"""Folders of frames restored in segments, and what is said before anything is written."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pitstop.config.workloads.deblur import DeblurData
from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.restore_folder import FrameFolder, check_folder, restore_folder
from pitstop.workloads.deblur.spike import write_dat
from pitstop.workloads.deblur.tiling import Border

FRAMES = 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for kind in ("frames", "spikes"):
        (tmp_path / kind).mkdir()
    for number in range(47, 47 + FRAMES):
        picture = random.integers(0, 256, (13, 16, 3), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / "frames" / f"{number:06d}.png")
    return tmp_path


def data_of(folder: Path, **settings: object) -> DeblurData:
    named = {"frames": folder / "frames", "clip_len": 3, "spike_height": 4, "spike_width": 8}
    return DeblurData.model_validate({**named, **settings})


def with_spikes(folder: Path) -> DeblurData:
    """Frames of 8x16 and spikes of half their size."""
    random = np.random.default_rng(1)
    for path in (folder / "frames").iterdir():
        Image.fromarray(random.integers(0, 256, (8, 16, 3), dtype=np.uint8)).save(path)
        planes = random.integers(0, 2, (5, 4, 8), dtype=np.uint8)
        write_dat(folder / "spikes" / f"{path.stem}.dat", planes)
    return data_of(folder, frame_spikes=folder / "spikes")


def pixels(folder: Path) -> dict[str, np.ndarray]:
    found = {}
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as image:
            found[path.name] = np.asarray(image).astype(float)
    return found


def unchanged(batch: ClipBatch) -> Tensor:
    return batch.blur.float() / 255


@pytest.mark.parametrize("border", ["cosine", "discard"])
@pytest.mark.parametrize(("clip_len", "overlap"), [(3, 0), (3, 1), (4, 2), (7, 0), (6, 3)])
def test_every_frame_is_written_once_whatever_the_segments(
    folder: Path, border: Border, clip_len: int, overlap: int
) -> None:
    found = check_folder(data_of(folder), with_spikes=False)
    out = folder / "out"
    written = restore_folder(
        found, unchanged, out, clip_len=clip_len, overlap=overlap, border=border
    )
    assert written == FRAMES
    mine, source = pixels(out), pixels(folder / "frames")
    assert mine.keys() == source.keys()
    assert all(np.array_equal(mine[name], source[name]) for name in source)


def test_segments_fade_into_each_other_or_are_cut(folder: Path) -> None:
    """Each segment is of one shade, so a frame tells by its shade what it was made of."""
    found = check_folder(data_of(folder), with_spikes=False)
    shades: dict[str, list[float]] = {}
    for border in ("cosine", "discard"):
        calls: list[int] = []

        def shade(batch: ClipBatch, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            return torch.full(batch.blur.shape, 100.0 * len(calls) / 255 - 0.2)

        out = folder / border
        restore_folder(found, shade, out, clip_len=4, overlap=2, border=border)
        shades[border] = [picture.mean() for picture in pixels(out).values()]
    first, second = 49.0, 149.0
    assert shades["discard"][:4] == pytest.approx([first] * 3 + [second], abs=1)
    assert shades["cosine"][:2] == pytest.approx([first] * 2, abs=1)
    assert first < shades["cosine"][2] < shades["cosine"][3] < second


def test_no_more_frames_are_held_than_a_stretch_and_its_overlap(folder: Path) -> None:
    found = check_folder(data_of(folder), with_spikes=False)
    out = folder / "out"
    seen: list[int] = []

    def restore(batch: ClipBatch) -> Tensor:
        seen.append(len(pixels(out)))
        return unchanged(batch)

    restore_folder(found, restore, out, clip_len=3, overlap=1, border="cosine")
    assert seen == [0, 2, 4]


def test_spikes_come_with_their_frames(folder: Path) -> None:
    found = check_folder(with_spikes(folder), with_spikes=True)
    batch = found.segment(1, 3)
    assert batch.spikes is not None
    assert batch.blur.shape == (1, 3, 3, 8, 16)
    assert batch.spikes.shape == (1, 3, 5, 4, 8)
    assert found.spikes is not None
    assert [path.stem for path in found.spikes[:2]] == ["000047", "000048"]


def refused(data: DeblurData, *, with_spikes: bool = False) -> str:
    with pytest.raises(DataError) as caught:
        check_folder(data, with_spikes=with_spikes)
    return str(caught.value)


def test_a_missing_frame_is_named(folder: Path) -> None:
    (folder / "frames" / "000049.png").unlink()
    assert "frame 000049 is missing between 000047 and 000053" in refused(data_of(folder))


def test_names_that_are_no_numbers_may_have_gaps(folder: Path) -> None:
    (folder / "frames" / "000049.png").rename(folder / "frames" / "extra.png")
    assert isinstance(check_folder(data_of(folder), with_spikes=False), FrameFolder)


def test_a_frame_of_another_size_is_named(folder: Path) -> None:
    path = folder / "frames" / "000050.png"
    Image.new("RGB", (9, 9)).save(path)
    assert f"{path} is 9x9, but" in refused(data_of(folder))


def test_a_file_that_is_no_image_is_named(folder: Path) -> None:
    path = folder / "frames" / "000051.png"
    path.write_bytes(b"junk")
    assert f"{path} is not an image" in refused(data_of(folder))


def test_fewer_frames_than_a_stretch_are_refused(folder: Path) -> None:
    reported = refused(data_of(folder, clip_len=8))
    assert "has 7 frames, and data.clip_len is 8; lower it" in reported


def test_a_folder_without_frames_is_refused(folder: Path) -> None:
    assert "holds no images ending in .bmp" in refused(data_of(folder, image_types=("bmp",)))
    assert "holds no images" in refused(data_of(folder, frames=folder / "nowhere"))


def test_spikes_that_are_missing_dark_cut_or_left_over_are_named(folder: Path) -> None:
    data = with_spikes(folder)
    spikes = folder / "spikes"
    (spikes / "000047.dat").unlink()
    (spikes / "000048.dat").write_bytes(bytes(5 * 4))
    (spikes / "000049.dat").write_bytes(b"\x01" * 7)
    (spikes / "000099.dat").write_bytes(b"\x01" * 4)
    reported = refused(data, with_spikes=True)
    assert f"cannot read {spikes / '000047.dat'}" in reported
    assert f"{spikes / '000048.dat'} holds no spike at all" in reported
    assert f"{spikes / '000049.dat'}" in reported
    assert f"{spikes / '000099.dat'} belongs to no frame" in reported


def test_spikes_that_no_factor_brings_to_the_frames_are_refused(folder: Path) -> None:
    data = with_spikes(folder).model_copy(update={"spike_height": 5})
    assert "no multiple of spike frames of 5x8" in refused(data, with_spikes=True)
