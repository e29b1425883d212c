"""What a network with fused kernels must do; test_model_fused.py runs this interpreted."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pitstop.kernels import Kernels
from pitstop.kernels.splat_columns_plan import ColumnPlan
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.model.geometry import Conventions, LiftedPoints, SplatGrid
from pitstop.workloads.bev.model.lift_splat import MONO, LssNet, LssSettings
from tests.unit.kernels.triton_interpreter import interpreter_set_right

torch.set_num_threads(1)

SETTINGS = replace(
    MONO,
    image_size=(72, 96),
    backbone="swin_nano",
    channels=16,
    depth=(1.0, 25.0, 2.0),
    grid=SplatGrid(
        forward=(-8.0, 16.0, 2.0),
        across=(-10.0, 8.0, 2.0),
        height=(-10.0, 10.0, 10.0),
        frame="ego",
    ),
    heads=(3,),
    width=32,
    out_stages=(1,),
)
ACROSS = replace(SETTINGS, conventions=Conventions(rows="across"))


@pytest.fixture(scope="module", autouse=True)
def the_interpreter_is_set_right() -> Iterator[None]:
    with interpreter_set_right():
        yield


def network(settings: LssSettings, kernels: Kernels) -> LssNet:
    torch.manual_seed(3)
    return LssNet(settings, kernels=kernels).eval()


def batch_of(*calibration: int) -> BevBatch:
    """Samples of two cameras; a camera with an odd number rolls, so that columns share no cell."""
    generator = torch.Generator().manual_seed(5)
    size = len(calibration)
    poses = torch.eye(4).repeat(size, 2, 1, 1)
    poses[..., :3, :3] = torch.tensor([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    roll = torch.eye(4)
    roll[:2, :2] = torch.tensor([[0.8, -0.6], [0.6, 0.8]])
    for here, number in enumerate(calibration):
        if number % 2:
            poses[here] = poses[here] @ roll
        poses[here, 1, :2] *= -1
    return BevBatch(
        images=torch.randint(0, 256, (size, 2, 3, 72, 96), generator=generator, dtype=torch.uint8),
        intrinsics=torch.tensor([[80.0, 0, 48], [0, 80.0, 36], [0, 0, 1]]).repeat(size, 2, 1, 1),
        cam_to_ego=poses,
        image_transform=torch.eye(3).repeat(size, 2, 1, 1),
        bev_transform=torch.eye(4).repeat(size, 1, 1),
        calibration=torch.tensor(calibration),
        targets=torch.zeros(size, 1, 1, 1, dtype=torch.uint8),
        mask=torch.ones(size, 1, 1, dtype=torch.uint8),
    )


def steps(net: LssNet, batch: BevBatch) -> list[Tensor]:
    """Logits, and what the depth net learns from one gradient of the ground.

    Not from one of the logits: behind the ground a value that rounds to the other side of zero
    moves the gradient by far more than rounding.
    """
    net.zero_grad()
    ground: list[Tensor] = []

    def keep(_module: object, _inputs: object, output: Tensor) -> None:
        ground.append(output)

    hook = net.splat.register_forward_hook(keep)
    logits = net(batch)
    hook.remove()
    [sums] = ground
    sums.backward(torch.randn(sums.shape, generator=torch.Generator().manual_seed(9)))
    weight = net.depth_net.project.weight.grad
    assert weight is not None
    return [logits.detach(), sums.detach(), weight.clone()]


@pytest.mark.parametrize("settings", [SETTINGS, ACROSS])
def test_logits_and_gradients_are_those_of_the_reference(settings: LssSettings) -> None:
    plain, fused = (network(settings, kernels) for kernels in ("reference", "fused"))
    attention, fused.backbone = fused.backbone, plain.backbone
    # A calibration that nobody knows, two that are kept, and the same out of what was kept.
    for batch in (batch_of(-1, 4), batch_of(7, 4), batch_of(4, 7), batch_of(4)):
        # The interpreter takes most of a minute for attention, which knows no calibration: once.
        if len(batch.calibration) == 1:
            fused.backbone = attention
        points = fused.locate(batch)
        assert isinstance(points.plan, ColumnPlan)
        kept = points.ranks_bev < len(batch.calibration) * settings.grid.num_cells
        assert 0.2 < float(kept.float().mean()) < 1
        for mine, true in zip(steps(fused, batch), steps(plain, batch), strict=True):
            largest = float(true.abs().max())
            assert largest > 0.01
            torch.testing.assert_close(mine, true, rtol=1e-5, atol=1e-5 * largest)


def test_kept_calibrations_give_the_bits_of_fresh_ones() -> None:
    net = network(SETTINGS, "fused")
    net.backbone = network(SETTINGS, "reference").backbone
    with torch.no_grad():
        fresh = net(replace(batch_of(4, 7), calibration=torch.tensor([-1, -1])))
        first, again = net(batch_of(4, 7)), net(batch_of(4, 7))
    assert torch.equal(first, fresh)
    assert torch.equal(again, fresh)


def test_the_splat_and_its_plan_are_one_graph_for_the_compiler() -> None:
    net, batch = network(SETTINGS, "fused"), batch_of(-1, -1)
    depth, seen = torch.rand(4, 9, 12, 12), torch.randn(4, 9, 12, 16)
    points = net.locate(batch)

    def ground(depth: Tensor, seen: Tensor, points: LiftedPoints) -> Tensor:
        return net.splat(depth, seen, points)

    compiled = torch.compile(ground, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(depth, seen, points), ground(depth, seen, points))


def test_fused_attention_gives_the_maps_and_gradients_of_the_plain_backbone() -> None:
    batch = batch_of(-1)
    pictures = batch.images.flatten(0, 1).float() / 64 - 2
    found: list[list[Tensor]] = []
    for kernels in ("reference", "fused"):
        backbone = network(SETTINGS, kernels).backbone
        generator = torch.Generator().manual_seed(6)
        with torch.no_grad():
            # Fresh tables are zero and fresh projections small: attention would be a plain mean.
            for path, weight in backbone.named_parameters():
                if "attention" in path:
                    weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
        [maps] = backbone(pictures)
        maps.backward(torch.randn(maps.shape, generator=generator))
        learned = dict(backbone.named_parameters())
        # What all keys have in common has no weight: its gradient is rounding alone.
        grads = [part.grad for path, part in learned.items() if "k_proj.bias" not in path]
        found.append([maps.detach(), *(grad for grad in grads if grad is not None)])
    for true, mine in zip(*found, strict=True):
        largest = float(true.abs().max())
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-4 * largest)
