"""Passes recorded as CUDA graphs give the bits of plain ones, and see weights as they are.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_recorded_gpu.py``.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pitstop.config.load import config_from
from pitstop.config.sections import EvalSection
from pitstop.config.workloads.deblur import TilesSection
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.prediction import WholeFrames
from pitstop.workloads.deblur.recorded import RecordedForward
from pitstop.workloads.deblur.task import DeblurTask, build_deblur

try:
    import pytest
except ModuleNotFoundError:  # a machine with a GPU and little else
    pytest = None
else:
    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ]

FRAMES, SIDE = 4, 64


def build(kind: str) -> tuple[DeblurTask, nn.Module]:
    model: dict[str, Any] = {
        "kind": kind,
        "depths": [2] * 8,
        "embed_dims": [32] * 8,
        "heads": 4,
        "window": [2, 8, 8],
        "indep_reconsts": [],
        "deformable_groups": 8,
    }
    if kind == "vrt_spike":
        model["spike"] = {"channels": 32}
    settings = {"model": model, "data": {"clip_len": FRAMES, "crop": SIDE}, "train": {"steps": 9}}
    torch.manual_seed(0)
    task = build_deblur(config_from(settings, ["train.precision=bf16"]).config)
    return task, task.build_model().cuda().eval()


def batch_of(height: int, width: int, *, seed: int, spikes: bool) -> ClipBatch:
    generator = torch.Generator().manual_seed(seed)

    def levels(below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, generator=generator).byte().cuda()

    blur = levels(256, 1, FRAMES, 3, height, width)
    return ClipBatch(
        blur=blur,
        sharp=blur,
        spikes=levels(2, 1, FRAMES, 40, height // 2, width // 2) if spikes else None,
        clip=torch.zeros(1, dtype=torch.int64, device="cuda"),
        fresh=torch.ones(1, FRAMES, dtype=torch.bool, device="cuda"),
    )


def outputs(
    task: DeblurTask, model: nn.Module, batches: Sequence[ClipBatch]
) -> tuple[list[Tensor], list[Tensor], RecordedForward]:
    """What batches become plainly and by recordings; weights change between them."""
    passes = RecordedForward(task.forward)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    found: list[list[Tensor]] = []
    for recorded in (False, True):
        model.load_state_dict(first)
        found.append([])
        for batch in batches:
            with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
                run = passes.of(model) if recorded else lambda batch: task.forward(model, batch)
                found[-1].append(run(batch))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.01)
    return found[0], found[1], passes


def test_a_replayed_pass_gives_the_bits_of_a_plain_one() -> None:
    for kind in ("vrt", "vrt_spike"):
        task, model = build(kind)
        spikes = kind == "vrt_spike"
        batches = [batch_of(SIDE, SIDE, seed=seed, spikes=spikes) for seed in range(5)]
        plain, replayed, passes = outputs(task, model, batches)
        assert (passes.ran, passes.replayed) == (5, 4), kind
        for before, after in zip(plain, replayed, strict=True):
            assert torch.equal(before, after), kind
        assert not torch.equal(plain[0], plain[1])


def test_stores_that_are_emptied_do_not_harm_a_recording() -> None:
    task, model = build("vrt")
    passes = RecordedForward(task.forward)
    batch = batch_of(SIDE, SIDE, seed=0, spikes=False)
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        plain = task.forward(model, batch)
        restore = passes.of(model)
        for _ in range(2):
            restore(batch)
        for side in range(16, 16 * 12, 16):  # more shapes than a group of blocks stores
            task.forward(model, batch_of(side, SIDE, seed=1, spikes=False))
        rubbish = [torch.full((4096,), 7, device="cuda", dtype=torch.int32) for _ in range(500)]
        assert torch.equal(restore(batch), plain)
        assert len(rubbish) == 500
    assert passes.replayed == 2


def test_several_tiles_at_once_keep_a_budget_and_restore_as_single_ones() -> None:
    task, model = build("vrt")
    batch = batch_of(256, 384, seed=0, spikes=False)

    def frames(memory: int | None) -> WholeFrames:
        settings = EvalSection(tile=128, tile_overlap=16)
        tiles = TilesSection(memory=memory)
        return WholeFrames(task.forward, task.to_device, tiles=tiles, evaluation=settings)

    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        single = frames(None)(model, batch)
        several = frames(2**40)
        found = several(model, batch)
    # Libraries may choose other kernels for larger batches.
    distance = (found - single).norm() / single.norm()
    assert distance < 1e-2, distance
    chosen, replayed = several.notes
    assert "128x128, up to 4 at once" in chosen
    assert replayed == "2 of 3 passes replayed as CUDA graphs"


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    test_a_replayed_pass_gives_the_bits_of_a_plain_one()
    test_stores_that_are_emptied_do_not_harm_a_recording()
    test_several_tiles_at_once_keep_a_budget_and_restore_as_single_ones()
    sys.stdout.write("3 passed\n")
