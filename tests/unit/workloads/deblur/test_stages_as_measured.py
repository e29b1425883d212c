"""What the stages of VRT are, by what a watched step says of its modules."""

from typing import Any

import pytest
import torch

from pitstop.config.load import config_from
from pitstop.workloads.catalogue import build_task
from pitstop_probe.deep.work_profile import WorkProfile
from tests.unit.workloads.deblur.tiny_vrt import TINY_VRT

SIDE, FRAMES = 64, 4
SETTINGS: dict[str, Any] = {
    # As deep and as wide everywhere, so that stages differ by the size of their frames alone.
    "model": {**TINY_VRT, "depths": [2] * 8, "drop_path": 0},
    "data": {"crop": SIDE, "eval_crop": SIDE, "clip_len": FRAMES},
    "train": {"steps": 1, "batch_size": 1},
}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """Rows of the module table by name: the kind of each, and the bytes that it keeps."""
    model = build_task(config_from(SETTINGS).config).build_model()
    profile = WorkProfile(torch, [model])
    profile.on()
    try:
        model(torch.rand(1, FRAMES, 3, SIDE, SIDE)).square().mean().backward()
    finally:
        profile.off()
    return {row["name"]: row for row in profile.values(7)["kept"]["modules"]}


def test_stages_halve_and_double_the_sides_of_frames_and_never_their_number(
    rows: dict[str, dict[str, Any]],
) -> None:
    kept = [rows[f"stage{number}.pa_deform"]["num_bytes"] for number in range(1, 8)]
    # A quarter for half the side; half the frames as well would make an eighth of it. So the lowest
    # stage is the fourth, and the fifth is at a quarter of the sides of the first.
    assert [size / kept[3] for size in kept] == pytest.approx([64, 16, 4, 1, 4, 16, 64], rel=1e-3)


def test_the_eighth_stage_is_attention_on_whole_frames_without_a_convolution(
    rows: dict[str, dict[str, Any]],
) -> None:
    stage = [row for name, row in rows.items() if name.startswith("stage8")]
    foreign = ("Conv", "Upsample", "Pixel", "Enlarge", "Alignment")
    assert not [row["kind"] for row in stage if any(word in row["kind"] for word in foreign)]
    # Its blocks have frames of full size, like those of the first stage.
    blocks = {row["num_bytes"] for row in stage if row["kind"] == "AttentionBlock"}
    whole = rows["stage1.residual_group2"]["num_bytes"]
    assert blocks
    assert all(size == pytest.approx(whole, rel=0.1) for size in blocks)
