"""Every workload's model, written for other programs, gives what the model gives.

`write_exports` reads each file back and compares; here the comparison itself is held to account:
the inputs must matter, and a file of other weights must be refused.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pitstop.config.load import config_from
from pitstop.errors import DataError, MissingPackage
from pitstop.train.evaluation.model_export import (
    MOST_DIFFERENCE,
    require_onnx,
    run_onnx,
    trace,
    write_exports,
)
from pitstop.train.task import ExportForm, Exports
from pitstop.workloads.catalogue import build_task

torch.set_num_threads(1)

GROUND: dict[str, Any] = {
    "backbone": "swin_nano",
    "depth": [1, 9, 1],
    "channels": 8,
    "head_width": 16,
    "x_bound": [-8, 8, 2],
}
MODELS: dict[str, dict[str, Any]] = {
    "reid": {
        "model": {
            "kind": "clip_reid",
            "backbone": "tiny",
            "embed_dim": 16,
            "fusion_heads": 2,
            "text_len": 6,
        },
        "data": {"image_size": [16, 8]},
    },
    "one camera": {
        "model": {
            "kind": "lss_swin_mono",
            **GROUND,
            "channels": 16,
            "head_width": 32,
            "x_bound": [-8, 8, 1],
            "forward_bound": [1, 17, 1],
        },
        "data": {"image_size": [64, 96]},
    },
    "six cameras": {
        "model": {
            "kind": "lss_swin_surround",
            **GROUND,
            "forward_bound": [-8, 8, 2],
            "encoder_channels": 16,
        },
        "data": {
            "image_size": [64, 96],
            "target_forward": [-6, 6, 1],
            "target_across": [-6, 6, 1],
        },
    },
    "deblur": {
        "model": {
            "kind": "vrt",
            "depths": [1] * 8,
            "embed_dims": [4] * 8,
            "heads": 2,
            "window": [2, 4, 4],
            "indep_reconsts": [7],
            "deformable_groups": 2,
        },
        "data": {"crop": 16, "clip_len": 2},
    },
}


def form_of(name: str, *, seed: int = 0) -> ExportForm:
    settings = {**MODELS[name], "train": {"steps": 1, "batch_size": 4}}
    task = build_task(config_from(settings, ["model.kernels=reference"]).config)
    assert isinstance(task, Exports)
    torch.manual_seed(seed)
    model = task.build_model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Many start at zero or one, and what they do would not be seen.
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return task.export_form(model)


def another_picture(form: ExportForm) -> ExportForm:
    """The same model on the mirror image, with what the model itself gives for it."""
    inputs = {
        name: value.flip(-1) if name in ("images", "colours") else value
        for name, value in form.inputs.items()
    }
    with torch.no_grad():
        return replace(form, inputs=inputs, expected=form.module(*inputs.values()))


def assert_follows(form: ExportForm, other: ExportForm, got: torch.Tensor) -> None:
    """What a file gives differs a thousand times less than what two pictures differ by."""
    between = (other.expected - form.expected).abs().max()
    assert between > 0
    assert (got - other.expected).abs().max() <= 1e-3 * between


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_archive_of_torch_export_gives_what_the_model_gives(tmp_path: Path, name: str) -> None:
    form = form_of(name)
    (file,) = write_exports(form, program=tmp_path / "model.pt2", onnx=None)
    assert file.difference <= MOST_DIFFERENCE
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]
    other = another_picture(form)
    with torch.no_grad():
        got = torch.export.load(tmp_path / "model.pt2").module()(*other.inputs.values())
    assert_follows(form, other, got)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_onnx_file_gives_what_the_model_gives(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxruntime")
    form = form_of(name)
    (file,) = write_exports(form, program=None, onnx=tmp_path / "model.onnx")
    assert file.difference <= MOST_DIFFERENCE
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    other = another_picture(form)
    assert_follows(form, other, torch.from_numpy(run_onnx(tmp_path / "model.onnx", other)))


def test_a_network_that_sees_spikes_takes_their_channels_as_well() -> None:
    clips = MODELS["deblur"]
    settings = {
        "model": {**clips["model"], "kind": "vrt_spike", "fusion": {"kind": "early"}},
        "data": {**clips["data"], "spike_height": 360, "spike_width": 640, "voxel_bins": 3},
        "train": {"steps": 1, "batch_size": 4},
    }
    task = build_task(config_from(settings, ["model.kernels=reference"]).config)
    assert isinstance(task, Exports)
    form = task.export_form(task.build_model().eval())
    assert {name: tuple(value.shape) for name, value in form.inputs.items()} == {
        "colours": (1, 2, 3, 16, 16),
        "voxels": (1, 2, 3, 16, 16),
    }
    assert form.expected.shape == form.inputs["colours"].shape


class Plain(nn.Module):
    """Small enough to be exported within a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.factor


def plain_form() -> ExportForm:
    module, values = Plain().eval(), torch.tensor([[1.0, 10.0]])
    expected = module(values).detach()
    return ExportForm(module=module, inputs={"values": values}, output="twice", expected=expected)


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_a_file_that_gives_something_else_is_not_left_behind(tmp_path: Path, wrong: float) -> None:
    form = plain_form()
    other = replace(form, expected=form.expected + wrong)
    with pytest.raises(DataError, match="gives other outputs"):
        write_exports(other, program=tmp_path / "model.pt2", onnx=None)
    assert list(tmp_path.iterdir()) == []


def test_rounding_is_allowed_for(tmp_path: Path) -> None:
    form = plain_form()
    near = replace(form, expected=form.expected + 1e-5)
    (file,) = write_exports(near, program=tmp_path / "model.pt2", onnx=None)
    # Of the largest number, which is 30.
    assert file.difference == pytest.approx(1e-5 / 30, rel=0.2)
    assert file.size_bytes == (tmp_path / "model.pt2").stat().st_size


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot write"):
        write_exports(plain_form(), program=tmp_path / "none" / "model.pt2", onnx=None)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingPackage, match="exporting ONNX needs onnx"):
        require_onnx()


def test_a_trace_keeps_the_weights_of_the_model() -> None:
    form = plain_form()
    kept = next(iter(trace(form.module, form).parameters()))
    assert torch.equal(kept, next(form.module.parameters()))
