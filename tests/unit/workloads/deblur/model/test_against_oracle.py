import pytest
import torch
from random_vrt import clip, random_vrt, relative_error
from vrt_oracle import Oracle, Quirks

from pitstop.workloads.deblur.model.vrt import VRT_GOPRO, VRT_SMALL, VRTSettings

Shape = tuple[int, int, int, int]
NARROW: VRTSettings = VRT_SMALL | {"embed_dims": (12,) * 9, "deformable_groups": 2}


def disagreement(settings: VRTSettings, shape: Shape, quirks: Quirks | None = None) -> float:
    model, x = random_vrt(settings), clip(*shape)
    assert all(parameter.any() for parameter in model.parameters())
    with torch.no_grad():
        return relative_error(model(x), Oracle(model.state_dict(), settings, quirks)(x), x)


@pytest.mark.parametrize("pa_frames", [0, 2, 4, 6])
def test_a_narrow_model_equals_the_oracle_on_five_frames_that_no_window_divides(
    pa_frames: int,
) -> None:
    assert disagreement(NARROW | {"pa_frames": pa_frames}, (1, 5, 32, 40)) <= 1e-4


def test_windows_over_six_frames_that_are_padded_and_shifted_in_time_equal_the_oracle() -> None:
    assert disagreement(NARROW | {"window_size": (6, 8, 8)}, (1, 7, 24, 16)) <= 1e-4


@pytest.mark.parametrize("shape", [(2, 2, 8, 16), (1, 1, 16, 8), (1, 3, 8, 8)])
def test_clips_smaller_than_every_window_equal_the_oracle(shape: Shape) -> None:
    assert disagreement(NARROW | {"pa_frames": 6}, shape) <= 1e-4


@pytest.mark.parametrize(
    "quirks",
    [Quirks(mutual_first=False), Quirks(max_residue=5.0), Quirks(corner_order=(0, 2, 1, 3))],
    ids=["mutual and self swapped", "half the offset range", "corners by row"],
)
def test_the_comparison_notices_a_mistake(quirks: Quirks) -> None:
    assert disagreement(NARROW, (1, 5, 32, 40), quirks) > 1e-3


# Each number of aligned frames once, and once a picture that windows divide at every scale; on the
# narrow model they stand together. Pictures cost two seconds a thousand pixels here.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "pa_frames"), [((1, 6, 64, 64), 6), ((1, 5, 32, 40), 4), ((2, 7, 24, 16), 2)]
)
def test_the_gopro_model_equals_the_oracle(shape: Shape, pa_frames: int) -> None:
    assert disagreement(VRT_GOPRO | {"pa_frames": pa_frames}, shape) <= 1e-4
