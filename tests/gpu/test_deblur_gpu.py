"""VRT with spikes on a CUDA device: no waiting, parts timed both ways, tiles that keep a budget.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_deblur_gpu.py``.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch

from pitstop.config.load import config_from
from pitstop.config.sections import EvalSection, RunConfig
from pitstop.config.workloads.deblur import TilesSection
from pitstop.train.model.part_spans import named_parts, part_spans
from pitstop.train.ranks import Ranks
from pitstop.train.setup import build_trainer
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.prediction import WholeFrames
from pitstop.workloads.deblur.task import build_deblur
from pitstop_probe import Clock, Step, cuda_timer

try:
    import pytest
except ModuleNotFoundError:  # a machine with a GPU and little else
    pytest = None
else:
    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ]

FRAMES, CROP = 4, 64


class Kept:
    """Keeps finished steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None: ...


def configuration(*overrides: str) -> RunConfig:
    model: dict[str, Any] = {
        "kind": "vrt_spike",
        "depths": [2] * 8,
        "embed_dims": [32] * 8,
        "heads": 4,
        "window": [2, 8, 8],
        "indep_reconsts": [],
        "deformable_groups": 8,
        "spike": {"channels": 32},
    }
    settings = {"model": model, "data": {"clip_len": FRAMES, "crop": CROP}, "train": {"steps": 9}}
    return config_from(settings, ["train.precision=bf16", *overrides]).config


def batch_of(height: int, width: int) -> ClipBatch:
    def levels(below: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, below, shape, device="cuda", dtype=torch.uint8)

    return ClipBatch(
        blur=levels(256, 1, FRAMES, 3, height, width),
        sharp=levels(256, 1, FRAMES, 3, height, width),
        spikes=levels(2, 1, FRAMES, 40, height // 2, width // 2),
        clip=torch.zeros(1, dtype=torch.int64, device="cuda"),
        fresh=torch.ones(1, FRAMES, dtype=torch.bool, device="cuda"),
    )


def again(batch: ClipBatch) -> Iterator[ClipBatch]:
    while True:
        yield batch


def steps_of(config: RunConfig) -> list[Step]:
    """Three steps to warm up, then two that may not wait for the device."""
    device = torch.device("cuda", 0)
    trainer = build_trainer(config, build_deblur(config), Ranks(), device).trainer
    kept = Kept()
    clock = Clock(kept, cuda_timer(), timeline_every=1)
    source = again(batch_of(CROP, CROP))
    with part_spans(named_parts(trainer.task, trainer.model), clock):
        for number in range(5):
            if number == 3:
                torch.cuda.synchronize()  # noqa: TID251 - between measured steps
                torch.cuda.set_sync_debug_mode("error")
            clock.begin_step()
            trainer.train_step(source, step=number, clock=clock)
        clock.end_step()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()  # noqa: TID251 - between measured steps
    clock.close()
    return kept.steps[3:]


def test_a_step_waits_for_nothing_and_names_its_parts_both_ways() -> None:
    for voxels in ("counts", "tfp", "tfi", "raw"):
        for step in steps_of(configuration(f"data.voxels={voxels}", "train.recompute=full")):
            found = {"/".join(span.path): taken for span, taken in step.device_us.items()}
            for way in ("forward", "backward"):
                for part in ("stage1", "stage8", "spynet", "spike_encoder", "fusion4"):
                    assert found[f"{way}/{part}"] > 0, (way, part)
                assert f"{way}/stage1/stage1.alignment" in found
            inside = [
                taken
                for path, taken in found.items()
                if path.startswith("backward/") and path.count("/") == 1
            ]
            assert sum(inside) <= found["backward"]
            assert step.broken == 0


def test_tiles_chosen_by_memory_keep_to_it() -> None:
    config = configuration()
    task = build_deblur(config)
    model = task.build_model().cuda().eval()
    batch = batch_of(720, 1280)
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        torch.cuda.reset_peak_memory_stats()
        task.forward(model, batch)
        whole_bytes = torch.cuda.max_memory_allocated()
        budget_bytes = whole_bytes // 2
        tiles = TilesSection(memory=budget_bytes)
        frames = WholeFrames(task.forward, task.to_device, tiles=tiles, evaluation=EvalSection())
        frames(model, batch)
        torch.cuda.reset_peak_memory_stats()
        out = frames(model, batch)
        assert torch.cuda.max_memory_allocated() <= budget_bytes
    assert out.shape == batch.blur.shape
    assert out.isfinite().all()
    [note] = frames.notes
    assert "frames of 720x1280 in tiles of" in note


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    test_a_step_waits_for_nothing_and_names_its_parts_both_ways()
    test_tiles_chosen_by_memory_keep_to_it()
    sys.stdout.write("2 passed\n")
