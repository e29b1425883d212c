"""Models of re-identification small enough for a test, and batches for them."""

import torch

from pitstop.workloads.reid.data.batch import ReidBatch
from pitstop.workloads.reid.data.modalities import MODALITIES
from pitstop.workloads.reid.model.clip import ReidModel, ReidShape
from pitstop.workloads.reid.model.towers import BackboneShape, CaptionShape, Kernels, TowerShape

PATCH, GRID, LENGTH, END = 4, (3, 2), 7, 19

BACKBONE = BackboneShape(
    image=TowerShape(width=16, layers=2, heads=2),
    patch=PATCH,
    text=TowerShape(width=12, layers=2, heads=3),
)


def small_shape(*, people: int = 5, rank: int = 2, grid: tuple[int, int] = GRID) -> ReidShape:
    return ReidShape(
        backbone=BACKBONE,
        grid=grid,
        captions=CaptionShape(vocabulary=20, length=LENGTH, end_token=END),
        people=people,
        embed_dim=8,
        rank=rank,
        fusion_heads=2,
        dropout=0.5,
    )


def small_model(*, seed: int = 0, kernels: Kernels = "auto") -> ReidModel:
    """A model whose adapters are not zero, so that they matter."""
    torch.manual_seed(seed)
    model = ReidModel(small_shape(), kernels=kernels)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adapter_up" in name:
                parameter.normal_(std=0.3)
    return model


def random_batch(count: int, *, seed: int = 0, people: int = 5) -> ReidBatch:
    draw = torch.Generator().manual_seed(seed)
    height, width = (PATCH * side for side in GRID)
    present = torch.rand(count, len(MODALITIES), generator=draw) < 0.7
    present[:, 0] |= ~present.any(dim=1)
    tokens = torch.randint(0, END, (count, LENGTH), generator=draw)
    ends = torch.randint(1, LENGTH, (count,), generator=draw)
    tokens[torch.arange(count), ends] = END
    return ReidBatch(
        images=torch.randint(0, 256, (count, 4, 3, height, width), generator=draw).byte(),
        present=present,
        tokens=tokens,
        persons=torch.arange(count) % people,
        cameras=torch.full((count,), -1),
        rows=torch.arange(count),
        present_on_host=present,
    )
