"""Bird's-eye views in micro-batches and on two ranks, against the batch of four that they make up.

Each way of splitting gives the gradients of the large batch where norms allow it: groups always,
synchronised batch norm over ranks, plain batch norm never.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from pitstop.data.loader.prefetch import on_device
from pitstop.train.model.sync_norm import synchronise_norms
from pitstop.train.ranks import join_ranks, leave_ranks
from pitstop.train.step import Trainer
from pitstop.train.task import Loss
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.model.lift_splat import LssNet
from pitstop.workloads.bev.model.norms import NormKind
from tests.integration.ranks import exit_codes, launch
from tests.unit.train.tasks import SquareTask, make_trainer, one_step
from tests.unit.workloads.bev.model.test_lift_splat import SMALL_SURROUND, batch_for

pytestmark = pytest.mark.slow

CLOSE = 1e-9
"""Of the largest gradient of a weight. In float64: in float32 the gradients of this network with
batch norm are 1 % from those in float64, whoever computes them."""


class ViewTask(SquareTask):
    """A small six-camera network, whose logits are held against fixed ones."""

    def __init__(self, norm: NormKind) -> None:
        super().__init__(nominal_count=2.0)
        self._norm: NormKind = norm

    def build_model(self) -> nn.Module:
        return LssNet(replace(SMALL_SURROUND, norm=self._norm))

    def samples_in(self, batch: Any) -> int:
        return len(batch.images)

    def to_device(self, batch: Any, device: torch.device) -> Any:
        return on_device(batch, device)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch)

    def loss(self, output: Tensor, batch: Any, step: int) -> Loss:
        wanted = batch.images.float().mean(dim=(1, 2, 3, 4)).view(-1, 1, 1, 1) / 255
        error = functional.mse_loss(output, wanted.expand_as(output), reduction="none")
        return Loss(error.mean(dim=(1, 2, 3)).sum(), len(output))


def four_samples() -> BevBatch:
    batch = batch_for(SMALL_SURROUND, size=4)
    # Samples of unequal brightness: what a batch norm takes for its mean then matters.
    scale = torch.tensor([0.2, 0.5, 0.8, 1.0]).view(4, 1, 1, 1, 1)
    return replace(batch, images=(batch.images * scale).byte())


def part(batch: BevBatch, start: int, stop: int) -> BevBatch:
    return replace(batch, **{f.name: getattr(batch, f.name)[start:stop] for f in fields(batch)})


def gradients(trainer: Trainer[Any], batches: list[BevBatch]) -> dict[str, Tensor]:
    """Do one step and give the gradients that the optimizer saw."""
    seen: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        for name, parameter in trainer.model.named_parameters():
            if parameter.grad is not None:
                seen[name.removeprefix("module.")] = parameter.grad.clone()

    trainer.optimizer.register_step_pre_hook(keep)
    one_step(trainer, batches)  # type: ignore[arg-type]
    return seen


def of_one_process(norm: NormKind, *, accumulate: int) -> dict[str, Tensor]:
    trainer = make_trainer(
        ViewTask(norm), accumulate=accumulate, optimizer=torch.optim.SGD, dtype=torch.float64
    )
    size = 4 // accumulate
    whole = four_samples()
    return gradients(trainer, [part(whole, at, at + size) for at in range(0, 4, size)])


def write_gradients(folder: Path, norm: NormKind, synchronised: bool) -> None:
    """Do one step on this rank's two samples."""
    torch.set_num_threads(1)
    ranks = join_ranks()
    trainer = make_trainer(ViewTask(norm), optimizer=torch.optim.SGD, dtype=torch.float64)
    if synchronised:
        synchronise_norms(trainer.model, ranks=2, device=torch.device("cpu"))
    trainer.model = DistributedDataParallel(trainer.model, gradient_as_bucket_view=True)
    trainer.ranks = ranks
    mine = part(four_samples(), 2 * ranks.rank, 2 * ranks.rank + 2)
    torch.save(gradients(trainer, [mine]), folder / f"gradients-{ranks.rank}.pt")
    leave_ranks()


def of_two_ranks(folder: Path, norm: NormKind, *, synchronised: bool) -> dict[str, Tensor]:
    ranks = launch(write_gradients, folder, norm, synchronised, world_size=2, logs=folder / "logs")
    assert exit_codes(ranks) == [0, 0], (folder / "logs" / "stderr-0").read_text()[-2000:]
    first, second = (torch.load(folder / f"gradients-{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    return first


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference, as a share of the largest gradient of the same weight.

    A weight whose gradients are nothing but rounding (those before a norm's mean is taken off) is
    measured by the largest gradient of all.
    """
    assert found.keys() == wanted.keys()
    floor = max(float(value.abs().max()) for value in wanted.values()) * 1e-3
    return max(
        float((found[name] - value).abs().max()) / max(float(value.abs().max()), floor)
        for name, value in wanted.items()
    )


def test_groups_give_accumulation_and_ranks_the_gradients_of_the_large_batch(
    tmp_path: Path,
) -> None:
    wanted = of_one_process("group", accumulate=1)
    assert distance(of_one_process("group", accumulate=2), wanted) < CLOSE
    assert distance(of_two_ranks(tmp_path, "group", synchronised=False), wanted) < CLOSE


def test_batch_norm_over_ranks_gives_the_gradients_of_the_large_batch(tmp_path: Path) -> None:
    wanted = of_one_process("batch", accumulate=1)
    assert distance(of_two_ranks(tmp_path, "batch", synchronised=True), wanted) < CLOSE


def test_plain_batch_norm_gives_neither(tmp_path: Path) -> None:
    wanted = of_one_process("batch", accumulate=1)
    assert distance(of_one_process("batch", accumulate=2), wanted) > 1e-3
    assert distance(of_two_ranks(tmp_path, "batch", synchronised=False), wanted) > 1e-3
