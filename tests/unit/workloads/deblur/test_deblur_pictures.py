"""Pictures of restored frames: the right frame, its own colours, and the spikes as light."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pitstop.config.workloads.deblur import DeblurData
from pitstop.workloads.deblur.data.planes import spike_eval_samples
from pitstop.workloads.deblur.data.voxels import NO_PLANE
from pitstop.workloads.deblur.pictures import MOST_SIDE, centre, draw_segments, spike_view
from pitstop.workloads.deblur.synthetic import make_clips
from pitstop.workloads.deblur.task import DeblurTask

SIZE = (32, 64)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DeblurData:
    root = tmp_path_factory.mktemp("pictures") / "clips"
    make_clips(root, clips={"train": 1, "test": 1}, frames=4, size=SIZE, seed=0)
    return DeblurData(root=root, clip_len=2, spike_height=16, spike_width=32)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_a_perfect_model_shows_the_sharp_frame_twice(data: DeblurData, tmp_path: Path) -> None:
    samples = spike_eval_samples(data)
    batch = DeblurTask.collate([samples.sample(0, 1)])
    rows = draw_segments(batch.sharp.float() / 255, batch, samples, indices=[1], folder=tmp_path)
    [row] = rows
    assert [cell.caption for cell in row.cells] == ["blurry", "restored", "sharp", "spikes"]
    shown = {cell.caption: pixels(tmp_path / cell.file) for cell in row.cells}
    # The second segment of two frames: its middle frame is the last of four.
    [clip] = samples.index.clips
    last = max((samples.index.folder / clip / "sharp").glob("*.png"))
    assert row.title == f"{clip}, frame {last.stem}"
    assert np.array_equal(shown["sharp"], pixels(last))
    assert np.array_equal(shown["restored"], shown["sharp"])
    assert np.array_equal(shown["blurry"], pixels(last.parents[1] / "blur" / last.name))
    error = np.square(shown["blurry"].astype(float) - shown["sharp"].astype(float)).mean()
    assert row.note is not None
    assert f"{10 * np.log10(255**2 / error):.2f} dB blurry, inf dB restored" in row.note


def test_spikes_are_brighter_where_the_frame_is(data: DeblurData, tmp_path: Path) -> None:
    samples = spike_eval_samples(data)
    batch = DeblurTask.collate([samples.sample(0, 0)])
    assert batch.spikes is not None
    grey = spike_view(batch.spikes[:, 1], SIZE)[0, 0].numpy()
    sharp = batch.sharp[0, 1].double().mean(dim=0).numpy()
    assert np.corrcoef(grey.ravel(), sharp.ravel())[0, 1] > 0.5


def test_planes_that_a_shorter_file_does_not_have_add_no_light() -> None:
    spikes = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    spikes[0, :2, 0, 0] = 1
    longer = torch.cat((spikes, torch.full((1, 5, 4, 4), NO_PLANE, dtype=torch.uint8)), dim=1)
    assert torch.equal(spike_view(longer, (4, 4)), spike_view(spikes, (4, 4)))
    assert spike_view(longer, (4, 4)).amax() == 255
    assert spike_view(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), (4, 4)).amax() == 0


def test_a_large_frame_is_cut_to_its_middle() -> None:
    height, width = MOST_SIDE + 20, 40
    picture = torch.arange(height * width, dtype=torch.float64).reshape(1, height, width)
    cut = centre(picture.expand(3, -1, -1))
    assert cut.shape == (3, MOST_SIDE, width)
    assert torch.equal(cut[0], picture[0, 10 : 10 + MOST_SIDE])
