"""Restored frames: every frame of the split once, under its own name, with its own colours."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pitstop.config.workloads.deblur import DeblurData
from pitstop.errors import DataError
from pitstop.workloads.deblur.data.dataset import ClipSamples, eval_clips
from pitstop.workloads.deblur.outputs import write_frames
from pitstop.workloads.deblur.synthetic import make_clips

FRAMES = 5


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> ClipSamples:
    root = tmp_path_factory.mktemp("outputs") / "clips"
    make_clips(root, clips={"train": 1, "test": 2}, frames=FRAMES, size=(16, 32), seed=0)
    return eval_clips(DeblurData(root=root, clip_len=2), with_spikes=False)


def restored(samples: ClipSamples, indices: list[int]) -> torch.Tensor:
    """A perfect model: it gives back the sharp frames."""
    return torch.stack([samples.sample(0, index).sharp for index in indices]).float() / 255


def test_a_perfect_model_writes_the_sharp_frames_under_their_names(
    samples: ClipSamples, tmp_path: Path
) -> None:
    written = []
    # Two by two, so that a batch crosses from one clip into the next.
    for indices in ([0, 1], [2, 3], [4, 5]):
        written += write_frames(restored(samples, indices), samples, indices, tmp_path)
    source = sorted(samples.index.folder.glob("*/sharp/*.png"))
    assert len(written) == len(set(written)) == len(source) == 2 * FRAMES
    for path in source:
        mine = tmp_path / path.parts[-3] / path.name
        assert mine in written
        with Image.open(path) as wanted, Image.open(mine) as found:
            assert np.array_equal(np.asarray(wanted), np.asarray(found))


def test_a_stretch_that_reaches_back_writes_only_its_new_frames(
    samples: ClipSamples, tmp_path: Path
) -> None:
    [path] = write_frames(restored(samples, [2]), samples, [2], tmp_path)
    assert path.stem == Path(str(samples.index.blur_names[FRAMES - 1])).stem


def test_colours_outside_of_a_file_are_cut_not_wrapped(
    samples: ClipSamples, tmp_path: Path
) -> None:
    bright = torch.full((1, 2, 3, 16, 32), 1.01)
    bright[:, 1] = -0.01
    first, second = write_frames(bright.bfloat16(), samples, [0], tmp_path)
    for path, level in ((first, 255), (second, 0)):
        with Image.open(path) as image:
            assert (image.mode, image.size) == ("RGB", (32, 16))
            assert set(np.asarray(image).ravel().tolist()) == {level}


def test_a_frame_that_cannot_be_written_leaves_nothing_half_done(
    samples: ClipSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match=r"cannot write .*\.png: No space left on device"):
        write_frames(restored(samples, [0]), samples, [0], tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
